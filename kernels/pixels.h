/* Conversion of the image decoder's values to bytes. One source for host and device. */
#ifndef KERNELS_PIXELS_H
#define KERNELS_PIXELS_H

#include "kernels/ops.h"

#include <float.h>
#include <math.h>

#if defined(__CUDACC__) || defined(MAR_CUDAHOST)
#define KERN_PIXEL_FN static __device__ inline
#else
#define KERN_PIXEL_FN static inline
#endif

/* Quantises a value to a byte. NaN fails the first test and becomes black. A double holds the product exactly, so it is
 * rounded to f32 before 128 is added even if a compiler fuses multiply and add. */
KERN_PIXEL_FN uint8_t kern_pixel_byte(float x, kern_bytes how)
{
    const float down = (float)(127.5 * (double)x) + 128.0f, cut = (x + 1.0f) / 2.0f * 255.0f;
    const float value = how == KERN_BYTES_DOWN ? down : how == KERN_BYTES_CUT ? cut : rintf(cut);
    return (uint8_t)(value > 0.0f ? value < 255.0f ? value : 255.0f : 0.0f);
}

/* Returns the KERN_PIXELS_* flags of one value. */
KERN_PIXEL_FN int kern_pixel_found(float x)
{
    const float size = fabsf(x);
    return (size < 1.0f ? KERN_PIXELS_WITHIN : 0) | (size <= FLT_MAX ? 0 : KERN_PIXELS_NOT_FINITE);
}

#endif
