/* A transformer block at work: its parts, for the plain pass and for passes that compute less. */
#ifndef NETS_MASKED_BLOCK_H
#define NETS_MASKED_BLOCK_H

#include "nets/masked.h"

/* A sequence of the encoder's rows on their way to the decoder: its buffer, then its known tokens, the most recently
 * known first. */
typedef struct {
    int image;  /* as in the session's embeddings */
    int branch; /* 0 conditional, 1 unconditional */
    int length; /* its rows */
} masked_sequence;

/* What stands between encoder and decoder, such as a language model (nets/between.h). Each pass calls it anew. */
typedef struct masked_between masked_between;
struct masked_between {
    /* Writes the decoder's rows act [rows][D] for the encoder's, float x [rows][D] after encoder_norm, which it
     * overwrites. They are those of the sequences list [n]. position host [rows] is a row's place in the decoder: the
     * buffer, then the tokens in raster order. */
    void (*run)(masked_between *b, const masked_sequence *list, int n, const int *position, int rows, float *x,
                act *out);
    /* Prepares for passes over n sequences of `rows` rows each, so that they allocate nothing. */
    mar_status (*plan)(masked_between *b, int n, int rows, mar_err *err);
};

/* Working memory for `sequences` sequences (images x branches), carved from a session's arena. R = sequences * (buffer
 * + seq_len), D = width. */
typedef struct {
    kern_queue *k; /* queue of the passes */
    float *x;      /* [R][D] residual stream */
    float *memory; /* [R][D] encoder output, the decoder's input; then the residual stream of the predicted rows */
    act *normed;   /* [R][D] */
    act *qkv;      /* [R][3D] */
    act *attn;     /* [R][D] output of attention */
    act *hidden;   /* [R][masked_hidden_width] */
    int *rows[3];  /* host [R] index lists */
    masked_sequence *list;   /* host [sequences] those of the encoder's output */
    masked_between *between; /* NULL: the decoder has the encoder's rows as they are */
} masked_workspace;

/* Returns the width of w->hidden: that of an MLP, or of a row's queries, keys and values. */
size_t masked_hidden_width(const masked_net *m);
/* Carves the arrays out of base from *used on. hidden is the width of w->hidden. */
void masked_workspace_lay_out(masked_workspace *w, char *base, size_t *used, size_t rows, size_t d, size_t hidden);

/* The rows of each sequence, for attention. */
typedef struct {
    int sequences, rows; /* rows: of all sequences */
    /* Host [sequences]: sequence s has rows first[s] .. first[s] + length[s] - 1; both NULL: sequences are consecutive
     * and equally long. */
    const int *first, *length;
} masked_spans;

/* Shows a layer's output to the search for the first non-finite layer (kern_watch): rows of `width`, float if f32, else
 * act. `layer` is its name, such as "attn.proj", in block b unless b is NULL. */
void masked_watch(kern_queue *k, const masked_net *m, const masked_block *b, const char *layer, const void *x, int f32,
                  int rows, int width);
/* Computes y[r] = norm(x[index ? index[r] : r]), rows of D, float if f32, else act. */
void masked_layer_norm(kern_queue *k, const masked_net *m, const float *x, const int *index, int rows, masked_norm n,
                       void *y, int f32);
/* In these functions x_act is NULL, or x as operands, in w->normed: what masked_blocks_run or masked_block_mlp has
 * returned, with neither x nor w->normed changed since. */
/* Computes qkv [n][3D]: the block's queries, keys and values of rows index[n] of x; index NULL: rows 0 .. n-1. */
void masked_block_qkv(const masked_net *m, masked_workspace *w, const masked_block *b, const float *x, const act *x_act,
                      const int *index, int n, act *qkv);
/* Runs n blocks in place over the sequences in w->x. Returns x_act of w->x. */
const act *masked_blocks_run(const masked_net *m, masked_workspace *w, const masked_block *b, int n,
                             const masked_spans *spans);
/* Computes x += fc2(gelu(fc1(LN2(x)))). Returns x_act of the new x. */
const act *masked_block_mlp(const masked_net *m, masked_workspace *w, const masked_block *b, float *x, const act *x_act,
                            int rows);
/* Computes the last decoder block's keys and values of x: w->qkv act [rows][2D]. */
void masked_last_block_kv(const masked_net *m, masked_workspace *w, const masked_block *b, const float *x,
                          const act *x_act, int rows);
/* Runs the last decoder block for some rows of each sequence only. The queries are the rows query_rows of x, host
 * [queries->rows]; kv is act [keys->rows][2D]. Writes y [queries->rows][D]. queries and keys have the same sequences;
 * both have lists, or neither has. */
void masked_last_block_run(const masked_net *m, masked_workspace *w, const masked_block *b, const float *x,
                           const int *query_rows, const masked_spans *queries, const act *kv, const masked_spans *keys,
                           float *y);
/* Prepares a block's products with this many rows. kv_rows is that of the last block's keys and values. */
mar_status masked_block_plan(kern_queue *k, const masked_block *b, int rows, int kv_rows, mar_err *err);
/* Returns the arithmetic, 2 per multiply-add, of a block with `rows` query rows and `kv_rows` key rows. */
double masked_block_flop(const masked_net *m, double rows, double kv_rows, double kv_length);
/* Returns the arithmetic of the queries, keys and values of this many rows. */
double masked_qkv_flop(const masked_net *m, double rows);

#endif
