/* The transformer at work on several images at a time: a key-value cache, and passes over new tokens.
 *
 * A sequence is an image in one branch. With guidance an image has two; they differ only before the image tokens. A
 * sequence's cache is a pool of slots; a token's keys and values stay in the slot where its pass put them. A list gives
 * the slots of the verified prefix, in order. Slots of accepted drafts join that list, and those of rejected ones
 * become free, so nothing is ever copied. The runner finds out which drafts became tokens from the next request. Apart
 * from its last token, that request's prefix continues a path of the last request's tree. */
#ifndef LLAMAGEN_RUNNER_H
#define LLAMAGEN_RUNNER_H

#include "llamagen/model.h"
#include "llamagen/request.h"

typedef struct gpt_runner gpt_runner;

/* Creates a runner for up to `images` images on queue k. Requests have at most `drafts` drafts. keep 1 keeps the
 * features of each slot (gpt_runner_features) for an EAGLE drafter. k and model must outlive it. */
mar_status gpt_runner_create(kern_queue *k, const gpt_model *model, const gpt_sampling *sampling, int images,
                             int drafts, int keep, gpt_runner **out, mar_err *err);
void gpt_runner_free(gpt_runner *r); /* r may be NULL */
/* Sets the prefix of its layers' names in the search for non-finite numbers (kern_watching.part), such as "draft: ".
 * The default is "". */
void gpt_runner_name(gpt_runner *r, const char *part);
/* Sets the type of keys and values in the cache, before gpt_runner_lay_out. The default is KERN_CACHE_ACT. */
void gpt_runner_set_cache(gpt_runner *r, kern_cache_type type);
size_t gpt_runner_lay_out(gpt_runner *r, char *base); /* as diff_chain_lay_out */
/* Prepares passes over this many images, so that they allocate nothing. */
mar_status gpt_runner_plan(gpt_runner *r, int images, mar_err *err);
/* Sets the caption in the second branch of a decoder of text/grammar.h, for images that start later: features host
 * float [prefix][caption_dim], mask host uint8_t [prefix]. Call it before the first such image with guidance. */
void gpt_runner_set_negative(gpt_runner *r, const float *features, const uint8_t *mask);
/* Starts n images beside those at work, and computes their positions before the image tokens, and their given tokens
 * but the last. The mask is 1 at the end of the prefix. As in generate.py, a masked position of LlamaGen is attended to
 * only by itself, and the unconditional caption has the caption's mask. A decoder of text/grammar.h has masked
 * positions on the left alone, and its sequence begins behind them. */
void gpt_runner_admit(gpt_runner *r, const gpt_start *start, int n);
void gpt_runner_clear_stats(gpt_runner *r);
/* Returns the table with the embeddings of the positions before the image tokens that the last gpt_runner_admit has
 * computed, and the row of an image's position 0 there. */
const float *gpt_runner_prefix_table(const gpt_runner *r);
int gpt_runner_prefix_row(const gpt_runner *r, int image, int branch);
/* Returns the first position of an image's sequence: 0 unless its prompt is padded. */
int gpt_runner_begin_of(const gpt_runner *r, int image, int branch);
/* Clears the statistics, and starts images 0, 1, ... with the guidance of gpt_sampling: of these labels, host [images],
 * or captions, features host float [images][prefix][caption_dim], mask host uint8_t [images][prefix]. */
void gpt_runner_begin(gpt_runner *r, int images, const int *label);
void gpt_runner_begin_captions(gpt_runner *r, int images, const float *features, const uint8_t *mask);
/* Implements spec_model.log_probs, with the runner as its state. A request's sequence is the image's number in the
 * batch. It may have any prefix; the runner computes what it has not computed yet. Returns MAR_EARG if a token or
 * draft is outside the vocabulary or beyond seq_len, or if there are too many drafts. Returns the queue's failure
 * (kern_check). */
mar_status gpt_runner_log_probs(void *runner, const spec_request *request, int n, float *log_probs, mar_err *err);
/* Implements spec_model.log_probs_then. Also returns MAR_EARG if a token on the device follows tokens that are not
 * computed. */
mar_status gpt_runner_log_probs_then(void *runner, const spec_request *request, int n, float *log_probs,
                                     const spec_continuation *continuation, mar_err *err);
/* Tells the runner which tokens of an image are final, so that slots of accepted drafts become theirs.
 * gpt_runner_log_probs does this itself. An EAGLE drafter reads features before the target's next call, so it does it
 * here. The prefix has line ends (llamagen/lines.h). */
void gpt_runner_follow(gpt_runner *r, int image, const int *prefix, int length);

/* Returns the features: the results of the last norm, the input of the output layer. They are backend float [slots][D],
 * by slot. Every token of a prefix has one but the last, whose pass is still to come. Returns NULL without `keep`. */
const float *gpt_runner_features(const gpt_runner *r);
/* Returns the slot of an image's token `position`, where line ends count (-prefix..-1: a position before the image
 * tokens), in a branch (0: the conditional one); -1 if it has not been computed. */
int gpt_runner_slot(const gpt_runner *r, int image, int branch, int position);

typedef struct {
    long passes, rows; /* rows: tokens computed in all branches */
    double flop;       /* 2 a multiply-add */
    double bytes;      /* weights, keys and values that the passes had to read, each once a pass */
    double prefix_s;   /* seconds of gpt_runner_admit */
} gpt_runner_stats;
const gpt_runner_stats *gpt_runner_get_stats(const gpt_runner *r);

#endif
