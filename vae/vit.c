/* Loads ViT decoders and encoders. */
#include "vae/steps.h"
#include "weights/rows.h"

#include <stdio.h>
#include <stdlib.h>

static mar_status load_matrix(const vae_loader *l, const char *name, int bias, int out, int in, int flags,
                              kern_linear **layer)
{
    wt_rows w = {.file = l->f, .in = in, .count = 1, .piece = {{.rows = out}}, .bias = bias};
    snprintf(w.piece[0].name, sizeof w.piece[0].name, "%s.weight", name);
    return wt_create_linear(l->k, &w, (kern_linear_spec){.out = out, .flags = flags}, layer, l->err);
}

static mar_status vit_load_layer(const vae_loader *l, const vae_vit_shape *s, const char *prefix, vae_vit_layer *out)
{
    const vae_vit_names *names = s->names;
    const int d = s->width, h = s->hidden, added = KERN_OUT_F32 | KERN_OUT_ADD;
    const struct {
        const char *module, *layer;
        int out, in, flags;
        kern_linear **to;
    } matrices[] = {{names->attention, names->qkv, 3 * d, d, 0, &out->qkv},
                    {names->attention, names->wo, d, d, added, &out->wo},
                    {names->mlp, names->w1, 2 * h, d, 0, &out->w1},
                    {names->mlp, names->w2, d, h, added, &out->w2}};
    float **const norms[] = {&out->attention_norm, &out->ffn_norm};
    char name[VAE_NAME_SIZE];
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && i < 4; i++) {
        vae_name(name, prefix, ".%s.%s", matrices[i].module, matrices[i].layer);
        status = load_matrix(l, name, names->bias, matrices[i].out, matrices[i].in, matrices[i].flags, matrices[i].to);
    }
    for (int i = 0; status == MAR_OK && i < 2; i++) {
        vae_name(name, prefix, ".%s", names->norm[i]);
        status = vae_load_vector(l, name, "weight", d, norms[i]);
    }
    return status;
}

/* Loads a tensor into the backend's memory. */
static mar_status load_array(const vae_loader *l, const char *prefix, const char *suffix, int rank,
                             const int64_t *shape, float **out)
{
    char name[VAE_NAME_SIZE];
    vae_name(name, prefix, ".%s", suffix);
    return wt_load_array(l->k, l->f, name, rank, shape, out, l->err);
}

/* Loads a norm of a side's rows, unless it has no name. */
static mar_status load_side_norm(const vae_loader *l, const vae_vit_shape *s, const char *norm, float **out)
{
    char name[VAE_NAME_SIZE];
    if (!norm) return MAR_OK;
    vae_name(name, s->side, ".%s", norm);
    return vae_load_vector(l, name, "weight", s->width, out);
}

/* Loads what stands in front of the layers and behind them. A table of positions is not loaded in types of fewer bits
 * than f32: a run then makes it. */
static mar_status load_rows(const vae_loader *l, vae_vit *v)
{
    const vae_vit_shape *s = &v->shape;
    const int64_t registers[2] = {s->registers, s->width}, positions[3] = {1, s->grid * s->grid, s->width};
    const int64_t table[3] = {s->registers + s->grid * s->grid, s->width / s->heads / 2, 2};
    mar_status status = MAR_OK;
    if (s->registers) status = load_array(l, s->side, "register_token.weight", 2, registers, &v->registers);
    if (status == MAR_OK && s->has_table) status = load_array(l, s->side, "freqs_cis", 3, table, &v->rope);
    if (status == MAR_OK && s->names->positions)
        status = load_array(l, s->side, s->names->positions, 3, positions, &v->positions);
    if (status == MAR_OK) status = load_side_norm(l, s, s->names->before, &v->before);
    return status == MAR_OK ? load_side_norm(l, s, s->names->after, &v->after) : status;
}

