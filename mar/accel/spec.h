/* Speculation across tokens (Wang et al., "Continuous Speculative Decoding for Autoregressive Image Generation"). The
 * draft model drafts a block of autoregressive steps, and the target verifies it.
 *
 * A round, for each image:
 *   1. The draft model makes up to gamma steps, each in the context of the tokens before it.
 *   2. The target's passes give z of all drafted tokens. In context prefix that is one pass, in the context of the
 *      verified tokens. The result is the process of coarser steps. In context full it is a pass a step, in the context
 *      of the tokens before it.
 *   3. One run of the target's head over all drafts gives p at one index of the chain.
 *   4. Each draft's state at that index is verified. From the verified states the target's head continues to the
 *      tokens.
 * All of this runs on the backend; it reports once a round. In context full the first step with a replaced token is the
 * last that counts. Later ones were drafted after another token. */
#ifndef MAR_ACCEL_SPEC_H
#define MAR_ACCEL_SPEC_H

#include "mar/accel/draft.h"
#include "specdec/continuous.h"

/* Rows of a block come image after image. Within an image they follow `order`, so the last step's tokens come first.
 * The engine's lists (row_image, ...) describe the same rows. */
typedef struct {
    mar_masked *g;
    mar_draft *draft;
    spec_continuous block; /* the verifier */
    int prefill;           /* steps of the target alone */

    int *begin;          /* host [images] first step of an image's block */
    int *length;         /* host [images] steps of its block; 0: the image is finished */
    int *first;          /* host [images] first row of its block */
    int rows;            /* of all blocks */
    int *row_step;       /* host [rows] autoregressive step */
    uint8_t *row_status; /* host [rows] mar_token_status; TARGET: not reached */

    /* Host [rows]: numbers and lists of the rows of one draft step, or of those that stay. */
    int *row, *slot, *position;
    uint64_t *seed; /* of the draft's noise */
    uint64_t *image;
    float *cfg;

    spec_distributions step_q; /* of the rows of one draft step, in their order; backend memory, from lay_out */
} mar_speculation;

extern const mar_accel mar_accel_spec; /* its state is a mar_speculation */

#endif
