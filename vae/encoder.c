/* Loads the encoder of the file that the decoder is from. */
#include "vae/steps.h"

#include <stdlib.h>

static mar_status encoder_load_level(const vae_loader *l, const vae_decoder *d, vae_network *net, int level, int *width)
{
    const int levels = d->config.levels, attends = vae_encoder_attends(l->f, d->names, levels, level);
    char prefix[VAE_NAME_SIZE], name[VAE_NAME_SIZE];
    int out;
    vae_name(prefix, d->names->encoder_level, "%d", level);
    mar_status status = vae_level_width(l->f, d->names, levels, level, &out, l->err);
    for (int i = 0; status == MAR_OK && i < d->config.res_blocks; i++) {
        vae_name(name, prefix, "%s%d", d->names->block, i);
        status = vae_add_residual(l, net, name, *width, out);
        *width = out;
        if (status != MAR_OK || !attends) continue;
        vae_name(name, prefix, ".attn.%d", i);
        status = vae_add_attention(l, net, name, out);
    }
    return status == MAR_OK && level < levels - 1 ? vae_add_downsample(l, net, prefix, out) : status;
}

static mar_status encoder_load_network(const vae_loader *l, const vae_decoder *d, vae_network *net)
{
    const mar_vae_config *c = &d->config;
    if (c->channels % VAE_GROUPS != 0)
        return err_set(l->err, MAR_EMODEL,
                       "%s: tensor encoder.conv_in.weight has %d channels, expected a multiple of %d", wt_path(l->f),
                       c->channels, VAE_GROUPS);
    mar_status status = vae_network_begin(l, net, "encoder", 3 + c->levels * (2 * c->res_blocks + 1));
    int width = c->channels;
    for (int level = 0; status == MAR_OK && level < c->levels; level++)
        status = encoder_load_level(l, d, net, level, &width);
    if (status == MAR_OK) status = vae_add_middle(l, net, d->names, width);
    net->in = 3;
    net->width_in = c->channels;
    net->width_out = width;
    net->out = c->codebook ? d->latent : 2 * d->latent; /* KL: mean and log variance */
    return status == MAR_OK ? vae_load_ends(l, net, &vae_end_names_ldm, VAE_GROUPS) : status;
}

/* Loads quant_conv. The log variance is not needed, since a token is the mean. */
static mar_status load_quant(const vae_loader *l, const vae_decoder *d, int in, kern_linear **out)
{
    const mar_vae_config *c = &d->config;
    const int z = c->z_channels, rows = c->codebook ? z : 2 * z;
    const float scale = c->codebook ? 1 : c->scale;
    if (!d->names->post_quant && c->norm) return vae_scaling_create(l, z, in, 1, 0, out); /* a run scales them */
    if (!d->names->post_quant) return vae_scaling_create(l, z, in, scale, -c->shift * scale, out);
    float *weight = NULL, *bias = NULL;
    mar_status status = vae_load(l, "quant_conv", "weight", 4, (int64_t[]){rows, in, 1, 1}, &weight);
    if (status == MAR_OK) status = vae_load(l, "quant_conv", "bias", 1, (int64_t[]){rows}, &bias);
    for (size_t i = 0; status == MAR_OK && i < (size_t)z * (size_t)in; i++) weight[i] *= scale;
    for (int i = 0; status == MAR_OK && i < z; i++) bias[i] *= scale;
    const kern_linear_spec spec = {
        .out = z, .in = in, .weight = weight, .bias = bias, .flags = KERN_IN_F32 | KERN_OUT_F32};
    if (status == MAR_OK) status = l->k->core->linear_create(l->k, &spec, out, l->err);
    free(weight);
    free(bias);
    return status;
}

mar_status vae_decoder_add_encoder(vae_decoder *d, kern_queue *k, const wt_file *f, mar_err *err)
{
    const vae_loader l = {.k = k, .f = f, .err = err};
    if (d->temporal)
        return err_set(err, MAR_EMODEL, "%s: the encoder of Emu3's autoencoder is not supported, expected another's",
                       wt_path(f));
    if (!vae_config_has_encoder(f)) return err_set(err, MAR_EMODEL, "%s has no encoder", wt_path(f));
    vae_encoder *e = calloc(1, sizeof *e);
    if (!e) return err_set(err, MAR_ENOMEM, "out of memory");
    mar_status status = d->vit ? vae_vit_load_encoder(&l, d, e) : encoder_load_network(&l, d, &e->network);
    if (status == MAR_OK && !d->vit) status = load_quant(&l, d, e->network.out, &e->quant);
    if (status != MAR_OK) {
        k->core->finish(k); /* wait for pending uploads */
        vae_encoder_free(k->device, e);
        return status;
    }
    d->encoder = e;
    return MAR_OK;
}

int vae_decoder_has_encoder(const vae_decoder *d)
{
    return d->encoder != NULL;
}

void vae_encoder_free(kern_device *device, vae_encoder *e)
{
    if (!e) return;
    vae_network_free(device, &e->network);
    vae_vit_free(device, e->vit);
    device->core->linear_free(device, e->quant);
    free(e);
}
