/* The frame of a PNG: its chunks, its size and its texts. Nothing but texts is decompressed here. */
#ifndef TOOLS_PNG_CHUNKS_H
#define TOOLS_PNG_CHUNKS_H

#include "tools/images/image.h"

typedef struct {
    double width, height; /* pixels, as IHDR says; 0 .. 2^32-1 */
    size_t pixel_bytes;   /* compressed bytes of all IDAT chunks; 0 from image_png_size */
} png_frame;

/* Reads the size from IHDR, the first chunk, and nothing else. Returns 0, or 1 with the reason. */
int image_png_size(const uint8_t *data, size_t size, png_frame *out, char why[IMAGE_WHY_MAX]);

/* Checks that the file is a PNG, that all its chunks lie within it, IHDR first and IEND last, and their checksums.
 * Returns 0, or 1 with the reason. */
int image_png_check(const uint8_t *data, size_t size, png_frame *out, char why[IMAGE_WHY_MAX]);

enum {
    PNG_TEXTS_MAX = 1000,         /* texts of a file */
    PNG_TEXTS_BYTES_MAX = 8 << 20 /* bytes of all values together, decompressed */
};

/* Reads the texts of a checked PNG to out->texts: chunks tEXt, zTXt and iTXt. Rejects damaged ones, and more than the
 * limits above. Returns 0, or 1 with the reason; the caller frees *out in either case. */
int image_png_texts(const uint8_t *data, size_t size, image_file *out, char why[IMAGE_WHY_MAX]);

#endif
