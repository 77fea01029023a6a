/* Sums of products over rows, in double precision: a small tile of the result stays in registers over many rows.
 * eval/tile.c is compiled once per instruction set and selected at run time, like kernels/cpu/rows.c. */
#ifndef EVAL_TILE_H
#define EVAL_TILE_H

enum { EVAL_TILE_HEIGHT_MAX = 8, EVAL_TILE_WIDTH_MAX = 24 };

typedef struct {
    int height; /* rows of a tile */
    int width;  /* columns of a tile, a multiple of height */
    /* Adds a[k * width + i] * b[k * width + j] to c[i][j] for k = 0..n-1 in order; i < height, j < width. c holds
     * `height` pointers to rows of `width` numbers. */
    void (*add)(const double *a, const double *b, int n, double *const *c);
} eval_tile;

extern const eval_tile eval_tile_generic;
#if defined(__x86_64__)
extern const eval_tile eval_tile_avx2, eval_tile_avx512;
#endif

#endif
