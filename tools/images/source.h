/* Images made elsewhere, in a fixed order: a directory of PNG, JPEG and WebP files, or a NumPy npz (arr_0) or npy of
 * uint8 [images][height][width][3], such as ADM's samples. All have one size, unless a directory's may have any. */
#ifndef TOOLS_IMAGE_SOURCE_H
#define TOOLS_IMAGE_SOURCE_H

#include "tools/images/image.h"

#include <stdint.h>

/* Decodes data[size], recognised by its first bytes, as PIL's convert("RGB") does. Alpha is dropped, not blended.
 * Palettes and grey become RGB. 16 bits keep the upper 8, but of 16-bit grey values above 255 become white. CMYK is
 * taken for inverted. Gamma, colour profiles and orientation are ignored. Rejects sides above IMAGE_SIDE_MAX,
 * animations, and damaged or truncated files. Time and memory are bounded by the size in the header. Returns 0, and the
 * caller frees out->rgb. Returns 1 with the reason, to follow "PATH: ", in `why`. */
int image_decode(const void *data, size_t size, image *out, char why[IMAGE_WHY_MAX]);

/* Does the same for a picture to edit. Rejects 16-bit grey, which would become white. *alpha is the transparency,
 * uint8_t [height][width], which the caller frees; NULL if the picture has none, and after a failure. */
int image_decode_alpha(const void *data, size_t size, image *out, uint8_t **alpha, char why[IMAGE_WHY_MAX]);

/* Reads the size from the header of a picture, and decodes nothing. Returns 0, or 1 with the reason. */
int image_size(const void *data, size_t size, int *width, int *height, char why[IMAGE_WHY_MAX]);

/* Reads the size of a picture's file, and decodes nothing. Returns 0, or 1 with the error printed. */
int image_read_size(const char *path, int *width, int *height);
/* Reads the file of a picture to edit, of width x height pixels at most: a larger one is refused before it is decoded.
 * `limit` says what that size is, for the message. *has_clear is 1 if a pixel is not opaque; NULL is fine. Returns 0,
 * and the caller frees out->rgb; or 1 with the error printed. */
int image_read_within(const char *path, int width, int height, const char *limit, image *out, int *has_clear);

typedef struct image_source image_source;

/* Opens a source and reads the first image of a directory. Its images are those of image_folder_list
 * (tools/images/folder.h), in directories below it, too. A source without images is an error. Returns 0, or 1 with the
 * error printed and *out NULL. */
int image_source_open(const char *path, image_source **out);
/* Does the same, but the images of a directory may have any sizes. Width and height are the first's. */
int image_source_open_any(const char *path, image_source **out);
void image_source_close(image_source *s); /* NULL is fine */

int64_t image_source_count(const image_source *s); /* at least 1 */
int image_source_width(const image_source *s);     /* pixels */
int image_source_height(const image_source *s);
/* Returns the file's path from the directory on, owned by the source; NULL for an array. */
const char *image_source_name(const image_source *s, int64_t i);

/* Hashes the names, sizes and times of a directory's images. The hash changes if one is added, replaced or edited.
 * Returns 0, or 1 with the error printed. */
int image_source_sum(const image_source *s, uint64_t *sum);

/* Reads images first .. first+n-1 to rgb, uint8_t [n][height][width][3], in any order. An array is read from its
 * beginning again if `first` precedes the end of the last read. Files of a directory are read at this time. Returns 0,
 * or 1 with the error printed: a file that is unreadable, damaged or of another size than the first. Damage of an array
 * may show only with its last image. */
int image_source_read(image_source *s, int64_t first, int64_t n, uint8_t *rgb);
/* Does the same with each image in memory of its own, pictures[0..n-1], whatever its size. Stops after the image with
 * which the pixels take IMAGE_SOURCE_BYTES or more. The caller frees the pixels. Returns the number of images, 1 or
 * more, or -1 with the error printed and nothing to free. */
int64_t image_source_read_pictures(image_source *s, int64_t first, int64_t n, image *pictures);
enum { IMAGE_SOURCE_BYTES = 256 << 20 };

/* Writes to rank[i] the place of image i in natural order: numbers in the names compare by value, so that 9.png is
 * before 10.png, letters in either case. Images of an array keep their order. Returns 0, or 1 without memory. */
int image_source_rank(const image_source *s, int32_t *rank);

#endif
