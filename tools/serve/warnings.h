/* What of a request has no effect: sentences that its answer lists. */
#ifndef TOOLS_SERVE_WARNINGS_H
#define TOOLS_SERVE_WARNINGS_H

#include <stddef.h>
#include <stdio.h>

enum { WARNINGS_MAX = 16, WARNING_BYTES = 320 }; /* of a request; further ones are counted */

typedef struct {
    char *text; /* JSON strings with commas between them; NULL: none */
    size_t size;
    int count;
} warnings;

/* Adds one, as JSON. It is cut to WARNING_BYTES. Returns 0, or 1 without memory. */
int warnings_add(warnings *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Writes `, "warnings": [...]`, or nothing if there are none. */
void warnings_write(const warnings *w, FILE *out);
void warnings_free(warnings *w);

#endif
