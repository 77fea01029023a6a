#include "nets/causal_pass.h"

#include "base/arena.h"
#include "kernels/discrete.h"
#include "kernels/int4.h"

#include <stdlib.h>
#include <string.h>

/* --- the rows of a pass ------------------------------------------------------------------------------------------- */

void causal_pass_begin(causal_pass *p, const float *table, const int *drawn)
{
    p->rows = p->spans = p->logit_rows = 0;
    p->attended = 0;
    p->table = table;
    p->drawn = drawn;
    p->vectors = 0;
    p->row[0] = p->first[0] = 0;
}

void causal_pass_begin_vectors(causal_pass *p, const float *vectors)
{
    causal_pass_begin(p, vectors, NULL);
    p->vectors = 1;
}

void causal_pass_add_span(causal_pass *p)
{
    const int s = p->spans++;
    p->common[s] = 0;
    p->row[s + 1] = p->row[s];
    p->first[s + 1] = p->first[s];
}

void causal_pass_add_slot(causal_pass *p, int sequence, int slot)
{
    p->list[p->first[p->spans]++] = sequence * p->slots + slot;
}

void causal_pass_add_slots(causal_pass *p, int sequence, const int *slot, int n)
{
    for (int i = 0; i < n; i++) causal_pass_add_slot(p, sequence, slot[i]);
}

void causal_pass_set_common(causal_pass *p)
{
    p->common[p->spans - 1] = p->first[p->spans] - p->first[p->spans - 1];
}

uint64_t *causal_pass_add_row(causal_pass *p, int embedding, int position, int sequence, int slot)
{
    const int row = p->rows++;
    uint64_t *mask = p->mask + (size_t)row * (size_t)p->words;
    p->embedding[row] = embedding;
    p->position[row] = position;
    p->slot[row] = sequence * p->slots + slot;
    p->row[p->spans] = p->rows;
    memset(mask, 0, (size_t)p->words * sizeof *mask);
    return mask;
}

void causal_mask_add(uint64_t *mask, int first, int n)
{
    for (int i = first; i < first + n; i++) mask[i / 64] |= (uint64_t)1 << i % 64;
}

void causal_mask_add_path(uint64_t *mask, int first, const int *parent, int draft)
{
    for (int a = draft; a >= 0; a = parent[a]) causal_mask_add(mask, first + a, 1);
}

void causal_pass_want(causal_pass *p, int row, int next, int to)
{
    p->logit_row[p->logit_rows] = row;
    p->next[p->logit_rows] = next;
    p->to[p->logit_rows++] = to;
}

/* --- the transformer ---------------------------------------------------------------------------------------------- */

/* Returns the bytes of a slot in one layer. */
static size_t pass_slot_bytes(const causal_pass *p)
{
    return kern_cache_slot_bytes(p->k->device, p->cache_type, p->model->shape.kv_heads, p->model->shape.head_dim);
}

static void pass_norm(const causal_pass *p, const int *index, int rows, const float *weight, void *y, int f32)
{
    p->k->core->rms_norm(p->k, p->x, index, rows, p->model->shape.width, weight, p->model->shape.eps, y, f32);
}

/* Computes y = l(pass_norm(x)), or SwiGLU of it, in one kernel, if the backend has one for the rows. x_act NULL, or x
 * as operands, in p->normed. */
static int pass_skinny(const causal_pass *p, const kern_linear *l, const void *x, const act *x_act, const int *index,
                       int rows, const float *norm, int gated, void *y)
{
    const kern_skinny_job job = {.rows = rows,
                                 .x = x,
                                 .index = index,
                                 .norm = norm,
                                 .x_act = x_act,
                                 .normed = p->normed,
                                 .eps = p->model->shape.eps,
                                 .gated = gated,
                                 .y = y};
    return p->k->fused->skinny(p->k, l, &job);
}

/* Computes y = l(x). Returns p->normed if it gets the new y as operands, else NULL. */
static const act *pass_product(const causal_pass *p, const kern_linear *l, const act *x, void *y, int rounded)
{
    const kern_skinny_job job = {.rows = p->rows, .x = x, .y = y, .y_act = rounded ? p->normed : NULL};
    const int done = p->k->fused->skinny(p->k, l, &job);
    if (done == KERN_SKINNY_NOT) p->k->core->linear(p->k, l, x, p->rows, y);
    return done == KERN_SKINNY_ROUNDED ? p->normed : NULL;
}

