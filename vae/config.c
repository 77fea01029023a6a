/* Shape of a KL or VQ autoencoder; vit_config.c has that of SphereAR's, detok_config.c that of l-DeTok's. Two numbers
 * are not in mar_vae_config but read from the file. The width of each level is that of its second convolution. The
 * width of a VQ latent is that of post_quant_conv. */
#include "vae/steps.h"
#include "weights/shape.h"

#include <stdio.h>
#include <string.h>

enum { WIDTH_MAX = 1 << 16, LEVELS_MAX = 8, BLOCKS_MAX = 16, CODEBOOK_MAX = 1 << 20 };
enum { TABLE_MAX = 1 << 28 }; /* numbers of all tokens' latents (official: 2^22) */

static const char embedding_name[] = "quantize.embedding.weight";

/* LDM's names, which others share. */
#define LDM_NAMES                                                                                                      \
    .encoder_level = "encoder.down.", .decoder_level = "decoder.up.", .block = ".block.",                              \
    .middle = {"mid.block_1", "mid.attn_1", "mid.block_2"}

static const vae_names family_kl = {LDM_NAMES, .post_quant = "post_quant_conv", .bytes = KERN_BYTES_NEAREST,
                                    .made_for = "MAR"},
                       family_flux = {LDM_NAMES, .bytes = KERN_BYTES_NEAREST, .made_for = "NextStep-1"},
                       family_llamagen = {.encoder_level = "encoder.conv_blocks.",
                                          .decoder_level = "decoder.conv_blocks.",
                                          .coarsest_first = 1,
                                          .block = ".res.",
                                          .middle = {"mid.0", "mid.1", "mid.2"},
                                          .attends_at_coarsest = 1,
                                          .is_vq = 1,
                                          .normalises = 1,
                                          .post_quant = "post_quant_conv",
                                          .bytes = KERN_BYTES_DOWN,
                                          .made_for = "LlamaGen"},
                       family_chameleon = {LDM_NAMES, .is_vq = 1, .post_quant = "post_quant_conv",
                                           .bytes = KERN_BYTES_CUT, .made_for = "Chameleon"},
                       family_emu3 = {LDM_NAMES,
                                      .attends_at_coarsest = 1,
                                      .is_vq = 1,
                                      .temporal = 1,
                                      .post_quant = "post_quant_conv.conv",
                                      .bytes = KERN_BYTES_CUT,
                                      .made_for = "Emu3"};

const vae_residual_names vae_residual_names_ldm = {{".norm1", ".norm2"}, {".conv1", ".conv2"}, ".nin_shortcut"};
const vae_end_names vae_end_names_ldm = {".conv_in", ".norm_out", ".conv_out"};

void vae_name_level(const vae_names *names, int levels, int level, char *name)
{
    snprintf(name, VAE_NAME_SIZE, "%s%d", names->decoder_level, names->coarsest_first ? levels - 1 - level : level);
}

/* --- reading the shape from tensors ---------------------------------------------------------------- */

/* Finds a convolution's weight [out][in][k][k]. Returns MAR_EMODEL if it is missing or has invalid channels. */
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

/* Returns 1 if a tensor's name begins with `prefix`. */
static int has_part(const wt_file *f, const char *prefix)
{
    for (int i = 0; i < wt_count(f); i++)
        if (strncmp(wt_at(f, i)->name, prefix, strlen(prefix)) == 0) return 1;
    return 0;
}

/* Decides by the codebook and the names of the decoder's levels. */
const vae_names *vae_names_of(const wt_file *f)
{
    const int has_codebook = wt_find(f, embedding_name) != NULL, ldm = has_part(f, family_kl.decoder_level);
    if (has_part(f, "decoder.time_")) return &family_emu3;
    if (!ldm && (has_codebook || has_part(f, family_llamagen.decoder_level))) return &family_llamagen;
    return has_codebook ? &family_chameleon : vae_flux_recognise(f, "") ? &family_flux : &family_kl;
}

