#include "llamagen/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Source, destination and errors of the loading functions. */
typedef struct {
    kern_queue *k;
    const wt_file *file;
    mar_err *err;
} loader;

/* Loads a matrix [rows][columns], or with `columns` 0 a vector [rows]. */
static mar_status load_host(loader *l, const char *name, int rows, int columns, float **out)
{
    const int64_t shape[2] = {rows, columns};
    return wt_load_f32(l->file, name, columns ? 2 : 1, shape, out, l->err);
}

static mar_status to_backend(loader *l, const float *host, size_t n, float **out)
{
    void *p = NULL;
    const mar_status status = l->k->core->alloc(l->k->device, n * sizeof *host, &p, l->err);
    if (status == MAR_OK) l->k->core->upload(l->k, p, host, n * sizeof *host);
    *out = p;
    return status;
}

static mar_status load_array(loader *l, const char *name, int rows, int columns, float **out)
{
    float *host = NULL;
    mar_status status = load_host(l, name, rows, columns, &host);
    if (status == MAR_OK) status = to_backend(l, host, (size_t)rows * (size_t)(columns ? columns : 1), out);
    free(host);
    return status;
}

/* Loads a matrix as a product that runs after `before`. It has KERN_LOW if gpt_config_is_int8. */
static mar_status load_linear(loader *l, const char *name, int out, int in, kern_activation activation, int flags,
                              kern_linear *before, kern_linear **layer)
{
    wt_matrix m = {0};
    const int int8 = gpt_config_is_int8(name);
    mar_status status = int8 ? wt_load_matrix(l->file, name, out, in, l->k->device->int8, &m, l->err)
                             : load_host(l, name, out, in, &m.weight);
    if (status == MAR_OK) {
        const kern_linear_spec spec = {.out = out,
                                       .in = in,
                                       .weight = m.weight,
                                       .quantised = m.quantised,
                                       .scale = m.scale,
                                       .activation = activation,
                                       .flags = flags | (int8 ? KERN_LOW : 0),
                                       .previous = before};
        status = l->k->core->linear_create(l->k, &spec, layer, l->err);
    }
    wt_matrix_free(&m);
    return status;
}

enum { PIECES = 3 }; /* matrices of one product */

/* Joins n arrays of `bytes` bytes each in *out; NULL if they are NULL. Returns 0 without memory, else 1. */
static int join(void *const *piece, int n, size_t bytes, void **out)
{
    *out = NULL;
    if (!piece[0]) return 1;
    char *all = malloc((size_t)n * bytes);
    if (!all) return 0;
    for (int i = 0; i < n; i++) memcpy(all + (size_t)i * bytes, piece[i], bytes);
    *out = all;
    return 1;
}

/* Loads n layers of the same input, each of `out` outputs, as one product that has flag KERN_LOW. It stays int8 only
 * if all are int8 in the file. */
static mar_status load_joined(loader *l, char name[PIECES][GPT_TENSOR_NAME], int n, int out, int in,
                              kern_linear *before, kern_linear **layer)
{
    const size_t size = (size_t)out * (size_t)in;
    int keep = l->k->device->int8;
    wt_matrix piece[PIECES] = {{0}};
    void *weight[PIECES], *quantised[PIECES], *scale[PIECES], *all[3] = {NULL};
    mar_status status = MAR_OK;
    for (int i = 0; i < n; i++) keep = keep && wt_is_int8(l->file, name[i]);
    for (int i = 0; i < n && status == MAR_OK; i++)
        status = wt_load_matrix(l->file, name[i], out, in, keep, &piece[i], l->err);
    for (int i = 0; i < n; i++)
        weight[i] = piece[i].weight, quantised[i] = piece[i].quantised, scale[i] = piece[i].scale;
    if (status == MAR_OK && !(join(weight, n, size * sizeof(float), &all[0]) && join(quantised, n, size, &all[1]) &&
                              join(scale, n, (size_t)out * sizeof(float), &all[2])))
        status = err_set(l->err, MAR_ENOMEM, "%s: out of memory for tensor %s", wt_path(l->file), name[0]);
    for (int i = 0; i < n; i++) wt_matrix_free(&piece[i]);
    if (status == MAR_OK) {
        const kern_linear_spec spec = {.out = n * out,
                                       .in = in,
                                       .weight = all[0],
                                       .quantised = all[1],
                                       .scale = all[2],
                                       .flags = KERN_LOW,
                                       .previous = before};
        status = l->k->core->linear_create(l->k, &spec, layer, l->err);
    }
    for (int i = 0; i < 3; i++) free(all[i]);
    return status;
}

