/* Two-sample tests of paired images: do two runs have the same distribution?
 *
 * Image i of run a and image i of run b share class and noise, so the samples are dependent. A permutation swaps each
 * pair with probability 1/2. The test is exact if swapping a pair keeps the joint distribution. With equal
 * distributions but an asymmetric coupling it holds for large N: the summed differences have mean 0 and the same
 * covariance, swapped or not. Permuting all 2N images instead has no power. The images of a pair are similar, so the
 * observed distance is smaller than nearly every permuted one. Identical runs have distance 0 and p = 1. p = (1 +
 * permuted >= observed) / (1 + permutations).
 *
 * Functions that return a status return MAR_OK, or MAR_ENOMEM with undefined results. */
#ifndef EVAL_STATISTICS_H
#define EVAL_STATISTICS_H

#include "mar.h"

typedef struct {
    int images;     /* N per run, 2 or more */
    int positions;  /* S tokens per image */
    int channels;   /* C numbers per token */
    const float *a; /* [N][S][C], finite: the tested run */
    const float *b; /* [N][S][C], finite: the reference */
} eval_pairs;

/* Returns signs float [1 + permutations][n]: -1 where a pair is swapped, else 1. The caller frees them. Row 0 is all 1,
 * the observed data. The result is always the same. Returns NULL without memory. */
float *eval_permutation_signs(int permutations, int n);

/* The energy distance 2 E|A-B| - E|A-A'| - E|B-B'| (Szekely, Rizzo 2004) and its p value. The estimate uses only
 * different pairs and is unbiased: for equal distributions its mean is 0, so it can be negative. */
typedef struct {
    double distance;
    double p;
    double null_95; /* 95 % quantile of the distance under permutation */
} eval_energy_test;

/* Computes energy distances with Euclidean norms. Every channel is divided by its standard deviation in b. So all runs
 * compared with b share one scale, independent of outliers of a. image: of whole images, vectors of S*C numbers. token:
 * of single tokens, averaged over the S positions. Takes O(N^2 (S C + permutations)) time. */
mar_status eval_energy(const eval_pairs *pairs, int permutations, eval_energy_test *image, eval_energy_test *token);

/* Computes the Kolmogorov-Smirnov statistic of every channel over all N*S tokens of a run. d [C]: sup |F_a - F_b|. p
 * [C]: corrected for C channels by the largest statistic of each permutation (Westfall, Young 1993, single step). The
 * correction holds under dependence of channels and of an image's tokens. */
mar_status eval_ks(const eval_pairs *pairs, int permutations, double *d, double *p);

/* Compares the first two moments of a token's C channels. mean: root mean square over channels of the difference of
 * means, in standard deviations of b. covariance: |S_a - S_b| / |S_b|, Frobenius norms. */
mar_status eval_moment_gaps(const eval_pairs *pairs, double *mean, double *covariance);

/* Corrects p [n], n <= 16, for n tests in place (Holm 1979). */
void eval_holm(double *p, int n);

#endif
