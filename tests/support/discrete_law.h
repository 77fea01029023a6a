/* Whether tokens of whole sessions are draws from the target's distributions, and sessions that are wrong on purpose.
 *
 * Given the tokens before it each token of an image is a draw from the target's distribution there. law_add computes
 * these distributions anew, from the finished images: one pass over all tokens of an image, which knows nothing of
 * rounds, drafts and what is in the cache. Under them the sum over all tokens of g(token) - E[g] is a martingale whose
 * variance is known, for whatever g of the distribution and of the tokens before. */
#ifndef TESTS_DISCRETE_LAW_H
#define TESTS_DISCRETE_LAW_H

#include "llamagen/engine.h"
#include "tests/support/support.h"

typedef enum {
    LAW_UNCHANGED,
    LAW_UNGUIDED_DRAFT, /* a control, which is right: the draft's distributions are made without guidance */
    LAW_SWAPPED,        /* accepts with q/p */
    LAW_NO_RESIDUAL,    /* replacements are draws from p */
    LAW_UNFILTERED_Q,   /* a draft's q ignores the top-k and top-p that it was drawn with */
    LAW_STALE_Q,        /* Jacobi: a draft's q is the one that its position had in the round before */
    LAW_SIBLINGS_Q,     /* q without elder siblings is not normalised */
    LAW_POINT_AS_LAW,   /* chains of the likeliest tokens are verified as if they had been drawn */
    LAW_KEPT_SLOT,      /* chains: a rejected draft's keys and values stay in the cache for its replacement's */
    LAW_MUTANTS
} law_mutant;

const char *law_mutant_name(law_mutant m);

/* A session of a model with that mutant on the CPU; law_close_session frees it. One at a time is a mutant, and its
 * model and draft make no other session meanwhile. */
mar_session *law_session(mar_model *model, const mar_params *p, int batch, law_mutant m);
void law_close_session(mar_session *s);
/* Makes a batch with the session: tokens [images][seq_len]. */
void law_generate(mar_session *s, uint64_t first_image, const int *label, int images, float *tokens);

/* What tokens say about the distributions that they should have. */
typedef struct {
    long tokens;
    long impossible;    /* tokens whose probability is 0 */
    long drafted;       /* tokens in whose place there were drafts */
    double likely[2];   /* sum of g(token) - E[g], and its variance: of log p */
    double favoured[2]; /* of q / (p + q), where q is the distribution that the token's drafts were drawn from */
    double repeated[2]; /* of "the same as the token before" */
    long uniform[16];   /* how often its cumulative probability is in each sixteenth */
} law_sums;

/* Adds the tokens float [images][seq_len] that law_generate has just made, of these labels, with parameters p. */
void law_add(const mar_model *model, const mar_params *p, const int *label, int images, const float *tokens,
             law_sums *sums);

/* p-values: likely, favoured and repeated of their sums, uniform of chi-square; worst: the least, corrected for their
 * number, and 0 if a token is impossible. */
typedef struct {
    double likely, favoured, repeated, uniform, worst;
    double shift; /* no p-value: how far the mean of q / (p + q) has to be off for `worst` to be 1e-4 */
} law_test;
law_test law_judge(const law_sums *sums);

#endif
