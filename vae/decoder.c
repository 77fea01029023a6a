/* Loads the decoder by official names and exact shapes, and packs its weights for the backend. */
#include "vae/steps.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    kern_queue *k;
    const wt_file *f;
    mar_err *err;
} loader;

enum { NAME_SIZE = sizeof((vae_step *)0)->name };

__attribute__((format(printf, 3, 4))) static void name_part(char *name, const char *prefix, const char *format, ...)
{
    va_list args;
    int n = snprintf(name, NAME_SIZE, "%s", prefix);
    va_start(args, format);
    if (n >= 0 && n < NAME_SIZE) vsnprintf(name + n, (size_t)(NAME_SIZE - n), format, args);
    va_end(args);
}

static mar_status load(const loader *l, const char *prefix, const char *suffix, int rank, const int64_t *shape,
                       float **out)
{
    char name[NAME_SIZE];
    name_part(name, prefix, ".%s", suffix);
    return wt_load_f32(l->f, name, rank, shape, out, l->err);
}

/* One vector of `n` floats in the backend's memory. */
static mar_status load_vector(const loader *l, const char *prefix, const char *suffix, int n, float **out)
{
    float *host = NULL;
    void *p = NULL;
    mar_status status = load(l, prefix, suffix, 1, (int64_t[]){n}, &host);
    if (status == MAR_OK) status = l->k->core->alloc(l->k->device, sizeof(float) * (size_t)n, &p, l->err);
    if (status == MAR_OK) l->k->core->upload(l->k, p, host, sizeof(float) * (size_t)n);
    free(host);
    *out = p;
    return status;
}

static mar_status load_norm(const loader *l, const char *prefix, int channels, vae_norm *out)
{
    mar_status status = load_vector(l, prefix, "weight", channels, &out->weight);
    return status == MAR_OK ? load_vector(l, prefix, "bias", channels, &out->bias) : status;
}

static mar_status load_conv(const loader *l, const char *prefix, int in, int out, int kernel, int flags,
                            kern_conv **conv)
{
    float *weight = NULL, *bias = NULL;
    mar_status status = load(l, prefix, "weight", 4, (int64_t[]){out, in, kernel, kernel}, &weight);
    if (status == MAR_OK) status = load(l, prefix, "bias", 1, (int64_t[]){out}, &bias);
    const kern_conv_spec spec = {.out = out,
                                 .in = in,
                                 .kernel_h = kernel,
                                 .kernel_w = kernel,
                                 .stride = 1,
                                 .pad_h = kernel / 2,
                                 .pad_w = kernel / 2,
                                 .weight = weight,
                                 .bias = bias,
                                 .flags = flags};
    if (status == MAR_OK) status = l->k->conv->create(l->k, &spec, conv, l->err);
    free(weight);
    free(bias);
    return status;
}

/* Loads `n` 1x1 convolutions with the same input as one linear layer, which they are on NHWC pixels. The input comes
 * multiplied by input_scale, so the weights are divided by it. */
static mar_status load_linear(const loader *l, const char *prefix, const char *const *names, int n, int channels,
                              float input_scale, int flags, kern_linear **out)
{
    const size_t size = (size_t)channels * (size_t)channels;
    float *weight = malloc(sizeof *weight * size * (size_t)n);
    float *bias = malloc(sizeof *bias * (size_t)channels * (size_t)n);
    mar_status status = weight && bias ? MAR_OK : err_set(l->err, MAR_ENOMEM, "out of memory");
    for (int i = 0; status == MAR_OK && i < n; i++) {
        char name[NAME_SIZE];
        float *w = NULL, *b = NULL;
        name_part(name, prefix, "%s", names[i]);
        status = load(l, name, "weight", 4, (int64_t[]){channels, channels, 1, 1}, &w);
        if (status == MAR_OK) status = load(l, name, "bias", 1, (int64_t[]){channels}, &b);
        if (status == MAR_OK) {
            for (size_t j = 0; j < size; j++) weight[size * (size_t)i + j] = w[j] / input_scale;
            memcpy(bias + (size_t)channels * (size_t)i, b, sizeof *b * (size_t)channels);
        }
        free(w);
        free(b);
    }
    const kern_linear_spec spec = {.out = n * channels, .in = channels, .weight = weight, .bias = bias, .flags = flags};
    if (status == MAR_OK) status = l->k->core->linear_create(l->k, &spec, out, l->err);
    free(weight);
    free(bias);
    return status;
}

/* --- steps ------------------------------------------------------------------------------------------------------- */

static mar_status add_residual(const loader *l, vae_decoder *d, const char *prefix, int in, int out)
{
    vae_step *s = &d->steps[d->n_steps++];
    char name[NAME_SIZE];
    *s = (vae_step){.kind = VAE_RESIDUAL, .in = in, .out = out};
    snprintf(s->name, sizeof s->name, "%s", prefix);
    name_part(name, prefix, ".norm1");
    mar_status status = load_norm(l, name, in, &s->norm[0]);
    name_part(name, prefix, ".conv1");
    if (status == MAR_OK) status = load_conv(l, name, in, out, 3, KERN_OUT_F32, &s->conv[0]);
    name_part(name, prefix, ".norm2");
    if (status == MAR_OK) status = load_norm(l, name, out, &s->norm[1]);
    name_part(name, prefix, ".conv2");
    if (status == MAR_OK) status = load_conv(l, name, out, out, 3, KERN_OUT_F32 | KERN_OUT_ADD, &s->conv[1]);
    name_part(name, prefix, ".nin_shortcut");
    if (status == MAR_OK && in != out) status = load_conv(l, name, in, out, 1, KERN_OUT_F32, &s->shortcut);
    return status;
}

