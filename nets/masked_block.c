/* A transformer block at work (nets/masked_block.h). */
#include "nets/masked_block.h"

#include "base/arena.h"
#include "kernels/causal.h"

static const float ln_eps = 1e-6f; /* norm_layer=partial(nn.LayerNorm, eps=1e-6) in every MAR model */

void masked_layer_norm(kern_queue *k, const masked_net *m, const float *x, const int *index, int rows, masked_norm n,
                       void *y, int f32)
{
    const int d = m->shape.width;
    k->core->layer_norm(k, x, index, rows, d, n, n + d, ln_eps, y, f32);
}

static const act *masked_act_at(const kern_queue *k, const act *p, int elements)
{
    return (const char *)p + (size_t)elements * k->device->act_size;
}

void masked_watch(kern_queue *k, const masked_net *m, const masked_block *b, const char *layer, const void *x, int f32,
                  int rows, int width)
{
    const masked_shape *c = &m->shape;
    const int encodes = b >= m->encoder && b < m->encoder + c->encoder_depth;
    const mar_dtype type = f32 ? MAR_DTYPE_F32 : MAR_DTYPE_AUTO;
    if (!k->watch.on) return;
    if (b)
        kern_watch(k, x, type, rows, width, width, "%s_blocks.%d.%s", encodes ? "encoder" : "decoder",
                   (int)(b - (encodes ? m->encoder : m->decoder)), layer);
    else
        kern_watch(k, x, type, rows, width, width, "%s", layer);
}

/* --- a block ------------------------------------------------------------------------------------------------------ */

/* Computes y = layer(norm(x)); x_act NULL, or x as operands, in w->normed. */
static void masked_normed_linear(const masked_net *m, masked_workspace *w, const masked_block *b, const char *name,
                                 const kern_linear *layer, masked_norm norm, const float *x, const act *x_act,
                                 const int *index, int rows, act *y)
{
    kern_queue *k = w->k;
    const int d = m->shape.width;
    const kern_skinny_job job = {.rows = rows,
                                 .x = x,
                                 .index = index,
                                 .norm = norm,
                                 .norm_bias = norm + d,
                                 .x_act = x_act,
                                 .normed = w->normed,
                                 .eps = ln_eps,
                                 .y = y};
    const int done = k->device->product_rows ? k->fused->skinny(k, layer, &job) : KERN_SKINNY_NOT;
    if (done == KERN_SKINNY_DONE) return;
    if (done == KERN_SKINNY_NOT) masked_layer_norm(k, m, x, index, rows, norm, w->normed, 0);
    masked_watch(k, m, b, name, w->normed, 0, rows, d);
    k->core->linear(k, layer, w->normed, rows, y);
}

/* Computes x += layer(y). Returns w->normed if it gets the new x as operands, else NULL. */
static const act *masked_add_linear(masked_workspace *w, const kern_linear *layer, const act *y, int rows, float *x)
{
    kern_queue *k = w->k;
    const kern_skinny_job job = {.rows = rows, .x = y, .y = x, .y_act = w->normed};
    const int done = k->device->product_rows ? k->fused->skinny(k, layer, &job) : KERN_SKINNY_NOT;
    if (done == KERN_SKINNY_NOT) k->core->linear(k, layer, y, rows, x);
    return done == KERN_SKINNY_ROUNDED ? w->normed : NULL;
}

void masked_block_qkv(const masked_net *m, masked_workspace *w, const masked_block *b, const float *x, const act *x_act,
                      const int *index, int n, act *qkv)
{
    masked_normed_linear(m, w, b, "norm1", b->qkv, b->norm1, x, x_act, index, n, qkv);
    masked_watch(w->k, m, b, "attn.qkv", qkv, 0, n, 3 * m->shape.width);
}

/* Computes w->attn, the attention of the sequences' queries to their keys and values. */
static void masked_attend(const masked_net *m, masked_workspace *w, const masked_block *b, const act *q, int q_stride,
                          const masked_spans *queries, const act *key, const act *value, int kv_stride,
                          const masked_spans *keys)
{
    kern_queue *k = w->k;
    const int n = queries->sequences, heads = b->heads, head_dim = m->shape.width / heads;
    if (queries->first)
        k->core->attention_spans(k, q, q_stride, queries->first, queries->length, key, value, kv_stride, keys->first,
                                 keys->length, n, heads, head_dim, NULL, 0, w->attn);
    else if (n > 0)
        k->core->attention(k, q, q_stride, key, value, kv_stride, n, queries->rows / n, keys->rows / n, heads, head_dim,
                           w->attn);
}

const act *masked_block_mlp(const masked_net *m, masked_workspace *w, const masked_block *b, float *x, const act *x_act,
                            int rows)
{
    masked_normed_linear(m, w, b, "norm2", b->fc1, b->norm2, x, x_act, NULL, rows, w->hidden);
    masked_watch(w->k, m, b, "mlp.fc1", w->hidden, 0, rows, m->shape.mlp_hidden);
    x_act = masked_add_linear(w, b->fc2, w->hidden, rows, x);
    masked_watch(w->k, m, b, "mlp.fc2", x, 1, rows, m->shape.width);
    return x_act;
}

