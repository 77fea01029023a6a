/* Two-sample test of runs of discrete tokens: frequencies of tokens and of pairs of neighbours, compared by chi-square
 * and total variation. The null distribution comes from permutations that swap paired images. eval/statistics.h
 * explains the pairs, and when the test is exact. */
#ifndef EVAL_COUNTS_H
#define EVAL_COUNTS_H

#include "mar.h"

typedef struct {
    int images;     /* N per run, 2 or more */
    int width;      /* tokens in a row of an image */
    int height;     /* rows */
    const float *a; /* [N][height][width] token ids of the tested run */
    const float *b; /* [N][height][width] token ids of the reference */
} eval_token_pairs;

/* Result over cells with counts A and B in the two runs. */
typedef struct {
    long cells;  /* number of nonempty cells */
    double chi2; /* sum over cells of (A - B)^2 / (A + B) */
    double p;    /* p value of chi2: (1 + permuted >= observed) / (1 + permutations) */
    /* Total variation of the frequencies, sum |A - B| / 2 over a run's occurrences. Runs of one distribution have more
     * than 0, up to tv_95. */
    double tv;
    double tv_95; /* 95 % quantile of tv under permutation */
} eval_counts_test;

/* Tests three kinds of cells. tokens: each token at any position. places: each token at each position. neighbours: each
 * ordered pair of a token and its right neighbour, and separately its lower neighbour. Returns MAR_ENOMEM with
 * undefined results. Takes O(N width height permutations) time. */
mar_status eval_token_counts(const eval_token_pairs *pairs, int permutations, eval_counts_test *tokens,
                             eval_counts_test *places, eval_counts_test *neighbours);

#endif
