#include "tools/cli/command.h"

#include "base/printable.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int tool_error(const char *format, ...)
{
    char text[8192], line[8192]; /* room for two paths */
    va_list arguments;
    va_start(arguments, format);
    const int n = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (n >= (int)sizeof text) text[printable_whole(text, sizeof text - 1)] = '\0';
    fflush(stdout);
    const char *fresh_line = isatty(STDERR_FILENO) ? "\r\033[K" : ""; /* erases a progress bar */
    fprintf(stderr, "%smar: %s\n", fresh_line, printable(text, line, sizeof line));
    return 1;
}

const char *tool_base_name(const char *path)
{
    const char *at = path + strlen(path);
    while (at > path && at[-1] == '/') at--;
    while (at > path && at[-1] != '/') at--;
    return at;
}

int tool_open_files(const mar_options *about, mar **out)
{
    mar_options options;
    mar_options_init(&options, sizeof options);
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

double tool_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