/* Shows a layer's output to the search for the first non-finite one. */
static void pass_watch(const causal_pass *p, int layer, const char *name, const void *y, int f32, int width)
{
    kern_watch(p->k, y, f32 ? MAR_DTYPE_F32 : MAR_DTYPE_AUTO, p->rows, width, width, "layers.%d.%s", layer, name);
}

/* Returns the bytes of a layer's cache. */
static size_t pass_cache_bytes(const causal_pass *p)
{
    return (size_t)p->sequences * (size_t)p->slots * pass_slot_bytes(p);
}

/* Returns the first layer's attention, without norms. */
static kern_cache_job pass_attention(const causal_pass *p)
{
    const causal_shape *c = &p->model->shape;
    return (kern_cache_job){.rows = p->rows,
                            .heads = c->heads,
                            .kv_heads = c->kv_heads,
                            .head_dim = c->head_dim,
                            .type = p->cache_type,
                            .q = p->qkv,
                            .q_stride = causal_qkv_width(c),
                            .cache = p->cache,
                            .spans = p->spans,
                            .row = p->row,
                            .first = p->first,
                            .common = p->common,
                            .slot = p->list,
                            .mask = p->mask,
                            .words = p->words,
                            .causal = p->causal,
                            .max_slots = p->span_slots,
                            .rope = p->model->rope,
                            .position = p->position,
                            .own = p->slot,
                            .y = p->attn};
}

/* x += wo(attention(rope(wqkv(pass_norm(x))))), with norms of q and k in front of rope if there are any. Takes and
 * returns x_act. */
static const act *pass_attend(const causal_pass *p, int layer, const act *x_act)
{
    kern_queue *k = p->k;
    const causal_layer *l = &p->model->layers[layer];
    const causal_shape *c = &p->model->shape;
    const int d = c->width, qkv = causal_qkv_width(c);
    kern_cache_job job = pass_attention(p);
    job.cache = (char *)job.cache + (size_t)layer * pass_cache_bytes(p);
    job.q_norm = (kern_head_norm){l->q_norm, l->q_norm_bias, CAUSAL_HEAD_EPS};
    job.k_norm = (kern_head_norm){l->k_norm, l->k_norm_bias, CAUSAL_HEAD_EPS};
    int done = KERN_SKINNY_NORMED;
    if (!l->attention_norm) {
        k->core->to_act(k, p->x, (size_t)p->rows * (size_t)d, p->normed);
    } else {
        done = pass_skinny(p, l->qkv, p->x, x_act, NULL, p->rows, l->attention_norm, 0, p->qkv);
        if (done == KERN_SKINNY_NOT) pass_norm(p, NULL, p->rows, l->attention_norm, p->normed, 0);
        if (done != KERN_SKINNY_DONE) pass_watch(p, layer, "attention_norm", p->normed, 0, d);
    }
    if (done != KERN_SKINNY_DONE) pass_product(p, l->qkv, p->normed, p->qkv, 0);
    pass_watch(p, layer, "attention.wqkv", p->qkv, 0, qkv);
    k->core->attention_cache(k, &job);
    pass_watch(p, layer, "attention", p->attn, 0, causal_q_width(c));
    x_act = pass_product(p, l->wo, p->attn, p->x, 1);
    pass_watch(p, layer, "attention.wo", p->x, 1, d);
    return x_act;
}

/* x += w2(silu(w1(pass_norm(x))) * w3(pass_norm(x))). Takes and returns x_act. */
static const act *pass_feed_forward(const causal_pass *p, int layer, const act *x_act)
{
    kern_queue *k = p->k;
    const causal_layer *l = &p->model->layers[layer];
    const int d = p->model->shape.width, hidden = p->model->shape.hidden;
    const int done = pass_skinny(p, l->w13, p->x, x_act, NULL, p->rows, l->ffn_norm, 1, p->gated);
    if (done != KERN_SKINNY_DONE) {
        if (done == KERN_SKINNY_NOT) pass_norm(p, NULL, p->rows, l->ffn_norm, p->normed, 0);
        pass_watch(p, layer, "ffn_norm", p->normed, 0, d);
        k->fused->linear_gated(k, l->w13, p->normed, p->rows, KERN_SILU, p->hidden, p->gated);
        pass_watch(p, layer, "feed_forward.w1", p->hidden, 0, 2 * hidden);
    }
    pass_watch(p, layer, "feed_forward", p->gated, 0, hidden);
    x_act = pass_product(p, l->w2, p->gated, p->x, 1);
    pass_watch(p, layer, "feed_forward.w2", p->x, 1, d);
    return x_act;
}

