/* A masked model at work in a session: its towers (nets/masked_runner.h), its head's chain, and the plan of its steps
 * (official sample_tokens). A session has one for the target and, if it speculates with a draft model, one for the
 * draft. */
#ifndef MAR_MASKED_RUNNER_H
#define MAR_MASKED_RUNNER_H

#include "diffusion/chain.h"
#include "mar/core/engine.h"
#include "nets/between.h"
#include "nets/masked_runner.h"

/* --- the model ---------------------------------------------------------------------------------------------------- */

typedef struct {
    mar_model base;
    masked_net net;
    diff_head head;
    between_model between; /* a model of prompts: its language model; language NULL: images are of classes */
    diff_process process;  /* of the head's chain */
} mar_masked_model;

static inline const mar_masked_model *mar_masked_model_of(const mar_model *model)
{
    return (const mar_masked_model *)model;
}

/* Implement the engine's load and unload (mar/core/engine.h). */
mar_status mar_masked_load(mar *m, kern_queue *k, const wt_file *f, const struct family_facts *facts, mar_model **out,
                           mar_err *err);
void mar_masked_unload(mar_model *model);

/* --- the steps ---------------------------------------------------------------------------------------------------- */

typedef struct mar_step {
    int known;          /* tokens known before the step: order[seq_len-known .. seq_len-1] */
    int predicted;      /* tokens it predicts, at least one: order[seq_len-known-predicted .. seq_len-known-1] */
    float cfg;          /* guidance scale inside the head, with the session's guidance */
    float share;        /* share of the guidance: 1 is all of it, 0 none */
    int cfg_branches;   /* rows a token of its passes and its head: 2, or 1 if the scale means no guidance */
    int sampling_steps; /* diffusion steps of the head */

    int detailed;       /* the last `detailed` predicted tokens get detailed_steps */
    int detailed_steps; /* diffusion steps of the detailed tokens */

    int number;     /* index of the step in the plan */
    int reads_back; /* 1: its passes read results back from the backend, so they cannot be recorded whole */
} mar_step;

/* Fills known, predicted, cfg and cfg_branches of steps[num_iter], 1 <= num_iter <= seq_len (official sample_tokens).
 * All else is 0. */
void mar_steps_plan(int num_iter, int seq_len, float cfg, mar_cfg_schedule schedule, mar_step *steps);
/* Plans n steps from `known` tokens to `until` known tokens. */
void mar_steps_plan_part(int n, int known, int until, int seq_len, float cfg, mar_cfg_schedule schedule,
                         mar_step *steps);
/* Returns the step's guidance scale for an image whose guidance is cfg. */
float mar_step_scale(const mar_step *step, float cfg);
/* Returns the branches of a step with this scale: 1 if it is exactly 1, where the guided prediction is the conditional
 * one. */
int mar_cfg_branches(float cfg);

/* --- the runner --------------------------------------------------------------------------------------------------- */

typedef struct {
    const mar_masked_model *model;
    masked_runner net;
    between_runner *between; /* of a model of prompts, else NULL */
    diff_chain chain;
    double head_flop; /* since mar_runner_reset */
    double head_s;    /* seconds since then; complete when the backend has finished */
} mar_runner;

/* Recordings of a step's work (kern_core_ops.replay). */
typedef struct {
    masked_recordings net;
    kern_recording *draw[2]; /* calls of the head */
} mar_recordings;

/* The images in progress, or one of them. */
typedef struct {
    int images;
    const int *const *order; /* host [images][seq_len]: masked first, known last */
    int first;               /* index of its first image in the runner's batch */
} mar_batch;

/* Tokens drawn together: noise addresses and guidance scales, host [count]. Their z is in the runner's z. */
typedef struct {
    int count;
    const uint64_t *seed;
    const uint64_t *image;
    const int *position;
    const float *cfg;
} mar_draw;

/* Creates a runner on queue k, with the plain passes. `max_tokens` is the maximum number of an image's tokens in
 * one call of the head. specs [n] are the head's chains, no two with the same number of steps. k and model must
 * outlive it. */
mar_status mar_runner_create(kern_queue *k, const mar_masked_model *model, int max_images, int cfg_branches,
                             int max_tokens, const diff_spec *specs, int n, float temperature, mar_runner *out,
                             mar_err *err);
void mar_runner_free(mar_runner *r);
/* Lays out the backend memory at base, as diff_chain_lay_out. */
size_t mar_runner_lay_out(mar_runner *r, char *base);
void mar_recordings_free(kern_queue *k, mar_recordings *recordings); /* leaves them empty */
/* Prepares this step's passes for this many images, and adding its tokens, so that they allocate nothing. */
mar_status mar_runner_plan(mar_runner *r, int images, const mar_step *step, mar_err *err);

/* Resets times and arithmetic. */
void mar_runner_reset(mar_runner *r);
/* Gives n images in slots, host slot [n], their prompts, if the model has prompts. An image without one keeps that of
 * the image before it in its slot, or has none. */
void mar_runner_set_prompts(mar_runner *r, const int *slot, const mar_image *images, int n);
/* Resets times and arithmetic, and starts images 0 .. images - 1 with these labels, as masked_runner_admit does. */
void mar_runner_begin(mar_runner *r, int images, const int *label);
/* Computes z of the tokens that `step` predicts, image after image in the order of `order`. Conditional rows begin at
 * row `first` of r->net.z, unconditional ones at row total + first. `total` is the number of tokens that the head will
 * draw at once; a plain step has first 0 and total images * predicted. A step with `detailed` tokens has two such lists
 * of z, for two draws: the detailed tokens, then the others. `recordings` are those of calls with the same step, first,
 * total and number of images; NULL records nothing. */
void mar_runner_predict(mar_runner *r, const mar_batch *batch, const mar_step *step, int first, int total,
                        mar_recordings *recordings);
/* Runs the head's chain from index `first` to `last`, with fresh x_T if `first` is the top. Writes x backend
 * [count][token_dim]. `row` is the first row of its z in the runner's z. `recording` is that of calls that differ at
 * most in seed, image, position and cfg, or NULL. */
void mar_runner_draw(mar_runner *r, int row, const mar_draw *d, int first, int last, float *x, diff_trace *trace,
                     kern_recording **recording);

#endif
