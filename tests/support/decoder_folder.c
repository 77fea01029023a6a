#include "tests/support/decoder_folder.h"

#include "tests/support/archive.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void write_bytes(const char *folder, const char *name, const bytes *b)
{
    char *path;
    assert_true(asprintf(&path, "%s/%s", folder, name) > 0);
    bytes_to_file(b, path);
    free(path);
}

void write_in(const char *folder, const char *name, const char *text)
{
    bytes b = {0};
    bytes_text(&b, text);
    write_bytes(folder, name, &b);
    bytes_free(&b);
}

void copy_in(const char *folder, const char *name, const char *from)
{
    bytes b = bytes_from_file(from);
    write_bytes(folder, name, &b);
    bytes_free(&b);
}

float decoder_value(int i)
{
    return (float)(i * 37 % 101 - 50) / 64;
}

/* Returns the bits of a value of at most 7 significant bits. */
static unsigned bits_of(float value, const char *dtype)
{
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    if (strcmp(dtype, "F32") == 0) return bits;
    if (strcmp(dtype, "BF16") == 0) return bits >> 16;
    const unsigned exponent = bits >> 23 & 255; /* F16 */
    return value == 0 ? 0 : (bits >> 16 & 0x8000u) | (exponent - 112) << 10 | (bits >> 13 & 1023);
}

void write_embedding(const char *folder, const char *name, const char *tensor, const char *dtype, int rows, int width)
{
    const int size = strcmp(dtype, "F32") == 0 ? 4 : 2;
    char *header;
    assert_true(asprintf(&header, "{\"%s\":{\"dtype\":\"%s\",\"shape\":[%d,%d],\"data_offsets\":[0,%d]}}", tensor,
                         dtype, rows, width, rows * width * size) > 0);
    bytes b = make_safetensors(header, 0);
    for (int i = 0; i < rows * width; i++) bytes_number(&b, bits_of(decoder_value(i), dtype), size);
    write_bytes(folder, name, &b);
    bytes_free(&b);
    free(header);
}
