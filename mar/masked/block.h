/* A block of the transformer at work: its parts, for the plain pass and for passes that compute less. */
#ifndef MAR_BLOCK_H
#define MAR_BLOCK_H

#include "mar/masked/model.h"

/* Working memory for `sequences` sequences (images x conditions), carved from a session's arena.
 * R = sequences * (buffer + seq_len), D = width. */
typedef struct {
    kern_queue *k; /* which the passes run on */
    float *x;      /* [R][D] residual stream */
    float *memory; /* [R][D] encoder output on its way into the decoder; then the predicted rows' stream */
    act *normed;   /* [R][D] */
    act *qkv;      /* [R][3D] */
    act *mixed;    /* [R][D] attention output */
    act *hidden;   /* [R][mar_hidden_width] */
    int *rows[3];  /* host [R] index lists */
} mar_workspace;

/* The width of w->hidden that passes of the model need: that of an MLP, or of a row's queries, keys and values. */
size_t mar_hidden_width(const mar_masked_model *m);
/* Cuts the arrays of rows of width D out of base from *used on; hidden: the width of a row of w->hidden. */
void mar_workspace_lay_out(mar_workspace *w, char *base, size_t *used, size_t rows, size_t d, size_t hidden);

/* Sequences of rows, for attention. */
typedef struct {
    int sequences, rows;       /* rows: of all sequences */
    const int *first, *length; /* host [sequences]: sequence s has rows first[s] .. first[s] + length[s] - 1; both NULL:
                                * the sequences lie one after another and are equally long */
} mar_spans;

/* The output of a layer, for the search for the first that is not finite (kern_watch): rows of `width`, act or float if
 * f32. `layer` is its name, in block b unless that is NULL: "attn.proj". */
void mar_watch(kern_queue *k, const mar_masked_model *m, const mar_block *b, const char *layer, const void *x, int f32,
               int rows, int width);
/* y[r] = norm(x[index ? index[r] : r]), rows of D: act, or float if f32. */
void mar_layer_norm(kern_queue *k, const mar_masked_model *m, const float *x, const int *index, int rows, mar_norm n,
                    void *y, int f32);
/* operands [n][3D] = the queries, keys and values that a block makes of rows index[n] of x; index NULL: of 0 .. n-1. */
void mar_block_operands(const mar_masked_model *m, mar_workspace *w, const mar_block *b, const float *x,
                        const int *index, int n, act *operands);
/* to[to_index[r]] = from[from_index[r]], rows of parts * D operands; NULL for an index is 0 .. n-1. */
void mar_copy_operands(kern_queue *k, const mar_masked_model *m, act *to, const int *to_index, const act *from,
                       const int *from_index, int n, int parts);
/* A block over the sequences in w->x. */
void mar_block_run(const mar_masked_model *m, mar_workspace *w, const mar_block *b, const mar_spans *spans);
/* The rest of it, where w->qkv has the queries, keys and values act [rows][3D] of w->x already. */
void mar_block_attend(const mar_masked_model *m, mar_workspace *w, const mar_block *b, const mar_spans *spans);
/* x += fc2(gelu(fc1(LN2(x)))) */
void mar_block_mlp(const mar_masked_model *m, mar_workspace *w, const mar_block *b, float *x, int rows);
/* The last decoder block's keys and values: w->qkv act [rows][2D]. */
void mar_block_keys(const mar_masked_model *m, mar_workspace *w, const mar_block *b, const float *x, int rows);
/* The last decoder block for some rows of each sequence only: y [queries->rows][D] from the rows `asked` of x, host
 * [queries->rows], with kv act [keys->rows][2D]. queries and keys have the same sequences; both have lists, or neither
 * has. */
void mar_block_ask(const mar_masked_model *m, mar_workspace *w, const mar_block *b, const float *x, const int *asked,
                   const mar_spans *queries, const act *kv, const mar_spans *keys, float *y);
mar_status mar_block_plan(kern_queue *k, const mar_block *b, int rows, int kv_rows, mar_err *err);
/* Arithmetic, 2 per multiply-add, of a block in which `rows` rows ask and `kv_rows` rows answer. */
double mar_block_flop(const mar_masked_model *m, double rows, double kv_rows, double kv_length);
/* Of the queries, keys and values of so many rows. */
double mar_operands_flop(const mar_masked_model *m, double rows);

#endif
