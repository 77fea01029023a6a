#include "eval/vgg.h"

#include "base/arena.h"
#include "weights/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SIDE = 224,
    LAST_SIDE = 7, /* of the last pool's result */
    CHANNELS_MAX = 65536,
    NAME = 32
};

/* Numbers of the convolutions in torchvision's `features`; a pool of 2x2 follows those with `pools` 1. */
static const int numbers[VGG_CONVS] = {0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28};
static const uint8_t pools[VGG_CONVS] = {0, 1, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1};

struct eval_vgg {
    kern_queue *k;
    eval_vgg_config config;
    kern_conv *conv[VGG_CONVS];
    kern_conv *hidden; /* the first linear layer, as a convolution over all 7x7 pixels */
    kern_linear *features_layer;
    int images; /* most images at a time */

    /* Backend memory, divided from `memory`. */
    char *memory;
    act *x[2];       /* activations of `images` images, in turns */
    float *pixels;   /* [images][SIDE][SIDE][3] */
    float *features; /* [images][features] */

    /* Host memory. */
    uint8_t *resized;  /* [SIDE][SIDE][3] */
    float *normalised; /* [SIDE][SIDE][3] */
};

/* --- shapes ------------------------------------------------------------------------------------------------------- */

int eval_vgg_recognise(const wt_file *f)
{
    return wt_find(f, "features.0.weight") && wt_find(f, "features.28.weight") && wt_find(f, "classifier.3.weight");
}

/* Reads the first dimension of a weight whose others are known; 0 dimensions: `rank` is 4, 3x3. */
static mar_status derive_out(const wt_file *f, const char *name, int rank, int64_t in, int *out, mar_err *err)
{
    char found[128], expected[64];
    const wt_tensor *t = wt_find(f, name);
    snprintf(expected, sizeof expected, "[1..%d, %lld%s]", CHANNELS_MAX, (long long)in, rank == 4 ? ", 3, 3" : "");
    if (!t)
        return err_set(err, MAR_EMODEL, "%s: tensor %s is missing, expected shape %s, as in torchvision's vgg16",
                       wt_path(f), name, expected);
    const int fits = t->rank == rank && t->shape[0] >= 1 && t->shape[0] <= CHANNELS_MAX && t->shape[1] == in &&
                     (rank == 2 || (t->shape[2] == 3 && t->shape[3] == 3));
    if (!fits)
        return err_set(err, MAR_EMODEL, "%s: tensor %s has shape %s, expected %s, as in torchvision's vgg16",
                       wt_path(f), name, wt_shape_text(t, found, sizeof found), expected);
    *out = (int)t->shape[0];
    return MAR_OK;
}

mar_status eval_vgg_derive(const wt_file *f, eval_vgg_config *c, mar_err *err)
{
    mar_status status = MAR_OK;
    *c = (eval_vgg_config){.channels = {3}};
    for (int i = 0; i < VGG_CONVS && status == MAR_OK; i++) {
        char name[NAME];
        snprintf(name, sizeof name, "features.%d.weight", numbers[i]);
        status = derive_out(f, name, 4, c->channels[i], &c->channels[i + 1], err);
    }
    const int64_t last = (int64_t)c->channels[VGG_CONVS] * LAST_SIDE * LAST_SIDE;
    if (status == MAR_OK) status = derive_out(f, "classifier.0.weight", 2, last, &c->hidden, err);
    if (status == MAR_OK) status = derive_out(f, "classifier.3.weight", 2, c->hidden, &c->features, err);
    for (int i = 0; i < wt_count(f); i++) c->parameters += (long)wt_at(f, i)->count;
    return status;
}

void eval_vgg_tensors(const wt_file *f, const eval_vgg_config *c, eval_vgg_visitor *visit, void *user)
{
    char name[NAME];
    for (int i = 0; i < VGG_CONVS; i++) {
        snprintf(name, sizeof name, "features.%d.weight", numbers[i]);
        visit(user, name, 4, (int64_t[]){c->channels[i + 1], c->channels[i], 3, 3});
        snprintf(name, sizeof name, "features.%d.bias", numbers[i]);
        visit(user, name, 1, (int64_t[]){c->channels[i + 1]});
    }
    const int64_t last = (int64_t)c->channels[VGG_CONVS] * LAST_SIDE * LAST_SIDE;
    visit(user, "classifier.0.weight", 2, (int64_t[]){c->hidden, last});
    visit(user, "classifier.0.bias", 1, (int64_t[]){c->hidden});
    visit(user, "classifier.3.weight", 2, (int64_t[]){c->features, c->hidden});
    visit(user, "classifier.3.bias", 1, (int64_t[]){c->features});
    const wt_tensor *classes = wt_find(f, "classifier.6.weight");
    if (!classes || classes->rank < 1) return;
    visit(user, "classifier.6.weight", 2, (int64_t[]){classes->shape[0], c->features});
    visit(user, "classifier.6.bias", 1, (int64_t[]){classes->shape[0]});
}

/* --- weights ------------------------------------------------------------------------------------------------------ */

