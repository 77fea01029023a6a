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
#ifndef MAR_WAYS_SPEC_H
#define MAR_WAYS_SPEC_H

#include "mar/ways/draft.h"
#include "specdec/verifier.h"

/* What one of the models says of drafted tokens, on the backend. */
typedef struct {
    float *mean;    /* [rows][token_dim] of the state after the index that is compared */
    float *log_std; /* [rows][token_dim] of that state */
    double *path;   /* [rows] sum of log std over the noisy steps above the index, if the method's rule asks for it */
} mar_laws;

/* What came of a block, `rows` of it in use; in one piece, so that one transfer brings it to the host. */
typedef struct {
    float *shift;        /* [rows][token_dim] what a row's token became minus what it was to the draft */
    int *replaced;       /* [rows] kern_verify_job */
    int *tries;          /* [rows] kern_verify_job */
    int *first_replaced; /* [images] the first step with a replaced token, by its number in the image */
} mar_verdicts;

/* The rows of a block come image after image. Within an image they follow `order`, so the last step's tokens come
 * first. The engine's lists (row_image, ...) describe the same rows. */
typedef struct {
    mar_masked *g;
    mar_draft *draft;
    const spec_method *method;
    kern_gaussian_rule rule; /* the method's, with its parameters */
    int index;               /* of the chain's step whose laws are compared: 1, the last noisy one, or 0 */
    int prefill;             /* steps of the target alone */
    uint64_t draft_seed;     /* of the draft's noise: the target's own if they are aligned */

    int *begin;        /* host [images]: the first step of an image's block */
    int *length;       /* host [images]: the steps of its block; 0: the image is finished */
    int *first;        /* host [images]: the first row of its block */
    int rows;          /* of all blocks */
    int *row_step;     /* host [rows]: autoregressive step */
    uint8_t *row_fate; /* host [rows]: mar_token_fate; TARGET: not reached */
    float *report;     /* host: a round's verdicts (mar_verdicts) */

    /* The rows of one draft step, or those that stay: host [rows], their numbers and their lists. */
    int *row, *slot, *position;
    uint64_t *image;
    float *cfg;

    /* Backend memory: lay_out. */
    mar_laws p;      /* of the target */
    mar_laws q;      /* of the draft */
    mar_laws step_q; /* of the rows of one draft step, in their order */
    float *state; /* [rows][token_dim] the draft's state after the index; verification overwrites it with the result */
    float *token; /* [rows][token_dim] the token the draft made of it */
    float *verdicts; /* mar_verdicts */

    double shift_sum; /* of squared differences, per channel, between accepted drafts' tokens and what they became */
} mar_speculation;

extern const mar_way mar_way_spec; /* its state is a mar_speculation */

#endif
