/* Transformer passes over contexts: images with different numbers of known tokens, each encoded and decoded by itself,
 * in one batch. Speculation across tokens asks for the conditions of several autoregressive steps at once: each step is
 * a context, that of the image with the drafts before it. Contexts of an image share its embeddings
 * (mar/masked/embeddings.h) and nothing else. */
#ifndef MAR_CONTEXTS_H
#define MAR_CONTEXTS_H

#include "mar/masked/runner.h"

typedef struct {
    int image;        /* of the session's batch: whose embeddings */
    const int *order; /* host [seq_len]: masked first, known last (mar/masked/steps.h); the same for all contexts of an
                         image */
    int known;        /* tokens that are known in it: order[seq_len-known .. seq_len-1] */
    int asked;        /* tokens whose conditions are wanted: order[seq_len-known-asked .. seq_len-known-1] */
} mar_image_context;

typedef struct {
    const mar_masked_model *model;
    int max_contexts, max_asked;
    int conditions;                    /* 2 with guidance, else 1 */
    int chunk;                         /* contexts that are in memory at a time, at most */
    mar_workspace work;                /* of a chunk's rows */
    const char *part;                  /* as diff_chain.part */
    double encoder_flop, decoder_flop; /* since mar_contexts_begin */
    double encoder_s, decoder_s;       /* since mar_contexts_begin; complete when the backend has finished */

    /* Host. A chunk's sequences are its contexts' conditions, the conditional one of a context first. */
    int *span[6]; /* [chunk * conditions] first and length: of encoder rows, decoder rows, asked rows */
    int *z_index; /* [conditions * max_asked] */

    /* Backend memory: mar_contexts_lay_out. */
    float *z; /* [conditions][asked of all contexts][D]: contexts one after another, a context's tokens in its
               * order */
} mar_contexts;

/* max_asked: of all contexts of a pass together. */
mar_status mar_contexts_create(kern_queue *k, const mar_masked_model *m, int max_contexts, int max_asked,
                               int conditions, mar_contexts *out, mar_err *err);
void mar_contexts_free(mar_contexts *c);
size_t mar_contexts_lay_out(mar_contexts *c, char *base); /* as diff_chain_lay_out */
/* A batch begins: its first pass follows. */
void mar_contexts_begin(mar_contexts *c);
/* Prepares a pass over these contexts, so that it allocates nothing. */
mar_status mar_contexts_plan(mar_contexts *c, const mar_image_context *list, int n, mar_err *err);
/* c->z = the conditions of the tokens asked for, at least one a context. recordings: those of passes with the same
 * known and asked of all contexts and the same images, or NULL. A pass of more than one chunk is not recorded. */
void mar_contexts_run(mar_contexts *c, const mar_image_context *list, int n, const mar_embeddings *embedded,
                      mar_recordings *recordings);

#endif
