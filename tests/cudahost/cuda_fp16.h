/* FP16 on the CPU: the part of CUDA's header that kernels use. Conversions round to nearest, ties to even. */
#ifndef CUDAHOST_FP16_H
#define CUDAHOST_FP16_H

#include "cudahost_device.h"

static inline unsigned short cudahost_f16(float f)
{
    const unsigned u = __float_as_uint(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return 0x7fff;                            /* the NaN that CUDA makes */
    if (a >= 0x477ff000u) return (unsigned short)(sign | 0x7c00u); /* 65520 and more */
    if (a >= 0x38800000u)                                          /* 2^-14: normal */
        return (unsigned short)(sign | (((a + 0xfffu + (a >> 13 & 1)) >> 13) - (112u << 10)));
    const float subnormal = __uint_as_float(a) + 0.5f; /* its last bit is 2^-24 */
    return (unsigned short)(sign | (__float_as_uint(subnormal) - 0x3f000000u));
}

static inline float cudahost_f16_float(unsigned short h)
{
    const unsigned a = (h & 0x7fffu) << 13, sign = (unsigned)(h & 0x8000u) << 16;
    if (a >= 0x7c00u << 13) return __uint_as_float(sign | 0x7f800000u | (a & 0x7fffffu));
    if (a >= 0x400u << 13) return __uint_as_float(sign | (a + (112u << 23)));
    return __uint_as_float(sign | __float_as_uint((float)(h & 0x3ffu) * 0x1p-24f));
}

struct __half {
    unsigned short __x;
    __half() = default;
    __half(float f) : __x(cudahost_f16(f)) {}
    operator float() const
    {
        return cudahost_f16_float(__x);
    }
};
struct __attribute__((aligned(4))) __half2 {
    __half x, y;
};

static inline __half __float2half_rn(float x)
{
    return x;
}
static inline float __half2float(__half x)
{
    return x;
}
static inline __half2 __floats2half2_rn(float x, float y)
{
    return {x, y};
}
static inline float2 __half22float2(__half2 v)
{
    return make_float2(v.x, v.y);
}

#endif
