/* Compiled for AVX512-BF16 with KERN_TYPE=bf16 and for AVX512-VNNI with KERN_TYPE=int8, and chosen at run time (isa.c).
 */
#include "kernels/cpu/dot_block.h"
#include "kernels/cpu/dot_type.h"

#include <string.h>

/* The 32 registers hold sums of 6 rows x 4 vectors, the vectors of weights and a word of x. A chunk of a block is used
 * for all rows while it is in L1. Meanwhile the next chunk is prefetched, so that memory and arithmetic overlap. Sums
 * wait in memory from one chunk to the next. */
enum {
    TALL = 6,   /* rows of a sweep */
    CHUNK = 64, /* words: 16 KiB of weights, a third of a common L1 */
    ROWS = 64,  /* rows of a pass over a block; their sums also stay in L1 */
    VECTORS = DOT_COLS / 16,
    ROW = DOT_COLS * 4, /* bytes of a row of sums, and of a block's word */
};

#if BF16
void dot_bf16_pack(const float *w, int cols, int in, int words, void *out)
{
    uint16_t *block = out;
    const __m256i row = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(DOT_COLS));
    if (cols < DOT_COLS || in / 2 < words) memset(block, 0, (size_t)words * DOT_COLS * 4);
    for (int c = 0; c < cols; c++, w += in)
        for (int i = 0; i < in; i += 16) { /* 8 pairs, each to its own row */
            const unsigned left = (unsigned)(in - i);
            const __mmask16 m = left < 16 ? (__mmask16)((1u << left) - 1) : (__mmask16)0xffff;
            const __mmask8 pairs = left < 16 ? (__mmask8)((1u << left / 2) - 1) : (__mmask8)0xff;
            const __m256i v = (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(m, w + i));
            _mm256_mask_i32scatter_epi32(block + (size_t)i * DOT_COLS + 2 * c, pairs, row, v, 4);
        }
}
#endif

/* Returns acc + a . b, word by word. */
#if BF16
typedef __m512 sums;
#define MULTIPLY_ADD(acc, a, b) _mm512_dpbf16_ps(acc, (__m512bh)(a), (__m512bh)(b))
#else
typedef __m512i sums;
#define MULTIPLY_ADD(acc, a, b) _mm512_dpbusd_epi32(acc, a, b)
#endif

/* sum[r] += x[r] . w over `count` words. Prefetches `lines` cache lines of `next` with each word. */
static inline __attribute__((always_inline)) void sweep(const int rows, const int lines, const char *x, size_t stride,
                                                        const char *w, int count, const char *next, char *sum)
{
    sums acc[TALL][VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) acc[r][v] = (sums)_mm512_load_si512(sum + r * ROW + 64 * v);
    for (int p = 0; p < count; p++) {
        __m512i b[VECTORS];
#pragma GCC unroll 4
        for (int i = 0; i < lines; i++) _mm_prefetch(next + 64 * i, _MM_HINT_T0);
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) b[v] = _mm512_load_si512(w + 64 * v);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            int word;
            memcpy(&word, x + (size_t)r * stride + 4 * p, sizeof word);
            const __m512i a = _mm512_set1_epi32(word);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) acc[r][v] = MULTIPLY_ADD(acc[r][v], a, b[v]);
        }
        w += ROW;
        next += 64 * lines;
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) _mm512_store_si512(sum + r * ROW + 64 * v, (__m512i)acc[r][v]);
}

#define SWEEP(R)                                                                                                       \
    static void sweep_##R(const char *x, size_t stride, const char *w, int count, const char *next, int lines,         \
                          char *sum)                                                                                   \
    {                                                                                                                  \
        if (lines == 0) sweep(R, 0, x, stride, w, count, next, sum);                                                   \
        if (lines == 1) sweep(R, 1, x, stride, w, count, next, sum);                                                   \
        if (lines == 2) sweep(R, 2, x, stride, w, count, next, sum);                                                   \
        if (lines == 4) sweep(R, 4, x, stride, w, count, next, sum);                                                   \
    }
SWEEP(1)
SWEEP(2)
SWEEP(3)
SWEEP(4)
SWEEP(5)
SWEEP(6)

/* Multiplies `rows` <= ROWS rows with a chunk, in sweeps of about equal size. Prefetches are spread over the sweeps. */
static void multiply_chunk(const char *x, int rows, size_t stride, const char *w, int count, const char *next,
                           char *sum)
{
    static void (*const sweeps[])(const char *x, size_t stride, const char *w, int count, const char *next, int lines,
                                  char *sum) = {sweep_1, sweep_2, sweep_3, sweep_4, sweep_5, sweep_6};
    const int parts = (rows + TALL - 1) / TALL;
    for (int i = 0, first = 0; i < parts; i++) {
        const int taken = (rows - first) / (parts - i), lines = VECTORS * (i + 1) / parts - VECTORS * i / parts;
        sweeps[taken - 1](x + (size_t)first * stride, stride, w, count, next, lines, sum + first * ROW);
        next += 64 * lines * count;
        first += taken;
    }
}

static void product(const void *x, size_t x_stride, int rows, int words, const void *block, const void *next,
                    const dot_out *out)
{
    _Alignas(64) char sum[ROWS * ROW];
    const int passes = (rows + ROWS - 1) / ROWS;
    for (int pass = 0, first = 0; pass < passes; pass++) {
        const int count = (rows - first) / (passes - pass);
        memset(sum, 0, (size_t)count * ROW);
        for (int p = 0; p < words; p += CHUNK) {
            const char *w = (const char *)block + (size_t)p * ROW, *later = w + CHUNK * ROW;
            const int left = words - p;
            if (left <= CHUNK) later = pass == passes - 1 && next ? next : block;
            multiply_chunk((const char *)x + (size_t)first * x_stride + 4 * p, count, x_stride, w,
                           left < CHUNK ? left : CHUNK, later, sum);
        }
        dot_finish(sum, !BF16, count, first, out);
        first += count;
    }
}

extern const gemm_kernel NAME(KERN_TYPE, avx512);
const gemm_kernel NAME(KERN_TYPE, avx512) = {1, product, NULL, BF16 ? dot_bf16_pack : NULL};
