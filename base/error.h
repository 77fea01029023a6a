/* Errors inside the library: a status, and one line with the fault and the expected value. */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include "mar_types.h"

#include <stdarg.h>

enum { ERR_TEXT_MAX = 512 };

typedef struct {
    char text[ERR_TEXT_MAX]; /* one line without newline; "" if nothing has failed */
} mar_err;

/* Formats one line into text, char [size]. The line is valid UTF-8 and safe to print, since file and tensor names come
 * from outside. Control characters, line separators, direction marks and invalid bytes become \n, \x1b or \u202e. A
 * line that is too long loses its middle. */
void err_line(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
void err_line_v(char *text, size_t size, const char *format, va_list arguments);

/* Stores the message as such a line and returns `status`. So a failing function writes `return err_set(e, MAR_EFORMAT,
 * "%s: ...", path);`. `e` may be NULL. */
mar_status err_set(mar_err *e, mar_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
