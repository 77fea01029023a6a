/* Layers of either side, by official names and exact shapes. */
#include "vae/steps.h"
#include "weights/rows.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void vae_name(char *name, const char *prefix, const char *format, ...)
{
    va_list args;
    int n = snprintf(name, VAE_NAME_SIZE, "%s", prefix);
    va_start(args, format);
    if (n >= 0 && n < VAE_NAME_SIZE) vsnprintf(name + n, (size_t)(VAE_NAME_SIZE - n), format, args);
    va_end(args);
}

mar_status vae_load(const vae_loader *l, const char *prefix, const char *suffix, int rank, const int64_t *shape,
                    float **out)
{
    char name[VAE_NAME_SIZE];
    vae_name(name, prefix, ".%s", suffix);
    return wt_load_f32(l->f, name, rank, shape, out, l->err);
}

mar_status vae_load_vector(const vae_loader *l, const char *prefix, const char *suffix, int n, float **out)
{
    char name[VAE_NAME_SIZE];
    vae_name(name, prefix, ".%s", suffix);
    return wt_load_array(l->k, l->f, name, 1, (int64_t[]){n}, out, l->err);
}

/* Loads a spatial norm, y = (w x + b) * conv_y(z) + conv_b(z) with x normalised and z a codebook row: y = scale(z) x +
 * shift(z), where scale = w conv_y(z) and shift = b conv_y(z) + conv_b(z) are linear in z. */
static mar_status load_spatial_norm(const vae_loader *l, const char *prefix, int channels, vae_norm *out)
{
    static const char *const layers[] = {".norm_layer", ".conv_y", ".conv_b"};
    float *weight[3] = {NULL}, *bias[3] = {NULL};
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && i < 3; i++) {
        char name[VAE_NAME_SIZE];
        vae_name(name, prefix, "%s", layers[i]);
        status = vae_load(l, name, "weight", i ? 4 : 1, (int64_t[]){channels, l->spatial, 1, 1}, &weight[i]);
        if (status == MAR_OK) status = vae_load(l, name, "bias", 1, (int64_t[]){channels}, &bias[i]);
    }
    const size_t z = (size_t)l->spatial, n = (size_t)channels;
    float *rows = status == MAR_OK ? malloc(sizeof *rows * 2 * n * (z + 1)) : NULL,
          *shifts = rows ? rows + 2 * n * z : NULL;
    if (status == MAR_OK && !rows) status = err_set(l->err, MAR_ENOMEM, "out of memory");
    for (size_t c = 0; rows && c < n; c++) {
        const float w = weight[0][c], b = bias[0][c];
        for (size_t i = c * z; i < (c + 1) * z; i++) {
            rows[i] = w * weight[1][i];
            rows[n * z + i] = b * weight[1][i] + weight[2][i];
        }
        shifts[c] = w * bias[1][c];
        shifts[n + c] = b * bias[1][c] + bias[2][c];
    }
    const kern_linear_spec spec = {
        .out = 2 * channels, .in = l->spatial, .weight = rows, .bias = shifts, .flags = KERN_IN_F32 | KERN_OUT_F32};
    if (status == MAR_OK) status = l->k->core->linear_create(l->k, &spec, &out->cells, l->err);
    free(rows);
    for (int i = 0; i < 3; i++) free(weight[i]), free(bias[i]);
    return status;
}

static mar_status layers_load_norm(const vae_loader *l, const char *prefix, int channels, int groups, vae_norm *out)
{
    out->groups = groups;
    if (l->spatial) return load_spatial_norm(l, prefix, channels, out);
    mar_status status = vae_load_vector(l, prefix, "weight", channels, &out->weight);
    return status == MAR_OK ? vae_load_vector(l, prefix, "bias", channels, &out->bias) : status;
}

/* Loads the convolution `spec`, whose weights are not set. */
static mar_status layers_load_conv(const vae_loader *l, const char *prefix, kern_conv_spec spec, kern_conv **conv)
{
    const int transposed = (spec.flags & KERN_TRANSPOSED) != 0;
    const int64_t shape[4] = {transposed ? spec.in : spec.out, transposed ? spec.out : spec.in, spec.kernel_h,
                              spec.kernel_w};
    float *weight = NULL, *bias = NULL;
    mar_status status = vae_load(l, prefix, "weight", 4, shape, &weight);
    if (status == MAR_OK && !l->no_bias) status = vae_load(l, prefix, "bias", 1, (int64_t[]){spec.out}, &bias);
    spec.weight = weight;
    spec.bias = bias;
    if (status == MAR_OK) status = l->k->conv->create(l->k, &spec, conv, l->err);
    free(weight);
    free(bias);
    return status;
}

