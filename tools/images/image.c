#include "tools/images/image.h"

#include "tools/cli/command.h"
#include "tools/cli/file.h"

#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- PNG in memory, so that encoding cannot fail within a file ---------------------------------------------------- */

typedef struct {
    uint8_t *data;
    size_t size, capacity;
    char why[128]; /* libpng's error message */
} png_buffer;

static void png_failed(png_structp png, png_const_charp message)
{
    png_buffer *buffer = png_get_error_ptr(png);
    snprintf(buffer->why, sizeof buffer->why, "%s", message);
    longjmp(png_jmpbuf(png), 1);
}

static void png_warned(png_structp png, png_const_charp message)
{
    (void)png;
    (void)message; /* for example a text key without a capital */
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

static void png_nothing_to_flush(png_structp png)
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
static int encode(const image *picture, png_text *texts, int text_count, png_buffer *buffer)
{
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, buffer, png_failed, png_warned);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    if (!info) {
        png_destroy_write_struct(&png, NULL);
        snprintf(buffer->why, sizeof buffer->why, "out of memory");
        return 1;
    }
    if (setjmp(png_jmpbuf(png))) {
        png_destroy_write_struct(&png, &info);
        return 1;
    }
    png_set_write_fn(png, buffer, png_append, png_nothing_to_flush);
    png_set_IHDR(png, info, (png_uint_32)picture->width, (png_uint_32)picture->height, 8, PNG_COLOR_TYPE_RGB,
                 PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_set_text(png, info, texts, text_count);
    png_write_info(png, info);
    for (int y = 0; y < picture->height; y++) png_write_row(png, picture->rgb + (size_t)y * (size_t)picture->width * 3);
    png_write_end(png, info);
    png_destroy_write_struct(&png, &info);
    return 0;
}

/* --- files -------------------------------------------------------------------------------------------- */

int image_write_png(const char *path, const image *picture, const image_text *texts, int text_count, image_store store)
{
    png_text *chunks = calloc((size_t)text_count + 1, sizeof *chunks);
    png_buffer buffer = {.capacity = 0};
    if (!chunks) return tool_error("%s: out of memory for its text", path);
    for (int i = 0; i < text_count; i++) {
        int ascii = is_ascii(texts[i].value); /* tEXt is Latin-1; other text goes to iTXt, in UTF-8 */
        chunks[i].compression = ascii ? PNG_TEXT_COMPRESSION_NONE : PNG_ITXT_COMPRESSION_NONE;
        chunks[i].key = (char *)(uintptr_t)texts[i].key; /* the cast is safe: libpng only reads them */
        chunks[i].text = (char *)(uintptr_t)texts[i].value;
    }
    int failed = encode(picture, chunks, text_count, &buffer);
    if (failed)
        tool_error("%s: cannot encode %dx%d pixels as PNG: %s", path, picture->width, picture->height, buffer.why);
    else if (store == IMAGE_STREAM)
        failed = tool_write_output(buffer.data, buffer.size);
    else if (store == IMAGE_UNSYNCED)
        failed = tool_write_file_unsynced(path, buffer.data, buffer.size);
    else
        failed = tool_write_file(path, buffer.data, buffer.size);
    free(buffer.data);
    free(chunks);
    return failed;
}

/* --- memory for pixels ----------------------------------------------------------------------------------- */

int image_make_room(double width, double height, size_t size, double pixels_per_byte, image *out,
                    char why[IMAGE_WHY_MAX])
{
    if (!(width >= 1 && height >= 1 && width <= IMAGE_SIDE_MAX && height <= IMAGE_SIDE_MAX)) {
        snprintf(why, IMAGE_WHY_MAX, "has %.0fx%.0f pixels, expected sides of 1 to %d", width, height, IMAGE_SIDE_MAX);
        return 1;
    }
    if (width * height > pixels_per_byte * (double)size) {
        snprintf(why, IMAGE_WHY_MAX, "has %zu bytes, too few for its %.0fx%.0f pixels", size, width, height);
        return 1;
    }
    *out = (image){(int)width, (int)height, malloc((size_t)width * (size_t)height * 3)};
    if (!out->rgb) snprintf(why, IMAGE_WHY_MAX, "out of memory for %.0fx%.0f pixels", width, height);
    return !out->rgb;
}

/* --- grids -------------------------------------------------------------------------------------------- */

double image_grid_pixels(int rows, int columns, int cell_width, int cell_height)
{
    return ((double)columns * (cell_width + GRID_GAP) - GRID_GAP) *
           ((double)rows * (cell_height + GRID_GAP) - GRID_GAP);
}

int image_grid_create(int rows, int columns, int cell_width, int cell_height, image *grid)
{
    grid->width = columns * (cell_width + GRID_GAP) - GRID_GAP;
    grid->height = rows * (cell_height + GRID_GAP) - GRID_GAP;
    size_t bytes = (size_t)grid->width * (size_t)grid->height * 3;
    grid->rgb = malloc(bytes);
    if (!grid->rgb) return 1;
    memset(grid->rgb, 255, bytes);
    return 0;
}

void image_grid_set(image *grid, int row, int column, int cell_width, int cell_height, const uint8_t *rgb)
{
    size_t left = (size_t)column * (size_t)(cell_width + GRID_GAP);
    size_t top = (size_t)row * (size_t)(cell_height + GRID_GAP);
    for (int y = 0; y < cell_height; y++)
        memcpy(grid->rgb + ((top + (size_t)y) * (size_t)grid->width + left) * 3,
               rgb + (size_t)y * (size_t)cell_width * 3, (size_t)cell_width * 3);
}
