#include "text/encoder.h"

#include "base/arena.h"
#include "weights/rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = WT_PIECE_NAME }; /* of a tensor */

static const float quick = 1.702f; /* QuickGELU's factor (openai/CLIP, clip/model.py) */

typedef struct {
    text_norm norm1, norm2;
    kern_linear *qkv; /* [3 * heads * head_dim][width] query, key, value */
    kern_linear *out; /* [width][heads * head_dim] */
    kern_linear *fc1; /* [hidden][width]; gated: [2 * hidden][width] fc1, up */
    kern_linear *fc2; /* [width][hidden] */
} text_layer;

struct text_encoder {
    text_encoder_config config;
    text_layer *layers; /* [depth] */
    float *bias;        /* [heads][2 * reach + 1] in backend memory, or NULL */
    int reach;
};

/* --- norms -------------------------------------------------------------------------------------------------------- */

static mar_status load_vector(kern_queue *k, const wt_file *f, const char *name, const char *part, int n, float **out,
                              mar_err *err)
{
    char text[NAME];
    const int64_t shape[] = {n};
    snprintf(text, sizeof text, "%s.%s", name, part);
    return wt_load_array(k, f, text, 1, shape, out, err);
}

mar_status text_norm_load(kern_queue *k, const wt_file *f, const text_encoder_config *c, const char *name,
                          text_norm *out, mar_err *err)
{
    *out = (text_norm){.kind = c->norm, .width = c->width, .eps = c->eps};
    const mar_status status = load_vector(k, f, name, "weight", c->width, &out->weight, err);
    if (status != MAR_OK || c->norm == TEXT_NORM_RMS) return status;
    return load_vector(k, f, name, "bias", c->width, &out->bias, err);
}

void text_norm_free(kern_device *d, text_norm *n)
{
    d->core->free(d, n->weight);
    d->core->free(d, n->bias);
    n->weight = n->bias = NULL;
}

void text_norm_run(kern_queue *k, const text_norm *n, const float *x, const int *index, int rows, void *y, int y_f32)
{
    if (n->kind == TEXT_NORM_RMS)
        k->core->rms_norm(k, x, index, rows, n->width, n->weight, n->eps, y, y_f32);
    else
        k->core->layer_norm(k, x, index, rows, n->width, n->weight, n->bias, n->eps, y, y_f32);
}

/* --- loading ------------------------------------------------------------------------------------------------------ */

/* Source and destination of a layer's tensors. */
typedef struct {
    kern_queue *k;
    const wt_file *f;
    const text_encoder_config *c;
    const text_encoder_names *names;
    int layer;
    mar_err *err;
} loader;

/* A matrix of a product; a product may join up to WT_PIECES of the same shape. */
typedef struct {
    const char *name;          /* in text_encoder_names */
    float factor, bias_factor; /* multiply weight and bias */
} source;

/* Writes the name of this layer's tensor to text and returns it; what: "weight", "bias" or, without, the layer. */
static const char *name_of(const text_encoder_names *names, int layer, const char *name, const char *what,
                           char text[NAME])
{
    const size_t n = strlen(name);
    const char *point = what && n && name[n - 1] != '_' ? "." : "";
    snprintf(text, NAME, "%s%d%s%s%s", names->layers, layer, name, point, what ? what : "");
    return text;
}

/* Loads `count` matrices [out][in] of the same input as one product. */
static mar_status load_product(const loader *l, const source *parts, int count, int out, int in,
                               kern_activation activation, int flags, kern_linear *before, kern_linear **layer)
{
    wt_rows w = {.file = l->f, .in = in, .count = count, .bias = l->c->bias};
    for (int i = 0; i < count; i++) {
        w.piece[i] = (wt_piece){.rows = out, .factor = parts[i].factor, .bias_factor = parts[i].bias_factor};
        name_of(l->names, l->layer, parts[i].name, "weight", w.piece[i].name);
    }
    const kern_linear_spec spec = {
        .out = count * out, .activation = activation, .flags = flags | (l->c->int8 ? KERN_LOW : 0), .previous = before};
    return wt_create_linear(l->k, &w, spec, layer, l->err);
}

