/* Compiled once per instruction set with KERN_ISA=generic|avx2|avx512; the loops are written for the compiler to
 * vectorise. */
#include "base/unroll.h"
#include "kernels/cpu/rows.h"
#include "kernels/discrete.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define PASTE_(a, b) a##_##b
#define PASTE(a, b)  PASTE_(a, b)
#define TEXT_(a)     #a
#define TEXT(a)      TEXT_(a)

enum { LANES = 16 };

static inline float load_bf16(uint16_t x)
{
    const uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Rounds to nearest even. A NaN may lose its payload but stays NaN: its top mantissa bit is kept. */
static inline uint16_t store_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    const uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16 | 0x40u) : rounded);
}

/* Returns exp with a relative error below 2e-7 (Cody-Waite reduction, degree-6 Taylor on |r| <= ln2/2). The power of
 * two is built from the bits of the rounding sum. So a NaN is never converted to an integer. */
static inline float exp_f32(float x)
{
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    const float sum = x * 1.44269504f + 12582912.0f; /* 1.5*2^23: rounds to an integer in the lowest bits */
    const float n = sum - 12582912.0f;
    float r = x - n * 0.693359375f;
    r -= n * -2.12194440e-4f;
    float p = 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &sum, sizeof bits);
    bits = (bits - 0x4b400000u + 127) << 23; /* 0x4b400000: bits of 1.5*2^23 */
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

static inline float silu_f32(float x)
{
    return x / (1.0f + exp_f32(-x));
}

/* Returns x/2 * (1 + tanh(u)) = x * sigmoid(2u), u = sqrt(2/pi) * (x + 0.044715 x^3). */
static inline float gelu_tanh_f32(float x)
{
    return x / (1.0f + exp_f32(x * (1.0f + x * x * 0.044715f) * -1.5957691216f));
}

static inline float lanes_sum(const float lane[LANES])
{
    float s[8];
    for (int i = 0; i < 8; i++) s[i] = lane[i] + lane[i + 8];
    for (int i = 0; i < 4; i++) s[i] += s[i + 4];
    return (s[0] + s[2]) + (s[1] + s[3]);
}

/* Computes mean and 1/sqrt(variance + eps) in two passes: the residual stream can have a mean far from zero. An
 * overflowing variance gives NaN. 1/sqrt(infinity) would silently turn a row of huge numbers into zeros. */
static inline void rows_moments(const float *x, int dim, float eps, float *mean, float *scale)
{
    float lane[LANES] = {0};
    int i = 0;
    for (; i + LANES <= dim; i += LANES)
        for (int j = 0; j < LANES; j++) lane[j] += x[i + j];
    for (int j = 0; i + j < dim; j++) lane[j] += x[i + j];
    const float m = lanes_sum(lane) / (float)dim;
    float square[LANES] = {0};
    for (i = 0; i + LANES <= dim; i += LANES)
        for (int j = 0; j < LANES; j++) square[j] += (x[i + j] - m) * (x[i + j] - m);
    for (int j = 0; i + j < dim; j++) square[j] += (x[i + j] - m) * (x[i + j] - m);
    *mean = m;
    const float variance = lanes_sum(square) / (float)dim;
    *scale = variance <= FLT_MAX ? 1.0f / sqrtf(variance + eps) : NAN;
}

static void rows_layer_norm(const float *x, int dim, const float *weight, const float *bias, float eps, void *y,
                            int bf16)
{
    float mean, scale;
    rows_moments(x, dim, eps, &mean, &scale);
    if (bf16) {
        uint16_t *out = y;
        for (int i = 0; i < dim; i++) out[i] = store_bf16((x[i] - mean) * scale * weight[i] + bias[i]);
    } else {
        float *out = y;
        for (int i = 0; i < dim; i++) out[i] = (x[i] - mean) * scale * weight[i] + bias[i];
    }
}

/* Body of modulate for its four type combinations. */
#define MODULATE_BODY(LOAD, STORE)                                                                                     \
    for (int i = 0; i < dim; i++) out[i] = STORE((x[i] - mean) * inv * (1.0f + LOAD(scale[i])) + LOAD(shift[i]));

