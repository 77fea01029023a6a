/* Tokens whose codebook entries are close: LANTERN's neighbourhoods. */
#ifndef SPECDEC_NEIGHBOURS_H
#define SPECDEC_NEIGHBOURS_H

#include "specdec/verifier.h"

/* Fills table [size][k], k <= size. Row x has the k tokens nearest to x by l2 distance in the codebook float
 * [size][dim], nearest first, x itself before all; ties go to the lower number. Returns 0, or -1 without k * 8 bytes of
 * memory. */
int spec_neighbour_table(const float *codebook, int size, int dim, int k, int *table);

/* LANTERN's A(x) (its Appendix D): x and its nearest neighbours, at most k tokens, as long as the sum of p over A
 * without x stays below `bound`. Returns the size of A, at least 1, and in *p_sum the sum of p over A. */
int spec_neighbour_set(const spec_site *s, int x, double k, double bound, double *p_sum);

/* Log of the probability that LANTERN keeps `candidate` as the replacement of `rejected`; k and bound as above. Its
 * resampler is Norm[p_A - q]+, where p_A moves the mass of A onto `rejected`. There p_A is at most q, because
 * `rejected` was rejected. */
double spec_neighbour_keep(const spec_site *s, int candidate, int rejected, double k, double bound, double log_ratio);

#endif
