/* Compiled once per instruction set with EVAL_ISA=generic|avx2|avx512. A tile fills the vector registers, less three
 * vectors of b and one number of a. */
#include "eval/tile.h"

#include "base/unroll.h"

#define PASTE_(a, b) a##_##b
#define PASTE(a, b)  PASTE_(a, b)

#if defined(__AVX512F__)
enum { LANES = 8, VECTORS = 3, HEIGHT = 8 };
#elif defined(__AVX2__)
enum { LANES = 4, VECTORS = 3, HEIGHT = 4 };
#else
enum { LANES = 2, VECTORS = 2, HEIGHT = 4 };
#endif
enum { WIDTH = LANES * VECTORS };

typedef double vector __attribute__((vector_size(LANES * sizeof(double)), aligned(sizeof(double))));

static void tile_add(const double *a, const double *b, int n, double *const *c)
{
    vector sum[HEIGHT][VECTORS];
    UNROLL
    for (int i = 0; i < HEIGHT; i++) {
        UNROLL
        for (int v = 0; v < VECTORS; v++) sum[i][v] = *(const vector *)(c[i] + v * LANES);
    }
    for (int k = 0; k < n; k++, a += WIDTH, b += WIDTH) {
        vector right[VECTORS];
        UNROLL
        for (int v = 0; v < VECTORS; v++) right[v] = *(const vector *)(b + v * LANES);
        UNROLL
        for (int i = 0; i < HEIGHT; i++) {
            UNROLL
            for (int v = 0; v < VECTORS; v++) sum[i][v] += a[i] * right[v];
        }
    }
    UNROLL
    for (int i = 0; i < HEIGHT; i++) {
        UNROLL
        for (int v = 0; v < VECTORS; v++) *(vector *)(c[i] + v * LANES) = sum[i][v];
    }
}

const eval_tile PASTE(eval_tile, EVAL_ISA) = {HEIGHT, WIDTH, tile_add};