/* Loads q, k and v: one matrix, or three. */
static mar_status load_qkv(loader *l, const char *prefix, int width, int form, kern_linear *before, kern_linear **out)
{
    char name[PIECES][GPT_TENSOR_NAME];
    int n = 0;
    while (n < PIECES && gpt_layer_name(prefix, form, GPT_WQKV, n, name[n])) n++;
    return n == 1 ? load_linear(l, name[0], 3 * width, width, KERN_LINEAR, 0, before, out)
                  : load_joined(l, name, n, width, width, before, out);
}

mar_status gpt_layer_load(kern_queue *k, const wt_file *f, const char *prefix, int width, int hidden, int form,
                          kern_linear *before, gpt_layer *b, mar_err *err)
{
    const int sums = KERN_OUT_F32 | KERN_OUT_ADD;
    loader l = {k, f, err};
    char t[GPT_TENSOR_NAME], pair[PIECES][GPT_TENSOR_NAME];
    mar_status status = load_qkv(&l, prefix, width, form, before, &b->qkv);
    if (status == MAR_OK)
        status = load_linear(&l, gpt_layer_name(prefix, form, GPT_WO, 0, t), width, width, KERN_LINEAR, sums, b->qkv,
                             &b->wo);
    gpt_layer_name(prefix, form, GPT_W1, 0, pair[0]);
    gpt_layer_name(prefix, form, GPT_W3, 0, pair[1]);
    if (status == MAR_OK && form & GPT_LAYER_JOINED)
        status = load_linear(&l, pair[0], 2 * hidden, width, KERN_LINEAR, 0, b->wo, &b->w13);
    else if (status == MAR_OK)
        status = load_joined(&l, pair, 2, hidden, width, b->wo, &b->w13);
    if (status == MAR_OK)
        status = load_linear(&l, gpt_layer_name(prefix, form, GPT_W2, 0, t), width, hidden, KERN_LINEAR, sums, b->w13,
                             &b->w2);
    if (status == MAR_OK && !(form & GPT_LAYER_NO_NORM))
        status = load_array(&l, gpt_layer_name(prefix, form, GPT_ATTENTION_NORM, 0, t), width, 0, &b->attention_norm);
    if (status == MAR_OK)
        status = load_array(&l, gpt_layer_name(prefix, form, GPT_FFN_NORM, 0, t), width, 0, &b->ffn_norm);
    return status;
}

void gpt_layer_free(kern_device *d, gpt_layer *b)
{
    kern_linear *products[] = {b->qkv, b->wo, b->w13, b->w2};
    for (int i = 0; i < 4; i++) d->core->linear_free(d, products[i]);
    d->core->free(d, b->attention_norm);
    d->core->free(d, b->ffn_norm);
    *b = (gpt_layer){0};
}

static mar_status load_condition(loader *l, gpt_model *m)
{
    const gpt_config *c = &m->config;
    const int d = c->width;
    if (!c->caption_dim) return load_array(l, "cls_embedding.embedding_table.weight", c->classes + 1, d, &m->class_emb);
    mar_status status = load_array(l, "cls_embedding.uncond_embedding", c->prefix, c->caption_dim, &m->no_caption);
    if (status == MAR_OK) /* caption features are f32, and so is their product */
        status = load_linear(l, "cls_embedding.cap_proj.fc1.weight", d, c->caption_dim, KERN_GELU_TANH,
                             KERN_IN_F32 | KERN_OUT_F32, NULL, &m->caption_fc1);
    if (status == MAR_OK)
        status = load_linear(l, "cls_embedding.cap_proj.fc2.weight", d, d, KERN_LINEAR, KERN_IN_F32 | KERN_OUT_F32,
                             NULL, &m->caption_fc2);
    return status;
}

/* Computes precompute_freqs_cis_2d, in f32 as there: a quarter of a head's numbers turns by the row, the other by the
 * column. In gpt.py cos and sin are 0 at the prefix, so q and k become 0 there. So every later query gives a prefix
 * position the score 0. SphereAR's layers.py does not turn the prefix. Its columns come first, and its positions begin
 * at 1.5. */