static mar_status load_transformer(const vae_loader *l, vae_vit *v)
{
    const vae_vit_shape *s = &v->shape;
    char name[VAE_NAME_SIZE];
    mar_status status = load_rows(l, v);
    if (status == MAR_OK && !(v->layers = calloc((size_t)s->depth, sizeof *v->layers)))
        status = err_set(l->err, MAR_ENOMEM, "out of memory");
    for (int i = 0; status == MAR_OK && i < s->depth; i++) {
        vae_name(name, s->side, "%s.%d", s->names->layers, i);
        status = vit_load_layer(l, s, name, &v->layers[i]);
    }
    return status;
}

/* Begins a side's steps. */
static mar_status vit_begin_network(const vae_loader *l, const vae_vit_shape *s, vae_network *net)
{
    net->in = net->width_in = net->width_out = s->width;
    net->out = 3;
    return vae_network_begin(l, net, s->side, 2 + 2 * s->blocks);
}

static void vit_add_transformer(const vae_vit_shape *s, vae_network *net)
{
    char name[VAE_NAME_SIZE];
    vae_name(name, net->side, "%s", s->names->layers);
    vae_add_transformer(net, name, s->width);
}

static mar_status vit_load_network(const vae_loader *l, const vae_vit_shape *s, vae_network *net)
{
    char name[VAE_NAME_SIZE];
    mar_status status = vit_begin_network(l, s, net);
    if (status != MAR_OK) return status;
    vit_add_transformer(s, net);
    if (s->patch) {
        net->width_out = 3;
        status = vae_add_unpatchify(l, net, "decoder.ffn.1", s->patch, s->width);
    }
    for (int i = 0; status == MAR_OK && i < s->blocks; i++) {
        vae_name(name, net->side, ".unpatchify.1.net.%d", i);
        status = vae_add_doubling(l, net, name, net->width_out, s->out[i]);
        net->width_out = s->out[i];
        vae_name(name, net->side, ".unpatchify.1.net.%d.block2", i);
        if (status == MAR_OK) status = vae_add_vit_residual(l, net, name, s->out[i]);
    }
    return status == MAR_OK
               ? vae_load_ends(l, net, s->patch ? &vae_end_names_detok : &vae_end_names_vit, VAE_VIT_LAST_GROUPS)
               : status;
}

/* --- l-DeTok: statistics of the latents, which tokens have not ---------------------------------------------------- */

/* A linear layer between tokens and rows, with the statistics of the tokens' channels. */
typedef struct {
    float *weight, *bias, *mean, *std; /* host */
} detok_layer;

static void detok_layer_free(detok_layer *d)
{
    free(d->weight), free(d->bias), free(d->mean), free(d->std);
}

static mar_status detok_layer_load(const vae_loader *l, const char *name, int out, int in, int channels, detok_layer *d)
{
    mar_status status = vae_load(l, name, "weight", 2, (int64_t[]){out, in}, &d->weight);
    if (status == MAR_OK) status = vae_load(l, name, "bias", 1, (int64_t[]){out}, &d->bias);
    if (status == MAR_OK) status = wt_load_f32(l->f, "mean", 1, (int64_t[]){channels}, &d->mean, l->err);
    if (status == MAR_OK) status = wt_load_f32(l->f, "std", 1, (int64_t[]){channels}, &d->std, l->err);
    for (int c = 0; status == MAR_OK && c < channels; c++)
        if (!(d->std[c] > 0))
            status = err_set(l->err, MAR_EMODEL, "%s: tensor std has %g for channel %d, expected a positive number",
                             wt_path(l->f), d->std[c], c);
    return status;
}

static mar_status detok_layer_create(const vae_loader *l, const detok_layer *d, int out, int in, kern_linear **layer)
{
    const kern_linear_spec spec = {
        .out = out, .in = in, .weight = d->weight, .bias = d->bias, .flags = KERN_IN_F32 | KERN_OUT_F32};
    return l->k->core->linear_create(l->k, &spec, layer, l->err);
}

