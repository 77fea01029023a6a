/* Text in memory that is written as a stream. open_memstream and fmemopen say nothing when memory runs out in the
 * middle of it. */
#ifndef TOOLS_TEXT_H
#define TOOLS_TEXT_H

#include <stddef.h>
#include <stdio.h>

typedef struct {
    char *data; /* [size], and a NUL behind it */
    size_t size, capacity;
    int failed; /* memory ran out: some of the text is missing */
} text_buffer;

/* A stream into *text, which it empties first. NULL if memory ran out. */
FILE *text_open(text_buffer *text);
/* Closes the stream. Returns 0, and the caller frees text->data, which is never NULL; or 1 if memory ran out, and
 * nothing is to be freed. */
int text_close(FILE *stream, text_buffer *text);

/* Writes why something failed to why, char [size]. Returns 1. */
int text_fail(char *why, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Appends to the text in text, char [size], as far as it fits. */
void text_append(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
