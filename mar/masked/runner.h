/* One model at work in a session: its transformer passes and its head, with their memory. A session has one for the
 * target and, if it speculates with a draft model, one for the draft. */
#ifndef MAR_RUNNER_H
#define MAR_RUNNER_H

#include "diffusion/chain.h"
#include "mar/masked/embeddings.h"
#include "mar/masked/steps.h"

/* Input of one step's passes. Sequence s is of image s % images, and conditional if s < images. */
typedef struct {
    int sequences, images;
    int known, predicted;
    const int *const *order; /* host [images][seq_len]: masked first, known last (mar/masked/steps.h) */
    int first;               /* index of the first image in `embedded` */
    const mar_embeddings *embedded;
} mar_pass;

/* Runs the encoder over buffer and known tokens. Writes w->x [sequences][buffer + known][D], before encoder_norm. */
void mar_encode(const mar_masked_model *m, mar_workspace *w, const mar_pass *p);
/* Runs the decoder over all positions, from the encoder's output w->x. Writes z backend [sequences][predicted][D], the
 * head's condition for the predicted positions, in the order of p->order. The last block runs only on those rows.
 * z_index host [sequences * predicted] is the row of z that each goes to; NULL: row r goes to row r. */
void mar_decode(const mar_masked_model *m, mar_workspace *w, const mar_pass *p, float *z, const int *z_index);

/* Prepares passes of this shape, so that they allocate nothing. */
mar_status mar_passes_plan(kern_queue *k, const mar_masked_model *m, int sequences, int known, int predicted,
                           mar_err *err);

/* Return the arithmetic, 2 per multiply-add, without that of the embeddings. */
double mar_encode_flop(const mar_masked_model *m, int sequences, int known);
double mar_decode_flop(const mar_masked_model *m, int sequences, int known, int predicted);

/* The transformer passes of an autoregressive step: mar_plain_passes, or those of an accelerator that computes less.
 * The accelerator owns `state`. encode and decode return their arithmetic, 2 per multiply-add. A decode with
 * step->reads_back reads results back from the backend, so it cannot be recorded. */
typedef struct {
    /* Prepares passes of the step's shape for this many images, so that they allocate nothing. */
    mar_status (*plan)(kern_queue *k, const void *state, const mar_masked_model *m, int images, const mar_step *step,
                       mar_err *err);
    double (*encode)(void *state, const mar_masked_model *m, mar_workspace *w, const mar_pass *p, const mar_step *step);
    double (*decode)(void *state, const mar_masked_model *m, mar_workspace *w, const mar_pass *p, const mar_step *step,
                     float *z, const int *z_index);
} mar_passes;

extern const mar_passes mar_plain_passes;

typedef struct {
    const mar_masked_model *model;
    int max_images;
    int cfg_branches; /* of a step, at most: 2 with guidance, else 1 */
    int max_tokens;   /* tokens of an image in one call of the head, at most */
    mar_workspace work;
    int *z_index; /* host [sequences * max_tokens] row of z that each predicted row goes to */
    const mar_passes *passes;
    void *passes_state;
    diff_chain chain;
    double encoder_flop, decoder_flop, head_flop; /* since mar_runner_begin */
    double encoder_s, decoder_s, head_s; /* seconds since mar_runner_begin; complete when the backend has finished */

    /* Backend memory, from mar_runner_lay_out. That call also sets the arrays of work and chain. */
    mar_embeddings embedded;
    float *z; /* [branches][images * max_tokens][D] */
} mar_runner;

/* Recordings of work of one shape (kern_core_ops.replay). */
typedef struct {
    kern_recording *encode, *decode;
    kern_recording *draw[2]; /* a step's calls of the head */
    kern_recording *known_tokens;
} mar_recordings;

/* The images in progress, or one of them. */
typedef struct {
    int images;
    const int *const *order; /* host [images][seq_len]: masked first, known last */
    int first;               /* index of its first image in the runner's batch */
} mar_batch;

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
/* Prepares passes of this step's shape for this many images, so that they allocate nothing. */
mar_status mar_runner_plan(mar_runner *r, int images, const mar_step *step, mar_err *err);
/* Prepares mar_runner_add_known_tokens for this many tokens. */
mar_status mar_runner_plan_known_tokens(mar_runner *r, int tokens, mar_err *err);
/* Prepares the head for this many tokens, in the respacing in use (diff_chain_use). */
mar_status mar_runner_plan_head(mar_runner *r, int tokens, mar_err *err);