static void rows_modulate(const float *x, int dim, float eps, const void *shift_, const void *scale_, int mod_bf16,
                          void *y, int bf16)
{
    float mean, inv;
    rows_moments(x, dim, eps, &mean, &inv);
    if (mod_bf16) {
        const uint16_t *shift = shift_, *scale = scale_;
        if (bf16) {
            uint16_t *out = y;
            MODULATE_BODY(load_bf16, store_bf16)
        } else {
            float *out = y;
            MODULATE_BODY(load_bf16, )
        }
    } else {
        const float *shift = shift_, *scale = scale_;
        if (bf16) {
            uint16_t *out = y;
            MODULATE_BODY(, store_bf16)
        } else {
            float *out = y;
            MODULATE_BODY(, )
        }
    }
}

#define MODULATE_NORM_BODY(LOAD, STORE)                                                                                \
    for (int i = 0; i < dim; i++) {                                                                                    \
        const float n = (x[i] - mean) * inv * weight[i] + bias[i];                                                     \
        out[i] = STORE(n * (1.0f + LOAD(scale[i])) + LOAD(shift[i]));                                                  \
    }

static void modulate_norm(const float *x, int dim, const float *weight, const float *bias, float eps,
                          const void *shift_, const void *scale_, void *y, int bf16)
{
    float mean, inv;
    rows_moments(x, dim, eps, &mean, &inv);
    if (bf16) {
        const uint16_t *shift = shift_, *scale = scale_;
        uint16_t *out = y;
        MODULATE_NORM_BODY(load_bf16, store_bf16)
    } else {
        const float *shift = shift_, *scale = scale_;
        float *out = y;
        MODULATE_NORM_BODY(, )
    }
}

static void gate_add(float *x, const void *gate, const float *h, size_t n, int bf16)
{
    if (bf16) {
        const uint16_t *g = gate;
        for (size_t i = 0; i < n; i++) x[i] += load_bf16(g[i]) * h[i];
    } else {
        const float *g = gate;
        for (size_t i = 0; i < n; i++) x[i] += g[i] * h[i];
    }
}

static void silu_add(const float *a, const float *b, size_t n, void *y, int bf16)
{
    if (bf16) {
        uint16_t *out = y;
        for (size_t i = 0; i < n; i++) out[i] = store_bf16(silu_f32(a[i] + b[i]));
    } else {
        float *out = y;
        for (size_t i = 0; i < n; i++) out[i] = silu_f32(a[i] + b[i]);
    }
}

#define AFFINE_BODY(STORE)                                                                                             \
    for (int p = 0; p < n; p++) {                                                                                      \
        const float *in = x + (size_t)p * (size_t)channels;                                                            \
        if (silu)                                                                                                      \
            for (int c = 0; c < channels; c++) out[c] = STORE(silu_f32(in[c] * scale[c] + shift[c]));                  \
        else                                                                                                           \
            for (int c = 0; c < channels; c++) out[c] = STORE(in[c] * scale[c] + shift[c]);                            \
        out += channels;                                                                                               \
    }

static void affine_silu(const float *x, int n, int channels, const float *scale, const float *shift, int silu, void *y,
                        int bf16)
{
    if (bf16) {
        uint16_t *out = y;
        AFFINE_BODY(store_bf16)
    } else {
        float *out = y;
        AFFINE_BODY()
    }
}

static float maximum(const float *x, int n)
{
    float top[LANES];
    int nan[LANES] = {0}, i = 0;
    for (int j = 0; j < LANES; j++) top[j] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) {
            top[j] = x[i + j] > top[j] ? x[i + j] : top[j];
            nan[j] |= x[i + j] != x[i + j];
        }
    for (int j = 0; i + j < n; j++) {
        top[j] = x[i + j] > top[j] ? x[i + j] : top[j];
        nan[j] |= x[i + j] != x[i + j];
    }
    for (int j = 0; j < LANES; j++) {
        if (nan[j]) return NAN;
        top[0] = top[j] > top[0] ? top[j] : top[0];
    }
    return top[0];
}

