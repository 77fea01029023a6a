/* Sampling of discrete tokens, with or without speculation. Several sequences run at a time, each at its own pace. They
 * come and go between rounds.
 *
 * Plain sampling is a round without drafts. With a draft model a round drafts a chain or a tree and verifies it in one
 * call of the target. If all drafts of a path are accepted, the target gives a bonus token. Without a draft model it is
 * Jacobi decoding: the drafts are the target's own, from the round before.
 *
 *     spec_sampler_create(k, &target, &draft, &options, sequences, n, &s, err);
 *     spec_sampler_lay_out(s, memory);
 *     spec_sampler_begin(s);
 *     spec_sampler_admit(s, i, &start);
 *     while (status == MAR_OK && spec_sampler_running(s) > 0) status = spec_sampler_round(s, err);
 *     if (spec_sampler_failed(s, i, err) == MAR_OK) spec_sampler_tokens(s, i);
 *     spec_sampler_release(s, i);
 *
 * Log probabilities stay in backend memory; the host reads each round's tokens. On an asynchronous device plain
 * sampling passes its tokens to the next round on the device. The host reads those of 16 rounds at a time. A sequence's
 * tokens depend only on the options, its given tokens, seed and image number, as far as its log probabilities do. */
#ifndef SPECDEC_SAMPLER_H
#define SPECDEC_SAMPLER_H

#include "specdec/sampling.h"

/* Creates a sampler for up to `sequences` sequences of up to `tokens` tokens. The queue k, the models and the options'
 * arrays must outlive it. `draft` must be NULL for plain sampling and for a method with stale drafts, and given for the
 * others. Returns MAR_EARG if the options do not fit together: tree and method, missing neighbours, or a tree not
 * listed by levels. */
mar_status spec_sampler_create(kern_queue *k, const spec_model *target, const spec_model *draft,
                               const spec_sampler_options *options, int sequences, int tokens, spec_sampler **out,
                               mar_err *err);
void spec_sampler_free(spec_sampler *s); /* s may be NULL */
/* Lays out the backend memory at base, as diff_chain_lay_out. Returns the bytes, a multiple of 256. With base NULL it
 * only counts. */
size_t spec_sampler_lay_out(spec_sampler *s, char *base);
/* Return the maximum number of drafts in a request to the target, and to the draft model (0 without one). */
int spec_sampler_target_drafts(const spec_sampler *s);
int spec_sampler_draft_drafts(const spec_sampler *s);

/* Releases all sequences and clears the statistics. Must precede the first sequence, and follow a failure. */
void spec_sampler_begin(spec_sampler *s);
/* Starts a sequence in place of sequence 0 <= sequence < sequences. Its given tokens are copied. They come back
 * unchanged, and the others follow the target's distribution after them. In plain sampling the others are those of a
 * run that drew the given ones itself. First reads tokens that the host lacks. */
void spec_sampler_admit(spec_sampler *s, int sequence, const spec_start *start);
/* Reads tokens that the host lacks. */
void spec_sampler_read(spec_sampler *s);
/* Ends a sequence at any time. Its place is then free. */
void spec_sampler_release(spec_sampler *s, int sequence);
/* Runs one round. Each running sequence gains at least one token, or fails. Other sequences are not affected by that.
 * Returns a failure of a model or the queue. Then call spec_sampler_begin. */
mar_status spec_sampler_round(spec_sampler *s, mar_err *err);
int spec_sampler_running(const spec_sampler *s);            /* sequences that lack tokens and have not failed */
int spec_sampler_left(const spec_sampler *s, int sequence); /* tokens that it lacks; 0 if it is released */
/* Sets and returns MAR_EMODEL if a distribution of the sequence gave no token a probability (NaN). The message names
 * the image and the token's position. Returns MAR_OK otherwise, also if the token is still unread. */
mar_status spec_sampler_failed(const spec_sampler *s, int sequence, mar_err *why);
int spec_sampler_known(const spec_sampler *s, int sequence);
/* Returns host [n], of which the known tokens come first. CAUSAL_UNREAD stands for tokens that the host has not read.
 * When none is left, all are read. */
const int *spec_sampler_tokens(const spec_sampler *s, int sequence);
/* Copies what is known of each token. token_status [n] is a spec_verdict (SPEC_DROPPED: given, or drawn from the target
 * alone), and round [n] is the sequence's round that made it final, -1 for a given token. Either may be NULL. */
void spec_sampler_token_status(const spec_sampler *s, int sequence, uint8_t *token_status, int *round);
const spec_sampler_stats *spec_sampler_get_stats(const spec_sampler *s);

#endif
