/* The Frechet distance of two Gaussians: FID (Heusel et al., 2017), and sFID (Nash et al., 2021) of spatial features.
 */
#ifndef EVAL_FRECHET_H
#define EVAL_FRECHET_H

#include "mar.h"

typedef struct {
    const double *mean;       /* [dim] */
    const double *covariance; /* [dim][dim], symmetric */
} eval_gaussian;

/* |mean_a - mean_b|^2 + tr(A + B - 2 (A B)^1/2); a is of the images, b of the reference. The root's trace is the sum of
 * the roots of the eigenvalues of L'BL, A = L L', by LAPACK's symmetric eigenproblem; eigenvalues below 0, from
 * rounding, count as 0. A and B may be singular, as those of fewer images than `dim` are. The last digits depend on the
 * LAPACK library and, if it computes on several threads, on their number. MAR_ENOMEM; MAR_EARG if a number is not
 * finite or LAPACK finds no eigenvalues. *distance is NaN then, and `why`, char [size], has one line. */
mar_status eval_frechet(int dim, const eval_gaussian *a, const eval_gaussian *b, double *distance, char *why,
                        size_t size);

#endif