/* Returns a convolution whose results have the size of its input. */
static kern_conv_spec same_size(int in, int out, int kernel, int flags)
{
    return (kern_conv_spec){.out = out,
                            .in = in,
                            .kernel_h = kernel,
                            .kernel_w = kernel,
                            .stride = 1,
                            .pad_h = kernel / 2,
                            .pad_w = kernel / 2,
                            .flags = flags};
}

/* Returns a convolution whose results have twice the rows and columns of its input. */
static kern_conv_spec double_size(int in, int out, int kernel)
{
    return (kern_conv_spec){.out = out,
                            .in = in,
                            .kernel_h = kernel,
                            .kernel_w = kernel,
                            .stride = 2,
                            .pad_h = kernel / 2 - 1,
                            .pad_w = kernel / 2 - 1,
                            .flags = KERN_OUT_F32 | KERN_TRANSPOSED};
}

/* Returns a convolution whose results have half the rows and columns of its input, which are even. */
static kern_conv_spec half_size(int in, int out, int kernel)
{
    return (kern_conv_spec){.out = out,
                            .in = in,
                            .kernel_h = kernel,
                            .kernel_w = kernel,
                            .stride = 2,
                            .pad_h = (kernel - 1) / 2,
                            .pad_w = (kernel - 1) / 2,
                            .flags = KERN_OUT_F32};
}

mar_status vae_scaling_create(const vae_loader *l, int out, int in, float factor, float shift, kern_linear **linear)
{
    float *weight = calloc((size_t)out * (size_t)in, sizeof *weight), *bias = malloc(sizeof *bias * (size_t)out);
    mar_status status = weight && bias ? MAR_OK : err_set(l->err, MAR_ENOMEM, "out of memory");
    for (int i = 0; status == MAR_OK && i < out; i++) {
        weight[(size_t)i * (size_t)in + (size_t)i] = factor;
        bias[i] = shift;
    }
    const kern_linear_spec spec = {
        .out = out, .in = in, .weight = weight, .bias = bias, .flags = KERN_IN_F32 | KERN_OUT_F32};
    if (status == MAR_OK) status = l->k->core->linear_create(l->k, &spec, linear, l->err);
    free(weight), free(bias);
    return status;
}

