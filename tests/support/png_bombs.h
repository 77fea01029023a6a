/* PNGs that expand: a few MB of file whose chunks decompress to gigabytes. Without cmocka, for tests/attack, too. */
#ifndef TESTS_PNG_BOMBS_H
#define TESTS_PNG_BOMBS_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint8_t *data; /* [size]; free it */
    size_t size, capacity;
} png_file;

/* Appends a chunk with its checksum. `name` has four letters. */
void png_put_chunk(png_file *f, const char *name, const void *data, size_t size);

/* Appends signature and IHDR of a picture in 8-bit RGB, or with depth 1 in grey. */
void png_begin(png_file *f, int width, int height, int depth, int is_interlaced);
/* Appends one IDAT chunk with black pixels and `surplus` MB of zeros behind them. */
void png_put_pixels(png_file *f, int width, int height, int depth, int is_interlaced, int surplus);
/* Appends a zTXt, compressed iTXt or iCCP chunk of `megabytes` MB of spaces: `name` says which. */
void png_put_packed(png_file *f, const char *name, int megabytes);

typedef enum {
    BOMB_ZTXT,               /* texts of 8 MB each */
    BOMB_ITXT,               /* the same behind the pixels */
    BOMB_ICCP,               /* a colour profile */
    BOMB_SURPLUS,            /* pixels behind the last row */
    BOMB_SURPLUS_INTERLACED, /* the same */
    BOMB_HUGE,               /* 16384x16384 pixels in 33 KB; nothing else */
    BOMB_KINDS
} bomb_kind;

/* Returns a black picture that is right but for what it has besides: `megabytes` MB, decompressed. */
png_file png_bomb(bomb_kind kind, int width, int height, int megabytes);

#endif