mar_status vae_config_rename(wt_file *f, mar_err *err)
{
    static const wt_naming names[] = {{"decoder.middle_block.", "decoder.mid.", 0},
                                      {"decoder.up_block.up.", "decoder.up.", 0},
                                      {"decoder.mid.attn_norm.", "decoder.mid.attn_1.norm.", 0},
                                      {".attn_norms.#.", ".attn.#.norm.", 0},
                                      {".q_proj.", ".q.", 4},
                                      {".k_proj.", ".k.", 4},
                                      {".v_proj.", ".v.", 4},
                                      {".out_proj.", ".proj_out.", 4}};
    return has_part(f, "decoder.up_block.up.") ? wt_rename(f, names, sizeof names / sizeof *names, err) : MAR_OK;
}

int vae_config_is_vq(const wt_file *f)
{
    return vae_names_of(f)->is_vq;
}

const char *vae_config_made_for(const wt_file *f)
{
    return vae_names_of(f)->made_for;
}

mar_status vae_level_width(const wt_file *f, const vae_names *names, int levels, int level, int *out, mar_err *err)
{
    char name[VAE_NAME_SIZE];
    const wt_tensor *t;
    vae_name_level(names, levels, level, name);
    strcat(strcat(name, names->block), "0.conv2.weight");
    mar_status status = find_conv(f, name, &t, err);
    if (status != MAR_OK) return status;
    *out = (int)t->shape[0];
    if (*out % VAE_GROUPS != 0)
        return err_set(err, MAR_EMODEL, "%s: tensor %s has %d channels, expected a multiple of %d", wt_path(f), name,
                       *out, VAE_GROUPS);
    return MAR_OK;
}

/* Returns MAR_EMODEL for attention in the decoder's upper levels. LDM can have it, but MAR's and Chameleon's
 * autoencoders have none, and LlamaGen's and Emu3's only in the coarsest. vae_decode supports no other. */
static mar_status refuse_upper_attention(const wt_file *f, const vae_names *names, int levels, mar_err *err)
{
    char coarsest[VAE_NAME_SIZE];
    vae_name_level(names, levels, levels - 1, coarsest);
    strcat(coarsest, ".");
    for (int i = 0; i < wt_count(f); i++) {
        const char *name = wt_at(f, i)->name;
        if (strncmp(name, names->decoder_level, strlen(names->decoder_level)) == 0 && strstr(name, ".attn.") &&
            !(names->attends_at_coarsest && strncmp(name, coarsest, strlen(coarsest)) == 0))
            return err_set(err, MAR_EMODEL, "%s: tensor %s: attention in the decoder's upper levels is not supported",
                           wt_path(f), name);
    }
    return MAR_OK;
}

static mar_status derive_levels(const wt_file *f, const vae_names *names, mar_vae_config *c, mar_err *err)
{
    int width;
    char finest[VAE_NAME_SIZE], blocks[VAE_NAME_SIZE], upsample[VAE_NAME_SIZE];
    c->levels = wt_count_parts(f, names->decoder_level, LEVELS_MAX);
    if (c->levels == 0)
        return err_set(err, MAR_EMODEL, "%s: tensor %s0%s0.conv2.weight is missing", wt_path(f), names->decoder_level,
                       names->block);
    for (int i = 0; i < c->levels; i++) {
        mar_status status = vae_level_width(f, names, c->levels, i, &width, err);
        if (status != MAR_OK) return status;
    }
    vae_name_level(names, c->levels, 0, finest);
    strcat(strcpy(blocks, finest), names->block);
    c->res_blocks = wt_count_parts(f, blocks, BLOCKS_MAX) - 1;
    if (c->res_blocks < 1)
        return err_set(err, MAR_EMODEL, "%s: tensor %s1.norm1.weight is missing", wt_path(f), blocks);
    strcat(strcpy(upsample, finest), ".upsample.conv.weight");
    if (names->coarsest_first && wt_find(f, upsample))
        return err_set(err, MAR_EMODEL, "%s: tensor %s: the level after it is missing", wt_path(f), upsample);
    c->stride = 1 << (c->levels - 1);
    return MAR_OK;
}

/* Finds the weight between token and conv_in: of a convolution [out][in][1][1], or of Emu3's [out][in][3][1][1]. Flux's
 * is that of conv_in, whose inputs are the latent. */
