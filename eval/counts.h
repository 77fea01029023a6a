/* Are two runs of discrete tokens the same in distribution? How often each token and each pair of neighbours occurs in
 * one and in the other, as far apart as chi-square and total variation say, and how that lies among permutations that
 * swap paired images (eval/statistics.h says why pairs are swapped, and when that is exact). */
#ifndef EVAL_COUNTS_H
#define EVAL_COUNTS_H

#include "mar.h"

typedef struct {
    int images;     /* N in each run, 2 or more */
    int side;       /* an image has side x side tokens */
    const float *a; /* [N][side*side] the tokens' numbers, whole and 0 or more: the run that is compared */
    const float *b; /* the same of the reference */
} eval_token_pairs;

/* Cells are counted in either run; A and B are their counts. */
typedef struct {
    long cells;  /* that occur at all */
    double chi2; /* sum over cells of (A - B)^2 / (A + B) */
    double p;    /* of chi2 among the permuted ones: (1 + permuted >= observed) / (1 + permutations) */
    double tv;   /* total variation of the two frequencies, sum |A - B| / 2 over the number of occurrences of a run. Two
                  * runs of one law have more than 0: tv_95 */
    double tv_95; /* 95 % quantile of the permuted ones */
} eval_counts_test;

/* tokens: a cell for each token, wherever it is. places: for each token at each position. neighbours: for each ordered
 * pair of a token and the one to its right, and, apart from these, of a token and the one below it. MAR_ENOMEM; the
 * results are then undefined. Takes O(N side^2 permutations) time. */
mar_status eval_token_counts(const eval_token_pairs *pairs, int permutations, eval_counts_test *tokens,
                             eval_counts_test *places, eval_counts_test *neighbours);

#endif
