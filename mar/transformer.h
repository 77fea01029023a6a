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
void mar_embed_classes(const mar_model *m, mar_workspace *w, int sequences, const int *label, float *class_rows);
/* Makes the token_rows of n tokens: tokens backend [n][token_dim]; image and position host [n]. */
void mar_embed_tokens(const mar_model *m, mar_workspace *w, const float *tokens, int n, const int *image,
                      const int *position, float *token_rows);

/* Encoder over buffer and known tokens: w->x [sequences][buffer + known][D] before encoder_norm. */
void mar_encode(const mar_model *m, mar_workspace *w, const mar_pass *p);
/* Decoder over all positions from w->x; z backend [sequences][predicted][D] = the condition of the head for the
 * predicted positions, in the order of p->order. The last block runs on those rows only. z_index host
 * [sequences * predicted]: the row of z each goes to; NULL: as they come. */
void mar_decode(const mar_model *m, mar_workspace *w, const mar_pass *p, float *z, const int *z_index);

/* Makes everything the passes of this shape need, so that they allocate nothing. */
mar_status mar_passes_plan(const mar_model *m, int sequences, int known, int predicted, mar_err *err);

/* Arithmetic, 2 per multiply-add. */
double mar_encode_flop(const mar_model *m, int sequences, int known);
double mar_decode_flop(const mar_model *m, int sequences, int predicted);

#endif
