/* A stream into memory. open_memstream and fmemopen do not report that memory ran out in the middle. */
#ifndef TOOLS_TEXT_H
#define TOOLS_TEXT_H

#include <stddef.h>
#include <stdio.h>

typedef struct {
    char *data; /* [size], then a NUL */
    size_t size, capacity;
    int failed; /* 1: memory ran out, and text is missing */
} text_buffer;

/* Empties *text and opens a stream into it. Returns NULL without memory. */
FILE *text_open(text_buffer *text);
/* Closes the stream. Returns 0, and the caller frees text->data, never NULL. Returns 1 without memory, and frees
 * all. */
int text_close(FILE *stream, text_buffer *text);

/* Writes a reason to why, char [size]. Returns 1. */
int text_fail(char *why, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Appends to text, char [size], as far as it fits. */
void text_append(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Appends "--name PATH", behind a space unless text is empty, quoted for a shell if it must be. */
void text_append_file(char *text, size_t size, const char *name, const char *path);

/* Writes "a, b or c" of the names, which end with NULL. Returns text. */
const char *text_list(const char *const *names, char *text, size_t size);

/* Compares names of files in natural order, as strcmp: numbers in them by value, so that 9.png is before 10.png,
 * letters in either case. Different names can be equal: 1.png and 01.png. */
int text_compare_names(const char *a, const char *b);

#endif
