/* Reads PNGs. Their frame is checked first (png_chunks.h), so that libpng meets no other size and no damage of bytes.
 * It skips all chunks but those that the pixels need. */
#include "tools/cli/command.h"
#include "tools/cli/file.h"
#include "tools/images/png_chunks.h"

#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const uint8_t *data; /* [size] the file */
    size_t size, at;     /* at: bytes read by libpng */
    png_frame frame;
    png_structp png;
    png_infop info;
    int is_last_row;  /* 1: the row that libpng reads is the last */
    int has_all_rows; /* 1: it is decompressed */
    char *why;        /* char [IMAGE_WHY_MAX], reason of failure; "": none */
} png_reader;

/* Records the message. libpng reports errors by longjmp. */
static void png_read_failed(png_structp png, png_const_charp message)
{
    png_reader *r = png_get_error_ptr(png);
    if (!r->has_all_rows) snprintf(r->why, IMAGE_WHY_MAX, "is not a whole PNG (%s)", message);
    png_longjmp(png, 1);
}

/* Ignores a warning, for example of surplus data. */
static void png_read_warned(png_structp png, png_const_charp message)
{
    (void)png;
    (void)message;
}

/* Behind the last row libpng would decompress all surplus data to find the stream's end: a few MB may become
 * gigabytes. It gets no more bytes, and read_rows ends. */
static void png_read_give(png_structp png, png_bytep to, size_t n)
{
    png_reader *r = png_get_io_ptr(png);
    if (r->has_all_rows) png_longjmp(png, 1);
    if (n > r->size - r->at) png_error(png, "it ends too early");
    memcpy(to, r->data + r->at, n);
    r->at += n;
}

/* A user transformation, which libpng calls when it has decompressed a row. */
static void see_row(png_structp png, png_row_infop row, png_bytep data)
{
    png_reader *r = png_get_error_ptr(png);
    (void)row, (void)data;
    r->has_all_rows = r->is_last_row;
}

/* Checks the frame, and makes libpng's structs, which image_decode's caller destroys. */
static void png_read_open_reader(png_reader *r, const void *data, size_t size, char *why)
{
    *r = (png_reader){.data = data, .size = size, .why = why};
    *why = '\0';
    if (image_png_check(data, size, &r->frame, why) != 0) return;
    r->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, r, png_read_failed, png_read_warned);
    r->info = r->png ? png_create_info_struct(r->png) : NULL;
    if (!r->info) snprintf(r->why, IMAGE_WHY_MAX, "out of memory");
}

static void close_reader(png_reader *r)
{
    png_destroy_read_struct(&r->png, &r->info, NULL);
}

/* Reads everything up to the pixels. */
static int png_read_read_header(png_reader *r)
{
    if (setjmp(png_jmpbuf(r->png))) return 1;
    png_set_read_fn(r->png, r, png_read_give);
    png_set_crc_action(r->png, PNG_CRC_QUIET_USE, PNG_CRC_QUIET_USE);      /* they are right */
    png_set_user_limits(r->png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);         /* image_make_room checks the size */
    png_set_chunk_malloc_max(r->png, 0);                                   /* all lie within the file */
    png_set_keep_unknown_chunks(r->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1); /* all but IHDR, PLTE, tRNS, IDAT, IEND */
    png_set_read_user_transform_fn(r->png, see_row);
    png_read_info(r->png, r->info);
    return 0;
}

/* Reads the pixels, and nothing behind them. */
static int png_read_read_rows(png_reader *r, uint8_t *rows, int height, size_t row)
{
    const int is_interlaced = png_get_interlace_type(r->png, r->info) != PNG_INTERLACE_NONE;
    const int passes = is_interlaced ? PNG_INTERLACE_ADAM7_PASSES : 1;
    if (setjmp(png_jmpbuf(r->png))) return !r->has_all_rows;
    for (int pass = 0; pass < passes; pass++)
        for (int y = 0; y < height; y++) {
            r->is_last_row = pass == passes - 1 && y == height - 1;
            /* The last pass has no data of even rows. */
            r->has_all_rows = r->is_last_row && is_interlaced && height % 2 == 1;
            png_read_row(r->png, rows + (size_t)y * row, NULL);
        }
    return 0;
}

/* Checks the size, and allocates the pixels. */
static int png_read_make_room(png_reader *r, image *out)
{
    enum { DEFLATE_MAX = 1032 }; /* maximum bytes that deflate makes of one */
    const int bits = png_get_bit_depth(r->png, r->info) * png_get_channels(r->png, r->info);
    return image_make_room(r->frame.width, r->frame.height, r->frame.pixel_bytes, DEFLATE_MAX * 8.0 / bits, out,
                           r->why);
}

static int is_grey_of_16_bits(png_reader *r)
{
    return png_get_bit_depth(r->png, r->info) == 16 && png_get_color_type(r->png, r->info) == PNG_COLOR_TYPE_GRAY;
}

