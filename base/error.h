/* Errors inside the library: a status, and one line that says what is wrong and what was expected. */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include "mar.h"

#include <stdarg.h>

enum { ERR_TEXT_MAX = 512 };

typedef struct {
    char text[ERR_TEXT_MAX]; /* one line, no newline, "" if none */
} mar_err;

/* Formats one line into text, char [size], that may be printed anywhere: valid UTF-8, in which control characters,
 * separators of lines, what turns the direction of text around, and bytes that are no UTF-8 are shown as \n, \x1b or
 * \u202e. File and tensor names come from outside. What is too long loses its middle. */
void err_line(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
void err_line_v(char *text, size_t size, const char *format, va_list arguments);

/* Stores the message as such a line and returns `status`, so that a failing function can write
 * `return err_set(e, MAR_EFORMAT, "%s: ...", path);`. `e` may be NULL. */
mar_status err_set(mar_err *e, mar_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
