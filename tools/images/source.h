/* Images made elsewhere, in a fixed order: a directory of PNG and JPEG files, or NumPy's npz (arr_0) or npy of uint8
 * [images][height][width][3], as ADM's samples are. All have one size. */
#ifndef TOOLS_IMAGE_SOURCE_H
#define TOOLS_IMAGE_SOURCE_H

#include "tools/images/image.h"

#include <stdint.h>

/* Decodes data[size], recognised by its first bytes. Alpha is dropped, not blended; palettes and grey become RGB; of 16
 * bits the upper 8 are kept; gamma, colour profiles and orientation are not applied. Refused are 16-bit grey, which PIL
 * makes white, CMYK, sides above IMAGE_SIDE_MAX, and whatever is damaged or ends too early. Returns 0; the caller frees
 * out->rgb. Returns 1 with the reason in `why`, which goes on after "PATH: ". */
int image_decode(const void *data, size_t size, image *out, char why[IMAGE_WHY_MAX]);

/* Reads a whole file and decodes it. Returns 0, or 1 after printing why not; the caller frees out->rgb. */
int image_read(const char *path, image *out);

typedef struct image_source image_source;

/* Opens it and reads the first image of a directory. Its images are the files that end in .png, .jpg or .jpeg, in
 * letters of either case, sorted by name bytewise, as torch-fidelity takes and sorts them; directories in it are not
 * searched. grid.png beside images 000000.png, which mar generate --grid puts there, is not taken. Other files are
 * ignored, unless they end as images of other formats do, which is an error, since they would be missed. A directory or
 * array without images is an error, too. Returns 0, or 1 after printing an error; *out is NULL then. */
int image_source_open(const char *path, image_source **out);
void image_source_close(image_source *s); /* NULL is fine */

int64_t image_source_count(const image_source *s); /* images, at least 1 */
int image_source_width(const image_source *s);     /* pixels */
int image_source_height(const image_source *s);
/* The file's name in its directory, which the source owns; NULL for an array. */
const char *image_source_name(const image_source *s, int64_t i);

/* A hash of the names, sizes and times of a directory's images, to tell whether any was added, replaced or changed
 * without reading them. Returns 0, or 1 after printing an error. */
int image_source_sum(const image_source *s, uint64_t *sum);

/* rgb, uint8_t [n][height][width][3] = images first .. first+n-1. Any order is right; an array is read from its
 * beginning again if `first` is before the end of what was read last. Files of a directory are read as they are now.
 * Returns 0, or 1 after printing an error: of a file that cannot be read, is damaged or has another size than the first
 * one, or of damage in the array, which may show only with its last image. */
int image_source_read(image_source *s, int64_t first, int64_t n, uint8_t *rgb);

#endif
