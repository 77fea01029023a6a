/* Loads a ViT decoder. */
#include "vae/steps.h"
#include "weights/rows.h"

#include <stdio.h>
#include <stdlib.h>

static mar_status load_matrix(const vae_loader *l, const char *prefix, const char *suffix, int out, int in, int flags,
                              kern_linear **layer)
{
    wt_rows w = {.file = l->f, .in = in, .count = 1, .piece = {{.rows = out}}};
    snprintf(w.piece[0].name, sizeof w.piece[0].name, "%s.%s", prefix, suffix);
    return wt_create_linear(l->k, &w, (kern_linear_spec){.out = out, .flags = flags}, layer, l->err);
}

static mar_status vit_load_layer(const vae_loader *l, const vae_vit_shape *s, const char *prefix, vae_vit_layer *out)
{
    const int d = s->width, h = s->hidden, added = KERN_OUT_F32 | KERN_OUT_ADD;
    mar_status status = load_matrix(l, prefix, "attention.wqkv.weight", 3 * d, d, 0, &out->qkv);
    if (status == MAR_OK) status = load_matrix(l, prefix, "attention.wo.weight", d, d, added, &out->wo);
    if (status == MAR_OK) status = load_matrix(l, prefix, "feed_forward.w1.weight", 2 * h, d, 0, &out->w1);
    if (status == MAR_OK) status = load_matrix(l, prefix, "feed_forward.w2.weight", d, h, added, &out->w2);
    if (status == MAR_OK) status = vae_load_vector(l, prefix, "attention_norm.weight", d, &out->attention_norm);
    return status == MAR_OK ? vae_load_vector(l, prefix, "ffn_norm.weight", d, &out->ffn_norm) : status;
}

/* Loads a tensor into the backend's memory. */
static mar_status load_array(const vae_loader *l, const char *prefix, const char *suffix, int rank,
                             const int64_t *shape, float **out)
{
    char name[VAE_NAME_SIZE];
    vae_name(name, prefix, ".%s", suffix);
    return wt_load_array(l->k, l->f, name, rank, shape, out, l->err);
}

/* Loads the transformer. Its table of positions is not loaded in types of fewer bits than f32: a run then makes it. */
static mar_status load_transformer(const vae_loader *l, vae_vit *v)
{
    const vae_vit_shape *s = &v->shape;
    const int64_t registers[2] = {s->registers, s->width};
    const int64_t table[3] = {s->registers + s->grid * s->grid, s->width / s->heads / 2, 2};
    char side[VAE_NAME_SIZE], name[VAE_NAME_SIZE];
    vae_name(side, s->prefix, "decoder");
    mar_status status = load_array(l, side, "register_token.weight", 2, registers, &v->registers);
    if (status == MAR_OK && s->has_table) status = load_array(l, side, "freqs_cis", 3, table, &v->rope);
    if (status == MAR_OK && !(v->layers = calloc((size_t)s->depth, sizeof *v->layers)))
        status = err_set(l->err, MAR_ENOMEM, "out of memory");
    for (int i = 0; status == MAR_OK && i < s->depth; i++) {
        vae_name(name, side, ".layers.%d", i);
        status = vit_load_layer(l, s, name, &v->layers[i]);
    }
    return status;
}

static mar_status vit_load_network(const vae_loader *l, const vae_vit_shape *s, vae_network *net)
{
    char name[VAE_NAME_SIZE];
    const int in_model = s->prefix[0] != '\0';
    mar_status status = vae_network_begin(l, net, in_model ? "vae.decoder" : "decoder", 1 + 2 * s->blocks);
    if (status != MAR_OK) return status;
    vae_name(name, net->side, ".layers");
    vae_add_transformer(net, name, s->width);
    net->in = net->width_in = net->width_out = s->width;
    net->out = 3;
    for (int i = 0; status == MAR_OK && i < s->blocks; i++) {
        vae_name(name, net->side, ".unpatchify.1.net.%d", i);
        status = vae_add_doubling(l, net, name, net->width_out, s->out[i]);
        net->width_out = s->out[i];
        vae_name(name, net->side, ".unpatchify.1.net.%d.block2", i);
        if (status == MAR_OK) status = vae_add_vit_residual(l, net, name, s->out[i]);
    }
    return status == MAR_OK ? vae_load_ends(l, net, &vae_end_names_vit, VAE_VIT_LAST_GROUPS) : status;
}

mar_status vae_vit_load(const vae_loader *l, vae_decoder *d)
{
    char name[VAE_NAME_SIZE];
    vae_vit *v = d->vit = calloc(1, sizeof *v);
    if (!v) return err_set(l->err, MAR_ENOMEM, "out of memory");
    mar_status status = vae_vit_derive(l->f, &v->shape, l->err);
    if (status != MAR_OK) return status;
    d->config = (mar_vae_config){.size = sizeof d->config};
    vae_vit_config(&v->shape, &d->config);
    d->latent = v->shape.width;
    vae_name(name, v->shape.prefix, "post_quant_proj");
    status =
        load_matrix(l, name, "weight", v->shape.width, v->shape.channels, KERN_IN_F32 | KERN_OUT_F32, &d->post_quant);
    if (status == MAR_OK) status = load_transformer(l, v);
    return status == MAR_OK ? vit_load_network(l, &v->shape, &d->network) : status;
}

void vae_vit_free(kern_device *device, vae_vit *v)
{
    if (!v) return;
    for (int i = 0; v->layers && i < v->shape.depth; i++) {
        vae_vit_layer *layer = &v->layers[i];
        kern_linear *matrices[] = {layer->qkv, layer->wo, layer->w1, layer->w2};
        for (size_t j = 0; j < sizeof matrices / sizeof *matrices; j++) device->core->linear_free(device, matrices[j]);
        device->core->free(device, layer->attention_norm);
        device->core->free(device, layer->ffn_norm);
    }
    free(v->layers);
    device->core->free(device, v->registers);
    device->core->free(device, v->rope);
    free(v);
}