static mar_status load_layer(const loader *l, kern_linear *before, text_layer *layer)
{
    const text_encoder_config *c = l->c;
    const text_encoder_names *n = l->names;
    const int inner = c->heads * c->head_dim, sums = KERN_OUT_F32 | KERN_OUT_ADD;
    const float up = c->quick_gelu ? quick : 1, scale = c->unscaled ? sqrtf((float)c->head_dim) : 1;
    const source qkv[] = {{n->query, scale, scale}, {n->key, 1, 1}, {n->value, 1, 1}}, whole = {n->qkv, 1, 1};
    const source out = {n->out, 1, 1};
    const source fc1[] = {{n->fc1, up, up}, {n->up, 1, 1}}, fc2 = {n->fc2, 1 / up, 1};
    const kern_activation activation = c->gated ? KERN_LINEAR : c->quick_gelu ? KERN_SILU : c->activation;
    char name[NAME];
    mar_status status =
        text_norm_load(l->k, l->f, c, name_of(n, l->layer, n->norm1, NULL, name), &layer->norm1, l->err);
    if (status == MAR_OK)
        status = text_norm_load(l->k, l->f, c, name_of(n, l->layer, n->norm2, NULL, name), &layer->norm2, l->err);
    if (status == MAR_OK)
        status = n->qkv ? load_product(l, &whole, 1, 3 * inner, c->width, KERN_LINEAR, 0, before, &layer->qkv)
                        : load_product(l, qkv, 3, inner, c->width, KERN_LINEAR, 0, before, &layer->qkv);
    if (status == MAR_OK)
        status = load_product(l, &out, 1, c->width, inner, KERN_LINEAR, sums, layer->qkv, &layer->out);
    if (status == MAR_OK)
        status = load_product(l, fc1, c->gated ? 2 : 1, c->hidden, c->width, activation, 0, layer->out, &layer->fc1);
    if (status == MAR_OK)
        status = load_product(l, &fc2, 1, c->width, c->hidden, KERN_LINEAR, sums, layer->fc1, &layer->fc2);
    return status;
}

/* Copies the table of biases to the backend. */
static mar_status load_bias(kern_queue *k, text_encoder *e, const float *bias, int reach, mar_err *err)
{
    e->reach = reach;
    return kern_new_array(k, bias, (size_t)e->config.heads * (size_t)(2 * reach + 1), &e->bias, err);
}

/* Makes a causal encoder's table: earlier keys and the query's own add 0, later ones are masked. */
static mar_status load_causal(kern_queue *k, text_encoder *e, mar_err *err)
{
    float *bias = calloc(3 * (size_t)e->config.heads, sizeof *bias);
    if (!bias) return err_set(err, MAR_ENOMEM, "out of memory");
    for (int h = 0; h < e->config.heads; h++) bias[3 * h + 2] = -INFINITY;
    const mar_status status = load_bias(k, e, bias, 1, err);
    free(bias);
    return status;
}

mar_status text_encoder_create(kern_queue *k, const wt_file *f, const text_encoder_config *c,
                               const text_encoder_names *names, const float *bias, int reach, text_encoder **out,
                               mar_err *err)
{
    *out = NULL;
    text_encoder *e = calloc(1, sizeof *e);
    if (e) e->layers = calloc((size_t)c->depth + 1, sizeof *e->layers);
    mar_status status = e && e->layers ? MAR_OK : err_set(err, MAR_ENOMEM, "%s: out of memory", wt_path(f));
    if (status == MAR_OK) e->config = *c;
    if (status == MAR_OK && c->causal) status = load_causal(k, e, err);
    if (status == MAR_OK && bias) status = load_bias(k, e, bias, reach, err);
    loader l = {.k = k, .f = f, .c = c, .names = names, .err = err};
    for (kern_linear *before = NULL; status == MAR_OK && l.layer < c->depth; l.layer++) {
        status = load_layer(&l, before, &e->layers[l.layer]);
        before = e->layers[l.layer].fc2;
    }
    if (status != MAR_OK) {
        k->core->finish(k);
        text_encoder_free(k->device, e);
    } else {
        *out = e;
    }
    return status;
}

