/* Writes and reads WebP pictures, if the command was built with libwebp. */
#include "tools/cli/text.h"
#include "tools/images/image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef MAR_WEBP
#include <webp/decode.h>
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

/* --- writing ------------------------------------------------------------------------------------------------------ */

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

/* --- reading ------------------------------------------------------------------------------------------------------ */

#ifdef MAR_WEBP

/* A lossless picture of one colour takes 30 bytes, whatever its size. Larger ones must have bytes in proportion. */
enum { PIXELS_FREE = 1 << 24, PIXELS_PER_BYTE = 8192 };

/* Reads the header, and rejects what is not one picture. */
static int webp_read_features(const void *data, size_t size, WebPBitstreamFeatures *f, char *why)
{
    const VP8StatusCode status = WebPGetFeatures(data, size, f);
    if (status == VP8_STATUS_NOT_ENOUGH_DATA)
        return text_fail(why, IMAGE_WHY_MAX, "is not a whole WebP (it ends too early)");
    if (status != VP8_STATUS_OK) return text_fail(why, IMAGE_WHY_MAX, "is not a whole WebP (its header is damaged)");
    return f->has_animation ? text_fail(why, IMAGE_WHY_MAX, "is an animated WebP, expected one picture") : 0;
}

/* Decodes with `channels` a pixel: 3, RGB, or 4, RGBA. */
static int decode_pixels(const void *data, size_t size, const image *out, int channels, uint8_t *pixels, char *why)
{
    const size_t row = (size_t)out->width * (size_t)channels, all = row * (size_t)out->height;
    const uint8_t *decoded = channels == 4 ? WebPDecodeRGBAInto(data, size, pixels, all, (int)row)
                                           : WebPDecodeRGBInto(data, size, pixels, all, (int)row);
    return decoded ? 0 : text_fail(why, IMAGE_WHY_MAX, "is not a whole WebP (it is damaged or ends too early)");
}

static int webp_make_room(const WebPBitstreamFeatures *f, size_t size, image *out, char *why)
{
    const double pixels = (double)f->width * f->height;
    return image_make_room(f->width, f->height, size, pixels <= PIXELS_FREE ? pixels : PIXELS_PER_BYTE, out, why);
}

int image_webp_size(const void *data, size_t size, double *width, double *height, char why[IMAGE_WHY_MAX])
{
    WebPBitstreamFeatures f = {0};
    if (webp_read_features(data, size, &f, why) != 0) return 1;
    *width = f.width;
    *height = f.height;
    return 0;
}

int image_decode_webp(const void *data, size_t size, image *out, char why[IMAGE_WHY_MAX])
{
    WebPBitstreamFeatures f;
    return webp_read_features(data, size, &f, why) || webp_make_room(&f, size, out, why) ||
           decode_pixels(data, size, out, 3, out->rgb, why);
}

int image_decode_webp_alpha(const void *data, size_t size, image *out, uint8_t **alpha, char why[IMAGE_WHY_MAX])
{
    WebPBitstreamFeatures f;
    if (webp_read_features(data, size, &f, why) != 0 || webp_make_room(&f, size, out, why) != 0) return 1;
    if (!f.has_alpha) return decode_pixels(data, size, out, 3, out->rgb, why);
    uint8_t *rgba = malloc((size_t)out->width * (size_t)out->height * 4);
    int failed = rgba ? decode_pixels(data, size, out, 4, rgba, why) : 1;
    if (!rgba || (!failed && image_split_alpha(rgba, out, alpha) != 0))
        failed = text_fail(why, IMAGE_WHY_MAX, "out of memory");
    free(rgba);
    return failed;
}

#else

static int refuse(char *why)
{
    return text_fail(why, IMAGE_WHY_MAX, "is a WebP: %s", image_format_lacks(IMAGE_WEBP));
}

int image_webp_size(const void *data, size_t size, double *width, double *height, char why[IMAGE_WHY_MAX])
{
    (void)data, (void)size, (void)width, (void)height;
    return refuse(why);
}

int image_decode_webp(const void *data, size_t size, image *out, char why[IMAGE_WHY_MAX])
{
    (void)data, (void)size, (void)out;
    return refuse(why);
}

int image_decode_webp_alpha(const void *data, size_t size, image *out, uint8_t **alpha, char why[IMAGE_WHY_MAX])
{
    (void)data, (void)size, (void)out, (void)alpha;
    return refuse(why);
}

#endif