typedef struct {
    kern_queue *k;
    const wt_file *f;
    mar_err *err;
} loader;

/* Loads layer "NAME.weight", of `out` rows of `in` numbers, and "NAME.bias". The caller frees both. */
static mar_status vgg_load_layer(const loader *l, const char *name, int rank, const int64_t *shape, float **weight,
                                 float **bias)
{
    char full[NAME + 8];
    *weight = *bias = NULL;
    snprintf(full, sizeof full, "%s.weight", name);
    const mar_status status = wt_load_f32(l->f, full, rank, shape, weight, l->err);
    if (status != MAR_OK) return status;
    snprintf(full, sizeof full, "%s.bias", name);
    return wt_load_f32(l->f, full, 1, shape, bias, l->err);
}

static mar_status vgg_load_conv(const loader *l, int i, eval_vgg *v)
{
    const int in = v->config.channels[i], out = v->config.channels[i + 1];
    char name[NAME];
    float *weight, *bias;
    snprintf(name, sizeof name, "features.%d", numbers[i]);
    mar_status status = vgg_load_layer(l, name, 4, (int64_t[]){out, in, 3, 3}, &weight, &bias);
    const kern_conv_spec spec = {.out = out,
                                 .in = in,
                                 .kernel_h = 3,
                                 .kernel_w = 3,
                                 .stride = 1,
                                 .pad_h = 1,
                                 .pad_w = 1,
                                 .weight = weight,
                                 .bias = bias,
                                 .flags = KERN_RELU};
    if (status == MAR_OK) status = l->k->conv->create(l->k, &spec, &v->conv[i], l->err);
    free(weight);
    free(bias);
    return status;
}

static mar_status load_hidden(const loader *l, eval_vgg *v)
{
    const eval_vgg_config *c = &v->config;
    const int in = c->channels[VGG_CONVS];
    float *weight, *bias;
    mar_status status = vgg_load_layer(l, "classifier.0", 2,
                                       (int64_t[]){c->hidden, (int64_t)in * LAST_SIDE * LAST_SIDE}, &weight, &bias);
    const kern_conv_spec spec = {.out = c->hidden,
                                 .in = in,
                                 .kernel_h = LAST_SIDE,
                                 .kernel_w = LAST_SIDE,
                                 .stride = 1,
                                 .weight = weight,
                                 .bias = bias,
                                 .flags = KERN_RELU};
    if (status == MAR_OK) status = l->k->conv->create(l->k, &spec, &v->hidden, l->err);
    free(weight);
    free(bias);
    return status;
}

static mar_status load_features(const loader *l, eval_vgg *v)
{
    const eval_vgg_config *c = &v->config;
    wt_rows w = {.file = l->f, .in = c->hidden, .count = 1, .bias = 1};
    w.piece[0] = (wt_piece){.name = "classifier.3.weight", .rows = c->features};
    const kern_linear_spec spec = {.out = c->features, .flags = KERN_OUT_F32};
    return wt_create_linear(l->k, &w, spec, &v->features_layer, l->err);
}

/* --- memory and preparation --------------------------------------------------------------------------------------- */

/* Returns the elements of the largest activation of an image. */
static size_t largest_activation(const eval_vgg_config *c)
{
    size_t most = (size_t)c->hidden > (size_t)SIDE * SIDE * 3 ? (size_t)c->hidden : (size_t)SIDE * SIDE * 3;
    for (int i = 0, side = SIDE; i < VGG_CONVS; i++) {
        const size_t n = (size_t)side * (size_t)side * (size_t)c->channels[i + 1];
        if (n > most) most = n;
        if (pools[i]) side /= 2;
    }
    return most;
}

/* Returns the number of images that fit the device's image_budget, on a CPU a typical cache. */
static int vgg_choose_images(const eval_vgg *v, int batch)
{
    const size_t budget = v->k->device->image_budget ? v->k->device->image_budget : (size_t)32 << 20;
    const size_t fit = budget / (2 * largest_activation(&v->config) * v->k->device->act_size);
    return fit < 1 ? 1 : fit < (size_t)batch ? (int)fit : batch;
}

static size_t vgg_lay_out(eval_vgg *v, char *base)
{
    const size_t n = (size_t)v->images;
    size_t used = 0;
    v->features = arena_carve(base, &used, n * (size_t)v->config.features, sizeof *v->features);
    v->pixels = arena_carve(base, &used, n * SIDE * SIDE * 3, sizeof *v->pixels);
    for (int i = 0; i < 2; i++)
        v->x[i] = arena_carve(base, &used, n * largest_activation(&v->config), v->k->device->act_size);
    return used;
}

static mar_status vgg_plan(eval_vgg *v, int images, mar_err *err)
{
    kern_queue *k = v->k;
    mar_status status = MAR_OK;
    for (int i = 0, side = SIDE; i < VGG_CONVS && status == MAR_OK; i++) {
        status = k->conv->plan(k, v->conv[i], images, side, side, err);
        if (pools[i]) side /= 2;
    }
    if (status == MAR_OK) status = k->conv->plan(k, v->hidden, images, LAST_SIDE, LAST_SIDE, err);
    return status == MAR_OK ? k->core->linear_plan(k, v->features_layer, images, err) : status;
}