void text_encoder_free(kern_device *d, text_encoder *e)
{
    if (!e) return;
    for (int i = 0; e->layers && i < e->config.depth; i++) {
        text_layer *l = &e->layers[i];
        kern_linear *const products[] = {l->qkv, l->out, l->fc1, l->fc2};
        for (int j = 0; j < 4; j++) d->core->linear_free(d, products[j]);
        text_norm_free(d, &l->norm1);
        text_norm_free(d, &l->norm2);
    }
    d->core->free(d, e->bias);
    free(e->layers);
    free(e);
}

void text_encoder_tensors(const text_encoder_config *c, const text_encoder_names *names,
                          void (*visit)(void *user, const char *name, int rank, const int64_t *shape), void *user)
{
    const int64_t width = c->width, inner = (int64_t)c->heads * c->head_dim, hidden = c->hidden;
    const struct {
        const char *name;
        int rank, bias;
        int64_t shape[2];
    } all[] = {
        {names->norm1, 1, c->norm == TEXT_NORM_LAYER, {width, 0}},
        {names->query, 2, c->bias, {inner, width}},
        {names->key, 2, c->bias, {inner, width}},
        {names->value, 2, c->bias, {inner, width}},
        {names->qkv, 2, c->bias, {3 * inner, width}},
        {names->out, 2, c->bias, {width, inner}},
        {names->norm2, 1, c->norm == TEXT_NORM_LAYER, {width, 0}},
        {names->fc1, 2, c->bias, {hidden, width}},
        {c->gated ? names->up : NULL, 2, c->bias, {hidden, width}},
        {names->fc2, 2, c->bias, {width, hidden}},
    };
    char name[NAME];
    for (int i = 0; i < c->depth; i++)
        for (size_t j = 0; j < sizeof all / sizeof *all; j++) {
            if (!all[j].name) continue;
            visit(user, name_of(names, i, all[j].name, "weight", name), all[j].rank, all[j].shape);
            if (all[j].bias) visit(user, name_of(names, i, all[j].name, "bias", name), 1, all[j].shape);
        }
}

/* --- running ------------------------------------------------------------------------------------------------------ */

/* Arrays of operands: [rows] of each. */
typedef struct {
    act *normed; /* [width] */
    act *qkv;    /* [3 * heads * head_dim] */
    act *attn;   /* [heads * head_dim] */
    act *hidden; /* [hidden]; gated: [2 * hidden] */
    act *gated;  /* [hidden] */
} arrays;

/* Lays out the arrays of `rows` rows at base. Returns their size. With base NULL it only counts. */
static size_t lay_out(const text_encoder_config *c, size_t rows, size_t size, char *base, arrays *a)
{
    const size_t inner = (size_t)c->heads * (size_t)c->head_dim, hidden = (size_t)c->hidden;
    size_t used = 0;
    a->normed = arena_carve(base, &used, rows * (size_t)c->width, size);
    a->qkv = arena_carve(base, &used, rows * 3 * inner, size);
    a->attn = arena_carve(base, &used, rows * inner, size);
    a->hidden = arena_carve(base, &used, rows * hidden * (c->gated ? 2 : 1), size);
    a->gated = c->gated ? arena_carve(base, &used, rows * hidden, size) : a->hidden;
    return used;
}

size_t text_encoder_bytes(const kern_device *d, const text_encoder *e, int rows)
{
    arrays a;
    return lay_out(&e->config, (size_t)rows, d->act_size, NULL, &a);
}

