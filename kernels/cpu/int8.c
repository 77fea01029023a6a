/* Compiled for AVX2 and FMA, which every processor with int8 products has. */
#include "kernels/cpu/int8.h"

#include <math.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

void int8_pack(const int8_t *q, const float *scale, int cols, int in, void *block)
{
    int8_t *to = block;
    const size_t bytes = (size_t)int8_words(in) * 4 * DOT_COLS;
    float *scales = (float *)(to + bytes);
    int32_t *offset = (int32_t *)(scales + DOT_COLS);
    memset(block, 0, bytes + INT8_BLOCK_END);
    for (int c = 0; c < cols; c++, q += in) {
        int32_t sum = 0;
        for (int i = 0; i < in; i++) {
            to[((size_t)(i / 4) * DOT_COLS + (size_t)c) * 4 + (size_t)(i % 4)] = q[i];
            sum += q[i];
        }
        scales[c] = scale[c];
        offset[c] = INT8_ZERO * sum;
    }
}

static inline float number(const void *x, int i, const int bf16)
{
    if (!bf16) return ((const float *)x)[i];
    const uint32_t bits = (uint32_t)((const uint16_t *)x)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#if defined(__AVX2__)
/* Eight numbers times factor, to the nearest integer, ties to even. */
static inline __m256i quantise_8(const void *x, int i, const int bf16, __m256 factor)
{
    __m256 v;
    if (bf16)
        v = _mm256_castsi256_ps(
            _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)((const uint16_t *)x + i))), 16));
    else
        v = _mm256_loadu_ps((const float *)x + i);
    return _mm256_cvtps_epi32(_mm256_mul_ps(v, factor));
}

static inline void quantise_32(const void *x, int i, const int bf16, float factor, uint8_t *q)
{
    const __m256 f = _mm256_set1_ps(factor);
    const __m256i zero = _mm256_set1_epi16(INT8_ZERO), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    /* Packing works within halves of a register: words 0, 2, 4, 6 | 1, 3, 5, 7 of the result, four numbers each. */
    const __m256i a = _mm256_packs_epi32(quantise_8(x, i, bf16, f), quantise_8(x, i + 8, bf16, f));
    const __m256i b = _mm256_packs_epi32(quantise_8(x, i + 16, bf16, f), quantise_8(x, i + 24, bf16, f));
    const __m256i all = _mm256_packus_epi16(_mm256_add_epi16(a, zero), _mm256_add_epi16(b, zero));
    _mm256_storeu_si256((__m256i *)q, _mm256_permutevar8x32_epi32(all, order));
}
#endif

/* Magnitudes as integers have the order of the numbers, and NaN lies above infinity. */
static inline __attribute__((always_inline)) void quantise_row(const void *x, const int bf16, int in, uint8_t *q,
                                                               float *scale)
{
    static const uint32_t INFINITE = 0x7f800000u;
    uint32_t most = 0;
    if (bf16) {
        uint16_t half = 0;
        for (int i = 0; i < in; i++) {
            const uint16_t magnitude = ((const uint16_t *)x)[i] & 0x7fffu;
            half = magnitude > half ? magnitude : half;
        }
        most = (uint32_t)half << 16;
    } else {
        for (int i = 0; i < in; i++) {
            uint32_t bits;
            memcpy(&bits, (const float *)x + i, sizeof bits);
            bits &= 0x7fffffffu;
            most = bits > most ? bits : most;
        }
    }
    float greatest;
    memcpy(&greatest, &most, sizeof greatest);
    if (most >= INFINITE || greatest < 1e-30f) {
        memset(q, INT8_ZERO, (size_t)in);
        *scale = most >= INFINITE ? NAN : 0.0f;
        return;
    }
    const float factor = 127.0f / greatest;
    int i = 0;
#if defined(__AVX2__)
    for (; i + 32 <= in; i += 32) quantise_32(x, i, bf16, factor, q + i);
#endif
    for (; i < in; i++) q[i] = (uint8_t)((int)rintf(number(x, i, bf16) * factor) + INT8_ZERO);
    *scale = greatest / 127.0f;
}

void int8_quantise_rows(const void *x, int bf16, int rows, int in, uint8_t *q, float *scale)
{
    const size_t width = (size_t)int8_words(in) * 4;
    for (int r = 0; r < rows; r++, q += width) {
        const size_t at = (size_t)r * (size_t)in;
        if (bf16)
            quantise_row((const uint16_t *)x + at, 1, in, q, scale + r);
        else
            quantise_row((const float *)x + at, 0, in, q, scale + r);
        memset(q + in, INT8_ZERO, width - (size_t)in);
    }
}
