/* The shape of a KL autoencoder. mar_vae_config does not have the width of each level; it is read from the file, from
 * the shape of decoder.up.<level>.block.0.conv2. */
#include "vae/vae.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NORM_GROUPS = 32, WIDTH_MAX = 1 << 16, LEVELS_MAX = 8, BLOCKS_MAX = 16 };

/* --- reading the shape from tensors ---------------------------------------------------------------- */

/* A convolution's weight [out][in][k][k] with sensible channels. */
static mar_status find_conv(const wt_file *f, const char *name, const wt_tensor **out, mar_err *err)
{
    char text[128];
    const wt_tensor *t = *out = wt_find(f, name);
    if (!t) return err_set(err, MAR_EMODEL, "%s: tensor %s is missing", wt_path(f), name);
    if (t->rank != 4 || t->shape[0] < 1 || t->shape[0] > WIDTH_MAX || t->shape[1] < 1 || t->shape[1] > WIDTH_MAX)
        return err_set(err, MAR_EMODEL, "%s: tensor %s has shape %s, expected a convolution [out, in, k, k]",
                       wt_path(f), name, wt_shape_text(t, text, sizeof text));
    return MAR_OK;
}

/* Output channels of a level's residual blocks. */
static mar_status level_width(const wt_file *f, int level, int *out, mar_err *err)
{
    char name[64];
    const wt_tensor *t;
    snprintf(name, sizeof name, "decoder.up.%d.block.0.conv2.weight", level);
    mar_status status = find_conv(f, name, &t, err);
    if (status != MAR_OK) return status;
    *out = (int)t->shape[0];
    if (*out % NORM_GROUPS != 0)
        return err_set(err, MAR_EMODEL, "%s: tensor %s has %d channels, expected a multiple of %d", wt_path(f), name,
                       *out, NORM_GROUPS);
    return MAR_OK;
}

/* One more than the largest N of the tensors "<prefix>N.", at most `limit`. */
static int count_parts(const wt_file *f, const char *prefix, int limit)
{
    const size_t length = strlen(prefix);
    long count = 0;
    for (int i = 0; i < wt_count(f); i++) {
        const char *name = wt_at(f, i)->name;
        if (strncmp(name, prefix, length) != 0 || name[length] < '0' || name[length] > '9') continue;
        char *end;
        long n = strtol(name + length, &end, 10);
        if (*end == '.' && n >= count && n < limit) count = n + 1;
    }
    return (int)count;
}

/* LDM can have attention in the decoder's upper levels, too. MAR's autoencoder has none there, and vae_decode does not
 * support it. */
static mar_status refuse_upper_attention(const wt_file *f, mar_err *err)
{
    for (int i = 0; i < wt_count(f); i++) {
        const char *name = wt_at(f, i)->name;
        if (strncmp(name, "decoder.up.", 11) == 0 && strstr(name, ".attn."))
            return err_set(err, MAR_EMODEL, "%s: tensor %s: attention in the decoder's upper levels is not supported",
                           wt_path(f), name);
    }
    return MAR_OK;
}

static mar_status derive_levels(const wt_file *f, mar_vae_config *c, mar_err *err)
{
    int width;
    c->levels = count_parts(f, "decoder.up.", LEVELS_MAX);
    c->res_blocks = count_parts(f, "decoder.up.0.block.", BLOCKS_MAX) - 1;
    if (c->levels == 0)
        return err_set(err, MAR_EMODEL, "%s: tensor decoder.up.0.block.0.conv2.weight is missing", wt_path(f));
    for (int i = 0; i < c->levels; i++) {
        mar_status status = level_width(f, i, &width, err);
        if (status != MAR_OK) return status;
    }
    if (c->res_blocks < 1)
        return err_set(err, MAR_EMODEL, "%s: tensor decoder.up.0.block.1.norm1.weight is missing", wt_path(f));
    c->stride = 1 << (c->levels - 1);
    return MAR_OK;
}

static void add_count(void *user, const char *name, int rank, const int64_t *shape)
{
    (void)name;
    long count = 1;
    for (int i = 0; i < rank; i++) count *= (long)shape[i];
    *(long *)user += count;
}

mar_status vae_config_derive(const wt_file *f, mar_vae_config *config, mar_err *err)
{
    const wt_tensor *post_quant, *conv_in;
    *config = (mar_vae_config){0};
    mar_status status = find_conv(f, "post_quant_conv.weight", &post_quant, err);
    if (status == MAR_OK) status = refuse_upper_attention(f, err);
    if (status == MAR_OK) status = derive_levels(f, config, err);
    if (status != MAR_OK) return status;
    config->z_channels = (int)post_quant->shape[0];
    if (wt_find(f, "encoder.conv_in.weight")) {
        status = find_conv(f, "encoder.conv_in.weight", &conv_in, err);
        if (status == MAR_OK) config->channels = (int)conv_in->shape[0];
    } else {
        status = level_width(f, 0, &config->channels, err); /* the decoder alone: the first multiplier is 1 */
    }
    if (status == MAR_OK) vae_config_tensors(f, config, add_count, &config->parameters);
    return status;
}

int vae_config_recognise(const wt_file *f)
{
    return wt_find(f, "post_quant_conv.weight") != NULL || wt_find(f, "decoder.conv_in.weight") != NULL;
}

/* --- the tensors of a shape -------------------------------------------------------------------------- */

typedef struct {
    vae_tensor_visitor *visit;
    void *user;
    int width[LEVELS_MAX]; /* channels of each level, finest first */
    int levels, res_blocks;
} visitor;

