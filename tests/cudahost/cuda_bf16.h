/* bf16 on the CPU: the part of CUDA's header that kernels use. Conversions round to nearest, ties to even. */
#ifndef CUDAHOST_BF16_H
#define CUDAHOST_BF16_H

#include "cudahost_device.h"

struct __nv_bfloat16_raw {
    unsigned short x;
};
struct __attribute__((aligned(4))) __nv_bfloat162_raw {
    unsigned short x, y;
};

static inline unsigned short cudahost_bf16(float f)
{
    const unsigned u = __float_as_uint(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff; /* the NaN that CUDA makes */
    return (unsigned short)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

struct __nv_bfloat16 {
    unsigned short __x;
    __nv_bfloat16() = default;
    __nv_bfloat16(const __nv_bfloat16_raw &raw) : __x(raw.x) {}
    __nv_bfloat16(float f) : __x(cudahost_bf16(f)) {}
    __nv_bfloat16(double f) : __x(cudahost_bf16((float)f)) {}
    __nv_bfloat16(int i) : __x(cudahost_bf16((float)i)) {}
    operator float() const
    {
        return __uint_as_float((unsigned)__x << 16);
    }
    operator __nv_bfloat16_raw() const
    {
        return {__x};
    }
};
struct __attribute__((aligned(4))) __nv_bfloat162 {
    __nv_bfloat16 x, y;
    __nv_bfloat162() = default;
    __nv_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) : x(a), y(b) {}
    __nv_bfloat162(const __nv_bfloat162_raw &raw) : x(__nv_bfloat16_raw{raw.x}), y(__nv_bfloat16_raw{raw.y}) {}
    operator __nv_bfloat162_raw() const
    {
        return {x.__x, y.__x};
    }
};

#define CUDAHOST_FN(T, name, arguments, result)                                                                        \
    static inline T name arguments                                                                                     \
    {                                                                                                                  \
        return result;                                                                                                 \
    }
CUDAHOST_FN(__nv_bfloat16, __float2bfloat16, (float x), __nv_bfloat16(x))
CUDAHOST_FN(float, __bfloat162float, (__nv_bfloat16 x), (float)x)
CUDAHOST_FN(unsigned short, __bfloat16_as_ushort, (__nv_bfloat16 x), x.__x)
CUDAHOST_FN(__nv_bfloat162, __floats2bfloat162_rn, (float x, float y), __nv_bfloat162(x, y))
CUDAHOST_FN(float2, __bfloat1622float2, (__nv_bfloat162 v), make_float2((float)v.x, (float)v.y))
CUDAHOST_FN(float, __high2float, (__nv_bfloat162 v), (float)v.y)
#undef CUDAHOST_FN

#endif