static mar_status make_rope(loader *l, gpt_model *m)
{
    const gpt_config *c = &m->config;
    const int size = c->width / c->heads, side = gpt_config_side(c->seq_len), quarter = size / 4;
    const size_t n = ((size_t)c->prefix + (size_t)c->seq_len) * (size_t)size;
    float *rope = calloc(n, sizeof *rope);
    if (!rope) return err_set(l->err, MAR_ENOMEM, "out of memory for %d positions", c->seq_len);
    float *at = rope + (size_t)c->prefix * (size_t)size;
    const int sphere = c->family == GPT_SPHEREAR;
    for (float *x = rope; sphere && x < at; x += 2) *x = 1;
    for (int i = 0; i < c->seq_len; i++)
        for (int pair = 0; pair < 2 * quarter; pair++, at += 2) {
            const float frequency = 1 / powf(10000, (float)(pair % quarter * 2) / (float)(size / 2));
            const int place = (pair < quarter) != sphere ? i / side : i % side;
            const float angle = ((float)place + (sphere ? 1.5f : 0)) * frequency;
            at[0] = cosf(angle);
            at[1] = sinf(angle);
        }
    const mar_status status = to_backend(l, rope, n, &m->rope);
    free(rope);
    return status;
}

static mar_status load_layers(loader *l, gpt_model *m)
{
    const gpt_config *c = &m->config;
    const int form = c->family == GPT_SPHEREAR ? GPT_LAYER_JOINED : GPT_LAYER_PLAIN;
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && i < c->depth; i++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "layers.%d", i);
        status = gpt_layer_load(l->k, l->file, prefix, c->width, c->hidden, form, i ? m->layers[i - 1].w2 : NULL,
                                &m->layers[i], l->err);
    }
    return status;
}

static mar_status load_all(loader *l, gpt_model *m)
{
    const gpt_config *c = &m->config;
    const int d = c->width, tokens = c->family == GPT_LLAMAGEN;
    mar_status status = tokens ? load_condition(l, m) : MAR_OK;
    if (status == MAR_OK && tokens) status = load_array(l, "tok_embeddings.weight", c->vocabulary, d, &m->token_emb);
    if (status == MAR_OK) status = load_layers(l, m);
    if (status == MAR_OK) status = load_array(l, "norm.weight", d, 0, &m->norm);
    if (status == MAR_OK && tokens)
        status = load_linear(l, "output.weight", c->vocabulary, d, KERN_LINEAR, KERN_OUT_F32,
                             m->layers[c->depth - 1].w2, &m->output);
    if (status == MAR_OK) status = make_rope(l, m);
    return status;
}

mar_status gpt_model_load(kern_queue *k, const wt_file *f, const gpt_config *config, gpt_model **out, mar_err *err)
{
    *out = NULL;
    if (!gpt_config_side(config->seq_len))
        return err_set(err, MAR_EARG, "%s: %d tokens of an image, expected a square number", wt_path(f),
                       config->seq_len);
    gpt_model *m = calloc(1, sizeof *m);
    if (!m) return err_set(err, MAR_ENOMEM, "out of memory");
    m->device = k->device;
    m->config = *config;
    m->layers = calloc((size_t)config->depth, sizeof *m->layers);
    loader l = {k, f, err};
    const mar_status status = m->layers ? load_all(&l, m) : err_set(err, MAR_ENOMEM, "out of memory");
    if (status == MAR_OK) {
        *out = m;
    } else {
        k->core->finish(k); /* waits for uploads that have begun */
        gpt_model_free(m);
    }
    return status;
}

void gpt_model_free(gpt_model *m)
{
    if (!m) return;
    kern_device *d = m->device;
    float *arrays[] = {m->class_emb, m->no_caption, m->token_emb, m->norm, m->rope};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) d->core->free(d, arrays[i]);
    kern_linear *linears[] = {m->caption_fc1, m->caption_fc2, m->output};
    for (size_t i = 0; i < sizeof linears / sizeof *linears; i++) d->core->linear_free(d, linears[i]);
    for (int i = 0; m->layers && i < m->config.depth; i++) gpt_layer_free(d, &m->layers[i]);
    free(m->layers);
    free(m);
}
