#include "vae/vae.h"

#include <math.h>

void vae_to_bytes(const float *pixels, size_t n, uint8_t *bytes)
{
    for (size_t i = 0; i < n; i++) {
        const float value = (pixels[i] + 1.0f) / 2.0f * 255.0f;
        /* Written so that NaN fails the first test and is black. */
        bytes[i] = value > 0.0f ? value < 255.0f ? (uint8_t)rintf(value) : 255 : 0;
    }
}