/* --- any PNG ------------------------------------------------------------------------------------------------------ */

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

/* Prepares rows of 16-bit grey, two bytes a pixel. */
static int keep_16_bits(png_reader *r)
{
    if (setjmp(png_jmpbuf(r->png))) return 1;
    (void)png_set_interlace_handling(r->png);
    png_read_update_info(r->png, r->info);
    return 0;
}

/* Decodes 16-bit grey as PIL converts it: values above 255 become white. */
static void decode_grey_16(png_reader *r, image *out)
{
    const size_t row = (size_t)out->width * 2, pixels = (size_t)out->width * (size_t)out->height;
    uint8_t *wide = malloc(2 * pixels);
    if (!wide) snprintf(r->why, IMAGE_WHY_MAX, "out of memory");
    if (wide && keep_16_bits(r) == 0 && png_read_read_rows(r, wide, out->height, row) == 0)
        for (size_t i = 0; i < pixels; i++) memset(out->rgb + 3 * i, wide[2 * i] ? 255 : wide[2 * i + 1], 3);
    free(wide);
}

int image_decode_png(const void *data, size_t size, image *out, char why[IMAGE_WHY_MAX])
{
    png_reader r;
    png_read_open_reader(&r, data, size, why);
    if (!*why && png_read_read_header(&r) == 0 && png_read_make_room(&r, out) == 0) {
        if (is_grey_of_16_bits(&r))
            decode_grey_16(&r, out);
        else if (make_rgb(&r) == 0)
            png_read_read_rows(&r, out->rgb, out->height, (size_t)out->width * 3);
    }
    close_reader(&r);
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

/* Decodes to out->rgb, and to *alpha if the PNG has transparency. */
static void decode_alpha(png_reader *r, image *out, uint8_t **alpha)
{
    int has_alpha = 0;
    if (png_read_read_header(r) != 0) return;
    if (is_grey_of_16_bits(r)) {
        snprintf(r->why, IMAGE_WHY_MAX, "is a PNG of 16-bit grey, expected 8 bits");
        return;
    }
    if (png_read_make_room(r, out) != 0) return;
    const size_t pixels = (size_t)out->width * (size_t)out->height;
    uint8_t *rgba = malloc(4 * pixels);
    if (!rgba) snprintf(r->why, IMAGE_WHY_MAX, "out of memory");
    if (rgba && make_rgba(r, &has_alpha) == 0 &&
        png_read_read_rows(r, rgba, out->height, (size_t)out->width * 4) == 0 &&
        image_split_alpha(rgba, out, has_alpha ? alpha : NULL) != 0)
        snprintf(r->why, IMAGE_WHY_MAX, "out of memory");
    free(rgba);
}

int image_decode_png_alpha(const void *data, size_t size, image *out, uint8_t **alpha, char why[IMAGE_WHY_MAX])
{
    png_reader r;
    png_read_open_reader(&r, data, size, why);
    if (!*why) decode_alpha(&r, out, alpha);
    close_reader(&r);
    return *why != '\0';
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

static void png_read_read_pixels(png_reader *r, int width, int height, image *out)
{
    const size_t row = (size_t)width * 3;
    if (png_read_read_header(r) != 0 || !has_shape(r, width, height)) return;
    *out = (image){width, height, malloc(row * (size_t)height)};
    if (!out->rgb)
        snprintf(r->why, IMAGE_WHY_MAX, "out of memory");
    else
        png_read_read_rows(r, out->rgb, height, row);
}

/* Reads the texts of a PNG, and of one of image_write of this size the pixels, too; 0x0: of any, and no pixels.
 * `expected` names the file in a message. */
static int png_read_read_file(const char *path, int width, int height, const char *expected, image_file *out)
{
    char why[IMAGE_WHY_MAX];
    png_reader r;
    size_t size;
    *out = (image_file){.count = 0};
    void *data = tool_read_file(path, 0, 1024, expected, &size);
    if (!data) return 1;
    png_read_open_reader(&r, data, size, why);
    if (!*why && width > 0) png_read_read_pixels(&r, width, height, &out->picture);
    if (!*why) image_png_texts(data, size, out, why);
    close_reader(&r);
    free(data);
    if (!*why) return 0;
    image_file_free(out);
    if (!strstr(why, "whole PNG")) return tool_error("%s: %s", path, why);
    return tool_error("%s: %s, expected %s", path, why,
                      strncmp(expected, "a PNG or", 8) == 0 ? "one or no such file" : "one");
}

int image_read_png(const char *path, int width, int height, image_file *out)
{
    return png_read_read_file(path, width, height, "a PNG or no such file", out);
}

int image_read_texts(const char *path, image_file *out)
{
    return png_read_read_file(path, 0, 0, "a PNG", out);
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
