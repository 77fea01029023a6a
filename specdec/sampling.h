/* Inputs and statistics of a sampler of discrete tokens (specdec/sampler.h). */
#ifndef SPECDEC_SAMPLING_H
#define SPECDEC_SAMPLING_H

#include "nets/causal_request.h"
#include "specdec/choice.h"
#include "specdec/verifier.h"

/* A model. One call of `log_probs` is one forward pass over n requests, of different sequences. It fills rows of log_p,
 * backend float [..][size], with normalised log probabilities. It works on the sampler's queue. */
typedef struct {
    int size; /* vocabulary */
    void *state;
    mar_status (*log_probs)(void *state, const causal_request *request, int n, float *log_p, mar_err *err);
    /* The same, then the continuation; a recorded pass has both in one recording. Accepts requests with `drawn`. NULL:
     * the sampler runs the continuation after `log_probs`. */
    mar_status (*log_probs_then)(void *state, const causal_request *request, int n, float *log_p,
                                 const causal_continuation *continuation, mar_err *err);
} spec_model;

/* Initial draft of a position in Jacobi decoding. */
typedef enum {
    SPEC_FIRST_UNIFORM, /* a uniform draw */
    SPEC_FIRST_LEFT,    /* the token to the left, if known or drafted; else above; else uniform */
    SPEC_FIRST_ABOVE,   /* the token above, if known or drafted; else left; else uniform */
} spec_first;

typedef struct {
    const spec_method *method; /* NULL: plain sampling */
    const double *parameter;   /* in the order of method->parameters */
    /* Positions drafted a round: L, gamma, or the depth of a tree. Jacobi: the window, all drafts of a round. The tree
     * of sjd-pac or scd takes its drafts out of the window. Its first path continues as a chain with the rest. */
    int length;
    /* Static tree in level order, in place of a chain: parent[n] < n, not decreasing, at most `length` deep. NULL: a
     * chain. */
    const int *parent;
    int count; /* drafts of the static tree */
    /* 1: drafts of the chain, or siblings of the static tree, are the draft model's likeliest tokens in place of draws.
     * Each is verified with q a point, as in a dynamic tree. */
    int likeliest;
    /* Dynamic tree (EAGLE-2) in place of both; 0: none. Each level expands the `top` likeliest drafts by the `top`
     * likeliest tokens of each. A draft's likelihood is the product of the draft model's probabilities on its path. The
     * `total` likeliest drafts are verified. They are chosen, not drawn, so q is a point. */
    int top, total;
    spec_first first;      /* Jacobi */
    int side;              /* Jacobi: tokens in a row of the image */
    const int *neighbours; /* backend [size][neighbour_count], each token itself first; NULL if not needed */
    int neighbour_count;
    const spec_choice *choice; /* of each round's drafts, up to those above; NULL: all of them */
} spec_sampler_options;

/* A sequence to admit (spec_sampler_admit). */
typedef struct {
    uint64_t seed, image; /* of the noise addresses */
    int n;                /* tokens of the whole sequence */
    const int *token;     /* host [given] its first tokens, below `size`; NULL if none is given */
    int given;            /* 0..n */
} spec_start;

enum { SPEC_LENGTHS = 66 }; /* accepted drafts of a round: 0..64, and more than 64 */

/* Statistics since spec_sampler_begin, summed over sequences. */
typedef struct {
    long tokens;                /* made final; given ones do not count */
    long rounds;                /* verifications of a sequence's block; plain sampling: tokens */
    long calls;                 /* passes of the target, each for all unfinished sequences */
    long draft_calls;           /* passes of the draft model */
    long rows;                  /* distributions asked of the target */
    long drafted;               /* drafts verified */
    long positions;             /* positions drafted */
    long accepted;              /* tau, summed over rounds */
    long lengths[SPEC_LENGTHS]; /* rounds by accepted drafts */
    long undrafted;             /* rounds without drafts */
    double spent; /* cost of the rounds by options.choice; plain decoding costs `tokens`. 0 without a choice */
    /* Seconds, complete when the queue has finished. If the target's pass and the verification share a recording,
     * target_s covers both, and verify_s the reading of results. */
    double draft_s, target_s, verify_s;
} spec_sampler_stats;

typedef struct spec_sampler spec_sampler;

#endif
