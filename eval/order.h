/* Fixed orders of images. */
#ifndef EVAL_ORDER_H
#define EVAL_ORDER_H

#include "mar.h"

/* order[n] = numpy.random.RandomState(seed).permutation(n): MT19937, and the shuffle of NumPy's legacy generator, which
 * never changes. n up to 2^31 - 1. */
void eval_permutation(uint32_t seed, int n, int *order);

/* The order in which images are written to an npz: place p of arr_0 has image order[p] =
 * eval_permutation(EVAL_NPZ_SEED, n). ADM's evaluator divides arr_0 in order into splits; images in the order of their
 * classes would make its Inception score collapse. */
enum { EVAL_NPZ_SEED = 0 };

#endif
