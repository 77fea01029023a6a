#include "eval/reward.h"

#include "base/arena.h"
#include "weights/rows.h"
#include "weights/shape.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD = 64, DEPTH_MAX = 1024, NAME = 160, HEAD_LAYERS = 5 };

static const float bert_eps = 1e-12f, vit_eps = 1e-6f; /* med_config.json, vit.py */
static const double score_mean = 0.16717362830052426, score_deviation = 1.0333394966054072; /* ImageReward.py */

static const vit_names image_names = {
    .layers = {.layers = "blip.visual_encoder.blocks.",
               .norm1 = ".norm1",
               .qkv = ".attn.qkv",
               .out = ".attn.proj",
               .norm2 = ".norm2",
               .fc1 = ".mlp.fc1",
               .fc2 = ".mlp.fc2"},
    .class_row = "blip.visual_encoder.cls_token",
    .positions = "blip.visual_encoder.pos_embed",
    .patches = "blip.visual_encoder.patch_embed.proj",
    .after = "blip.visual_encoder.norm",
};

#define TEXT "blip.text_encoder."
static const char word_rows[] = TEXT "embeddings.word_embeddings.weight",
                  position_rows[] = TEXT "embeddings.position_embeddings.weight", layer_names[] = TEXT "encoder.layer.";

/* The linear layers of the head. There is no activation between them, so the head is one linear function. */
static const char *const head_names[HEAD_LAYERS] = {"mlp.layers.0", "mlp.layers.2", "mlp.layers.4", "mlp.layers.6",
                                                    "mlp.layers.7"};

/* Attention and what follows it: x = norm(x + out(attention(query(x), keys and values))). */
typedef struct {
    kern_linear *query; /* of x; of self attention [3 * width][width] query, key, value */
    kern_linear *keys;  /* [2 * width][image width] key, value of the image; NULL: self attention */
    kern_linear *out;   /* [width][width] */
    text_norm norm;
} attention_part;

typedef struct {
    attention_part self, cross;
    kern_linear *fc1, *fc2; /* [hidden][width], [width][hidden] */
    text_norm norm;
} bert_layer;

struct reward {
    kern_queue *k;
    reward_config config;
    vit image;
    bert_layer *layers;        /* [depth] */
    float *tokens, *positions; /* backend [vocabulary][width], [REWARD_TOKENS][width] */
    text_norm norm;            /* of the embeddings */
    double *head;              /* host [width] */
    double bias;               /* score = (head . x + bias - score_mean) / score_deviation */

    /* Backend memory of a pass, divided from `memory`; `rows` are those of the texts. */
    char *memory;
    act *features; /* [images * (patches + 1)][image width] */
    float *x, *y;  /* [rows][width] residual stream, before and after a norm */
    act *operand;  /* [rows][width] x of a product */
    act *query;    /* [rows][3 * width] */
    act *attended; /* [rows][width] */
    act *hidden;   /* [rows][hidden] */
    act *keys;     /* [images * (patches + 1)][2 * width] */

    float *states; /* host [images][width] rows of [CLS] */
    int *index;    /* host [3][images * REWARD_TOKENS] */
};

/* --- sizes -------------------------------------------------------------------------------------------------------- */

static const char *name_of(int layer, const char *part, const char *what, char name[NAME])
{
    snprintf(name, NAME, "%s%d.%s%s", layer_names, layer, part, what);
    return name;
}

static mar_status derive_text(const wt_file *f, reward_config *c, mar_err *err)
{
    const wt_tensor *t;
    char name[NAME];
    mar_status status = wt_find_shape(f, word_rows, 2, &t, err);
    if (status != MAR_OK) return status;
    c->vocabulary = (int)t->shape[0];
    c->width = (int)t->shape[1];
    c->heads = c->width / HEAD;
    c->depth = wt_count_parts(f, layer_names, DEPTH_MAX);
    if (c->width % HEAD) return vit_refuse_shape(f, t, "a multiple of 64, the width of a head", err);
    status = wt_find_shape(f, position_rows, 2, &t, err);
    if (status != MAR_OK) return status;
    if (t->shape[0] < REWARD_TOKENS) return vit_refuse_shape(f, t, "35 positions or more", err);
    status = wt_find_shape(f, name_of(0, "intermediate.dense", ".weight", name), 2, &t, err);
    if (status == MAR_OK) c->hidden = (int)t->shape[0];
    return status;
}