void causal_pass_layers(const causal_pass *p)
{
    const kern_decode_job job = {pass_attention(p), pass_cache_bytes(p), p->x};
    if (p->model->decoder && !p->k->watch.on && p->k->fused->decode(p->k, p->model->decoder, &job)) return;
    const act *x_act = NULL;
    for (int i = 0; i < p->model->shape.depth; i++) x_act = pass_feed_forward(p, i, pass_attend(p, i, x_act));
}

/* y = projection of the rows' vectors */
static void pass_project(const causal_pass *p, float *y)
{
    const causal_model *m = p->model;
    kern_queue *k = p->k;
    const int d = m->shape.width, hidden = m->shape.project_hidden;
    k->core->copy_rows(k, p->token, NULL, p->table, p->embedding, NULL, NULL, p->rows, m->shape.token_dim);
    k->core->linear(k, m->project[0], p->token, p->rows, hidden ? p->projected : y);
    if (hidden) k->core->linear(k, m->project[1], p->projected, p->rows, y);
    const char *name = m->shape.names->project[hidden ? 1 : 0];
    kern_watch(k, y, MAR_DTYPE_F32, p->rows, d, d, "%.*s", (int)strcspn(name, "."), name);
}

/* Returns the name of the table that the rows are embedded by, for a message. */
static const char *table_name(const causal_pass *p)
{
    const causal_model *m = p->model;
    return p->table == m->token_emb ? "tok_embeddings" : "cls_embedding";
}

/* x = the rows' embeddings, with a norm if the model has one there */
static void pass_embed(const causal_pass *p)
{
    const causal_model *m = p->model;
    kern_queue *k = p->k;
    const int d = m->shape.width;
    float *y = m->input_norm ? p->embedded : p->x;
    if (p->vectors)
        pass_project(p, y);
    else if (p->drawn)
        k->core->embed(k, p->table, m->shape.vocabulary + m->shape.line_end, d, p->drawn, p->embedding, p->rows, y);
    else
        k->core->copy_rows(k, y, NULL, p->table, p->embedding, NULL, NULL, p->rows, d);
    if (!p->vectors) kern_watch(k, y, MAR_DTYPE_F32, p->rows, d, d, "%s", table_name(p));
    if (!m->input_norm) return;
    k->core->rms_norm(k, y, NULL, p->rows, d, m->input_norm, m->shape.eps, p->x, 1);
    kern_watch(k, p->x, MAR_DTYPE_F32, p->rows, d, d, "emb_norm");
}

void causal_pass_rows(const causal_pass *p)
{
    if (p->rows == 0) return;
    pass_embed(p);
    causal_pass_layers(p);
    if (!p->keep) return;
    pass_norm(p, NULL, p->rows, p->model->norm, p->kept, 1);
    p->k->core->copy_rows(p->k, p->features, p->slot, p->kept, NULL, NULL, NULL, p->rows, p->model->shape.width);
}

void causal_pass_hidden(const causal_pass *p, float *hidden)
{
    const causal_model *m = p->model;
    kern_queue *k = p->k;
    const int d = m->shape.width, n = p->logit_rows;
    if (n == 0) return;
    pass_norm(p, p->logit_row, n, m->norm, p->kept, 1);
    kern_watch(k, p->kept, MAR_DTYPE_F32, n, d, d, "norm");
    if (!m->condition) {
        k->core->copy_rows(k, hidden, p->to, p->kept, NULL, m->next_position, m->next_position ? p->next : NULL, n, d);
        return;
    }
    if (m->next_position) k->core->copy_rows(k, p->kept, NULL, p->kept, NULL, m->next_position, p->next, n, d);
    k->core->to_act(k, p->kept, (size_t)n * (size_t)d, p->normed);
    k->core->linear(k, m->condition, p->normed, n, p->kept);
    kern_watch(k, p->kept, MAR_DTYPE_F32, n, d, d, "%.*s", (int)strcspn(m->shape.names->condition, "."),
               m->shape.names->condition);
    k->core->copy_rows(k, hidden, p->to, p->kept, NULL, NULL, NULL, n, d);
}

