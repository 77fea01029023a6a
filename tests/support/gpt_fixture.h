/* The runner over a golden model (tests/golden/make_llamagen.py, make_lantern.py), without a session. */
#ifndef TESTS_GPT_FIXTURE_H
#define TESTS_GPT_FIXTURE_H

#include "llamagen/runner.h"
#include "tests/support/support.h"

typedef struct {
    kern_queue *k;
    gpt_model *model;
    gpt_runner *runner;
    void *memory;
    float *laws; /* backend [rows][vocabulary] */
    int rows, vocabulary, seq_len;
} gpt_fixture;

/* Sampling of most tests: the distributions are the softmax of the logits. */
extern const gpt_sampling gpt_fixture_plain;

/* Opens golden model `name` on a queue, and its runner, planned for `images` images. A seq_len other than 0 replaces
 * the model's number of tokens. There is memory for `rows` distributions. gpt_fixture_close also closes the queue.
 * Returns 0 if k is NULL. */
int gpt_fixture_open(gpt_fixture *f, kern_queue *k, const char *name, int seq_len, const gpt_sampling *sampling,
                     int images, int drafts, int keep, int rows);
/* Opens the decoder of text/grammar.h in a file likewise. */
int gpt_fixture_open_file(gpt_fixture *f, kern_queue *k, const char *path, const gpt_sampling *sampling, int images,
                          int drafts, int keep, int rows);
/* Opens the decoder of text/grammar.h in a folder likewise, for images of width x height pixels. */
int gpt_fixture_open_decoder(gpt_fixture *f, kern_queue *k, const char *folder, int width, int height,
                             const gpt_sampling *sampling, int images, int drafts, int rows);
/* Starts the first images of a decoder with prompts of different lengths, and another as the second context of
 * guidance. */
void gpt_fixture_begin_prompts(gpt_runner *r, const gpt_config *c, int images);
void gpt_fixture_close(gpt_fixture *f);
/* Calls gpt_runner_log_probs, which must succeed. */
void gpt_fixture_laws(gpt_fixture *f, const spec_request *request, int n);
const float *gpt_fixture_law(const gpt_fixture *f, int row); /* host [vocabulary], of a CPU */

#endif
