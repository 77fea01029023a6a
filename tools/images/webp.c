/* Writes WebP pictures, if the command was built with libwebp. */
#include "tools/images/image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef MAR_WEBP
#include <webp/encode.h>
#endif

const char *image_format_lacks(image_format format)
{
#ifndef MAR_WEBP
    if (format == IMAGE_WEBP) return "this mar was built without libwebp, expected PNG or JPEG";
#endif
    (void)format;
    return NULL;
}

uint8_t *image_encode_webp(const image *picture, int quality, size_t *size, char why[IMAGE_WHY_MAX])
{
    uint8_t *copy = NULL;
    *size = 0;
    snprintf(why, IMAGE_WHY_MAX, "out of memory");
#ifdef MAR_WEBP
    uint8_t *data = NULL; /* of libwebp's allocator; it tells no reason, and memory is the only one for such a size */
    *size = WebPEncodeRGB(picture->rgb, picture->width, picture->height, picture->width * 3, (float)quality, &data);
    copy = *size > 0 ? malloc(*size) : NULL;
    if (copy) memcpy(copy, data, *size);
    WebPFree(data);
#else
    (void)picture, (void)quality;
    snprintf(why, IMAGE_WHY_MAX, "%s", image_format_lacks(IMAGE_WEBP));
#endif
    return copy;
}
