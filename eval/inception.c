/* Runs Inception-v3: weights, memory, and the steps of the network in order. */
#include "eval/inception.h"
#include "eval/inception_layers.h"

#include "base/arena.h"
#include "weights/rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct eval_inception {
    kern_queue *k;
    eval_inception_config config;
    inception_layers layers;
    kern_conv *conv[INCEPTION_STEPS]; /* for CONV steps */
    kern_linear *logits_layer;        /* fc without its bias */
    int images;                       /* most images at a time */

    /* Backend memory, divided from `memory`. */
    char *memory;
    act *x[INCEPTION_BUFFERS]; /* activations of `images` images */
    uint8_t *rgb;              /* pixels before the resize; shares the memory of all activations but x[0] */
    size_t rgb_bytes;
    float *features; /* [images][features] */
    float *logits;   /* [images][classes] */
    float *spatial;  /* [images][spatial] */
};

/* --- weights ------------------------------------------------------------------------------------------------------ */

typedef struct {
    kern_queue *k;
    const wt_file *f;
    mar_err *err;
} loader;

/* Vectors of a batch norm, [channels] each. */
enum { NORM_WEIGHT, NORM_BIAS, NORM_MEAN, NORM_VAR, NORM_PARTS };

static mar_status inception_load_norm(const loader *l, const inception_step *s, float *norm[NORM_PARTS])
{
    static const char *const parts[] = {"weight", "bias", "running_mean", "running_var"};
    char name[INCEPTION_NAME + 32];
    mar_status status = MAR_OK;
    for (int i = 0; i < NORM_PARTS && status == MAR_OK; i++) {
        snprintf(name, sizeof name, "%s.bn.%s", s->name, parts[i]);
        status = wt_load_f32(l->f, name, 1, (int64_t[]){s->out}, &norm[i], l->err);
    }
    return status;
}

/* Folds y = (conv(x) - mean) / sqrt(var + eps) * weight + bias into one convolution: scales `weight`, and puts the bias
 * into norm[NORM_BIAS]. */
static mar_status fold(const loader *l, const inception_step *s, float *weight, float *const norm[NORM_PARTS])
{
    static const double eps = 1e-3;
    const size_t taps = (size_t)s->in * (size_t)s->kernel_h * (size_t)s->kernel_w;
    for (size_t c = 0; c < (size_t)s->out; c++) {
        const double variance = (double)norm[NORM_VAR][c] + eps;
        if (variance <= 0)
            return err_set(l->err, MAR_EMODEL, "%s: tensor %s.bn.running_var has %g at [%zu], expected a variance",
                           wt_path(l->f), s->name, (double)norm[NORM_VAR][c], c);
        const double scale = (double)norm[NORM_WEIGHT][c] / sqrt(variance);
        for (size_t i = 0; i < taps; i++) weight[c * taps + i] = (float)((double)weight[c * taps + i] * scale);
        norm[NORM_BIAS][c] = (float)((double)norm[NORM_BIAS][c] - (double)norm[NORM_MEAN][c] * scale);
    }
    return MAR_OK;
}

static mar_status inception_load_conv(const loader *l, const inception_step *s, kern_conv **out)
{
    char name[INCEPTION_NAME + 32];
    float *weight = NULL, *norm[NORM_PARTS] = {NULL};
    snprintf(name, sizeof name, "%s.conv.weight", s->name);
    mar_status status =
        wt_load_f32(l->f, name, 4, (int64_t[]){s->out, s->in, s->kernel_h, s->kernel_w}, &weight, l->err);
    if (status == MAR_OK) status = inception_load_norm(l, s, norm);
    if (status == MAR_OK) status = fold(l, s, weight, norm);
    const kern_conv_spec spec = {.out = s->out,
                                 .in = s->in,
                                 .kernel_h = s->kernel_h,
                                 .kernel_w = s->kernel_w,
                                 .stride = s->stride,
                                 .pad_h = s->pad_h,
                                 .pad_w = s->pad_w,
                                 .weight = weight,
                                 .bias = norm[NORM_BIAS],
                                 .flags = KERN_RELU,
                                 .y_stride = s->row};
    if (status == MAR_OK) status = l->k->conv->create(l->k, &spec, out, l->err);
    free(weight);
    for (int i = 0; i < NORM_PARTS; i++) free(norm[i]);
    return status;
}

