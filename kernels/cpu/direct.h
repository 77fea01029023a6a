/* Implicit-GEMM convolutions by AVX-512 over gathered pixels, for any kernel, stride and padding. The product is
 * [pixels][taps * in] times the weights; its left side is never stored. Every result is one f32 sum in the order of
 * taps and channels. So its bits do not depend on the division into tiles, images or threads. */
#ifndef KERNELS_CPU_DIRECT_H
#define KERNELS_CPU_DIRECT_H

#include <stddef.h>
#include <stdint.h>

enum { DIRECT_ROWS = 14 /* pixels of a tile */, DIRECT_COLS = 32 /* channels of a weight block */ };

/* A tile: up to DIRECT_ROWS pixels of y and the channels of a block. x, w and y have bf16 or float elements alike. */
typedef struct {
    const void *const *x; /* [taps][DIRECT_ROWS] input of each tap for each pixel: `in` elements. Valid beyond the
                           * tile's pixels too */
    int taps, in;         /* `in` is even for bf16 */
    const void *w;        /* the block: [taps*in/2][DIRECT_COLS][2] bf16 or [taps*in][DIRECT_COLS] float */
    const float *bias;    /* [DIRECT_COLS] */
    int cols;             /* existing channels, <= DIRECT_COLS */
    int relu;             /* y = max(result, 0); a NaN stays one */
    size_t y_stride;      /* elements */
} direct_tile;

typedef struct {
    /* Packs w[cols][k] as a block, with 0 for missing channels. k is even for bf16. */
    void (*pack)(const float *w, int cols, int k, void *block);
    void (*tile)(const direct_tile *t, int rows, void *y);
} direct_conv;

/* Returns the convolution, or NULL where oneDNN should convolve: without AVX-512, or, for bf16, without AVX512-BF16 or
 * with AMX. */
const direct_conv *direct_conv_best(int bf16);

#endif