int reward_config_recognise(const wt_file *f)
{
    return wt_find(f, image_names.class_row) && wt_find(f, "mlp.layers.0.weight");
}

mar_status reward_config_derive(const wt_file *f, reward_config *out, mar_err *err)
{
    *out = (reward_config){0};
    if (!reward_config_recognise(f))
        return err_set(err, MAR_EMODEL,
                       "%s: is no ImageReward (no %s, no mlp.layers.0.weight), expected THUDM/ImageReward's "
                       "ImageReward.pt",
                       wt_path(f), image_names.class_row);
    text_encoder_config *layers = &out->image.layers;
    mar_status status = vit_config_derive(f, &image_names, &out->image, err);
    if (status == MAR_OK) status = vit_set_heads(f, "the image tower", HEAD, layers, err);
    layers->eps = vit_eps;
    layers->activation = KERN_GELU;
    layers->int8 = 1;
    out->image.resize = VIT_TORCHVISION;
    if (status == MAR_OK) status = derive_text(f, out, err);
    out->parameters = wt_count_parameters(f);
    return status;
}

/* --- weights ------------------------------------------------------------------------------------------------------ */

typedef struct {
    kern_queue *k;
    const wt_file *f;
    const reward_config *c;
    int layer;
    mar_err *err;
} loader;

/* Loads `count` matrices [out][in] of a layer, with biases, as one product. */
static mar_status load_product(const loader *l, const char *const *parts, int count, int out, int in,
                               kern_activation activation, int flags, kern_linear **to)
{
    wt_rows w = {.file = l->f, .in = in, .count = count, .bias = 1};
    for (int i = 0; i < count; i++) {
        w.piece[i].rows = out;
        name_of(l->layer, parts[i], ".weight", w.piece[i].name);
    }
    const kern_linear_spec spec = {.out = count * out, .activation = activation, .flags = flags};
    return wt_create_linear(l->k, &w, spec, to, l->err);
}

static mar_status load_norm(const loader *l, const char *name, text_norm *out)
{
    const text_encoder_config c = {.norm = TEXT_NORM_LAYER, .width = l->c->width, .eps = bert_eps};
    return text_norm_load(l->k, l->f, &c, name, out, l->err);
}

/* Loads "attention" or "crossattention"; `is_cross`: keys and values are made of the image. */
static mar_status load_attention(const loader *l, const char *part, int is_cross, attention_part *out)
{
    enum { QUERY, KEY, VALUE, OUT, NORM, NAMES };
    static const char *const names[NAMES] = {".self.query", ".self.key", ".self.value", ".output.dense",
                                             ".output.LayerNorm"};
    const int width = l->c->width, sums = KERN_OUT_F32 | KERN_OUT_ADD;
    char text[NAMES][NAME], name[NAME];
    const char *parts[NAMES];
    for (int i = 0; i < NAMES; i++) {
        snprintf(text[i], NAME, "%s%s", part, names[i]);
        parts[i] = text[i];
    }
    mar_status status = load_product(l, parts, is_cross ? 1 : 3, width, width, KERN_LINEAR, 0, &out->query);
    if (status == MAR_OK && is_cross)
        status = load_product(l, parts + KEY, 2, width, l->c->image.layers.width, KERN_LINEAR, 0, &out->keys);
    if (status == MAR_OK) status = load_product(l, parts + OUT, 1, width, width, KERN_LINEAR, sums, &out->out);
    return status == MAR_OK ? load_norm(l, name_of(l->layer, parts[NORM], "", name), &out->norm) : status;
}

static mar_status load_layer(const loader *l, bert_layer *out)
{
    const char *const fc1 = "intermediate.dense", *const fc2 = "output.dense";
    const int width = l->c->width, hidden = l->c->hidden;
    char name[NAME];
    mar_status status = load_attention(l, "attention", 0, &out->self);
    if (status == MAR_OK) status = load_attention(l, "crossattention", 1, &out->cross);
    if (status == MAR_OK) status = load_product(l, &fc1, 1, hidden, width, KERN_GELU, 0, &out->fc1);
    if (status == MAR_OK)
        status = load_product(l, &fc2, 1, width, hidden, KERN_LINEAR, KERN_OUT_F32 | KERN_OUT_ADD, &out->fc2);
    return status == MAR_OK ? load_norm(l, name_of(l->layer, "output.LayerNorm", "", name), &out->norm) : status;
}

