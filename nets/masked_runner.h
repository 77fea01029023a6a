/* The towers at work in a session: their passes, with their memory. A session has one runner for the target and, if it
 * speculates with a draft model, one for the draft. */
#ifndef NETS_MASKED_RUNNER_H
#define NETS_MASKED_RUNNER_H

#include "nets/masked_embeddings.h"

/* Input of one step's passes. Sequence s is of image s % images, and conditional if s < images. */
typedef struct {
    int sequences, images;
    int known, predicted;
    const int *const *order; /* host [images][seq_len]: masked first, known last, the most recently known first */
    int first;               /* index of the first image in `embedded` */
    const masked_embeddings *embedded;
    int step;       /* number of the autoregressive step, for passes that keep what earlier steps computed */
    int reads_back; /* 1: its decode reads results back from the backend, so it cannot be recorded */
} masked_pass;

/* Returns the branches of an image that the encoder computes: without a class in the buffer its rows are the same in
 * all, and are computed once. */
int masked_encoded_branches(const masked_net *m, int branches);
/* Runs the encoder over buffer and known tokens. Writes w->x [sequences][buffer + known][D], before encoder_norm. */
void masked_encode(const masked_net *m, masked_workspace *w, const masked_pass *p);
/* Runs the decoder over all positions, from the encoder's output w->x. Writes z backend [sequences][predicted][D], the
 * head's condition for the predicted positions, in the order of p->order. The last block runs only on those rows.
 * z_index host [sequences * predicted] is the row of z that each goes to; NULL: row r goes to row r. */
void masked_decode(const masked_net *m, masked_workspace *w, const masked_pass *p, float *z, const int *z_index);

/* Prepares passes of this shape, so that they allocate nothing. */
mar_status masked_passes_plan(kern_queue *k, const masked_net *m, int sequences, int known, int predicted,
                              mar_err *err);

/* Return the arithmetic, 2 per multiply-add, without that of the embeddings. */
double masked_encode_flop(const masked_net *m, int sequences, int known);
double masked_decode_flop(const masked_net *m, int sequences, int known, int predicted);

/* The transformer passes of an autoregressive step: masked_plain_passes, or those of an accelerator that computes less.
 * The accelerator owns `state`. encode and decode return their arithmetic, 2 per multiply-add. */
typedef struct {
    /* Prepares passes of this shape, without order and embeddings, so that they allocate nothing. */
    mar_status (*plan)(kern_queue *k, const void *state, const masked_net *m, const masked_pass *p, mar_err *err);
    double (*encode)(void *state, const masked_net *m, masked_workspace *w, const masked_pass *p);
    double (*decode)(void *state, const masked_net *m, masked_workspace *w, const masked_pass *p, float *z,
                     const int *z_index);
} masked_passes;

extern const masked_passes masked_plain_passes;

typedef struct {
    const masked_net *net;
    int max_images;
    int cfg_branches; /* of a step, at most: 2 with guidance, else 1 */
    int max_tokens;   /* tokens of an image whose z stand in `z` at once, at most */
    masked_workspace work;
    int *z_index; /* host [sequences * max_tokens] row of z that each predicted row goes to */
    const masked_passes *passes;
    void *passes_state;
    const char *part;                  /* precedes layers in messages: "draft: ", or "" */
    double encoder_flop, decoder_flop; /* since masked_runner_reset */
    double encoder_s, decoder_s;       /* seconds since then; complete when the backend has finished */

    /* Backend memory, from masked_runner_lay_out. That call also sets the arrays of `work`. */
    masked_embeddings embedded;
    float *z; /* [branches][images * max_tokens][D] */
} masked_runner;

/* Recordings of work of one shape (kern_core_ops.replay). */
typedef struct {
    kern_recording *encode, *decode, *known_tokens;
} masked_recordings;

/* Creates a runner on queue k, with the plain passes. k and net must outlive it. */
mar_status masked_runner_create(kern_queue *k, const masked_net *net, int max_images, int cfg_branches, int max_tokens,
                                masked_runner *out, mar_err *err);
void masked_runner_free(masked_runner *r);
/* Assigns backend memory at base. Returns its size in bytes, a multiple of 256. base NULL only counts. */
size_t masked_runner_lay_out(masked_runner *r, char *base);
void masked_recordings_free(kern_queue *k, masked_recordings *recordings); /* leaves them empty */
/* Prepares passes of this shape, without order and embeddings, so that they allocate nothing. */
mar_status masked_runner_plan(masked_runner *r, const masked_pass *p, mar_err *err);
/* Prepares masked_runner_add_known_tokens for this many tokens. */
mar_status masked_runner_plan_known_tokens(masked_runner *r, int tokens, mar_err *err);

/* Resets times and arithmetic. */
void masked_runner_reset(masked_runner *r);
/* Starts the n images slot [n] with these labels, host [n]. A label is a class number; `classes` is unconditional. slot
 * NULL: images 0 .. n - 1. */
void masked_runner_admit(masked_runner *r, int n, const int *slot, const int *label);
/* Computes z of the predicted tokens: row i of them, in the order of masked_decode, goes to row r->z_index[i] of r->z.
 * `recordings` are those of calls with the same shape and z_index; NULL records nothing. */
void masked_runner_run(masked_runner *r, const masked_pass *p, masked_recordings *recordings);
/* Makes n tokens known to later passes: backend tokens [n][token_dim], image and position host [n]. `recording` is that
 * of calls with the same tokens and n, or NULL. */
void masked_runner_add_known_tokens(masked_runner *r, const float *tokens, int n, const int *image, const int *position,
                                    kern_recording **recording);

/* --- the passes' parts, for passes that compute less -------------------------------------------------------------- */

/* Writes w->x [sequences][buffer + count][D]: buffers, and the `count` tokens that became known last, most recent
 * first. */
void masked_encoder_input(const masked_net *m, masked_workspace *w, const masked_pass *p, int count);
/* Computes w->memory [rows][D] = decoder_embed(encoder_norm(w->x)) of the encoder's output w->x [rows][D], with what
 * stands between (masked_between). It is that of listed sequences; w->rows[1] lists the rows' places in the decoder. */
void masked_decoder_embed(const masked_net *m, masked_workspace *w, int sequences, int rows);
/* Writes the rows of input [sequences][buffer + seq_len][D] that the encoder's output w->x, of buffers and `count`
 * tokens, determines. Returns their number; w->rows[0] lists them. */
int masked_decoder_visible(const masked_net *m, masked_workspace *w, const masked_pass *p, int count, float *input);
/* Completes the decoder's input, of which w->x has `visible` rows. Row w->rows[1][i] of w->x becomes that of masked
 * position w->rows[2][i], for `masked` positions. */
void masked_decoder_masked(const masked_net *m, masked_workspace *w, const masked_embeddings *e, int visible,
                           int masked);
/* Writes w->x [sequences][buffer + seq_len][D] = (encoder output or mask token) + decoder position. */
void masked_decoder_input(const masked_net *m, masked_workspace *w, const masked_pass *p);
/* Lists in position [sequences * count] the `count` masked tokens that will be predicted next, in the order of
 * p->order. Returns their number. */
int masked_predicted_positions(const masked_net *m, const masked_pass *p, int count, int *position);
/* Computes z[z_index ? z_index[r] : r] = decoder_norm(y[r]) + diffusion position of position[r]. normed is scratch
 * [n][D]. */
void masked_compute_z(kern_queue *k, const masked_net *m, const float *y, const int *position, int n, float *normed,
                      float *z, const int *z_index);

#endif
