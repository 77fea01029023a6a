/* Mean and covariance of vectors that come one after another, in double precision. Memory: dim * (dim + 1) / 2 numbers,
 * however many vectors there are. */
#ifndef EVAL_MOMENTS_H
#define EVAL_MOMENTS_H

#include "mar.h"

typedef struct {
    int dim;          /* numbers of a vector */
    uint64_t count;   /* vectors added */
    double *sum;      /* [dim] */
    double *products; /* [dim * (dim + 1) / 2] sum of x_i x_j, j <= i: that of i, j at i * (i + 1) / 2 + j */
    double *panels;   /* scratch of eval_moments_add */
} eval_moments;

/* All zero. MAR_ENOMEM, with *m zeroed. The caller calls eval_moments_free, which is fine for {0}, too. */
mar_status eval_moments_create(int dim, eval_moments *m);
void eval_moments_free(eval_moments *m);

/* Adds rows x float [n][dim], in their order. The sums' bits do not depend on how the rows are divided among calls, nor
 * on the number of threads. */
void eval_moments_add(eval_moments *m, const float *x, int n);
/* *m += *other, of the same dim. */
void eval_moments_merge(eval_moments *m, const eval_moments *other);
/* mean double [dim]; covariance double [dim][dim], divided by count - 1. count must be 2 or more. */
void eval_moments_finish(const eval_moments *m, double *mean, double *covariance);

#endif
