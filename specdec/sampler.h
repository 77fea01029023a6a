/* Sampling of discrete tokens from a model that gives its laws, several sequences at a time, each at its own pace, with
 * or without speculation. Plain sampling is a round without drafts. With a draft model a round drafts a chain or a
 * tree, verifies it in one call of the target, and draws a bonus token when all drafts of a path are accepted. Without
 * one it is Jacobi decoding: the drafts are the target's own, from the round before.
 *
 *     spec_sampler_create(k, &target, &draft, &options, sequences, n, &s, err);
 *     spec_sampler_lay_out(s, memory);
 *     spec_sampler_begin(s, first_image, sequences, n);
 *     while (status == MAR_OK && spec_sampler_left(s) > 0) status = spec_sampler_round(s, err);
 *     spec_sampler_tokens(s, i);
 *
 * Laws stay in backend memory; of each round the host learns which tokens came of it. On an asynchronous device plain
 * sampling does without: a round gives its tokens to the next one on the device, and the host reads those of 16 rounds
 * at a time. A sequence's tokens depend on the options, the seed and its image number only, as far as the laws do. */
#ifndef SPECDEC_SAMPLER_H
#define SPECDEC_SAMPLER_H

#include "specdec/sampling.h"

/* A sampler for up to `sequences` sequences of up to `tokens` tokens on queue k, which must outlive it, as must models
 * and options' arrays. `draft` must be NULL for a method with stale drafts and for plain sampling, and given for
 * others. MAR_EARG if the options do not fit together (tree and method, neighbours missing, a tree not by levels). */
mar_status spec_sampler_create(kern_queue *k, const spec_model *target, const spec_model *draft,
                               const spec_sampler_options *options, int sequences, int tokens, spec_sampler **out,
                               mar_err *err);
void spec_sampler_free(spec_sampler *s); /* NULL is fine */
/* As diff_chain_lay_out: its backend memory at base; returns the bytes, a multiple of 256; base NULL only counts. */
size_t spec_sampler_lay_out(spec_sampler *s, char *base);
/* The most drafts that a request for the target has, and that one for the draft model has (0 without one). */
int spec_sampler_target_drafts(const spec_sampler *s);
int spec_sampler_draft_drafts(const spec_sampler *s);

/* Starts sequences of n tokens each, whose random numbers are those of images first_image .. */
void spec_sampler_begin(spec_sampler *s, uint64_t first_image, int sequences, int n);
/* Runs one round, after which each unfinished sequence has at least one more token. MAR_EMODEL if a law gave no token a
 * probability (NaN): the line names the sequence's image and the token's position. Rounds whose tokens are not read yet
 * cannot know. */
mar_status spec_sampler_round(spec_sampler *s, mar_err *err);
int spec_sampler_left(const spec_sampler *s); /* tokens that the sequence with fewest still lacks */
int spec_sampler_known(const spec_sampler *s, int sequence);
/* host [n], the first known ones; SPEC_UNREAD are those that the host has not read. When none is left all are read. */
const int *spec_sampler_tokens(const spec_sampler *s, int sequence);
/* What became of each token: fate [n] is a spec_verdict (dropped: drawn from the target alone), round [n] the round.
 * Either may be NULL. */
void spec_sampler_fates(const spec_sampler *s, int sequence, uint8_t *fate, int *round);
const spec_sampler_stats *spec_sampler_get_stats(const spec_sampler *s);

#endif
