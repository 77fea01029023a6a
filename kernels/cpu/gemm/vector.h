/* The vectors of the instruction set that a file is compiled for, as GCC's and clang's vector types. */
#ifndef KERNELS_CPU_GEMM_VECTOR_H
#define KERNELS_CPU_GEMM_VECTOR_H

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
enum { VECTOR = 64, REGISTERS = 32 };
#elif defined(__AVX2__)
enum { VECTOR = 32, REGISTERS = 16 };
#elif defined(__aarch64__)
enum { VECTOR = 16, REGISTERS = 32 };
#else
enum { VECTOR = 16, REGISTERS = 16 };
#endif
enum { LANES = VECTOR / 4 };

typedef float floats __attribute__((vector_size(VECTOR), may_alias));
typedef int32_t ints __attribute__((vector_size(VECTOR), may_alias));
typedef uint32_t uints __attribute__((vector_size(VECTOR), may_alias));
typedef int16_t shorts __attribute__((vector_size(VECTOR), may_alias));
typedef uint16_t halves __attribute__((vector_size(VECTOR / 2), may_alias)); /* bf16 of floats */

/* Returns a * b + c, rounded once where KERN_FUSED is 1 and the processor can: never by a compiler's choice. */
static inline floats multiply_add_v(floats a, floats b, floats c)
{
#if !KERN_FUSED
    return a * b + c;
#elif defined(__AVX512F__)
    return (floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

static inline floats all(float x)
{
    return (floats){0} + x;
}

static inline floats load_floats(const void *p)
{
    floats v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Returns a where the mask is -1, b where it is 0. */
static inline floats choose(ints mask, floats a, floats b)
{
    return (floats)((mask & (ints)a) | (~mask & (ints)b));
}

/* Returns a where a > b, else b. */
static inline floats larger(floats a, floats b)
{
#if defined(__AVX512F__)
    return (floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (floats)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return choose(a > b, a, b);
#endif
}

static inline floats from_bf16(const void *p)
{
    halves h;
    memcpy(&h, p, sizeof h);
    return (floats)(__builtin_convertvector(h, uints) << 16);
}

/* Rounds to nearest even. A NaN may lose its payload but stays NaN: its top mantissa bit is kept. */
static inline halves to_bf16(floats x)
{
#if KERN_FUSED && defined(__AVX512BF16__) /* subnormals become 0 */
    return (halves)_mm512_cvtneps_pbh((__m512)x);
#else
    const uints bits = (uints)x, rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    const ints nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return __builtin_convertvector((uints)choose(nan, (floats)(bits >> 16 | 0x40u), (floats)rounded), halves);
#endif
}

/* Returns exp as exp_f32 does (kernels/cpu/rows.c): with a relative error below 2e-7, and NaN for NaN. */
static inline floats exp_v(floats x)
{
    x = choose(x < -87.0f, all(-87.0f), choose(x > 88.0f, all(88.0f), x));
    const floats sum = multiply_add_v(x, all(1.44269504f), all(12582912.0f)), n = sum - 12582912.0f;
    const floats r = multiply_add_v(n, all(2.12194440e-4f), multiply_add_v(n, all(-0.693359375f), x));
    floats p = all(1.0f / 720);
    p = multiply_add_v(p, r, all(1.0f / 120));
    p = multiply_add_v(p, r, all(1.0f / 24));
    p = multiply_add_v(p, r, all(1.0f / 6));
    p = multiply_add_v(p, r, all(0.5f));
    p = multiply_add_v(p, r, all(1.0f));
    p = multiply_add_v(p, r, all(1.0f));
    return p * (floats)(((uints)sum - 0x4b400000u + 127) << 23);
}

static inline floats silu_v(floats x)
{
    return x / (exp_v(-x) + 1.0f);
}

/* Returns x/2 * (1 + erf(x/sqrt(2))), erf with an absolute error below 2e-7 (Abramowitz and Stegun 7.1.26). */
static inline floats gelu_v(floats x)
{
    const floats one = all(1), z = x * 0.70710678f, a = choose(z < 0.0f, -z, z);
    const floats t = one / multiply_add_v(a, all(0.3275911f), one);
    floats p = multiply_add_v(t, all(1.061405429f), all(-1.453152027f));
    p = multiply_add_v(p, t, all(1.421413741f));
    p = multiply_add_v(p, t, all(-0.284496736f));
    p = multiply_add_v(p, t, all(0.254829592f));
    const floats tail = p * t * exp_v(-a * a); /* 1 - erf(a) */
    /* 1 + erf(z) is tail itself for z < 0: no cancellation */
    return x * 0.5f * choose(z < 0.0f, tail, one + one - tail);
}

/* Returns x/2 * (1 + tanh(u)) = x * sigmoid(2u), u = sqrt(2/pi) * (x + 0.044715 x^3). */
static inline floats gelu_tanh_v(floats x)
{
    const floats cubic = multiply_add_v(x * x, all(0.044715f), all(1));
    return x / (exp_v(x * cubic * -1.5957691216f) + 1.0f);
}

#endif