mar_status text_encoder_plan(kern_queue *k, const text_encoder *e, int rows, int longest, mar_err *err)
{
    const text_encoder_config *c = &e->config;
    const int stride = 3 * c->heads * c->head_dim;
    mar_status status = k->core->attention_plan(k, longest, longest, c->heads, c->head_dim, stride, stride, err);
    for (int i = 0; status == MAR_OK && i < c->depth; i++) {
        const text_layer *l = &e->layers[i];
        const kern_linear *const products[] = {l->qkv, l->out, l->fc1, l->fc2};
        for (int j = 0; status == MAR_OK && j < 4; j++) status = k->core->linear_plan(k, products[j], rows, err);
    }
    return status;
}

/* State of a call. */
typedef struct {
    kern_queue *k;
    const text_encoder *e;
    const text_spans *spans;
    float *x; /* [rows][width] residual stream */
    arrays a;
    const char *name;
} call;

/* Shows a layer's output to the search for the first non-finite one. */
static void watch(const call *c, int layer, const char *what, const void *y, int f32, int width)
{
    kern_watch(c->k, y, f32 ? MAR_DTYPE_F32 : MAR_DTYPE_AUTO, c->spans->rows, width, width, "%s.%d.%s", c->name, layer,
               what);
}

/* x += out(attention(qkv(norm1(x)))) */
static void attend(const call *c, int layer)
{
    kern_queue *k = c->k;
    const text_encoder_config *o = &c->e->config;
    const text_layer *l = &c->e->layers[layer];
    const text_spans *s = c->spans;
    const int inner = o->heads * o->head_dim;
    const char *qkv = c->a.qkv;
    const size_t row = (size_t)inner * k->device->act_size;
    text_norm_run(k, &l->norm1, c->x, NULL, s->rows, c->a.normed, 0);
    watch(c, layer, "norm1", c->a.normed, 0, o->width);
    k->core->linear(k, l->qkv, c->a.normed, s->rows, c->a.qkv);
    watch(c, layer, "qkv", c->a.qkv, 0, 3 * inner);
    k->core->attention_spans(k, qkv, 3 * inner, s->first, s->length, qkv + row, qkv + 2 * row, 3 * inner, s->first,
                             s->length, s->count, o->heads, o->head_dim, c->e->bias, c->e->reach, c->a.attn);
    watch(c, layer, "attention", c->a.attn, 0, inner);
    k->core->linear(k, l->out, c->a.attn, s->rows, c->x);
    watch(c, layer, "out", c->x, 1, o->width);
}

/* x += fc2(activation(fc1(norm2(x)))), gated or not */
static void feed_forward(const call *c, int layer)
{
    kern_queue *k = c->k;
    const text_encoder_config *o = &c->e->config;
    const text_layer *l = &c->e->layers[layer];
    const int rows = c->spans->rows;
    text_norm_run(k, &l->norm2, c->x, NULL, rows, c->a.normed, 0);
    watch(c, layer, "norm2", c->a.normed, 0, o->width);
    k->core->linear(k, l->fc1, c->a.normed, rows, c->a.hidden);
    watch(c, layer, "fc1", c->a.hidden, 0, (o->gated ? 2 : 1) * o->hidden);
    if (o->gated) k->core->gated(k, c->a.hidden, rows, o->hidden, o->activation, c->a.gated);
    if (o->gated) watch(c, layer, "gated", c->a.gated, 0, o->hidden);
    k->core->linear(k, l->fc2, c->a.gated, rows, c->x);
    watch(c, layer, "fc2", c->x, 1, o->width);
}

void text_encoder_run(kern_queue *k, const text_encoder *e, const text_spans *spans, float *x, void *work,
                      const char *name)
{
    call c = {.k = k, .e = e, .spans = spans, .x = x, .name = name};
    if (spans->rows <= 0) return;
    lay_out(&e->config, (size_t)spans->rows, k->device->act_size, work, &c.a);
    for (int i = 0; i < e->config.depth; i++) {
        attend(&c, i);
        feed_forward(&c, i);
    }
}
