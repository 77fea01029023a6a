/* A growing string, and the list of ids that a tokenizer writes. */
#ifndef TEXT_BUFFER_H
#define TEXT_BUFFER_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

/* Bytes that grow. A failed allocation sets `failed`; later calls then do nothing. */
typedef struct {
    char *data; /* [length + 1], with a NUL at its end; NULL before the first byte */
    size_t length, capacity;
    int failed;
} text_buffer;

void text_put(text_buffer *b, const char *data, size_t size);
void text_put_char(text_buffer *b, unsigned c); /* as UTF-8; c is a Unicode scalar value */
void text_buffer_free(text_buffer *b);

/* Returns a list of `count` elements of `size` bytes with room for one more. Returns NULL without memory; the list then
 * stays. */
void *text_grow(void *list, size_t count, size_t *capacity, size_t size);

/* Returns MAR_ENOMEM for a text of n bytes that is split into tokens. */
mar_status text_refuse_memory(size_t n, mar_err *err);

/* A file's text. */
typedef struct {
    const char *text; /* [length] */
    size_t length;
    const char *label; /* the path, for messages */
} text_file;

/* Reads a regular file of at most `most` bytes. *out is char [*size + 1], with a NUL at its end. The caller frees
 * it. Returns MAR_EIO, MAR_EFORMAT for a larger or an empty file, or MAR_ENOMEM. */
mar_status text_read_file(const char *path, size_t most, char **out, size_t *size, mar_err *err);

/* The ids of a text: the first `max` are kept, all are counted. */
typedef struct {
    int *ids; /* [max] */
    int max;
    int count; /* stops at INT_MAX */
} text_ids;

static inline void text_add_id(text_ids *out, int id)
{
    if (out->count < out->max) out->ids[out->count] = id;
    out->count += out->count < INT32_MAX;
}

#endif
