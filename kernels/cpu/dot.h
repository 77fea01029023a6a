/* Products with bf16 weights by AVX512-BF16, for any number of rows: for few rows as fast as the weights come in from
 * L3 (the sequential part of the diffusion head), for many near the peak of the arithmetic. */
#ifndef KERNELS_CPU_DOT_H
#define KERNELS_CPU_DOT_H

#include <stddef.h>
#include <stdint.h>

enum { DOT_COLS = 64 }; /* columns of a block of weights */

typedef enum { DOT_LINEAR, DOT_GELU, DOT_SILU } dot_activation; /* GELU: with erf */

/* bf16 factors: row r has them at base + (index ? index[r] : r) * stride bytes. */
typedef struct {
    const char *base;
    const int *index;
    size_t stride;
} dot_gate;

/* What happens to a block of results on its way to y: a = activation(x w + bias), then y = a, y += a or
 * y += gate * a. */
typedef struct {
    const float *bias; /* [DOT_COLS] */
    dot_activation activation;
    int cols;             /* of the block that exist, <= DOT_COLS */
    void *y;              /* of the block's first column; bf16 or float */
    size_t y_stride;      /* elements */
    int y_bf16, add;      /* add: y is float */
    const dot_gate *gate; /* of the block's first column, or NULL; needs add */
} dot_out;

typedef struct {
    /* Packs w[cols][in] (float; `in` even) as one block [in/2][DOT_COLS][2], missing columns as 0. This is oneDNN's
     * layout BA16a64b2a, too. */
    void (*pack)(const float *w, int cols, int in, uint16_t *block);
    /* `rows` rows of x[..][in] times a block, which is 64-byte aligned. Meanwhile `next`, the block that this thread
     * will read next, or NULL, is fetched into L2: without that, memory and arithmetic take turns. Every result is
     * one f32 sum over ascending pairs of k, whatever `rows` is. */
    void (*product)(const uint16_t *x, int rows, int in, const uint16_t *block, const uint16_t *next,
                    const dot_out *out);
} bf16_dot;

/* NULL where oneDNN is to multiply bf16: without AVX512-BF16, with AMX, or if MAR_ISA asks for less. */
const bf16_dot *bf16_dot_best(void);

#endif
