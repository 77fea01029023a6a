#include "tools/cli/command.h"

#include "base/printable.h"

#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *error_within; /* prefix of errors; NULL: none */

void tool_error_within(const char *where)
{
    error_within = where;
}

int tool_error(const char *format, ...)
{
    char text[8192], line[8192]; /* room for two paths */
    size_t used = 0;
    if (error_within) used = (size_t)snprintf(text, sizeof text / 2, "%.4000s: ", error_within);
    va_list arguments;
    va_start(arguments, format);
    const int n = vsnprintf(text + used, sizeof text - used, format, arguments);
    va_end(arguments);
    if (n >= (int)(sizeof text - used)) text[printable_whole(text, sizeof text - 1)] = '\0';
    fflush(stdout);
    const char *fresh_line = isatty(STDERR_FILENO) ? "\r\033[K" : ""; /* erases a progress bar */
    fprintf(stderr, "%smar: %s\n", fresh_line, printable(text, line, sizeof line));
    return 1;
}

const char *tool_base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

int tool_open_files(const mar_options *about, mar **out)
{
    mar_options options = {0};
    if (about) options = *about;
    options.backend = MAR_BACKEND_CPU;
    options.threads = 1;
    const mar_status status = mar_open(&options, out);
    if (status == MAR_OK) return 0;
    tool_error("%s", *out ? mar_error(*out) : mar_status_name(status));
    mar_close(*out);
    *out = NULL;
    return 1;
}

static int json_lacks; /* 1: cJSON had no memory for part of the record */

static void *json_allocate(size_t size)
{
    void *p = malloc(size);
    if (!p) json_lacks = 1;
    return p;
}

cJSON *tool_json(void)
{
    cJSON_InitHooks(&(cJSON_Hooks){json_allocate, free});
    json_lacks = 0;
    return cJSON_CreateObject();
}

void tool_json_append(cJSON *array, cJSON *item)
{
    if (!cJSON_AddItemToArray(array, item)) cJSON_Delete(item);
}

void tool_json_add(cJSON *object, const char *name, cJSON *item)
{
    if (!cJSON_AddItemToObject(object, name, item)) cJSON_Delete(item);
}

int tool_write_json(cJSON *record, int indented, FILE *out)
{
    char *text = indented ? cJSON_Print(record) : cJSON_PrintUnformatted(record);
    cJSON_Delete(record);
    const int failed = !text || json_lacks;
    if (!failed) {
        printable_json(out, text);
        putc('\n', out);
    }
    cJSON_free(text);
    cJSON_InitHooks(NULL);
    return failed;
}

int tool_print_json(cJSON *record, int indented)
{
    return tool_write_json(record, indented, stdout) ? tool_error("out of memory for the JSON record") : 0;
}

double tool_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
