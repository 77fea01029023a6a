/* Writes PNGs with texts, in memory, so that encoding cannot fail within a file. */
#include "tools/images/image.h"

#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ignores a warning, for example of an invalid colour profile, or of a text key without a capital. */
static void png_warned(png_structp png, png_const_charp message)
{
    (void)png;
    (void)message;
}

typedef struct {
    uint8_t *data;
    size_t size, capacity;
    char *why; /* char [IMAGE_WHY_MAX], libpng's error message */
} png_buffer;

static void png_writing_failed(png_structp png, png_const_charp message)
{
    png_buffer *buffer = png_get_error_ptr(png);
    snprintf(buffer->why, IMAGE_WHY_MAX, "%s", message);
    longjmp(png_jmpbuf(png), 1);
}

static void png_append(png_structp png, png_bytep data, size_t size)
{
    png_buffer *buffer = png_get_io_ptr(png);
    if (size > buffer->capacity - buffer->size) {
        size_t capacity = 2 * buffer->capacity + size;
        uint8_t *grown = realloc(buffer->data, capacity);
        if (!grown) png_error(png, "out of memory");
        buffer->data = grown;
        buffer->capacity = capacity;
    }
    memcpy(buffer->data + buffer->size, data, size);
    buffer->size += size;
}

static void nothing_to_flush(png_structp png)
{
    (void)png;
}

static int is_ascii(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text >= 128) return 0;
    return 1;
}

/* Encodes the picture. libpng reports errors by longjmp, so nothing to be freed is allocated between setjmp and the
 * end. */
static int png_encode(const image *picture, png_text *texts, int text_count, png_buffer *buffer)
{
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, buffer, png_writing_failed, png_warned);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    if (!info) {
        png_destroy_write_struct(&png, NULL);
        return 1;
    }
    if (setjmp(png_jmpbuf(png))) {
        png_destroy_write_struct(&png, &info);
        return 1;
    }
    png_set_write_fn(png, buffer, png_append, nothing_to_flush);
    png_set_IHDR(png, info, (png_uint_32)picture->width, (png_uint_32)picture->height, 8, PNG_COLOR_TYPE_RGB,
                 PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_set_benign_errors(png, 1); /* otherwise a lack of memory for texts is reported as too many of them */
    png_set_text(png, info, texts, text_count);
    png_write_info(png, info);
    for (int y = 0; y < picture->height; y++) png_write_row(png, picture->rgb + (size_t)y * (size_t)picture->width * 3);
    png_write_end(png, info);
    png_destroy_write_struct(&png, &info);
    return 0;
}

uint8_t *image_encode_png(const image *picture, const image_text *texts, int text_count, size_t *size,
                          char why[IMAGE_WHY_MAX])
{
    png_text *chunks = calloc((size_t)text_count + 1, sizeof *chunks);
    png_buffer buffer = {.why = why};
    snprintf(why, IMAGE_WHY_MAX, "out of memory");
    if (!chunks) return NULL;
    for (int i = 0; i < text_count; i++) {
        int ascii = is_ascii(texts[i].value); /* tEXt is Latin-1; other text goes to iTXt, in UTF-8 */
        chunks[i].compression = ascii ? PNG_TEXT_COMPRESSION_NONE : PNG_ITXT_COMPRESSION_NONE;
        chunks[i].key = (char *)(uintptr_t)texts[i].key; /* the cast is safe: libpng only reads them */
        chunks[i].text = (char *)(uintptr_t)texts[i].value;
    }
    const int failed = png_encode(picture, chunks, text_count, &buffer);
    free(chunks);
    *size = buffer.size;
    if (!failed) return buffer.data;
    free(buffer.data);
    return NULL;
}
