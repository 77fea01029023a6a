/* Probabilities of discrete tokens and verification of drafts: the jobs of the operations (kernels/ops.h), and the
 * formulas host and device share.
 *
 * A distribution is a row of log probabilities float [size], normalised, -INFINITY for 0. A job refers to distributions
 * by their rows in one array. So only tokens leave the device, never the target's or a draft model's probabilities. */
#ifndef KERNELS_DISCRETE_H
#define KERNELS_DISCRETE_H

#include "kernels/gaussian.h"
#include "kernels/ops.h"

#include <math.h>

/* Turns logits into log probabilities as LlamaGen's generate.py does: guidance u + (c - u) * cfg, then the temperature,
 * then top-k, then top-p. */
struct kern_probs_job {
    int rows, size;
    int conditions;      /* 1, or 2 with guidance: row rows + r of logits is then the unconditional one of row r */
    const float *logits; /* [conditions][rows][size] */
    const float *cfg;    /* host [rows] guidance scale; 1 or less: conditional logits alone. Unused with one
                          * condition */
    float temperature;   /* logits are divided by max(temperature, 1e-5); 0: a point at the first largest logit */
    int top_k;           /* 0: all; else tokens below the k-th largest logit get probability 0; ties with it stay */
    float top_p;      /* below 1: tokens, sorted by falling probability, get 0 once the sum before them passes p. Ties
                       * are ordered by token id */
    float *log_probs; /* rows of `size`. A NaN logit makes the whole row NaN */
    const int *place; /* host [rows] row of log_probs that row r writes */
};

/* Draws candidates, without replacement within a row. The uniform of a row's candidate k is block k of purpose STEP at
 * the row's address. A draw is the first token id at which the running sum of probabilities exceeds uniform * total.
 * With `race` the candidates are the tokens of the least times E / p, least first, in place of that: see
 * kern_race_time. */
struct kern_draw_job {
    int rows, size;
    const float *log_probs;      /* rows of `size` */
    const int *source;           /* host [rows] row of log_probs that row r draws from */
    int max_draws;               /* maximum number of candidates of a row */
    int race;                    /* 1: by the times of the row's position; max_draws <= KERN_RACE_MOST, given 0 */
    const int *given;            /* host [rows] candidates row r already has */
    const int *wanted;           /* host [rows] candidates row r shall have, given .. max_draws */
    const int *earlier;          /* host [rows][max_draws] candidates drawn before */
    const kern_address *address; /* host [rows] */
    int *id;                     /* [rows][max_draws] all candidates */
    int *drawn;                  /* [rows] number of candidates; below `wanted` if the distribution has no more
                                  * tokens */
};

/* An acceptance criterion for discrete tokens as data (specdec/verifier.h). A draft x from q is accepted with
 * probability f(x) = min(1, omega p(x)/q(x)), or with neighbours f(x) = min(1, p(A)/q(x)). A is the set of tokens
 * nearest to x, x first. A's other tokens have less than bound + bound_p * p(x) in total (LANTERN, LANTERN++). A
 * rejected draft is replaced by a draw from Norm[p - q f]+. With `exclude_neighbours` it is drawn from Norm[p_A - q]+,
 * where p_A is p without the tokens of A. That is LANTERN's own resampler: p times [1 - q/p]+ outside A. The rule is
 * exact to p with omega 1 and no neighbours. */
typedef struct {
    double log_omega;
    int neighbours;         /* size of the neighbourhood searched, x included; 0: no neighbours */
    double bound, bound_p;  /* bound on the neighbours' probability */
    int exclude_neighbours; /* 1: LANTERN's own resampler */
} kern_discrete_rule;

/* --- formulas for one token; p and q are its probabilities ------------------------------------------------------ */

/* Returns f before it is capped at 1. mass is omega * p, or p(A) with neighbours; 0/0 = 1. A draft is accepted if its
 * uniform is below f; a NaN never accepts. */
