#include "specdec/eagle_model.h"

#include "weights/rows.h"
#include "weights/shape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The names of a drafter's tensors. */
typedef struct {
    const char *fc_weight, *fc_bias, *embedding, *layer;
    causal_names of_layer;
} eagle_names;

/* Ours, and LANTERN's. */
static const eagle_names names[2] = {
    {"eagle.fc.weight",
     "eagle.fc.bias",
     NULL,
     "eagle.layers.0",
     {.joined = {"attention.wqkv", "attention.wo", NULL, "feed_forward.w2", "attention_norm", "ffn_norm"},
      .w13 = {"feed_forward.w1", "feed_forward.w3"}}},
    {"fc.weight",
     "fc.bias",
     "embed_tokens.weight",
     "layers.0",
     {.joined = {NULL, "self_attn.o_proj", NULL, "mlp.down_proj", "input_layernorm", "post_attention_layernorm",
                 "self_attn.q_norm", "self_attn.k_norm"},
      .qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
      .w13 = {"mlp.gate_proj", "mlp.up_proj"}}},
};

static const char q_norm[] = "layers.0.self_attn.q_norm.weight";

static causal_shape eagle_layer_of(const eagle_config *c)
{
    return (causal_shape){.names = &names[c->published].of_layer,
                          .width = c->width,
                          .hidden = c->hidden,
                          .heads = c->heads,
                          .kv_heads = c->heads,
                          .head_dim = c->heads ? c->width / c->heads : 0,
                          .joined_qkv = !c->published,
                          .no_first_norm = !c->first_norm,
                          .qk_norm = c->qk_norm ? CAUSAL_LAYER_NORM : CAUSAL_NO_NORM,
                          .norm_shape = c->norm_shape,
                          .halves = c->qk_norm};
}

/* --- the shape ---------------------------------------------------------------------------------------------------- */

static int eagle_is_published(const wt_file *f)
{
    return wt_find(f, names[1].fc_weight) && wt_find(f, "layers.0.self_attn.q_proj.weight");
}

int eagle_config_recognise(const wt_file *f)
{
    if (wt_find(f, names[0].fc_weight) || eagle_is_published(f)) return 1;
    for (int i = 0; i < wt_count(f); i++)
        if (strncmp(wt_at(f, i)->name, "eagle.layers.", 13) == 0) return 1;
    return 0;
}

static mar_status eagle_derive_heads(const wt_file *f, int heads, eagle_config *c, mar_err *err)
{
    const char *text = wt_metadata(f, "mar.heads");
    char *end = NULL, number[16];
    const long n = heads ? heads : text ? strtol(text, &end, 10) : 0;
    if (heads < 0) return err_set(err, MAR_EARG, "--heads %d: expected 0 or a positive number", heads);
    if (!heads && !text) return MAR_OK;
    snprintf(number, sizeof number, "%d", heads);
    if ((!heads && (end == text || *end)) || !causal_heads_divide(n, c->width))
        return err_set(err, heads ? MAR_EARG : MAR_EMODEL,
                       "%s: %s attention heads (%s) do not divide the width %d into multiples of 4 up to %d",
                       wt_path(f), heads ? number : text, heads ? "--heads" : "in the metadata", c->width,
                       KERN_CACHE_HEAD_MAX);
    c->heads = (int)n;
    return MAR_OK;
}

/* Derives norms of q and k and the number of heads from a tensor that has a head's size. */
static mar_status eagle_derive_norm(const wt_file *f, eagle_config *c, mar_err *err)
{
    const wt_tensor *t;
    const mar_status status = wt_find_shape(f, q_norm, 2, &t, err);
    if (status != MAR_OK) return status;
    const int64_t size = t->shape[1];
    c->heads = size > 0 && c->width % size == 0 ? (int)(c->width / size) : 0;
    if (!causal_heads_divide(c->heads, c->width))
        return err_set(err, MAR_EMODEL,
                       "%s: tensor %s has heads of size %lld, expected a multiple of 4 that divides %d", wt_path(f),
                       q_norm, (long long)size, c->width);
    c->qk_norm = 1;
    c->norm_shape = t->shape[0] == 1 ? CAUSAL_ONE_ROW : CAUSAL_ROWS;
    return MAR_OK;
}

