/* Tests whether tokens of whole sessions are draws from the target's distributions; and sessions with planted faults.
 *
 * Given the tokens before it, each token of an image is a draw from the target's distribution there. law_add recomputes
 * these distributions from the finished images. It runs one pass over an image's tokens, without rounds, drafts or the
 * cache. Under them the sum over all tokens of g(token) - E[g] is a martingale of known variance. This holds for every
 * g of the distribution and the tokens before. */
#ifndef TESTS_DISCRETE_LAW_H
#define TESTS_DISCRETE_LAW_H

#include "mar/raster.h"
#include "mar/raster_draft.h"
#include "tests/support/support.h"

typedef enum {
    LAW_UNCHANGED,
    LAW_UNGUIDED_DRAFT, /* a correct control: the draft's distributions are unguided */
    LAW_SWAPPED,        /* accepts with q/p */
    LAW_NO_RESIDUAL,    /* replacements are drawn from p */
    LAW_UNFILTERED_Q,   /* a draft's q ignores the top-k and top-p of its draw */
    LAW_STALE_Q,        /* Jacobi: a draft's q is its position's q of the previous round */
    LAW_SIBLINGS_Q,     /* q without elder siblings is not normalised */
    LAW_POINT_AS_LAW,   /* chains of the likeliest tokens are verified as random draws */
    LAW_KEPT_SLOT,      /* chains: a rejected draft's keys and values stay in the cache */
    LAW_MUTANTS
} law_mutant;

const char *law_mutant_name(law_mutant m);

/* Opens a session of a model with that mutant on the CPU; law_close_session frees it. Only one mutant may exist at a
 * time. Its model and draft must not be in another session meanwhile. */
mar_session *law_session(mar_model *model, const mar_params *p, int batch, law_mutant m);
void law_close_session(mar_session *s);
/* Generates a batch with the session: tokens [images][seq_len]. */
void law_generate(mar_session *s, uint64_t first_image, const int *label, int images, float *tokens);

/* Statistics of tokens against the distributions that they should have. */
typedef struct {
    long tokens;
    long impossible;    /* tokens whose probability is 0 */
    long drafted;       /* tokens whose place had drafts */
    double likely[2];   /* sum of g(token) - E[g] and its variance, for g = log p */
    double favoured[2]; /* the same for q / (p + q), where q is the distribution of the token's drafts */
    double repeated[2]; /* the same for "equal to the token before" */
    long uniform[16];   /* tokens by sixteenth of their cumulative probability */
} law_sums;

/* Adds the tokens float [images][seq_len] of the last law_generate, with its labels and parameters p. */
void law_add(const mar_model *model, const mar_params *p, const int *label, int images, const float *tokens,
             law_sums *sums);

/* p-values: likely, favoured and repeated of their sums, uniform of chi-square. worst is the least, corrected for their
 * number, and 0 if a token is impossible. */
typedef struct {
    double likely, favoured, repeated, uniform, worst;
    double shift; /* not a p-value: error of the mean of q / (p + q) that makes `worst` 1e-4 */
} law_test;
law_test law_judge(const law_sums *sums);

#endif
