/* The masked engine at work: MAR's autoregressive loop over sets of tokens (Li et al. 2024). The accelerators that are
 * on change its stages through their hooks. All other stages are plain. */
#ifndef MAR_MASKED_H
#define MAR_MASKED_H

#include "mar/masked/accel.h"

struct mar_masked {
    const mar_masked_model *model;
    kern_queue *k;     /* the session's */
    mar_params params; /* parameters with automatic values resolved */
    int max_images;
    int cfg_branches; /* maximum rows a token of a step: 2 with guidance, else 1 */
    int grid;         /* tokens a side */
    mar_step *steps;  /* [num_iter] */
    int max_tokens;   /* maximum tokens of an image in one call of the head */

    struct {
        const mar_accel *accel;
        void *state;
    } accels[MAR_ACCELS_MAX]; /* accelerators that are on, in the order of the registry */
    int accel_count;
    const mar_accel *drawer, *stepper; /* the accelerator with the hook draw, or step; NULL: plain */
    void *drawer_state, *stepper_state;

    mar_runner target;
    mar_recordings *recordings; /* [num_iter] recordings of the target's steps, for batches of the planned size */
    float *tokens;              /* backend [max_images][seq_len][token_dim] tokens generated so far */
    float *sampled;             /* backend [max_images * max_tokens][token_dim] tokens drawn last */

    /* Batch in progress. */
    int images;
    uint64_t first_image;
    int *label;  /* host [max_images] `classes` is unconditional */
    int **order; /* host [max_images] -> [seq_len]: masked tokens first, known ones last */
    int *order_data;
    int step;              /* next step; num_iter: done */
    uint8_t *token_status; /* host [max_images][seq_len] mar_token_fate */
    int *ar_step;          /* host [max_images][seq_len] autoregressive step that made the token */
    int *staleness; /* host [max_images][seq_len] steps by which the z of the token's draft was stale; 0: no such draft
                     */
    mar_stats stats;

    /* The rows of the tokens being drawn: image after image of a step, in the order of `order`. Host [max_images *
     * max_tokens]. */
    uint64_t *row_seed;  /* noise address */
    uint64_t *row_image; /* noise address */
    int *row_slot;       /* index of the image in the batch */
    int *row_position;
    float *row_cfg;
    int *row_place; /* the token's index in `tokens` */

    char guarantee[256]; /* "" unless an accelerator has described itself */
};

/* Returns the state of an accelerator; NULL if it is off. */
void *mar_masked_state(const mar_masked *g, const mar_accel *accel);
/* Lists the respacings of the head's chain that the plan's steps need in specs [2 * num_iter]. Returns their number. */
int mar_masked_specs(const mar_masked *g, diff_spec *specs);
/* Returns all images of the batch. */
mar_batch mar_masked_batch(const mar_masked *g);
/* Returns the first step of the plan with as many tokens and diffusion steps as step i. Draws of such steps share
 * recordings. */
int mar_masked_first_alike(const mar_masked *g, int i);
/* Takes one autoregressive step of the target alone. */
void mar_masked_step(mar_masked *g);
/* Writes the n tokens at `from`, backend [n][token_dim], to their places row_place[n]. */
void mar_masked_write_tokens(mar_masked *g, const float *from, int n);

#endif
