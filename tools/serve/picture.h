/* Pictures of jobs as PNG, with the text of `mar generate`. */
#ifndef TOOLS_SERVE_PICTURE_H
#define TOOLS_SERVE_PICTURE_H

#include "tools/serve/service.h"

/* Returns the PNG of a finished image, *size bytes that the job owns. The first call encodes it. Returns NULL if the
 * image is not done, or without memory. */
const uint8_t *picture_png(service *s, job *j, int i, size_t *size);

/* Encodes rgb, uint8_t [height][width][3], without text. The caller frees it. Returns NULL without memory. */
uint8_t *picture_plain(const service *s, const uint8_t *rgb, size_t *size);

#endif
