/* The vectors of the instruction set that a file is compiled for, as GCC's and clang's vector types. */
#ifndef KERNELS_CPU_GEMM_VECTOR_H
#define KERNELS_CPU_GEMM_VECTOR_H

#include "base/unroll.h"

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

/* Returns a * b + c, rounded once where the instruction set can: never by a compiler's choice. */
static inline floats multiply_add_v(floats a, floats b, floats c)
{
#if defined(__AVX512F__)
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

/* Masks compare lane by lane. `choose` returns a where the mask is set, else b. */
#if defined(__AVX512F__)
typedef __mmask16 mask;

static inline mask is_less(floats a, floats b)
{
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ);
}

static inline mask is_nan(floats a)
{
    return _mm512_cmp_ps_mask((__m512)a, (__m512)a, _CMP_UNORD_Q);
}

static inline floats choose(mask m, floats a, floats b)
{
    return (floats)_mm512_mask_blend_ps(m, (__m512)b, (__m512)a);
}
#else
typedef ints mask;

static inline mask is_less(floats a, floats b)
{
    return a < b;
}

static inline mask is_nan(floats a)
{
    return a != a;
}

static inline floats choose(mask m, floats a, floats b)
{
#if defined(__AVX2__)
    return (floats)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)m);
#else
    return (floats)((m & (ints)a) | (~m & (ints)b));
#endif
}
#endif

/* Returns x within least .. most; a NaN stays one. */
static inline floats clamp(floats x, float least, float most)
{
#if defined(__AVX512F__) /* these return the second if one is NaN */
    return (floats)_mm512_min_ps((__m512)all(most), _mm512_max_ps((__m512)all(least), (__m512)x));
#elif defined(__AVX2__)
    return (floats)_mm256_min_ps((__m256)all(most), _mm256_max_ps((__m256)all(least), (__m256)x));
#else
    return choose(x < least, all(least), choose(x > most, all(most), x));
#endif
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
#if defined(__AVX512BF16__) /* subnormals become 0 */
    return (halves)_mm512_cvtneps_pbh((__m512)x);
#else
    const uints bits = (uints)x, rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    const uints top = (uints)choose(is_nan(x), (floats)(bits | 0x400000u), (floats)rounded) >> 16;
#if defined(__AVX512F__)
    return (halves)_mm512_cvtepi32_epi16((__m512i)top);
#elif defined(__AVX2__)
    const __m256i twice = _mm256_packus_epi32((__m256i)top, (__m256i)top);
    return (halves)_mm256_castsi256_si128(_mm256_permute4x64_epi64(twice, 0x08));
#else
    return __builtin_convertvector(top, halves);
#endif
#endif
}

/* Returns exp as exp_f32 does (kernels/cpu/rows.c): with a relative error below 2.5e-7, and NaN for NaN. */
static inline floats exp_v(floats x)
{
    x = clamp(x, -87, 88);
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

/* Returns x/2 * (1 + erf(x/sqrt(2))). erf(z) = z p(t) with t = 2 (z/most)^2 - 1 for |z| <= most, and exactly 1 above: p
 * is the polynomial c, n coefficients, whose largest error of erf is least (Lawson's weighted least squares over 3000
 * or more Chebyshev points, with p = 1/most at the end). In t, unlike in z^2, its terms do not cancel. */
static inline __attribute__((always_inline)) floats gelu_by(floats x, float most, const float *c, int n)
{
    const floats z = clamp(x * 0.70710678f, -most, most), half = x * 0.5f;
    const floats t = multiply_add_v(z * z, all(2 / (most * most)), all(-1));
    floats p = all(c[0]);
    UNROLL
    for (int i = 1; i < n; i++) p = multiply_add_v(p, t, all(c[i]));
    return multiply_add_v(half, z * p, half);
}

/* GELU with an absolute error of erf below 2.5e-7 (8e-8 but for rounding). Below x = -4 the result, at most 1.3e-4, has
 * few correct digits. */
static inline floats gelu_v(floats x)
{
    static const float c[] = {0.00118928181f, -0.00282644038f, 0.00186556799f, -0.00292336987f, 0.0105306618f,
                              -0.0187449325f, 0.0263663996f,   -0.0387262218f, 0.0551482402f,   -0.0725684464f,
                              0.0908208862f,  -0.111180052f,   0.137740061f,   -0.185641363f,   0.372107625f};
    return gelu_by(x, 3.8f, c, 15);
}

/* The same for results in bf16: an absolute error of erf below 2.3e-5, a hundredth of bf16's spacing at 1. */
static inline floats gelu_bf16_v(floats x)
{
    static const float c[] = {0.00755412644f, -0.0184378754f, 0.0230448991f, -0.0389533304f, 0.0725872964f,
                              -0.111432202f,  0.157544062f,   -0.228703216f, 0.470129579f};
    return gelu_by(x, 3, c, 9);
}

/* Returns x/2 * (1 + tanh(u)) = x * sigmoid(2u), u = sqrt(2/pi) * (x + 0.044715 x^3). */
static inline floats gelu_tanh_v(floats x)
{
    const floats cubic = multiply_add_v(x * x, all(0.044715f), all(1));
    return x / (exp_v(x * cubic * -1.5957691216f) + 1.0f);
}

#endif
