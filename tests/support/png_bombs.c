#include "tests/support/png_bombs.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { MEGABYTE = 1000000, TEXT_MEGABYTES = 8, HUGE_SIDE = 16384 };

static void put(png_file *f, const void *data, size_t size)
{
    if (size > f->capacity - f->size) {
        f->capacity = 2 * f->capacity + size;
        f->data = realloc(f->data, f->capacity);
        if (!f->data) abort();
    }
    if (size > 0) memcpy(f->data + f->size, data, size);
    f->size += size;
}

static void put_be32(png_file *f, uint32_t x)
{
    put(f, (const uint8_t[4]){(uint8_t)(x >> 24), (uint8_t)(x >> 16), (uint8_t)(x >> 8), (uint8_t)x}, 4);
}

void png_put_chunk(png_file *f, const char *name, const void *data, size_t size)
{
    put_be32(f, (uint32_t)size);
    const size_t begin = f->size;
    put(f, name, 4);
    put(f, data, size);
    put_be32(f, (uint32_t)crc32_z(0, f->data + begin, size + 4));
}

/* --- streams of one byte ---------------------------------------------------------------------------------------- */

/* Appends n times the byte, deflated up to a boundary of bytes, so that the block may be repeated. */
static void put_block(png_file *f, int byte, size_t n)
{
    static uint8_t packed[1 << 16];
    uint8_t *plain = malloc(n + 1);
    z_stream z = {.next_in = plain, .avail_in = (uInt)n};
    if (plain) memset(plain, byte, n + 1);
    if (!plain || deflateInit2(&z, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK) abort();
    do {
        z.next_out = packed;
        z.avail_out = sizeof packed;
        if (deflate(&z, Z_FULL_FLUSH) != Z_OK) abort();
        put(f, packed, sizeof packed - z.avail_out);
    } while (z.avail_out == 0);
    deflateEnd(&z);
    free(plain);
}

/* Appends a whole stream of zlib's of `first` zeros and megabytes * MEGABYTE times the byte. */
static void put_stream(png_file *f, size_t first, int byte, int megabytes)
{
    static const uint8_t zero;
    uint8_t *one = malloc(MEGABYTE);
    if (!one) abort();
    memset(one, byte, MEGABYTE);
    const uLong of_one = adler32_z(1, one, MEGABYTE);
    uLong sum = 1;
    for (size_t i = 0; i < first; i++) sum = adler32_z(sum, &zero, 1);
    png_file block = {0};
    put(f, "\x78\xda", 2);
    put_block(f, 0, first);
    put_block(&block, byte, MEGABYTE);
    for (int i = 0; i < megabytes; i++) {
        put(f, block.data, block.size);
        sum = adler32_combine(sum, of_one, MEGABYTE);
    }
    put(f, "\3\0", 2); /* the last block, which is empty */
    put_be32(f, (uint32_t)sum);
    free(block.data);
    free(one);
}

/* --- parts of a picture ------------------------------------------------------------------------------------------- */

void png_begin(png_file *f, int width, int height, int depth, int is_interlaced)
{
    png_file header = {0};
    put_be32(&header, (uint32_t)width);
    put_be32(&header, (uint32_t)height);
    put(&header, (const uint8_t[5]){(uint8_t)depth, depth == 1 ? 0 : 2, 0, 0, (uint8_t)is_interlaced}, 5);
    put(f, "\x89PNG\r\n\x1a\n", 8);
    png_put_chunk(f, "IHDR", header.data, header.size);
    free(header.data);
}

/* Returns the bytes of a picture's rows, each with the byte of its filter. */
static size_t row_bytes(int width, int height, int depth)
{
    const int bits = depth == 1 ? 1 : 3 * depth;
    return width > 0 && height > 0 ? (size_t)height * (1 + ((size_t)width * (size_t)bits + 7) / 8) : 0;
}

void png_put_pixels(png_file *f, int width, int height, int depth, int is_interlaced, int surplus)
{
    static const int passes[7][4] = {{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4},
                                     {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}}; /* x, y, and their steps */
    png_file stream = {0};
    size_t bytes = is_interlaced ? 0 : row_bytes(width, height, depth);
    for (int i = 0; i < 7 && is_interlaced; i++)
        bytes += row_bytes((width - passes[i][0] + passes[i][2] - 1) / passes[i][2],
                           (height - passes[i][1] + passes[i][3] - 1) / passes[i][3], depth);
    put_stream(&stream, bytes, 0, surplus);
    png_put_chunk(f, "IDAT", stream.data, stream.size);
    free(stream.data);
}

void png_put_packed(png_file *f, const char *name, int megabytes)
{
    png_file chunk = {0};
    put(&chunk, "Comment\0\0", 9);                                           /* the key, and zTXt's and iCCP's method */
    if (strcmp(name, "iTXt") == 0) chunk.size--, put(&chunk, "\1\0\0\0", 4); /* compressed, the method, no languages */
    put_stream(&chunk, 0, ' ', megabytes);
    png_put_chunk(f, name, chunk.data, chunk.size);
    free(chunk.data);
}

/* --- bombs -------------------------------------------------------------------------------------------------------- */

static void put_texts(png_file *f, const char *name, int megabytes)
{
    png_file one = {0};
    png_put_packed(&one, name, TEXT_MEGABYTES);
    for (int left = megabytes; left > 0; left -= TEXT_MEGABYTES) put(f, one.data, one.size);
    free(one.data);
}

png_file png_bomb(bomb_kind kind, int width, int height, int megabytes)
{
    const int is_huge = kind == BOMB_HUGE, is_interlaced = kind == BOMB_SURPLUS_INTERLACED;
    const int w = is_huge ? HUGE_SIDE : width, h = is_huge ? HUGE_SIDE : height, depth = is_huge ? 1 : 8;
    png_file f = {0};
    png_begin(&f, w, h, depth, is_interlaced);
    if (kind == BOMB_ZTXT) put_texts(&f, "zTXt", megabytes);
    if (kind == BOMB_ICCP) png_put_packed(&f, "iCCP", megabytes);
    png_put_pixels(&f, w, h, depth, is_interlaced,
                   kind == BOMB_SURPLUS || kind == BOMB_SURPLUS_INTERLACED ? megabytes : 0);
    if (kind == BOMB_ITXT) put_texts(&f, "iTXt", megabytes);
    png_put_chunk(&f, "IEND", NULL, 0);
    return f;
}
