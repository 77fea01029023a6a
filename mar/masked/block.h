/* A transformer block at work: its parts, for the plain pass and for passes that compute less. */
#ifndef MAR_BLOCK_H
#define MAR_BLOCK_H

#include "mar/masked/model.h"

/* Working memory for `sequences` sequences (images x branches), carved from a session's arena. R = sequences * (buffer
 * + seq_len), D = width. */
typedef struct {
    kern_queue *k; /* queue of the passes */
    float *x;      /* [R][D] residual stream */
    float *memory; /* [R][D] encoder output, the decoder's input; then the residual stream of the predicted rows */
    act *normed;   /* [R][D] */
    act *qkv;      /* [R][3D] */
    act *attn;     /* [R][D] output of attention */
    act *hidden;   /* [R][mar_hidden_width] */
    int *rows[3];  /* host [R] index lists */
} mar_workspace;

/* Returns the width of w->hidden: that of an MLP, or of a row's queries, keys and values. */
size_t mar_hidden_width(const mar_masked_model *m);
/* Carves the arrays out of base from *used on. hidden is the width of w->hidden. */
void mar_workspace_lay_out(mar_workspace *w, char *base, size_t *used, size_t rows, size_t d, size_t hidden);

/* The rows of each sequence, for attention. */
typedef struct {
    int sequences, rows; /* rows: of all sequences */
    /* Host [sequences]: sequence s has rows first[s] .. first[s] + length[s] - 1; both NULL: sequences are consecutive
     * and equally long. */
    const int *first, *length;
} mar_spans;

/* Shows a layer's output to the search for the first non-finite layer (kern_watch): rows of `width`, float if f32, else
 * act. `layer` is its name, such as "attn.proj", in block b unless b is NULL. */
void mar_watch(kern_queue *k, const mar_masked_model *m, const mar_block *b, const char *layer, const void *x, int f32,
               int rows, int width);
/* Computes y[r] = norm(x[index ? index[r] : r]), rows of D, float if f32, else act. */
void mar_layer_norm(kern_queue *k, const mar_masked_model *m, const float *x, const int *index, int rows, mar_norm n,
                    void *y, int f32);
/* Computes qkv [n][3D]: the block's queries, keys and values of rows index[n] of x; index NULL: rows 0 .. n-1. */
void mar_block_qkv(const mar_masked_model *m, mar_workspace *w, const mar_block *b, const float *x, const int *index,
                   int n, act *qkv);
/* Runs a block in place over the sequences in w->x. */
void mar_block_run(const mar_masked_model *m, mar_workspace *w, const mar_block *b, const mar_spans *spans);
/* Computes x += fc2(gelu(fc1(LN2(x)))). */
void mar_block_mlp(const mar_masked_model *m, mar_workspace *w, const mar_block *b, float *x, int rows);
/* Computes the last decoder block's keys and values of x: w->qkv act [rows][2D]. */
void mar_last_block_kv(const mar_masked_model *m, mar_workspace *w, const mar_block *b, const float *x, int rows);
/* Runs the last decoder block for some rows of each sequence only. The queries are the rows query_rows of x, host
 * [queries->rows]; kv is act [keys->rows][2D]. Writes y [queries->rows][D]. queries and keys have the same sequences;
 * both have lists, or neither has. */
void mar_last_block_run(const mar_masked_model *m, mar_workspace *w, const mar_block *b, const float *x,
                        const int *query_rows, const mar_spans *queries, const act *kv, const mar_spans *keys,
                        float *y);
/* Prepares a block's products with this many rows. kv_rows is that of the last block's keys and values. */
mar_status mar_block_plan(kern_queue *k, const mar_block *b, int rows, int kv_rows, mar_err *err);
/* Returns the arithmetic, 2 per multiply-add, of a block with `rows` query rows and `kv_rows` key rows. */
double mar_block_flop(const mar_masked_model *m, double rows, double kv_rows, double kv_length);
/* Returns the arithmetic of the queries, keys and values of this many rows. */
double mar_qkv_flop(const mar_masked_model *m, double rows);

#endif