static inline float exp_or_zero(float x)
{
    const float y = exp_f32(x);
    return x < -87.0f ? 0.0f : y;
}

static double sum_of_lanes(double lane[LANES])
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) lane[j] += lane[j + half];
    return lane[0];
}

static double exponentials(const float *x, int n, float shift, float *y)
{
    double lane[LANES] = {0};
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        float part[LANES];
        for (int j = 0; j < LANES; j++) part[j] = exp_or_zero(x[i + j] - shift);
        for (int j = 0; j < LANES; j++) lane[j] += (double)part[j];
        if (y) memcpy(y + i, part, sizeof part);
    }
    for (int j = 0; i + j < n; j++) {
        const float part = exp_or_zero(x[i + j] - shift);
        lane[j] += (double)part;
        if (y) y[i + j] = part;
    }
    return sum_of_lanes(lane);
}

static double residual(const float *p, const float *q, int n, double omega, double scale, float *y)
{
    double lane[LANES] = {0};
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        double part[LANES];
        for (int j = 0; j < LANES; j++)
            part[j] = kern_residual_weight((double)p[i + j], (double)q[i + j], omega) * scale;
        for (int j = 0; j < LANES; j++) lane[j] += part[j];
        for (int j = 0; j < LANES && y; j++) y[i + j] = (float)part[j];
    }
    for (int j = 0; i + j < n; j++) {
        const double part = kern_residual_weight((double)p[i + j], (double)q[i + j], omega) * scale;
        lane[j] += part;
        if (y) y[i + j] = (float)part;
    }
    return sum_of_lanes(lane);
}

/* Runs Philox in lanes: kern_philox of 16 consecutive blocks. */
static void philox_lanes(uint64_t seed, uint32_t words[4][KERN_RACE_LANES])
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
        for (int j = 0; j < KERN_RACE_LANES; j++) {
            const uint64_t p0 = (uint64_t)0xD2511F53u * words[0][j], p1 = (uint64_t)0xCD9E8D57u * words[2][j];
            words[0][j] = (uint32_t)(p1 >> 32) ^ words[1][j] ^ k0;
            words[1][j] = (uint32_t)p1;
            words[2][j] = (uint32_t)(p0 >> 32) ^ words[3][j] ^ k1;
            words[3][j] = (uint32_t)p0;
        }
}

static uint64_t race(const float *log_p, int n, uint64_t seed, uint64_t image, uint32_t position, int first,
                     float limit)
{
    uint32_t words[4][KERN_RACE_LANES];
    float x[KERN_RACE_PIECE];
    int open[KERN_RACE_PIECE], any = 0;
    for (int i = n; i < KERN_RACE_PIECE; i++) x[i] = -INFINITY;
    memcpy(x, log_p, (size_t)n * sizeof *x);
    for (int j = 0; j < KERN_RACE_LANES; j++) {
        words[0][j] = (uint32_t)(first / 4 + j);
        words[1][j] = (uint32_t)KERN_NOISE_RACE << 24 | position;
        words[2][j] = (uint32_t)image;
        words[3][j] = (uint32_t)(image >> 32);
    }
    philox_lanes(seed, words);
    for (int w = 0; w < 4; w++)
        for (int j = 0; j < KERN_RACE_LANES; j++) {
            const int i = w * KERN_RACE_LANES + j;
            open[i] = kern_race_is_open(words[w][j], exp_or_zero(x[i]), limit);
        }
    for (int i = 0; i < KERN_RACE_PIECE; i++) any |= open[i];
    if (!any) return 0;
    uint64_t bits = 0;
    for (int i = 0; i < n; i++) bits |= (uint64_t)open[i] << i;
    return bits;
}

static void rows_to_act(const float *x, size_t n, void *y, int bf16)
{
    if (bf16) {
        uint16_t *out = y;
        for (size_t i = 0; i < n; i++) out[i] = store_bf16(x[i]);
    } else {
        memcpy(y, x, n * sizeof *x);
    }
}

