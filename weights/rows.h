/* A file's tensors on a device: arrays, and matrices as the source of a linear layer's weights (kern_linear_rows). */
#ifndef WEIGHTS_ROWS_H
#define WEIGHTS_ROWS_H

#include "kernels/ops.h"
#include "weights/weights.h"

/* Loads a tensor of this shape as f32 to new memory of the device. Errors are those of wt_load_f32. */
mar_status wt_load_array(kern_queue *k, const wt_file *f, const char *name, int rank, const int64_t *shape, float **out,
                         mar_err *err);

enum { WT_PIECES = 3, WT_PIECE_NAME = 192 };

/* A matrix [rows][in] in the file, floating-point or low-bit. */
typedef struct {
    char name[WT_PIECE_NAME]; /* ends with "weight"; that of its bias ends with "bias" instead */
    int rows;
    float factor, bias_factor; /* of weights and bias; 0: 1. Of int4 weights a power of two */
    int head; /* size of heads whose halves are made neighbours: rows 0, size/2, 1, ... of each; 0: rows stay */
} wt_piece;

/* The rows of a product's weights: matrices one below another. */
typedef struct {
    const wt_file *file;
    int in, count;
    wt_piece piece[WT_PIECES]; /* [count] */
    int first;                 /* of all rows, the first that is taken */
    const int *id;             /* NULL, or the rows to take of the only matrix */
    const float *column;       /* NULL, or [in] factors of columns; low-bit weights are then restored */
    int bias;                  /* 1: the matrices have biases */
} wt_rows;

/* Returns the source. It keeps `rows`. Its errors are those of wt_load_matrix_rows. */
kern_linear_rows wt_linear_rows(wt_rows *rows);
/* Creates a layer of such weights and their bias. It takes the other fields of the spec: out, flags, ... */
mar_status wt_create_linear(kern_queue *k, wt_rows *rows, kern_linear_spec spec, kern_linear **out, mar_err *err);

/* Returns the place in a head of size `size` of number i when its halves are made neighbours. */
int wt_place_in_head(int i, int size);

#endif
