/* One model at work in a session: its transformer passes and its head, with the memory they need. A session has one for
 * the target and, if it speculates with a draft model, one for the draft. */
#ifndef MAR_RUNNER_H
#define MAR_RUNNER_H

#include "diffusion/chain.h"
#include "mar/masked/embeddings.h"
#include "mar/masked/steps.h"

/* What one step is about. Sequence s works on image s % images, conditional if s < images. */
typedef struct {
    int sequences, images;
    int known, predicted;
    const int *const *order; /* host [images][seq_len]: masked first, known last (mar/masked/steps.h) */
    int first;               /* the number of the first image among those of `embedded` */
    const mar_embeddings *embedded;
} mar_pass;

/* Encoder over buffer and known tokens: w->x [sequences][buffer + known][D] before encoder_norm. */
void mar_encode(const mar_masked_model *m, mar_workspace *w, const mar_pass *p);
/* Decoder over all positions from w->x; z backend [sequences][predicted][D] = the condition of the head for the
 * predicted positions, in the order of p->order. The last block runs on those rows only. z_index host
 * [sequences * predicted]: the row of z each goes to; NULL: row r goes to row r. */
void mar_decode(const mar_masked_model *m, mar_workspace *w, const mar_pass *p, float *z, const int *z_index);

/* Makes everything the passes of this shape need, so that they allocate nothing. */
mar_status mar_passes_plan(kern_queue *k, const mar_masked_model *m, int sequences, int known, int predicted,
                           mar_err *err);

/* Arithmetic, 2 per multiply-add, without that of the embeddings. */
double mar_encode_flop(const mar_masked_model *m, int sequences, int known);
double mar_decode_flop(const mar_masked_model *m, int sequences, int known, int predicted);

/* The transformer passes of an autoregressive step: mar_plain_passes, or those of a way that computes less. `state` is
 * the way's own. Both return their arithmetic, 2 per multiply-add. A decode with step->reads_back asks the backend for
 * results in between, and so cannot be recorded. */
typedef struct {
    /* Prepares passes of the step's shape for so many images, so that they allocate nothing. */
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
    int conditions; /* of a step, at most: 2 with guidance, else 1 */
    int max_tokens; /* an image's tokens in one call of the head, at most */
    mar_workspace work;
    int *z_index; /* host [sequences * max_tokens] where each condition goes */
    const mar_passes *passes;
    void *passes_state;
    diff_chain chain;
    double encoder_flop, decoder_flop, head_flop; /* since mar_runner_begin */
    double encoder_s, decoder_s, head_s;          /* since mar_runner_begin; complete when the backend has finished */

    /* Backend memory: mar_runner_lay_out, which also sets the arrays of work and chain. */
    mar_embeddings embedded;
    float *z; /* [conditions][images * max_tokens][D] */
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
    int first;               /* the number of the first of them in the runner's batch */
} mar_batch;

/* A runner on queue k. `max_tokens`: tokens an image in one call of the head, at most. specs [n]: the chains it runs,
 * no two with the same number of steps. The passes are the plain ones. */
mar_status mar_runner_create(kern_queue *k, const mar_masked_model *model, int max_images, int conditions,
                             int max_tokens, const diff_spec *specs, int n, float temperature, mar_runner *out,
                             mar_err *err);
void mar_runner_free(mar_runner *r);
/* As diff_chain_lay_out. */
size_t mar_runner_lay_out(mar_runner *r, char *base);
void mar_recordings_free(kern_queue *k, mar_recordings *recordings); /* and leaves them empty */
/* Prepares passes of this step's shape for so many images, so that they allocate nothing. */
mar_status mar_runner_plan(mar_runner *r, int images, const mar_step *step, mar_err *err);
/* Prepares mar_runner_begin for so many images. */
mar_status mar_runner_plan_begin(mar_runner *r, int images, mar_err *err);
/* Prepares mar_runner_learn for so many tokens. */
mar_status mar_runner_plan_learn(mar_runner *r, int tokens, mar_err *err);
/* Prepares the head, with the number of diffusion steps in use (diff_chain_use). */
mar_status mar_runner_plan_head(mar_runner *r, int tokens, mar_err *err);

/* Starts images of these labels, host [images] (class numbers; `classes` is unconditional). */
void mar_runner_begin(mar_runner *r, int images, const int *label);
/* Makes the conditions z of the tokens that `step` predicts, image after image in the order of `order`. The conditional
 * ones begin at row `first` of r->z, the unconditional ones at row total + first. `total` is the number of tokens the
 * head will draw at once; a plain step has first 0 and total images * predicted. The z of a step with `detailed` tokens
 * are two such lists, for two draws: that of the detailed tokens, then that of the others. `recordings` are those of
 * calls with the same step, first, total and number of images; NULL records nothing. */
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

/* body(arg), a sequence of operations on queue k, on a recording if there is one (kern_core_ops.replay), with its time
 * added to *seconds. part: as diff_chain.part. */
void mar_perform(kern_queue *k, const char *part, kern_recording **recording, void (*body)(void *arg), void *arg,
                 double *seconds);

/* --- the passes' parts, for passes that compute less ------------------------------------------ */

/* w->x [sequences][buffer + count][D]: buffers and the `count` tokens that became known last, most recent first.
 * w->qkv: the first encoder block's queries, keys and values of them. */
void mar_encoder_input(const mar_masked_model *m, mar_workspace *w, const mar_pass *p, int count);
/* w->memory [rows][D] = decoder_embed of the encoder's output w->x [rows][D]. */
void mar_decoder_embed(const mar_masked_model *m, mar_workspace *w, int rows);
/* The rows of input [sequences][buffer + seq_len][D] that the encoder's output of such a w->x determines. Returns how
 * many; w->rows[0] lists them. */
int mar_decoder_visible(const mar_masked_model *m, mar_workspace *w, const mar_pass *p, int count, float *input);
/* The rest of the decoder's input, where w->x has the `visible` rows w->rows[0]: rows w->rows[1] of w->x are the
 * `masked` positions w->rows[2]. w->qkv: the first decoder block's queries, keys and values of all these rows, unless
 * that is the last one. */
void mar_decoder_operands(const mar_masked_model *m, mar_workspace *w, const mar_embeddings *e, int visible,
                          int masked);
/* w->x [sequences][buffer + seq_len][D] = (encoder output or mask token) + decoder position, and w->qkv as
 * mar_decoder_operands makes it. */
void mar_decoder_input(const mar_masked_model *m, mar_workspace *w, const mar_pass *p);
/* position [sequences * count]: of the `count` masked tokens that will be predicted next, in the order of p->order.
 * Returns how many. */
int mar_predicted_positions(const mar_masked_model *m, const mar_pass *p, int count, int *position);
/* z[z_index ? z_index[r] : r] = decoder_norm(y[r]) + diffusion position; normed: scratch [n][D]. */
void mar_conditions(kern_queue *k, const mar_masked_model *m, const float *y, const int *position, int n, float *normed,
                    float *z, const int *z_index);

#endif
