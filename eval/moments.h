/* Streaming mean and covariance of vectors, in double precision. Memory: dim * (dim + 1) / 2 numbers for any number of
 * vectors. */
#ifndef EVAL_MOMENTS_H
#define EVAL_MOMENTS_H

#include "mar.h"

typedef struct {
    int dim;          /* length of a vector */
    uint64_t count;   /* vectors added */
    double *sum;      /* [dim] */
    double *products; /* [dim * (dim + 1) / 2] sum of x_i x_j, j <= i, at i * (i + 1) / 2 + j */
    double *panels;   /* scratch of eval_moments_add */
} eval_moments;

/* Creates empty moments. Returns MAR_ENOMEM with *m zeroed. eval_moments_free accepts {0}. */
mar_status eval_moments_create(int dim, eval_moments *m);
void eval_moments_free(eval_moments *m);

/* Adds rows x float [n][dim] in order. The bits of the sums depend neither on the division of rows among calls nor on
 * the number of threads. */
void eval_moments_add(eval_moments *m, const float *x, int n);
/* Computes *m += *other, of the same dim. */
void eval_moments_merge(eval_moments *m, const eval_moments *other);
/* Computes mean [dim] and covariance [dim][dim], divided by count - 1. count must be at least 2. */
void eval_moments_finish(const eval_moments *m, double *mean, double *covariance);

#endif
