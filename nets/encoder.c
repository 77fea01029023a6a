#include "nets/encoder.h"

#include "base/arena.h"
#include "weights/rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = WT_PIECE_NAME, STREAMS = 2 };

static const float quick = 1.702f; /* QuickGELU's factor (openai/CLIP, clip/model.py) */

/* A norm's weights in backend memory. */
typedef struct {
    float *weight, *bias; /* [width]; bias NULL: RMS */
} encoder_norm;

typedef struct {
    encoder_norm norm;
    kern_linear *query; /* [heads * head_dim][width]; self [3 * heads * head_dim][width] query, key, value */
    kern_linear *keys;  /* [2 * heads * head_dim][cross] key, value; self NULL */
    kern_linear *out;   /* [width][heads * head_dim] */
} encoder_attention;

typedef struct {
    encoder_attention self, cross; /* cross: {0} without a second attention */
    encoder_norm norm;
    kern_linear *fc1; /* [hidden][width]; gated: [2 * hidden][width] fc1, up */
    kern_linear *fc2; /* [width][hidden] */
} encoder_layer;

struct nets_encoder {
    nets_encoder_config config;
    encoder_norm before, after; /* {0} if there is none */
    encoder_layer *layers;      /* [depth] */
    float *bias;                /* [heads][2 * reach + 1] in backend memory, or NULL */
    int reach;
    nets_encoder_room room;

    /* Backend memory of a call, divided from `memory`: [room.rows] of each array but keys. */
    char *memory;
    float *stream[STREAMS]; /* [width] residual stream, and its normalised rows; NULL without a norm */
    act *operand;           /* [width] of a part */
    act *query;             /* [3 * heads * head_dim] */
    act *attended;          /* [heads * head_dim] */
    act *hidden;            /* [hidden]; gated: [2 * hidden] */
    act *gated;             /* [hidden] */
    act *keys;              /* [room.cross_rows][2 * heads * head_dim] */
};

static int inner_width(const nets_encoder_config *c)
{
    return c->heads * c->head_dim;
}

/* --- loading ------------------------------------------------------------------------------------------------------ */

/* Source and destination of a layer's tensors. */
typedef struct {
    kern_queue *k;
    const wt_file *f;
    const nets_encoder_config *c;
    const nets_encoder_names *names;
    int layer;
    kern_linear *before; /* the product before the next one, or NULL */
    mar_err *err;
} loader;

/* A matrix of a product; a product may join up to WT_PIECES of the same shape. */
typedef struct {
    const char *name;          /* in a layer */
    float factor, bias_factor; /* multiply weight and bias */
} source;

/* Writes the name of this layer's tensor to text and returns it; what: "weight", "bias" or, without, the layer. */
static const char *tensor_name(const nets_encoder_names *names, int layer, const char *name, const char *what,
                               char text[NAME])
{
    const size_t n = strlen(name);
    const char *point = what && n && name[n - 1] != '_' ? "." : "";
    snprintf(text, NAME, "%s%d%s%s%s", names->layers, layer, name, point, what ? what : "");
    return text;
}

/* Loads NAME.weight and, for a layer norm, NAME.bias; nothing without a name. */
static mar_status encoder_load_norm(const loader *l, const char *name, encoder_norm *out)
{
    const int64_t shape[] = {l->c->width};
    char text[NAME];
    if (!name) return MAR_OK;
    snprintf(text, sizeof text, "%s.weight", name);
    const mar_status status = wt_load_array(l->k, l->f, text, 1, shape, &out->weight, l->err);
    if (status != MAR_OK || l->c->norm == NETS_NORM_RMS) return status;
    snprintf(text, sizeof text, "%s.bias", name);
    return wt_load_array(l->k, l->f, text, 1, shape, &out->bias, l->err);
}

/* Loads `count` matrices [out][in] of the same input as one product. */
static mar_status encoder_load_product(loader *l, const source *parts, int count, int out, int in,
                                       kern_activation activation, int flags, kern_linear **product)
{
    wt_rows w = {.file = l->f, .in = in, .count = count, .bias = l->c->bias};
    for (int i = 0; i < count; i++) {
        w.piece[i] = (wt_piece){.rows = out, .factor = parts[i].factor, .bias_factor = parts[i].bias_factor};
        tensor_name(l->names, l->layer, parts[i].name, "weight", w.piece[i].name);
    }
    const kern_linear_spec spec = {.out = count * out,
                                   .activation = activation,
                                   .flags = flags | (l->c->int8 ? KERN_LOW : 0),
                                   .previous = l->before};
    const mar_status status = wt_create_linear(l->k, &w, spec, product, l->err);
    l->before = *product;
    return status;
}