mar_status eagle_config_derive(const wt_file *f, int heads, eagle_config *out, mar_err *err)
{
    const wt_tensor *fc, *w1, *embedding = NULL;
    char name[CAUSAL_TENSOR_NAME];
    int rows;
    *out = (eagle_config){.published = eagle_is_published(f), .first_norm = 1};
    const int has_norm = out->published && wt_find(f, q_norm);
    const eagle_names *n = &names[out->published];
    const causal_shape any = eagle_layer_of(out);
    mar_status status = wt_find_shape(f, n->fc_weight, 2, &fc, err);
    if (status == MAR_OK)
        status = wt_find_shape(f, causal_layer_name(n->layer, &any, CAUSAL_W13, 0, name, &rows), 2, &w1, err);
    if (status == MAR_OK && n->embedding && wt_find(f, n->embedding) && !has_norm)
        status = wt_find_shape(f, n->embedding, 2, &embedding, err);
    if (status != MAR_OK) return status;
    if (fc->shape[1] != 2 * fc->shape[0])
        return err_set(err, MAR_EMODEL, "%s: tensor %s has shape [%lld, %lld], expected twice as many columns as rows",
                       wt_path(f), n->fc_weight, (long long)fc->shape[0], (long long)fc->shape[1]);
    out->width = (int)fc->shape[0];
    out->hidden = (int)w1->shape[0];
    out->bias = wt_find(f, n->fc_bias) != NULL;
    out->first_norm = wt_find(f, causal_layer_name(n->layer, &any, CAUSAL_ATTENTION_NORM, 0, name, &rows)) != NULL;
    out->vocabulary = embedding ? (int)embedding->shape[0] : 0;
    if (has_norm) status = eagle_derive_norm(f, out, err);
    if (status == MAR_OK) status = eagle_derive_heads(f, heads, out, err);
    if (status == MAR_OK) eagle_config_tensors(out, wt_add_elements, &out->parameters);
    return status;
}

void eagle_config_tensors(const eagle_config *c, causal_tensor_visitor *visit, void *user)
{
    const eagle_names *n = &names[c->published];
    const int64_t fc[2] = {c->width, 2 * (int64_t)c->width}, embedding[2] = {c->vocabulary, c->width};
    visit(user, n->fc_weight, 2, fc);
    if (c->bias) visit(user, n->fc_bias, 1, fc);
    const causal_shape layer = eagle_layer_of(c);
    causal_layer_tensors(n->layer, &layer, visit, user);
    if (c->vocabulary) visit(user, n->embedding, 2, embedding);
}

int eagle_config_ignores(const char *name)
{
    return strcmp(name, names[1].embedding) == 0;
}

mar_status eagle_config_fits(const eagle_config *c, const causal_shape *target, mar_err *err)
{
    if (c->width != target->width)
        return err_set(err, MAR_EMODEL, "the EAGLE drafter has width %d, expected the model's, %d", c->width,
                       target->width);
    if (causal_q_width(target) != target->width)
        return err_set(err, MAR_EMODEL,
                       "the model's heads have %d numbers, expected %d, its width, as an EAGLE drafter's have",
                       causal_q_width(target), target->width);
    if (c->heads && c->heads != target->heads)
        return err_set(err, MAR_EMODEL, "the EAGLE drafter has %d attention heads, expected as many as the model, %d",
                       c->heads, target->heads);
    if (c->qk_norm != (target->qk_norm == CAUSAL_LAYER_NORM))
        return err_set(err, MAR_EMODEL, "the EAGLE drafter %s norms of q and k, expected a layer like the model's",
                       c->qk_norm ? "has" : "has no");
    if (c->vocabulary && c->vocabulary != target->vocabulary)
        return err_set(err, MAR_EMODEL, "the EAGLE drafter has %d tokens, expected the model's, %d", c->vocabulary,
                       target->vocabulary);
    return MAR_OK;
}

/* --- weights ------------------------------------------------------------------------------------------------------ */

static mar_status eagle_load_fc(kern_queue *k, const wt_file *f, eagle_model *m, mar_err *err)
{
    const eagle_config *c = &m->config;
    const eagle_names *n = &names[c->published];
    wt_rows w = {.file = f, .in = 2 * c->width, .count = 1, .piece = {{.rows = c->width}}, .bias = c->bias};
    snprintf(w.piece[0].name, sizeof w.piece[0].name, "%s", n->fc_weight);
    const kern_linear_spec spec = {.out = c->width, .flags = KERN_OUT_F32};
    return wt_create_linear(k, &w, spec, &m->fc, err);
}

static mar_status eagle_load_embedding(kern_queue *k, const wt_file *f, eagle_model *m, mar_err *err)
{
    const eagle_config *c = &m->config;
    const int64_t shape[2] = {c->vocabulary, c->width};
    if (c->vocabulary == 0) return MAR_OK;
    return wt_load_array(k, f, names[c->published].embedding, 2, shape, &m->token_emb, err);
}

mar_status eagle_model_create(kern_queue *k, const wt_file *f, int heads, eagle_model **out, mar_err *err)
{
    *out = NULL;
    eagle_model *m = calloc(1, sizeof *m);
    if (!m) return err_set(err, MAR_ENOMEM, "out of memory");
    m->device = k->device;
    mar_status status = eagle_config_derive(f, heads, &m->config, err);
    const eagle_config *c = &m->config;
    if (status == MAR_OK) status = eagle_load_fc(k, f, m, err);
    if (status == MAR_OK) status = eagle_load_embedding(k, f, m, err);
    const causal_shape layer = eagle_layer_of(c);
    if (status == MAR_OK) status = causal_layer_load(k, f, names[c->published].layer, &layer, NULL, &m->layer, err);
    if (status == MAR_OK) {
        *out = m;
    } else {
        k->core->finish(k); /* waits for uploads that have begun */
        eagle_model_free(m);
    }
    return status;
}

void eagle_model_free(eagle_model *m)
{
    if (!m) return;
    m->device->core->linear_free(m->device, m->fc);
    m->device->core->free(m->device, m->token_emb);
    causal_layer_free(m->device, &m->layer);
    free(m);
}