KERN_FN double kern_draft_accept(double mass, double q)
{
    return q > 0 ? mass / q : mass >= 0 && q == 0 ? 1 : mass + q;
}

/* Returns 1 if the draft is accepted; 0 if f is NaN. */
KERN_FN int kern_draft_passes(double f, double uniform)
{
    return uniform < f;
}

/* Returns omega of a residual. With neighbours p - q f = p - min(q, p(A)) is positive only where q < p <= p(A). There
 * it is p - q for any A, so omega is 1. */
KERN_FN double kern_residual_omega(const kern_discrete_rule *rule)
{
    return rule->neighbours ? 1 : exp(rule->log_omega);
}

/* Returns [p - q f]+, a token's weight in the residual. With `exclude_neighbours` the caller gives tokens of the
 * rejected draft's A the weight 0. */
KERN_FN double kern_residual_weight(double p, double q, double omega)
{
    const double accepted = omega * p < q ? omega * p : q;
    return accepted > p ? 0 : p - accepted;
}

/* Returns 1 if a rejected draft of probability p is kept because the residual, whose sum is `total`, is empty. Without
 * the tokens of A it also holds where A has all of p and the draft has none. */
KERN_FN int kern_draft_stays(const kern_discrete_rule *rule, double p, double total)
{
    return total == 0 && (p > 0 || (rule->neighbours && rule->exclude_neighbours));
}

/* Returns the bound on the total probability of A's tokens besides x; p is that of x. */
KERN_FN double kern_neighbour_bound(const kern_discrete_rule *rule, double p)
{
    return rule->bound + rule->bound_p * p;
}

/* Returns the table row nearest to the number x, in 0..size-1; 0 for NaN. */
KERN_FN int kern_token_row(float x, int size)
{
    return x > 0 ? x < (float)size ? (int)x : size - 1 : 0;
}

/* Clamps a token id to 0..size-1. */
KERN_FN int kern_token_within(int token, int size)
{
    return token < 0 ? 0 : token < size ? token : size - 1;
}

/* Returns the table's row that `embed` reads for a place (kernels/ops.h). */
KERN_FN int kern_embedded_row(const int *token, int place, int size)
{
    return kern_token_within(place < 0 ? -1 - place : token[place], size);
}

/* --- a race among tokens ------------------------------------------------------------------------------------------ */

/* A piece of tokens has one Philox block for every 4: word w of lane l belongs to token 16 w + l of the piece. So lanes
 * are neighbours, for a vector. */
enum { KERN_RACE_PIECE = 64, KERN_RACE_LANES = 16, KERN_RACE_MOST = 8, KERN_RACE_TOKENS = 1 << 18 };

/* Returns a token's time E / p, with E exponential of mean 1. Among tokens with independent E, token x has the least
 * time with probability p(x), and the order of the times is that of draws without replacement. -log E is a Gumbel
 * variable: the least time is the largest log p + g. E depends on seed, image, position and token only, so two
 * distributions of a position share it. It has 64 bits at the address without its step: steps 0 and 1 have the high and
 * the low words. Small E, which decide between unlikely tokens, keep the precision of a double. */
KERN_ONCE_FN double kern_race_time(const kern_address *a, int token, double log_p)
{
    const uint32_t block = (uint32_t)(token / KERN_RACE_PIECE * KERN_RACE_LANES + token % KERN_RACE_LANES);
    const int word = token / KERN_RACE_LANES % 4;
    uint32_t high[4], low[4];
    kern_random_words(a->seed, KERN_NOISE_RACE, a->image, a->position, 0, block, high);
    kern_random_words(a->seed, KERN_NOISE_RACE, a->image, a->position, 1, block, low);
    const double v = ((double)((uint64_t)high[word] << 32 | low[word]) + 0.5) * 0x1p-64;
    return kern_divide(-kern_log1p(-(v < 1 ? v : 1 - 0x1p-53)), kern_exp(log_p));
}

