/* Pictures made elsewhere: PNG and JPEG as eight bits of red, green and blue, as PIL's convert("RGB") gives them. */
#ifndef TOOLS_IMAGE_DECODE_H
#define TOOLS_IMAGE_DECODE_H

#include "tools/images/image.h"

enum { IMAGE_WHY_MAX = 256, IMAGE_SIDE_MAX = 16384 };

/* Decodes data[size], recognised by its first bytes. Alpha is dropped, not blended; palettes and grey become RGB; of 16
 * bits the upper 8 are kept; gamma, colour profiles and orientation are not applied. Refused are 16-bit grey, which PIL
 * makes white, CMYK, sides above IMAGE_SIDE_MAX, and whatever is damaged or ends too early. Returns 0; the caller frees
 * out->rgb. Returns 1 with the reason in `why`, which goes on after "PATH: ". */
int image_decode(const void *data, size_t size, image *out, char why[IMAGE_WHY_MAX]);

/* The two formats. */
int image_decode_png(const void *data, size_t size, image *out, char why[IMAGE_WHY_MAX]);
int image_decode_jpeg(const void *data, size_t size, image *out, char why[IMAGE_WHY_MAX]);

/* Allocates the pixels of a picture of this size, of which the file has `size` bytes. One byte of a file makes at most
 * so many pixels; a file that claims more is refused before memory is asked for. */
int image_make_room(double width, double height, size_t size, double pixels_per_byte, image *out,
                    char why[IMAGE_WHY_MAX]);

/* Reads a whole file and decodes it. Returns 0, or 1 after printing why not; the caller frees out->rgb. */
int image_read(const char *path, image *out);

#endif
