/* One pass of the transformer over new rows of several sequences. A row is a prefix position, a token or a draft. Its
 * embedding is a row of a table, or a vector through the projection. What comes out are logits of some rows, or their
 * hidden rows. */
#ifndef NETS_CAUSAL_PASS_H
#define NETS_CAUSAL_PASS_H

#include "nets/causal.h"
#include "nets/causal_request.h"
#include "nets/recordings.h"

typedef struct {
    kern_queue *k;
    const causal_model *model;
    int sequences, slots; /* the cache has `slots` slots for each of `sequences` sequences */
    int span_slots;       /* of a span at most; at first `slots` */
    int rows_max, logit_rows_max;
    int words;                  /* 64-bit words of a row's mask */
    kern_cache_type cache_type; /* of keys and values; may be set before causal_pass_lay_out */
    int keep;                   /* 1: the features of each row are kept */

    /* The rows of the current pass, host. A row is a position of a sequence; a sequence is an image in one CFG
     * branch. */
    int rows, spans, logit_rows; /* logit_rows: rows that logits or hidden rows are wanted of, of all branches */
    const float *table;          /* backend: embedding table, or vectors [..][token_dim] */
    int vectors;                 /* 1: of vectors */
    int causal;                  /* 1: as in kern_cache_job, for all passes; set before causal_pass_plan */
    /* [rows] row of the table; with `drawn`, index into drawn, or -1 - row of the table */
    int *embedding;
    const int *drawn; /* backend: tokens, as row numbers of the table; or NULL */
    int *position;    /* [rows] in the sequence, prefix included */
    int *slot;        /* [rows] in the whole cache */
    uint64_t *mask;   /* [rows][words] */
    int *row, *first; /* [spans + 1] as in kern_cache_job */
    int *common;      /* [spans] as in kern_cache_job */
    int *list;        /* slots of all spans */
    /* [logit_rows] row that the output layer reads; rows_max + s is the last prefix position of sequence s. */
    int *logit_row;
    int *next;       /* [logit_rows] hidden rows: number of the token after the row */
    int *to;         /* [logit_rows] hidden rows: place of the result */
    double attended; /* slots attended to, summed over rows */

    /* Backend memory, from causal_pass_lay_out. D = width. */
    float *x;      /* [rows_max + sequences][D] residual stream; after the rows, each sequence's last prefix position */
    act *normed;   /* [rows_max or logit_rows_max][D] */
    act *qkv;      /* [rows_max][(heads + 2 * kv_heads) * head_dim] */
    act *attn;     /* [rows_max][heads * head_dim] output of attention */
    act *hidden;   /* [rows_max][2 * hidden] */
    act *gated;    /* [rows_max][hidden] */
    float *logits; /* [logit_rows_max][vocabulary] */
    void *cache;   /* [depth][sequences * slots] slots (kern_cache_slot_bytes) */
    float *kept;   /* [rows_max][D] with keep, features before the scatter to their slots; hidden rows of vectors */
    float *features; /* [sequences * slots][D]; NULL unless keep */
    /* Of a model of vectors. */
    float *token;     /* [rows_max][token_dim] */
    float *projected; /* [rows_max][project_hidden] between two layers of the projection */
    float *embedded;  /* [rows_max][D] before input_norm */
} causal_pass;

/* Creates passes for up to `sequences` sequences of `slots` slots. A sequence has at most `rows` rows and `logit_rows`
 * rows of the output layer in a pass. k and model must outlive it. Returns MAR_ENOMEM without memory. */
mar_status causal_pass_create(kern_queue *k, const causal_model *model, int sequences, int slots, int rows,
                              int logit_rows, int keep, causal_pass *out, mar_err *err);
void causal_pass_free(causal_pass *p);                  /* leaves it empty */
size_t causal_pass_lay_out(causal_pass *p, char *base); /* as diff_chain_lay_out */
/* Prepares the products of passes with this many rows, and rows of the output layer, so that they allocate nothing. */
mar_status causal_pass_plan(const causal_pass *p, int rows, int logit_rows, mar_err *err);

/* Starts the list of a pass's rows. They are embedded by rows of `table`; with `drawn`, by rows drawn[embedding] of
 * it. */
void causal_pass_begin(causal_pass *p, const float *table, const int *drawn);
/* Starts one whose rows are vectors, rows of `vectors` [..][token_dim]. */
void causal_pass_begin_vectors(causal_pass *p, const float *vectors);
/* Adds a span: a sequence with rows in this pass. Add its slots next, then its rows. */
void causal_pass_add_span(causal_pass *p);
void causal_pass_add_slot(causal_pass *p, int sequence, int slot);
void causal_pass_add_slots(causal_pass *p, int sequence, const int *slot, int n);
/* Makes the slots added so far visible to all rows of the span. */
void causal_pass_set_common(causal_pass *p);
/* Adds a row to the last span. Returns its mask, in which only the common slots are visible. */
uint64_t *causal_pass_add_row(causal_pass *p, int embedding, int position, int sequence, int slot);
/* Add slots to a row's mask, numbered after the common ones: n slots from `first` on, or a draft and its ancestors,
 * where draft 0 has number `first`. */
void causal_mask_add(uint64_t *mask, int first, int n);
void causal_mask_add_path(uint64_t *mask, int first, const int *parent, int draft);
/* Embeddings of a prompt that are read at a time: those of all its ids would take megabytes. */
enum { CAUSAL_PROMPT_ROWS = 16 };
/* Writes the embeddings of n ids of a model with prompts to backend float [n][D], by way of host float
 * [CAUSAL_PROMPT_ROWS][D]. The queue fails if they cannot be read. */
void causal_embed_ids(kern_queue *k, const causal_model *m, const float *ids, int n, float *host, float *to);
/* Computes the rows. Their keys, values and, with keep, features are then in their slots. */
void causal_pass_rows(const causal_pass *p);
/* Runs the layers in place on x, the rows' embeddings. */
void causal_pass_layers(const causal_pass *p);
/* Wants the hidden row of `row`, which the token `next` follows, as row `to` of the result. */
void causal_pass_want(causal_pass *p, int row, int next, int to);
/* Computes the logits of the listed rows. */
void causal_pass_logits(const causal_pass *p);
/* Writes the hidden rows that are wanted: norm(x), plus next_position of the next token if the model has it, through
 * its layer `condition` if it has one. */
void causal_pass_hidden(const causal_pass *p, float *hidden);
/* Turns logits into log probabilities (kern_probs_job). cfg and place are host, one for each row of the conditional
 * branch. */
void causal_pass_log_probs(const causal_pass *p, const causal_sampling *sampling, const float *cfg, const int *place,
                           float *log_probs);
/* Returns the arithmetic of rows and logits, 2 a multiply-add. */
double causal_pass_flop(const causal_pass *p);
/* Returns the bytes that rows and logits must read: weights, and keys and values in visible slots, each once. */
double causal_pass_bytes(const causal_pass *p);

#endif
