/* The transformer passes of one autoregressive step. */
#ifndef MAR_TRANSFORMER_H
#define MAR_TRANSFORMER_H

#include "mar/model.h"

/* Working memory for `sequences` sequences (images x conditions), carved from a session's arena.
 * R = sequences * (buffer + seq_len), D = width. */
typedef struct {
    float *x;      /* [R][D] residual stream */
    float *memory; /* [R][D] encoder output on its way into the decoder; then the predicted rows' stream */
    act *normed;   /* [R][D] */
    act *qkv;      /* [R][3D] */
    act *mixed;    /* [R][D] attention output */
    act *hidden;   /* [R][mlp_hidden] */
    int *rows[3];  /* host [R] index lists */
} mar_workspace;

/* What one step is about. Sequence s works on image s % images. */
typedef struct {
    int sequences, images;
    int known, predicted;
    const int *const *order; /* host [images][seq_len]: masked first, known last (mar/steps.h) */
    const float *token_rows; /* backend [images][seq_len][D]: z_proj_ln(z_proj(token) + pos) of the known tokens */
    const float *class_rows; /* backend [sequences][buffer][D]: z_proj_ln(class_emb + pos) */
} mar_pass;

/* Makes class_rows. */
void mar_embed_classes(const mar_masked_model *m, mar_workspace *w, int sequences, const int *label, float *class_rows);
/* Makes the token_rows of n tokens: tokens backend [n][token_dim]; image and position host [n]. */
void mar_embed_tokens(const mar_masked_model *m, mar_workspace *w, const float *tokens, int n, const int *image,
                      const int *position, float *token_rows);

/* Encoder over buffer and known tokens: w->x [sequences][buffer + known][D] before encoder_norm. */
void mar_encode(const mar_masked_model *m, mar_workspace *w, const mar_pass *p);
/* Decoder over all positions from w->x; z backend [sequences][predicted][D] = the condition of the head for the
 * predicted positions, in the order of p->order. The last block runs on those rows only. z_index host
 * [sequences * predicted]: the row of z each goes to; NULL: as they come. */
void mar_decode(const mar_masked_model *m, mar_workspace *w, const mar_pass *p, float *z, const int *z_index);

/* Makes everything the passes of this shape need, so that they allocate nothing. */
mar_status mar_passes_plan(const mar_masked_model *m, int sequences, int known, int predicted, mar_err *err);

/* Arithmetic, 2 per multiply-add. */
double mar_encode_flop(const mar_masked_model *m, int sequences, int known);
double mar_decode_flop(const mar_masked_model *m, int sequences, int predicted);

/* --- the passes' parts, for passes that compute less (mar/lazy.c) ------------------------------------------ */

/* y[r] = norm(x[index ? index[r] : r]), rows of D: act, or float if f32. */
void mar_layer_norm(const mar_masked_model *m, const float *x, const int *index, int rows, mar_norm n, void *y,
                    int f32);
/* x += fc2(gelu(fc1(LN2(x)))) */
void mar_block_mlp(const mar_masked_model *m, mar_workspace *w, const mar_block *b, float *x, int rows);
/* The last decoder block's keys and values: w->qkv act [rows][2D]. */
void mar_block_keys(const mar_masked_model *m, mar_workspace *w, const mar_block *b, const float *x, int rows);
/* The last decoder block for `count` rows a sequence only: y [sequences * count][D] from the rows `asked` of x, with kv
 * act [sequences][length][2D]. */
void mar_block_ask(const mar_masked_model *m, mar_workspace *w, const mar_block *b, const float *x, const int *asked,
                   int sequences, int count, const act *kv, int length, float *y);
/* w->x [sequences][buffer + count][D]: buffers and the `count` tokens that became known last, most recent first. */
void mar_encoder_input(const mar_masked_model *m, mar_workspace *w, const mar_pass *p, int count);
/* The rows of input [sequences][buffer + seq_len][D] that the encoder's output of such a w->x determines. */
void mar_decoder_visible(const mar_masked_model *m, mar_workspace *w, const mar_pass *p, int count, float *input);
/* w->x [sequences][buffer + seq_len][D] = (encoder output or mask token) + decoder position. */
void mar_decoder_input(const mar_masked_model *m, mar_workspace *w, const mar_pass *p);
/* position [sequences * count]: of the `count` masked tokens that will be predicted next, in the order of p->order.
 * Returns how many. */
int mar_masked_positions(const mar_masked_model *m, const mar_pass *p, int count, int *position);
/* z[z_index ? z_index[r] : r] = decoder_norm(y[r]) + diffusion position; normed: scratch [n][D]. */
void mar_conditions(const mar_masked_model *m, const float *y, const int *position, int n, float *normed, float *z,
                    const int *z_index);
mar_status mar_block_plan(const mar_masked_model *m, const mar_block *b, int rows, int kv_rows, mar_err *err);
/* Of a block in which `rows` rows ask and `kv_rows` rows answer. */
double mar_block_flop(const mar_masked_model *m, double rows, double kv_rows, double kv_length);

#endif
