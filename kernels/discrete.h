/* Laws of discrete tokens, and the verification of drafts by them: what the operations on them are given
 * (kernels/ops.h), and the formulas that host and device share.
 *
 * A law is a row of log probabilities float [size], normalised, -INFINITY for 0. A job names laws by their rows in one
 * array, so nothing that the target or a draft model says leaves the device but the tokens that come of it. */
#ifndef KERNELS_DISCRETE_H
#define KERNELS_DISCRETE_H

#include "kernels/gaussian.h"
#include "kernels/ops.h"

#include <math.h>

/* Makes laws of logits as LlamaGen's generate.py does: guidance u + (c - u) * cfg, then the temperature, then top-k,
 * then top-p. */
struct kern_probs_job {
    int rows, size;
    int conditions;      /* 2: row rows + r of logits is the unconditional one of row r; else 1 */
    const float *logits; /* [conditions][rows][size] */
    const float *cfg;    /* host [rows] 1 or less: the conditional logits alone; unused with one condition */
    float
        temperature;  /* logits are divided by max(temperature, 1e-5); 0: the law is a point, the first largest logit */
    int top_k;        /* 0: all; else tokens with less than the k-th largest logit get 0, those that equal it stay */
    float top_p;      /* below 1: of the tokens by falling probability those after the first at which the sum passes p
                       * get 0. Equal ones by their numbers */
    float *log_probs; /* rows of `size`. If a logit is NaN, the row is all NaN */
    const int *place; /* host [rows] the row of log_probs that row r becomes */
};

/* Draws candidates from laws, without replacement in a row. The uniform of candidate k of a row is block k of purpose
 * STEP at the row's address. A draw is the first token, by number, at which the running sum of the law exceeds uniform
 * * total. */
struct kern_draw_job {
    int rows, size;
    const float *log_probs;      /* rows of `size` */
    const int *source;           /* host [rows] the row of log_probs that row r draws from */
    int most;                    /* candidates of a row, at most */
    const int *given;            /* host [rows] how many row r has already */
    const int *wanted;           /* host [rows] how many it shall have, given .. most */
    const int *earlier;          /* host [rows][most] those it has already */
    const kern_address *address; /* host [rows] */
    int *id;                     /* [rows][most] all candidates */
    int *drawn;                  /* [rows] how many there are: fewer than wanted if the law has no more tokens */
};

/* A criterion for discrete tokens as data (specdec/verifier.h). A draft x from q is accepted with probability f(x):
 *   min(1, omega p(x)/q(x)), or with neighbours min(1, p(A)/q(x)), where A are the tokens nearest to x, x first, as
 * long as those besides x have less than bound + bound_p * p(x) in all (LANTERN, LANTERN++). A rejected one is replaced
 * by a draw from Norm[p - q f]+, or with `without` from Norm[p_A - q]+, where p_A has no tokens of A (LANTERN's own
 * resampler: p times [1 - q/p]+ outside A). Exact with omega 1 and no neighbours. */
typedef struct {
    double log_omega;
    int neighbours;        /* tokens looked at, x among them; 0: no neighbours */
    double bound, bound_p; /* of the neighbours' probability */
    int without;           /* 1: LANTERN's own resampler */
} kern_discrete_rule;

/* --- the formulas, of one token. p and q are its probabilities ------------------------------------------------- */

/* f before it is capped at 1: mass is omega * p, or p(A) with neighbours; 0/0 = 1. A draft is accepted if its uniform
 * is less, which it is not if a NaN is among them. */
KERN_FN double kern_draft_accept(double mass, double q)
{
    return q > 0 ? mass / q : mass >= 0 && q == 0 ? 1 : mass + q;
}

/* Whether a draft is accepted: never if f is NaN. */
KERN_FN int kern_draft_passes(double f, double uniform)
{
    return uniform < f;
}

/* omega of a residual. With neighbours p - q f = p - min(q, p(A)) is positive only where q < p <= p(A), so it is p - q
 * there, whatever A is. */
KERN_FN double kern_residual_omega(const kern_discrete_rule *rule)
{
    return rule->neighbours ? 1 : exp(rule->log_omega);
}