/* Loads decoder_embed(token * std + mean). */
static mar_status detok_load_embed(const vae_loader *l, const vae_vit_shape *s, kern_linear **layer)
{
    const int channels = s->channels;
    detok_layer d = {0};
    mar_status status = detok_layer_load(l, "decoder.decoder_embed", s->width, channels, channels, &d);
    for (int r = 0; status == MAR_OK && r < s->width; r++) {
        float *row = d.weight + (size_t)r * (size_t)channels;
        double sum = d.bias[r];
        for (int c = 0; c < channels; c++) sum += (double)row[c] * (double)d.mean[c], row[c] *= d.std[c];
        d.bias[r] = (float)sum;
    }
    if (status == MAR_OK) status = detok_layer_create(l, &d, s->width, channels, layer);
    detok_layer_free(&d);
    return status;
}

/* Loads (latent_head - mean) / std, without the logarithms of variances, which are its last rows. */
static mar_status detok_load_head(const vae_loader *l, const vae_vit_shape *s, kern_linear **layer)
{
    detok_layer d = {0};
    mar_status status = detok_layer_load(l, "encoder.latent_head", 2 * s->channels, s->width, s->channels, &d);
    for (int c = 0; status == MAR_OK && c < s->channels; c++) {
        for (int i = 0; i < s->width; i++) d.weight[(size_t)c * (size_t)s->width + (size_t)i] /= d.std[c];
        d.bias[c] = (d.bias[c] - d.mean[c]) / d.std[c];
    }
    if (status == MAR_OK) status = detok_layer_create(l, &d, s->channels, s->width, layer);
    detok_layer_free(&d);
    return status;
}

/* --- SphereAR's encoder ------------------------------------------------------------------------------------------- */

/* Loads quant_proj(output), two matrices without anything between them, as one. The concentration, quant_proj's last
 * row, is not needed: a token is the mean's direction. */
static mar_status sphere_load_quant(const vae_loader *l, const vae_vit_shape *s, kern_linear **layer)
{
    const size_t width = (size_t)s->width, channels = (size_t)s->channels;
    const int64_t rows = s->channels + 1;
    char name[VAE_NAME_SIZE];
    float *first = NULL, *last = NULL, *bias = NULL, *both = calloc(channels * width, sizeof *both);
    vae_name(name, s->side, ".output");
    mar_status status = both ? MAR_OK : err_set(l->err, MAR_ENOMEM, "out of memory");
    if (status == MAR_OK) status = vae_load(l, name, "weight", 2, (int64_t[]){s->width, s->width}, &first);
    vae_name(name, s->prefix, "quant_proj");
    if (status == MAR_OK) status = vae_load(l, name, "weight", 2, (int64_t[]){rows, s->width}, &last);
    if (status == MAR_OK) status = vae_load(l, name, "bias", 1, &rows, &bias);
    for (size_t c = 0; status == MAR_OK && c < channels; c++)
        for (size_t i = 0; i < width; i++) {
            double sum = 0;
            for (size_t j = 0; j < width; j++) sum += (double)last[c * width + j] * (double)first[j * width + i];
            both[c * width + i] = (float)sum;
        }
    const kern_linear_spec spec = {
        .out = s->channels, .in = s->width, .weight = both, .bias = bias, .flags = KERN_IN_F32 | KERN_OUT_F32};
    if (status == MAR_OK) status = l->k->core->linear_create(l->k, &spec, layer, l->err);
    free(first), free(last), free(bias), free(both);
    return status;
}

static mar_status sphere_load_steps(const vae_loader *l, const vae_vit_shape *s, vae_network *net)
{
    char name[VAE_NAME_SIZE];
    mar_status status = vit_begin_network(l, s, net);
    int channels = net->width_in = s->in;
    net->in = 3;
    for (int i = 0; status == MAR_OK && i < s->blocks; channels = s->out[i++]) {
        vae_name(name, net->side, ".patchify.0.net.%d", i);
        status = vae_add_halving(l, net, name, channels, s->out[i]);
    }
    if (status == MAR_OK) vit_add_transformer(s, net);
    return status == MAR_OK ? vae_load_ends(l, net, &vae_end_names_vit_encoder, 0) : status;
}

