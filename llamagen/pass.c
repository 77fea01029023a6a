#include "llamagen/pass.h"

#include "base/arena.h"
#include "kernels/discrete.h"
#include "kernels/int4.h"

#include <stdlib.h>
#include <string.h>

#define HEAD_EPS 1e-5f /* of ChameleonLayerNorm */

/* --- the rows of a pass ------------------------------------------------------------------------------------------- */

void gpt_pass_begin(gpt_pass *p, const float *table, const int *drawn)
{
    p->rows = p->spans = p->logit_rows = 0;
    p->attended = 0;
    p->table = table;
    p->drawn = drawn;
    p->row[0] = p->first[0] = 0;
}

void gpt_pass_add_span(gpt_pass *p)
{
    const int s = p->spans++;
    p->common[s] = 0;
    p->row[s + 1] = p->row[s];
    p->first[s + 1] = p->first[s];
}

void gpt_pass_add_slot(gpt_pass *p, int sequence, int slot)
{
    p->list[p->first[p->spans]++] = sequence * p->slots + slot;
}

void gpt_pass_add_slots(gpt_pass *p, int sequence, const int *slot, int n)
{
    for (int i = 0; i < n; i++) gpt_pass_add_slot(p, sequence, slot[i]);
}

void gpt_pass_set_common(gpt_pass *p)
{
    p->common[p->spans - 1] = p->first[p->spans] - p->first[p->spans - 1];
}

uint64_t *gpt_pass_add_row(gpt_pass *p, int embedding, int position, int sequence, int slot)
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

void gpt_mask_add(uint64_t *mask, int first, int n)
{
    for (int i = first; i < first + n; i++) mask[i / 64] |= (uint64_t)1 << i % 64;
}

void gpt_mask_add_path(uint64_t *mask, int first, const int *parent, int draft)
{
    for (int a = draft; a >= 0; a = parent[a]) gpt_mask_add(mask, first + a, 1);
}

/* --- the transformer ---------------------------------------------------------------------------------------------- */

static int head_dim(const gpt_pass *p)
{
    return p->model->config.width / p->model->config.heads;
}

/* Returns the numbers of a row of q, k and v. */
static int qkv_width(const gpt_config *c)
{
    return c->width + 2 * gpt_kv_heads(c) * (c->width / c->heads);
}

/* Returns the bytes of a slot in one layer. */
static size_t slot_bytes(const gpt_pass *p)
{
    return kern_cache_slot_bytes(p->k->device, p->cache_type, gpt_kv_heads(&p->model->config), head_dim(p));
}

static void norm(const gpt_pass *p, const int *index, int rows, const float *weight, void *y, int f32)
{
    p->k->core->rms_norm(p->k, p->x, index, rows, p->model->config.width, weight, p->model->norm_eps, y, f32);
}

/* Computes y = l(norm(x)), or SwiGLU of it, in one kernel. x is act without a norm. Returns 0 if the backend has no
 * such kernel for the rows. */
static int skinny(const gpt_pass *p, const kern_linear *l, const void *x, const int *index, int rows, const float *norm,
                  int gated, void *y)
{
    const kern_skinny_job job = {
        .rows = rows, .x = x, .index = index, .norm = norm, .eps = p->model->norm_eps, .gated = gated, .y = y};
    return p->k->fused->skinny(p->k, l, &job);
}

static void product(const gpt_pass *p, const kern_linear *l, const act *x, void *y)
{
    if (!skinny(p, l, x, NULL, p->rows, NULL, 0, y)) p->k->core->linear(p->k, l, x, p->rows, y);
}

/* Shows a layer's output to the search for the first non-finite one. */
static void watch(const gpt_pass *p, int layer, const char *name, const void *y, int f32, int width)
{
    kern_watch(p->k, y, f32 ? MAR_DTYPE_F32 : MAR_DTYPE_AUTO, p->rows, width, width, "layers.%d.%s", layer, name);
}

