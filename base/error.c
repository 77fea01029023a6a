#include "base/error.h"

#include "base/printable.h"

#include <stdio.h>

enum { FORMATTED_MAX = 8192 }; /* a message with two paths */

void err_line_v(char *text, size_t size, const char *format, va_list arguments)
{
    char formatted[FORMATTED_MAX];
    if (size == 0) return;
    const int n = vsnprintf(formatted, sizeof formatted, format, arguments);
    if (n < 0) formatted[0] = '\0';
    if (n >= (int)sizeof formatted) formatted[printable_whole(formatted, sizeof formatted - 1)] = '\0';
    printable(formatted, text, size);
}

void err_line(char *text, size_t size, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    err_line_v(text, size, format, arguments);
    va_end(arguments);
}

mar_status err_set(mar_err *e, mar_status status, const char *format, ...)
{
    if (!e) return status;
    va_list arguments;
    va_start(arguments, format);
    err_line_v(e->text, sizeof e->text, format, arguments);
    va_end(arguments);
    return status;
}

const char *mar_status_name(mar_status status)
{
    switch (status) {
    case MAR_OK:
        return "ok";
    case MAR_EARG:
        return "bad argument";
    case MAR_ENOMEM:
        return "out of memory";
    case MAR_EIO:
        return "file error";
    case MAR_EFORMAT:
        return "malformed file";
    case MAR_EMODEL:
        return "not a usable model";
    case MAR_ECANCELLED:
        return "cancelled";
    case MAR_EBACKEND:
        return "backend error";
    }
    return "unknown status";
}
