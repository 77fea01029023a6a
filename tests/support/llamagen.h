/* Small LlamaGen and MAR models with random weights, for tests of the public calls. */
#ifndef TESTS_LLAMAGEN_H
#define TESTS_LLAMAGEN_H

#include "tests/support/families.h"
#include "specdec/eagle_model.h"

/* Writes directory/file with the f32 tensors of configuration c. If `says` is 1, its metadata has heads and seq_len.
 * Weights come from `seed`, plus noise of another seed scaled by `noise`. Files that differ only in noise are similar
 * models. A failure fails the test. Returns the path; the caller frees it. */
char *write_llamagen(const char *directory, const char *file, const family_facts *c, unsigned seed, double noise,
                     int says);

/* Writes an EAGLE drafter likewise, without metadata. */
char *write_eagle(const char *directory, const char *file, const eagle_config *c, unsigned seed);

/* Writes a MAR model likewise. Its metadata has the heads. All names begin with `prefix`. */
char *write_mar(const char *directory, const char *file, const mar_model_config *c, unsigned seed, const char *prefix);

/* Copies tests/golden/data/vq.pth into the directory, since tables of near tokens are stored beside it. Returns the
 * path; the caller frees it. */
char *copy_vq(const char *directory);

/* Writes a decoder of Lumina-mGPT's kind likewise, noise apart, with what family_language needs in its
 * metadata. Ids from SMALL_FIRST_ID on are image tokens. Norms of q and k have biases, and rows of their own. */
char *write_decoder(const char *directory, const char *file, const family_facts *c, unsigned seed);
enum { SMALL_LINE_END = 2, SMALL_FIRST_ID = 3 };
/* Returns the configuration that the file of a small decoder has: 16 tokens in rows of 4, a vocabulary of 73, grouped
 * queries, norms of q and k. */
family_facts small_decoder(void);

/* Returns the small models' configuration: 16 tokens, a vocabulary of 50, 5 classes. The vocabulary is the codebook of
 * tests/golden/data/vq.pth. */
family_facts small_llamagen(void);

#endif