/* x += wo(attention(rope(wqkv(norm(x))))), with norms of q and k in front of rope if there are any */
static void attend(const gpt_pass *p, int layer)
{
    kern_queue *k = p->k;
    const gpt_layer *l = &p->model->layers[layer];
    const gpt_config *c = &p->model->config;
    const int d = c->width, qkv = qkv_width(c);
    const size_t slots = (size_t)p->sequences * (size_t)p->slots;
    const kern_cache_job job = {.rows = p->rows,
                                .heads = c->heads,
                                .kv_heads = gpt_kv_heads(c),
                                .head_dim = head_dim(p),
                                .type = p->cache_type,
                                .q = p->qkv,
                                .q_stride = qkv,
                                .cache = (char *)p->cache + (size_t)layer * slots * slot_bytes(p),
                                .spans = p->spans,
                                .row = p->row,
                                .first = p->first,
                                .common = p->common,
                                .slot = p->list,
                                .mask = p->mask,
                                .words = p->words,
                                .max_slots = p->slots,
                                .rope = p->model->rope,
                                .position = p->position,
                                .own = p->slot,
                                .q_norm = {l->q_norm, l->q_norm_bias, HEAD_EPS},
                                .k_norm = {l->k_norm, l->k_norm_bias, HEAD_EPS},
                                .y = p->attn};
    if (!l->attention_norm) {
        k->core->to_act(k, p->x, (size_t)p->rows * (size_t)d, p->normed);
        product(p, l->qkv, p->normed, p->qkv);
    } else if (!skinny(p, l->qkv, p->x, NULL, p->rows, l->attention_norm, 0, p->qkv)) {
        norm(p, NULL, p->rows, l->attention_norm, p->normed, 0);
        watch(p, layer, "attention_norm", p->normed, 0, d);
        k->core->linear(k, l->qkv, p->normed, p->rows, p->qkv);
    }
    watch(p, layer, "attention.wqkv", p->qkv, 0, qkv);
    k->core->attention_cache(k, &job);
    watch(p, layer, "attention", p->attn, 0, d);
    product(p, l->wo, p->attn, p->x);
    watch(p, layer, "attention.wo", p->x, 1, d);
}

/* x += w2(silu(w1(norm(x))) * w3(norm(x))) */
static void feed_forward(const gpt_pass *p, int layer)
{
    kern_queue *k = p->k;
    const gpt_layer *l = &p->model->layers[layer];
    const int d = p->model->config.width, hidden = p->model->config.hidden;
    if (!skinny(p, l->w13, p->x, NULL, p->rows, l->ffn_norm, 1, p->gated)) {
        norm(p, NULL, p->rows, l->ffn_norm, p->normed, 0);
        watch(p, layer, "ffn_norm", p->normed, 0, d);
        k->core->linear(k, l->w13, p->normed, p->rows, p->hidden);
        watch(p, layer, "feed_forward.w1", p->hidden, 0, 2 * hidden);
        k->core->gated(k, p->hidden, p->rows, hidden, KERN_SILU, p->gated);
    }
    watch(p, layer, "feed_forward", p->gated, 0, hidden);
    product(p, l->w2, p->gated, p->x);
    watch(p, layer, "feed_forward.w2", p->x, 1, d);
}

void gpt_pass_layers(const gpt_pass *p)
{
    for (int i = 0; i < p->model->config.depth; i++) {
        attend(p, i);
        feed_forward(p, i);
    }
}

void gpt_pass_rows(const gpt_pass *p)
{
    kern_queue *k = p->k;
    const int d = p->model->config.width;
    if (p->rows == 0) return;
    if (p->drawn)
        k->core->embed(k, p->table, p->model->config.vocabulary + p->model->config.line_end, d, p->drawn, p->embedding,
                       p->rows, p->x);
    else
        k->core->copy_rows(k, p->x, NULL, p->table, p->embedding, NULL, NULL, p->rows, d);
    kern_watch(k, p->x, MAR_DTYPE_F32, p->rows, d, d, "%s",
               p->table == p->model->token_emb ? "tok_embeddings" : "cls_embedding");
    gpt_pass_layers(p);
    if (!p->keep) return;
    norm(p, NULL, p->rows, p->model->norm, p->kept, 1);
    k->core->copy_rows(k, p->features, p->slot, p->kept, NULL, NULL, NULL, p->rows, d);
}

void gpt_pass_logits(const gpt_pass *p)
{
    const gpt_model *m = p->model;
    const int d = m->config.width, vocabulary = m->config.vocabulary;
    if (!skinny(p, m->output, p->x, p->logit_row, p->logit_rows, m->norm, 0, p->logits)) {
        norm(p, p->logit_row, p->logit_rows, m->norm, p->normed, 0);
        kern_watch(p->k, p->normed, MAR_DTYPE_AUTO, p->logit_rows, d, d, "norm");
        p->k->core->linear(p->k, m->output, p->normed, p->logit_rows, p->logits);
    }
    kern_watch(p->k, p->logits, MAR_DTYPE_F32, p->logit_rows, vocabulary, vocabulary, "output");
}

