/* Row kernels: simple loops, compiled once per instruction set (kernels/cpu/rows.c) and chosen at run time. The `bf16`
 * arguments select the type of act arrays. Sums run over fixed lanes, so the bits of a row depend on that row
 * alone. */
#ifndef KERNELS_CPU_ROWS_H
#define KERNELS_CPU_ROWS_H

#include "kernels/ops.h"

#include <stddef.h>
#include <stdint.h>

struct cached_task; /* kernels/cpu/cached.h */

typedef struct kern_rows {
    const char *isa; /* "generic", "avx2" or "avx512" */
    /* y = (x - mean)/sqrt(var + eps) * weight + bias; dim values, y act or float */
    void (*layer_norm)(const float *x, int dim, const float *weight, const float *bias, float eps, void *y, int bf16);
    /* y = (x - mean)/sqrt(var + eps) * (1 + scale) + shift. shift and scale are bf16 if mod_bf16, else float */
    void (*modulate)(const float *x, int dim, float eps, const void *shift, const void *scale, int mod_bf16, void *y,
                     int bf16);
    /* y = ((x - mean)/sqrt(var + eps) * weight + bias) * (1 + scale) + shift; shift, scale and y act */
    void (*modulate_norm)(const float *x, int dim, const float *weight, const float *bias, float eps, const void *shift,
                          const void *scale, void *y, int bf16);
    /* x += gate * h, n values; gate act */
    void (*gate_add)(float *x, const void *gate, const float *h, size_t n, int bf16);
    /* y = silu(a + b), n values */
    void (*silu_add)(const float *a, const float *b, size_t n, void *y, int bf16);
    /* y[c] = x[c]*scale[c] + shift[c], then y = silu(y) if `silu`; n pixels of `channels` */
    void (*affine_silu)(const float *x, int n, int channels, const float *scale, const float *shift, int silu, void *y,
                        int bf16);
    /* s = softmax(scale * s), n values */
    void (*softmax)(float *s, int n, float scale);
    /* Returns the largest of n values, n > 0; NaN if one is NaN. */
    float (*maximum)(const float *x, int n);
    /* y = exp(x - shift), 0 where that is below exp(-87); y may be x, or NULL. Returns the sum; NaN if a value is
     * NaN. */
    double (*exponentials)(const float *x, int n, float shift, float *y);
    /* y = scale * [p - q f]+ (kernels/discrete.h, kern_residual_weight); y may be p, or NULL. Returns the sum. */
    double (*residual)(const float *p, const float *q, int n, double omega, double scale, float *y);
    /* Returns a bit for each of n <= 64 tokens from `first`, a multiple of 64: whether its time in the race of a
     * position can be below `limit` (kernels/discrete.h, kern_race_is_open). log_p is [n]. */
    uint64_t (*race)(const float *log_p, int n, uint64_t seed, uint64_t image, uint32_t position, int first,
                     float limit);
    /* y = x as act, n values */
    void (*to_act)(const float *x, size_t n, void *y, int bf16);
    /* sums[c] += x, squares[c] += x*x over n pixels of `channels` */
    void (*channel_sums)(const float *x, int n, int channels, double *sums, double *squares);
    /* dst = src + add (add may be NULL), n values */
    void (*add)(float *dst, const float *src, const float *add, size_t n);
    /* y[i*y_stride + j] = |a[i] - b[j]|^2, rows of dim values */
    void (*distances)(const float *a, int rows, const float *b, int columns, int dim, float *y, size_t y_stride);
    /* y = the maximum or the mean of n rows of `values` act, n > 0. NaN stays NaN. */
    void (*max_rows)(const void *const *x, int n, size_t values, void *y, int bf16);
    void (*mean_rows)(const void *const *x, int n, size_t values, void *y, int bf16);
    /* y = the mean of `rows` consecutive rows of `values` act, as float */
    void (*mean_of_all)(const void *x, int rows, size_t values, float *y, int bf16);
    /* y = x as float, n values */
    void (*from_act)(const void *x, size_t n, float *y, int bf16);
    /* y = (a + (b - a) * t - 128) / 128, n values as act */
    void (*blend_pixels)(const float *a, const float *b, float t, size_t n, void *y, int bf16);
    /* q = zero + x / scale for each row of n act values, to the nearest, ties to even. scale is the row's largest
     * magnitude over 127. A NaN or an infinity makes the row's scale NaN, so that every result shows it. Magnitudes all
     * below 1e-30 give scale 0. q is uint8_t, or int16_t if `wide` (zero is 0); its rows are `stride` bytes apart. */
    void (*quantise)(const void *x, int rows, int n, int zero, int wide, void *q, size_t stride, float *scale,
                     int bf16);
    /* y = x / sqrt(mean of x^2 + eps) * weight; dim values, y act or float */
    void (*rms_norm)(const float *x, int dim, const float *weight, float eps, void *y, int bf16);
    /* y = activation(a) * b, n values of act; KERN_SILU or KERN_GELU_TANH */
    void (*gated)(const void *a, const void *b, size_t n, kern_activation activation, void *y, int bf16);
    /* Rotates the pairs of x, n values of act: (a, b) to (a cos - b sin, b cos + a sin), with cos and sin in rope[2i]
     * and rope[2i + 1]; y may be x */
    void (*apply_rope)(const void *x, const float *rope, int n, void *y, int bf16);
    /* Reads n bytes, n a multiple of 512, p 64-byte aligned. The result is meaningless. */
    unsigned (*read)(const void *p, size_t n);
    /* cached.c */
    void (*attend)(const struct cached_task *t, const struct kern_rows *rows);
} kern_rows;

/* Returns the fastest kernels this processor runs. The variable MAR_ISA asks for less: the instruction set it names is
 * the last that is used of generic, avx2, avx_vnni, avx512, avx512_vnni, avx512_bf16, amx; on ARM64 of generic,
 * dotprod, bf16. */
const kern_rows *kern_rows_best(void);

#endif