static mar_status add_attention(const loader *l, vae_decoder *d, const char *prefix, int channels)
{
    static const char *const qkv[] = {".q", ".k", ".v"}, *const proj[] = {".proj_out"};
    vae_step *s = &d->steps[d->n_steps++];
    char name[NAME_SIZE];
    *s = (vae_step){.kind = VAE_ATTENTION, .in = channels, .out = channels};
    snprintf(s->name, sizeof s->name, "%s", prefix);
    name_part(name, prefix, ".norm");
    mar_status status = load_norm(l, name, channels, &s->norm[0]);
    if (status == MAR_OK) status = load_linear(l, prefix, qkv, 3, channels, 1, 0, &s->qkv);
    if (status == MAR_OK) status = load_linear(l, prefix, proj, 1, channels, 1, KERN_OUT_F32 | KERN_OUT_ADD, &s->proj);
    return status;
}

static mar_status add_upsample(const loader *l, vae_decoder *d, const char *prefix, int channels)
{
    vae_step *s = &d->steps[d->n_steps++];
    char name[NAME_SIZE];
    *s = (vae_step){.kind = VAE_UPSAMPLE, .in = channels, .out = channels};
    snprintf(s->name, sizeof s->name, "%s", prefix);
    name_part(name, prefix, ".upsample.conv");
    return load_conv(l, name, channels, channels, 3, KERN_OUT_F32 | KERN_UPSAMPLE, &s->conv[0]);
}

/* The width of a level. vae_config_derive has checked that the tensor is there. */
static int level_width(const wt_file *f, int level)
{
    char name[NAME_SIZE];
    name_part(name, "decoder.up.", "%d.block.0.conv2.weight", level);
    return (int)wt_find(f, name)->shape[0];
}

static mar_status load_level(const loader *l, vae_decoder *d, int level, int *width)
{
    char prefix[NAME_SIZE], name[NAME_SIZE];
    const int out = level_width(l->f, level);
    mar_status status = MAR_OK;
    name_part(prefix, "decoder.up.", "%d", level);
    for (int i = 0; status == MAR_OK && i <= d->config.res_blocks; i++) {
        name_part(name, prefix, ".block.%d", i);
        status = add_residual(l, d, name, *width, out);
        *width = out;
    }
    if (status == MAR_OK && level > 0) status = add_upsample(l, d, prefix, out);
    return status;
}

static mar_status load_steps(const loader *l, vae_decoder *d)
{
    const mar_vae_config *c = &d->config;
    const int most = 3 + c->levels * (c->res_blocks + 2);
    d->steps = calloc((size_t)most, sizeof *d->steps);
    if (!d->steps) return err_set(l->err, MAR_ENOMEM, "out of memory");
    int width = level_width(l->f, c->levels - 1);
    d->width_in = width;
    mar_status status = add_residual(l, d, "decoder.mid.block_1", width, width);
    if (status == MAR_OK) status = add_attention(l, d, "decoder.mid.attn_1", width);
    if (status == MAR_OK) status = add_residual(l, d, "decoder.mid.block_2", width, width);
    for (int level = c->levels - 1; status == MAR_OK && level >= 0; level--) status = load_level(l, d, level, &width);
    d->width_out = width;
    return status;
}

static mar_status load_decoder(const loader *l, vae_decoder *d)
{
    static const char *const post_quant[] = {""};
    mar_status status = vae_config_derive(l->f, &d->config, l->err);
    if (status != MAR_OK) return status;
    const int z = d->config.z_channels;
    status = load_steps(l, d);
    if (status == MAR_OK)
        status = load_linear(l, "post_quant_conv", post_quant, 1, z, VAE_TOKEN_SCALE, KERN_IN_F32 | KERN_OUT_F32,
                             &d->post_quant);
    if (status == MAR_OK) status = load_conv(l, "decoder.conv_in", z, d->width_in, 3, KERN_OUT_F32, &d->conv_in);
    if (status == MAR_OK) status = load_norm(l, "decoder.norm_out", d->width_out, &d->norm_out);
    if (status == MAR_OK) status = load_conv(l, "decoder.conv_out", d->width_out, 3, 3, KERN_OUT_F32, &d->conv_out);
    return status;
}

mar_status vae_decoder_create(kern_queue *k, const wt_file *f, vae_decoder **out, mar_err *err)
{
    *out = NULL;
    vae_decoder *d = calloc(1, sizeof *d);
    if (!d) return err_set(err, MAR_ENOMEM, "out of memory");
    d->device = k->device;
    const loader l = {k, f, err};
    mar_status status = load_decoder(&l, d);
    if (status != MAR_OK) {
        k->core->finish(k); /* uploads that have begun */
        vae_decoder_free(d);
        return status;
    }
    *out = d;
    return MAR_OK;
}

static void free_norm(kern_device *device, vae_norm *n)
{
    device->core->free(device, n->weight);
    device->core->free(device, n->bias);
}

void vae_decoder_free(vae_decoder *d)
{
    if (!d) return;
    kern_device *device = d->device;
    for (int i = 0; i < d->n_steps; i++) {
        vae_step *s = &d->steps[i];
        for (int j = 0; j < 2; j++) {
            free_norm(device, &s->norm[j]);
            device->conv->free(device, s->conv[j]);
        }
        device->conv->free(device, s->shortcut);
        device->core->linear_free(device, s->qkv);
        device->core->linear_free(device, s->proj);
    }
    free(d->steps);
    device->core->linear_free(device, d->post_quant);
    device->conv->free(device, d->conv_in);
    device->conv->free(device, d->conv_out);
    free_norm(device, &d->norm_out);
    free(d);
}

const mar_vae_config *vae_decoder_config(const vae_decoder *d)
{
    return &d->config;
}
