/* LlamaGen's runner over a golden model (tests/golden/make_llamagen.py), without a session. */
#ifndef TESTS_LLAMAGEN_H
#define TESTS_LLAMAGEN_H

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

/* What most tests sample with: the laws are the softmax of the logits. */
extern const gpt_sampling gpt_plain;

/* Opens golden model `name`, with another number of tokens unless seq_len is 0, and a runner of it, planned for
 * `images` images, with room for `rows` laws. Returns 0 if bf16 is asked for and the processor has none. */
int gpt_open(gpt_fixture *f, mar_dtype dtype, const char *name, int seq_len, const gpt_sampling *sampling, int images,
             int drafts, int keep, int rows);
void gpt_close(gpt_fixture *f);
/* Calls gpt_runner_laws, which must succeed. */
void gpt_laws(gpt_fixture *f, const spec_request *request, int n);
const float *gpt_law(const gpt_fixture *f, int row); /* host [vocabulary], of a CPU */

#endif