static mar_status find_post_quant(const wt_file *f, const vae_names *names, const wt_tensor **out, mar_err *err)
{
    char name[VAE_NAME_SIZE], text[128];
    if (!names->post_quant) return find_conv(f, "decoder.conv_in.weight", out, err);
    snprintf(name, sizeof name, "%s.weight", names->post_quant);
    if (!names->temporal) return find_conv(f, name, out, err);
    const wt_tensor *t = *out = wt_find(f, name);
    if (!t) return err_set(err, MAR_EMODEL, "%s: tensor %s is missing", wt_path(f), name);
    if (t->rank == 5 && t->shape[0] >= 1 && t->shape[0] <= WIDTH_MAX && t->shape[1] >= 1 && t->shape[1] <= WIDTH_MAX)
        return MAR_OK;
    return err_set(err, MAR_EMODEL, "%s: tensor %s has shape %s, expected a convolution [out, in, 3, 1, 1]", wt_path(f),
                   name, wt_shape_text(t, text, sizeof text));
}

/* Returns the input channels of conv_in, from what find_post_quant has found. */
static int latent_channels(const vae_names *names, const wt_tensor *post_quant)
{
    return (int)post_quant->shape[names->post_quant ? 0 : 1];
}

/* Derives the latent: z_channels numbers, or a row of a codebook of z_channels columns. */
static mar_status derive_latent(const wt_file *f, const vae_names *names, mar_vae_config *c, mar_err *err)
{
    char text[128];
    const wt_tensor *post_quant, *t = wt_find(f, embedding_name);
    mar_status status = find_post_quant(f, names, &post_quant, err);
    if (status != MAR_OK) return status;
    c->z_channels = latent_channels(names, post_quant);
    if (!names->post_quant) return vae_flux_derive(f, c, err);
    if (!names->is_vq) {
        c->scale = VAE_TOKEN_SCALE;
        return MAR_OK;
    }
    if (!t) return err_set(err, MAR_EMODEL, "%s: tensor %s is missing", wt_path(f), embedding_name);
    if (t->rank != 2 || t->shape[0] < 1 || t->shape[0] > CODEBOOK_MAX || t->shape[1] != post_quant->shape[1])
        return err_set(err, MAR_EMODEL,
                       "%s: tensor %s has shape %s, expected a codebook of at most %d rows of %d numbers, as "
                       "%s.weight has them",
                       wt_path(f), embedding_name, wt_shape_text(t, text, sizeof text), CODEBOOK_MAX,
                       (int)post_quant->shape[1], names->post_quant);
    if (names->temporal && post_quant->shape[0] != post_quant->shape[1])
        return err_set(err, MAR_EMODEL, "%s: tensor %s.weight has shape %s, expected as many outputs as inputs",
                       wt_path(f), names->post_quant, wt_shape_text(post_quant, text, sizeof text));
    if (t->shape[0] * post_quant->shape[0] > TABLE_MAX)
        return err_set(err, MAR_EMODEL, "%s: tensor %s has %d rows, too many for a latent of %d channels", wt_path(f),
                       embedding_name, (int)t->shape[0], c->z_channels);
    c->codebook = (int)t->shape[0];
    c->z_channels = (int)t->shape[1];
    return MAR_OK;
}

mar_status vae_vit_derive(const wt_file *f, vae_vit_shape *out, mar_err *err)
{
    return vae_config_is_detok(f) ? vae_detok_derive(f, "decoder", out, err) : vae_sphere_derive(f, out, err);
}

static void vit_tensors(const wt_file *f, const vae_vit_shape *s, vae_tensor_visitor *visit, void *user)
{
    if (s->patch)
        vae_detok_tensors(f, s, visit, user);
    else
        vae_sphere_tensors(f, s, visit, user);
}

void vae_vit_config(const wt_file *f, const vae_vit_shape *s, mar_vae_config *config)
{
    config->z_channels = s->channels;
    config->stride = s->patch ? s->patch : 1 << s->blocks;
    config->channels = s->patch ? 3 : s->out[s->blocks - 1];
    config->levels = s->blocks + 1;
    config->res_blocks = s->patch ? 0 : 1;
    config->width = s->width;
    config->depth = s->depth;
    config->heads = s->heads;
    config->grid = s->grid;
    vit_tensors(f, s, wt_add_elements, &config->parameters);
}