static mar_status vgg_prepare(eval_vgg *v, int batch, mar_err *err)
{
    void *memory = NULL;
    v->images = vgg_choose_images(v, batch);
    v->resized = malloc((size_t)SIDE * SIDE * 3);
    v->normalised = malloc((size_t)SIDE * SIDE * 3 * sizeof *v->normalised);
    if (!v->resized || !v->normalised) return err_set(err, MAR_ENOMEM, "out of memory");
    mar_status status = v->k->core->alloc(v->k->device, vgg_lay_out(v, NULL), &memory, err);
    if (status != MAR_OK) return status;
    v->memory = memory;
    vgg_lay_out(v, memory);
    status = vgg_plan(v, v->images, err);
    return status == MAR_OK && v->images > 1 ? vgg_plan(v, 1, err) : status;
}

mar_status eval_vgg_create(kern_queue *k, const wt_file *f, int batch, eval_vgg **out, mar_err *err)
{
    const loader l = {k, f, err};
    *out = NULL;
    eval_vgg *v = calloc(1, sizeof *v);
    if (!v) return err_set(err, MAR_ENOMEM, "out of memory");
    v->k = k;
    mar_status status = eval_vgg_derive(f, &v->config, err);
    for (int i = 0; i < VGG_CONVS && status == MAR_OK; i++) status = vgg_load_conv(&l, i, v);
    if (status == MAR_OK) status = load_hidden(&l, v);
    if (status == MAR_OK) status = load_features(&l, v);
    if (status == MAR_OK) status = vgg_prepare(v, batch, err);
    if (status != MAR_OK) {
        k->core->finish(k); /* wait for pending uploads */
        eval_vgg_free(v);
        return status;
    }
    *out = v;
    return MAR_OK;
}

void eval_vgg_free(eval_vgg *v)
{
    if (!v) return;
    kern_device *device = v->k->device;
    for (int i = 0; i < VGG_CONVS; i++) device->conv->free(device, v->conv[i]);
    device->conv->free(device, v->hidden);
    device->core->linear_free(device, v->features_layer);
    device->core->free(device, v->memory);
    free(v->resized);
    free(v->normalised);
    free(v);
}

const eval_vgg_config *eval_vgg_get_config(const eval_vgg *v)
{
    return &v->config;
}

/* --- running ------------------------------------------------------------------------------------------------------ */

/* Writes a picture's pixels to place i of the batch: resized, and normalised as torchvision's ImageNet weights ask. */
static mar_status prepare_picture(eval_vgg *v, const eval_picture *p, int i, mar_err *err)
{
    static const float mean[3] = {0.485f, 0.456f, 0.406f}, deviation[3] = {0.229f, 0.224f, 0.225f};
    const size_t n = (size_t)SIDE * SIDE * 3;
    const mar_status status = eval_resize_bytes(p, EVAL_BILINEAR, SIDE, SIDE, v->resized, err);
    for (size_t j = 0; j < n && status == MAR_OK; j++)
        v->normalised[j] = ((float)v->resized[j] / 255 - mean[j % 3]) / deviation[j % 3];
    if (status == MAR_OK) v->k->core->upload(v->k, v->pixels + (size_t)i * n, v->normalised, n * sizeof *v->normalised);
    return status;
}

static void run_layers(eval_vgg *v, int n)
{
    static const kern_pool halve = {.kind = KERN_POOL_MAX, .window = 2, .stride = 2};
    kern_queue *k = v->k;
    int at = 0; /* x[at] has the activations */
    k->core->to_act(k, v->pixels, (size_t)n * SIDE * SIDE * 3, v->x[at]);
    for (int i = 0, side = SIDE; i < VGG_CONVS; i++) {
        k->conv->conv(k, v->conv[i], v->x[at], n, side, side, v->x[1 - at]);
        at = 1 - at;
        if (!pools[i]) continue;
        const int channels = v->config.channels[i + 1];
        k->conv->pool(k, &halve, v->x[at], n, side, side, channels, v->x[1 - at], channels);
        at = 1 - at;
        side /= 2;
    }
    k->conv->conv(k, v->hidden, v->x[at], n, LAST_SIDE, LAST_SIDE, v->x[1 - at]);
    k->core->linear(k, v->features_layer, v->x[1 - at], n, v->features);
}

mar_status eval_vgg_run(eval_vgg *v, const eval_picture *pictures, int n, float *features, mar_err *err)
{
    const size_t width = (size_t)v->config.features;
    for (int first = 0, m; first < n; first += m) {
        m = n - first >= v->images ? v->images : 1;
        for (int i = 0; i < m; i++) {
            const mar_status status = prepare_picture(v, &pictures[first + i], i, err);
            if (status != MAR_OK) return status;
        }
        run_layers(v, m);
        v->k->core->download(v->k, features + (size_t)first * width, v->features, (size_t)m * width * sizeof *features);
    }
    return MAR_OK;
}
