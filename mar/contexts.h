/* Transformer passes over contexts: images with different numbers of known tokens, each encoded and decoded by itself,
 * in one batch. Speculation across tokens asks for the conditions of several autoregressive steps at once: each step is
 * a context, that of the image with the drafts before it.
 *
 * What contexts of an image share. Attention has both directions, so a row's output changes with every token that
 * becomes known. The first block's norm, queries, keys and values are those of the embeddings alone, though. So in the
 * encoder they are computed once for all contexts of an image: for its class, and for its tokens, where both conditions
 * share them, too. In the decoder those of the masked positions depend on the model only, and are computed once a
 * batch. That is exact: on a CPU to the bit, since a row's bits depend on that row only. Behind the first attention no
 * two contexts have a row in common. */
#ifndef MAR_CONTEXTS_H
#define MAR_CONTEXTS_H

#include "mar/runner.h"

typedef struct {
    int image; /* of the session's batch: whose token_rows and class_rows */
    const int
        *order; /* host [seq_len]: masked first, known last (mar/steps.h); the same for all contexts of an image */
    int known;  /* tokens that are known in it: order[seq_len-known .. seq_len-1] */
    int asked;  /* tokens whose conditions are wanted: order[seq_len-known-asked .. seq_len-known-1] */
} mar_image_context;

/* An image that contexts of a chunk belong to. */
typedef struct {
    int image;
    const int *order;
    int known; /* the most of its contexts in the chunk */
    int first; /* where its tokens begin among those of all images of the chunk */
} mar_context_image;

typedef struct {
    const mar_masked_model *model;
    int max_images, max_contexts, max_asked;
    int conditions;                    /* 2 with guidance, else 1 */
    int chunk;                         /* contexts that are in memory at a time, at most */
    mar_workspace work;                /* of a chunk's rows */
    const char *part;                  /* as diff_chain.part */
    double encoder_flop, decoder_flop; /* since mar_contexts_begin */
    double encoder_s, decoder_s;       /* since mar_contexts_begin; complete when the backend has finished */

    /* Host. A chunk's sequences are its contexts' conditions, the conditional one of a context first. */
    mar_context_image *image; /* [max_images] the images of a chunk */
    int *place;               /* [max_images] by image: its place in that list */
    int *span[6];             /* [chunk * conditions] first and length: of encoder rows, decoder rows, asked rows */
    int *z_index;             /* [conditions * max_asked] */

    /* Backend memory: mar_contexts_lay_out. */
    float *z;           /* [conditions][asked of all contexts][D]: contexts one after another, a context's tokens in its
                         * order */
    float *mask_rows;   /* [seq_len][D] the decoder's input of masked positions */
    act *mask_operands; /* [seq_len][3D] the first decoder block's queries, keys and values of mask_rows */
} mar_contexts;

/* max_asked: of all contexts of a pass together. */
mar_status mar_contexts_create(kern_queue *k, const mar_masked_model *m, int max_images, int max_contexts,
                               int max_asked, int conditions, mar_contexts *out, mar_err *err);
void mar_contexts_free(mar_contexts *c);
size_t mar_contexts_lay_out(mar_contexts *c, char *base); /* as diff_chain_lay_out */
/* A batch begins: its first pass follows. */
void mar_contexts_begin(mar_contexts *c);
/* Prepares a pass over these contexts, so that it allocates nothing. */
mar_status mar_contexts_plan(mar_contexts *c, const mar_image_context *list, int n, mar_err *err);
/* c->z = the conditions of the tokens asked for, at least one a context. token_rows and class_rows are a runner's, for
 * `images` images. recordings: those of passes with the same known and asked of all contexts and the same images, or
 * NULL. A pass of more than one chunk is not recorded. */
void mar_contexts_run(mar_contexts *c, const mar_image_context *list, int n, int images, const float *token_rows,
                      const float *class_rows, mar_recordings *recordings);

#endif
