#include "tools/image.h"

#include "tools/command.h"
#include "tools/file.h"

#include <errno.h>
#include <fcntl.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- PNG in memory: encoding cannot then fail half-way through a file ------------------------------- */

typedef struct {
    uint8_t *data;
    size_t size, capacity;
    char why[128]; /* libpng's message, if it failed */
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
    (void)message; /* e.g. a text key libpng would rather have capitalised */
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

/* libpng reports errors by longjmp, so nothing that must be freed is made between setjmp and the end. */
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
        int ascii = is_ascii(texts[i].value); /* tEXt is Latin-1; anything else goes to iTXt, which is UTF-8 */
        chunks[i].compression = ascii ? PNG_TEXT_COMPRESSION_NONE : PNG_ITXT_COMPRESSION_NONE;
        chunks[i].key = (char *)(uintptr_t)texts[i].key; /* libpng only reads them */
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

/* --- reading one back --------------------------------------------------------------------------------- */

typedef struct {
    FILE *stream;
    png_structp png;
    png_infop info;
    char why[128]; /* why it cannot be read; "": it can */
} png_reader;

static void reading_failed(png_structp png, png_const_charp message)
{
    png_reader *r = png_get_error_ptr(png);
    snprintf(r->why, sizeof r->why, "is not a whole PNG (%s), expected one or no such file", message);
    longjmp(png_jmpbuf(png), 1);
}

/* Reads all up to the pixels. */
static int read_header(png_reader *r)
{
    if (setjmp(png_jmpbuf(r->png))) return 1;
    png_init_io(r->png, r->stream);
    png_set_crc_action(r->png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
    png_read_info(r->png, r->info);
    return 0;
}

/* Reads the pixels and all behind them. What must be freed is made outside, since libpng reports errors by longjmp. */
static int read_rows(png_reader *r, const image *picture)
{
    if (setjmp(png_jmpbuf(r->png))) return 1;
    for (int y = 0; y < picture->height; y++)
        png_read_row(r->png, picture->rgb + (size_t)y * (size_t)picture->width * 3, NULL);
    png_read_end(r->png, r->info);
    return 0;
}

static int has_shape(png_reader *r, int width, int height)
{
    const int w = (int)png_get_image_width(r->png, r->info), h = (int)png_get_image_height(r->png, r->info);
    const int plain = png_get_color_type(r->png, r->info) == PNG_COLOR_TYPE_RGB &&
                      png_get_bit_depth(r->png, r->info) == 8 &&
                      png_get_interlace_type(r->png, r->info) == PNG_INTERLACE_NONE;
    if (plain && w == width && h == height) return 1;
    snprintf(r->why, sizeof r->why, "has %dx%d pixels%s, expected %dx%d of RGB", w, h, plain ? "" : " of another kind",
             width, height);
    return 0;
}

/* Copies the texts. Returns 1 if out of memory. */
static int copy_texts(png_reader *r, image_file *out)
{
    png_textp texts = NULL;
    int n = 0;
    png_get_text(r->png, r->info, &texts, &n);
    out->texts = calloc((size_t)n + 1, sizeof *out->texts);
    if (!out->texts) return 1;
    for (out->count = 0; out->count < n; out->count++) {
        image_text *t = &out->texts[out->count];
        *t = (image_text){strdup(texts[out->count].key), strdup(texts[out->count].text)};
        if (!t->key || !t->value) {
            out->count++; /* image_file_free frees half of it, too */
            return 1;
        }
    }
    return 0;
}

static void read_file(png_reader *r, int width, int height, image_file *out)
{
    if (read_header(r) != 0 || !has_shape(r, width, height)) return;
    out->picture = (image){width, height, malloc((size_t)width * (size_t)height * 3)};
    if (out->picture.rgb && read_rows(r, &out->picture) != 0) return;
    if (!out->picture.rgb || copy_texts(r, out) != 0) snprintf(r->why, sizeof r->why, "out of memory");
}

/* NULL after printing an error. */
static FILE *open_regular(const char *path)
{
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a pipe must not block */
    const int is_regular = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    FILE *stream = is_regular ? fdopen(fd, "rb") : NULL;
    if (stream) return stream;
    const int reason = errno;
    if (fd >= 0) close(fd);
    if (fd < 0 || is_regular)
        tool_error("%s: cannot read: %s", path, strerror(reason));
    else
        tool_error("%s: is not a regular file, expected a PNG or no such file", path);
    return NULL;
}

int image_read_png(const char *path, int width, int height, image_file *out)
{
    png_reader r = {.stream = open_regular(path)};
    *out = (image_file){.count = 0};
    if (!r.stream) return 1;
    r.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, reading_failed, png_warned);
    r.info = r.png ? png_create_info_struct(r.png) : NULL;
    if (r.info)
        read_file(&r, width, height, out);
    else
        snprintf(r.why, sizeof r.why, "out of memory");
    png_destroy_read_struct(&r.png, &r.info, NULL);
    fclose(r.stream);
    if (!*r.why) return 0;
    image_file_free(out);
    return tool_error("%s: %s", path, r.why);
}

void image_file_free(image_file *file)
{
    for (int i = 0; i < file->count; i++) {
        free((char *)(uintptr_t)file->texts[i].key);
        free((char *)(uintptr_t)file->texts[i].value);
    }
    free(file->texts);
    free(file->picture.rgb);
    *file = (image_file){.count = 0};
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
