/* Small LlamaGen and MAR models with random weights, for tests of the public calls. */
#ifndef TESTS_LLAMAGEN_H
#define TESTS_LLAMAGEN_H

#include "llamagen/eagle_model.h"

/* Writes directory/file with the tensors of this shape in f32, and heads and seq_len in its metadata if `says` is 1.
 * Weights are draws of `seed`, and so much noise of another seed is added: files that differ in noise alone are models
 * that are alike. Returns the path, which the caller frees. A failure fails the test. */
char *write_llamagen(const char *directory, const char *file, const gpt_config *c, unsigned seed, double noise,
                     int says);

/* The same with an EAGLE drafter, whose metadata says nothing. */
char *write_eagle(const char *directory, const char *file, const eagle_config *c, unsigned seed);

/* The same with a MAR model, whose metadata say its heads, and all names of which begin with `prefix`. */
char *write_mar(const char *directory, const char *file, const mar_model_config *c, unsigned seed, const char *prefix);

/* A copy of tests/golden/data/vq.pth there: tables of near tokens are kept beside it. Returns its path likewise. */
char *copy_vq(const char *directory);

/* The shape of the models here: 16 tokens of 50, which is the codebook of tests/golden/data/vq.pth; 5 classes. */
gpt_config small_llamagen(void);

#endif