/* proj and fc2 add to the residual stream themselves, and the next norm reads it. With bf16 operands that moves 4 + 4
 * bytes an element in the product and 4 + 2 in the norm. A fused add and norm would save the product's 8, some of which
 * its arithmetic hides. It would move 4 as the product's output and 4 + 4 + 4 + 2 itself: 18 bytes in place of 14. */
static const act *masked_block_run(const masked_net *m, masked_workspace *w, const masked_block *b,
                                   const masked_spans *spans, const act *x_act)
{
    kern_queue *k = w->k;
    const int d = m->shape.width, rows = spans->rows;
    masked_block_qkv(m, w, b, w->x, x_act, NULL, rows, w->qkv);
    masked_attend(m, w, b, w->qkv, 3 * d, spans, masked_act_at(k, w->qkv, d), masked_act_at(k, w->qkv, 2 * d), 3 * d,
                  spans);
    masked_watch(k, m, b, "attn", w->attn, 0, rows, d);
    x_act = masked_add_linear(w, b->proj, w->attn, rows, w->x);
    masked_watch(k, m, b, "attn.proj", w->x, 1, rows, d);
    return masked_block_mlp(m, w, b, w->x, x_act, rows);
}

const act *masked_blocks_run(const masked_net *m, masked_workspace *w, const masked_block *b, int n,
                             const masked_spans *spans)
{
    const act *x_act = NULL;
    for (int i = 0; i < n; i++) x_act = masked_block_run(m, w, b + i, spans, x_act);
    return x_act;
}

/* --- the last decoder block --------------------------------------------------------------------------------------- */

void masked_last_block_kv(const masked_net *m, masked_workspace *w, const masked_block *b, const float *x,
                          const act *x_act, int rows)
{
    masked_normed_linear(m, w, b, "norm1", b->kv, b->norm1, x, x_act, NULL, rows, w->qkv);
    masked_watch(w->k, m, b, "attn.qkv", w->qkv, 0, rows, 2 * m->shape.width);
}

void masked_last_block_run(const masked_net *m, masked_workspace *w, const masked_block *b, const float *x,
                           const int *query_rows, const masked_spans *queries, const act *kv, const masked_spans *keys,
                           float *y)
{
    kern_queue *k = w->k;
    const int d = m->shape.width, rows = queries->rows;
    act *query = w->hidden; /* at least D wide */
    masked_normed_linear(m, w, b, "norm1", b->q, b->norm1, x, NULL, query_rows, rows, query);
    masked_watch(k, m, b, "attn.qkv", query, 0, rows, d);
    masked_attend(m, w, b, query, d, queries, kv, masked_act_at(k, kv, d), 2 * d, keys);
    masked_watch(k, m, b, "attn", w->attn, 0, rows, d);
    k->core->copy_rows(k, y, NULL, x, query_rows, NULL, NULL, rows, d);
    const act *y_act = masked_add_linear(w, b->proj, w->attn, rows, y);
    masked_watch(k, m, b, "attn.proj", y, 1, rows, d);
    masked_block_mlp(m, w, b, y, y_act, rows);
}

/* --- memory, plans and arithmetic --------------------------------------------------------------------------------- */

size_t masked_hidden_width(const masked_net *m)
{
    const masked_shape *c = &m->shape;
    return (size_t)(c->mlp_hidden > 3 * c->width ? c->mlp_hidden : 3 * c->width);
}

void masked_workspace_lay_out(masked_workspace *w, char *base, size_t *used, size_t rows, size_t d, size_t hidden)
{
    const size_t act_size = w->k->device->act_size;
    w->x = arena_carve(base, used, rows * d, sizeof(float));
    w->memory = arena_carve(base, used, rows * d, sizeof(float));
    w->normed = arena_carve(base, used, rows * d, act_size);
    w->qkv = arena_carve(base, used, rows * 3 * d, act_size);
    w->attn = arena_carve(base, used, rows * d, act_size);
    w->hidden = arena_carve(base, used, rows * hidden, act_size);
}

mar_status masked_block_plan(kern_queue *k, const masked_block *b, int rows, int kv_rows, mar_err *err)
{
    struct {
        kern_linear *layer;
        int rows;
    } use[] = {{b->qkv, rows}, {b->q, rows}, {b->kv, kv_rows}, {b->proj, rows}, {b->fc1, rows}, {b->fc2, rows}};
    mar_status status = MAR_OK;
    for (size_t i = 0; status == MAR_OK && i < sizeof use / sizeof *use; i++)
        if (use[i].layer) status = k->core->linear_plan(k, use[i].layer, use[i].rows, err);
    return status;
}

double masked_block_flop(const masked_net *m, double rows, double kv_rows, double kv_length)
{
    const double d = m->shape.width, hidden = m->shape.mlp_hidden;
    return 2 * (rows * (2 * d * d + 2 * d * hidden + 2 * kv_length * d) + kv_rows * 2 * d * d);
}

double masked_qkv_flop(const masked_net *m, double rows)
{
    const double d = m->shape.width;
    return 2 * rows * 3 * d * d;
}
