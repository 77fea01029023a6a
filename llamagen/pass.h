/* One pass of LlamaGen's transformer over new rows of several sequences: tokens, drafts, or what is in front of them.
 */
#ifndef LLAMAGEN_PASS_H
#define LLAMAGEN_PASS_H

#include "llamagen/model.h"
#include "llamagen/request.h"

typedef struct {
    kern_queue *k;
    const gpt_model *model;
    int sequences, slots; /* the cache has `slots` slots for each of `sequences` sequences */
    int rows_max, laws_max;
    int words; /* 64 bits each: of a row's mask */
    int keep;  /* 1: the features of each row are kept */

    /* What the pass at hand is about, host. A row is a token under a condition. */
    int rows, spans, laws; /* laws: rows that the output layer is given, of all conditions */
    const float *table;    /* backend: the rows' embeddings are rows of this */
    int *embedding;        /* [rows] which; with `drawn` the place there */
    const int *drawn;      /* NULL, or backend: the numbers of the rows' embeddings */
    int *position;         /* [rows] in the sequence, prefix included */
    int *slot;             /* [rows] in the whole cache */
    uint64_t *mask;        /* [rows][words] */
    int *row, *first;      /* [spans + 1] as in kern_cache_job */
    int *common;           /* [spans] */
    int *list;             /* the spans' slots */
    int *law;              /* [laws] rows; rows_max + s is the last position in front of sequence s's image tokens */
    double known;          /* slots that rows know, summed over rows */

    /* Backend memory: gpt_pass_lay_out. D = width. */
    float *x;        /* [rows_max + sequences][D] residual stream; behind the rows what `law` says of the prefix */
    act *normed;     /* [rows_max or laws_max][D] */
    act *qkv;        /* [rows_max][3D] */
    act *mixed;      /* [rows_max][D] attention's output */
    act *hidden;     /* [rows_max][2 * hidden] */
    act *gated;      /* [rows_max][hidden] */
    float *logits;   /* [laws_max][vocabulary] */
    act *cache;      /* [depth][sequences * slots][2D] */
    float *kept;     /* [rows_max][D] features on their way; NULL unless keep */
    float *features; /* [sequences * slots][D]; NULL unless keep */
} gpt_pass;

/* For up to `sequences` sequences of `slots` slots, each of which has at most `rows` rows and `laws` laws in a pass.
 * MAR_ENOMEM. */
mar_status gpt_pass_create(kern_queue *k, const gpt_model *model, int sequences, int slots, int rows, int laws,
                           int keep, gpt_pass *out, mar_err *err);
void gpt_pass_free(gpt_pass *p);                  /* and leaves it empty */
size_t gpt_pass_lay_out(gpt_pass *p, char *base); /* as diff_chain_lay_out */
/* Makes what passes of this many rows, and laws, need. */
mar_status gpt_pass_plan(const gpt_pass *p, int rows, int laws, mar_err *err);

/* Starts the list of a pass's rows, embedded by rows of `table`; `drawn` NULL, or which rows of it (gpt_pass.drawn). */
void gpt_pass_begin(gpt_pass *p, const float *table, const int *drawn);
/* Adds a span: a sequence that has rows in this pass. Its slots are added next, then its rows. */
void gpt_pass_add_span(gpt_pass *p);
void gpt_pass_add_slot(gpt_pass *p, int sequence, int slot);
void gpt_pass_add_slots(gpt_pass *p, int sequence, const int *slot, int n);
/* The slots added so far are known to all rows of the span. */
void gpt_pass_set_common(gpt_pass *p);
/* Adds a row of the last span and returns its mask, which knows nothing but the common slots yet. */
uint64_t *gpt_pass_add_row(gpt_pass *p, int embedding, int position, int sequence, int slot);
/* Adds to a row's mask n slots from number `first` of those that are not common, or those of a draft and what it
 * follows, where draft 0 has number `first`. */
void gpt_mask_add(uint64_t *mask, int first, int n);
void gpt_mask_add_path(uint64_t *mask, int first, const int *parent, int draft);
/* Computes the rows: keys, values and, with keep, features are in their slots then. */
void gpt_pass_rows(const gpt_pass *p);
/* The layers alone: x, which has the rows' embeddings, becomes what the last layer makes of them. */
void gpt_pass_layers(const gpt_pass *p);
/* logits = the output layer at the laws' rows. */
void gpt_pass_logits(const gpt_pass *p);
/* Makes the laws of the logits: cfg and place host, one for each law of condition 0 (kern_law_job). */
void gpt_pass_laws(const gpt_pass *p, const gpt_sampling *sampling, const float *cfg, const int *place, float *log_law);
/* Arithmetic of rows and logits, 2 a multiply-add. */
double gpt_pass_flop(const gpt_pass *p);
/* What these must read: weights, and the keys and values that some row knows, each once. */
double gpt_pass_bytes(const gpt_pass *p);

#endif
