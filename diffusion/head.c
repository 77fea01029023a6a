#include "diffusion/head.h"

#include "kernels/head_work.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FREQUENCIES = 256 }; /* TimestepEmbedder's frequency_embedding_size */

/* Loads a tensor of diffloss.net as f32; cols 0 for a vector. */
static mar_status load(const wt_file *f, const char *name, int rows, int cols, float **out, mar_err *err)
{
    char full[128];
    const int64_t shape[2] = {rows, cols};
    snprintf(full, sizeof full, "diffloss.net.%s", name);
    return wt_load_f32(f, full, cols ? 2 : 1, shape, out, err);
}

/* Loads name.weight and name.bias. The caller owns the arrays even on failure. */
static mar_status load_pair(const wt_file *f, const char *name, int rows, int cols, const float **weight,
                            const float **bias, mar_err *err)
{
    char full[96];
    float *w = NULL, *b = NULL;
    snprintf(full, sizeof full, "%s.weight", name);
    mar_status status = load(f, full, rows, cols, &w, err);
    snprintf(full, sizeof full, "%s.bias", name);
    if (status == MAR_OK) status = load(f, full, rows, 0, &b, err);
    *weight = w, *bias = b;
    return status;
}

static mar_status load_linear(kern_queue *k, const wt_file *f, const char *name, int rows, int cols,
                              kern_activation activation, kern_linear **out, mar_err *err)
{
    kern_linear_spec spec = {.out = rows, .in = cols, .activation = activation, .flags = KERN_IN_F32 | KERN_OUT_F32};
    mar_status status = load_pair(f, name, rows, cols, &spec.weight, &spec.bias, err);
    if (status == MAR_OK) status = k->core->linear_create(k, &spec, out, err);
    free((void *)(uintptr_t)spec.weight);
    free((void *)(uintptr_t)spec.bias);
    return status;
}

static mar_status load_block(const wt_file *f, int index, int width, kern_head_block *b, mar_err *err)
{
    const struct {
        const char *name;
        int rows, cols;
        const float **weight, **bias;
    } parts[4] = {{"in_ln", width, 0, &b->ln_weight, &b->ln_bias},
                  {"mlp.0", width, width, &b->fc1_weight, &b->fc1_bias},
                  {"mlp.2", width, width, &b->fc2_weight, &b->fc2_bias},
                  {"adaLN_modulation.1", 3 * width, width, &b->ada_weight, &b->ada_bias}};
    for (int i = 0; i < 4; i++) {
        char name[64];
        snprintf(name, sizeof name, "res_blocks.%d.%s", index, parts[i].name);
        mar_status status = load_pair(f, name, parts[i].rows, parts[i].cols, parts[i].weight, parts[i].bias, err);
        if (status != MAR_OK) return status;
    }
    return MAR_OK;
}

static void free_host(kern_head_spec *spec, kern_head_block *blocks)
{
    const float *arrays[] = {spec->in_weight, spec->in_bias,    spec->ada_weight,
                             spec->ada_bias,  spec->out_weight, spec->out_bias};
    for (int i = 0; i < 6; i++) free((void *)(uintptr_t)arrays[i]);
    for (int b = 0; blocks && b < spec->depth; b++) {
        const float **p = &blocks[b].ln_weight; /* eight consecutive pointers */
        for (size_t i = 0; i < sizeof blocks[b] / sizeof *p; i++) free((void *)(uintptr_t)p[i]);
    }
    free(blocks);
}

/* Returns the head's shape and arithmetic, without weights. */
static kern_head_spec shape_of(const diff_head *h)
{
    return (kern_head_spec){.width = h->width,
                            .depth = h->depth,
                            .channels = h->channels,
                            .hidden = h->width,
                            .ada_layers = h->depth,
                            .f32 = h->f32,
                            .int8 = h->int8_below > 0};
}

static mar_status load_net(kern_queue *k, diff_head *h, const wt_file *f, mar_err *err)
{
    const int w = h->width, c = h->channels;
    kern_head_spec spec = shape_of(h);
    kern_head_block *blocks = calloc((size_t)h->depth + 1, sizeof *blocks);
    spec.blocks = blocks;
    mar_status status = blocks ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
    if (status == MAR_OK) status = load_pair(f, "input_proj", w, c, &spec.in_weight, &spec.in_bias, err);
    for (int b = 0; status == MAR_OK && b < h->depth; b++) status = load_block(f, b, w, &blocks[b], err);
    if (status == MAR_OK)
        status = load_pair(f, "final_layer.adaLN_modulation.1", 2 * w, w, &spec.ada_weight, &spec.ada_bias, err);
    if (status == MAR_OK) status = load_pair(f, "final_layer.linear", 2 * c, w, &spec.out_weight, &spec.out_bias, err);
    if (status == MAR_OK) status = k->head->create(k, &spec, &h->net, err);
    free_host(&spec, blocks);
    return status;
}

