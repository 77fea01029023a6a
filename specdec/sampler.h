/* Speculative sampling of discrete tokens from any model that gives its laws. With a draft model, a round drafts a
 * block, verifies it, and draws a bonus token when all drafts are accepted. Without one it is Jacobi decoding: the
 * drafts are the target's own, from the last round.
 *
 *     spec_sampler *s = spec_sampler_create(&target, &draft, &options);
 *     spec_sampler_begin(s, image, tokens, n);
 *     while (s->known < n && !status) status = spec_sampler_round(s);
 */
#ifndef SPECDEC_SAMPLER_H
#define SPECDEC_SAMPLER_H

#include "specdec/verifier.h"

/* A model. One call of `laws` is one forward pass. It fills log_law [count + 1][size] with normalised log laws: row 0
 * is that of the token after prefix[0..length-1], row n + 1 that of the token after draft n. Draft n follows draft
 * parent[n] < n, or the prefix if parent[n] is -1. Returns 0, or a status that ends the round and is returned by it. */
typedef struct {
    int size; /* vocabulary */
    void *state;
    int (*laws)(void *state, const int *prefix, int length, const int *draft, const int *parent, int count,
                float *log_law);
} spec_model;

typedef struct {
    const spec_method *method;
    const double *parameter; /* in the order of method->parameters */
    int length;              /* positions drafted a round: L, gamma */
    /* A static tree by levels in place of a chain: parent[n] < n, not decreasing, at most `length` deep; or NULL. */
    const int *parent;
    int count;             /* drafts of the tree */
    const int *neighbours; /* as in spec_site */
    int neighbour_count;   /* as in spec_site */
    uint64_t seed;
} spec_sampler_options;

typedef struct {
    long rounds;      /* calls of the target */
    long draft_calls; /* calls of the draft model */
    long verified;    /* positions drafted, summed over rounds */
    long accepted;    /* tau, summed over rounds */
} spec_sampler_stats;

/* The state of a sampler. Callers may read it; tests also change it. */
typedef struct {
    spec_model target, draft;
    spec_sampler_options options;
    int *token;     /* [n] the sequence; the caller's array */
    int n;          /* tokens of the sequence */
    int known;      /* tokens that are final */
    uint64_t image; /* of the random numbers */
    uint32_t step;  /* rounds of this sequence so far */
    spec_sampler_stats stats;

    int capacity;           /* drafts of the largest block */
    int *node;              /* [capacity] the block's drafts */
    int *parent;            /* [capacity] as in spec_block */
    int *place;             /* [capacity] the place in the block of a draft of the static tree, or -1 */
    spec_token *node_token; /* [capacity] the block's drafts */
    spec_site *site;        /* [capacity + 1] */
    float *log_p, *log_q;   /* [capacity + 1][size] */
    spec_output out;        /* buffers of spec_verify */
    int children;           /* Jacobi: candidates at a position of the tree after a rejection */
    int tree_depth;         /* Jacobi: positions of that tree */

    int drafted;           /* Jacobi: positions drafted in this round */
    int tree;              /* Jacobi: how many of them, the first ones, have several candidates */
    spec_address *address; /* [length + 1] of the block's positions */
    int *candidate;        /* [length][children] Jacobi: the candidates of each position */
    int *candidates;       /* [length] Jacobi: how many candidates a position has */
    float *draft_q;        /* [length][size] Jacobi: the law that each first candidate was drawn from */
} spec_sampler;

/* `draft` must be NULL for a method with stale drafts, and given for others. Returns NULL without memory, or if the
 * options do not fit together (tree and method, neighbours missing, a tree not by levels). */
spec_sampler *spec_sampler_create(const spec_model *target, const spec_model *draft,
                                  const spec_sampler_options *options);
void spec_sampler_free(spec_sampler *s);

/* Starts a sequence of n tokens, whose random numbers are those of `image`. */
void spec_sampler_begin(spec_sampler *s, uint64_t image, int *tokens, int n);

/* Runs one round, after which at least one more token is known. Returns 0, a model's status, or SPEC_EMPTY_LAW if a law
 * gave no token a probability (NaN); then the sequence cannot go on. */
enum { SPEC_EMPTY_LAW = -1 };
int spec_sampler_round(spec_sampler *s);

/* Draws candidates number first .. count-1 from exp(log_q) without replacement into candidate[], which already has the
 * earlier ones. The uniform of number k is block k of purpose STEP at the address. Returns how many candidates there
 * are now, which is less than count if log_q has no more tokens. */
int spec_draw_candidates(const float *log_q, int size, const spec_address *address, int first, int count,
                         int *candidate);

/* Expected speedup of speculative decoding over the target alone (continuous SD Eq. 35, after Leviathan et al. 2023).
 * alpha in 0..1 is the acceptance rate, equal and independent for each of gamma drafts a round. c is the time of a
 * draft call over that of a target call. */
double spec_walltime_improvement(double alpha, int gamma, double c);

#endif
