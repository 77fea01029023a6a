#include "eval/reward.h"

#include "base/arena.h"
#include "weights/rows.h"
#include "weights/shape.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD = 64, NAME = 160, HEAD_LAYERS = 5 };

static const float bert_eps = 1e-12f, vit_eps = 1e-6f; /* med_config.json, vit.py */
static const double score_mean = 0.16717362830052426, score_deviation = 1.0333394966054072; /* ImageReward.py */

static const vit_names image_names = {
    .layers = {.layers = "blip.visual_encoder.blocks.",
               .self = {.norm = ".norm1", .qkv = ".attn.qkv", .out = ".attn.proj"},
               .norm = ".norm2",
               .fc1 = ".mlp.fc1",
               .fc2 = ".mlp.fc2",
               .after = "blip.visual_encoder.norm"},
    .class_row = "blip.visual_encoder.cls_token",
    .positions = "blip.visual_encoder.pos_embed",
    .patches = "blip.visual_encoder.patch_embed.proj",
};

#define TEXT "blip.text_encoder."
static const char word_rows[] = TEXT "embeddings.word_embeddings.weight",
                  position_rows[] = TEXT "embeddings.position_embeddings.weight";

static const nets_encoder_names text_names = {
    .before = TEXT "embeddings.LayerNorm",
    .layers = TEXT "encoder.layer.",
    .self = {.norm = ".attention.output.LayerNorm",
             .query = ".attention.self.query",
             .key = ".attention.self.key",
             .value = ".attention.self.value",
             .out = ".attention.output.dense"},
    .cross = {.norm = ".crossattention.output.LayerNorm",
              .query = ".crossattention.self.query",
              .key = ".crossattention.self.key",
              .value = ".crossattention.self.value",
              .out = ".crossattention.output.dense"},
    .norm = ".output.LayerNorm",
    .fc1 = ".intermediate.dense",
    .fc2 = ".output.dense",
};

/* The linear layers of the head. There is no activation between them, so the head is one linear function. */
static const char *const head_names[HEAD_LAYERS] = {"mlp.layers.0", "mlp.layers.2", "mlp.layers.4", "mlp.layers.6",
                                                    "mlp.layers.7"};

struct reward {
    kern_queue *k;
    reward_config config;
    vit image;
    nets_encoder *layers;      /* of BERT */
    float *tokens, *positions; /* backend [vocabulary][width], [positions][width] */
    double *head;              /* host [width] */
    double bias;               /* score = (head . x + bias - score_mean) / score_deviation */

    /* Backend memory of a pass, divided from `memory`. */
    char *memory;
    act *features; /* [images * (patches + 1)][image width] */
    float *first;  /* [images][width] rows of [CLS] */

    float *states; /* host [images][width] rows of [CLS] */
    int *index;    /* host [3][images * REWARD_TOKENS] */
};

/* --- sizes -------------------------------------------------------------------------------------------------------- */

static mar_status reward_derive_text(const wt_file *f, reward_config *c, mar_err *err)
{
    const wt_tensor *t;
    c->text =
        (nets_encoder_config){.eps = bert_eps, .post_norm = 1, .activation = KERN_GELU, .cross = c->image.layers.width};
    mar_status status = vit_derive_layers(f, &text_names, &c->text, err);
    if (status == MAR_OK) status = vit_set_heads(f, "the text encoder", HEAD, &c->text, err);
    if (status == MAR_OK) status = wt_find_shape(f, word_rows, 2, &t, err);
    if (status != MAR_OK) return status;
    c->vocabulary = (int)t->shape[0];
    status = wt_find_shape(f, position_rows, 2, &t, err);
    if (status != MAR_OK || t->shape[0] >= REWARD_TOKENS) return status;
    return vit_refuse_shape(f, t, "35 positions or more", err);
}

int reward_config_recognise(const wt_file *f)
{
    return wt_find(f, image_names.class_row) && wt_find(f, "mlp.layers.0.weight");
}

/* Derives the configuration from the tensors. Returns MAR_EMODEL for another architecture, and for shapes that
 * disagree. */
static mar_status reward_config_derive(const wt_file *f, reward_config *out, mar_err *err)
{
    *out = (reward_config){0};
    if (!reward_config_recognise(f))
        return err_set(err, MAR_EMODEL,
                       "%s: is no ImageReward (no %s, no mlp.layers.0.weight), expected THUDM/ImageReward's "
                       "ImageReward.pt",
                       wt_path(f), image_names.class_row);
    nets_encoder_config *layers = &out->image.layers;
    mar_status status = vit_config_derive(f, &image_names, &out->image, err);
    if (status == MAR_OK) status = vit_set_heads(f, "the image tower", HEAD, layers, err);
    layers->eps = vit_eps;
    layers->activation = KERN_GELU;
    layers->int8 = 1;
    out->image.resize = VIT_TORCHVISION;
    if (status == MAR_OK) status = reward_derive_text(f, out, err);
    out->parameters = wt_count_parameters(f);
    return status;
}

/* --- weights ------------------------------------------------------------------------------------------------------ */

typedef struct {
    kern_queue *k;
    const wt_file *f;
    const reward_config *c;
    mar_err *err;
} loader;

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
    if (status != MAR_OK || n == l->c->text.width) return status;
    return err_set(l->err, MAR_EMODEL, "%s: %s.weight has %d columns, expected %d, BERT's width", wt_path(l->f),
                   head_names[0], n, l->c->text.width);
}

