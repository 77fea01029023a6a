/* Pictures: RGB bytes, files with text, grids. */
#ifndef TOOLS_IMAGE_H
#define TOOLS_IMAGE_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    int width, height;
    uint8_t *rgb; /* [height][width][3], rows top to bottom */
} image;

enum { IMAGE_WHY_MAX = 256, IMAGE_SIDE_MAX = 16384 };

/* Text stored in a picture. */
typedef struct {
    const char *key;   /* 1..79 Latin-1 characters */
    const char *value; /* may be UTF-8 */
} image_text;

/* Formats of pictures that are written. PNG keeps pixels and texts. JPEG keeps the texts as a comment, one JSON object,
 * in further comments from 65533 bytes on. WebP keeps no text. */
typedef enum { IMAGE_PNG = 0, IMAGE_JPEG, IMAGE_WEBP, IMAGE_FORMATS } image_format;

/* Returns the format that the path's ending names: .png, .jpg, .jpeg or .webp, in either case; -1 for another. */
int image_format_of(const char *path);
const char *image_format_name(image_format format);   /* "PNG" */
const char *image_format_ending(image_format format); /* ".png" */
/* Returns the most pixels of a picture's side. */
int image_format_side_max(image_format format);
/* Returns NULL if the format can be written, else why not, to follow "PATH: ": WebP without libwebp. */
const char *image_format_lacks(image_format format);

/* Encode a picture. Return its *size bytes, which the caller frees. Return NULL with the reason in `why`. quality:
 * 1..100. */
uint8_t *image_encode_png(const image *picture, const image_text *texts, int text_count, size_t *size,
                          char why[IMAGE_WHY_MAX]);
uint8_t *image_encode_jpeg(const image *picture, int quality, const image_text *texts, int text_count, size_t *size,
                           char why[IMAGE_WHY_MAX]);
uint8_t *image_encode_webp(const image *picture, int quality, size_t *size, char why[IMAGE_WHY_MAX]);

/* Destination and manner of writing a picture. */
typedef enum {
    IMAGE_SYNCED,   /* as tool_write_file */
    IMAGE_UNSYNCED, /* as tool_write_file_unsynced: the caller syncs many at once */
    IMAGE_STREAM    /* standard output; the path is for messages */
} image_store;

/* Encodes a picture and writes it. PNG has no quality. Returns 0, or 1 with the error printed. */
int image_write(const char *path, const image *picture, image_format format, int quality, const image_text *texts,
                int text_count, image_store store);

/* A PNG as read. */
typedef struct {
    image picture;
    image_text *texts; /* [count]; the struct owns the array, the keys and the values */
    int count;         /* of texts */
} image_file;

/* Reads a whole PNG of width x height pixels as image_write writes it, with all its texts, within the limits of
 * tools/images/png_chunks.h. Returns 0, or 1 with the error printed and nothing to free. */
int image_read_png(const char *path, int width, int height, image_file *out);
/* Reads the texts of any PNG, as above; out->picture is empty. Returns 0, or 1 with the error printed and nothing to
 * free. */
int image_read_texts(const char *path, image_file *out);
void image_file_free(image_file *file);

/* Decode one format each, for image_decode and image_decode_alpha (tools/images/source.h). out->rgb and *alpha, NULL
 * before, may be set after a failure, too. */
int image_decode_png(const void *data, size_t size, image *out, char why[IMAGE_WHY_MAX]);
int image_decode_jpeg(const void *data, size_t size, image *out, char why[IMAGE_WHY_MAX]);
int image_decode_webp(const void *data, size_t size, image *out, char why[IMAGE_WHY_MAX]);
int image_decode_png_alpha(const void *data, size_t size, image *out, uint8_t **alpha, char why[IMAGE_WHY_MAX]);
int image_decode_webp_alpha(const void *data, size_t size, image *out, uint8_t **alpha, char why[IMAGE_WHY_MAX]);

/* Read width and height from a file's header, and decode nothing. Return 0, or 1 with the reason. */
int image_jpeg_size(const void *data, size_t size, double *width, double *height, char why[IMAGE_WHY_MAX]);
int image_webp_size(const void *data, size_t size, double *width, double *height, char why[IMAGE_WHY_MAX]);

/* Checks that the sides are 1 to IMAGE_SIDE_MAX. Returns 0, or 1 with the reason. */
int image_check_sides(double width, double height, char why[IMAGE_WHY_MAX]);

/* Copies rgba, uint8_t [height][width][4], to out->rgb and the transparency to *alpha, which is allocated; NULL: it is
 * not wanted. Returns 0, or 1 without memory. */
int image_split_alpha(const uint8_t *rgba, image *out, uint8_t **alpha);

/* Allocates the pixels of a picture of this size from a file with `size` bytes of pixels. One byte encodes at most
 * pixels_per_byte pixels. A file that claims more is rejected before allocating. */
int image_make_room(double width, double height, size_t size, double pixels_per_byte, image *out,
                    char why[IMAGE_WHY_MAX]);

/* Images of one size on a grid, with GRID_GAP white pixels between them; empty cells are white. */
enum { GRID_GAP = 2 };

/* Allocates the picture for rows x columns cells. The caller frees grid->rgb. Returns 0, or 1 without memory. */
int image_grid_create(int rows, int columns, int cell_width, int cell_height, image *grid);
/* Copies `rgb`, uint8_t [cell_height][cell_width][3], to its cell. */
void image_grid_set(image *grid, int row, int column, int cell_width, int cell_height, const uint8_t *rgb);
/* Returns the pixels of such a grid, as a double: the number may exceed any integer type. */
double image_grid_pixels(int rows, int columns, int cell_width, int cell_height);

#endif