void causal_pass_logits(const causal_pass *p)
{
    const causal_model *m = p->model;
    const int d = m->shape.width, vocabulary = m->shape.vocabulary;
    if (!pass_skinny(p, m->output, p->x, NULL, p->logit_row, p->logit_rows, m->norm, 0, p->logits)) {
        pass_norm(p, p->logit_row, p->logit_rows, m->norm, p->normed, 0);
        kern_watch(p->k, p->normed, MAR_DTYPE_AUTO, p->logit_rows, d, d, "norm");
        p->k->core->linear(p->k, m->output, p->normed, p->logit_rows, p->logits);
    }
    kern_watch(p->k, p->logits, MAR_DTYPE_F32, p->logit_rows, vocabulary, vocabulary, "output");
}

void causal_pass_log_probs(const causal_pass *p, const causal_sampling *sampling, const float *cfg, const int *place,
                           float *log_probs)
{
    const int cfg_branches = causal_cfg_branches(sampling);
    const kern_probs_job job = {.rows = p->logit_rows / cfg_branches,
                                .size = p->model->shape.vocabulary,
                                .conditions = cfg_branches,
                                .logits = p->logits,
                                .cfg = cfg,
                                .temperature = sampling->temperature,
                                .top_k = sampling->top_k,
                                .top_p = sampling->top_p,
                                .log_probs = log_probs,
                                .place = place};
    p->k->discrete->probs(p->k, &job);
}

/* Returns the weights of a layer. */
static double layer_weights(const causal_shape *c)
{
    return (double)c->width * (causal_qkv_width(c) + causal_q_width(c) + 3.0 * c->hidden);
}

/* Returns the weights of the projection of vectors. */
static double projection_weights(const causal_shape *c)
{
    if (!c->project_hidden) return (double)c->width * c->token_dim;
    return (double)c->project_hidden * (c->token_dim + c->width);
}

double causal_pass_flop(const causal_pass *p)
{
    const causal_shape *c = &p->model->shape;
    const double row = c->depth * layer_weights(c) + (p->vectors ? projection_weights(c) : 0);
    const double wanted = (double)c->width * (c->vocabulary + (c->names->condition ? c->width : 0));
    return 2 * (p->rows * row + 2 * p->attended * c->depth * causal_q_width(c) + p->logit_rows * wanted);
}

/* Returns the bytes of the layers' weights: operands, int8 with a scale for each output channel, or int4 with one in
 * bf16 for each group of inputs. */
static double layer_bytes(const causal_pass *p)
{
    const causal_shape *c = &p->model->shape;
    const double weights = layer_weights(c), channels = causal_qkv_width(c) + 2.0 * c->width + 2.0 * c->hidden;
    const kern_device *device = p->k->device;
    if (device->int8) return c->depth * (weights + channels * sizeof(float));
    if (device->int4) return c->depth * weights * (0.5 + 2.0 / KERN_INT4_GROUP);
    return c->depth * weights * (double)device->act_size;
}

double causal_pass_bytes(const causal_pass *p)
{
    const causal_shape *c = &p->model->shape;
    const double output = (double)c->width * (c->vocabulary + (c->names->condition ? c->width : 0));
    const double slots = p->first[p->spans]; /* visible to some row */
    return (p->rows ? layer_bytes(p) : 0) + (p->logit_rows ? (double)p->k->device->act_size * output : 0) +
           slots * c->depth * (double)pass_slot_bytes(p);
}

/* --- memory and plans --------------------------------------------------------------------------------------------- */

