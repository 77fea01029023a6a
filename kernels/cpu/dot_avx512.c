/* Compiled for AVX512-BF16 and chosen at run time (isa.c). */
#include "kernels/cpu/dot_block.h"

#include <string.h>

/* The 32 registers have room for sums of 6 rows x 4 vectors, for the vectors of weights and for a pair of x. A chunk of
 * a block is used for all rows while it is in L1, and meanwhile the next one is fetched there, so that memory and
 * arithmetic work at the same time. Sums wait in memory from one chunk to the next. */
enum {
    TALL = 6,   /* rows of a sweep */
    CHUNK = 64, /* pairs of k: 16 KiB of weights, a third of a common L1 */
    ROWS = 64,  /* of a pass over a block; their sums stay in L1, too */
    VECTORS = DOT_COLS / 16
};

/* sum[r] += x[r] . w over `pairs` pairs of k. Fetches `lines` cache lines of `next` with each pair. */
static inline __attribute__((always_inline)) void sweep(const int rows, const int lines, const uint16_t *x, int in,
                                                        const char *w, int pairs, const char *next, float *sum)
{
    __m512 acc[TALL][VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) acc[r][v] = _mm512_load_ps(sum + r * DOT_COLS + 16 * v);
    for (int p = 0; p < pairs; p++) {
        __m512i b[VECTORS];
#pragma GCC unroll 4
        for (int i = 0; i < lines; i++) _mm_prefetch(next + 64 * i, _MM_HINT_T0);
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) b[v] = _mm512_load_si512(w + 64 * v);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            int pair;
            memcpy(&pair, x + (size_t)r * (size_t)in + 2 * p, sizeof pair);
            const __m512bh a = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], a, (__m512bh)b[v]);
        }
        w += DOT_COLS * 4;
        next += 64 * lines;
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) _mm512_store_ps(sum + r * DOT_COLS + 16 * v, acc[r][v]);
}

#define SWEEP(R)                                                                                                       \
    static void sweep_##R(const uint16_t *x, int in, const char *w, int pairs, const char *next, int lines,            \
                          float *sum)                                                                                  \
    {                                                                                                                  \
        if (lines == 0) sweep(R, 0, x, in, w, pairs, next, sum);                                                       \
        if (lines == 1) sweep(R, 1, x, in, w, pairs, next, sum);                                                       \
        if (lines == 2) sweep(R, 2, x, in, w, pairs, next, sum);                                                       \
        if (lines == 4) sweep(R, 4, x, in, w, pairs, next, sum);                                                       \
    }
SWEEP(1)
SWEEP(2)
SWEEP(3)
SWEEP(4)
SWEEP(5)
SWEEP(6)

/* All rows, `rows` <= ROWS, times a chunk: in sweeps of about equal size, over which the lines to fetch are spread. */
static void multiply_chunk(const uint16_t *x, int rows, int in, const char *w, int pairs, const char *next, float *sum)
{
    static void (*const sweeps[])(const uint16_t *x, int in, const char *w, int pairs, const char *next, int lines,
                                  float *sum) = {sweep_1, sweep_2, sweep_3, sweep_4, sweep_5, sweep_6};
    const int count = (rows + TALL - 1) / TALL;
    for (int i = 0, first = 0; i < count; i++) {
        const int taken = (rows - first) / (count - i), lines = VECTORS * (i + 1) / count - VECTORS * i / count;
        sweeps[taken - 1](x + (size_t)first * (size_t)in, in, w, pairs, next, lines, sum + first * DOT_COLS);
        next += 64 * lines * pairs;
        first += taken;
    }
}

static void product(const uint16_t *x, int rows, int in, const uint16_t *block, const uint16_t *next,
                    const dot_out *out)
{
    _Alignas(64) float sum[ROWS * DOT_COLS];
    const int passes = (rows + ROWS - 1) / ROWS, pairs = in / 2;
    for (int pass = 0, first = 0; pass < passes; pass++) {
        const int count = (rows - first) / (passes - pass);
        memset(sum, 0, (size_t)count * DOT_COLS * sizeof *sum);
        for (int p = 0; p < pairs; p += CHUNK) {
            const char *w = (const char *)(block + (size_t)p * 2 * DOT_COLS), *later = w + CHUNK * DOT_COLS * 4;
            const int left = pairs - p;
            if (left <= CHUNK) later = (const char *)(pass == passes - 1 && next ? next : block);
            multiply_chunk(x + (size_t)first * (size_t)in + 2 * p, count, in, w, left < CHUNK ? left : CHUNK, later,
                           sum);
        }
        dot_finish(sum, count, first, out);
        first += count;
    }
}

extern const bf16_dot bf16_dot_avx512;
const bf16_dot bf16_dot_avx512 = {2, dot_pack, product};