mar_status vae_config_derive(const wt_file *f, mar_vae_config *config, mar_err *err)
{
    const wt_tensor *conv_in;
    const vae_names *names = vae_names_of(f);
    vae_vit_shape vit;
    *config = (mar_vae_config){.size = sizeof *config};
    if (vae_config_is_vit(f)) {
        const mar_status derived = vae_vit_derive(f, &vit, err);
        if (derived == MAR_OK) vae_vit_config(f, &vit, config);
        return derived;
    }
    mar_status status = derive_latent(f, names, config, err);
    if (status == MAR_OK) status = derive_levels(f, names, config, err);
    if (status == MAR_OK) status = refuse_upper_attention(f, names, config->levels, err);
    if (status != MAR_OK) return status;
    if (wt_find(f, "encoder.conv_in.weight")) {
        status = find_conv(f, "encoder.conv_in.weight", &conv_in, err);
        if (status == MAR_OK) config->channels = (int)conv_in->shape[0];
    } else {
        status = vae_level_width(f, names, config->levels, 0, &config->channels,
                                 err); /* decoder only: the first multiplier is 1 */
    }
    if (status == MAR_OK) vae_config_tensors(f, config, wt_add_elements, &config->parameters);
    return status;
}

int vae_config_recognise(const wt_file *f)
{
    return wt_find(f, "post_quant_conv.weight") != NULL || wt_find(f, "post_quant_conv.conv.weight") != NULL ||
           wt_find(f, "decoder.conv_in.weight") != NULL || wt_find(f, embedding_name) != NULL || vae_config_is_vit(f);
}

int vae_config_is_vit(const wt_file *f)
{
    return vae_sphere_recognise(f) || vae_config_is_detok(f);
}

