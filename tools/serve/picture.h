/* Pictures of jobs as files, with the text of `mar generate`. */
#ifndef TOOLS_SERVE_PICTURE_H
#define TOOLS_SERVE_PICTURE_H

#include "tools/images/image.h"
#include "tools/serve/service.h"

/* Returns the file of a finished image in the job's format, *size bytes that the job owns. The first call encodes it.
 * Returns NULL if the image is not done, or without memory. */
const uint8_t *picture_file(service *s, job *j, int i, size_t *size);

/* Encodes rgb, uint8_t [height][width][3], in a format and quality without text. The caller frees it. Returns NULL
 * without memory. */
uint8_t *picture_plain(const service *s, const uint8_t *rgb, image_format format, int quality, size_t *size);

/* Write bytes, or the file of a finished image, as a JSON string in base64. Return 0, or 1 without memory. */
int picture_write_bytes(const uint8_t *bytes, size_t size, FILE *out);
int picture_write_base64(service *s, job *j, int i, FILE *out);

/* Returns a format's name in requests, "png", and its type, "image/png". */
const char *picture_format_name(image_format format);
const char *picture_type(image_format format);

#endif
