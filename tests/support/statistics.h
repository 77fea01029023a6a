/* Tests of distributions. Each returns a p-value; the caller compares it with the false-positive rate it can bear. */
#ifndef TESTS_STATISTICS_H
#define TESTS_STATISTICS_H

#include <stddef.h>
#include <stdint.h>

/* Chi-squared of counts against probabilities, cells of an expectation below 5 pooled. A count in a cell of
 * probability 0 gives 0. */
double stat_chi2_p(const long *count, const double *probability, int cells);

/* Kolmogorov-Smirnov: x[n] (sorted in place) against the normal law of the given mean and deviation; and two samples
 * against each other. Asymptotic law. */
double stat_ks_normal_p(float *x, int n, double mean, double std);
double stat_ks_two_sample_p(float *a, int n_a, float *b, int n_b);

/* Energy distance between two samples float [n][dim], by permutation (99 of them: p is a multiple of 0.01, at least
 * 0.01). The distance is taken along random lines, of which it is the mean: 2 integral (F - G)^2 along each, 3 of them,
 * or the one there is. paired: a_i and b_i share their conditions, and labels are swapped within pairs; without that a
 * test of such samples is blind. NaN if memory is out. */
double stat_energy_p(const float *a, const float *b, int n, int dim, int paired, uint64_t seed);

#endif
