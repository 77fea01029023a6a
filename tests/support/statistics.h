/* Tests of distributions. Each returns a p-value, which the caller compares with its false-positive rate. */
#ifndef TESTS_STATISTICS_H
#define TESTS_STATISTICS_H

#include <stddef.h>
#include <stdint.h>

/* Chi-squared test of counts against probabilities. Cells with an expectation below 5 are pooled. A count in a cell of
 * probability 0 gives 0. */
double stat_chi2_p(const long *count, const double *probability, int cells);

/* Kolmogorov-Smirnov tests by the asymptotic distribution: x[n] against the normal distribution of the given mean and
 * deviation, and two samples against each other. Samples are sorted in place. */
double stat_ks_normal_p(float *x, int n, double mean, double std);
double stat_ks_two_sample_p(float *a, int n_a, float *b, int n_b);

/* Permutation test of the energy distance between two samples float [n][dim]. With 99 permutations p is a multiple of
 * 0.01, at least 0.01. It ends early once 10 distances reach the observed one: then p is at least 0.1 (Besag and
 * Clifford 1991). The distance is the mean over 3 random lines (1 if dim is 1) of 2 integral (F - G)^2 along the
 * line. paired: a_i and b_i have the same condition, and labels are swapped within pairs. Paired samples need it, or
 * the test has no power. Returns NaN without memory. */
double stat_energy_p(const float *a, const float *b, int n, int dim, int paired, uint64_t seed);

#endif
