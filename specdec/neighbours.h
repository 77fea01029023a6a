/* Tokens that look alike: LANTERN's neighbourhoods. */
#ifndef SPECDEC_NEIGHBOURS_H
#define SPECDEC_NEIGHBOURS_H

#include "specdec/verifier.h"

/* Fills table [size][k], k <= size: each row the k tokens nearest to its own in the codebook float [size][dim] by l2
 * distance, nearest first, the token itself first of all; ties go to the lower number. Returns 0, or -1 if k * 8
 * bytes of memory are not there. */
int spec_neighbour_table(const float *codebook, int size, int dim, int k, int *table);

/* LANTERN's A(x): of the first k of x's neighbours as many as keep the sum of p over A without x below `bound`; the
 * set stops before the first one that would reach it (LANTERN, Appendix D). Returns its size, at least 1 (x itself),
 * and the sum of p over it. */
int spec_neighbour_set(const spec_site *s, int x, double k, double bound, double *p_sum);

/* log of the probability that LANTERN keeps `candidate` in place of `rejected`, whose set has k and bound as above: its
 * resampler is Norm[p_A - q]+, where p_A moves the mass of A onto `rejected`, and that is at most q there, since it was
 * rejected. */
double spec_neighbour_keep(const spec_site *s, int candidate, int rejected, double k, double bound, double log_ratio);

#endif