static mar_status load_logits(const loader *l, eval_inception *e)
{
    wt_rows w = {.file = l->f, .in = e->config.features, .count = 1};
    w.piece[0] = (wt_piece){.name = "fc.weight", .rows = e->config.classes};
    const kern_linear_spec spec = {.out = e->config.classes, .flags = KERN_IN_F32 | KERN_OUT_F32};
    return wt_create_linear(l->k, &w, spec, &e->logits_layer, l->err);
}

/* --- memory and preparation --------------------------------------------------------------------------------------- */

/* Returns the number of images that fit the device's image_budget, on a CPU a typical cache. */
static int inception_choose_images(const eval_inception *e, int batch)
{
    const size_t budget = e->k->device->image_budget ? e->k->device->image_budget : (size_t)32 << 20;
    size_t elements = 0;
    for (int i = 0; i < INCEPTION_BUFFERS; i++) elements += e->layers.elements[i];
    const size_t fit = budget / (elements * e->k->device->act_size);
    return fit < 1 ? 1 : fit < (size_t)batch ? (int)fit : batch;
}

static size_t inception_lay_out(eval_inception *e, char *base)
{
    const size_t n = (size_t)e->images, act_size = e->k->device->act_size;
    size_t used = 0;
    e->features = arena_carve(base, &used, n * (size_t)e->config.features, sizeof *e->features);
    e->logits = arena_carve(base, &used, n * (size_t)e->config.classes, sizeof *e->logits);
    e->spatial = arena_carve(base, &used, n * (size_t)e->config.spatial, sizeof *e->spatial);
    e->x[0] = arena_carve(base, &used, n * e->layers.elements[0], act_size);
    size_t pixels = used;
    e->rgb = arena_carve(base, &pixels, e->rgb_bytes, 1);
    for (int i = 1; i < INCEPTION_BUFFERS; i++) e->x[i] = arena_carve(base, &used, n * e->layers.elements[i], act_size);
    return used > pixels ? used : pixels;
}

/* Returns the next number of images: `images`, or the largest power of two of the rest. */
static int inception_images_at_a_time(const eval_inception *e, int left)
{
    if (left >= e->images) return e->images;
    int n = 1;
    while (2 * n <= left) n *= 2;
    return n;
}

static mar_status inception_plan(eval_inception *e, int images, mar_err *err)
{
    kern_queue *k = e->k;
    mar_status status = MAR_OK;
    for (int i = 0; i < e->layers.count && status == MAR_OK; i++) {
        const inception_step *s = &e->layers.steps[i];
        if (e->conv[i]) status = k->conv->plan(k, e->conv[i], images, s->side, s->side, err);
    }
    return status == MAR_OK ? k->core->linear_plan(k, e->logits_layer, images, err) : status;
}

static mar_status inception_prepare(eval_inception *e, int batch, mar_err *err)
{
    void *memory = NULL;
    e->images = inception_choose_images(e, batch);
    e->rgb_bytes = (size_t)EVAL_INCEPTION_PIXELS_MAX * 3;
    mar_status status = e->k->core->alloc(e->k->device, inception_lay_out(e, NULL), &memory, err);
    if (status != MAR_OK) return status;
    e->memory = memory;
    inception_lay_out(e, memory);
    status = inception_plan(e, e->images, err);
    for (int n = 1; n < e->images && status == MAR_OK; n *= 2) status = inception_plan(e, n, err);
    return status;
}

mar_status eval_inception_create(kern_queue *k, const wt_file *f, int batch, eval_inception **out, mar_err *err)
{
    const loader l = {k, f, err};
    *out = NULL;
    eval_inception *e = calloc(1, sizeof *e);
    if (!e) return err_set(err, MAR_ENOMEM, "out of memory");
    e->k = k;
    mar_status status = eval_inception_derive(f, &e->config, err);
    if (status == MAR_OK) status = inception_layers_derive(f, &e->layers, err);
    for (int i = 0; i < e->layers.count && status == MAR_OK; i++)
        if (e->layers.steps[i].kind == INCEPTION_CONV)
            status = inception_load_conv(&l, &e->layers.steps[i], &e->conv[i]);
    if (status == MAR_OK) status = load_logits(&l, e);
    if (status == MAR_OK) status = inception_prepare(e, batch, err);
    if (status != MAR_OK) {
        k->core->finish(k); /* wait for pending uploads */
        eval_inception_free(e);
        return status;
    }
    *out = e;
    return MAR_OK;
}

