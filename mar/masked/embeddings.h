/* Embeddings of a batch. A row depends only on a class, a token or a position, so it is computed once. Rows of classes
 * and masked positions are computed when a batch begins, a token's row when the token becomes known. A pass copies the
 * rows that it needs. */
#ifndef MAR_EMBEDDINGS_H
#define MAR_EMBEDDINGS_H

#include "mar/masked/block.h"

/* Backend memory, from mar_embeddings_lay_out. */
typedef struct {
    int images;       /* capacity */
    int cfg_branches; /* 2 with guidance, else 1 */

    float *token_rows; /* [images][seq_len][D] z_proj_ln(z_proj(token) + pos) of the known tokens */
    float *class_rows; /* [images + 1][buffer][D] z_proj_ln(class_emb + pos); the last are the unconditional ones */
    float *mask_rows;  /* [seq_len][D] mask_token + pos, the decoder's input */
} mar_embeddings;

/* Carves the arrays out of base from *used on. images and cfg_branches must be set. */
void mar_embeddings_lay_out(mar_embeddings *e, const mar_masked_model *m, char *base, size_t *used);

/* Computes the rows of the classes label [n] of the images slot [n], of all masked positions, and with guidance of the
 * unconditional class. A label is a class number; `classes` is unconditional. slot NULL: images 0 .. n - 1. */
void mar_embed_batch(const mar_masked_model *m, mar_workspace *w, const mar_embeddings *e, int n, const int *slot,
                     const int *label);
/* Computes the rows of n tokens: tokens backend [n][token_dim]; image and position host [n]. */
void mar_embed_tokens(const mar_masked_model *m, mar_workspace *w, const mar_embeddings *e, const float *tokens, int n,
                      const int *image, const int *position);

/* Copy n rows, of the classes or of the tokens: row w->rows[0][i] of w->x is row w->rows[1][i] of the table. */
void mar_gather_classes(const mar_masked_model *m, mar_workspace *w, const mar_embeddings *e, int n);
void mar_gather_tokens(const mar_masked_model *m, mar_workspace *w, const mar_embeddings *e, int n);
/* Returns the row of class_rows where an image's buffer begins in a branch: 0 conditional, 1 unconditional. */
int mar_class_row(const mar_masked_model *m, const mar_embeddings *e, int image, int branch);

#endif
