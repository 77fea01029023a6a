/* Transformer passes over contexts: images with different numbers of known tokens, each encoded and decoded by itself,
 * in one batch. Speculation across tokens asks for the conditions of several autoregressive steps at once: each step is
 * a context, that of the image with the drafts before it.
 *
 * What contexts of an image share. Attention has both directions, so a row's output changes with every token that
 * becomes known. The first block's norm, queries, keys and values are those of the embeddings alone, though. So they
 * are computed once for all contexts of an image: in the encoder for its class and its tokens, in the decoder for the
 * mask tokens. That is exact. Behind the first attention no two contexts have a row in common. */
#ifndef MAR_CONTEXTS_H
#define MAR_CONTEXTS_H

#include "mar/runner.h"

typedef struct {
    int image;        /* of the session's batch: whose token_rows and class_rows */
    const int *order; /* host [seq_len]: masked first, known last (mar/steps.h) */
    int known;        /* tokens that are known in it: order[seq_len-known .. seq_len-1] */
    int asked;        /* tokens whose conditions are wanted: order[seq_len-known-asked .. seq_len-known-1] */
} mar_context;

typedef struct {
    const mar_masked_model *model;
    int max_images, max_contexts, max_asked;
    int conditions;                    /* 2 with guidance, else 1 */
    int chunk;                         /* contexts that are in memory at a time, at most */
    mar_workspace work;                /* of a chunk's rows */
    const char *part;                  /* as diff_chain.part */
    double encoder_flop, decoder_flop; /* since mar_contexts_begin */
    double encoder_s, decoder_s;       /* since mar_contexts_begin; complete when the backend has finished */

    /* Backend memory: mar_contexts_lay_out. */
    float *z; /* [conditions][asked of all contexts][D]: contexts one after another, a context's tokens in its order */
} mar_contexts;

/* max_asked: of all contexts of a pass together. */
mar_status mar_contexts_create(kern_queue *k, const mar_masked_model *m, int max_images, int max_contexts,
                               int max_asked, int conditions, mar_contexts *out, mar_err *err);
void mar_contexts_free(mar_contexts *c);
size_t mar_contexts_lay_out(mar_contexts *c, char *base); /* as diff_chain_lay_out */
void mar_contexts_begin(mar_contexts *c);                 /* a batch begins */
/* Prepares a pass over these contexts, so that it allocates nothing. */
mar_status mar_contexts_plan(mar_contexts *c, const mar_context *list, int n, mar_err *err);
/* c->z = the conditions of the tokens asked for. token_rows and class_rows are a runner's, for `images` images.
 * recordings: those of passes with the same known and asked of all contexts and the same images, or NULL. */
void mar_contexts_run(mar_contexts *c, const mar_context *list, int n, int images, const float *token_rows,
                      const float *class_rows, mar_recordings *recordings);

#endif
