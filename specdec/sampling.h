/* What a sampler of discrete tokens (specdec/sampler.h) is given, and what it counts. */
#ifndef SPECDEC_SAMPLING_H
#define SPECDEC_SAMPLING_H

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
    /* NULL, or backend: tokens that have been drawn, but that the host has not read. The prefix has SPEC_UNREAD in
     * their places; its last token is drawn[last]. Such requests have no drafts, and come with others of their kind
     * only. */
    const int *drawn;
    int last;
} spec_request;

enum { SPEC_UNREAD = -1 };

/* What follows a pass: operations on the queue, which read the laws that it makes. */
typedef struct {
    void (*run)(void *arg); /* as the body of a recording (kernels/ops.h, replay) */
    void *arg;
    int shape[4]; /* what the operations differ in, besides contents of host arrays: one recording has one of these */
} spec_sequel;

/* A model. One call of `laws` is one forward pass over all n requests, of different sequences. It fills rows of
 * log_law, backend float [..][size], with normalised log laws. It works on the sampler's queue. */
typedef struct {
    int size; /* vocabulary */
    void *state;
    mar_status (*laws)(void *state, const spec_request *request, int n, float *log_law, mar_err *err);
    /* The same, and then the sequel, in one recording with the pass if that is recorded. It takes requests with
     * `drawn`. NULL: the model has no such call, and the sampler does both in turn. */
    mar_status (*laws_then)(void *state, const spec_request *request, int n, float *log_law, const spec_sequel *sequel,
                            mar_err *err);
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
    /* Positions drafted a round: L, gamma; the depth of a tree. Jacobi: the window, all drafts of a round. Its tree
     * (sjd-pac) takes its drafts out of it, and the first path goes on as a chain with the rest. */
    int length;
    /* A static tree by levels in place of a chain: parent[n] < n, not decreasing, at most `length` deep; or NULL. */
    const int *parent;
    int count; /* its drafts */
    /* 1: siblings of the static tree, or the drafts of the chain, are the draft model's likeliest tokens in place of
     * draws. Each is verified as the only token that it could be, as in a dynamic tree. */
    int likeliest;
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
    long rounds;                /* verifications of a sequence's block; of plain sampling, tokens */
    long calls;                 /* passes of the target, for all sequences at hand */
    long draft_calls;           /* passes of the draft model */
    long rows;                  /* laws that the target was asked for */
    long drafted;               /* drafts verified */
    long positions;             /* positions drafted */
    long accepted;              /* tau, summed over rounds */
    long lengths[SPEC_LENGTHS]; /* how many rounds accepted so many drafts */
    /* Seconds, complete when the queue has finished. Where the target's passes and the verification behind them are one
     * recording, target_s is of both, and verify_s of reading the results. */
    double draft_s, target_s, verify_s;
} spec_sampler_stats;

typedef struct spec_sampler spec_sampler;

#endif