mar_status vae_load_linear(const vae_loader *l, const char *prefix, const char *const *names, int n, int channels,
                           float input_scale, int flags, kern_linear **out)
{
    const size_t size = (size_t)channels * (size_t)channels;
    float *weight = malloc(sizeof *weight * size * (size_t)n);
    float *bias = malloc(sizeof *bias * (size_t)channels * (size_t)n);
    mar_status status = weight && bias ? MAR_OK : err_set(l->err, MAR_ENOMEM, "out of memory");
    for (int i = 0; status == MAR_OK && i < n; i++) {
        char name[VAE_NAME_SIZE];
        float *w = NULL, *b = NULL;
        vae_name(name, prefix, "%s", names[i]);
        status = vae_load(l, name, "weight", 4, (int64_t[]){channels, channels, 1, 1}, &w);
        if (status == MAR_OK) status = vae_load(l, name, "bias", 1, (int64_t[]){channels}, &b);
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

mar_status vae_network_begin(const vae_loader *l, vae_network *net, const char *side, int most)
{
    net->side = side;
    net->steps = calloc((size_t)most, sizeof *net->steps);
    return net->steps ? MAR_OK : err_set(l->err, MAR_ENOMEM, "out of memory");
}

static vae_step *new_step(vae_network *net, vae_step_kind kind, const char *prefix, int in, int out)
{
    vae_step *s = &net->steps[net->n_steps++];
    *s = (vae_step){.kind = kind, .in = in, .out = out};
    snprintf(s->name, sizeof s->name, "%s", prefix);
    return s;
}

/* Loads the norms and convolutions of a residual block with these groups. conv: the first convolution. shortcut:
 * without outputs if there is none. */
static mar_status load_residual(const vae_loader *l, vae_step *s, const vae_residual_names *names, const int groups[2],
                                kern_conv_spec conv, kern_conv_spec shortcut)
{
    const kern_conv_spec added = same_size(s->out, s->out, 3, KERN_OUT_F32 | KERN_OUT_ADD);
    char name[VAE_NAME_SIZE];
    s->names = names;
    vae_name(name, s->name, "%s", names->norm[0]);
    mar_status status = layers_load_norm(l, name, s->in, groups[0], &s->norm[0]);
    vae_name(name, s->name, "%s", names->conv[0]);
    if (status == MAR_OK) status = layers_load_conv(l, name, conv, &s->conv[0]);
    vae_name(name, s->name, "%s", names->norm[1]);
    if (status == MAR_OK) status = layers_load_norm(l, name, s->out, groups[1], &s->norm[1]);
    vae_name(name, s->name, "%s", names->conv[1]);
    if (status == MAR_OK) status = layers_load_conv(l, name, added, &s->conv[1]);
    if (status != MAR_OK || !shortcut.out) return status;
    vae_name(name, s->name, "%s", names->shortcut);
    return layers_load_conv(l, name, shortcut, &s->shortcut);
}

mar_status vae_add_residual(const vae_loader *l, vae_network *net, const char *prefix, int in, int out)
{
    const int groups[2] = {VAE_GROUPS, VAE_GROUPS};
    vae_step *s = new_step(net, VAE_RESIDUAL, prefix, in, out);
    return load_residual(l, s, &vae_residual_names_ldm, groups, same_size(in, out, 3, KERN_OUT_F32),
                         in == out ? (kern_conv_spec){0} : same_size(in, out, 1, KERN_OUT_F32));
}

mar_status vae_add_vit_residual(const vae_loader *l, vae_network *net, const char *prefix, int channels)
{
    const int groups[2] = {vae_vit_groups(channels), vae_vit_groups(channels)};
    vae_step *s = new_step(net, VAE_RESIDUAL, prefix, channels, channels);
    return load_residual(l, s, &vae_residual_names_vit, groups, same_size(channels, channels, 3, KERN_OUT_F32),
                         (kern_conv_spec){0});
}

mar_status vae_add_doubling(const vae_loader *l, vae_network *net, const char *prefix, int in, int out)
{
    const int groups[2] = {vae_vit_groups(in), vae_vit_groups(out)};
    vae_step *s = new_step(net, VAE_DOUBLING, prefix, in, out);
    return load_residual(l, s, &vae_residual_names_up, groups, double_size(in, out, 4), double_size(in, out, 2));
}

mar_status vae_add_halving(const vae_loader *l, vae_network *net, const char *prefix, int in, int out)
{
    const int groups[2] = {vae_vit_groups(in), vae_vit_groups(out)};
    vae_step *s = new_step(net, VAE_HALVING, prefix, in, out);
    return load_residual(l, s, &vae_residual_names_up, groups, half_size(in, out, 3), half_size(in, out, 2));
}

void vae_add_transformer(vae_network *net, const char *prefix, int width)
{
    new_step(net, VAE_TRANSFORMER, prefix, width, width);
}

/* Brings the numbers of n patches from the order [channel][row][column] to [row][column][channel]. */
static mar_status layers_order_patches(const vae_loader *l, const float *from, size_t n, int patch, float **out)
{
    const size_t pixels = (size_t)patch * (size_t)patch;
    float *to = *out = malloc(sizeof *to * n * 3 * pixels);
    if (!to) return err_set(l->err, MAR_ENOMEM, "out of memory");
    for (size_t i = 0; i < n; i++, from += 3 * pixels)
        for (size_t at = 0; at < pixels; at++)
            for (size_t c = 0; c < 3; c++) *to++ = from[c * pixels + at];
    return MAR_OK;
}

mar_status vae_add_patchify(const vae_loader *l, vae_network *net, const char *prefix, int patch, int width)
{
    vae_step *s = new_step(net, VAE_PATCHIFY, prefix, 3, width);
    float *weight = NULL, *bias = NULL, *ordered = NULL;
    s->patch = patch;
    mar_status status = vae_load(l, prefix, "weight", 4, (int64_t[]){width, 3, patch, patch}, &weight);
    if (status == MAR_OK) status = vae_load(l, prefix, "bias", 1, (int64_t[]){width}, &bias);
    if (status == MAR_OK) status = layers_order_patches(l, weight, (size_t)width, patch, &ordered);
    const kern_linear_spec spec = {
        .out = width, .in = 3 * patch * patch, .weight = ordered, .bias = bias, .flags = KERN_IN_F32 | KERN_OUT_F32};
    if (status == MAR_OK) status = l->k->core->linear_create(l->k, &spec, &s->proj, l->err);
    free(weight), free(bias), free(ordered);
    return status;
}

mar_status vae_add_unpatchify(const vae_loader *l, vae_network *net, const char *prefix, int patch, int width)
{
    vae_step *s = new_step(net, VAE_UNPATCHIFY, prefix, width, 3);
    const int out = 3 * patch * patch;
    float *weight = NULL, *bias = NULL;
    s->patch = patch;
    mar_status status = vae_load(l, prefix, "weight", 4, (int64_t[]){out, width, 1, 1}, &weight);
    if (status == MAR_OK) status = vae_load(l, prefix, "bias", 1, (int64_t[]){out}, &bias);
    const kern_linear_spec spec = {.out = out, .in = width, .weight = weight, .bias = bias, .flags = KERN_OUT_F32};
    if (status == MAR_OK) status = l->k->core->linear_create(l->k, &spec, &s->proj, l->err);
    free(weight), free(bias);
    return status;
}

mar_status vae_add_attention(const vae_loader *l, vae_network *net, const char *prefix, int channels)
{
    static const char *const qkv[] = {".q", ".k", ".v"}, *const proj[] = {".proj_out"};
    vae_step *s = new_step(net, VAE_ATTENTION, prefix, channels, channels);
    char name[VAE_NAME_SIZE];
    vae_name(name, prefix, ".norm");
    mar_status status = layers_load_norm(l, name, channels, VAE_GROUPS, &s->norm[0]);
    if (status == MAR_OK) status = vae_load_linear(l, prefix, qkv, 3, channels, 1, 0, &s->qkv);
    if (status == MAR_OK)
        status = vae_load_linear(l, prefix, proj, 1, channels, 1, KERN_OUT_F32 | KERN_OUT_ADD, &s->proj);
    return status;
}

mar_status vae_add_upsample(const vae_loader *l, vae_network *net, const char *prefix, int channels)
{
    vae_step *s = new_step(net, VAE_UPSAMPLE, prefix, channels, channels);
    char name[VAE_NAME_SIZE];
    vae_name(name, prefix, ".upsample.conv");
    return layers_load_conv(l, name, same_size(channels, channels, 3, KERN_OUT_F32 | KERN_UPSAMPLE), &s->conv[0]);
}

/* The official padding: zeros below and on the right only. */
mar_status vae_add_downsample(const vae_loader *l, vae_network *net, const char *prefix, int channels)
{
    const kern_conv_spec spec = {.out = channels,
                                 .in = channels,
                                 .kernel_h = 3,
                                 .kernel_w = 3,
                                 .stride = 2,
                                 .pad_end = 1,
                                 .flags = KERN_OUT_F32};
    vae_step *s = new_step(net, VAE_DOWNSAMPLE, prefix, channels, channels);
    char name[VAE_NAME_SIZE];
    vae_name(name, prefix, ".downsample.conv");
    return layers_load_conv(l, name, spec, &s->conv[0]);
}

mar_status vae_add_middle(const vae_loader *l, vae_network *net, const vae_names *names, int channels)
{
    char name[3][VAE_NAME_SIZE];
    for (int i = 0; i < 3; i++) vae_name(name[i], net->side, ".%s", names->middle[i]);
    mar_status status = vae_add_residual(l, net, name[0], channels, channels);
    if (status == MAR_OK) status = vae_add_attention(l, net, name[1], channels);
    return status == MAR_OK ? vae_add_residual(l, net, name[2], channels, channels) : status;
}

mar_status vae_load_ends(const vae_loader *l, vae_network *net, const vae_end_names *names, int groups)
{
    char name[VAE_NAME_SIZE];
    net->ends = names;
    mar_status status = MAR_OK;
    if (names->conv_in) {
        vae_name(name, net->side, "%s", names->conv_in);
        status = layers_load_conv(l, name, same_size(net->in, net->width_in, 3, KERN_OUT_F32), &net->conv_in);
    }
    if (status == MAR_OK && names->norm_out) {
        vae_name(name, net->side, "%s", names->norm_out);
        status = layers_load_norm(l, name, net->width_out, groups, &net->norm_out);
    }
    if (status != MAR_OK || !names->conv_out) return status;
    vae_name(name, net->side, "%s", names->conv_out);
    return layers_load_conv(l, name, same_size(net->width_out, net->out, 3, KERN_OUT_F32), &net->conv_out);
}

static void free_norm(kern_device *device, vae_norm *n)
{
    device->core->free(device, n->weight);
    device->core->free(device, n->bias);
    device->core->linear_free(device, n->cells);
}

void vae_network_free(kern_device *device, vae_network *net)
{
    for (int i = 0; i < net->n_steps; i++) {
        vae_step *s = &net->steps[i];
        for (int j = 0; j < 2; j++) {
            free_norm(device, &s->norm[j]);
            device->conv->free(device, s->conv[j]);
        }
        device->conv->free(device, s->shortcut);
        device->core->linear_free(device, s->qkv);
        device->core->linear_free(device, s->proj);
    }
    free(net->steps);
    device->conv->free(device, net->conv_in);
    device->conv->free(device, net->conv_out);
    free_norm(device, &net->norm_out);
}
