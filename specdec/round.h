/* A sampler at work: what its drafting (drafts.c) and its rounds (sampler.c) share. Private to specdec/. */
#ifndef SPECDEC_ROUND_H
#define SPECDEC_ROUND_H

#include "specdec/sampling.h"

/* One sequence, and the block that it has drafted in this round. Arrays are host memory. */
typedef struct {
    uint64_t image;
    int known;     /* tokens that are final */
    uint32_t step; /* rounds so far */
    int *token;    /* [tokens] */
    uint8_t *fate; /* [tokens] spec_verdict */
    int *round;    /* [tokens] */

    int count, depth;    /* drafts, and positions of them */
    int *draft, *parent; /* [capacity] as in kern_block_job */
    int *row_q;          /* [capacity + 1] rows of the sites' q; -1: a point */

    int asked; /* drafts of the last request for the draft model; -1: none in this round */

    int *place; /* [capacity] static tree: the block's draft that one of the tree has become, -2: none. Dynamic tree:
                 * the depth of a draft */

    /* Dynamic tree: all that have been looked at, and those of them that the draft model has been asked about. */
    int candidates;
    int *candidate, *candidate_parent;     /* token, and the expanded draft that it follows, or -1 */
    double *candidate_log_p;               /* of the path to it */
    int *chosen;                           /* 0 or more: it has been chosen; in the end its number in the block */
    int expanded, level;                   /* level: the first of the last level */
    int *expansion;                        /* the candidate */
    int *expanded_draft, *expanded_parent; /* as in spec_request */

    /* Jacobi: what this round leaves for the next. */
    int tail;       /* positions behind the final tokens that have a law */
    int tail_known; /* how many of them, the first ones, have a token */
    int *tail_token;
    int *tail_row;    /* the row of the round's laws each has been drawn from */
    int *drawn;       /* [length][children] candidates of a position */
    int *drawn_count; /* [length] */
} spec_sequence;

struct spec_sampler {
    kern_queue *k;
    spec_model target, draft; /* draft.laws NULL: none */
    spec_sampler_options options;
    int sequences, tokens; /* at most */
    int children;          /* Jacobi: candidates at a position of the tree; static tree: siblings at most */
    int tree_depth;        /* Jacobi: positions of that tree; options.length is those of the tree and its chain */
    int go_on;             /* verification does not stop at a rejection */
    int capacity;          /* drafts of a block */
    int draft_capacity;    /* drafts of a request for the draft model */
    int candidates;        /* of a dynamic tree */
    int top, top_rows;     /* likeliest tokens that a law is asked for, and of how many laws of a sequence at a time */
    int running, n;        /* sequences begun, and the tokens that each shall have */
    int unread;            /* rounds of plain sampling whose tokens are on the device only */
    spec_sampler_stats stats;

    void *host; /* all host arrays */
    spec_sequence *sequence;
    spec_request *request; /* [sequences] */
    int *draw_law, *draw_given, *draw_wanted, *draw_earlier;
    kern_address *draw_address;
    int *drawn_id, *drawn; /* what came of a draw: [rows][children], and [rows] behind it */
    int *top_law, *top_id;
    float *top_log_p;
    int *node, *block_draft, *block_parent, *row_p, *row_q; /* as in kern_block_job, all blocks */
    int *of_block;                                          /* [sequences] a block's sequence */
    kern_discrete_rule *rule;
    kern_address *address;
    int *place;     /* [sequences] as in kern_block_job */
    int *result;    /* id, law and count of kern_block_job, one after the other */
    int *read;      /* [SPEC_READ][sequences] tokens of plain sampling, as they are read */
    float *uniform; /* [size] */

    /* backend memory */
    float *laws[2]; /* rows of the target: [sequences][capacity + 1], then the uniform law. Jacobi: those of this round
                     * and of the last one in turn; else the second is NULL */
    int now;        /* which are this round's */
    float *draft_laws; /* [sequences][draft_capacity + 1] */
    int *draw_result;  /* id, then drawn */
    int *top_result_id;
    float *top_result_log_p;
    int *verdict, *block_result;
    int *plain; /* [tokens][sequences] what plain sampling draws on an asynchronous device */
    float *workspace;
};

/* Rounds of plain sampling whose tokens are read at a time. A wait for the device is short beside so many; and a NaN,
 * or a sequence's end, is noticed at most so many rounds late. */
enum { SPEC_READ = 16 };

static inline int spec_row(const spec_sampler *s, int sequence)
{
    return sequence * (s->capacity + 1);
}

static inline int spec_draft_row(const spec_sampler *s, int sequence)
{
    return sequence * (s->draft_capacity + 1);
}

/* The row of the uniform law, in either array. */
static inline int spec_uniform_row(const spec_sampler *s)
{
    return s->sequences * (s->capacity + 1);
}

static inline int spec_lesser(int a, int b)
{
    return a < b ? a : b;
}

/* Positions that a sequence may draft. A draft model is not asked for the last one, which the target gives without a
 * draft as well; a draft of Jacobi decoding costs nothing there. */
static inline int spec_deepest(const spec_sampler *s, const spec_sequence *q)
{
    return spec_lesser(s->options.length, s->n - q->known - (s->draft.laws != NULL));
}

/* MAR_EMODEL: a law of a model ("", "draft: ") gives no token a probability, which only a NaN does. */
static inline mar_status spec_no_token(mar_err *err, const char *model, uint64_t image, int token)
{
    return err_set(err, MAR_EMODEL, "%simage %llu, token %d: the logits are not finite", model,
                   (unsigned long long)image, token);
}

/* Draft the blocks of all sequences that are not finished, with a draft model: a chain or a static tree, or a dynamic
 * one; or from what the round before has left. */
mar_status spec_draft_levels(spec_sampler *s, mar_err *err);
mar_status spec_draft_dynamic(spec_sampler *s, mar_err *err);
mar_status spec_draft_jacobi(spec_sampler *s, mar_err *err);

#endif
