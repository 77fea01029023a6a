/* An EAGLE drafter (llamagen/eagle_model.h) at work beside its target: a model of a sampler.
 *
 * Tokens of a prefix are given the target's features, drafts the drafter's own of the position before. So keys and
 * values of tokens stay where they are, and those of drafts are dropped when a round ends: accepted ones are computed
 * anew, with the target's features, as the first pass of the next round. Under guidance it drafts under both
 * conditions, and its laws are made as the target's are; a draft's q is the law that it was drawn from.
 *
 * The law of the first token is the target's own, whose feature is there before anything is drawn. */
#ifndef LLAMAGEN_EAGLE_H
#define LLAMAGEN_EAGLE_H

#include "llamagen/eagle_model.h"
#include "llamagen/runner.h"

typedef struct eagle_runner eagle_runner;

/* A drafter for the images of `target`, a runner with features for up to `images` images of the model `gpt`, whose
 * sampling has the same number of conditions. All must outlive it. Requests have at most `drafts` drafts. MAR_EARG if
 * it is none for such a model. */
mar_status eagle_runner_create(kern_queue *k, const eagle_model *model, const gpt_model *gpt, gpt_runner *target,
                               const gpt_sampling *sampling, int images, int drafts, eagle_runner **out, mar_err *err);
void eagle_runner_free(eagle_runner *r);                  /* NULL is fine */
size_t eagle_runner_lay_out(eagle_runner *r, char *base); /* as gpt_runner_lay_out */
mar_status eagle_runner_plan(eagle_runner *r, int images, mar_err *err);
/* Starts the images that the target has just started (gpt_runner_begin). */
void eagle_runner_begin(eagle_runner *r, int images);
/* A spec_model's `laws` with the drafter as its state. The target has computed all of a request's prefix but its last
 * token; MAR_EARG if not, and as gpt_runner_laws. */
mar_status eagle_runner_laws(void *runner, const spec_request *request, int n, float *log_law, mar_err *err);
const gpt_runner_stats *eagle_runner_get_stats(const eagle_runner *r); /* prefix_s is 0 */

#endif