/* .weight [out][in][k][k] and .bias [out] */
static void visit_conv(const visitor *v, const char *prefix, const char *layer, int out, int in, int kernel)
{
    char name[128];
    const int64_t shape[4] = {out, in, kernel, kernel};
    snprintf(name, sizeof name, "%s%s.weight", prefix, layer);
    v->visit(v->user, name, 4, shape);
    snprintf(name, sizeof name, "%s%s.bias", prefix, layer);
    v->visit(v->user, name, 1, shape);
}

static void visit_norm(const visitor *v, const char *prefix, const char *layer, int width)
{
    char name[128];
    const int64_t shape[1] = {width};
    snprintf(name, sizeof name, "%s%s.weight", prefix, layer);
    v->visit(v->user, name, 1, shape);
    snprintf(name, sizeof name, "%s%s.bias", prefix, layer);
    v->visit(v->user, name, 1, shape);
}

static void visit_res_block(const visitor *v, const char *prefix, int in, int out)
{
    visit_norm(v, prefix, "norm1", in);
    visit_conv(v, prefix, "conv1", out, in, 3);
    visit_norm(v, prefix, "norm2", out);
    visit_conv(v, prefix, "conv2", out, out, 3);
    if (in != out) visit_conv(v, prefix, "nin_shortcut", out, in, 1);
}

static void visit_attention(const visitor *v, const char *prefix, int width)
{
    visit_norm(v, prefix, "norm", width);
    visit_conv(v, prefix, "q", width, width, 1);
    visit_conv(v, prefix, "k", width, width, 1);
    visit_conv(v, prefix, "v", width, width, 1);
    visit_conv(v, prefix, "proj_out", width, width, 1);
}

static void visit_middle(const visitor *v, const char *side, int width)
{
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%s.mid.block_1.", side);
    visit_res_block(v, prefix, width, width);
    snprintf(prefix, sizeof prefix, "%s.mid.attn_1.", side);
    visit_attention(v, prefix, width);
    snprintf(prefix, sizeof prefix, "%s.mid.block_2.", side);
    visit_res_block(v, prefix, width, width);
}

/* Whether an encoder level has attention blocks: one a residual block, or none. That depends on the image size in
 * training, so it is read from the file. */
static int level_has_attention(const wt_file *f, int level)
{
    char prefix[64];
    snprintf(prefix, sizeof prefix, "encoder.down.%d.attn.", level);
    return count_parts(f, prefix, BLOCKS_MAX) > 0;
}

static void visit_encoder(const visitor *v, const wt_file *f, const mar_vae_config *c)
{
    const int last = v->levels - 1;
    int width = c->channels;
    char prefix[64];
    visit_conv(v, "encoder.", "conv_in", c->channels, 3, 3);
    for (int level = 0; level < v->levels; level++) {
        for (int i = 0; i < v->res_blocks; i++, width = v->width[level]) {
            snprintf(prefix, sizeof prefix, "encoder.down.%d.block.%d.", level, i);
            visit_res_block(v, prefix, width, v->width[level]);
        }
        for (int i = 0; i < v->res_blocks && level_has_attention(f, level); i++) {
            snprintf(prefix, sizeof prefix, "encoder.down.%d.attn.%d.", level, i);
            visit_attention(v, prefix, width);
        }
        snprintf(prefix, sizeof prefix, "encoder.down.%d.downsample.", level);
        if (level != last) visit_conv(v, prefix, "conv", width, width, 3);
    }
    visit_middle(v, "encoder", width);
    visit_norm(v, "encoder.", "norm_out", width);
    visit_conv(v, "encoder.", "conv_out", 2 * c->z_channels, width, 3); /* mean and log variance */
}

/* The decoder runs from the last level to the first, but its tensors are listed from the first. */
static void visit_decoder(const visitor *v, const mar_vae_config *c)
{
    const int last = v->levels - 1;
    char prefix[64];
    visit_conv(v, "decoder.", "conv_in", v->width[last], c->z_channels, 3);
    visit_middle(v, "decoder", v->width[last]);
    for (int level = 0; level < v->levels; level++) {
        int width = level == last ? v->width[last] : v->width[level + 1];
        for (int i = 0; i <= v->res_blocks; i++, width = v->width[level]) {
            snprintf(prefix, sizeof prefix, "decoder.up.%d.block.%d.", level, i);
            visit_res_block(v, prefix, width, v->width[level]);
        }
        snprintf(prefix, sizeof prefix, "decoder.up.%d.upsample.", level);
        if (level != 0) visit_conv(v, prefix, "conv", width, width, 3);
    }
    visit_norm(v, "decoder.", "norm_out", v->width[0]);
    visit_conv(v, "decoder.", "conv_out", 3, v->width[0], 3);
}

void vae_config_tensors(const wt_file *f, const mar_vae_config *config, vae_tensor_visitor *visit, void *user)
{
    visitor v = {.visit = visit, .user = user, .levels = config->levels, .res_blocks = config->res_blocks};
    for (int i = 0; i < v.levels; i++)
        if (level_width(f, i, &v.width[i], NULL) != MAR_OK) return; /* config is not this file's */
    visit_encoder(&v, f, config);
    visit_decoder(&v, config);
    visit_conv(&v, "", "quant_conv", 2 * config->z_channels, 2 * config->z_channels, 1);
    visit_conv(&v, "", "post_quant_conv", config->z_channels, config->z_channels, 1);
}