/* Loads the first attention, or with `cross` the second one, of this width of keys. */
static mar_status encoder_load_attention(loader *l, const nets_attention_names *n, int cross, encoder_attention *a)
{
    const nets_encoder_config *c = l->c;
    const int inner = inner_width(c), width = c->width;
    const float scale = c->unscaled ? sqrtf((float)c->head_dim) : 1;
    const source parts[] = {{n->query, scale, scale}, {n->key, 1, 1}, {n->value, 1, 1}}, whole = {n->qkv, 1, 1};
    const source out = {n->out, 1, 1};
    char name[NAME];
    mar_status status = encoder_load_norm(l, tensor_name(l->names, l->layer, n->norm, NULL, name), &a->norm);
    if (status == MAR_OK && n->qkv)
        status = encoder_load_product(l, &whole, 1, 3 * inner, width, KERN_LINEAR, 0, &a->query);
    if (status == MAR_OK && !n->qkv)
        status = encoder_load_product(l, parts, cross ? 1 : 3, inner, width, KERN_LINEAR, 0, &a->query);
    if (status == MAR_OK && cross)
        status = encoder_load_product(l, parts + 1, 2, inner, cross, KERN_LINEAR, 0, &a->keys);
    if (status != MAR_OK) return status;
    return encoder_load_product(l, &out, 1, width, inner, KERN_LINEAR, KERN_OUT_F32 | KERN_OUT_ADD, &a->out);
}

static mar_status encoder_load_mlp(loader *l, encoder_layer *layer)
{
    const nets_encoder_config *c = l->c;
    const nets_encoder_names *n = l->names;
    const float up = c->quick_gelu ? quick : 1;
    const source fc1[] = {{n->fc1, up, up}, {n->up, 1, 1}}, fc2 = {n->fc2, 1 / up, 1};
    const kern_activation activation = c->gated ? KERN_LINEAR : c->quick_gelu ? KERN_SILU : c->activation;
    char name[NAME];
    mar_status status = encoder_load_norm(l, tensor_name(n, l->layer, n->norm, NULL, name), &layer->norm);
    if (status == MAR_OK)
        status = encoder_load_product(l, fc1, c->gated ? 2 : 1, c->hidden, c->width, activation, 0, &layer->fc1);
    if (status != MAR_OK) return status;
    return encoder_load_product(l, &fc2, 1, c->width, c->hidden, KERN_LINEAR, KERN_OUT_F32 | KERN_OUT_ADD, &layer->fc2);
}

/* Copies the table of biases to the backend. */
static mar_status encoder_load_bias(kern_queue *k, nets_encoder *e, const float *bias, int reach, mar_err *err)
{
    e->reach = reach;
    return kern_new_array(k, bias, (size_t)e->config.heads * (size_t)(2 * reach + 1), &e->bias, err);
}

/* Makes a causal encoder's table: earlier keys and the query's own add 0, later ones are masked. */
static mar_status encoder_load_causal(kern_queue *k, nets_encoder *e, mar_err *err)
{
    float *bias = calloc(3 * (size_t)e->config.heads, sizeof *bias);
    if (!bias) return err_set(err, MAR_ENOMEM, "out of memory");
    for (int h = 0; h < e->config.heads; h++) bias[3 * h + 2] = -INFINITY;
    const mar_status status = encoder_load_bias(k, e, bias, 1, err);
    free(bias);
    return status;
}

static mar_status encoder_load_layers(loader *l, nets_encoder *e)
{
    mar_status status = encoder_load_norm(l, l->names->before, &e->before);
    for (; status == MAR_OK && l->layer < l->c->depth; l->layer++) {
        encoder_layer *layer = &e->layers[l->layer];
        status = encoder_load_attention(l, &l->names->self, 0, &layer->self);
        if (status == MAR_OK && l->c->cross)
            status = encoder_load_attention(l, &l->names->cross, l->c->cross, &layer->cross);
        if (status == MAR_OK) status = encoder_load_mlp(l, layer);
    }
    return status == MAR_OK ? encoder_load_norm(l, l->names->after, &e->after) : status;
}