/* --- both sides --------------------------------------------------------------------------------------------------- */

static vae_vit *vit_new(const vae_loader *l)
{
    vae_vit *v = calloc(1, sizeof *v);
    if (!v) err_set(l->err, MAR_ENOMEM, "out of memory");
    return v;
}

mar_status vae_vit_load(const vae_loader *l, vae_decoder *d)
{
    char name[VAE_NAME_SIZE];
    vae_vit *v = d->vit = vit_new(l);
    if (!v) return MAR_ENOMEM;
    vae_vit_shape *s = &v->shape;
    mar_status status = vae_vit_derive(l->f, s, l->err);
    if (status != MAR_OK) return status;
    vae_loader own = *l;
    own.no_bias = !s->names->bias;
    d->config = (mar_vae_config){.size = sizeof d->config};
    vae_vit_config(l->f, s, &d->config);
    d->latent = s->width;
    vae_name(name, s->prefix, "post_quant_proj");
    if (s->patch)
        status = detok_load_embed(l, s, &d->post_quant);
    else
        status = load_matrix(l, name, 0, s->width, s->channels, KERN_IN_F32 | KERN_OUT_F32, &d->post_quant);
    if (status == MAR_OK) status = load_transformer(l, v);
    return status == MAR_OK ? vit_load_network(&own, s, &d->network) : status;
}

static mar_status detok_load_steps(const vae_loader *l, const vae_vit_shape *s, vae_network *net)
{
    mar_status status = vit_begin_network(l, s, net);
    net->in = net->width_in = 3;
    if (status == MAR_OK) status = vae_add_patchify(l, net, "encoder.patch_embed.0", s->patch, s->width);
    if (status == MAR_OK) vit_add_transformer(s, net);
    return status;
}

/* Returns the rows and columns of pixels of a token. */
static int vit_stride(const vae_vit_shape *s)
{
    return s->patch ? s->patch : 1 << s->blocks;
}

mar_status vae_vit_load_encoder(const vae_loader *l, const vae_decoder *d, vae_encoder *e)
{
    const vae_vit_shape *other = &d->vit->shape;
    const int is_sphere = !other->patch;
    vae_vit *v = e->vit = vit_new(l);
    if (!v) return MAR_ENOMEM;
    vae_vit_shape *s = &v->shape;
    vae_loader own = *l;
    own.no_bias = is_sphere;
    mar_status status =
        is_sphere ? vae_sphere_derive_encoder(l->f, s, l->err) : vae_detok_derive(l->f, "encoder", s, l->err);
    const int stride = vit_stride(s), others = vit_stride(other);
    if (status == MAR_OK && (s->grid != other->grid || stride != others || s->channels != other->channels))
        status = err_set(l->err, MAR_EMODEL,
                         "%s: the encoder makes %dx%d tokens of %d channels of %dx%d pixels each, expected the "
                         "decoder's %dx%d of %d of %dx%d",
                         wt_path(l->f), s->grid, s->grid, s->channels, stride, stride, other->grid, other->grid,
                         other->channels, others, others);
    if (status == MAR_OK) status = is_sphere ? sphere_load_quant(l, s, &e->quant) : detok_load_head(l, s, &e->quant);
    if (status == MAR_OK) status = load_transformer(l, v);
    if (status != MAR_OK) return status;
    return is_sphere ? sphere_load_steps(&own, s, &e->network) : detok_load_steps(l, s, &e->network);
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
    float *arrays[] = {v->registers, v->positions, v->before, v->after, v->rope};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) device->core->free(device, arrays[i]);
    free(v->layers);
    free(v);
}
