/* Loads the decoder and the codebook. */
#include "vae/pass.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mar_status decoder_load_level(const vae_loader *l, vae_decoder *d, int level, int *width)
{
    const mar_vae_config *c = &d->config;
    char prefix[VAE_NAME_SIZE], name[VAE_NAME_SIZE];
    int out;
    vae_name_level(d->names, c->levels, level, prefix);
    mar_status status = vae_level_width(l->f, d->names, c->levels, level, &out, l->err);
    for (int i = 0; status == MAR_OK && i <= c->res_blocks; i++) {
        vae_name(name, prefix, "%s%d", d->names->block, i);
        status = vae_add_residual(l, &d->network, name, *width, out);
        *width = out;
        if (status != MAR_OK || !d->names->attends_at_coarsest || level < c->levels - 1) continue;
        vae_name(name, prefix, ".attn.%d", i);
        status = vae_add_attention(l, &d->network, name, out);
    }
    if (status == MAR_OK && level > 0) status = vae_add_upsample(l, &d->network, prefix, out);
    return status;
}

static mar_status decoder_load_network(const vae_loader *l, vae_decoder *d)
{
    const mar_vae_config *c = &d->config;
    vae_network *net = &d->network;
    mar_status status = vae_network_begin(l, net, "decoder", 3 + c->levels * (2 * c->res_blocks + 3));
    if (status == MAR_OK) status = vae_level_width(l->f, d->names, c->levels, c->levels - 1, &net->width_in, l->err);
    if (status == MAR_OK) status = vae_add_middle(l, net, d->names, net->width_in);
    int width = net->width_in;
    for (int level = c->levels - 1; status == MAR_OK && level >= 0; level--)
        status = decoder_load_level(l, d, level, &width);
    net->in = d->latent;
    net->width_out = width;
    net->out = 3;
    return status == MAR_OK ? vae_load_ends(l, net, &vae_end_names_ldm, VAE_GROUPS) : status;
}

/* --- the latent --------------------------------------------------------------------------------------------------- */

void vae_to_codebook(const vae_decoder *d, const float *x, float *y)
{
    double square = 0;
    const int channels = d->config.z_channels;
    if (!d->names->normalises) {
        memmove(y, x, sizeof *y * (size_t)channels);
        return;
    }
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
static mar_status decoder_make_table(const vae_loader *l, vae_decoder *d, const float *weight, const float *bias)
{
    const mar_vae_config *c = &d->config;
    const size_t n = (size_t)c->codebook * (size_t)d->latent;
    float *host = malloc(n * sizeof *host);
    if (!host) return err_set(l->err, MAR_ENOMEM, "out of memory");
    for (int i = 0; i < c->codebook; i++)
        embed(d->codebook + (size_t)i * (size_t)c->z_channels, c->z_channels, weight, bias, d->latent,
              host + (size_t)i * (size_t)d->latent);
    const mar_status status = kern_new_array(l->k, host, n, &d->table, l->err);
    free(host);
    return status;
}

/* Loads the layer between a codebook's row and conv_in: *weight [latent][z_channels], *bias [latent]. */
static mar_status load_post_quant(const vae_loader *l, const vae_decoder *d, float **weight, float **bias)
{
    const int z = d->config.z_channels;
    const char *name = d->names->post_quant;
    if (d->names->temporal) return vae_load_last_slice(l, name, d->latent, z, 1, weight, bias);
    const mar_status status = vae_load(l, name, "weight", 4, (int64_t[]){d->latent, z, 1, 1}, weight);
    return status == MAR_OK ? vae_load(l, name, "bias", 1, (int64_t[]){d->latent}, bias) : status;
}

static mar_status load_codebook(const vae_loader *l, vae_decoder *d)
{
    const mar_vae_config *c = &d->config;
    float *weight = NULL, *bias = NULL;
    const size_t z = (size_t)c->z_channels;
    mar_status status = wt_load_f32(l->f, "quantize.embedding.weight", 2, (int64_t[]){c->codebook, c->z_channels},
                                    &d->embedding, l->err);
    if (status == MAR_OK && !(d->codebook = malloc(sizeof(float) * (size_t)c->codebook * z)))
        status = err_set(l->err, MAR_ENOMEM, "out of memory");
    for (size_t i = 0; status == MAR_OK && i < (size_t)c->codebook; i++)
        vae_to_codebook(d, d->embedding + i * z, d->codebook + i * z);
    if (status == MAR_OK) status = load_post_quant(l, d, &weight, &bias);
    if (status == MAR_OK) status = decoder_make_table(l, d, weight, bias);
    if (status == MAR_OK && d->names->temporal)
        status = kern_new_array(l->k, d->embedding, (size_t)c->codebook * z, &d->rows, l->err);
    free(weight);
    free(bias);
    return status;
}

/* Loads post_quant_conv and the codebook. vae_config_derive has found the former. */
static mar_status load_latent(const vae_loader *l, vae_decoder *d)
{
    static const char *const post_quant[] = {""};
    const mar_vae_config *c = &d->config;
    char name[VAE_NAME_SIZE];
    d->latent = c->z_channels;
    if (!d->names->post_quant)
        return vae_scaling_create(l, d->latent, d->latent, 1 / c->scale, c->shift, &d->post_quant);
    vae_name(name, d->names->post_quant, ".weight");
    d->latent = (int)wt_find(l->f, name)->shape[0];
    if (c->codebook) return load_codebook(l, d);
    return vae_load_linear(l, "post_quant_conv", post_quant, 1, d->latent, c->scale, KERN_IN_F32 | KERN_OUT_F32,
                           &d->post_quant);
}

static mar_status load_decoder(const vae_loader *l, vae_decoder *d)
{
    if (vae_config_is_vit(l->f)) return vae_vit_load(l, d);
    mar_status status = vae_config_derive(l->f, &d->config, l->err);
    if (status != MAR_OK) return status;
    d->names = vae_names_of(l->f);
    status = load_latent(l, d);
    if (status == MAR_OK && d->names->temporal) status = vae_temporal_load(l, d->latent, &d->temporal);
    vae_loader with_norms = *l;
    if (d->names->temporal) with_norms.spatial = d->config.z_channels;
    return status == MAR_OK ? decoder_load_network(&with_norms, d) : status;
}

mar_status vae_decoder_create(kern_queue *k, const wt_file *f, vae_decoder **out, mar_err *err)
{
    *out = NULL;
    vae_decoder *d = calloc(1, sizeof *d);
    if (!d) return err_set(err, MAR_ENOMEM, "out of memory");
    d->device = k->device;
    const vae_loader l = {.k = k, .f = f, .err = err};
    mar_status status = load_decoder(&l, d);
    if (status != MAR_OK) {
        k->core->finish(k); /* wait for pending uploads */
        vae_decoder_free(d);
        return status;
    }
    *out = d;
    return MAR_OK;
}

void vae_decoder_free(vae_decoder *d)
{
    if (!d) return;
    vae_encoder_free(d->device, d->encoder);
    vae_network_free(d->device, &d->network);
    vae_vit_free(d->device, d->vit);
    d->device->core->linear_free(d->device, d->post_quant);
    d->device->core->free(d->device, d->table);
    d->device->core->free(d->device, d->rows);
    vae_temporal_free(d->device, d->temporal);
    free(d->codebook);
    free(d->embedding);
    free(d);
}

int vae_decoder_is_sphere(const vae_decoder *d)
{
    return d->vit && !d->vit->shape.patch;
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