/* Resets times and arithmetic. */
void mar_runner_reset(mar_runner *r);
/* Resets times and arithmetic, and starts images 0 .. images - 1 as mar_runner_admit does. */
void mar_runner_begin(mar_runner *r, int images, const int *label);
/* Starts the n images slot [n] with these labels, host [n]. A label is a class number; `classes` is unconditional. slot
 * NULL: images 0 .. n - 1. */
void mar_runner_admit(mar_runner *r, int n, const int *slot, const int *label);
/* Computes z of the tokens that `step` predicts, image after image in the order of `order`. Conditional rows begin at
 * row `first` of r->z, unconditional ones at row total + first. `total` is the number of tokens that the head will draw
 * at once; a plain step has first 0 and total images * predicted. A step with `detailed` tokens has two such lists of
 * z, for two draws: the detailed tokens, then the others. `recordings` are those of calls with the same step, first,
 * total and number of images; NULL records nothing. */
void mar_runner_predict(mar_runner *r, const mar_batch *batch, const mar_step *step, int first, int total,
                        mar_recordings *recordings);
/* Makes n tokens known to later passes: backend tokens [n][token_dim], image and position host [n]. `recording` is that
 * of calls with the same tokens and n, or NULL. */
void mar_runner_add_known_tokens(mar_runner *r, const float *tokens, int n, const int *image, const int *position,
                                 kern_recording **recording);

/* Tokens drawn together: noise addresses and guidance scales, host [count]. Their z is in the runner's z. */
typedef struct {
    int count;
    const uint64_t *seed;
    const uint64_t *image;
    const int *position;
    const float *cfg;
} mar_draw;

/* Runs the head's chain from index `first` to `last`, with fresh x_T if `first` is the top. Writes x backend
 * [count][token_dim]. `row` is the first row of its z in the runner's z. `recording` is that of calls that differ at
 * most in seed, image, position and cfg, or NULL. */
void mar_runner_draw(mar_runner *r, int row, const mar_draw *d, int first, int last, float *x, diff_trace *trace,
                     kern_recording **recording);

/* Runs body(arg), a sequence of operations on queue k, as a recording if given (kern_core_ops.replay). Adds its time to
 * *seconds. `part` is as diff_chain.part. */
void mar_run_recorded(kern_queue *k, const char *part, kern_recording **recording, void (*body)(void *arg), void *arg,
                      double *seconds);

/* --- the passes' parts, for passes that compute less -------------------------------------------------------------- */

/* Writes w->x [sequences][buffer + count][D]: buffers, and the `count` tokens that became known last, most recent
 * first. */
void mar_encoder_input(const mar_masked_model *m, mar_workspace *w, const mar_pass *p, int count);
/* Computes w->memory [rows][D] = decoder_embed(encoder_norm(w->x)) of the encoder's output w->x [rows][D]. */
void mar_decoder_embed(const mar_masked_model *m, mar_workspace *w, int rows);
/* Writes the rows of input [sequences][buffer + seq_len][D] that the encoder's output w->x, of buffers and `count`
 * tokens, determines. Returns their number; w->rows[0] lists them. */
int mar_decoder_visible(const mar_masked_model *m, mar_workspace *w, const mar_pass *p, int count, float *input);
/* Completes the decoder's input, of which w->x has `visible` rows. Row w->rows[1][i] of w->x becomes that of masked
 * position w->rows[2][i], for `masked` positions. */
void mar_decoder_masked(const mar_masked_model *m, mar_workspace *w, const mar_embeddings *e, int visible, int masked);
/* Writes w->x [sequences][buffer + seq_len][D] = (encoder output or mask token) + decoder position. */
void mar_decoder_input(const mar_masked_model *m, mar_workspace *w, const mar_pass *p);
/* Lists in position [sequences * count] the `count` masked tokens that will be predicted next, in the order of
 * p->order. Returns their number. */
int mar_predicted_positions(const mar_masked_model *m, const mar_pass *p, int count, int *position);
/* Computes z[z_index ? z_index[r] : r] = decoder_norm(y[r]) + diffusion position of position[r]. normed is scratch
 * [n][D]. */
void mar_compute_z(kern_queue *k, const mar_masked_model *m, const float *y, const int *position, int n, float *normed,
                   float *z, const int *z_index);

#endif