static void channel_sums(const float *x, int n, int channels, double *sums, double *squares)
{
    for (int p = 0; p < n; p++, x += channels)
        for (int c = 0; c < channels; c++) {
            sums[c] += x[c];
            squares[c] += (double)x[c] * x[c];
        }
}

static void add_rows(float *dst, const float *src, const float *add, size_t n)
{
    if (!add)
        memmove(dst, src, n * sizeof *dst);
    else
        for (size_t i = 0; i < n; i++) dst[i] = src[i] + add[i];
}

/* Squared distances, in tiles of TALL rows of a by BROAD rows of b: as many as registers hold sums for. A pair's sums
 * are the same over WIDTH lanes in a tile of any size. */
#if defined(__AVX512F__)
enum { WIDTH = 16, TALL = 4, BROAD = 4 };
#elif defined(__AVX2__)
enum { WIDTH = 8, TALL = 2, BROAD = 4 };
#else
enum { WIDTH = 4, TALL = 2, BROAD = 4 };
#endif
typedef float lanes __attribute__((vector_size(WIDTH * sizeof(float))));

/* sum[r][c] += (a[r] - b[c])^2, over `n` <= WIDTH values a row. */
static inline __attribute__((always_inline)) void add_squares(const int rows, const int columns, const float *a,
                                                              const float *b, size_t dim, const size_t n,
                                                              lanes sum[TALL][BROAD])
{
    lanes u, v[BROAD] = {0};
    UNROLL
    for (int c = 0; c < columns; c++) memcpy(&v[c], b + (size_t)c * dim, n * sizeof *b);
    UNROLL
    for (int r = 0; r < rows; r++) {
        u = (lanes){0};
        memcpy(&u, a + (size_t)r * dim, n * sizeof *a);
        UNROLL
        for (int c = 0; c < columns; c++) {
            const lanes difference = u - v[c];
            sum[r][c] += difference * difference;
        }
    }
}

static inline __attribute__((always_inline)) void distance_tile(const int rows, const int columns, const float *a,
                                                                const float *b, size_t dim, float *y, size_t y_stride)
{
    lanes sum[TALL][BROAD] = {0};
    size_t i = 0;
    for (; i + WIDTH <= dim; i += WIDTH) add_squares(rows, columns, a + i, b + i, dim, WIDTH, sum);
    if (i < dim) add_squares(rows, columns, a + i, b + i, dim, dim - i, sum);
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) {
            float lane[LANES] = {0};
            memcpy(lane, &sum[r][c], sizeof sum[r][c]);
            y[(size_t)r * y_stride + (size_t)c] = lanes_sum(lane);
        }
}

static void distances(const float *a, int rows, const float *b, int columns, int dim, float *y, size_t y_stride)
{
    const size_t n = (size_t)dim;
    for (int i = 0; i < rows; i += TALL)
        for (int j = 0; j < columns; j += BROAD) {
            const float *u = a + (size_t)i * n, *v = b + (size_t)j * n;
            float *to = y + (size_t)i * y_stride + j;
            if (i + TALL <= rows && j + BROAD <= columns) {
                distance_tile(TALL, BROAD, u, v, n, to, y_stride);
                continue;
            }
            for (int r = 0; r < TALL && i + r < rows; r++)
                for (int c = 0; c < BROAD && j + c < columns; c++)
                    distance_tile(1, 1, u + (size_t)r * n, v + (size_t)c * n, n, to + (size_t)r * y_stride + c, 0);
        }
}

/* --- pools: blocks of channels, so that sums stay in registers --------------------------------------------------- */

enum { BLOCK = 64 };

static inline void rows_load_block(const void *x, size_t from, int n, float *v, int bf16)
{
    if (bf16)
        for (int j = 0; j < n; j++) v[j] = load_bf16(((const uint16_t *)x)[from + (size_t)j]);
    else
        for (int j = 0; j < n; j++) v[j] = ((const float *)x)[from + (size_t)j];
}

static inline void store_block(const float *v, size_t from, int n, void *y, int bf16)
{
    if (bf16)
        for (int j = 0; j < n; j++) ((uint16_t *)y)[from + (size_t)j] = store_bf16(v[j]);
    else
        for (int j = 0; j < n; j++) ((float *)y)[from + (size_t)j] = v[j];
}

