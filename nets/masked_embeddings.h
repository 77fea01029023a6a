/* Embeddings of a batch. A row depends only on a class, a token or a position, so it is computed once. Rows of classes
 * and masked positions are computed when a batch begins, a token's row when the token becomes known. A pass copies the
 * rows that it needs. */
#ifndef NETS_MASKED_EMBEDDINGS_H
#define NETS_MASKED_EMBEDDINGS_H

#include "nets/masked_block.h"

/* Backend memory, from masked_embeddings_lay_out. */
typedef struct {
    int images;       /* capacity */
    int cfg_branches; /* 2 with guidance, else 1 */

    float *token_rows; /* [images][seq_len][D] z_proj_ln(z_proj(token) + pos) of the known tokens */
    float *class_rows; /* [images + 1][buffer][D] z_proj_ln(class_emb + pos); the last are the unconditional ones */
    float *mask_rows;  /* [seq_len][D] mask_token + pos, the decoder's input */
} masked_embeddings;

/* Carves the arrays out of base from *used on. images and cfg_branches must be set. */
void masked_embeddings_lay_out(masked_embeddings *e, const masked_net *m, char *base, size_t *used);

/* Computes the rows of the classes label [n] of the images slot [n], of all masked positions, and with guidance of the
 * unconditional class. A label is a class number; `classes` is unconditional. slot NULL: images 0 .. n - 1. */
void masked_embed_batch(const masked_net *m, masked_workspace *w, const masked_embeddings *e, int n, const int *slot,
                        const int *label);
/* Computes the rows of n tokens: tokens backend [n][token_dim]; image and position host [n]. */
void masked_embed_tokens(const masked_net *m, masked_workspace *w, const masked_embeddings *e, const float *tokens,
                         int n, const int *image, const int *position);

/* Copy n rows, of the classes or of the tokens: row w->rows[0][i] of w->x is row w->rows[1][i] of the table. */
void masked_gather_classes(const masked_net *m, masked_workspace *w, const masked_embeddings *e, int n);
void masked_gather_tokens(const masked_net *m, masked_workspace *w, const masked_embeddings *e, int n);
/* Returns the row of class_rows where an image's buffer begins in a branch: 0 conditional, 1 unconditional. */
int masked_class_row(const masked_net *m, const masked_embeddings *e, int image, int branch);

#endif
