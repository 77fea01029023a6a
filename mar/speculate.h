/* Speculation across tokens: the draft drafts a block of autoregressive steps, the target verifies it (Wang et al.,
 * "Continuous Speculative Decoding for Autoregressive Image Generation").
 *
 * A round, for each image:
 *   1. the draft makes up to gamma steps, each in the context of the tokens before it;
 *   2. the target's passes give z of all drafted tokens, in the context of the verified tokens (prefix: one pass, so
 *      what comes out is the process of coarser steps) or of the tokens before each step (full: a pass a step);
 *   3. one run of the target's head over all of them gives the laws at one index of the chain;
 *   4. each draft's state there is verified against them, and from the verified states the target's head goes on to
 *      the tokens; all of it on the backend, which reports once a round.
 * In context full the first step with a replaced token is the last that counts, as later ones were drafted behind
 * another token. */
#ifndef MAR_SPECULATE_H
#define MAR_SPECULATE_H

#include "mar/session.h"

/* What one of the models says of drafted tokens: backend [rows][token_dim]. */
typedef struct {
    float *mean, *log_std; /* the law of the state after the index that is compared */
    double *path;          /* [rows] sum of log std over the noisy steps above it, if the method's rule asks for it */
} mar_laws;

/* What came of a block, `rows` of it in use; in one piece, so that one transfer brings it to the host. */
typedef struct {
    float *shift;          /* [rows][token_dim] what a row's token became minus what it was to the draft */
    int *replaced, *tries; /* [rows] kern_verify_job */
    int *first_replaced;   /* [images] the first step with a replaced token, by its number in the image */
} mar_verdicts;

/* The rows of a block are an image's tokens after another's, an image's in the order of `order`: of the block's
 * steps, the last one's tokens first. The session's lists (row_image, ...) are theirs. */
struct mar_speculation {
    const spec_method *method;
    double parameter[SPEC_PARAMETERS_MAX];
    int index;           /* of the chain's step whose laws are compared: 1, the last noisy one, or 0 */
    int prefill;         /* steps of the target alone */
    uint64_t draft_seed; /* of the draft's noise: the target's own if they are aligned */

    int *begin, *length; /* host [images]: the first step of an image's block, and its steps; 0: it is finished */
    int *first;          /* host [images]: its first row */
    int rows;
    int *row_step;     /* host [rows]: autoregressive step */
    uint8_t *row_fate; /* host [rows]: mar_token_fate; TARGET: not reached */
    float *report;     /* host: a round's verdicts (mar_verdicts) */

    /* The rows of one draft step, or those that are kept: host [rows], their numbers and lists */
    int *row, *slot, *position;
    uint64_t *image;
    float *cfg;

    /* backend memory: mar_speculation_lay_out */
    mar_laws p, q;     /* of target and draft */
    mar_laws at_hand;  /* of the rows of one draft step, in their order */
    float *state;      /* [rows][token_dim] the draft's state after the index; verified, what it became */
    float *token;      /* [rows][token_dim] the token the draft made of it */
    float *verdicts;   /* mar_verdicts */
    float *class_rows; /* [conditions][buffer][D] of one image of one of the models */

    double shift_sum; /* of squared differences, per channel, between accepted drafts' tokens and what they became */
};

/* Root mean square difference, per channel, between the token an accepted state was to the draft and the one it became:
 * what later contexts saw, and what is there. In context full this is the error of a criterion that is exact. */
double mar_speculation_shift(const mar_session *s);

#endif
