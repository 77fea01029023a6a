#include "vae/vae.h"

#include <float.h>
#include <math.h>

static int is_finite(float x)
{
    return fabsf(x) <= FLT_MAX;
}

size_t vae_to_bytes(const float *pixels, size_t n, uint8_t *bytes)
{
    int others = 0;
    for (size_t i = 0; i < n; i++) others |= !is_finite(pixels[i]);
    for (size_t i = 0; i < n; i++) {
        const float value = (pixels[i] + 1.0f) / 2.0f * 255.0f;
        /* Written so that NaN fails the first test and is black. */
        bytes[i] = value > 0.0f ? value < 255.0f ? (uint8_t)rintf(value) : 255 : 0;
    }
    size_t first = others ? 0 : n;
    while (first < n && is_finite(pixels[first])) first++;
    return first;
}

int vae_is_clipped(const float *pixels, size_t n)
{
    int within = 0;
    for (size_t i = 0; i < n; i++) within |= fabsf(pixels[i]) < 1.0f;
    return !within;
}
