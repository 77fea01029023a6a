/* Our own products with bf16 or int8 weights, for any number of rows. With a small number of rows (the sequential part
 * of the diffusion head) they are as fast as the weights come in from L3, with many near the peak of the arithmetic.
 *
 * A word is the 4 bytes of a row that an instruction multiplies at a time: two bf16 or four int8. */
#ifndef KERNELS_CPU_DOT_H
#define KERNELS_CPU_DOT_H

#include "kernels/ops.h"

enum {
    DOT_COLS = 64,  /* columns of a block of weights */
    DOT_WORDS = 16, /* AMX takes as many words at a time */
};

/* bf16 factors; those of row r lie at base + (index ? index[r] : r) * stride bytes. */
typedef struct {
    const char *base;
    const int *index;
    size_t stride;
} dot_gate;

/* What happens to a block of results on its way to y: a = activation(x w + bias), then y = a, y += a or
 * y += gate * a. */
typedef struct {
    const float *bias; /* [DOT_COLS] */
    kern_activation activation;
    int cols;             /* columns of the block that exist, <= DOT_COLS */
    void *y;              /* row 0, the block's first column; bf16 or float */
    size_t y_stride;      /* elements */
    int y_bf16;           /* y is bf16, else float */
    int add;              /* y += ; needs float y */
    const dot_gate *gate; /* of the block's first column, or NULL; needs add */
    /* int8: x w = (sum - offset[column]) * (x_scale[row] * w_scale[column]) */
    const float *x_scale, *w_scale; /* [rows], [DOT_COLS] */
    const int32_t *offset;          /* [DOT_COLS] */
} dot_out;

typedef struct {
    int step; /* a block's words are filled up with zeros to a multiple of it, at most DOT_WORDS */
    /* Multiplies `rows` rows of x, x_stride bytes apart and of `words` words each, with a 64-byte aligned block [words
     * filled up][DOT_COLS] of words. Meanwhile it prefetches `next`, the block that this thread will read next, or
     * NULL: without that, memory and arithmetic take turns. If `next` is the block itself, it is in the core's cache,
     * and nothing need be fetched. bf16 is added up in f32 in the same order for any `rows`; int8, of which x is
     * unsigned and the weights are signed, is added up in int32. */
    void (*product)(const void *x, size_t x_stride, int rows, int words, const void *block, const void *next,
                    const dot_out *out);
    /* A thread calls it after its products, unless it is NULL: it gives back what they have set up. */
    void (*end)(void);
    /* dot_bf16_pack; NULL: of int8, which int8_pack packs. */
    void (*pack)(const float *w, int cols, int in, int words, void *block);
} gemm_kernel;

/* NULL where oneDNN should multiply bf16: without AVX512-BF16, or if MAR_ISA asks for less. AMX multiplies where it is
 * there, unless MAR_ISA=avx512. */
const gemm_kernel *dot_bf16_best(void);

/* NULL without AMX-INT8, AVX512-VNNI or AVX-VNNI, or if MAR_ISA asks for less: avx512 for all but AMX, avx2 for
 * AVX-VNNI. All give the same bits. *unit is the name of what multiplies, or NULL. */
const gemm_kernel *dot_int8_best(const char **unit);

/* Packs w[cols][in] (float; `in` even) as a block of bf16 of `words` words a column; missing columns and words are 0.
 * This is oneDNN's layout BA16a64b2a, too. Needs AVX512-BF16. */
void dot_bf16_pack(const float *w, int cols, int in, int words, void *block);

#endif
