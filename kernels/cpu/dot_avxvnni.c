/* int8 GEMM by AVX-VNNI, for processors without AVX-512: compiled for AVX2, FMA and AVX-VNNI, and chosen at run time
 * (isa.c). The epilogue runs the same operations in the same order as dot_block.h, so results have the same bits. */
#include "kernels/cpu/dot.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

/* The 16 registers hold sums of 3 rows x 4 vectors, half of a block's columns. */
enum {
    TALL = 3,           /* rows of a sweep */
    CHUNK = 64,         /* words: 16 KiB of weights, a third of a common L1 */
    ROWS = 66,          /* rows of a pass over a block; their sums also stay in L1 */
    ROW = DOT_COLS * 4, /* bytes of a row of sums, and of a block's word */
    HALF = 4,           /* vectors of half a block */
};

/* sum[r] += x[r] . w over `count` words, for 32 columns. Prefetches the same columns of `next` if `fetch`. */
static inline __attribute__((always_inline)) void sweep(const int rows, const int fetch, const char *x, size_t stride,
                                                        const char *w, int count, const char *next, char *sum)
{
    __m256i acc[TALL][HALF];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < HALF; v++) acc[r][v] = _mm256_load_si256((const __m256i *)(sum + r * ROW + 32 * v));
    for (int p = 0; p < count; p++, w += ROW, next += ROW) {
        if (fetch) _mm_prefetch(next, _MM_HINT_T0), _mm_prefetch(next + 64, _MM_HINT_T0);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            int word;
            memcpy(&word, x + (size_t)r * stride + 4 * p, sizeof word);
            const __m256i a = _mm256_set1_epi32(word);
#pragma GCC unroll 4
            for (int v = 0; v < HALF; v++)
                acc[r][v] = _mm256_dpbusd_avx_epi32(acc[r][v], a, _mm256_load_si256((const __m256i *)(w + 32 * v)));
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < HALF; v++) _mm256_store_si256((__m256i *)(sum + r * ROW + 32 * v), acc[r][v]);
}

static void multiply(int rows, int fetch, const char *x, size_t stride, const char *w, int count, const char *next,
                     char *sum)
{
    if (rows == 3 && fetch) sweep(3, 1, x, stride, w, count, next, sum);
    if (rows == 3 && !fetch) sweep(3, 0, x, stride, w, count, next, sum);
    if (rows == 2) sweep(2, 1, x, stride, w, count, next, sum);
    if (rows == 1) sweep(1, 1, x, stride, w, count, next, sum);
}

/* exp, silu and both forms of GELU as in dot_block.h. */
static inline float exp_of(float x)
{
    x = x > -87.0f ? x : -87.0f;
    x = x < 88.0f ? x : 88.0f;
    const float n = rintf(x * 1.44269504f);
    float r = fmaf(-n, 0.693359375f, x);
    r = fmaf(-n, -2.12194440e-4f, r);
    float p = 1.0f / 720;
    p = fmaf(p, r, 1.0f / 120);
    p = fmaf(p, r, 1.0f / 24);
    p = fmaf(p, r, 1.0f / 6);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    const int32_t bits = ((int32_t)n + 127) << 23; /* 2^n, n in -126 .. 127 */
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

static inline float silu_of(float x)
{
    return x / (1.0f + exp_of(0.0f - x));
}

static inline float gelu_of(float x)
{
    const float z = x * 0.70710678f, a = fabsf(z), t = 1.0f / fmaf(a, 0.3275911f, 1.0f);
    float p = 1.061405429f;
    p = fmaf(p, t, -1.453152027f);
    p = fmaf(p, t, 1.421413741f);
    p = fmaf(p, t, -0.284496736f);
    p = fmaf(p, t, 0.254829592f);
    p = p * t;
    const float tail = p * exp_of(fmaf(-a, a, 0.0f));
    return x * 0.5f * (z < 0.0f ? tail : 2.0f - tail);
}

static inline float gelu_tanh_of(float x)
{
    const float cubic = fmaf(x * x, 0.044715f, 1.0f);
    return x / (1.0f + exp_of(x * cubic * -1.5957691216f));
}

/* Rounds as VCVTNEPS2BF16: to the nearest, ties to even; subnormals become 0. */
static inline uint16_t bf16_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    if (magnitude < 0x00800000u) return (uint16_t)(bits >> 16 & 0x8000u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline float float_of(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void finish(const int32_t *sum, int rows, int first, const dot_out *o)
{
    for (int r = 0; r < rows; r++, sum += DOT_COLS) {
        const size_t at = (size_t)(first + r), row = at * o->y_stride;
        float a[DOT_COLS];
        for (int c = 0; c < DOT_COLS; c++)
            a[c] = (float)(sum[c] - o->offset[c]) * (o->x_scale[at] * o->w_scale[c]) + o->bias[c];
        switch (o->activation) {
        case KERN_LINEAR:
            break;
        case KERN_GELU:
            for (int c = 0; c < DOT_COLS; c++) a[c] = gelu_of(a[c]);
            break;
        case KERN_SILU:
            for (int c = 0; c < DOT_COLS; c++) a[c] = silu_of(a[c]);
            break;
        case KERN_GELU_TANH:
            for (int c = 0; c < DOT_COLS; c++) a[c] = gelu_tanh_of(a[c]);
            break;
        }
        float *y = (float *)o->y + row;
        if (o->y_bf16) {
            for (int c = 0; c < o->cols; c++) ((uint16_t *)o->y)[row + (size_t)c] = bf16_of(a[c]);
        } else if (o->gate) {
            const size_t number = o->gate->index ? (size_t)o->gate->index[at] : at;
            const uint16_t *gate = (const uint16_t *)(o->gate->base + number * o->gate->stride);
            for (int c = 0; c < o->cols; c++) y[c] = fmaf(float_of(gate[c]), a[c], y[c]);
        } else if (o->add) {
            for (int c = 0; c < o->cols; c++) y[c] = a[c] + y[c];
        } else {
            memcpy(y, a, (size_t)o->cols * sizeof *a);
        }
    }
}

static void product(const void *x, size_t x_stride, int rows, int words, const void *block, const void *next,
                    const dot_out *out)
{
    _Alignas(64) char sum[ROWS * ROW];
    for (int first = 0; first < rows; first += ROWS) {
        const int count = rows - first < ROWS ? rows - first : ROWS;
        const char *from = (const char *)x + (size_t)first * x_stride;
        memset(sum, 0, (size_t)count * ROW);
        for (int p = 0; p < words; p += CHUNK) {
            const int left = words - p, taken = left < CHUNK ? left : CHUNK;
            const char *w = (const char *)block + (size_t)p * ROW, *later = w + CHUNK * ROW;
            if (left <= CHUNK) later = first + count == rows && next ? next : block;
            for (int r = 0; r < count; r += TALL)
                for (int half = 0; half < 2; half++)
                    multiply(count - r < TALL ? count - r : TALL, r == 0, from + (size_t)r * x_stride + 4 * p, x_stride,
                             w + half * ROW / 2, taken, later + half * ROW / 2, sum + r * ROW + half * ROW / 2);
        }
        finish((const int32_t *)sum, count, first, out);
    }
}

extern const gemm_kernel dot_int8_avxvnni;
const gemm_kernel dot_int8_avxvnni = {1, product, NULL, NULL};
