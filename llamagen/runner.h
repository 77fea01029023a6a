/* LlamaGen's transformer at work for several images at a time: a cache of keys and values, and passes over new tokens.
 *
 * A sequence is an image under one condition; with guidance an image has two, which differ in their first positions
 * only. A sequence's cache is a pool of slots; a token's keys and values stay in the slot where its pass has put them.
 * A list says which slots are the verified prefix, in order; when drafts are accepted, their slots join that list, and
 * those of rejected ones are free again. So nothing is ever copied. Which drafts became tokens the runner sees by
 * itself: by the next request's prefix, which continues a path of the last request's tree, but for its last token. */
#ifndef LLAMAGEN_RUNNER_H
#define LLAMAGEN_RUNNER_H

#include "llamagen/model.h"
#include "llamagen/request.h"

typedef struct gpt_runner gpt_runner;

/* A runner for up to `images` images on queue k, whose requests have at most `drafts` drafts. `keep`: 1 keeps the
 * features of each slot (gpt_runner_features), which an EAGLE drafter needs. */
mar_status gpt_runner_create(kern_queue *k, const gpt_model *model, const gpt_sampling *sampling, int images,
                             int drafts, int keep, gpt_runner **out, mar_err *err);
void gpt_runner_free(gpt_runner *r); /* NULL is fine */
/* What the names of its layers begin with in the search for numbers that are not finite (kern_watching.part), such as
 * "draft: ". It is "" if this is not called. */
void gpt_runner_name(gpt_runner *r, const char *part);
size_t gpt_runner_lay_out(gpt_runner *r, char *base); /* as diff_chain_lay_out */
/* Makes everything that passes over so many images need, so that they allocate nothing. */
mar_status gpt_runner_plan(gpt_runner *r, int images, mar_err *err);
/* Starts images of these labels, host [images] (-1: unconditional): their prefixes are computed. */
void gpt_runner_begin(gpt_runner *r, int images, const int *label);
/* The same with captions: features host float [images][prefix][caption_dim], mask host uint8_t [images][prefix], 1 for
 * positions that are part of the caption, which is at the end. As in generate.py no position attends to a masked one
 * but that one itself, and the unconditional caption has the caption's mask. */
void gpt_runner_begin_captions(gpt_runner *r, int images, const float *features, const uint8_t *mask);
/* A spec_model's `laws` with the runner as its state; a request's sequence is the image's number in the batch. Any
 * prefix will do: what of it has not been computed yet is. MAR_EARG if a token or a draft is at no position of an image
 * or none of the vocabulary, or if there are too many drafts; the queue's failure (kern_check). */
mar_status gpt_runner_laws(void *runner, const spec_request *request, int n, float *log_law, mar_err *err);
/* The same as a spec_model's `laws_then`. MAR_EARG, too, if a token on the device follows tokens that are not computed.
 */
mar_status gpt_runner_laws_then(void *runner, const spec_request *request, int n, float *log_law,
                                const spec_sequel *sequel, mar_err *err);
/* Tells the runner which tokens of an image are final by now, so that the slots of accepted drafts are these tokens'.
 * gpt_runner_laws does so itself; an EAGLE drafter, which asks for them before the next call of it, does it here. */
void gpt_runner_follow(gpt_runner *r, int image, const int *prefix, int length);

/* With `keep`, what the output layer is given, the last norm's results: backend float [slots][D], by slot. They are
 * there for every token of a prefix but the last one, whose pass is still to come. NULL without. */
const float *gpt_runner_features(const gpt_runner *r);
/* The slot of an image's token number `position` (-1: the last position in front of the image tokens) under a condition
 * (0: the conditional one); -1: it has not been computed. */
int gpt_runner_slot(const gpt_runner *r, int image, int condition, int position);

typedef struct {
    long passes, rows; /* rows: tokens computed, conditions counted */
    double flop;       /* 2 a multiply-add */
    double bytes;      /* weights, keys and values that the passes had to read, each once a pass */
    double prefix_s;   /* of gpt_runner_begin */
} gpt_runner_stats;
const gpt_runner_stats *gpt_runner_get_stats(const gpt_runner *r);

#endif
