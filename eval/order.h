/* Fixed permutations of images. */
#ifndef EVAL_ORDER_H
#define EVAL_ORDER_H

#include "mar.h"

/* MT19937 (Matsumoto and Nishimura, 1998): NumPy's RandomState. */
typedef struct {
    uint32_t word[624];
    int next; /* index into word; their number: exhausted */
} eval_random;

/* Begins the numbers of numpy.random.RandomState(seed). */
void eval_random_seed(eval_random *r, uint32_t seed);
/* Computes order[n], n up to 2^31 - 1, as the state's next permutation(n). Its first m are what choice(n, m,
 * replace=False) returns. */
void eval_random_permutation(eval_random *r, int n, int *order);

/* Computes order[n] = numpy.random.RandomState(seed).permutation(n), n up to 2^31 - 1: MT19937 with the shuffle of
 * NumPy's legacy generator. NumPy keeps that generator unchanged. */
void eval_permutation(uint32_t seed, int n, int *order);

/* Seed of the order of images in an npz: entry p of arr_0 is image order[p] of eval_permutation(EVAL_NPZ_SEED, n).
 * ADM's evaluator splits arr_0 in order, so images sorted by class would collapse its Inception score. */
enum { EVAL_NPZ_SEED = 0 };

#endif
