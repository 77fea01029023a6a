/* A value of the image decoder's output as a byte of a picture. One source for host and device. */
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

/* round(clip((x + 1) / 2 * 255, 0, 255)), half to even as numpy does. Written so that NaN fails the first test and is
 * black. */
KERN_PIXEL_FN uint8_t kern_pixel_byte(float x)
{
    const float value = (x + 1.0f) / 2.0f * 255.0f;
    return (uint8_t)(value > 0.0f ? value < 255.0f ? rintf(value) : 255.0f : 0.0f);
}

/* The KERN_PIXELS_* that hold of one value. */
KERN_PIXEL_FN int kern_pixel_found(float x)
{
    const float size = fabsf(x);
    return (size < 1.0f ? KERN_PIXELS_WITHIN : 0) | (size <= FLT_MAX ? 0 : KERN_PIXELS_NOT_FINITE);
}

#endif