static inline float rows_larger(float a, float b)
{
    return b > a || b != b ? b : a;
}

static inline __attribute__((always_inline)) void max_block(const void *const *x, int n, size_t from, int width,
                                                            void *y, int bf16)
{
    float top[BLOCK], v[BLOCK];
    rows_load_block(x[0], from, width, top, bf16);
    for (int r = 1; r < n; r++) {
        rows_load_block(x[r], from, width, v, bf16);
        for (int j = 0; j < width; j++) top[j] = rows_larger(top[j], v[j]);
    }
    store_block(top, from, width, y, bf16);
}

static inline __attribute__((always_inline)) void mean_block(const void *const *x, int n, size_t from, int width,
                                                             void *y, int bf16)
{
    float sum[BLOCK], v[BLOCK];
    rows_load_block(x[0], from, width, sum, bf16);
    for (int r = 1; r < n; r++) {
        rows_load_block(x[r], from, width, v, bf16);
        for (int j = 0; j < width; j++) sum[j] += v[j];
    }
    for (int j = 0; j < width; j++) sum[j] /= (float)n;
    store_block(sum, from, width, y, bf16);
}

/* Whole blocks have a width the compiler knows. */
#define BLOCKS_BODY(DO)                                                                                                \
    size_t i = 0;                                                                                                      \
    for (; i + BLOCK <= values; i += BLOCK) DO(x, n, i, BLOCK, y, bf16);                                               \
    if (i < values) DO(x, n, i, (int)(values - i), y, bf16);

static void max_rows(const void *const *x, int n, size_t values, void *y, int bf16)
{
    if (bf16) {
        BLOCKS_BODY(max_block)
    } else {
        BLOCKS_BODY(max_block)
    }
}

static void mean_rows(const void *const *x, int n, size_t values, void *y, int bf16)
{
    if (bf16) {
        BLOCKS_BODY(mean_block)
    } else {
        BLOCKS_BODY(mean_block)
    }
}

static void mean_of_all(const void *x, int rows, size_t values, float *y, int bf16)
{
    for (size_t i = 0; i < values; i += BLOCK) {
        const int width = values - i < BLOCK ? (int)(values - i) : BLOCK;
        double sum[BLOCK] = {0};
        for (int r = 0; r < rows; r++) {
            float v[BLOCK];
            rows_load_block(x, (size_t)r * values + i, width, v, bf16);
            for (int j = 0; j < width; j++) sum[j] += v[j];
        }
        for (int j = 0; j < width; j++) y[i + (size_t)j] = (float)(sum[j] / rows);
    }
}

static void from_act(const void *x, size_t n, float *y, int bf16)
{
    if (bf16)
        for (size_t i = 0; i < n; i++) y[i] = load_bf16(((const uint16_t *)x)[i]);
    else
        memcpy(y, x, n * sizeof *y);
}

static void blend_pixels(const float *a, const float *b, float t, size_t n, void *y, int bf16)
{
    if (bf16)
        for (size_t i = 0; i < n; i++)
            ((uint16_t *)y)[i] = store_bf16((a[i] + (b[i] - a[i]) * t - 128.0f) * (1.0f / 128));
    else
        for (size_t i = 0; i < n; i++) ((float *)y)[i] = (a[i] + (b[i] - a[i]) * t - 128.0f) * (1.0f / 128);
}

