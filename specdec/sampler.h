/* Sampling of discrete tokens from a model that gives its laws, several sequences at a time, each at its own pace, with
 * or without speculation. Plain sampling is a round without drafts. With a draft model a round drafts a chain or a
 * tree, verifies it in one call of the target, and draws a bonus token when all drafts of a path are accepted. Without
 * one it is Jacobi decoding: the drafts are the target's own, from the round before.
 *
 *     spec_sampler_create(k, &target, &draft, &options, sequences, &s, err);
 *     spec_sampler_lay_out(s, memory);
 *     spec_sampler_begin(s, first_image, sequences, n);
 *     while (status == MAR_OK && spec_sampler_left(s) > 0) status = spec_sampler_round(s, err);
 *     spec_sampler_tokens(s, i);
 *
 * Laws stay in backend memory; of each round the host learns which tokens came of it. A sequence's tokens depend on the
 * options, the seed and its image number only, as far as the laws do. */
#ifndef SPECDEC_SAMPLER_H
#define SPECDEC_SAMPLER_H

#include "specdec/verifier.h"

/* What a model is asked about one sequence. Draft n follows draft parent[n] < n, or the prefix if that is -1. The laws
 * of what follows the prefix and each draft go to rows row, row + 1 .. row + count of the array. Those before row +
 * from are there already, from the sequence's last request, which had the same prefix, and of whose drafts these are a
 * continuation; from is 0 if that does not hold. */
typedef struct {
    int sequence;      /* 0..sequences-1 */
    const int *prefix; /* [length] the tokens that are final */
    int length;
    const int *draft, *parent; /* [count] */
    int count;
    int from;
    int row;
} spec_request;

/* A model. One call of `laws` is one forward pass over all n requests, of different sequences. It fills rows of
 * log_law, backend float [..][size], with normalised log laws. It works on the sampler's queue. */
typedef struct {
    int size; /* vocabulary */
    void *state;
    mar_status (*laws)(void *state, const spec_request *request, int n, float *log_law, mar_err *err);
} spec_model;

/* How a position that nothing is known of gets its first draft (Jacobi decoding). */
typedef enum {
    SPEC_FIRST_UNIFORM, /* a draw from the uniform law */
    SPEC_FIRST_LEFT,  /* the token to its left, or above in the first column, if that is known or drafted; else uniform
                       */
    SPEC_FIRST_ABOVE, /* the token above, or to its left in the first row */
} spec_first;

typedef struct {
    const spec_method *method; /* NULL: plain sampling */
    const double *parameter;   /* in the order of method->parameters */
    int length;                /* positions drafted a round: L, gamma, the window; the depth of a tree */
    /* A static tree by levels in place of a chain: parent[n] < n, not decreasing, at most `length` deep; or NULL. */
    const int *parent;
    int count; /* its drafts */
    /* A dynamic tree in place of both (EAGLE-2): at each level the `top` likeliest tokens of each of the `top`
     * likeliest drafts of the level before, by the product of the draft's probabilities; of all the `total` likeliest
     * are verified. 0: none. Its drafts are chosen, not drawn: each is verified as the only token that it could be. */
    int top, total;
    spec_first first;      /* Jacobi */
    int side;              /* Jacobi: tokens in a row of the image */
    const int *neighbours; /* backend [size][neighbour_count], the token itself first; NULL if the method needs none */
    int neighbour_count;
    uint64_t seed;
} spec_sampler_options;

enum { SPEC_LENGTHS = 66 }; /* accepted drafts of a round, 0..64 and more */

/* Of the sequences since spec_sampler_begin, summed. */
typedef struct {
    long rounds;                        /* verifications of a sequence's block; of plain sampling, tokens */
    long calls;                         /* passes of the target, for all sequences at hand */
    long draft_calls;                   /* passes of the draft model */
    long rows;                          /* laws that the target was asked for */
    long drafted;                       /* drafts verified */
    long positions;                     /* positions drafted */
    long accepted;                      /* tau, summed over rounds */
    long lengths[SPEC_LENGTHS];         /* how many rounds accepted so many drafts */
    double draft_s, target_s, verify_s; /* complete when the queue has finished */
} spec_sampler_stats;

typedef struct spec_sampler spec_sampler;

/* A sampler for up to `sequences` sequences of up to `tokens` tokens on queue k, which must outlive it, as must models
 * and options' arrays. `draft` must be NULL for a method with stale drafts and for plain sampling, and given for
 * others. MAR_EARG if the options do not fit together (tree and method, neighbours missing, a tree not by levels). */
mar_status spec_sampler_create(kern_queue *k, const spec_model *target, const spec_model *draft,
                               const spec_sampler_options *options, int sequences, int tokens, spec_sampler **out,
                               mar_err *err);
void spec_sampler_free(spec_sampler *s); /* NULL is fine */
/* As diff_chain_lay_out: its backend memory at base; returns the bytes, a multiple of 256; base NULL only counts. */
size_t spec_sampler_lay_out(spec_sampler *s, char *base);
/* The most drafts that a request for the target, or for the draft model, has. */
int spec_sampler_drafts(const spec_sampler *s);

/* Starts sequences of n tokens each, whose random numbers are those of images first_image .. */
void spec_sampler_begin(spec_sampler *s, uint64_t first_image, int sequences, int n);
/* Runs one round, after which each unfinished sequence has at least one more token. MAR_EMODEL if a law gave no token a
 * probability (NaN): the line names the sequence's image and the token's position. */
mar_status spec_sampler_round(spec_sampler *s, mar_err *err);
int spec_sampler_left(const spec_sampler *s); /* tokens that the sequence with fewest still lacks */
int spec_sampler_known(const spec_sampler *s, int sequence);
const int *spec_sampler_tokens(const spec_sampler *s, int sequence); /* host [n], the first known ones */
/* What became of each token: fate [n] is a spec_verdict (dropped: drawn from the target alone), round [n] the round. */
void spec_sampler_fates(const spec_sampler *s, int sequence, uint8_t *fate, int *round);
const spec_sampler_stats *spec_sampler_get_stats(const spec_sampler *s);

/* Expected speedup of speculative decoding over the target alone (continuous SD Eq. 35, after Leviathan et al. 2023).
 * alpha in 0..1 is the acceptance rate, equal and independent for each of gamma drafts a round. c is the time of a
 * draft call over that of a target call. */
double spec_walltime_improvement(double alpha, int gamma, double c);

#endif
