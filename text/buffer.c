#include "text/buffer.h"

#include "base/file.h"

#include <stdlib.h>
#include <string.h>

void text_put(text_buffer *b, const char *data, size_t size)
{
    if (b->failed) return;
    if (!b->data || size > b->capacity - b->length) {
        size_t capacity;
        char *grown = NULL;
        if (!__builtin_add_overflow(b->length, size, &capacity) && capacity < SIZE_MAX / 2) {
            capacity = capacity < 64 ? 64 : capacity + capacity / 2;
            grown = realloc(b->data, capacity + 1);
        }
        if (!grown) {
            b->failed = 1;
            return;
        }
        b->data = grown;
        b->capacity = capacity;
    }
    if (size) memcpy(b->data + b->length, data, size);
    b->length += size;
    b->data[b->length] = '\0';
}

void text_put_char(text_buffer *b, unsigned c)
{
    char out[4];
    const size_t size = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = size; i-- > 1; c >>= 6) out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)(size == 1 ? c : (0xf00 >> size & 0xff) | c);
    text_put(b, out, size);
}

void text_buffer_free(text_buffer *b)
{
    free(b->data);
    *b = (text_buffer){0};
}

void *text_grow(void *list, size_t count, size_t *capacity, size_t size)
{
    if (count < *capacity) return list;
    const size_t wanted = count ? 2 * count : 16;
    void *grown = realloc(list, wanted * size);
    if (grown) *capacity = wanted;
    return grown;
}

mar_status text_refuse_memory(size_t n, mar_err *err)
{
    return err_set(err, MAR_ENOMEM, "no memory to split a text of %zu bytes into tokens", n);
}

mar_status text_read_file(const char *path, size_t most, char **out, size_t *size, mar_err *err)
{
    file_source s;
    mar_status status = file_source_open(path, &s, err);
    if (status != MAR_OK) return status;
    char *data = NULL;
    *size = (size_t)s.size;
    if (s.size == 0 || s.size > most)
        status = err_set(err, MAR_EFORMAT, "%s: %llu bytes, expected 1 to %zu", path, (unsigned long long)s.size, most);
    else if (!(data = malloc(*size + 1)))
        status = err_set(err, MAR_ENOMEM, "%s: no memory for its %zu bytes", path, *size);
    if (status == MAR_OK) status = file_source_read(&s, 0, *size, data, err);
    if (status == MAR_OK) status = file_source_check(&s, err);
    file_source_close(&s);
    if (status != MAR_OK) {
        free(data);
        return status;
    }
    data[*size] = '\0';
    *out = data;
    return MAR_OK;
}
