/* What the passes of a batch begin with. A row of it depends on a class, a token or a position alone. So it is computed
 * once: a class's rows and those of masked positions when a batch begins, a token's rows when the token becomes known.
 * A pass copies the rows that it needs.
 *
 * With its embedding, each row has the queries, keys and values that the first block makes of it. That is the first
 * encoder block for classes and tokens, and the first decoder block for masked positions. Behind a first attention
 * nothing can be kept, since attention has both directions and every new token changes all rows. It is exact: on a CPU
 * to the bit, since a row's bits depend on that row only. */
#ifndef MAR_EMBEDDINGS_H
#define MAR_EMBEDDINGS_H

#include "mar/masked/block.h"

/* Backend memory: mar_embeddings_lay_out. */
typedef struct {
    int images;     /* there is room for so many */
    int conditions; /* 2 with guidance, else 1 */

    float *token_rows;   /* [images][seq_len][D] z_proj_ln(z_proj(token) + pos) of the known tokens */
    float *class_rows;   /* [images + 1][buffer][D] z_proj_ln(class_emb + pos); the last are the unconditional ones */
    float *mask_rows;    /* [seq_len][D] mask_token + pos, the decoder's input */
    act *token_operands; /* [images][seq_len][3D] queries, keys and values of token_rows */
    act *class_operands; /* [images + 1][buffer][3D] those of class_rows */
    act *mask_operands; /* [seq_len][3D] those of mask_rows; unset if the first decoder block is the last one, which has
                         * other products */
} mar_embeddings;

/* Cuts the arrays out of base from *used on, of operands of act_size bytes. images and conditions are set. */
void mar_embeddings_lay_out(mar_embeddings *e, const mar_masked_model *m, size_t act_size, char *base, size_t *used);
/* MAR_EARG if the model's rows of operands cannot be copied. */
mar_status mar_embeddings_check(const kern_queue *k, const mar_masked_model *m, mar_err *err);
/* Prepares mar_embed_batch for so many images, so that it allocates nothing. */
mar_status mar_embeddings_plan_batch(kern_queue *k, const mar_masked_model *m, int images, int conditions,
                                     mar_err *err);
/* Prepares mar_embed_tokens for so many tokens. */
mar_status mar_embeddings_plan_tokens(kern_queue *k, const mar_masked_model *m, int tokens, mar_err *err);

/* Makes the rows of the classes label [images] (class numbers; `classes` is unconditional), of the unconditional class
 * if there is guidance, and of all masked positions. */
void mar_embed_batch(const mar_masked_model *m, mar_workspace *w, const mar_embeddings *e, int images,
                     const int *label);
/* Makes the rows of n tokens: tokens backend [n][token_dim]; image and position host [n]. */
void mar_embed_tokens(const mar_masked_model *m, mar_workspace *w, const mar_embeddings *e, const float *tokens, int n,
                      const int *image, const int *position);

/* Row i of w->x and of w->qkv number w->rows[0][i] = row w->rows[1][i] of the classes, or of the tokens; n rows. */
void mar_take_classes(const mar_masked_model *m, mar_workspace *w, const mar_embeddings *e, int n);
void mar_take_tokens(const mar_masked_model *m, mar_workspace *w, const mar_embeddings *e, int n);
/* Where in class_rows the buffer of an image begins under a condition, 0 or 1, the unconditional one. */
int mar_class_row(const mar_masked_model *m, const mar_embeddings *e, int image, int condition);

/* The first decoder block, if masked positions have operands for it; NULL: it is the last block. */
const mar_block *mar_first_decoder_block(const mar_masked_model *m);
/* Arithmetic of the encoder's and the decoder's part of mar_embed_batch. */
double mar_embed_classes_flop(const mar_masked_model *m, int images, int conditions);
double mar_embed_masks_flop(const mar_masked_model *m);

#endif
