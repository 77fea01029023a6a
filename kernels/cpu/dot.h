/* Our own GEMM with bf16 or int8 weights, for any number of rows. With few rows (the sequential part of the diffusion
 * head) it is as fast as L3 delivers the weights. With many it is near the arithmetic peak.
 *
 * A word is the 4 bytes of a row that an instruction multiplies at a time: two bf16 or four int8. */
#ifndef KERNELS_CPU_DOT_H
#define KERNELS_CPU_DOT_H

#include "kernels/ops.h"

enum {
    DOT_COLS = 64,  /* columns of a weight block */
    DOT_WORDS = 16, /* AMX takes as many words at a time */
};

/* bf16 gate; row r is at base + (index ? index[r] : r) * stride bytes. */
typedef struct {
    const char *base;
    const int *index;
    size_t stride;
} dot_gate;

/* GEMM epilogue: a = activation(x w + bias), then y = a, y += a or y += gate * a. */
typedef struct {
    const float *bias; /* [DOT_COLS] */
    kern_activation activation;
    int cols;             /* existing columns of the block, <= DOT_COLS */
    void *y;              /* row 0, the block's first column; bf16 or float */
    size_t y_stride;      /* elements */
    int y_bf16;           /* y is bf16, else float */
    int add;              /* y += a; needs float y */
    const dot_gate *gate; /* of the block's first column, or NULL; needs add */
    /* int8: x w = (sum - offset[column]) * (x_scale[row] * w_scale[column]) */
    const float *x_scale, *w_scale; /* [rows], [DOT_COLS] */
    const int32_t *offset;          /* [DOT_COLS] */
} dot_out;

typedef struct {
    int step; /* a block's words are zero-padded to a multiple of it, at most DOT_WORDS */
    /* Multiplies `rows` rows of x, x_stride bytes apart and `words` words each, with a 64-byte aligned block [padded
     * words][DOT_COLS] of words. Prefetches `next`, the block this thread reads next, or NULL: otherwise memory and
     * arithmetic alternate. If `next` is the block itself, it is in cache and nothing is fetched. bf16 is accumulated
     * in f32, in the same order for any `rows`. int8, with unsigned x and signed weights, is accumulated in int32. */
    void (*product)(const void *x, size_t x_stride, int rows, int words, const void *block, const void *next,
                    const dot_out *out);
    /* Releases what the products set up, or NULL; a thread calls it after its products. */
    void (*end)(void);
    /* dot_bf16_pack; NULL for int8, packed by int8_pack. */
    void (*pack)(const float *w, int cols, int in, int words, void *block);
} gemm_kernel;

/* Returns the bf16 GEMM, or NULL where oneDNN should multiply: without AVX512-BF16, or if MAR_ISA asks for less. Uses
 * AMX where available, unless MAR_ISA=avx512. */
const gemm_kernel *dot_bf16_best(void);

/* Returns the int8 GEMM, or NULL without AMX-INT8, AVX512-VNNI or AVX-VNNI, or if MAR_ISA asks for less: avx512 for all
 * but AMX, avx2 for AVX-VNNI. All give the same bits. *unit gets the unit's name, or NULL. */
const gemm_kernel *dot_int8_best(const char **unit);

/* Packs w[cols][in] (float; `in` even) as a block of bf16 with `words` words a column; missing columns and words are 0.
 * The layout is also oneDNN's BA16a64b2a. Needs AVX512-BF16. */
void dot_bf16_pack(const float *w, int cols, int in, int words, void *block);

#endif
