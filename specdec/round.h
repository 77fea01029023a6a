/* State of a sampler at work, shared by drafting (drafts.c) and rounds (sampler.c). Private to specdec/. */
#ifndef SPECDEC_ROUND_H
#define SPECDEC_ROUND_H

#include "specdec/sampling.h"

/* One sequence and the block that it has drafted in this round. Arrays are host memory. */
typedef struct {
    uint64_t seed, image;  /* of its noise addresses */
    int n;                 /* tokens of the whole sequence; 0: none is admitted */
    int given;             /* tokens that were known at its admission */
    int known;             /* final tokens */
    uint32_t step;         /* given tokens and rounds so far. In plain sampling it equals known */
    int on_device;         /* 1: the last round left its last token in `plain` */
    const char *failed;    /* NULL, or the model that gave no token a probability: "" or "draft: " */
    int failed_at;         /* position of that token */
    int *token;            /* [tokens] */
    uint8_t *token_status; /* [tokens] spec_verdict */
    int *round;            /* [tokens] round that made the token final */

    spec_past past; /* for the choice of drafts */
    int chosen;     /* drafts of this round, at most */
    int reach;      /* positions that these can cover */
    int tree_depth; /* Jacobi: levels of this round's tree; `reach` counts those of the tree and the chain */

    int count, depth;    /* drafts of the block, and positions that they cover */
    int *draft, *parent; /* [capacity] as in kern_block_job */
    int *row_q;          /* [capacity + 1] row of each site's q; -1: q is a point */

    int requested; /* drafts of this round's last request to the draft model; -1: no request yet */

    /* [capacity] static tree: index in the block of each draft of the tree, -2 if absent. Dynamic tree: depth of each
     * draft. */
    int *place;

    /* Dynamic tree: all candidates, and the expanded ones, whose successors the draft model has been asked for. */
    int candidates;
    int *candidate, *candidate_parent; /* [candidates] token, and the expanded draft that it follows (-1: the prefix) */
    double *candidate_log_p;           /* [candidates] log probability of the path to it under the draft model */
    int *candidate_chosen;             /* [candidates] -1: not chosen; in the end, the index in the block */
    int expanded, level;               /* level: first expanded draft of the last level */
    int *expansion;                    /* [draft_capacity + 1] candidate of each expanded draft */
    int *expanded_draft, *expanded_parent; /* as in causal_request */

    /* Jacobi: the state that this round leaves for the next. */
    int tail;       /* positions after the final tokens that have a distribution */
    int tail_known; /* how many of these, from the first on, have a token */
    int *tail_token;
    int *tail_row;    /* [length] row of this round's distributions that each token was drawn from; -1: a point */
    int *drawn;       /* [length][children] candidates of a position */
    int *drawn_count; /* [length] */
} spec_sequence;

struct spec_sampler {
    kern_queue *k;
    spec_model target, draft; /* draft.log_probs NULL: no draft model */
    spec_sampler_options options;
    int sequences, tokens; /* capacities */
    int children;          /* Jacobi: candidates at a position of the tree. Static tree: maximum number of siblings */
    int levels;            /* Jacobi: levels of the tree, at most */
    int positions;         /* that a block covers, at most */
    int past_rejection;    /* verification continues after a rejection */
    int capacity;          /* drafts of a block, at most */
    int draft_capacity;    /* drafts of a request to the draft model, at most */
    int candidates;        /* candidates of a dynamic tree, at most */
    int top, top_rows;     /* k of a top-k operation, and its maximum rows of a sequence */
    int unread;            /* rounds of plain sampling whose tokens are on the device only */
    int next;              /* row of `plain` for the next round */
    spec_sampler_stats stats;

    void *host; /* owns all host arrays */
    spec_sequence *sequence;
    causal_request *request; /* [sequences] */
    int *draw_row, *draw_given, *draw_wanted, *draw_earlier;
    kern_address *draw_address;
    int *drawn_id, *drawn; /* results of a draw: drawn_id [rows][children], then drawn [rows] */
    int *top_row, *top_id;
    float *top_log_p;
    int *node, *block_draft, *block_parent, *row_p, *row_q; /* as in kern_block_job, all blocks */
    int *block_sequence;                                    /* [sequences] sequence of a block */
    kern_discrete_rule *rule;
    kern_address *address;
    int *place;     /* [sequences] as in kern_block_job */
    int *result;    /* id, distribution and count of kern_block_job, one after the other */
    int *read;      /* [SPEC_READ][sequences] download buffer of plain sampling */
    float *uniform; /* [size] log probabilities of the uniform distribution */

    /* Backend memory. */
    /* Rows of the target's log probabilities: [sequences][capacity + 1][size], then the uniform row. Jacobi alternates
     * between two arrays: this round's and the last round's. Otherwise both pointers are equal. */
    float *log_probs[2];
    int now;                /* index of this round's array */
    float *draft_log_probs; /* [sequences][draft_capacity + 1][size] */
    int *draw_result;       /* id, then drawn */
    int *top_result_id;
    float *top_result_log_p;
    int *verdict, *block_result;
    /* [SPEC_READ][sequences] tokens that plain sampling has drawn on an asynchronous device, by round. After the last
     * row comes the first; then all are read. */
    int *plain;
    float *workspace;
};

/* Rounds of plain sampling per download of tokens. Against 16 rounds, one wait for the device is short. A NaN, or the
 * end of a sequence, is noticed at most 16 rounds late. */
enum { SPEC_READ = 16 };

static inline int spec_row(const spec_sampler *s, int sequence)
{
    return sequence * (s->capacity + 1);
}

static inline int spec_draft_row(const spec_sampler *s, int sequence)
{
    return sequence * (s->draft_capacity + 1);
}

/* Returns the row of the uniform distribution, in either array. */
static inline int spec_uniform_row(const spec_sampler *s)
{
    return s->sequences * (s->capacity + 1);
}

/* Tells whether a sequence takes part in rounds: it is admitted, unfinished, and has not failed. */
static inline int spec_is_running(const spec_sequence *q)
{
    return q->known < q->n && !q->failed;
}

static inline int spec_lesser(int a, int b)
{
    return a < b ? a : b;
}

/* Returns the number of positions that a sequence may draft. A draft model does not draft the last position, because
 * the target gives it without a draft as well. A Jacobi draft costs nothing there. */
static inline int spec_deepest(const spec_sampler *s, const spec_sequence *q)
{
    return spec_lesser(q->reach, q->n - q->known - (s->draft.log_probs != NULL));
}

/* Fails a sequence: a model ("" or "draft: ") gave no token a probability. Only a NaN causes that. */
static inline void spec_no_token(spec_sequence *q, const char *model, int token)
{
    if (q->failed) return;
    q->failed = model;
    q->failed_at = token;
}

/* Draft the blocks of all running sequences, and fail those without a distribution: with a draft model a chain or
 * static tree, with a draft model a dynamic tree, or from the round before. */
mar_status spec_draft_levels(spec_sampler *s, mar_err *err);
mar_status spec_draft_dynamic(spec_sampler *s, mar_err *err);
mar_status spec_draft_jacobi(spec_sampler *s, mar_err *err);

#endif