mar_status nets_encoder_create(kern_queue *k, const wt_file *f, const nets_encoder_config *c,
                               const nets_encoder_names *names, const float *bias, int reach, nets_encoder **out,
                               mar_err *err)
{
    *out = NULL;
    nets_encoder *e = calloc(1, sizeof *e);
    if (e) e->layers = calloc((size_t)c->depth + 1, sizeof *e->layers);
    mar_status status = e && e->layers ? MAR_OK : err_set(err, MAR_ENOMEM, "%s: out of memory", wt_path(f));
    if (status == MAR_OK) e->config = *c;
    if (status == MAR_OK && c->causal) status = encoder_load_causal(k, e, err);
    if (status == MAR_OK && bias) status = encoder_load_bias(k, e, bias, reach, err);
    loader l = {.k = k, .f = f, .c = c, .names = names, .err = err};
    if (status == MAR_OK) status = encoder_load_layers(&l, e);
    if (status != MAR_OK) {
        k->core->finish(k);
        nets_encoder_free(k->device, e);
    } else {
        *out = e;
    }
    return status;
}

static void encoder_free_norm(kern_device *d, const encoder_norm *n)
{
    d->core->free(d, n->weight);
    d->core->free(d, n->bias);
}

static void encoder_free_attention(kern_device *d, const encoder_attention *a)
{
    encoder_free_norm(d, &a->norm);
    d->core->linear_free(d, a->query);
    d->core->linear_free(d, a->keys);
    d->core->linear_free(d, a->out);
}

void nets_encoder_free(kern_device *d, nets_encoder *e)
{
    if (!e) return;
    for (int i = 0; e->layers && i < e->config.depth; i++) {
        const encoder_layer *l = &e->layers[i];
        encoder_free_attention(d, &l->self);
        encoder_free_attention(d, &l->cross);
        encoder_free_norm(d, &l->norm);
        d->core->linear_free(d, l->fc1);
        d->core->linear_free(d, l->fc2);
    }
    encoder_free_norm(d, &e->before);
    encoder_free_norm(d, &e->after);
    d->core->free(d, e->bias);
    d->core->free(d, e->memory);
    free(e->layers);
    free(e);
}

