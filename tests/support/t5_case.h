/* The tiny T5 encoder of tests/golden/make_t5.py, and transformers' hidden states of its sequences. */
#ifndef TESTS_T5_CASE_H
#define TESTS_T5_CASE_H

#include "nets/t5.h"

#define T5_FOLDER "tests/golden/data/t5"
#define T5_BINARY "tests/golden/data/t5_bin"

enum { T5_DIM = 32, T5_CASES = 5 };
extern const int t5_lengths[T5_CASES]; /* of the sequences */

/* Returns an array of features.safetensors, [count]; the caller frees it. */
float *t5_golden(const char *name, int64_t count);
t5_encoder *t5_load(kern_queue *k, const char *folder);
/* Encodes sequences first .. first + n - 1 in one pass. Returns [rows][T5_DIM]; the caller frees it. */
float *t5_encode(kern_queue *k, t5_encoder *e, int first, int n);
/* Returns the largest relative error of sequences 0 .. n - 1, encoded in one pass. With `alone` it asserts that each
 * has the same bits in a pass of its own. */
double t5_error(kern_queue *k, t5_encoder *e, int n, int alone);

#endif
