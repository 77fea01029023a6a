/* The masked engine at work: MAR's autoregressive loop over sets of tokens (Li et al. 2024). The ways that are on
 * change its stages through their hooks. All other stages are plain. */
#ifndef MAR_MASKED_H
#define MAR_MASKED_H

#include "mar/ways/way.h"

enum { MAR_WAYS_MAX = 16 };

struct mar_masked {
    const mar_masked_model *model;
    kern_queue *k;     /* the session's */
    mar_params params; /* with automatic values filled in */
    int max_images;
    int conditions;  /* of a step, at most: 2 with guidance, else 1 */
    int grid;        /* tokens a side */
    mar_step *steps; /* [num_iter] */
    int max_tokens;  /* an image's tokens that one call of the head draws, at most */

    struct {
        const mar_way *way;
        void *state;
    } ways[MAR_WAYS_MAX]; /* those that are on, in the order of the registry */
    int way_count;
    const mar_way *drawer, *stepper; /* the way that has the hook draw, or step; NULL: plain */
    void *drawer_state, *stepper_state;

    mar_runner target;
    mar_recordings *recordings; /* [num_iter] what was recorded of the target's step, for batches of the planned size */
    float *tokens;              /* backend [max_images][seq_len][token_dim], made so far */
    float *sampled;             /* backend [max_images * max_tokens][token_dim], drawn last */

    /* The batch in progress. */
    int images;
    uint64_t first_image;
    int *label;  /* host [max_images]; `classes` is unconditional */
    int **order; /* host [max_images] -> [seq_len]: masked tokens first, known ones last */
    int *order_data;
    int step;      /* the next one; num_iter: done */
    uint8_t *fate; /* host [max_images][seq_len] mar_token_fate */
    int *born;     /* host [max_images][seq_len] autoregressive step */
    int *late;     /* host [max_images][seq_len] steps by which its draft's conditions were late; 0: not so drafted */
    mar_stats stats;

    /* The tokens being drawn, rows: image after image of a step, in the order of `order`. Host [max_images *
     * max_tokens]. */
    uint64_t *row_image; /* noise address */
    int *row_slot;       /* number of the image in the batch */
    int *row_position;
    float *row_cfg;
    int *row_place; /* the token's index in `tokens` */

    char guarantee[256];
};

/* The engine's part of a session whose model is of this family. */
static inline mar_masked *mar_masked_of(mar_session *s)
{
    return (mar_masked *)mar_session_generation(s);
}

/* The state of a way, or NULL if it is off. */
void *mar_masked_state(const mar_masked *g, const mar_way *way);
/* The respacings of the head's chain that the plan's steps ask for: specs [2 * num_iter]; returns how many. */
int mar_masked_specs(const mar_masked *g, diff_spec *specs);
/* All images of the batch. */
mar_batch mar_masked_batch(const mar_masked *g);
/* The first step of the plan that draws and learns as many tokens as step i, in as many diffusion steps. Its draws are
 * recorded once and serve all steps alike. */
int mar_masked_first_alike(const mar_masked *g, int i);
/* One autoregressive step of the target alone. */
void mar_masked_step(mar_masked *g);
/* Puts the n tokens at `from`, backend [n][token_dim], in their places row_place[n]. */
void mar_masked_place(mar_masked *g, const float *from, int n);

#endif