void nets_encoder_tensors(const nets_encoder_config *c, const nets_encoder_names *names,
                          void (*visit)(void *user, const char *name, int rank, const int64_t *shape), void *user)
{
    const int64_t width = c->width, inner = inner_width(c), hidden = c->hidden;
    const struct {
        const char *name;
        int rank, bias;
        int64_t shape[2];
    } all[] = {
        {names->self.norm, 1, c->norm == NETS_NORM_LAYER, {width, 0}},
        {names->self.query, 2, c->bias, {inner, width}},
        {names->self.key, 2, c->bias, {inner, width}},
        {names->self.value, 2, c->bias, {inner, width}},
        {names->self.qkv, 2, c->bias, {3 * inner, width}},
        {names->self.out, 2, c->bias, {width, inner}},
        {names->norm, 1, c->norm == NETS_NORM_LAYER, {width, 0}},
        {names->fc1, 2, c->bias, {hidden, width}},
        {c->gated ? names->up : NULL, 2, c->bias, {hidden, width}},
        {names->fc2, 2, c->bias, {width, hidden}},
    };
    char name[NAME];
    for (int i = 0; i < c->depth; i++)
        for (size_t j = 0; j < sizeof all / sizeof *all; j++) {
            if (!all[j].name) continue;
            visit(user, tensor_name(names, i, all[j].name, "weight", name), all[j].rank, all[j].shape);
            if (all[j].bias) visit(user, tensor_name(names, i, all[j].name, "bias", name), 1, all[j].shape);
        }
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

/* Lays out the arrays at base. Returns their size. With base NULL it only counts. */
static size_t encoder_lay_out(nets_encoder *e, size_t act_size, char *base)
{
    const nets_encoder_config *c = &e->config;
    const size_t rows = (size_t)e->room.rows, width = (size_t)c->width, hidden = (size_t)c->hidden;
    const size_t inner = (size_t)inner_width(c), cross_rows = (size_t)e->room.cross_rows;
    const int has_copy = e->before.weight || c->post_norm;
    size_t used = 0;
    e->stream[0] = arena_carve(base, &used, rows * width, sizeof(float));
    e->stream[1] = has_copy ? arena_carve(base, &used, rows * width, sizeof(float)) : NULL;
    e->operand = arena_carve(base, &used, rows * width, act_size);
    e->query = arena_carve(base, &used, rows * 3 * inner, act_size);
    e->attended = arena_carve(base, &used, rows * inner, act_size);
    e->hidden = arena_carve(base, &used, rows * hidden * (c->gated ? 2 : 1), act_size);
    e->gated = c->gated ? arena_carve(base, &used, rows * hidden, act_size) : e->hidden;
    e->keys = arena_carve(base, &used, cross_rows * 2 * inner, act_size);
    return used;
}

/* Prepares the products and attentions of all layers. */
static mar_status encoder_plan_layers(kern_queue *k, const nets_encoder *e, mar_err *err)
{
    const nets_encoder_config *c = &e->config;
    const nets_encoder_room *r = &e->room;
    const int inner = inner_width(c);
    mar_status status =
        k->core->attention_plan(k, r->longest, r->longest, c->heads, c->head_dim, 3 * inner, 3 * inner, err);
    if (status == MAR_OK && c->cross)
        status = k->core->attention_plan(k, r->longest, r->cross_longest, c->heads, c->head_dim, inner, 2 * inner, err);
    for (int i = 0; status == MAR_OK && i < c->depth; i++) {
        const encoder_layer *l = &e->layers[i];
        const kern_linear *const products[] = {l->self.query, l->self.out, l->cross.query,
                                               l->cross.out,  l->fc1,      l->fc2};
        for (int j = 0; status == MAR_OK && j < 6; j++)
            if (products[j]) status = k->core->linear_plan(k, products[j], r->rows, err);
        if (status == MAR_OK && c->cross) status = k->core->linear_plan(k, l->cross.keys, r->cross_rows, err);
    }
    return status;
}

static void encoder_grow(int *room, int wanted)
{
    if (*room < wanted) *room = wanted;
}

mar_status nets_encoder_reserve(kern_queue *k, nets_encoder *e, nets_encoder_room room, mar_err *err)
{
    void *memory = NULL;
    const nets_encoder_room old = e->room;
    encoder_grow(&e->room.rows, room.rows);
    encoder_grow(&e->room.longest, room.longest);
    encoder_grow(&e->room.cross_rows, room.cross_rows);
    encoder_grow(&e->room.cross_longest, room.cross_longest);
    if (memcmp(&old, &e->room, sizeof old) == 0) return MAR_OK;
    k->device->core->free(k->device, e->memory);
    e->memory = NULL;
    mar_status status = k->core->alloc(k->device, encoder_lay_out(e, k->device->act_size, NULL), &memory, err);
    if (status == MAR_OK) {
        e->memory = memory;
        encoder_lay_out(e, k->device->act_size, memory);
        status = encoder_plan_layers(k, e, err);
    }
    if (status != MAR_OK) e->room = (nets_encoder_room){0}; /* the next call tries again */
    return status;
}

float *nets_encoder_input(const nets_encoder *e)
{
    return e->stream[0];
}

/* --- running ------------------------------------------------------------------------------------------------------ */

/* State of a call. */
typedef struct {
    kern_queue *k;
    const nets_encoder *e;
    const nets_spans *spans;
    const nets_cross *cross;
    float *x, *other; /* [rows][width] residual stream, and its normalised rows */
    const char *name;
} call;

static void encoder_run_norm(kern_queue *k, const nets_encoder_config *c, const encoder_norm *n, const float *x,
                             const int *index, int rows, void *y, int y_f32)
{
    if (c->norm == NETS_NORM_RMS)
        k->core->rms_norm(k, x, index, rows, c->width, n->weight, c->eps, y, y_f32);
    else
        k->core->layer_norm(k, x, index, rows, c->width, n->weight, n->bias, c->eps, y, y_f32);
}

/* Shows a layer's output to the search for the first non-finite one. */
static void encoder_watch(const call *c, int layer, const char *what, const void *y, int f32, int width)
{
    kern_watch(c->k, y, f32 ? MAR_DTYPE_F32 : MAR_DTYPE_AUTO, c->spans->rows, width, width, "%s.%d.%s", c->name, layer,
               what);
}

/* x = norm(x) */
static void encoder_norm_stream(call *c, const encoder_norm *n)
{
    float *const normed = c->other;
    encoder_run_norm(c->k, &c->e->config, n, c->x, NULL, c->spans->rows, normed, 1);
    c->other = c->x;
    c->x = normed;
}

/* Makes the operands of a part: norm(x), or x with norms behind the parts. */
static void encoder_begin_part(const call *c, const encoder_norm *n, int layer, const char *name)
{
    const nets_encoder_config *o = &c->e->config;
    if (o->post_norm) {
        c->k->core->to_act(c->k, c->x, (size_t)c->spans->rows * (size_t)o->width, c->e->operand);
        return;
    }
    encoder_run_norm(c->k, o, n, c->x, NULL, c->spans->rows, c->e->operand, 0);
    encoder_watch(c, layer, name, c->e->operand, 0, o->width);
}

/* Adds out(from) to x, and norms it with norms behind the parts. */
static void encoder_end_part(call *c, const kern_linear *out, const act *from, const encoder_norm *n, int layer,
                             const char *name)
{
    c->k->core->linear(c->k, out, from, c->spans->rows, c->x);
    if (c->e->config.post_norm) encoder_norm_stream(c, n);
    encoder_watch(c, layer, name, c->x, 1, c->e->config.width);
}

static void encoder_attend(call *c, int layer)
{
    kern_queue *k = c->k;
    const nets_encoder *e = c->e;
    const nets_encoder_config *o = &e->config;
    const encoder_attention *a = &e->layers[layer].self;
    const nets_spans *s = c->spans;
    const int inner = inner_width(o);
    const char *qkv = e->query;
    const size_t row = (size_t)inner * k->device->act_size;
    encoder_begin_part(c, &a->norm, layer, "norm1");
    k->core->linear(k, a->query, e->operand, s->rows, e->query);
    encoder_watch(c, layer, "qkv", e->query, 0, 3 * inner);
    k->core->attention_spans(k, qkv, 3 * inner, s->first, s->length, qkv + row, qkv + 2 * row, 3 * inner, s->first,
                             s->length, s->count, o->heads, o->head_dim, e->bias, e->reach, e->attended);
    encoder_watch(c, layer, "attention", e->attended, 0, inner);
    encoder_end_part(c, a->out, e->attended, &a->norm, layer, "out");
}

/* Attends to the other network's rows. */
static void encoder_attend_across(call *c, int layer)
{
    kern_queue *k = c->k;
    const nets_encoder *e = c->e;
    const nets_encoder_config *o = &e->config;
    const encoder_attention *a = &e->layers[layer].cross;
    const nets_spans *s = c->spans, *other = c->cross->spans;
    const int inner = inner_width(o);
    const char *keys = e->keys;
    encoder_begin_part(c, &a->norm, layer, "cross_norm");
    k->core->linear(k, a->query, e->operand, s->rows, e->query);
    k->core->linear(k, a->keys, c->cross->rows, other->rows, e->keys);
    k->core->attention_spans(k, e->query, inner, s->first, s->length, keys, keys + (size_t)inner * k->device->act_size,
                             2 * inner, other->first, other->length, s->count, o->heads, o->head_dim, NULL, 0,
                             e->attended);
    encoder_watch(c, layer, "cross_attention", e->attended, 0, inner);
    encoder_end_part(c, a->out, e->attended, &a->norm, layer, "cross_out");
}

static void encoder_feed_forward(call *c, int layer)
{
    kern_queue *k = c->k;
    const nets_encoder *e = c->e;
    const nets_encoder_config *o = &e->config;
    const encoder_layer *l = &e->layers[layer];
    const int rows = c->spans->rows;
    encoder_begin_part(c, &l->norm, layer, "norm2");
    k->core->linear(k, l->fc1, e->operand, rows, e->hidden);
    encoder_watch(c, layer, "fc1", e->hidden, 0, (o->gated ? 2 : 1) * o->hidden);
    if (o->gated) k->core->gated(k, e->hidden, rows, o->hidden, o->activation, e->gated);
    if (o->gated) encoder_watch(c, layer, "gated", e->gated, 0, o->hidden);
    encoder_end_part(c, l->fc2, e->gated, &l->norm, layer, "fc2");
}

const float *nets_encoder_run(kern_queue *k, const nets_encoder *e, const nets_spans *spans, const nets_cross *cross,
                              const char *name)
{
    call c = {k, e, spans, cross, e->stream[0], e->stream[1], name};
    if (spans->rows <= 0) return c.x;
    if (e->before.weight) encoder_norm_stream(&c, &e->before);
    for (int i = 0; i < e->config.depth; i++) {
        encoder_attend(&c, i);
        if (e->config.cross) encoder_attend_across(&c, i);
        encoder_feed_forward(&c, i);
    }
    return c.x;
}

void nets_encoder_norm(kern_queue *k, const nets_encoder *e, const float *x, const int *index, int rows, void *y,
                       int y_f32)
{
    encoder_run_norm(k, &e->config, &e->after, x, index, rows, y, y_f32);
}