static mar_status reward_load_text(const loader *l, reward *r)
{
    const reward_config *c = l->c;
    const wt_tensor *t = wt_find(l->f, position_rows);
    const int width = c->text.width;
    mar_status status = nets_encoder_create(l->k, l->f, &c->text, &text_names, NULL, 0, &r->layers, l->err);
    if (status == MAR_OK) status = vit_load_rows(l->k, l->f, word_rows, c->vocabulary, width, &r->tokens, l->err);
    if (status == MAR_OK)
        status = vit_load_rows(l->k, l->f, position_rows, (int)t->shape[0], width, &r->positions, l->err);
    return status == MAR_OK ? load_head(l, r) : status;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

/* Returns the image tower's rows of a pass. */
static int image_rows(const reward *r)
{
    return r->image.count * (r->config.image.patches + 1);
}

static size_t reward_lay_out(reward *r, char *base)
{
    const reward_config *c = &r->config;
    size_t used = 0;
    r->features =
        arena_carve(base, &used, (size_t)image_rows(r) * (size_t)c->image.layers.width, r->k->device->act_size);
    r->first = arena_carve(base, &used, (size_t)r->image.count * (size_t)c->text.width, sizeof(float));
    return used;
}

static mar_status reward_prepare(reward *r, mar_err *err)
{
    const int images = r->image.count;
    const nets_encoder_room room = {.rows = images * REWARD_TOKENS,
                                    .longest = REWARD_TOKENS,
                                    .cross_rows = image_rows(r),
                                    .cross_longest = r->config.image.patches + 1};
    void *memory = NULL;
    r->states = malloc((size_t)images * (size_t)r->config.text.width * sizeof *r->states);
    r->index = malloc(3 * (size_t)images * REWARD_TOKENS * sizeof *r->index);
    if (!r->states || !r->index) return err_set(err, MAR_ENOMEM, "out of memory");
    const mar_status status = r->k->core->alloc(r->k->device, reward_lay_out(r, NULL), &memory, err);
    if (status != MAR_OK) return status;
    r->memory = memory;
    reward_lay_out(r, memory);
    return nets_encoder_reserve(r->k, r->layers, room, err);
}

mar_status reward_create(kern_queue *k, const wt_file *f, int batch, reward **out, mar_err *err)
{
    *out = NULL;
    reward *r = calloc(1, sizeof *r);
    if (!r) return err_set(err, MAR_ENOMEM, "out of memory");
    r->k = k;
    const loader l = {.k = k, .f = f, .c = &r->config, .err = err};
    mar_status status = reward_config_derive(f, &r->config, err);
    if (status == MAR_OK) status = vit_create(k, f, &r->config.image, &image_names, batch, &r->image, err);
    if (status == MAR_OK) status = reward_load_text(&l, r);
    if (status == MAR_OK) status = reward_prepare(r, err);
    if (status != MAR_OK) {
        k->core->finish(k); /* wait for pending uploads */
        reward_free(r);
        return status;
    }
    *out = r;
    return MAR_OK;
}

void reward_free(reward *r)
{
    if (!r) return;
    kern_device *d = r->k->device;
    vit_free(&r->image);
    nets_encoder_free(d, r->layers);
    d->core->free(d, r->tokens);
    d->core->free(d, r->positions);
    d->core->free(d, r->memory);
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

/* Embeds n texts: rows of tokens and positions. Returns their spans. */
static nets_spans reward_embed(reward *r, const int *ids, const int *first, const int *length, int n)
{
    const int most = r->image.count * REWARD_TOKENS;
    int *token = r->index, *position = token + most, *begin = position + most, at = 0;
    for (int i = 0; i < n; i++) {
        begin[i] = at;
        for (int j = 0; j < length[i]; j++, at++) token[at] = ids[first[i] + j], position[at] = j;
    }
    r->k->core->copy_rows(r->k, nets_encoder_input(r->layers), NULL, r->tokens, token, r->positions, position, at,
                          r->config.text.width);
    return (nets_spans){n, at, begin, length};
}

/* Computes the scores of n images, the first of which is number `done` of the call's. */
static mar_status score(reward *r, int done, int n, double *scores, mar_err *err)
{
    const size_t width = (size_t)r->config.text.width;
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
    const int width = r->config.text.width;
    for (int done = 0, m; done < n; done += m) {
        m = n - done < v->count ? n - done : v->count;
        mar_status status = vit_run(v, pictures + done, m, "visual_encoder", err);
        if (status != MAR_OK) return status;
        const nets_spans images = {m, m * (v->config.patches + 1), v->first, v->length};
        const nets_cross features = {&images, r->features};
        nets_encoder_norm(k, v->layers, v->x, NULL, images.rows, r->features, 0);
        const nets_spans texts = reward_embed(r, ids, first + done, length + done, m);
        const float *x = nets_encoder_run(k, r->layers, &texts, &features, "text_encoder");
        k->core->copy_rows(k, r->first, NULL, x, texts.first, NULL, NULL, m, width);
        k->core->download(k, r->states, r->first, (size_t)m * (size_t)width * sizeof *r->states);
        status = kern_check(k, err);
        if (status == MAR_OK) status = score(r, done, m, scores + done, err);
        if (status != MAR_OK) return status;
    }
    return MAR_OK;
}