void gpt_pass_log_probs(const gpt_pass *p, const gpt_sampling *sampling, const float *cfg, const int *place,
                        float *log_probs)
{
    const int cfg_branches = gpt_cfg_branches(sampling);
    const kern_probs_job job = {.rows = p->logit_rows / cfg_branches,
                                .size = p->model->config.vocabulary,
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
static double layer_weights(const gpt_config *c)
{
    const double d = c->width;
    return d * (qkv_width(c) + d + 3.0 * c->hidden);
}

double gpt_pass_flop(const gpt_pass *p)
{
    const gpt_config *c = &p->model->config;
    const double d = c->width;
    return 2 *
           (p->rows * c->depth * layer_weights(c) + 2 * p->attended * c->depth * d + p->logit_rows * d * c->vocabulary);
}

/* Returns the bytes of the layers' weights: operands, int8 with a scale for each output channel, or int4 with one in
 * bf16 for each group of inputs. */
static double layer_bytes(const gpt_pass *p)
{
    const gpt_config *c = &p->model->config;
    const double weights = layer_weights(c), channels = qkv_width(c) + 2.0 * c->width + 2.0 * c->hidden;
    const kern_device *device = p->k->device;
    if (device->int8) return c->depth * (weights + channels * sizeof(float));
    if (device->int4) return c->depth * weights * (0.5 + 2.0 / KERN_INT4_GROUP);
    return c->depth * weights * (double)device->act_size;
}

double gpt_pass_bytes(const gpt_pass *p)
{
    const gpt_config *c = &p->model->config;
    const double output = (double)c->width * c->vocabulary;
    const double slots = p->first[p->spans]; /* visible to some row */
    return (p->rows ? layer_bytes(p) : 0) + (p->logit_rows ? (double)p->k->device->act_size * output : 0) +
           slots * c->depth * (double)slot_bytes(p);
}

/* --- memory and plans --------------------------------------------------------------------------------------------- */

mar_status gpt_pass_create(kern_queue *k, const gpt_model *model, int sequences, int slots, int rows, int logit_rows,
                           int keep, gpt_pass *out, mar_err *err)
{
    const size_t n = (size_t)sequences * (size_t)rows, spans = (size_t)sequences;
    *out = (gpt_pass){.k = k,
                      .model = model,
                      .sequences = sequences,
                      .slots = slots,
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
    out->logit_row = calloc(spans * (size_t)logit_rows, sizeof *out->logit_row);
    if (out->embedding && out->position && out->slot && out->mask && out->row && out->first && out->common &&
        out->list && out->logit_row)
        return MAR_OK;
    gpt_pass_free(out);
    return err_set(err, MAR_ENOMEM, "out of memory for passes over %d sequences", sequences);
}

void gpt_pass_free(gpt_pass *p)
{
    int *lists[] = {p->embedding, p->position, p->slot, p->row, p->first, p->common, p->list, p->logit_row};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) free(lists[i]);
    free(p->mask);
    *p = (gpt_pass){0};
}

size_t gpt_pass_lay_out(gpt_pass *p, char *base)
{
    const gpt_config *c = &p->model->config;
    const size_t d = (size_t)c->width, hidden = (size_t)c->hidden, rows = (size_t)p->rows_max;
    const size_t logit_rows = (size_t)p->logit_rows_max, slots = (size_t)p->sequences * (size_t)p->slots;
    const size_t size = p->k->device->act_size;
    size_t used = 0;
    p->x = arena_carve(base, &used, (rows + (size_t)p->sequences) * d, sizeof(float));
    p->normed = arena_carve(base, &used, (rows > logit_rows ? rows : logit_rows) * d, size);
    p->qkv = arena_carve(base, &used, rows * (size_t)qkv_width(c), size);
    p->attn = arena_carve(base, &used, rows * d, size);
    p->hidden = arena_carve(base, &used, rows * 2 * hidden, size);
    p->gated = arena_carve(base, &used, rows * hidden, size);
    p->logits = arena_carve(base, &used, logit_rows * (size_t)c->vocabulary, sizeof(float));
    p->cache = arena_carve(base, &used, (size_t)c->depth * slots, slot_bytes(p));
    if (p->keep) p->kept = arena_carve(base, &used, rows * d, sizeof(float));
    if (p->keep) p->features = arena_carve(base, &used, slots * d, sizeof(float));
    return used;
}

mar_status gpt_pass_plan(const gpt_pass *p, int rows, int logit_rows, mar_err *err)
{
    kern_queue *k = p->k;
    const int planned = k->device->skinny_rows; /* rows that need no plan */
    mar_status status = k->core->attention_cache_plan(k, p->slots, head_dim(p), err);
    for (int i = 0; status == MAR_OK && rows > planned && i < p->model->config.depth; i++) {
        const gpt_layer *l = &p->model->layers[i];
        const kern_linear *layers[] = {l->qkv, l->wo, l->w13, l->w2};
        for (int j = 0; status == MAR_OK && j < 4; j++) status = k->core->linear_plan(k, layers[j], rows, err);
    }
    if (status != MAR_OK || !p->model->output || logit_rows <= planned) return status;
    return k->core->linear_plan(k, p->model->output, logit_rows, err);
}
