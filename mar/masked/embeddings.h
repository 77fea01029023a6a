/* Embeddings of a batch. A row depends on a class, a token or a position alone. So it is computed once: a class's rows
 * and those of masked positions when a batch begins, a token's rows when the token becomes known. A pass copies the
 * rows that it needs. */
#ifndef MAR_EMBEDDINGS_H
#define MAR_EMBEDDINGS_H

#include "mar/masked/block.h"

/* Backend memory: mar_embeddings_lay_out. */
typedef struct {
    int images;     /* there is room for so many */
    int conditions; /* 2 with guidance, else 1 */

    float *token_rows; /* [images][seq_len][D] z_proj_ln(z_proj(token) + pos) of the known tokens */
    float *class_rows; /* [images + 1][buffer][D] z_proj_ln(class_emb + pos); the last are the unconditional ones */
    float *mask_rows;  /* [seq_len][D] mask_token + pos, the decoder's input */
} mar_embeddings;

/* Cuts the arrays out of base from *used on. images and conditions are set. */
void mar_embeddings_lay_out(mar_embeddings *e, const mar_masked_model *m, char *base, size_t *used);

/* Makes the rows of the classes label [images] (class numbers; `classes` is unconditional), of the unconditional class
 * if there is guidance, and of all masked positions. */
void mar_embed_batch(const mar_masked_model *m, mar_workspace *w, const mar_embeddings *e, int images,
                     const int *label);
/* Makes the rows of n tokens: tokens backend [n][token_dim]; image and position host [n]. */
void mar_embed_tokens(const mar_masked_model *m, mar_workspace *w, const mar_embeddings *e, const float *tokens, int n,
                      const int *image, const int *position);

/* Row w->rows[0][i] of w->x = row w->rows[1][i] of the classes, or of the tokens; n rows. */
void mar_take_classes(const mar_masked_model *m, mar_workspace *w, const mar_embeddings *e, int n);
void mar_take_tokens(const mar_masked_model *m, mar_workspace *w, const mar_embeddings *e, int n);
/* Where in class_rows the buffer of an image begins under a condition, 0 or 1, the unconditional one. */
int mar_class_row(const mar_masked_model *m, const mar_embeddings *e, int image, int condition);

#endif
