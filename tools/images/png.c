/* Writes PNGs with texts, and reads them and any others. */
#include "tools/cli/command.h"
#include "tools/cli/file.h"
#include "tools/images/image.h"

#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ignores a warning, for example of an invalid colour profile, or of a text key without a capital. */
static void warned(png_structp png, png_const_charp message)
{
    (void)png;
    (void)message;
}

/* --- writing: in memory, so that encoding cannot fail within a file ---------------------------------------------- */

typedef struct {
    uint8_t *data;
    size_t size, capacity;
    char *why; /* char [IMAGE_WHY_MAX], libpng's error message */
} png_buffer;

static void writing_failed(png_structp png, png_const_charp message)
{
    png_buffer *buffer = png_get_error_ptr(png);
    snprintf(buffer->why, IMAGE_WHY_MAX, "%s", message);
    longjmp(png_jmpbuf(png), 1);
}

static void append(png_structp png, png_bytep data, size_t size)
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
static int encode(const image *picture, png_text *texts, int text_count, png_buffer *buffer)
{
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, buffer, writing_failed, warned);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    if (!info) {
        png_destroy_write_struct(&png, NULL);
        return 1;
    }
    if (setjmp(png_jmpbuf(png))) {
        png_destroy_write_struct(&png, &info);
        return 1;
    }
    png_set_write_fn(png, buffer, append, nothing_to_flush);
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
    const int failed = encode(picture, chunks, text_count, &buffer);
    free(chunks);
    *size = buffer.size;
    if (!failed) return buffer.data;
    free(buffer.data);
    return NULL;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

typedef struct {
    const uint8_t *data; /* [size] the file */
    size_t size, at;     /* at: bytes read by libpng */
    png_structp png;
    png_infop info;
    char *why; /* char [IMAGE_WHY_MAX], reason of failure; "": none */
} png_reader;

enum { SIGNATURE = 8, CHUNK_FRAME = 12, TEXT_MAX = 8 << 20 }; /* TEXT_MAX: bytes of a compressed text or profile */

/* Records the message. libpng reports errors by longjmp. */
static void reading_failed(png_structp png, png_const_charp message)
{
    png_reader *r = png_get_error_ptr(png);
    snprintf(r->why, IMAGE_WHY_MAX, "is not a whole PNG (%s)", message);
    longjmp(png_jmpbuf(png), 1);
}

static void give(png_structp png, png_bytep to, size_t n)
{
    png_reader *r = png_get_io_ptr(png);
    if (n > r->size - r->at) png_error(png, "it ends too early");
    memcpy(to, r->data + r->at, n);
    r->at += n;
}

/* Reads everything up to the pixels. */
static int read_header(png_reader *r)
{
    if (setjmp(png_jmpbuf(r->png))) return 1;
    png_set_read_fn(r->png, r, give);
    png_set_crc_action(r->png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
    png_set_user_limits(r->png, PNG_UINT_31_MAX, PNG_UINT_31_MAX); /* image_make_room checks the size */
    png_set_chunk_malloc_max(r->png, TEXT_MAX);
    png_read_info(r->png, r->info);
    return 0;
}

/* Lets libpng convert to 8-bit RGB. */
static int make_rgb(png_reader *r)
{
    if (setjmp(png_jmpbuf(r->png))) return 1;
    png_set_palette_to_rgb(r->png);
    png_set_expand_gray_1_2_4_to_8(r->png);
    png_set_strip_16(r->png);
    png_set_strip_alpha(r->png);
    png_set_gray_to_rgb(r->png);
    (void)png_set_interlace_handling(r->png);
    png_read_update_info(r->png, r->info);
    if (png_get_rowbytes(r->png, r->info) == (size_t)png_get_image_width(r->png, r->info) * 3) return 0;
    snprintf(r->why, IMAGE_WHY_MAX, "cannot be made RGB");
    return 1;
}

/* Reads the pixels and everything behind them. */
static int read_rows(png_reader *r, uint8_t *rgb, int height, size_t row)
{
    if (setjmp(png_jmpbuf(r->png))) return 1;
    const int passes = png_get_interlace_type(r->png, r->info) == PNG_INTERLACE_NONE ? 1 : PNG_INTERLACE_ADAM7_PASSES;
    for (int pass = 0; pass < passes; pass++)
        for (int y = 0; y < height; y++) png_read_row(r->png, rgb + (size_t)y * row, NULL);
    png_read_end(r->png, r->info);
    return 0;
}

/* Checks that all chunks lie within the file. libpng allocates as much memory as a chunk claims to have. */
static int has_all_chunks(const uint8_t *data, size_t size)
{
    for (size_t at = SIGNATURE; at <= size && size - at >= CHUNK_FRAME;) {
        const uint8_t *p = data + at;
        const size_t length = (size_t)p[0] << 24 | (size_t)p[1] << 16 | (size_t)p[2] << 8 | p[3];
        if (length > size - at - CHUNK_FRAME) return 0;
        if (memcmp(p + 4, "IEND", 4) == 0) return 1;
        at += CHUNK_FRAME + length;
    }
    return 0;
}

static void open_reader(png_reader *r, const void *data, size_t size, char *why)
{
    *r = (png_reader){.data = data, .size = size, .why = why};
    *why = '\0';
    const int begins = size == 0 || (size >= SIGNATURE && png_sig_cmp(data, 0, SIGNATURE) == 0);
    if (!begins || !has_all_chunks(data, size)) {
        snprintf(r->why, IMAGE_WHY_MAX, "is not a whole PNG (it %s)",
                 begins ? "ends too early" : "begins as none does");
        return;
    }
    r->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, r, reading_failed, warned);
    r->info = r->png ? png_create_info_struct(r->png) : NULL;
    if (!r->info) snprintf(r->why, IMAGE_WHY_MAX, "out of memory");
}

