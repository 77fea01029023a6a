/* Speculative sampling of discrete tokens from any model that gives its laws: with a draft model (draft, verify, and a
 * bonus token when all are accepted), or without (Jacobi: the drafts are the target's own from the last round).
 *
 *     spec_sampler *s = spec_sampler_create(&target, &draft, &options);
 *     spec_sampler_begin(s, image, tokens, n);
 *     while (s->known < n && !status) status = spec_sampler_round(s);
 */
#ifndef SPECDEC_SAMPLER_H
#define SPECDEC_SAMPLER_H

#include "specdec/verifier.h"

/* A model: one call is one forward pass. Fills log_law [count + 1][size]: row 0 the normalised log law of the token
 * after prefix[0..length-1], row n + 1 that after draft n, which follows draft parent[n] < n or the prefix (-1).
 * Returns 0, or a status that ends the round and is handed on. */
typedef struct {
    int size; /* vocabulary */
    void *state;
    int (*laws)(void *state, const int *prefix, int length, const int *draft, const int *parent, int count,
                float *log_law);
} spec_model;

typedef struct {
    const spec_method *method;
    const double *parameter; /* as in the method's table */
    int length;              /* positions drafted a round: L, gamma; Jacobi: the window */
    /* A static tree in place of a chain, no deeper than that, by levels: parent[n] < n, not decreasing; or NULL. */
    const int *parent;
    int count;
    const int *neighbours; /* as in spec_site */
    int neighbour_count;
    uint64_t seed;
} spec_sampler_options;

typedef struct {
    long rounds; /* calls of the target */
    long draft_calls;
    long verified; /* rounds * positions offered */
    long accepted; /* drafts accepted: tau, summed */
} spec_sampler_stats;

/* Read what you like; the tests also tamper. */
typedef struct {
    spec_model target, draft;
    spec_sampler_options options;
    int *token; /* the caller's [n] */
    int n, known;
    uint64_t image;
    uint32_t step; /* rounds of this sequence */
    spec_sampler_stats stats;

    int capacity;             /* drafts of the largest block */
    int *node, *parent;       /* [capacity]: the block's drafts */
    int *place;               /* [capacity]: where a draft of the static tree stands in the block, or -1 */
    spec_token *node_token;   /* [capacity] */
    spec_site *site;          /* [capacity + 1] */
    float *log_p, *log_q;     /* [capacity + 1][size] */
    spec_output out;          /* its buffers */
    int children, tree_depth; /* Jacobi: the shape of the tree after a rejection */

    int drafted;           /* Jacobi: positions drafted */
    int tree;              /* of them, how many have several candidates */
    spec_address *address; /* [length + 1] of a block's positions */
    int *candidate;        /* [length][children], the first one is the window's token */
    int *candidates;       /* [length], how many there are */
    float *draft_q;        /* [length][size], the law each first candidate was drawn from */
} spec_sampler;

/* `draft` is NULL for a method whose drafts are stale, and must be given for others. Returns NULL if memory is out, or
 * if the options do not fit together (tree and method, neighbours missing, a tree not by levels). */
spec_sampler *spec_sampler_create(const spec_model *target, const spec_model *draft,
                                  const spec_sampler_options *options);
void spec_sampler_free(spec_sampler *s);

/* Starts a sequence of n tokens, `image` being its number in the random sequence of the seed. */
void spec_sampler_begin(spec_sampler *s, uint64_t image, int *tokens, int n);

/* One round: at least one more token is known. Returns 0, a model's status, or SPEC_EMPTY_LAW if a law gave no token a
 * probability (NaN); the sequence cannot go on then. */
enum { SPEC_EMPTY_LAW = -1 };
int spec_sampler_round(spec_sampler *s);

/* Draws candidates number first..count-1 from exp(log_q) without replacement into candidate[], which has the elder
 * ones; the uniform of number k is block k of purpose STEP at the address. Returns how many there are now: fewer than
 * count if log_q has no more tokens. */
int spec_draw_candidates(const float *log_q, int size, const spec_address *address, int first, int count,
                         int *candidate);

/* Expected tokens per time of speculative decoding, over those of the target alone (continuous SD Eq. 35, after
 * Leviathan et al. 2023): acceptance rate alpha in 0..1, equal and independent at gamma drafts a round; c is the time
 * of a draft call over that of a target call. */
double spec_walltime_improvement(double alpha, int gamma, double c);

#endif
