/* The coins of paired permutations. */
#ifndef EVAL_SIGNS_H
#define EVAL_SIGNS_H

/* signs float [1 + permutations][n], which the caller frees: 1, or -1 where a pair is swapped; row 0 is the data as it
 * is. The same every time. NULL without memory. */
float *eval_signs(int permutations, int n);

#endif
