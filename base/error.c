#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

mar_status err_set(mar_err *e, mar_status status, const char *format, ...)
{
    if (!e) return status;
    va_list args;
    va_start(args, format);
    vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    /* File and tensor names come from outside: keep the message one printable line. */
    for (char *c = e->text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
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
