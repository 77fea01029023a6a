/* Compiled for AVX-512 with KERN_TYPE=f32 and for AVX512-BF16 with KERN_TYPE=bf16, and chosen at run time (isa.c). */
#include "kernels/cpu/direct.h"

#include <immintrin.h>
#include <string.h>

#define PASTE_(a, b) a##_##b
#define PASTE(a, b)  PASTE_(a, b)
#define IS_f32       0
#define IS_bf16      1
#define IS(a)        PASTE(IS, a)

/* A step multiplies 4 bytes of x, one float or a bf16 pair, with a row of a block. */
enum {
    STEP = IS(KERN_TYPE) ? 2 : 1,
    SIZE = IS(KERN_TYPE) ? 2 : 4,
    NEAR = 1024 /* bytes of prefetch distance into L1 */
};

static void pack(const float *w, int cols, int k, void *block)
{
    memset(block, 0, (size_t)k * DIRECT_COLS * SIZE);
    for (int c = 0; c < cols; c++, w += k)
        for (int i = 0; i < k; i++) {
            const size_t at = ((size_t)(i / STEP) * DIRECT_COLS + (size_t)c) * STEP + (size_t)(i % STEP);
#if IS(KERN_TYPE)
            const __m128i half = (__m128i)_mm_cvtneps_pbh(_mm_set_ss(w[i]));
            ((uint16_t *)block)[at] = (uint16_t)_mm_extract_epi16(half, 0);
#else
            ((float *)block)[at] = w[i];
#endif
        }
}

static inline __attribute__((always_inline)) __m512 step(__m512 sum, const char *x, __m512 w)
{
    float v;
    memcpy(&v, x, sizeof v);
#if IS(KERN_TYPE)
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_ps(v), (__m512bh)w);
#else
    return _mm512_fmadd_ps(_mm512_set1_ps(v), w, sum);
#endif
}

static inline __attribute__((always_inline)) void store(__m512 a, __mmask16 m, char *y)
{
#if IS(KERN_TYPE)
    _mm256_mask_storeu_epi16(y, m, (__m256i)_mm512_cvtneps_pbh(a));
#else
    _mm512_mask_storeu_ps(y, m, a);
#endif
}

/* Computes `rows` rows and stores the first `stored`. */
static inline __attribute__((always_inline)) void sweep(const int rows, const int vectors, const direct_tile *t,
                                                        int stored, char *y)
{
    __m512 acc[DIRECT_ROWS][2];
    const char *w = t->w;
    const size_t bytes = (size_t)t->in * SIZE;
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) acc[r][v] = _mm512_setzero_ps();
    for (int tap = 0; tap < t->taps; tap++) {
        const char *x[DIRECT_ROWS];
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) x[r] = t->x[tap * DIRECT_ROWS + r];
        for (size_t i = 0; i < bytes; i += 4) {
            __m512 b[2];
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) {
                _mm_prefetch(w + NEAR + 64 * v, _MM_HINT_T0);
                b[v] = _mm512_load_ps(w + 64 * v);
            }
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
                for (int v = 0; v < vectors; v++) acc[r][v] = step(acc[r][v], x[r] + i, b[v]);
            w += DIRECT_COLS * 4;
        }
    }
    const __m512 least = _mm512_set1_ps(t->relu ? 0.0f : -__builtin_inff());
#pragma GCC unroll 2
    for (int v = 0; v < vectors; v++) {
        const int cols = t->cols - 16 * v;
        const __mmask16 m = cols < 16 ? (__mmask16)((1u << cols) - 1) : (__mmask16)0xffff;
        const __m512 bias = _mm512_loadu_ps(t->bias + 16 * v);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) /* max returns its second operand if that is a NaN */
            if (r < stored)
                store(_mm512_max_ps(least, _mm512_add_ps(acc[r][v], bias)), m,
                      y + ((size_t)r * t->y_stride + 16u * (size_t)v) * SIZE);
    }
}

/* Computes 2, 6, 10 or 14 rows and discards the spare ones. Four sizes compile in seconds, also with a sanitizer. Most
 * tiles are full. */
static void tile(const direct_tile *t, int rows, void *y)
{
    switch ((rows + 1) / 4 + (t->cols > 16 ? 4 : 0)) {
#define TILE(SIZE_CLASS, ROWS)                                                                                         \
    case SIZE_CLASS:                                                                                                   \
        sweep(ROWS, 1, t, rows, y);                                                                                    \
        break;                                                                                                         \
    case SIZE_CLASS + 4:                                                                                               \
        sweep(ROWS, 2, t, rows, y);                                                                                    \
        break;
        TILE(0, 2) TILE(1, 6) TILE(2, 10) TILE(3, 14) default : break;
    }
}

extern const direct_conv PASTE(direct_conv, KERN_TYPE);
const direct_conv PASTE(direct_conv, KERN_TYPE) = {pack, tile};