/* [p - q f]+: the weight of a token in the residual. With `without` it is 0 for those of the rejected draft's A. */
KERN_FN double kern_residual_weight(double p, double q, double omega)
{
    const double accepted = omega * p < q ? omega * p : q;
    return accepted > p ? 0 : p - accepted;
}

/* Whether a rejected draft of probability p stays all the same: nothing is left of the residual, whose sum is `total`,
 * that could replace it. Without the tokens of A that is so too where they have all of p and the draft itself none. */
KERN_FN int kern_draft_stays(const kern_discrete_rule *rule, double p, double total)
{
    return total == 0 && (p > 0 || (rule->neighbours && rule->without));
}

/* What A's tokens besides x may have in all; p is that of x. */
KERN_FN double kern_neighbour_bound(const kern_discrete_rule *rule, double p)
{
    return rule->bound + rule->bound_p * p;
}

/* The row of a table of `size` that number x names: the nearest there is, 0 for NaN. */
KERN_FN int kern_token_row(float x, int size)
{
    return x > 0 ? x < (float)size ? (int)x : size - 1 : 0;
}

/* The token of `size` that is nearest to `token`. */
KERN_FN int kern_token_within(int token, int size)
{
    return token < 0 ? 0 : token < size ? token : size - 1;
}

/* What becomes of a draft, and what is known of a block after verification. */
enum { KERN_DRAFT_DROPPED, KERN_DRAFT_ACCEPTED, KERN_DRAFT_REPLACED }; /* dropped: not reached */
enum { KERN_BLOCK_ACCEPTED, KERN_BLOCK_FINAL, KERN_BLOCK_LENGTH, KERN_BLOCK_COUNTS };

/* Verifies blocks of drafts, each by itself. Block b has drafts node[b] .. node[b + 1] - 1, numbered 0.. within the
 * block. Draft n follows draft parent[n] < n, or the verified prefix if that is -1. Drafts of one parent are in the
 * order in which they were drawn: the first from q, each later one from q without its elder siblings. Site n of a block
 * has the laws of what follows draft n - 1, site 0 those of what follows the prefix; block b's sites begin at number
 * node[b] + b.
 *
 * A block is walked down from the prefix. Among siblings, draft k is tested against what the rejection of the elder
 * ones left of p (SJD-PAC Eq. 7 and 8). The first path that ends without a child gets a bonus token from p, if the site
 * has one; a rejection gets a replacement from the residual. With go_on the first path (first siblings only) is
 * verified further behind that. Draws and tests have the addresses (seed, image, position + depth, step), purposes
 * VERIFY (block: the sibling's number) and RESIDUAL. If rounding leaves nothing of a residual, the draft is accepted;
 * with NaN in p it is rejected, and its replacement is -1. */
struct kern_block_job {
    int size, blocks;
    const int *node;           /* host [blocks + 1] */
    const int *draft, *parent; /* host [node[blocks]] */
    const float *log_p;        /* rows of `size` */
    const int *p;              /* host [sites] the row of a site's p; -1: none, so there is no bonus token */
    const float *log_q;        /* rows of `size` */
    const int *q;              /* host [sites] the row of a site's q; -1: each draft there was the only token that it
                                * could be (a tree of the most likely tokens, a neighbour's copy) */
    int positions;             /* the depth of the deepest block + 1 */
    const kern_discrete_rule *rule; /* host [blocks][positions] by depth, 0 for children of the prefix */
    const int *neighbours; /* [size][neighbour_count] nearest tokens, itself first; NULL if no rule needs them */
    int neighbour_count;
    int go_on;                   /* 1: CONTINUE */
    const kern_address *address; /* host [blocks] of depth 0; depth d has position + d */
    int *verdict;                /* [drafts] KERN_DRAFT_... */
    int *id;                     /* [blocks][positions] the tokens by depth; -1: no law gave one a probability (NaN) */
    /* host [blocks] the row of id [..][positions] that a block's tokens go to, so that a recording puts the tokens of
     * each replay in another place; NULL: the block's number. */
    const int *place;
    int *site;  /* [blocks][positions] the site whose p each token is a draw from; beyond the final ones the sites of
                 * the first path, whose laws a tail is drawn from anew */
    int *count; /* [blocks][KERN_BLOCK_COUNTS] accepted drafts; tokens that are final; tokens with go_on's tail */
    float *workspace; /* [blocks][2 * size]: what siblings leave of p and q */
};

#endif