/* Multiplies the head's function by one of its layers [n][in], from behind: head [n] becomes [in]. */
static mar_status fold_layer(const loader *l, const char *layer, reward *r, int *n)
{
    const wt_tensor *t;
    char name[NAME];
    float *weight = NULL, *bias = NULL;
    snprintf(name, sizeof name, "%s.weight", layer);
    mar_status status = wt_find_shape(l->f, name, 2, &t, l->err);
    if (status != MAR_OK) return status;
    if (t->shape[0] != *n) return vit_refuse_shape(l->f, t, "as many rows as the next layer has columns", l->err);
    const int64_t shape[] = {*n, t->shape[1]};
    const size_t in = (size_t)t->shape[1];
    status = wt_load_f32(l->f, name, 2, shape, &weight, l->err);
    snprintf(name, sizeof name, "%s.bias", layer);
    if (status == MAR_OK) status = wt_load_f32(l->f, name, 1, shape, &bias, l->err);
    double *folded = calloc(in, sizeof *folded);
    if (status == MAR_OK && !folded) status = err_set(l->err, MAR_ENOMEM, "%s: out of memory", wt_path(l->f));
    for (size_t i = 0; i < (size_t)*n && status == MAR_OK; i++) {
        r->bias += r->head[i] * (double)bias[i];
        for (size_t j = 0; j < in; j++) folded[j] += r->head[i] * (double)weight[i * in + j];
    }
    free(weight);
    free(bias);
    free(r->head);
    r->head = folded;
    *n = (int)in;
    return status;
}

static mar_status load_head(const loader *l, reward *r)
{
    int n = 1;
    mar_status status = MAR_OK;
    r->head = malloc(sizeof *r->head);
    if (!r->head) return err_set(l->err, MAR_ENOMEM, "%s: out of memory", wt_path(l->f));
    r->head[0] = 1;
    for (int i = HEAD_LAYERS - 1; i >= 0 && status == MAR_OK; i--) status = fold_layer(l, head_names[i], r, &n);
    if (status != MAR_OK || n == l->c->width) return status;
    return err_set(l->err, MAR_EMODEL, "%s: %s.weight has %d columns, expected %d, BERT's width", wt_path(l->f),
                   head_names[0], n, l->c->width);
}

