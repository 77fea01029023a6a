/* The runner over a golden model (tests/golden/make_llamagen.py, make_lantern.py), without a session. */
#ifndef TESTS_CAUSAL_FIXTURE_H
#define TESTS_CAUSAL_FIXTURE_H

#include "tests/support/families.h"
#include "nets/causal_runner.h"
#include "tests/support/support.h"

typedef struct {
    kern_queue *k;
    causal_model *model;
    causal_runner *runner;
    void *memory;
    float *laws;   /* backend [rows][vocabulary] */
    wt_file *file; /* a prompt's embeddings are read from it */
    int rows, vocabulary, seq_len;
} causal_fixture;

/* Loads the transformer of a LlamaGen file, or the one of a decoder of families/language.h. */
mar_status load_net(kern_queue *k, const wt_file *f, const family_facts *config, causal_model **out, mar_err *err);

/* Sampling of most tests: the distributions are the softmax of the logits. */
extern const causal_sampling causal_fixture_plain;

/* Opens golden model `name` on a queue, and its runner, planned for `images` images. A seq_len other than 0 replaces
 * the model's number of tokens. There is memory for `rows` distributions. causal_fixture_close also closes the queue.
 * Returns 0 if k is NULL. */
int causal_fixture_open(causal_fixture *f, kern_queue *k, const char *name, int seq_len,
                        const causal_sampling *sampling, int images, int drafts, int keep, int rows);
/* Opens LlamaGen or a decoder of families/language.h in a file likewise. */
int causal_fixture_open_file(causal_fixture *f, kern_queue *k, const char *path, const causal_sampling *sampling,
                             int images, int drafts, int keep, int rows);
/* Opens the decoder of families/language.h in a folder likewise, for images of width x height pixels. */
int causal_fixture_open_decoder(causal_fixture *f, kern_queue *k, const char *folder, int width, int height,
                                const causal_sampling *sampling, int images, int drafts, int rows);
/* Starts the first images of a decoder with prompts of different lengths, and another as the second context of
 * guidance. */
void causal_fixture_begin_prompts(causal_runner *r, const causal_shape *c, int images);
void causal_fixture_close(causal_fixture *f);
/* Calls causal_runner_log_probs, which must succeed. */
void causal_fixture_laws(causal_fixture *f, const causal_request *request, int n);
const float *causal_fixture_law(const causal_fixture *f, int row); /* host [vocabulary], of a CPU */

#endif
