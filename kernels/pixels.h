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

/* Returns 127.5 x, rounded to f32 before it is added to: a double holds the product exactly. nvcc would make it a
 * product of floats and fuse that. */
KERN_PIXEL_FN float kern_pixel_product(float x)
{
#ifdef __CUDA_ARCH__
    return __fmul_rn(127.5f, x);
#else
    return (float)(127.5 * (double)x);
#endif
}

/* Quantises a value to a byte. NaN fails the first test and becomes black. */
KERN_PIXEL_FN uint8_t kern_pixel_byte(float x, kern_bytes how)
{
    const float down = kern_pixel_product(x) + 128.0f, cut = (x + 1.0f) / 2.0f * 255.0f;
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
