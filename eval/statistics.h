/* Are two runs the same in distribution? Two-sample statistics of paired images.
 *
 * Image i of run a and image i of run b share class and noise, so the two samples are not independent. A permutation
 * swaps each pair or not, by a fair coin. That is exact if a pair may be swapped without changing its law, and else,
 * with equal laws but an asymmetric coupling, for large N: the differences that the statistics sum have mean 0 and the
 * same covariance, swapped or not. (Permuting all 2N images instead is blind: shared parts make the observed distance
 * smaller than nearly every permuted one.) Identical runs have every distance 0 and p = 1. p = (1 + permuted >=
 * observed) / (1 + permutations).
 *
 * A function of this header fails only with MAR_ENOMEM. The results are then undefined.
 */
#ifndef EVAL_STATISTICS_H
#define EVAL_STATISTICS_H

#include "mar.h"

typedef struct {
    int images;     /* N in each run, 2 or more */
    int positions;  /* S tokens of an image */
    int channels;   /* C numbers of a token */
    const float *a; /* [N][S][C], finite: the run that is compared */
    const float *b; /* [N][S][C], finite: the reference */
} eval_pairs;

/* The energy distance 2 E|A-B| - E|A-A'| - E|B-B'| (Szekely, Rizzo 2004), and how it lies among the permuted ones. It
 * is estimated without bias, from different pairs only: the mean is 0 where the laws are the same, so it can be
 * negative. */
typedef struct {
    double distance;
    double p;
    double null_95; /* 95 % quantile of the permuted distances */
} eval_energy_test;

/* Energy distance with Euclidean norms, every channel divided by its standard deviation in b, the reference. All runs
 * compared with b therefore share one scale, which outliers of a cannot change. image: of whole images, vectors of S*C
 * numbers. token: of single tokens, the mean over the S positions of the distance between the laws of the token there.
 * Takes O(N^2 (S C + permutations)) time. */
mar_status eval_energy(const eval_pairs *pairs, int permutations, eval_energy_test *image, eval_energy_test *token);

/* Kolmogorov-Smirnov statistic of every channel over all N*S tokens of a run. d [C]: sup |F_a - F_b|; p [C]: corrected
 * for the C channels by the largest statistic of each permutation (Westfall, Young 1993, single step), which also holds
 * for the dependence of channels, and of tokens in an image. */
mar_status eval_ks(const eval_pairs *pairs, int permutations, double *d, double *p);

/* First two moments of a token's C channels. mean: root mean square over channels of the difference of means in
 * standard deviations of b; covariance: |S_a - S_b| / |S_b|, Frobenius norms. */
mar_status eval_moment_gaps(const eval_pairs *pairs, double *mean, double *covariance);

/* p [n], n <= 16: corrected for n tests in place (Holm 1979). */
void eval_holm(double *p, int n);

#endif
