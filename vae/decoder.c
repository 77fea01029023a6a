/* Loads the decoder by official names and exact shapes, and packs its weights for the backend. */
#include "vae/steps.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    kern_queue *k;
    const wt_file *f;
    mar_err *err;
} loader;

enum { NAME_SIZE = VAE_NAME_SIZE };

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

/* Loads a vector of n floats into the backend's memory. */
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

/* Loads n 1x1 convolutions with the same input as one linear layer over NHWC pixels. The input is scaled by
 * input_scale, so the weights are divided by it. */
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

static mar_status load_level(const loader *l, vae_decoder *d, int level, int *width)
{
    const mar_vae_config *c = &d->config;
    char prefix[NAME_SIZE], name[NAME_SIZE];
    int out;
    vae_name_level(d->names, c->levels, level, prefix);
    mar_status status = vae_level_width(l->f, d->names, c->levels, level, &out, l->err);
    for (int i = 0; status == MAR_OK && i <= c->res_blocks; i++) {
        name_part(name, prefix, "%s%d", d->names->block, i);
        status = add_residual(l, d, name, *width, out);
        *width = out;
        if (status != MAR_OK || !d->names->attends_at_coarsest || level < c->levels - 1) continue;
        name_part(name, prefix, ".attn.%d", i);
        status = add_attention(l, d, name, out);
    }
    if (status == MAR_OK && level > 0) status = add_upsample(l, d, prefix, out);
    return status;
}

static mar_status load_steps(const loader *l, vae_decoder *d)
{
    const mar_vae_config *c = &d->config;
    const int most = 3 + c->levels * (2 * c->res_blocks + 3);
    char middle[3][NAME_SIZE];
    d->steps = calloc((size_t)most, sizeof *d->steps);
    if (!d->steps) return err_set(l->err, MAR_ENOMEM, "out of memory");
    for (int i = 0; i < 3; i++) name_part(middle[i], "decoder.", "%s", d->names->middle[i]);
    mar_status status = vae_level_width(l->f, d->names, c->levels, c->levels - 1, &d->width_in, l->err);
    int width = d->width_in;
    if (status == MAR_OK) status = add_residual(l, d, middle[0], width, width);
    if (status == MAR_OK) status = add_attention(l, d, middle[1], width);
    if (status == MAR_OK) status = add_residual(l, d, middle[2], width, width);
    for (int level = c->levels - 1; status == MAR_OK && level >= 0; level--) status = load_level(l, d, level, &width);
    d->width_out = width;
    return status;
}

/* --- the latent --------------------------------------------------------------------------------------------------- */

/* Computes y = x / max(|x|, 1e-12), as torch.nn.functional.normalize. */
static void normalise(const float *x, int channels, float *y)
{
    double square = 0;
    for (int i = 0; i < channels; i++) square += (double)x[i] * (double)x[i];
    const double length = fmax(sqrt(square), 1e-12);
    for (int i = 0; i < channels; i++) y[i] = (float)(x[i] / length);
}

/* Computes y[latent] = W x + b. */
static void embed(const float *x, int channels, const float *weight, const float *bias, int latent, float *y)
{
    for (int j = 0; j < latent; j++) {
        double sum = bias[j];
        for (int i = 0; i < channels; i++) sum += (double)weight[(size_t)j * (size_t)channels + (size_t)i] * x[i];
        y[j] = (float)sum;
    }
}

/* Builds the table of all tokens' latents: a latent depends only on its codebook row. */
static mar_status make_table(const loader *l, vae_decoder *d, const float *weight, const float *bias)
{
    const mar_vae_config *c = &d->config;
    const size_t bytes = sizeof(float) * (size_t)c->codebook * (size_t)d->latent;
    float *host = malloc(bytes);
    void *table = NULL;
    if (!host) return err_set(l->err, MAR_ENOMEM, "out of memory");
    for (int i = 0; i < c->codebook; i++)
        embed(d->codebook + (size_t)i * (size_t)c->z_channels, c->z_channels, weight, bias, d->latent,
              host + (size_t)i * (size_t)d->latent);
    const mar_status status = l->k->core->alloc(l->k->device, bytes, &table, l->err);
    if (status == MAR_OK) l->k->core->upload(l->k, table, host, bytes);
    d->table = table;
    free(host);
    return status;
}

static mar_status load_codebook(const loader *l, vae_decoder *d)
{
    const mar_vae_config *c = &d->config;
    float *weight = NULL, *bias = NULL;
    const size_t z = (size_t)c->z_channels;
    mar_status status = wt_load_f32(l->f, "quantize.embedding.weight", 2, (int64_t[]){c->codebook, c->z_channels},
                                    &d->embedding, l->err);
    if (status == MAR_OK && !(d->codebook = malloc(sizeof(float) * (size_t)c->codebook * z)))
        status = err_set(l->err, MAR_ENOMEM, "out of memory");
    for (size_t i = 0; status == MAR_OK && i < (size_t)c->codebook; i++)
        normalise(d->embedding + i * z, c->z_channels, d->codebook + i * z);
    if (status == MAR_OK)
        status = load(l, "post_quant_conv", "weight", 4, (int64_t[]){d->latent, c->z_channels, 1, 1}, &weight);
    if (status == MAR_OK) status = load(l, "post_quant_conv", "bias", 1, (int64_t[]){d->latent}, &bias);
    if (status == MAR_OK) status = make_table(l, d, weight, bias);
    free(weight);
    free(bias);
    return status;
}

/* Loads post_quant_conv and the codebook. vae_config_derive has found the former. */
static mar_status load_latent(const loader *l, vae_decoder *d)
{
    static const char *const post_quant[] = {""};
    d->latent = (int)wt_find(l->f, "post_quant_conv.weight")->shape[0];
    if (d->config.codebook) return load_codebook(l, d);
    return load_linear(l, "post_quant_conv", post_quant, 1, d->latent, VAE_TOKEN_SCALE, KERN_IN_F32 | KERN_OUT_F32,
                       &d->post_quant);
}

static mar_status load_decoder(const loader *l, vae_decoder *d)
{
    mar_status status = vae_config_derive(l->f, &d->config, l->err);
    if (status != MAR_OK) return status;
    d->names = vae_names_of(d->config.codebook > 0);
    status = load_steps(l, d);
    if (status == MAR_OK) status = load_latent(l, d);
    if (status == MAR_OK)
        status = load_conv(l, "decoder.conv_in", d->latent, d->width_in, 3, KERN_OUT_F32, &d->conv_in);
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
        k->core->finish(k); /* wait for pending uploads */
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
    device->core->free(device, d->table);
    free(d->codebook);
    free(d->embedding);
    device->conv->free(device, d->conv_in);
    device->conv->free(device, d->conv_out);
    free_norm(device, &d->norm_out);
    free(d);
}

const mar_vae_config *vae_decoder_config(const vae_decoder *d)
{
    return &d->config;
}

const float *vae_decoder_codebook(const vae_decoder *d)
{
    return d->codebook;
}

const float *vae_decoder_embedding(const vae_decoder *d)
{
    return d->embedding;
}
