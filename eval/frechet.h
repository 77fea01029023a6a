/* Frechet distance of two Gaussians: FID (Heusel et al., 2017), and sFID (Nash et al., 2021) on spatial features. */
#ifndef EVAL_FRECHET_H
#define EVAL_FRECHET_H

#include "mar.h"

typedef struct {
    const double *mean;       /* [dim] */
    const double *covariance; /* [dim][dim], symmetric */
} eval_gaussian;

/* Computes |mean_a - mean_b|^2 + tr(A + B - 2 (A B)^1/2); a is the images', b the reference's. With A = L L', tr (A
 * B)^1/2 is the sum of the roots of the eigenvalues of L'BL. LAPACK's symmetric solver computes them. Negative
 * eigenvalues, from rounding, count as 0. A and B may be singular, as with fewer images than dim. The last digits
 * depend on the LAPACK library, and on its threads. Returns MAR_ENOMEM, or MAR_EARG if a number is not finite or LAPACK
 * fails. Then *distance is NaN, and `why`, char [size], has one line. */
mar_status eval_frechet(int dim, const eval_gaussian *a, const eval_gaussian *b, double *distance, char *why,
                        size_t size);

#endif
