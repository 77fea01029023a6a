/* One pass of the transformer over new rows of several sequences. A row is a prefix position, a token or a
 * draft. */
#ifndef LLAMAGEN_PASS_H
#define LLAMAGEN_PASS_H

#include "llamagen/model.h"
#include "llamagen/request.h"

typedef struct {
    kern_queue *k;
    const gpt_model *model;
    int sequences, slots; /* the cache has `slots` slots for each of `sequences` sequences */
    int rows_max, logit_rows_max;
    int words;                  /* 64-bit words of a row's mask */
    kern_cache_type cache_type; /* of keys and values; may be set before gpt_pass_lay_out */
    int keep;                   /* 1: the features of each row are kept */

    /* The rows of the current pass, host. A row is a position of a sequence; a sequence is an image in one CFG
     * branch. */
    int rows, spans, logit_rows; /* logit_rows: rows of the output layer, of all branches */
    const float *table;          /* backend: embedding table */
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
    double attended; /* slots attended to, summed over rows */

    /* Backend memory, from gpt_pass_lay_out. D = width. */
    float *x;      /* [rows_max + sequences][D] residual stream; after the rows, each sequence's last prefix position */
    act *normed;   /* [rows_max or logit_rows_max][D] */
    act *qkv;      /* [rows_max][D + 2 * kv_heads * head_dim] */
    act *attn;     /* [rows_max][D] output of attention */
    act *hidden;   /* [rows_max][2 * hidden] */
    act *gated;    /* [rows_max][hidden] */
    float *logits; /* [logit_rows_max][vocabulary] */
    void *cache;   /* [depth][sequences * slots] slots (kern_cache_slot_bytes) */
    float *kept;   /* [rows_max][D] features before the scatter to their slots; NULL unless keep */
    float *features; /* [sequences * slots][D]; NULL unless keep */
} gpt_pass;

/* Creates passes for up to `sequences` sequences of `slots` slots. A sequence has at most `rows` rows and `logit_rows`
 * rows of the output layer in a pass. k and model must outlive it. Returns MAR_ENOMEM without memory. */
mar_status gpt_pass_create(kern_queue *k, const gpt_model *model, int sequences, int slots, int rows, int logit_rows,
                           int keep, gpt_pass *out, mar_err *err);
void gpt_pass_free(gpt_pass *p);                  /* leaves it empty */
size_t gpt_pass_lay_out(gpt_pass *p, char *base); /* as diff_chain_lay_out */
/* Prepares the products of passes with this many rows, and rows of the output layer, so that they allocate nothing. */
mar_status gpt_pass_plan(const gpt_pass *p, int rows, int logit_rows, mar_err *err);

/* Starts the list of a pass's rows. They are embedded by rows of `table`; with `drawn`, by rows drawn[embedding] of
 * it. */
void gpt_pass_begin(gpt_pass *p, const float *table, const int *drawn);
/* Adds a span: a sequence with rows in this pass. Add its slots next, then its rows. */
void gpt_pass_add_span(gpt_pass *p);
void gpt_pass_add_slot(gpt_pass *p, int sequence, int slot);
void gpt_pass_add_slots(gpt_pass *p, int sequence, const int *slot, int n);
/* Makes the slots added so far visible to all rows of the span. */
void gpt_pass_set_common(gpt_pass *p);
/* Adds a row to the last span. Returns its mask, in which only the common slots are visible. */
uint64_t *gpt_pass_add_row(gpt_pass *p, int embedding, int position, int sequence, int slot);
/* Add slots to a row's mask, numbered after the common ones: n slots from `first` on, or a draft and its ancestors,
 * where draft 0 has number `first`. */
void gpt_mask_add(uint64_t *mask, int first, int n);
void gpt_mask_add_path(uint64_t *mask, int first, const int *parent, int draft);
/* Computes the rows. Their keys, values and, with keep, features are then in their slots. */
void gpt_pass_rows(const gpt_pass *p);
/* Runs the layers in place on x, the rows' embeddings. */
void gpt_pass_layers(const gpt_pass *p);
/* Computes the logits of the listed rows. */
void gpt_pass_logits(const gpt_pass *p);
/* Turns logits into log probabilities (kern_probs_job). cfg and place are host, one for each row of the conditional
 * branch. */
void gpt_pass_log_probs(const gpt_pass *p, const gpt_sampling *sampling, const float *cfg, const int *place,
                        float *log_probs);
/* Returns the arithmetic of rows and logits, 2 a multiply-add. */
double gpt_pass_flop(const gpt_pass *p);
/* Returns the bytes that rows and logits must read: weights, and keys and values in visible slots, each once. */
double gpt_pass_bytes(const gpt_pass *p);

#endif
