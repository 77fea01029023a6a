/* The transformer at work on several images at a time: a key-value cache, and passes over new tokens. Tokens that are
 * ids come in requests of a sampler, which get log probabilities; vectors come in lists, which get hidden rows.
 *
 * A sequence is an image in one branch. With guidance an image has two; they differ only before the image tokens. A
 * sequence's cache is a pool of slots; a token's keys and values stay in the slot where its pass put them. A list gives
 * the slots of the verified prefix, in order. Slots of accepted drafts join that list, and those of rejected ones
 * become free, so nothing is ever copied. The runner finds out which drafts became tokens from the next request. Apart
 * from its last token, that request's prefix continues a path of the last request's tree. */
#ifndef NETS_CAUSAL_RUNNER_H
#define NETS_CAUSAL_RUNNER_H

#include "nets/causal.h"
#include "nets/causal_request.h"

typedef struct causal_runner causal_runner;

/* Creates a runner for up to `images` images on queue k. Requests have at most `drafts` drafts; lists of
 * vectors, drafts + 1 vectors of a sequence. keep 1 keeps the
 * features of each slot (causal_runner_features) for an EAGLE drafter. k and model must outlive it. */
mar_status causal_runner_create(kern_queue *k, const causal_model *model, const causal_sampling *sampling, int images,
                                int drafts, int keep, causal_runner **out, mar_err *err);
void causal_runner_free(causal_runner *r); /* r may be NULL */
/* Sets the prefix of its layers' names in the search for non-finite numbers (kern_watching.part), such as "draft: ".
 * The default is "". */
void causal_runner_name(causal_runner *r, const char *part);
/* Sets the type of keys and values in the cache, before causal_runner_lay_out. The default is KERN_CACHE_ACT. */
void causal_runner_set_cache(causal_runner *r, kern_cache_type type);
size_t causal_runner_lay_out(causal_runner *r, char *base); /* as diff_chain_lay_out */
/* Prepares passes over this many images, so that they allocate nothing. */
mar_status causal_runner_plan(causal_runner *r, int images, mar_err *err);
/* Sets the prompt in the second branch, for images that start later: ids host float [prefix], mask host uint8_t
 * [prefix] or NULL: 1 everywhere. Call it before the first such image with guidance. */
void causal_runner_set_negative(causal_runner *r, const float *ids, const uint8_t *mask);
/* Starts n images beside those at work, and computes their positions before the image tokens, and their given tokens
 * but the last. The mask is 1 at the end of the prefix. As in generate.py, a masked position of LlamaGen is attended to
 * only by itself, and the unconditional caption has the caption's mask. A prompt has masked positions on the left
 * alone, and its sequence begins behind them. With vectors, an image whose guidance is 1 or less has one sequence, and
 * the caller computes its given tokens. */
void causal_runner_admit(causal_runner *r, const causal_start *start, int n);
void causal_runner_clear_stats(causal_runner *r);
/* Returns the table with the embeddings of the positions before the image tokens that the last causal_runner_admit has
 * computed, and the row of an image's position 0 there. */
const float *causal_runner_prefix_table(const causal_runner *r);
int causal_runner_prefix_row(const causal_runner *r, int image, int branch);
/* Returns the first position of an image's sequence: 0 unless its prompt is padded. */
int causal_runner_begin_of(const causal_runner *r, int image, int branch);
/* Clears the statistics, and starts images 0, 1, ... with the guidance of causal_sampling: of these labels, host
 * [images], or captions, features host float [images][prefix][caption_dim], mask host uint8_t [images][prefix]. */
void causal_runner_begin(causal_runner *r, int images, const int *label);
void causal_runner_begin_captions(causal_runner *r, int images, const float *features, const uint8_t *mask);
/* Implements spec_model.log_probs, with the runner as its state. A request's sequence is the image's number in the
 * batch. It may have any prefix; the runner computes what it has not computed yet. Returns MAR_EARG if a token or
 * draft is outside the vocabulary or beyond seq_len, or if there are too many drafts. Returns the queue's failure
 * (kern_check). */
mar_status causal_runner_log_probs(void *runner, const causal_request *request, int n, float *log_probs, mar_err *err);
/* Implements spec_model.log_probs_then. Also returns MAR_EARG if a token on the device follows tokens that are not
 * computed. */
mar_status causal_runner_log_probs_then(void *runner, const causal_request *request, int n, float *log_probs,
                                        const causal_continuation *continuation, mar_err *err);
/* Tells the runner which tokens of an image are final, so that slots of accepted drafts become theirs.
 * causal_runner_log_probs does this itself. An EAGLE drafter reads features before the target's next call, so it does
 * it here. The prefix has line ends (nets/causal_lines.h). */
void causal_runner_follow(causal_runner *r, int image, const int *prefix, int length);

/* Returns the features: the results of the last norm, the input of the output layer. They are backend float [slots][D],
 * by slot. Every token of a prefix has one but the last, whose pass is still to come. Returns NULL without `keep`. */
const float *causal_runner_features(const causal_runner *r);
/* Returns the slot of an image's token `position`, where line ends count (-prefix..-1: a position before the image
 * tokens), in a branch (0: the conditional one); -1 if it has not been computed. */
int causal_runner_slot(const causal_runner *r, int image, int branch, int position);

/* Start the list of a pass over vectors, rows of backend float [..][token_dim]. NULL: over none. */
void causal_vectors_begin(causal_runner *r, const float *vectors);
/* Adds vectors first .. first+n-1 of a sequence: rows source[0..n-1]. All earlier tokens have been computed. The hidden
 * row in front of the token after each of the last `wanted` ones becomes row to[0..wanted-1] + offset. */
void causal_vectors_add(causal_runner *r, int image, int branch, int first, int n, const int *source, int wanted,
                        const int *to, int offset);
/* Wants the hidden row in front of a sequence's first token as row `to`. */
void causal_vectors_want_first(causal_runner *r, int image, int branch, int to);
/* Runs the listed pass. hidden is backend float [..][D]: norm of the last layer's row, plus next_position. */
void causal_vectors_run(causal_runner *r, float *hidden);
int causal_runner_rows(const causal_runner *r); /* most vectors of a sequence in a pass */

typedef struct {
    long passes, rows; /* rows: tokens computed in all branches */
    double flop;       /* 2 a multiply-add */
    double bytes;      /* weights, keys and values that the passes had to read, each once a pass */
    double prefix_s;   /* seconds of causal_runner_admit */
    double tokens_s;   /* seconds of causal_vectors_run */
} causal_runner_stats;
const causal_runner_stats *causal_runner_get_stats(const causal_runner *r);

#endif