static int config_begins_with(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

int vae_config_is_flux(const wt_file *f)
{
    return !vae_names_of(f)->post_quant;
}

int vae_config_is_emu3(const wt_file *f)
{
    return vae_names_of(f)->temporal;
}

int vae_config_ignores_vq(const char *tensor)
{
    return strcmp(tensor, "quantize.codebook_used") == 0 || config_begins_with(tensor, "loss.");
}

int vae_config_ignores_emu3(const char *tensor)
{
    static const char counter[] = ".num_batches_tracked";
    const size_t n = strlen(tensor), m = strlen(counter);
    return config_begins_with(tensor, "encoder.") || config_begins_with(tensor, "quant_conv.") ||
           (n > m && strcmp(tensor + n - m, counter) == 0);
}

/* --- the tensors of a shape -------------------------------------------------------------------------- */

typedef struct {
    vae_tensor_visitor *visit;
    void *user;
    const vae_names *names;
    int width[LEVELS_MAX]; /* channels of each level, finest first */
    int levels, res_blocks;
    int latent;  /* input channels of the decoder's first convolution */
    int spatial; /* z_channels of spatial norms; 0: plain ones */
} visitor;

/* Visits .weight [out][in][k][k] and .bias [out]. */
static void config_visit_conv(const visitor *v, const char *prefix, const char *layer, int out, int in, int kernel)
{
    char name[VAE_NAME_SIZE + 64];
    const int64_t shape[4] = {out, in, kernel, kernel};
    snprintf(name, sizeof name, "%s%s.weight", prefix, layer);
    v->visit(v->user, name, 4, shape);
    snprintf(name, sizeof name, "%s%s.bias", prefix, layer);
    v->visit(v->user, name, 1, shape);
}

static void config_visit_norm(const visitor *v, const char *prefix, const char *layer, int width)
{
    char name[VAE_NAME_SIZE + 64];
    if (v->spatial) {
        visitor plain = *v;
        char part[VAE_NAME_SIZE];
        plain.spatial = 0;
        snprintf(part, sizeof part, "%s%s.", prefix, layer);
        config_visit_norm(&plain, part, "norm_layer", width);
        config_visit_conv(&plain, part, "conv_y", width, v->spatial, 1);
        config_visit_conv(&plain, part, "conv_b", width, v->spatial, 1);
        return;
    }
    const int64_t shape[1] = {width};
    snprintf(name, sizeof name, "%s%s.weight", prefix, layer);
    v->visit(v->user, name, 1, shape);
    snprintf(name, sizeof name, "%s%s.bias", prefix, layer);
    v->visit(v->user, name, 1, shape);
}

static void visit_res_block(const visitor *v, const char *prefix, int in, int out)
{
    config_visit_norm(v, prefix, "norm1", in);
    config_visit_conv(v, prefix, "conv1", out, in, 3);
    config_visit_norm(v, prefix, "norm2", out);
    config_visit_conv(v, prefix, "conv2", out, out, 3);
    if (in != out) config_visit_conv(v, prefix, "nin_shortcut", out, in, 1);
}

static void visit_attention(const visitor *v, const char *prefix, int width)
{
    config_visit_norm(v, prefix, "norm", width);
    config_visit_conv(v, prefix, "q", width, width, 1);
    config_visit_conv(v, prefix, "k", width, width, 1);
    config_visit_conv(v, prefix, "v", width, width, 1);
    config_visit_conv(v, prefix, "proj_out", width, width, 1);
}

static void visit_middle(const visitor *v, const char *side, int width)
{
    char prefix[64];
    for (int i = 0; i < 3; i++) {
        snprintf(prefix, sizeof prefix, "%s.%s.", side, v->names->middle[i]);
        if (i == 1)
            visit_attention(v, prefix, width);
        else
            visit_res_block(v, prefix, width, width);
    }
}

/* Visits the residual blocks of the level `prefix`, from `width` channels to `out`. */
static void visit_blocks(const visitor *v, const char *prefix, int blocks, int width, int out)
{
    char name[VAE_NAME_SIZE + 32];
    for (int i = 0; i < blocks; i++, width = out) {
        snprintf(name, sizeof name, "%s%s%d.", prefix, v->names->block, i);
        visit_res_block(v, name, width, out);
    }
}

/* Visits the attention blocks of the level. */
static void visit_attentions(const visitor *v, const char *prefix, int blocks, int width)
{
    char name[VAE_NAME_SIZE + 32];
    for (int i = 0; i < blocks; i++) {
        snprintf(name, sizeof name, "%s.attn.%d.", prefix, i);
        visit_attention(v, name, width);
    }
}

int vae_encoder_attends(const wt_file *f, const vae_names *names, int levels, int level)
{
    char prefix[64];
    if (names->attends_at_coarsest) return level == levels - 1;
    snprintf(prefix, sizeof prefix, "%s%d.attn.", names->encoder_level, level);
    return wt_count_parts(f, prefix, BLOCKS_MAX) > 0;
}

static void visit_encoder(const visitor *v, const wt_file *f, const mar_vae_config *c)
{
    const int last = v->levels - 1;
    int width = c->channels;
    char prefix[64];
    config_visit_conv(v, "encoder.", "conv_in", c->channels, 3, 3);
    for (int level = 0; level < v->levels; level++) {
        snprintf(prefix, sizeof prefix, "%s%d", v->names->encoder_level, level);
        visit_blocks(v, prefix, v->res_blocks, width, v->width[level]);
        width = v->width[level];
        if (vae_encoder_attends(f, v->names, v->levels, level)) visit_attentions(v, prefix, v->res_blocks, width);
        if (level != last) config_visit_conv(v, strcat(prefix, "."), "downsample.conv", width, width, 3);
    }
    visit_middle(v, "encoder", width);
    config_visit_norm(v, "encoder.", "norm_out", width);
    /* KL: mean and log variance */
    config_visit_conv(v, "encoder.", "conv_out", c->codebook ? v->latent : 2 * v->latent, width, 3);
}

/* Visits the decoder in the order of the level numbers in the file. It runs from the last level to the first. */
static void visit_decoder(const visitor *v)
{
    const int last = v->levels - 1;
    char prefix[VAE_NAME_SIZE];
    config_visit_conv(v, "decoder.", "conv_in", v->width[last], v->latent, 3);
    visit_middle(v, "decoder", v->width[last]);
    for (int i = 0; i < v->levels; i++) {
        const int level = v->names->coarsest_first ? last - i : i;
        vae_name_level(v->names, v->levels, level, prefix);
        visit_blocks(v, prefix, v->res_blocks + 1, v->width[level == last ? last : level + 1], v->width[level]);
        if (v->names->attends_at_coarsest && level == last)
            visit_attentions(v, prefix, v->res_blocks + 1, v->width[level]);
        if (level != 0) config_visit_conv(v, strcat(prefix, "."), "upsample.conv", v->width[level], v->width[level], 3);
    }
    config_visit_norm(v, "decoder.", "norm_out", v->width[0]);
    config_visit_conv(v, "decoder.", "conv_out", 3, v->width[0], 3);
}

/* Visits the layers over time, of `channels` channels. */
static void visit_temporal(const wt_file *f, int channels, vae_tensor_visitor *visit, void *user)
{
    static const char *const parts[] = {"weight", "bias", "running_mean", "running_var"};
    const int64_t vector[1] = {channels}, kernel[5] = {channels, channels, 3, 3, 3};
    char name[VAE_NAME_SIZE];
    const int blocks = wt_count_parts(f, "decoder.time_res_stack.", VAE_TEMPORAL_MAX),
              convs = wt_count_parts(f, "decoder.time_conv.", VAE_TEMPORAL_MAX);
    for (int i = 0; i < 2 * blocks + convs; i++) {
        const int is_block = i < 2 * blocks;
        char layer[VAE_NAME_SIZE / 2];
        for (int j = 0; is_block && j < 4; j++) {
            snprintf(name, sizeof name, "decoder.time_res_stack.%d.norm%d.%s", i / 2, i % 2 + 1, parts[j]);
            visit(user, name, 1, vector);
        }
        if (is_block)
            snprintf(layer, sizeof layer, "decoder.time_res_stack.%d.conv%d.conv", i / 2, i % 2 + 1);
        else
            snprintf(layer, sizeof layer, "decoder.time_conv.%d.conv.conv", i - 2 * blocks);
        snprintf(name, sizeof name, "%s.weight", layer);
        visit(user, name, 5, kernel);
        snprintf(name, sizeof name, "%s.bias", layer);
        visit(user, name, 1, vector);
    }
}

int vae_config_has_encoder(const wt_file *f)
{
    if (vae_sphere_recognise(f)) return has_part(f, "vae.encoder.") || has_part(f, "encoder.");
    return !vae_names_of(f)->temporal && (has_part(f, "encoder.") || has_part(f, "quant_conv."));
}

/* Visits the tensors between encoder and decoder. */
static void visit_latent(const visitor *v, const wt_file *f, const mar_vae_config *c)
{
    const int64_t codebook[2] = {c->codebook, c->z_channels};
    const int out = c->codebook ? c->z_channels : 2 * v->latent, in = c->codebook ? v->latent : 2 * v->latent;
    if (!v->names->post_quant) return;
    if (c->codebook) v->visit(v->user, embedding_name, 2, codebook);
    if (vae_config_has_encoder(f)) config_visit_conv(v, "", "quant_conv", out, in, 1);
    if (v->names->temporal) {
        const int64_t shape[5] = {v->latent, c->z_channels, 3, 1, 1};
        v->visit(v->user, "post_quant_conv.conv.weight", 5, shape);
        v->visit(v->user, "post_quant_conv.conv.bias", 1, shape);
    } else
        config_visit_conv(v, "", "post_quant_conv", v->latent, c->z_channels, 1);
}

void vae_config_tensors(const wt_file *f, const mar_vae_config *config, vae_tensor_visitor *visit, void *user)
{
    const wt_tensor *post_quant;
    vae_vit_shape vit;
    if (config->depth > 0 && vae_config_is_vit(f)) {
        if (vae_vit_derive(f, &vit, NULL) == MAR_OK) vit_tensors(f, &vit, visit, user);
        return;
    }
    visitor v = {.visit = visit,
                 .user = user,
                 .names = vae_names_of(f),
                 .levels = config->levels,
                 .res_blocks = config->res_blocks};
    if (find_post_quant(f, v.names, &post_quant, NULL) != MAR_OK) return; /* config belongs to another file */
    v.latent = latent_channels(v.names, post_quant);
    for (int i = 0; i < v.levels; i++)
        if (vae_level_width(f, v.names, v.levels, i, &v.width[i], NULL) != MAR_OK) return;
    if (vae_config_has_encoder(f)) visit_encoder(&v, f, config);
    if (v.names->temporal) {
        visit_temporal(f, v.latent, visit, user);
        v.spatial = config->z_channels;
    }
    visit_decoder(&v);
    visit_latent(&v, f, config);
}
