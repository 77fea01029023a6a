/* One model at work in a session: its transformer passes and its head, with the memory they need. A session has one for
 * the target and, if it speculates with a draft model, one for the draft. */
#ifndef MAR_RUNNER_H
#define MAR_RUNNER_H

#include "diffusion/chain.h"
#include "mar/steps.h"
#include "mar/transformer.h"

/* The transformer passes of an autoregressive step: mar_plain_passes, or those of a way that computes less. `state` is
 * the way's own. */
typedef struct {
    /* Prepares passes of the step's shape for so many images, so that they allocate nothing. */
    mar_status (*plan)(const void *state, const mar_masked_model *m, int images, int conditions, const mar_step *step,
                       mar_err *err);
    void (*encode)(void *state, const mar_masked_model *m, mar_workspace *w, const mar_pass *p, const mar_step *step);
    void (*decode)(void *state, const mar_masked_model *m, mar_workspace *w, const mar_pass *p, const mar_step *step,
                   float *z, const int *z_index);
    /* Whether decode of this step reads results back from the backend, and so cannot be recorded. */
    int (*reads)(const void *state, const mar_step *step);
    /* Arithmetic, 2 per multiply-add. */
    double (*encode_flop)(const void *state, const mar_masked_model *m, int images, int conditions,
                          const mar_step *step);
    double (*decode_flop)(const void *state, const mar_masked_model *m, int images, int conditions,
                          const mar_step *step);
} mar_passes;

extern const mar_passes mar_plain_passes;

typedef struct {
    const mar_masked_model *model;
    int max_images;
    int conditions; /* 2 with guidance, else 1 */
    int max_tokens; /* an image's tokens in one call of the head, at most */
    mar_workspace work;
    int *z_index; /* host [sequences * max_tokens] where each condition goes */
    int *labels;  /* host [sequences] */
    const mar_passes *passes;
    void *passes_state;
    diff_chain chain;
    double encoder_flop, decoder_flop, head_flop; /* since mar_runner_begin */
    double encoder_s, decoder_s, head_s;          /* since mar_runner_begin; complete when the backend has finished */

    /* Backend memory: mar_runner_lay_out, which also sets the arrays of work and chain. */
    float *token_rows; /* [images][seq_len][D] */
    float *class_rows; /* [sequences][buffer][D] */
    float *z;          /* [conditions][images * max_tokens][D] */
} mar_runner;

/* What was recorded of work of one shape (kern_core_ops.replay). */
typedef struct {
    kern_recording *encode, *decode;
    kern_recording *draw[2]; /* a step's calls of the head */
    kern_recording *learn;
} mar_recordings;

/* The images in progress, or one of them. */
typedef struct {
    int images;
    const int *const *order; /* host [images][seq_len]: masked first, known last */
    const float *token_rows; /* mar_pass's; NULL: the runner's */
    const float *class_rows; /* mar_pass's; NULL: the runner's */
} mar_batch;

/* `max_tokens`: tokens an image in one call of the head, at most. specs [n]: the chains it runs, no two with the same
 * number of steps. The passes are the plain ones. */
mar_status mar_runner_create(const mar_masked_model *model, int max_images, int conditions, int max_tokens,
                             const diff_spec *specs, int n, float temperature, mar_runner *out, mar_err *err);
void mar_runner_free(mar_runner *r);
/* As diff_chain_lay_out. */
size_t mar_runner_lay_out(mar_runner *r, char *base);
void mar_recordings_free(kern *k, mar_recordings *recordings); /* and leaves them empty */
/* Prepares passes of this step's shape for so many images, so that they allocate nothing. */
mar_status mar_runner_plan(mar_runner *r, int images, const mar_step *step, mar_err *err);
/* Prepares mar_runner_learn for so many tokens. */
mar_status mar_runner_plan_learn(mar_runner *r, int tokens, mar_err *err);
/* Prepares the head, with the number of diffusion steps in use (diff_chain_use). */
mar_status mar_runner_plan_head(mar_runner *r, int tokens, mar_err *err);

/* Starts images of these labels, host [images] (class numbers; `classes` is unconditional). */
void mar_runner_begin(mar_runner *r, int images, const int *label);
/* The conditions z of the tokens that `step` predicts: image after image in the order of `order`, conditional ones at
 * r->z + first rows, unconditional ones at r->z + total + first rows. `total` is the number of tokens the head will
 * draw at once; a plain step has first 0 and total images * predicted. A step with `detailed` tokens has these too, but
 * its z are two such lists, for two draws: that of the detailed tokens, then that of the others. recordings: where to
 * record it, those of calls with the same step, first, total and number of images; NULL: nowhere. */
void mar_runner_predict(mar_runner *r, const mar_batch *batch, const mar_step *step, int first, int total,
                        mar_recordings *recordings);
/* Makes n tokens known to later passes: backend tokens [n][token_dim], image and position host [n]. recording: that of
 * calls with the same tokens and n, or NULL. */
void mar_runner_learn(mar_runner *r, const float *tokens, int n, const int *image, const int *position,
                      kern_recording **recording);

/* Tokens drawn together: noise addresses and guidance, host [count]; conditions in the runner's z. */
typedef struct {
    int count;
    uint64_t seed;
    const uint64_t *image;
    const int *position;
    const float *cfg;
} mar_draw;

/* Runs the head's chain from index `first` (from fresh x_T at the top) to `last`: x backend [count][token_dim]. `row`:
 * where in the runner's z its conditions begin. recording: that of calls that differ in image, position and cfg at
 * most, or NULL. */
void mar_runner_draw(mar_runner *r, int row, const mar_draw *d, int first, int last, float *x, diff_trace *trace,
                     kern_recording **recording);

double mar_now(void); /* seconds from some fixed point */

#endif