mar_status diff_head_load(kern_queue *k, const wt_file *f, int width, int depth, int channels, int z_dim, int f32,
                          int int8_below, diff_head *out, mar_err *err)
{
    *out = (diff_head){.device = k->device,
                       .width = width,
                       .depth = depth,
                       .channels = channels,
                       .z_dim = z_dim,
                       .f32 = f32,
                       .int8_below = int8_below};
    mar_status status = load_linear(k, f, "cond_embed", width, z_dim, KERN_LINEAR, &out->cond, err);
    if (status == MAR_OK)
        status = load_linear(k, f, "time_embed.mlp.0", width, FREQUENCIES, KERN_SILU, &out->time1, err);
    if (status == MAR_OK) status = load_linear(k, f, "time_embed.mlp.2", width, width, KERN_LINEAR, &out->time2, err);
    if (status == MAR_OK) status = load_net(k, out, f, err);
    if (status != MAR_OK) diff_head_free(out);
    return status;
}

void diff_head_free(diff_head *h)
{
    kern_device *d = h->device;
    if (!d) return;
    d->head->free(d, h->net);
    d->core->linear_free(d, h->cond);
    d->core->linear_free(d, h->time1);
    d->core->linear_free(d, h->time2);
    *h = (diff_head){0};
}

/* Returns the bytes of an operand of the head's products. */
static size_t act_size(const diff_head *h)
{
    return h->f32 ? sizeof(float) : h->device->act_size;
}

int diff_head_is_f32(const diff_head *h)
{
    return act_size(h) == sizeof(float);
}

/* Computes cos and sin of t * 10000^(-i/128), in f32 as the official code does. */
static void time_features(int t, float *features)
{
    const int half = FREQUENCIES / 2;
    for (int i = 0; i < half; i++) {
        const float frequency = expf((float)-log(10000.0) * (float)i / (float)half);
        features[i] = cosf((float)t * frequency);
        features[half + i] = sinf((float)t * frequency);
    }
}

mar_status diff_head_time_embeddings(kern_queue *k, const diff_head *h, const int *t, int n, float **temb, mar_err *err)
{
    kern_device *d = k->device;
    const size_t width = (size_t)h->width, rows = (size_t)n;
    void *features = NULL, *hidden = NULL, *out = NULL;
    *temb = NULL;
    float *host = malloc(rows * FREQUENCIES * sizeof *host);
    mar_status status = host ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
    if (status == MAR_OK) status = d->core->alloc(d, rows * FREQUENCIES * sizeof(float), &features, err);
    if (status == MAR_OK) status = d->core->alloc(d, rows * width * sizeof(float), &hidden, err);
    if (status == MAR_OK) status = d->core->alloc(d, rows * width * sizeof(float), &out, err);
    if (status == MAR_OK) status = k->core->linear_plan(k, h->time1, n, err);
    if (status == MAR_OK) status = k->core->linear_plan(k, h->time2, n, err);
    if (status == MAR_OK) {
        for (int i = 0; i < n; i++) time_features(t[i], host + (size_t)i * FREQUENCIES);
        k->core->upload(k, features, host, rows * FREQUENCIES * sizeof(float));
        k->core->linear(k, h->time1, features, n, hidden);
        k->core->linear(k, h->time2, hidden, n, out);
        k->core->finish(k); /* waits, because their inputs are freed below */
        status = kern_check(k, err);
    }
    free(host);
    d->core->free(d, features);
    d->core->free(d, hidden);
    if (status == MAR_OK)
        *temb = out;
    else
        d->core->free(d, out);
    return status;
}

double diff_head_macs(const diff_head *h, double modulations, double evaluations)
{
    const kern_head_spec shape = shape_of(h);
    return modulations * kern_modulation_macs(&shape) + evaluations * kern_head_macs(&shape);
}

/* Returns the bytes of a weight of the blocks at most steps: an operand, or int8 with its share of a scale. */
static double weight_size(const diff_head *h)
{
    const int int8 = h->device->int8 && h->int8_below > 0;
    return kern_head_weight_size(h->width, int8, (double)act_size(h));
}

double diff_head_sequential_bytes(const diff_head *h)
{
    const kern_head_spec shape = shape_of(h);
    return kern_head_weight_bytes(&shape, weight_size(h));
}
