/* GEMM epilogue, compiled with AVX-512 into each of our own kernels (dot.h). */
#ifndef KERNELS_CPU_DOT_BLOCK_H
#define KERNELS_CPU_DOT_BLOCK_H

#include "kernels/cpu/dot.h"

#include <immintrin.h>

/* Returns exp as in rows.c. NaN stays NaN: min and max return their second operand then. */
static inline __m512 exp_ps(__m512 x)
{
    x = _mm512_min_ps(_mm512_set1_ps(88.0f), _mm512_max_ps(_mm512_set1_ps(-87.0f), x));
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.0f / 720);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

static inline __m512 silu_ps(__m512 x)
{
    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), exp_ps(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

/* Returns x/2 * (1 + erf(x/sqrt(2))), erf with an absolute error below 2e-7 (Abramowitz and Stegun 7.1.26). */
static inline __m512 gelu_ps(__m512 x)
{
    const __m512 one = _mm512_set1_ps(1.0f), z = _mm512_mul_ps(x, _mm512_set1_ps(0.70710678f)), a = _mm512_abs_ps(z);
    const __m512 t = _mm512_div_ps(one, _mm512_fmadd_ps(a, _mm512_set1_ps(0.3275911f), one));
    __m512 p = _mm512_set1_ps(1.061405429f);
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-1.453152027f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.421413741f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-0.284496736f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(0.254829592f));
    p = _mm512_mul_ps(p, t);
    const __m512 tail = _mm512_mul_ps(p, exp_ps(_mm512_fnmadd_ps(a, a, _mm512_setzero_ps()))); /* 1 - erf(a) */
    /* 1 + erf(z) is tail itself for z < 0: no cancellation */
    const __mmask16 negative = _mm512_cmp_ps_mask(z, _mm512_setzero_ps(), _CMP_LT_OQ);
    const __m512 twice = _mm512_mask_blend_ps(negative, _mm512_sub_ps(_mm512_set1_ps(2.0f), tail), tail);
    return _mm512_mul_ps(_mm512_mul_ps(x, _mm512_set1_ps(0.5f)), twice);
}

/* Returns x/2 * (1 + tanh(u)) = x * sigmoid(2u), u = sqrt(2/pi) * (x + 0.044715 x^3). */
static inline __m512 gelu_tanh_ps(__m512 x)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 cubic = _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(0.044715f), one);
    const __m512 minus_2u = _mm512_mul_ps(_mm512_mul_ps(x, cubic), _mm512_set1_ps(-1.5957691216f));
    return _mm512_div_ps(x, _mm512_add_ps(one, exp_ps(minus_2u)));
}

/* Scale, offset and bias of 16 columns. */
typedef struct {
    __m512 bias, w_scale;
    __m512i offset;
} dot_columns;

static inline dot_columns columns_at(const int int8, int c, const dot_out *o)
{
    return (dot_columns){.bias = _mm512_loadu_ps(o->bias + c),
                         .w_scale = int8 ? _mm512_loadu_ps(o->w_scale + c) : _mm512_setzero_ps(),
                         .offset = int8 ? _mm512_loadu_si512(o->offset + c) : _mm512_setzero_si512()};
}

/* Returns activation(x w + bias). `x_scale` is the row's, for int8. */
static inline __attribute__((always_inline)) __m512 result_of(const kern_activation activation, const int int8,
                                                              const char *sum, const dot_columns *k, __m512 x_scale)
{
    __m512 a = _mm512_load_ps(sum);
    if (int8) {
        const __m512i exact = _mm512_sub_epi32(_mm512_castps_si512(a), k->offset);
        a = _mm512_mul_ps(_mm512_cvtepi32_ps(exact), _mm512_mul_ps(x_scale, k->w_scale));
    }
    a = _mm512_add_ps(a, k->bias);
    if (activation == KERN_GELU) a = gelu_ps(a);
    if (activation == KERN_SILU) a = silu_ps(a);
    if (activation == KERN_GELU_TANH) a = gelu_tanh_ps(a);
    return a;
}

