#include "tools/json_file.h"

#include "tools/command.h"
#include "tools/file.h"
#include "tools/text.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { SIZE_LIMIT_MB = 256 };

int json_file_write(cJSON *record, const char *path)
{
    text_buffer text;
    FILE *out = text_open(&text);
    if (!out) {
        cJSON_Delete(record);
        return tool_error("%s: out of memory for the JSON record", path);
    }
    const int lacks = tool_write_json(record, 1, out), cut = text_close(out, &text);
    if (cut) return tool_error("%s: out of memory for the JSON record", path);
    const int failed =
        lacks ? tool_error("%s: out of memory for the JSON record", path) : tool_write_file(path, text.data, text.size);
    free(text.data);
    return failed;
}

static int memory_lacks; /* cJSON had no memory for what it parsed */

static void *allocate(size_t size)
{
    void *p = malloc(size);
    if (!p) memory_lacks = 1;
    return p;
}

static cJSON *parse(const char *text, size_t size)
{
    cJSON_InitHooks(&(cJSON_Hooks){allocate, free});
    memory_lacks = 0;
    cJSON *record = cJSON_ParseWithLengthOpts(text, size, NULL, 1);
    cJSON_InitHooks(NULL);
    return record;
}

/* Reads the file as JSON; *out may be anything, or NULL. Returns 0, or 1 after printing an error. */
static int read_open(FILE *in, const char *path, int megabytes, const char *expected, cJSON **out)
{
    struct stat st;
    const size_t most = (size_t)megabytes << 20;
    const int is_small = fstat(fileno(in), &st) == 0 && S_ISREG(st.st_mode) && (size_t)st.st_size < most;
    const size_t room = is_small ? (size_t)st.st_size + 1 : most + 1;
    char *text = malloc(room + 1);
    if (!text) return tool_error("out of memory for %s", path);
    const size_t n = fread(text, 1, room, in);
    int failed = 0;
    text[n] = '\0';
    if (ferror(in))
        failed = tool_error("%s: cannot read: %s", path, strerror(errno));
    else if (n > most)
        failed = tool_error("%s: has more than %d MB, expected %s", path, megabytes, expected);
    else
        *out = parse(text, n + 1);
    free(text);
    return failed;
}

int json_file_read(const char *path, const char *expected, cJSON **out)
{
    return json_file_read_small(path, SIZE_LIMIT_MB, expected, out);
}

int json_file_read_small(const char *path, int megabytes, const char *expected, cJSON **out)
{
    *out = NULL;
    FILE *in = fopen(path, "rb");
    if (!in) return tool_error("%s: cannot read: %s", path, strerror(errno));
    int failed = read_open(in, path, megabytes, expected, out);
    fclose(in);
    if (!failed && !cJSON_IsObject(*out)) {
        cJSON_Delete(*out);
        *out = NULL;
        failed = memory_lacks ? tool_error("out of memory for %s", path)
                              : tool_error("%s: is no JSON object, expected %s", path, expected);
    }
    return failed;
}