/* Returns the largest magnitude; magnitudes order as integers, and NaN is above infinity. */
static inline float greatest_magnitude(const void *x, int n, int bf16)
{
    uint32_t most = 0;
    uint16_t half = 0;
    for (int i = 0; bf16 && i < n; i++) {
        const uint16_t magnitude = ((const uint16_t *)x)[i] & 0x7fffu;
        half = magnitude > half ? magnitude : half;
    }
    for (int i = 0; !bf16 && i < n; i++) {
        uint32_t bits;
        memcpy(&bits, (const float *)x + i, sizeof bits);
        bits &= 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    if (bf16) most = (uint32_t)half << 16;
    float greatest;
    memcpy(&greatest, &most, sizeof greatest);
    return greatest;
}

/* Returns zero + x * factor to the nearest, ties to even, in the lowest 16 bits: those of one rounding sum, the same on
 * every instruction set. */
static inline uint32_t to_integer(float x, float factor, float rounds)
{
    const float sum = fmaf(x, factor, rounds);
    uint32_t bits;
    memcpy(&bits, &sum, sizeof bits);
    return bits;
}

static void quantise_row(const void *x, float greatest, int n, int zero, int wide, void *out, float *scale, int bf16)
{
    if (!(greatest <= FLT_MAX) || greatest < 1e-30f) {
        memset(out, zero, (size_t)n << wide);
        *scale = greatest <= FLT_MAX ? 0.0f : NAN;
        return;
    }
    const float factor = 127.0f / greatest, rounds = 12582912.0f + (float)zero; /* 1.5*2^23 */
    *scale = greatest / 127.0f;
    uint8_t *q = out;
    int16_t *q_wide = out;
    const uint16_t *in = x;
    if (wide) {
        for (int i = 0; bf16 && i < n; i++) q_wide[i] = (int16_t)to_integer(load_bf16(in[i]), factor, rounds);
        for (int i = 0; !bf16 && i < n; i++) q_wide[i] = (int16_t)to_integer(((const float *)x)[i], factor, rounds);
        return;
    }
    if (!bf16) {
        for (int i = 0; i < n; i++) q[i] = (uint8_t)to_integer(((const float *)x)[i], factor, rounds);
        return;
    }
    for (int i = 0; i + 1 < n; i += 2) { /* in pairs, so that both stay in one word */
        uint32_t pair, first, second;
        memcpy(&pair, in + i, sizeof pair);
        first = pair << 16, second = pair & 0xffff0000u;
        float a, b;
        memcpy(&a, &first, sizeof a);
        memcpy(&b, &second, sizeof b);
        const uint16_t both = (uint16_t)((to_integer(a, factor, rounds) & 0xffu) | to_integer(b, factor, rounds) << 8);
        memcpy(q + i, &both, sizeof both);
    }
    if (n % 2) q[n - 1] = (uint8_t)to_integer(load_bf16(in[n - 1]), factor, rounds);
}

/* Quantises rows. The largest magnitudes of several rows come first: a row's bytes wait for its own. The next rows are
 * prefetched with the bytes, a phase that leaves memory idle. */
static void rows_quantise(const void *x, int rows, int n, int zero, int wide, void *q, size_t stride, float *scale,
                          int bf16)
{
    enum { SOME = 4 };
    const size_t bytes = (size_t)n * (bf16 ? 2 : 4);
    for (int first = 0; first < rows; first += SOME) {
        const int count = rows - first < SOME ? rows - first : SOME;
        const char *from = (const char *)x + (size_t)first * bytes;
        float greatest[SOME];
        for (int r = 0; r < count; r++) greatest[r] = greatest_magnitude(from + (size_t)r * bytes, n, bf16);
        for (int r = 0; r < count; r++) {
            const char *later = from + (size_t)(SOME + r) * bytes;
            for (size_t i = 0; first + SOME + r < rows && i < bytes; i += 64) __builtin_prefetch(later + i);
            quantise_row(from + (size_t)r * bytes, greatest[r], n, zero, wide, (char *)q + (size_t)(first + r) * stride,
                         scale + first + r, bf16);
        }
    }
}

/* An overflowing mean square gives NaN, as in `moments`. */
static void rows_rms_norm(const float *x, int dim, const float *weight, float eps, void *y, int bf16)
{
    float lane[LANES] = {0};
    int i = 0;
    for (; i + LANES <= dim; i += LANES)
        for (int j = 0; j < LANES; j++) lane[j] += x[i + j] * x[i + j];
    for (int j = 0; i + j < dim; j++) lane[j] += x[i + j] * x[i + j];
    const float square = lanes_sum(lane) / (float)dim, scale = square <= FLT_MAX ? 1.0f / sqrtf(square + eps) : NAN;
    if (bf16) {
        uint16_t *out = y;
        for (i = 0; i < dim; i++) out[i] = store_bf16(x[i] * scale * weight[i]);
    } else {
        float *out = y;
        for (i = 0; i < dim; i++) out[i] = x[i] * scale * weight[i];
    }
}

#define GATED_BODY(FUNCTION, LOAD, STORE)                                                                              \
    for (size_t i = 0; i < n; i++) out[i] = STORE(FUNCTION(LOAD(a[i])) * LOAD(b[i]));

static void rows_gated(const void *a_, const void *b_, size_t n, kern_activation activation, void *y, int bf16)
{
    if (bf16) {
        const uint16_t *a = a_, *b = b_;
        uint16_t *out = y;
        if (activation == KERN_SILU)
            GATED_BODY(silu_f32, load_bf16, store_bf16)
        else
            GATED_BODY(gelu_tanh_f32, load_bf16, store_bf16)
    } else {
        const float *a = a_, *b = b_;
        float *out = y;
        if (activation == KERN_SILU)
            GATED_BODY(silu_f32, , )
        else
            GATED_BODY(gelu_tanh_f32, , )
    }
}

#define ROPE_BODY(LOAD, STORE)                                                                                         \
    for (int i = 0; i + 1 < n; i += 2) {                                                                               \
        const float a = LOAD(in[i]), b = LOAD(in[i + 1]);                                                              \
        out[i] = STORE(a * rope[i] - b * rope[i + 1]);                                                                 \
        out[i + 1] = STORE(b * rope[i] + a * rope[i + 1]);                                                             \
    }

static void apply_rope(const void *x, const float *rope, int n, void *y, int bf16)
{
    if (bf16) {
        const uint16_t *in = x;
        uint16_t *out = y;
        ROPE_BODY(load_bf16, store_bf16)
    } else {
        const float *in = x;
        float *out = y;
        ROPE_BODY(, )
    }
}

/* Prefetches beyond the hardware: over 8 KiB it made no difference on Zen 5. */
static unsigned rows_read_all(const void *p, size_t n)
{
    typedef unsigned words __attribute__((vector_size(64), may_alias));
    enum { AT_ONCE = 8, AHEAD = 16384 };
    words sum[AT_ONCE] = {0};
    for (size_t i = 0; i < n; i += sizeof sum)
        for (size_t j = 0; j < AT_ONCE; j++) {
            const char *at = (const char *)p + i + j * sizeof *sum;
            __builtin_prefetch(at + AHEAD);
            sum[j] += *(const words *)at;
        }
    for (size_t j = 1; j < AT_ONCE; j++) sum[0] += sum[j];
    return sum[0][0] + sum[0][5];
}

void PASTE(kern_softmax, KERN_ISA)(float *s, int n, float scale);
void PASTE(kern_cached, KERN_ISA)(const struct cached_task *t, const kern_rows *rows);
extern const kern_rows PASTE(kern_rows, KERN_ISA);
const kern_rows PASTE(kern_rows, KERN_ISA) = {
    .isa = TEXT(KERN_ISA),
    .layer_norm = rows_layer_norm,
    .modulate = rows_modulate,
    .modulate_norm = modulate_norm,
    .gate_add = gate_add,
    .silu_add = silu_add,
    .affine_silu = affine_silu,
    .softmax = PASTE(kern_softmax, KERN_ISA),
    .maximum = maximum,
    .exponentials = exponentials,
    .residual = residual,
    .race = race,
    .to_act = rows_to_act,
    .channel_sums = channel_sums,
    .add = add_rows,
    .distances = distances,
    .max_rows = max_rows,
    .mean_rows = mean_rows,
    .mean_of_all = mean_of_all,
    .from_act = from_act,
    .blend_pixels = blend_pixels,
    .quantise = rows_quantise,
    .rms_norm = rows_rms_norm,
    .gated = rows_gated,
    .apply_rope = apply_rope,
    .read = rows_read_all,
    .attend = PASTE(kern_cached, KERN_ISA),
};