/* Returns whether a token whose high word is `word` can have a time below `limit`. E is at least word / 2^32, so no
 * logarithm is needed. The limit has room for the rounding of floats. */
KERN_FN int kern_race_is_open(uint32_t word, float p, float limit)
{
    return !((float)(int32_t)(word >> 1) * 0x1p-31f > limit * p);
}

/* Returns the limit of kern_race_is_open for times below `time`. */
KERN_FN float kern_race_limit(double time)
{
    return time < 1e38 ? (float)(time * 1.0001) : 1e38f;
}

/* First limit of a race over all tokens, above which the least time of a distribution is once in e^32. If too few
 * tokens are below it, the race is run again without a limit. */
#define KERN_RACE_FIRST 32.0

/* Verdict on a draft, and counts per block after verification. */
enum { KERN_DRAFT_DROPPED, KERN_DRAFT_ACCEPTED, KERN_DRAFT_REPLACED }; /* dropped: not reached */
enum { KERN_BLOCK_ACCEPTED, KERN_BLOCK_FINAL, KERN_BLOCK_LENGTH, KERN_BLOCK_COUNTS };

/* Verifies blocks of drafts, each independently. Block b has drafts node[b] .. node[b + 1] - 1, numbered from 0 within
 * the block. Draft n follows draft parent[n] < n, or the verified prefix if parent[n] is -1. Siblings are in the order
 * they were drawn: the first from q, each later one from q without its elder siblings. Site n of a block has the
 * distributions after draft n - 1; site 0 those after the prefix. Block b's sites begin at number node[b] + b.
 *
 * A block is walked down from the prefix. Draft k of a group of siblings is tested against p after the rejection of its
 * elder siblings (SJD-PAC Eq. 7 and 8). The first path that ends without a child gets a bonus token from p, if the site
 * has one. A rejection gets a replacement from the residual. With past_rejection the first path (first siblings only)
 * is verified beyond that point. Draws and tests use the addresses (seed, image, position + depth, step), purposes
 * VERIFY (block: the sibling's number) and RESIDUAL. If rounding leaves an empty residual, the draft is accepted. A NaN
 * in p rejects it, with replacement -1. */
struct kern_block_job {
    int size, blocks;
    const int *node;           /* host [blocks + 1] */
    const int *draft, *parent; /* host [node[blocks]] */
    const float *log_p;        /* rows of `size` */
    const int *p;              /* host [sites] row of a site's p; -1: none, so no bonus token */
    const float *log_q;        /* rows of `size` */
    const int *q;              /* host [sites] row of a site's q; -1: each draft there was the only possible token (a
                                * tree of the most likely tokens, a neighbour's copy) */
    int positions;             /* depth of the deepest block + 1 */
    const kern_discrete_rule *rule; /* host [blocks][positions] by depth; 0 for children of the prefix */
    const int *neighbours; /* [size][neighbour_count] nearest tokens, itself first; NULL if no rule needs them */
    int neighbour_count;
    int past_rejection;          /* 1: CONTINUE, verifies beyond the first rejection */
    const kern_address *address; /* host [blocks] address at depth 0; depth d has position + d */
    int *verdict;                /* [drafts] KERN_DRAFT_... */
    int *id;                     /* [blocks][positions] tokens by depth; -1: p had a NaN */
    /* host [blocks] row of id [..][positions] for a block's tokens, or NULL: the block's number. Lets each replay of a
     * recording write elsewhere. */
    const int *place;
    int *site;  /* [blocks][positions] site whose p each token was drawn from. Beyond the final tokens: sites of the
                 * first path, from whose p a tail is redrawn */
    int *count; /* [blocks][KERN_BLOCK_COUNTS] accepted drafts; final tokens; tokens including past_rejection's tail */
    float *workspace; /* [blocks][2 * size]: the remains of p and q among siblings */
};

#endif
