/* Transformer passes over contexts: images with different numbers of known tokens, each encoded and decoded by itself,
 * in one batch. Speculation across tokens needs the z of several autoregressive steps at once. Each step is a context:
 * the image with the drafts before it. Contexts of an image share its embeddings (nets/masked_embeddings.h) and nothing
 * else. */
#ifndef NETS_MASKED_CONTEXTS_H
#define NETS_MASKED_CONTEXTS_H

#include "nets/masked_runner.h"

typedef struct {
    int image; /* index in the session's batch, and so of its embeddings */
    /* Host [seq_len]: masked first, known last (nets/masked_runner.h); the same for all contexts of an image. */
    const int *order;
    int known;     /* known tokens: order[seq_len-known .. seq_len-1] */
    int n_queries; /* tokens whose z is computed: order[seq_len-known-n_queries .. seq_len-known-1] */
    int z_row[2];  /* rows of z where those of its conditional and its unconditional branch begin */
} masked_context;

typedef struct {
    const masked_net *model;
    int max_contexts, max_queries;
    int cfg_branches;                  /* of a context, at most: 2 with guidance, else 1 */
    int branches;                      /* of each context of the next run; at first cfg_branches */
    int chunk;                         /* maximum contexts in memory at a time */
    masked_runner *runner;             /* its workspace and z are used; NULL: it has its own */
    masked_workspace work;             /* of a chunk's rows */
    const char *part;                  /* as diff_chain.part */
    double encoder_flop, decoder_flop; /* since masked_contexts_begin */
    double encoder_s, decoder_s;       /* seconds since masked_contexts_begin; complete when the backend has finished */

    /* Host. A chunk's sequences are its contexts' branches, each context's conditional one first. */
    int *span[6]; /* [chunk * branches] first and length of encoder rows, decoder rows, query rows */
    int *z_index; /* [branches * max_queries] */

    /* Backend memory, from masked_contexts_lay_out. */
    float *z; /* [cfg_branches * max_queries][D]: a context's tokens in its order, from its z_row on */
} masked_contexts;

/* Creates passes over at most max_contexts contexts, with at most max_queries tokens in all. k and m must outlive
 * it. */
mar_status masked_contexts_create(kern_queue *k, const masked_net *m, int max_contexts, int max_queries,
                                  int cfg_branches, masked_contexts *out, mar_err *err);
/* Creates passes over the images of a runner, one context an image, in the runner's memory. r must outlive it. */
mar_status masked_contexts_create_in(masked_runner *r, masked_contexts *out, mar_err *err);
void masked_contexts_free(masked_contexts *c);
/* Places the z of all contexts one after another: all conditional rows, then the unconditional ones. */
void masked_contexts_place(masked_context *list, int n);
size_t masked_contexts_lay_out(masked_contexts *c, char *base); /* as diff_chain_lay_out */
/* Begins a batch: resets times and arithmetic. */
void masked_contexts_begin(masked_contexts *c);
/* Prepares passes, so that they allocate nothing on a CPU. */
mar_status masked_contexts_plan(masked_contexts *c, mar_err *err);
/* Computes c->z of the query tokens, at least one a context. `recordings` are those of passes with the same images and,
 * for each context, the same known and n_queries; or NULL. A pass of more than one chunk is not recorded. */
void masked_contexts_run(masked_contexts *c, const masked_context *list, int n, const masked_embeddings *embedded,
                         masked_recordings *recordings);

#endif