static mar_status load_text(loader *l, reward *r)
{
    const reward_config *c = l->c;
    const wt_tensor *t = wt_find(l->f, position_rows);
    r->layers = calloc((size_t)c->depth + 1, sizeof *r->layers);
    if (!r->layers) return err_set(l->err, MAR_ENOMEM, "%s: out of memory", wt_path(l->f));
    mar_status status = vit_load_rows(l->k, l->f, word_rows, c->vocabulary, c->width, &r->tokens, l->err);
    if (status == MAR_OK)
        status = vit_load_rows(l->k, l->f, position_rows, (int)t->shape[0], c->width, &r->positions, l->err);
    if (status == MAR_OK) status = load_norm(l, TEXT "embeddings.LayerNorm", &r->norm);
    for (; l->layer < c->depth && status == MAR_OK; l->layer++) status = load_layer(l, &r->layers[l->layer]);
    return status == MAR_OK ? load_head(l, r) : status;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static size_t lay_out(reward *r, char *base)
{
    const reward_config *c = &r->config;
    const size_t images = (size_t)r->image.count, rows = images * REWARD_TOKENS, size = r->k->device->act_size;
    const size_t patches = images * (size_t)(c->image.patches + 1), width = (size_t)c->width;
    size_t used = 0;
    r->features = arena_carve(base, &used, patches * (size_t)c->image.layers.width, size);
    r->x = arena_carve(base, &used, rows * width, sizeof(float));
    r->y = arena_carve(base, &used, rows * width, sizeof(float));
    r->operand = arena_carve(base, &used, rows * width, size);
    r->query = arena_carve(base, &used, rows * 3 * width, size);
    r->attended = arena_carve(base, &used, rows * width, size);
    r->hidden = arena_carve(base, &used, rows * (size_t)c->hidden, size);
    r->keys = arena_carve(base, &used, patches * 2 * width, size);
    return used;
}

static mar_status plan_attention(reward *r, const attention_part *p, mar_err *err)
{
    const reward_config *c = &r->config;
    kern_queue *k = r->k;
    const int rows = r->image.count * REWARD_TOKENS, patches = c->image.patches + 1;
    const int keys = p->keys ? patches : REWARD_TOKENS, stride = p->keys ? 2 * c->width : 3 * c->width;
    mar_status status = k->core->linear_plan(k, p->query, rows, err);
    if (status == MAR_OK && p->keys) status = k->core->linear_plan(k, p->keys, r->image.count * patches, err);
    if (status == MAR_OK) status = k->core->linear_plan(k, p->out, rows, err);
    if (status != MAR_OK) return status;
    return k->core->attention_plan(k, REWARD_TOKENS, keys, c->heads, HEAD, p->keys ? c->width : stride, stride, err);
}

static mar_status plan(reward *r, mar_err *err)
{
    kern_queue *k = r->k;
    const int rows = r->image.count * REWARD_TOKENS;
    mar_status status = MAR_OK;
    for (int i = 0; i < r->config.depth && status == MAR_OK; i++) {
        const bert_layer *l = &r->layers[i];
        status = plan_attention(r, &l->self, err);
        if (status == MAR_OK) status = plan_attention(r, &l->cross, err);
        if (status == MAR_OK) status = k->core->linear_plan(k, l->fc1, rows, err);
        if (status == MAR_OK) status = k->core->linear_plan(k, l->fc2, rows, err);
    }
    return status;
}

static mar_status prepare(reward *r, mar_err *err)
{
    const size_t images = (size_t)r->image.count;
    void *memory = NULL;
    r->states = malloc(images * (size_t)r->config.width * sizeof *r->states);
    r->index = malloc(3 * images * REWARD_TOKENS * sizeof *r->index);
    if (!r->states || !r->index) return err_set(err, MAR_ENOMEM, "out of memory");
    const mar_status status = r->k->core->alloc(r->k->device, lay_out(r, NULL), &memory, err);
    if (status != MAR_OK) return status;
    r->memory = memory;
    lay_out(r, memory);
    return plan(r, err);
}

mar_status reward_create(kern_queue *k, const wt_file *f, int batch, reward **out, mar_err *err)
{
    *out = NULL;
    reward *r = calloc(1, sizeof *r);
    if (!r) return err_set(err, MAR_ENOMEM, "out of memory");
    r->k = k;
    loader l = {.k = k, .f = f, .c = &r->config, .err = err};
    mar_status status = reward_config_derive(f, &r->config, err);
    if (status == MAR_OK) status = vit_create(k, f, &r->config.image, &image_names, batch, &r->image, err);
    if (status == MAR_OK) status = load_text(&l, r);
    if (status == MAR_OK) status = prepare(r, err);
    if (status != MAR_OK) {
        k->core->finish(k); /* wait for pending uploads */
        reward_free(r);
        return status;
    }
    *out = r;
    return MAR_OK;
}

static void free_attention(kern_device *d, attention_part *p)
{
    d->core->linear_free(d, p->query);
    d->core->linear_free(d, p->keys);
    d->core->linear_free(d, p->out);
    text_norm_free(d, &p->norm);
}

void reward_free(reward *r)
{
    if (!r) return;
    kern_device *d = r->k->device;
    for (int i = 0; r->layers && i < r->config.depth; i++) {
        bert_layer *l = &r->layers[i];
        free_attention(d, &l->self);
        free_attention(d, &l->cross);
        d->core->linear_free(d, l->fc1);
        d->core->linear_free(d, l->fc2);
        text_norm_free(d, &l->norm);
    }
    vit_free(&r->image);
    text_norm_free(d, &r->norm);
    d->core->free(d, r->tokens);
    d->core->free(d, r->positions);
    d->core->free(d, r->memory);
    free(r->layers);
    free(r->head);
    free(r->states);
    free(r->index);
    free(r);
}

const reward_config *reward_get_config(const reward *r)
{
    return &r->config;
}

/* --- running ------------------------------------------------------------------------------------------------------ */

/* Norms x, which y takes the place of. */
static void norm(reward *r, const text_norm *by, int rows)
{
    float *before = r->x;
    text_norm_run(r->k, by, before, NULL, rows, r->y, 1);
    r->k->core->to_act(r->k, r->y, (size_t)rows * (size_t)r->config.width, r->operand);
    r->x = r->y;
    r->y = before;
}

/* Adds out(from) to the stream, and norms it. */
static void close_part(reward *r, const kern_linear *out, const text_norm *by, const act *from, int rows)
{
    r->k->core->linear(r->k, out, from, rows, r->x);
    norm(r, by, rows);
}

/* Runs the layers on the embeddings in x and operand. Image i belongs to text i. */
static void run_layers(reward *r, const text_spans *texts)
{
    kern_queue *k = r->k;
    const reward_config *c = &r->config;
    const int rows = texts->rows, n = texts->count, width = c->width, patches = n * (c->image.patches + 1);
    const char *query = r->query, *keys = r->keys;
    const size_t row = (size_t)width * k->device->act_size;
    for (int i = 0; i < c->depth; i++) {
        const bert_layer *l = &r->layers[i];
        k->core->linear(k, l->self.query, r->operand, rows, r->query);
        k->core->attention_spans(k, query, 3 * width, texts->first, texts->length, query + row, query + 2 * row,
                                 3 * width, texts->first, texts->length, n, c->heads, HEAD, NULL, 0, r->attended);
        close_part(r, l->self.out, &l->self.norm, r->attended, rows);

        k->core->linear(k, l->cross.query, r->operand, rows, r->query);
        k->core->linear(k, l->cross.keys, r->features, patches, r->keys);
        k->core->attention_spans(k, query, width, texts->first, texts->length, keys, keys + row, 2 * width,
                                 r->image.first, r->image.length, n, c->heads, HEAD, NULL, 0, r->attended);
        close_part(r, l->cross.out, &l->cross.norm, r->attended, rows);

        k->core->linear(k, l->fc1, r->operand, rows, r->hidden);
        close_part(r, l->fc2, &l->norm, r->hidden, rows);
        kern_watch(k, r->x, MAR_DTYPE_F32, rows, width, width, "text_encoder.%d", i);
    }
}

/* Embeds n texts: the rows of tokens and positions, normed. Returns their spans. */
static text_spans embed(reward *r, const int *ids, const int *first, const int *length, int n)
{
    const int most = r->image.count * REWARD_TOKENS;
    int *token = r->index, *position = token + most, *begin = position + most, at = 0;
    for (int i = 0; i < n; i++) {
        begin[i] = at;
        for (int j = 0; j < length[i]; j++, at++) token[at] = ids[first[i] + j], position[at] = j;
    }
    r->k->core->copy_rows(r->k, r->x, NULL, r->tokens, token, r->positions, position, at, r->config.width);
    norm(r, &r->norm, at);
    return (text_spans){n, at, begin, length};
}

/* Computes the scores of n images, the first of which is number `done` of the call's. */
static mar_status score(reward *r, int done, int n, double *scores, mar_err *err)
{
    const size_t width = (size_t)r->config.width;
    for (int i = 0; i < n; i++) {
        double sum = r->bias;
        for (size_t j = 0; j < width; j++) sum += r->head[j] * (double)r->states[(size_t)i * width + j];
        scores[i] = (sum - score_mean) / score_deviation;
        if (!isfinite(scores[i]))
            return err_set(err, MAR_EMODEL,
                           "image %d of the batch: its score is NaN or infinite: the weights are damaged, or their "
                           "numbers too large",
                           done + i);
    }
    return MAR_OK;
}

mar_status reward_run(reward *r, const eval_picture *pictures, const int *ids, const int *first, const int *length,
                      int n, double *scores, mar_err *err)
{
    kern_queue *k = r->k;
    vit *v = &r->image;
    const int width = r->config.width;
    for (int done = 0, m; done < n; done += m) {
        m = n - done < v->count ? n - done : v->count;
        mar_status status = vit_run(v, pictures + done, m, "visual_encoder", err);
        if (status != MAR_OK) return status;
        text_norm_run(k, &v->after, v->x, NULL, m * (v->config.patches + 1), r->features, 0);
        const text_spans texts = embed(r, ids, first + done, length + done, m);
        run_layers(r, &texts);
        k->core->copy_rows(k, r->y, NULL, r->x, texts.first, NULL, NULL, m, width);
        k->core->download(k, r->states, r->y, (size_t)m * (size_t)width * sizeof *r->states);
        status = kern_check(k, err);
        if (status == MAR_OK) status = score(r, done, m, scores + done, err);
        if (status != MAR_OK) return status;
    }
    return MAR_OK;
}
