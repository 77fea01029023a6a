/* The masked engine at work: MAR's autoregressive loop over sets of tokens (Li et al. 2024). The accelerators that are
 * on change its stages through their hooks. All other stages are plain. */
#ifndef MAR_MASKED_H
#define MAR_MASKED_H

#include "mar/accel.h"
#include "mar/masked_runner.h"
#include "nets/masked_contexts.h"
#include "mar/slots.h"

typedef struct mar_masked mar_masked;

/* What an accelerator does in the loop over sets of tokens, by the stage it changes. A missing hook is NULL. `state` is
 * what create stored. With a state there is destroy. */
struct mar_masked_hooks {
    /* Creates its state, with g->target in place, and installs what it changes there. */
    mar_status (*create)(mar_masked *g, void **state, mar_err *err);
    void (*destroy)(void *state);
    size_t (*lay_out)(void *state, char *base); /* as diff_chain_lay_out */
    /* Prepares batches of `images` images and frees what was recorded for other sizes. */
    mar_status (*plan)(void *state, int images, mar_err *err);
    /* Begins a batch. g->images and g->label are set. */
    void (*begin)(void *state);
    /* Adds its statistics. */
    void (*stats)(const void *state, mar_stats *stats);
    /* Writes the effect in place of the one that follows from `exact`, unless another accelerator changes the
     * distribution. */
    void (*effect)(const void *state, mar_effect *effect);
    /* Returns a static note for the log on how it fits the model; NULL: none. */
    const char *(*warn)(const void *state);

    /* AR_STEPS: changes the random order [seq_len] of an image's tokens. */
    void (*order)(void *state, int *order);
    /* AR_STEPS: sorts the tokens that a step with `detailed` tokens predicts in g->order, the detailed ones to the
     * end. */
    void (*select)(void *state, const mar_step *step);
    /* DRAFT: notes that the step's n tokens, g->sampled, are known to the target. */
    void (*add_known_tokens)(void *state, int n);
    /* CHAIN or STATES: takes one step or several in place of mar_masked_step. */
    mar_status (*step)(void *state, mar_err *err);
};

/* An image's part of a step that images take at different steps of the plan. */
typedef struct {
    int slot;
    const mar_step *step;
    int predicted;    /* tokens that the step adds to this image */
    int cfg_branches; /* rows a token */
} mar_part;

struct mar_masked {
    const mar_masked_model *model;
    kern_queue *k;     /* the session's */
    mar_params params; /* parameters with automatic values resolved */
    int max_images;
    /* A slot's step is its next one of the plan; num_iter: done. Images that begin together have mar_masked.step. Its
     * known tokens are those known before it: as many as the plan's step has, or more if the image began with some. */
    mar_slots slots;
    int cfg_branches; /* maximum rows a token of a step: 2 with guidance, else 1 */
    int grid;         /* tokens a side; a MAR model's images are square */
    mar_step *steps;  /* [num_iter] */
    int max_tokens;   /* maximum tokens of an image in one call of the head */

    struct {
        const mar_accel *accel;
        const mar_masked_hooks *hooks; /* the accelerator's, or no hooks */
        void *state;
    } accels[MAR_ACCELS_MAX]; /* accelerators that are on, in the order of the registry */
    int accel_count;
    const mar_masked_hooks *stepper; /* the hooks with step; NULL: plain */
    void *stepper_state;
    const mar_chain_hooks *drawer; /* draws tokens; NULL: the chain */
    void *drawer_state;

    mar_runner target;
    mar_runner *draft;                /* the draft model, of stage DRAFT; NULL: none */
    mar_recordings *draft_recordings; /* [num_iter] of its steps */
    mar_recordings *recordings;       /* [num_iter] recordings of the target's steps, for batches of the planned size */
    int planned;                      /* images that were planned */
    int has_negative;                 /* 1: a model of prompts has what its second branch begins with */
    int together;                     /* 1: an accelerator that is on keeps a state of the batch */
    masked_contexts contexts;         /* passes over images at different steps; none with `together` */
    float *sampled;                   /* backend [max_images * max_tokens][token_dim] tokens drawn last */

    void *host;           /* memory of the host arrays below */
    int images;           /* images of the step: those in slots 0 .. images - 1 */
    mar_part *parts;      /* host [max_images] */
    masked_context *list; /* host [max_images] the same as contexts */
    int *label;           /* host [max_images] `classes` is unconditional */
    int *label_list;      /* host [max_images] labels of the images that begin */
    int *place;           /* host [seq_len] 0, 1, ..: positions of the tokens that an image begins with */
    int *place_slot;      /* host [seq_len] their slot */
    int **order;          /* host [max_images] -> [seq_len]: masked tokens first, known ones last */
    int *order_data;
    int step; /* next step of the images in progress; num_iter: done */
    mar_stats stats;

    /* The rows of the tokens being drawn: image after image of a step, in the order of `order`. Host [max_images *
     * max_tokens]. */
    uint64_t *row_seed;  /* noise address */
    uint64_t *row_image; /* noise address */
    int *row_slot;       /* index of the image in the batch */
    int *row_position;
    float *row_cfg;
    int *row_place; /* the token's index in `tokens` */

    mar_effect effect; /* if has_effect: an accelerator has written it */
    int has_effect;
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
/* Returns recordings i of a list, or NULL if they do not suit the number of images in progress: they are of batches of
 * the planned size. */
mar_recordings *mar_masked_recordings(const mar_masked *g, mar_recordings *list, int i);
/* Takes one autoregressive step of the target alone, for images at the same step. */
void mar_masked_step(mar_masked *g);
/* Takes one step of every unfinished image, each at its own place of the plan. */
void mar_masked_step_images(mar_masked *g);
int mar_masked_steps_left(const mar_masked *g, int slot); /* 0 of a free slot */
/* Returns the rows a token of a slot's next step: as planned, or fewer or more if its guidance is not the session's. */
int mar_masked_branches(const mar_masked *g, int slot);
/* Lists as rows first.. the `count` tokens of a slot's order from `begin` on. Returns the row behind them. */
int mar_masked_list(mar_masked *g, int slot, const mar_step *step, int begin, int count, int first);
/* Sets the target's chain to `steps` diffusion steps and cfg_branches rows a token. */
void mar_masked_use_chain(mar_masked *g, int steps, int cfg_branches);
/* Draws n tokens, rows `first`.. of the lists, in `steps` diffusion steps. Row z of the target's z is their first. */
void mar_masked_draw(mar_masked *g, int first, int n, int z, int cfg_branches, int steps, kern_recording **recording);
/* Writes the n tokens drawn, g->sampled, to the images, and adds them to the known tokens. */
void mar_masked_keep(mar_masked *g, int n, kern_recording **recording);
/* Writes the n tokens at `from`, backend [n][token_dim], to their places row_place[n]. */
void mar_masked_write_tokens(mar_masked *g, const float *from, int n);

#endif