static inline __m512 x_scale_of(const int int8, size_t row, const dot_out *o)
{
    return int8 ? _mm512_set1_ps(o->x_scale[row]) : _mm512_setzero_ps();
}

/* Writes columns c .. c+31 as bf16: a whole line at a time. */
static inline __attribute__((always_inline)) void finish_line(const kern_activation activation, const int int8,
                                                              const char *sum, int rows, int first, int c,
                                                              const dot_out *o)
{
    const dot_columns low = columns_at(int8, c, o), high = columns_at(int8, c + 16, o);
    uint16_t *y = (uint16_t *)o->y + (size_t)first * o->y_stride + (size_t)c;
    sum += c * 4;
    for (int r = 0; r < rows; r++, sum += DOT_COLS * 4, y += o->y_stride) {
        const __m512 x_scale = x_scale_of(int8, (size_t)(first + r), o);
        const __m512 a = result_of(activation, int8, sum, &low, x_scale);
        const __m512 b = result_of(activation, int8, sum + 64, &high, x_scale);
        _mm512_storeu_si512(y, (__m512i)_mm512_cvtne2ps_pbh(b, a));
    }
}

/* Writes columns c .. c+15. */
static inline __attribute__((always_inline)) void finish_as(const kern_activation activation, const int int8,
                                                            const char *sum, int rows, int first, int c,
                                                            const dot_out *o)
{
    const __mmask16 m = o->cols - c < 16 ? (__mmask16)((1u << (o->cols - c)) - 1) : (__mmask16)0xffff;
    const dot_columns k = columns_at(int8, c, o);
    sum += c * 4;
    for (int r = 0; r < rows; r++, sum += DOT_COLS * 4) {
        const size_t at = (size_t)(first + r), i = at * o->y_stride + (size_t)c;
        __m512 a = result_of(activation, int8, sum, &k, x_scale_of(int8, at, o));
        if (o->y_bf16) {
            _mm256_mask_storeu_epi16((uint16_t *)o->y + i, m, (__m256i)_mm512_cvtneps_pbh(a));
            continue;
        }
        float *y = (float *)o->y + i;
        if (o->gate) {
            const size_t row = o->gate->index ? (size_t)o->gate->index[at] : at;
            const uint16_t *gate = (const uint16_t *)(o->gate->base + row * o->gate->stride) + c;
            const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, gate));
            a = _mm512_fmadd_ps((__m512)_mm512_slli_epi32(bits, 16), a, _mm512_maskz_loadu_ps(m, y));
        } else if (o->add) {
            a = _mm512_add_ps(a, _mm512_maskz_loadu_ps(m, y));
        }
        _mm512_mask_storeu_ps(y, m, a);
    }
}

static inline __attribute__((always_inline)) void finish_with(const kern_activation activation, const int int8,
                                                              const char *sum, int rows, int first, const dot_out *o)
{
    int c = 0;
    for (; o->y_bf16 && c + 32 <= o->cols; c += 32) finish_line(activation, int8, sum, rows, first, c, o);
    for (; c < o->cols; c += 16) finish_as(activation, int8, sum, rows, first, c, o);
}

/* Writes rows first .. first+rows-1 of y from sum[rows][DOT_COLS], 64-byte aligned: float, or int32_t if `int8`. */
static inline __attribute__((always_inline)) void dot_finish(const void *sum, const int int8, int rows, int first,
                                                             const dot_out *o)
{
    switch (o->activation) {
    case KERN_LINEAR:
        finish_with(KERN_LINEAR, int8, sum, rows, first, o);
        break;
    case KERN_GELU:
        finish_with(KERN_GELU, int8, sum, rows, first, o);
        break;
    case KERN_SILU:
        finish_with(KERN_SILU, int8, sum, rows, first, o);
        break;
    case KERN_GELU_TANH:
        finish_with(KERN_GELU_TANH, int8, sum, rows, first, o);
        break;
    }
}

#endif