/* --- any PNG ------------------------------------------------------------------------------------------------------ */

/* Allocates out->rgb and decodes the picture to it. out->rgb may be set after a failure, too. */
static void decode(png_reader *r, image *out)
{
    enum { DEFLATE_MAX = 1032 }; /* maximum bytes that deflate makes of one */
    if (read_header(r) != 0) return;
    const int bits = png_get_bit_depth(r->png, r->info), channels = png_get_channels(r->png, r->info);
    if (bits == 16 && png_get_color_type(r->png, r->info) == PNG_COLOR_TYPE_GRAY)
        snprintf(r->why, IMAGE_WHY_MAX, "is a PNG of 16-bit grey, expected 8 bits");
    else if (image_make_room(png_get_image_width(r->png, r->info), png_get_image_height(r->png, r->info), r->size,
                             DEFLATE_MAX * 8.0 / (bits * channels), out, r->why) == 0 &&
             make_rgb(r) == 0)
        read_rows(r, out->rgb, out->height, (size_t)out->width * 3);
}

int image_decode_png(const void *data, size_t size, image *out, char why[IMAGE_WHY_MAX])
{
    png_reader r;
    open_reader(&r, data, size, why);
    if (!*why) decode(&r, out);
    png_destroy_read_struct(&r.png, &r.info, NULL);
    return *why != '\0';
}

/* --- PNGs with transparency --------------------------------------------------------------------------------------- */

/* Lets libpng convert to 8-bit RGBA. *has_alpha: the PNG has transparency. */
static int make_rgba(png_reader *r, int *has_alpha)
{
    if (setjmp(png_jmpbuf(r->png))) return 1;
    *has_alpha = (png_get_color_type(r->png, r->info) & PNG_COLOR_MASK_ALPHA) != 0 ||
                 png_get_valid(r->png, r->info, PNG_INFO_tRNS) != 0;
    png_set_expand(r->png); /* palettes, grey of fewer bits, tRNS */
    png_set_strip_16(r->png);
    png_set_gray_to_rgb(r->png);
    png_set_add_alpha(r->png, 255, PNG_FILLER_AFTER);
    (void)png_set_interlace_handling(r->png);
    png_read_update_info(r->png, r->info);
    if (png_get_rowbytes(r->png, r->info) == (size_t)png_get_image_width(r->png, r->info) * 4) return 0;
    snprintf(r->why, IMAGE_WHY_MAX, "cannot be made RGBA");
    return 1;
}

/* Decodes to rgba, uint8_t [height][width][4], of `out`'s size. */
static int decode_rgba(png_reader *r, const image *out, uint8_t *rgba, int *has_alpha)
{
    if (read_header(r) != 0) return 1;
    const unsigned width = png_get_image_width(r->png, r->info), height = png_get_image_height(r->png, r->info);
    if (width == (unsigned)out->width && height == (unsigned)out->height)
        return make_rgba(r, has_alpha) != 0 || read_rows(r, rgba, out->height, (size_t)out->width * 4) != 0;
    snprintf(r->why, IMAGE_WHY_MAX, "has %ux%u pixels, expected %dx%d", width, height, out->width, out->height);
    return 1;
}