mar_status causal_pass_create(kern_queue *k, const causal_model *model, int sequences, int slots, int rows,
                              int logit_rows, int keep, causal_pass *out, mar_err *err)
{
    const size_t n = (size_t)sequences * (size_t)rows, spans = (size_t)sequences;
    *out = (causal_pass){.k = k,
                         .model = model,
                         .sequences = sequences,
                         .slots = slots,
                         .span_slots = slots,
                         .rows_max = sequences * rows,
                         .logit_rows_max = sequences * logit_rows,
                         .words = (rows + 63) / 64,
                         .keep = keep};
    out->embedding = calloc(n, sizeof *out->embedding);
    out->position = calloc(n, sizeof *out->position);
    out->slot = calloc(n, sizeof *out->slot);
    out->mask = calloc(n * (size_t)out->words, sizeof *out->mask);
    out->row = calloc(spans + 1, sizeof *out->row);
    out->first = calloc(spans + 1, sizeof *out->first);
    out->common = calloc(spans, sizeof *out->common);
    out->list = calloc(spans * (size_t)slots, sizeof *out->list);
    out->logit_row = calloc(3 * spans * (size_t)logit_rows, sizeof *out->logit_row); /* owns the next two lists */
    if (out->embedding && out->position && out->slot && out->mask && out->row && out->first && out->common &&
        out->list && out->logit_row) {
        out->next = out->logit_row + out->logit_rows_max;
        out->to = out->next + out->logit_rows_max;
        return MAR_OK;
    }
    causal_pass_free(out);
    return err_set(err, MAR_ENOMEM, "out of memory for passes over %d sequences", sequences);
}

void causal_pass_free(causal_pass *p)
{
    int *lists[] = {p->embedding, p->position, p->slot, p->row, p->first, p->common, p->list, p->logit_row};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) free(lists[i]);
    free(p->mask);
    *p = (causal_pass){0};
}

size_t causal_pass_lay_out(causal_pass *p, char *base)
{
    const causal_shape *c = &p->model->shape;
    const size_t d = (size_t)c->width, hidden = (size_t)c->hidden, rows = (size_t)p->rows_max;
    const size_t logit_rows = (size_t)p->logit_rows_max, slots = (size_t)p->sequences * (size_t)p->slots;
    const size_t size = p->k->device->act_size;
    size_t used = 0;
    p->x = arena_carve(base, &used, (rows + (size_t)p->sequences) * d, sizeof(float));
    p->normed = arena_carve(base, &used, (rows > logit_rows ? rows : logit_rows) * d, size);
    p->qkv = arena_carve(base, &used, rows * (size_t)causal_qkv_width(c), size);
    p->attn = arena_carve(base, &used, rows * (size_t)causal_q_width(c), size);
    p->hidden = arena_carve(base, &used, rows * 2 * hidden, size);
    p->gated = arena_carve(base, &used, rows * hidden, size);
    p->logits = arena_carve(base, &used, logit_rows * (size_t)c->vocabulary, sizeof(float));
    p->cache = arena_carve(base, &used, (size_t)c->depth * slots, pass_slot_bytes(p));
    if (p->keep || c->token_dim) p->kept = arena_carve(base, &used, rows * d, sizeof(float));
    if (p->keep) p->features = arena_carve(base, &used, slots * d, sizeof(float));
    if (c->token_dim) p->token = arena_carve(base, &used, rows * (size_t)c->token_dim, sizeof(float));
    if (c->project_hidden) p->projected = arena_carve(base, &used, rows * (size_t)c->project_hidden, sizeof(float));
    if (p->model->input_norm) p->embedded = arena_carve(base, &used, rows * d, sizeof(float));
    return used;
}

mar_status causal_pass_plan(const causal_pass *p, int rows, int logit_rows, mar_err *err)
{
    kern_queue *k = p->k;
    const int planned = k->device->skinny_rows; /* rows that need no plan */
    mar_status status = k->core->attention_cache_plan(k, p->span_slots, p->model->shape.head_dim, p->causal, err);
    for (int i = 0; status == MAR_OK && rows > planned && i < p->model->shape.depth; i++) {
        const causal_layer *l = &p->model->layers[i];
        const kern_linear *layers[] = {l->qkv, l->wo, l->w13, l->w2};
        for (int j = 0; status == MAR_OK && j < 4; j++) status = k->core->linear_plan(k, layers[j], rows, err);
    }
    for (int i = 0; status == MAR_OK && i < 2 && p->model->project[i]; i++)
        status = k->core->linear_plan(k, p->model->project[i], rows, err);
    if (status == MAR_OK && p->model->condition) status = k->core->linear_plan(k, p->model->condition, rows, err);
    if (status != MAR_OK || !p->model->output || logit_rows <= planned) return status;
    return k->core->linear_plan(k, p->model->output, logit_rows, err);
}
