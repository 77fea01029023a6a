/* A file's matrices as the source of a linear layer's weights (kern_linear_rows). */
#ifndef WEIGHTS_ROWS_H
#define WEIGHTS_ROWS_H

#include "kernels/ops.h"
#include "weights/weights.h"

/* `count` matrices [out][in], one below another: W [count * out][in]. Floating-point or low-bit. */
typedef struct {
    const wt_file *file;
    const char *const *names; /* [count] */
    const float *factor;      /* [count] factors of the matrices, powers of two for int4 weights, or NULL: 1 */
    int count, out, in;
} wt_rows;

/* Returns the source. It keeps `rows`. Its errors are those of wt_load_matrix_rows. */
kern_linear_rows wt_linear_rows(wt_rows *rows);

#endif
