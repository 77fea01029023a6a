/* What a file is that was expected to be a picture, by its first bytes. */
#ifndef TOOLS_IMAGE_KIND_H
#define TOOLS_IMAGE_KIND_H

#include "tools/images/image.h"

#define IMAGE_PNG_SIGNATURE "\x89PNG\r\n\x1a\n"

/* Returns the format, or -1 if it is none of those that are read. Includes WebP in a build without libwebp. */
int image_kind_format(const void *data, size_t size);

/* Returns the formats that are read: "a PNG, a JPEG or a WebP", or without libwebp "a PNG or a JPEG". */
const char *image_kind_expected(void);

/* Writes what the file is, and what was expected: "is a GIF, expected a PNG or a JPEG", to follow "PATH: ". A file of
 * no known kind is shown by its first bytes. Returns 1. */
int image_refuse_kind(const void *data, size_t size, const char *expected, char why[IMAGE_WHY_MAX]);

#endif