int image_decode_png_alpha(const void *data, size_t size, image *out, uint8_t **alpha, char why[IMAGE_WHY_MAX])
{
    const size_t pixels = (size_t)out->width * (size_t)out->height;
    uint8_t *rgba = malloc(pixels * 4);
    png_reader r;
    int has_alpha = 0;
    *alpha = malloc(pixels);
    out->rgb = malloc(pixels * 3);
    open_reader(&r, data, size, why);
    if (!rgba || !*alpha || !out->rgb) snprintf(why, IMAGE_WHY_MAX, "out of memory");
    const int failed = *why || decode_rgba(&r, out, rgba, &has_alpha) != 0;
    for (size_t i = 0; i < pixels && !failed; i++) {
        memcpy(out->rgb + 3 * i, rgba + 4 * i, 3);
        (*alpha)[i] = rgba[4 * i + 3];
    }
    png_destroy_read_struct(&r.png, &r.info, NULL);
    free(rgba);
    if (failed || !has_alpha) {
        free(*alpha);
        *alpha = NULL;
    }
    if (failed) {
        free(out->rgb);
        out->rgb = NULL;
    }
    return failed;
}

/* --- PNGs of image_write ------------------------------------------------------------------------------------------ */

static int has_shape(png_reader *r, int width, int height)
{
    const int w = (int)png_get_image_width(r->png, r->info), h = (int)png_get_image_height(r->png, r->info);
    const int plain = png_get_color_type(r->png, r->info) == PNG_COLOR_TYPE_RGB &&
                      png_get_bit_depth(r->png, r->info) == 8 &&
                      png_get_interlace_type(r->png, r->info) == PNG_INTERLACE_NONE;
    if (plain && w == width && h == height) return 1;
    snprintf(r->why, IMAGE_WHY_MAX, "has %dx%d pixels%s, expected %dx%d of RGB", w, h, plain ? "" : " of another kind",
             width, height);
    return 0;
}

/* Copies the texts. Returns 1 without memory. */
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
            out->count++; /* image_file_free also frees a partial entry */
            return 1;
        }
    }
    return 0;
}

static void read_own(png_reader *r, int width, int height, image_file *out)
{
    const size_t row = (size_t)width * 3;
    if (read_header(r) != 0 || !has_shape(r, width, height)) return;
    out->picture = (image){width, height, malloc(row * (size_t)height)};
    if (out->picture.rgb && read_rows(r, out->picture.rgb, height, row) != 0) return;
    if (!out->picture.rgb || copy_texts(r, out) != 0) snprintf(r->why, IMAGE_WHY_MAX, "out of memory");
}

static void read_texts(png_reader *r, image_file *out)
{
    if (read_header(r) == 0 && copy_texts(r, out) != 0) snprintf(r->why, IMAGE_WHY_MAX, "out of memory");
}

/* Reads all of a PNG of image_write of this size, or for 0 the texts of any. `expected` ends a message about a file
 * that is no PNG. */
static int read_file(const char *path, int width, int height, const char *expected, image_file *out)
{
    char why[IMAGE_WHY_MAX];
    png_reader r;
    size_t size;
    *out = (image_file){.count = 0};
    void *data = tool_read_file(path, 0, 1024, expected, &size);
    if (!data) return 1;
    open_reader(&r, data, size, why);
    if (!*why && width > 0) read_own(&r, width, height, out);
    if (!*why && width == 0) read_texts(&r, out);
    png_destroy_read_struct(&r.png, &r.info, NULL);
    free(data);
    if (!*why) return 0;
    image_file_free(out);
    if (!strstr(why, "whole PNG")) return tool_error("%s: %s", path, why);
    return tool_error("%s: %s, expected %s", path, why,
                      strncmp(expected, "a PNG or", 8) == 0 ? "one or no such file" : "one");
}

int image_read_png(const char *path, int width, int height, image_file *out)
{
    return read_file(path, width, height, "a PNG or no such file", out);
}

int image_read_texts(const char *path, image_file *out)
{
    return read_file(path, 0, 0, "a PNG", out);
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
