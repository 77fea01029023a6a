/* Random signs of paired permutation tests. */
#ifndef EVAL_SIGNS_H
#define EVAL_SIGNS_H

/* Returns signs float [1 + permutations][n], which the caller frees: -1 where a pair is swapped, else 1. Row 0 is all
 * 1, the observed data. The result is always the same. Returns NULL without memory. */
float *eval_signs(int permutations, int n);

#endif
