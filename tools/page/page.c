#include "tools/page/page.h"

#include "mar.h"
#include "tools/cli/base64.h"
#include "tools/cli/command.h"
#include "tools/cli/json.h"
#include "tools/cli/file.h"
#include "tools/cli/text.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

extern const char page_template[];     /* template.S: template.html and a NUL */
static const char mark[] = "@RECORD@"; /* place of the record in the template */

static char **words; /* [word_count] the command line */
static int word_count;

void page_set_command(int argc, char **argv)
{
    words = argv;
    word_count = argc;
}

/* Adds the system, and the processor's name if Linux gives it. */
static void add_machine(cJSON *extras)
{
    char line[256], text[1024] = "";
    struct utsname u;
    FILE *info = fopen("/proc/cpuinfo", "r");
    while (info && !*text && fgets(line, sizeof line, info)) {
        const char *name = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && name)
            text_append(text, sizeof text, "%.*s, ", (int)strcspn(name + 2, "\n"), name + 2);
    }
    if (info) fclose(info);
    text_append(text, sizeof text, "%ld processors", sysconf(_SC_NPROCESSORS_ONLN));
    if (uname(&u) == 0) text_append(text, sizeof text, ", %s %s", u.sysname, u.machine);
    cJSON_AddStringToObject(extras, "machine", text);
}

cJSON *page_add_extras(cJSON *record, const char *kind)
{
    cJSON *extras = cJSON_AddObjectToObject(record, "extras");
    char date[32] = "";
    struct tm t;
    const time_t now = time(NULL);
    cJSON_AddStringToObject(extras, "kind", kind);
    cJSON *command = cJSON_AddArrayToObject(extras, "command");
    for (int i = 0; i < word_count; i++) tool_json_append(command, cJSON_CreateString(words[i]));
    if (gmtime_r(&now, &t)) strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", &t);
    cJSON_AddStringToObject(extras, "date", date);
    add_machine(extras);
    return extras;
}

/* --- pictures ----------------------------------------------------------------------------------------------------- */

void page_add_picture(cJSON *list, const image *picture)
{
    static const char begin[] = "data:image/png;base64,";
    char why[IMAGE_WHY_MAX];
    size_t size;
    uint8_t *data = image_encode_png(picture, NULL, 0, &size, why);
    char *text = data ? malloc(sizeof begin + base64_size(size)) : NULL;
    if (text) {
        memcpy(text, begin, sizeof begin);
        base64_write(data, size, text + sizeof begin - 1);
    }
    tool_json_append(list, text ? cJSON_CreateString(text) : NULL);
    free(data);
    free(text);
}

/* --- files -------------------------------------------------------------------------------------------------------- */

/* Writes the record. "<" occurs only in texts of JSON; escaped, it cannot end the element or begin another. */
static void write_record(FILE *out, const char *json)
{
    for (; *json; json++) {
        if (*json == '<')
            fputs("\\u003c", out);
        else
            putc(*json, out);
    }
}

int page_write(cJSON *record, const char *path)
{
    static const char message[] = "%s: out of memory for the page";
    const char *const at = strstr(page_template, mark);
    text_buffer text;
    size_t size;
    char *json = tool_json_text(record, 1, &size);
    FILE *out = json ? text_open(&text) : NULL;
    if (out) {
        fwrite(page_template, 1, (size_t)(at - page_template), out);
        write_record(out, json);
        fputs(at + sizeof mark - 1, out);
    }
    free(json);
    if (!out || text_close(out, &text) != 0) return tool_error(message, path);
    const int failed = tool_write_file(path, text.data, text.size);
    free(text.data);
    return failed;
}