void eval_inception_free(eval_inception *e)
{
    if (!e) return;
    kern_device *device = e->k->device;
    for (int i = 0; i < INCEPTION_STEPS; i++) device->conv->free(device, e->conv[i]);
    device->core->linear_free(device, e->logits_layer);
    device->core->free(device, e->memory);
    free(e);
}

const eval_inception_config *eval_inception_get_config(const eval_inception *e)
{
    return &e->config;
}

/* --- running ------------------------------------------------------------------------------------------------------ */

/* Resizes n pictures into x[0] as TensorFlow 1: those of one size together, as many as the pixel buffer holds. */
static void resize_tf1(eval_inception *e, const eval_picture *pictures, int n)
{
    kern_queue *k = e->k;
    const size_t resized = (size_t)INCEPTION_SIDE * INCEPTION_SIDE * 3 * k->device->act_size;
    for (int i = 0, m; i < n; i += m) {
        const eval_picture *p = &pictures[i];
        const size_t bytes = (size_t)p->width * (size_t)p->height * 3, fit = e->rgb_bytes / bytes;
        for (m = 0; i + m < n && (size_t)m < fit && p[m].width == p->width && p[m].height == p->height; m++)
            k->core->upload(k, e->rgb + (size_t)m * bytes, p[m].rgb, bytes);
        k->conv->resize(k, e->rgb, m, p->height, p->width, INCEPTION_SIDE, (char *)e->x[0] + (size_t)i * resized);
    }
}

/* Resizes n pictures into x[0] as clean-fid. The pixel buffer holds the floats. */
static mar_status resize_clean(eval_inception *e, const eval_picture *pictures, int n, mar_err *err)
{
    kern_queue *k = e->k;
    const size_t size = (size_t)INCEPTION_SIDE * INCEPTION_SIDE * 3;
    float *x = malloc(size * sizeof *x);
    mar_status status = x ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
    for (int i = 0; i < n && status == MAR_OK; i++) {
        status = eval_resize_floats(&pictures[i], EVAL_BICUBIC, INCEPTION_SIDE, INCEPTION_SIDE, x, err);
        if (status != MAR_OK) break;
        for (size_t j = 0; j < size; j++) x[j] = (x[j] - 128) / 128;
        k->core->upload(k, e->rgb, x, size * sizeof *x);
        k->core->to_act(k, (const float *)(const void *)e->rgb, size,
                        (char *)e->x[0] + (size_t)i * size * k->device->act_size);
    }
    free(x);
    return status;
}

static void inception_run_step(eval_inception *e, int i, int n)
{
    kern_queue *k = e->k;
    const inception_step *s = &e->layers.steps[i];
    char *y = (char *)e->x[s->to] + (size_t)s->offset * k->device->act_size;
    switch (s->kind) {
    case INCEPTION_CONV:
        k->conv->conv(k, e->conv[i], e->x[s->from], n, s->side, s->side, y);
        break;
    case INCEPTION_POOL:
        k->conv->pool(k, &s->pool, e->x[s->from], n, s->side, s->side, s->in, y, s->row);
        break;
    case INCEPTION_TAKE:
        k->conv->take_channels(k, e->x[s->from], n * s->side * s->side, s->in, s->out, e->spatial);
        break;
    }
}

static void download(kern_queue *k, float *to, const float *from, int n, int width, size_t at)
{
    if (to) k->core->download(k, to + at * (size_t)width, from, sizeof *to * (size_t)n * (size_t)width);
}

mar_status eval_inception_run(eval_inception *e, const eval_picture *pictures, int n, eval_inception_resize how,
                              float *features, float *logits, float *spatial, mar_err *err)
{
    kern_queue *k = e->k;
    const inception_layers *l = &e->layers;
    for (int first = 0, m; first < n; first += m) {
        m = inception_images_at_a_time(e, n - first);
        if (how == EVAL_INCEPTION_TF1)
            resize_tf1(e, pictures + first, m);
        else if (resize_clean(e, pictures + first, m, err) != MAR_OK)
            return MAR_ENOMEM;
        for (int i = 0; i < l->count; i++) inception_run_step(e, i, m);
        k->conv->mean_pixels(k, e->x[l->last], m, l->last_side * l->last_side, l->features, e->features);
        if (logits) k->core->linear(k, e->logits_layer, e->features, m, e->logits);
        download(k, features, e->features, m, l->features, (size_t)first);
        download(k, logits, e->logits, m, l->classes, (size_t)first);
        download(k, spatial, e->spatial, m, e->config.spatial, (size_t)first);
    }
    return MAR_OK;
}
