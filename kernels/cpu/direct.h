/* Convolutions by AVX-512 over gathered pixels, for any kernel, stride and padding: a product of [pixels][taps * in]
 * with the weights, whose left side is never written down. Every result is one f32 sum in the order of taps and
 * channels, so its bits do not depend on how pixels are divided into tiles, images or threads. */
#ifndef KERNELS_CPU_DIRECT_H
#define KERNELS_CPU_DIRECT_H

#include <stddef.h>
#include <stdint.h>

enum { DIRECT_ROWS = 14 /* pixels of a tile */, DIRECT_COLS = 32 /* channels of a block of weights */ };

/* A tile: up to DIRECT_ROWS pixels of y and the channels of a block. Elements are bf16 or float, of x, w and y alike.
 */
typedef struct {
    const void *const *x; /* [taps][DIRECT_ROWS] what each tap reads for each pixel: `in` elements. Valid
                           * beyond the tile's pixels, too */
    int taps, in;         /* `in` is even for bf16 */
    const void *w;        /* the block: of bf16 [taps*in/2][DIRECT_COLS][2], of float [taps*in][DIRECT_COLS] */
    const float *bias;    /* [DIRECT_COLS] */
    int cols;             /* channels that exist, <= DIRECT_COLS */
    int relu;             /* y = max(result, 0); a NaN stays one */
    size_t y_stride;      /* elements */
} direct_tile;

typedef struct {
    /* Packs w[cols][k] as a block, missing channels as 0. k is even for bf16. */
    void (*pack)(const float *w, int cols, int k, void *block);
    void (*tile)(const direct_tile *t, int rows, void *y);
} direct_conv;

/* Returns NULL where oneDNN should convolve: without AVX-512, or, of bf16, without AVX512-BF16 or with AMX. */
const direct_conv *direct_conv_best(int bf16);

#endif
