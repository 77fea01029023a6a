#include "tools/command.h"

#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int tool_error(const char *format, ...)
{
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 32 || *c == 127) *c = '?'; /* one line, whatever a file is called */
    fflush(stdout);
    const char *fresh_line = isatty(STDERR_FILENO) ? "\r\033[K" : ""; /* over a progress bar */
    fprintf(stderr, "%smar: %s\n", fresh_line, text);
    return 1;
}

const char *tool_base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

int tool_open(const mar_options *options, mar **out)
{
    mar_status status = mar_open(options, out);
    if (status == MAR_OK) return 0;
    tool_error("%s", *out ? mar_error(*out) : mar_status_name(status));
    mar_close(*out);
    *out = NULL;
    return 1;
}

int tool_open_files(mar **out)
{
    const mar_options options = {.backend = MAR_BACKEND_CPU, .threads = 1};
    return tool_open(&options, out);
}

int tool_print_json(cJSON *record, int indented)
{
    char *text = indented ? cJSON_Print(record) : cJSON_PrintUnformatted(record);
    cJSON_Delete(record);
    if (!text) return tool_error("out of memory for the JSON record");
    puts(text);
    cJSON_free(text);
    return 0;
}

double tool_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
