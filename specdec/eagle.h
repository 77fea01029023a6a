/* An EAGLE drafter (specdec/eagle_model.h) at work beside its target: a draft model of a sampler.
 *
 * A prefix token reads the target's feature of the position before it; a draft reads the drafter's own. So the tokens'
 * keys and values stay in the cache, and those of drafts are dropped when a round ends. Accepted drafts are computed
 * anew, with the target's features, in the first pass of the next round.
 *
 * Under guidance it drafts in both branches, and combines their logits as the target does. A draft's q is the
 * distribution it was drawn from. The first token's distribution is the target's own, because its feature is there
 * before any draw. */
#ifndef SPECDEC_EAGLE_H
#define SPECDEC_EAGLE_H

#include "specdec/eagle_model.h"
#include "nets/causal_runner.h"

typedef struct eagle_runner eagle_runner;

/* Creates a drafter for the images of `target`: a runner that keeps features, for up to `images` images of the model
 * `gpt`. `sampling` has as many branches as the target's. All must outlive it. Requests have at most `drafts` drafts.
 * Returns MAR_EMODEL if the drafter does not fit the model. */
mar_status eagle_runner_create(kern_queue *k, const eagle_model *model, const causal_model *gpt, causal_runner *target,
                               const causal_sampling *sampling, int images, int drafts, eagle_runner **out,
                               mar_err *err);
void eagle_runner_free(eagle_runner *r);                            /* r may be NULL */
void eagle_runner_set_cache(eagle_runner *r, kern_cache_type type); /* as causal_runner_set_cache */
size_t eagle_runner_lay_out(eagle_runner *r, char *base);           /* as causal_runner_lay_out */
mar_status eagle_runner_plan(eagle_runner *r, int images, mar_err *err);
/* Starts images that the target has just started (causal_runner_admit), beside those at work. */
void eagle_runner_admit(eagle_runner *r, const causal_start *start, int n);
void eagle_runner_clear_stats(eagle_runner *r);
/* Clears the statistics, and starts the images that the target has just started (causal_runner_begin). */
void eagle_runner_begin(eagle_runner *r, int images);
/* Implements spec_model.log_probs, with the drafter as its state. The target must have computed all of a request's
 * prefix but its last token; else it returns MAR_EARG. Other errors are those of causal_runner_log_probs. */
mar_status eagle_runner_log_probs(void *runner, const causal_request *request, int n, float *log_probs, mar_err *err);
const causal_runner_stats *eagle_runner_get_stats(const eagle_runner *r); /* prefix_s is 0 */

#endif
