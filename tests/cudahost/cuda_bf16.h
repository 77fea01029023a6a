/* bf16 on the CPU: the part of CUDA's header that kernels use. Conversions round to nearest, ties to even. */
#ifndef CUDAHOST_BF16_H
#define CUDAHOST_BF16_H

#include "cudahost_device.h"

static inline unsigned short cudahost_bf16(float f)
{
    const unsigned u = __float_as_uint(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff; /* the NaN that CUDA makes */
    return (unsigned short)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

struct __nv_bfloat16 {
    unsigned short __x;
    __nv_bfloat16() = default;
    __nv_bfloat16(float f) : __x(cudahost_bf16(f)) {}
    operator float() const
    {
        return __uint_as_float((unsigned)__x << 16);
    }
};
struct __attribute__((aligned(4))) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

static inline __nv_bfloat16 __float2bfloat16(float x)
{
    return x;
}
static inline float __bfloat162float(__nv_bfloat16 x)
{
    return x;
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return {x, y};
}

#endif
