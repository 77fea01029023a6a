/* Errors inside the library: a status, and one line that says what is wrong and what was expected. */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include "mar.h"

enum { ERR_TEXT_MAX = 512 };

typedef struct {
    char text[ERR_TEXT_MAX]; /* one line, no newline, "" if none */
} mar_err;

/* Stores the message and returns `status`, so that a failing function can write
 * `return err_set(e, MAR_EFORMAT, "%s: ...", path);`. Control characters are replaced, and a long message is truncated.
 * `e` may be NULL. */
mar_status err_set(mar_err *e, mar_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
