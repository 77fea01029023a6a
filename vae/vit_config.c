/* Shape of SphereAR's ViT decoder and encoder (SphereAR/vae.py); detok_config.c has that of l-DeTok's. All of it is in
 * the tensors' shapes. The width of a head is half that of a row of freqs_cis. Without that table the metadata says the
 * number of the decoder's heads, or heads have 64 numbers. */
#include "kernels/causal.h"
#include "vae/steps.h"
#include "weights/shape.h"

#include <stdio.h>
#include <string.h>

enum { REGISTERS_MAX = 1024, GRID_MAX = 1024, HEAD = 64, WIDTH_MAX = 1 << 16 };

static const char *const prefixes[] = {"vae.", ""};
static const char *const parts[] = {"post_quant_proj.weight", "decoder.register_token.weight",
                                    "decoder.conv_in.1.weight"};
enum { PREFIXES = sizeof prefixes / sizeof *prefixes, PARTS = sizeof parts / sizeof *parts };

const vae_residual_names vae_residual_names_up = {{".block.0", ".block.3"}, {".block.2", ".block.5"}, ".shortcut"},
                         vae_residual_names_vit = {{".0", ".3"}, {".2", ".5"}, NULL};

/* What both sides share. */
#define SPHERE_NAMES                                                                                                   \
    .layers = ".layers", .norm = {"attention_norm", "ffn_norm"}, .attention = "attention", .qkv = "wqkv", .wo = "wo",  \
    .mlp = "feed_forward", .w1 = "w1", .w2 = "w2", .angles = 1, .bytes = KERN_BYTES_DOWN

const vae_vit_names vae_vit_names_sphere = {SPHERE_NAMES};
const vae_vit_names vae_vit_names_sphere_encoder = {SPHERE_NAMES, .after = "norm"};
const vae_end_names vae_end_names_vit = {".conv_in.1", ".conv_out.0", ".conv_out.2"},
                    vae_end_names_vit_encoder = {".conv_in", NULL, NULL};

/* Returns the prefix of the names, or NULL if the file has no such decoder. */
static const char *prefix_of(const wt_file *f)
{
    char name[VAE_NAME_SIZE];
    for (int i = 0; i < PREFIXES; i++)
        for (int j = 0; j < PARTS; j++) {
            snprintf(name, sizeof name, "%s%s", prefixes[i], parts[j]);
            if (wt_find(f, name)) return prefixes[i];
        }
    return NULL;
}

int vae_sphere_recognise(const wt_file *f)
{
    return prefix_of(f) != NULL;
}

int vae_vit_groups(int channels)
{
    return channels / 4 < 32 ? channels / 4 : 32;
}

/* --- reading the shape from tensors ------------------------------------------------------------------------------- */

mar_status vae_vit_find(const wt_file *f, const char *prefix, const char *name, int rank, int dim, int *out,
                        mar_err *err)
{
    char full[VAE_NAME_SIZE], text[128];
    const wt_tensor *t;
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const mar_status status = wt_find_shape(f, full, rank, &t, err);
    if (status != MAR_OK) return status;
    if (t->shape[dim] > WIDTH_MAX)
        return err_set(err, MAR_EMODEL, "%s: tensor %s has shape %s, expected sizes up to %d", wt_path(f), full,
                       wt_shape_text(t, text, sizeof text), WIDTH_MAX);
    *out = (int)t->shape[dim];
    return MAR_OK;
}

mar_status vae_vit_check_heads(const wt_file *f, const char *side, int width, long heads, mar_err *err)
{
    if (heads < 1 || heads > width || width % heads || width / heads % 4)
        return err_set(err, MAR_EMODEL,
                       "%s: a ViT %s of width %d with %ld heads, expected heads of a multiple of 4 numbers", wt_path(f),
                       side, width, heads);
    if (width / heads > KERN_CACHE_HEAD_MAX)
        return err_set(err, MAR_EMODEL, "%s: the ViT %s's heads have %d numbers, expected at most %d", wt_path(f), side,
                       (int)(width / heads), KERN_CACHE_HEAD_MAX);
    return MAR_OK;
}

/* Sets *out to dimension `dim` of the tensor of this side. */
static mar_status sphere_find(const wt_file *f, const vae_vit_shape *s, const char *name, int rank, int dim, int *out,
                              mar_err *err)
{
    char full[VAE_NAME_SIZE];
    snprintf(full, sizeof full, "%.16s.%.100s", s->side, name);
    return vae_vit_find(f, "", full, rank, dim, out, err);
}

/* Derives registers, grid and heads. */
static mar_status derive_positions(const wt_file *f, vae_vit_shape *s, mar_err *err)
{
    char name[VAE_NAME_SIZE], text[128];
    long heads = s->width % HEAD == 0 ? s->width / HEAD : 0;
    mar_status status = sphere_find(f, s, "register_token.weight", 2, 0, &s->registers, err);
    if (status == MAR_OK && s->names == &vae_vit_names_sphere)
        status = wt_metadata_number(f, "mar.vae_heads", &heads, err);
    if (status != MAR_OK) return status;
    if (s->registers > REGISTERS_MAX)
        return err_set(err, MAR_EMODEL, "%s: tensor %s.register_token.weight has %d rows, expected at most %d",
                       wt_path(f), s->side, s->registers, REGISTERS_MAX);
    snprintf(name, sizeof name, "%s.freqs_cis", s->side);
    const wt_tensor *t = wt_find(f, name);
    if (t) {
        const int64_t tokens = t->rank == 3 ? t->shape[0] - s->registers : 0, head = t->rank == 3 ? 2 * t->shape[1] : 0;
        while (s->grid < GRID_MAX && (int64_t)s->grid * s->grid < tokens) s->grid++;
        if (t->rank != 3 || t->shape[2] != 2 || tokens < 1 || (int64_t)s->grid * s->grid != tokens || head < 2 ||
            head > s->width || s->width % head)
            return err_set(err, MAR_EMODEL,
                           "%s: tensor %s has shape %s, expected [%d + a square number, half of a head of %d, 2]",
                           wt_path(f), name, wt_shape_text(t, text, sizeof text), s->registers, s->width);
        heads = s->width / head;
        s->has_table = t->dtype == WT_F32 || t->dtype == WT_F64;
    }
    s->heads = (int)heads;
    return vae_vit_check_heads(f, s->side + strlen(s->prefix), s->width, heads, err);
}

/* Derives the blocks that double rows and columns, or halve them, with names "%s%d.block.2.weight". Dimension `dim` of
 * their first convolutions has the output channels, a multiple of `last` in the last block. */
static mar_status derive_blocks(const wt_file *f, vae_vit_shape *s, const char *blocks, int dim, int last, mar_err *err)
{
    char name[VAE_NAME_SIZE];
    snprintf(name, sizeof name, "%s.%s", s->side, blocks);
    s->blocks = wt_count_parts(f, name, VAE_VIT_BLOCKS);
    if (s->blocks == 0) return err_set(err, MAR_EMODEL, "%s: tensor %s0.block.2.weight is missing", wt_path(f), name);
    for (int i = 0; i < s->blocks; i++) {
        snprintf(name, sizeof name, "%s%d.block.2.weight", blocks, i);
        const mar_status status = sphere_find(f, s, name, 4, dim, &s->out[i], err);
        if (status != MAR_OK) return status;
        const int is_last = i == s->blocks - 1, groups = vae_vit_groups(s->out[i]);
        if (groups < 1 || s->out[i] % groups || (is_last && s->out[i] % last))
            return err_set(err, MAR_EMODEL, "%s: tensor %s.%s has %d output channels, expected a multiple of %d",
                           wt_path(f), s->side, name, s->out[i],
                           is_last      ? last
                           : groups < 1 ? 4
                                        : groups);
    }
    return MAR_OK;
}

/* Derives the transformer of a side of known width, and its prefix. */
static mar_status derive_layers(const wt_file *f, vae_vit_shape *s, mar_err *err)
{
    char name[VAE_NAME_SIZE];
    mar_status status = derive_positions(f, s, err);
    if (status != MAR_OK) return status;
    snprintf(name, sizeof name, "%s.layers.", s->side);
    s->depth = wt_count_parts(f, name, VAE_VIT_DEPTH_MAX);
    if (s->depth == 0)
        return err_set(err, MAR_EMODEL, "%s: tensor %s0.attention.wqkv.weight is missing", wt_path(f), name);
    return sphere_find(f, s, "layers.0.feed_forward.w2.weight", 2, 1, &s->hidden, err);
}

mar_status vae_sphere_derive(const wt_file *f, vae_vit_shape *s, mar_err *err)
{
    *s = (vae_vit_shape){.names = &vae_vit_names_sphere, .prefix = prefix_of(f)};
    s->side = *s->prefix ? "vae.decoder" : "decoder";
    mar_status status = vae_vit_find(f, s->prefix, parts[0], 2, 0, &s->width, err);
    if (status == MAR_OK) status = vae_vit_find(f, s->prefix, parts[0], 2, 1, &s->channels, err);
    if (status != MAR_OK) return status;
    const int groups = vae_vit_groups(s->width);
    if (groups < 1 || s->width % groups)
        return err_set(err, MAR_EMODEL, "%s: tensor %s%s has %d rows, expected a multiple of %d", wt_path(f), s->prefix,
                       parts[0], s->width, groups < 1 ? 4 : groups);
    status = derive_layers(f, s, err);
    return status == MAR_OK ? derive_blocks(f, s, "unpatchify.1.net.", 1, VAE_VIT_LAST_GROUPS, err) : status;
}

mar_status vae_sphere_derive_encoder(const wt_file *f, vae_vit_shape *s, mar_err *err)
{
    int rows;
    *s = (vae_vit_shape){.names = &vae_vit_names_sphere_encoder, .prefix = prefix_of(f)};
    s->side = *s->prefix ? "vae.encoder" : "encoder";
    mar_status status = vae_vit_find(f, s->prefix, "quant_proj.weight", 2, 0, &rows, err);
    if (status == MAR_OK) status = vae_vit_find(f, s->prefix, "quant_proj.weight", 2, 1, &s->width, err);
    if (status == MAR_OK) status = sphere_find(f, s, "conv_in.weight", 4, 0, &s->in, err);
    if (status == MAR_OK) status = derive_layers(f, s, err);
    if (status == MAR_OK) status = derive_blocks(f, s, "patchify.0.net.", 0, s->width, err);
    if (status != MAR_OK) return status;
    if (s->out[s->blocks - 1] != s->width)
        return err_set(err, MAR_EMODEL, "%s: the last block of %s.patchify has %d output channels, expected %d",
                       wt_path(f), s->side, s->out[s->blocks - 1], s->width);
    s->channels = rows - 1; /* the direction of the mean, then the concentration around it */
    if (s->channels > 0 && vae_vit_groups(s->in) > 0 && s->in % vae_vit_groups(s->in) == 0) return MAR_OK;
    return err_set(err, MAR_EMODEL,
                   "%s: an encoder whose first convolution has %d channels, and quant_proj %d rows: expected groups of "
                   "channels, and 2 or more rows",
                   wt_path(f), s->in, rows);
}

/* --- the tensors of a shape --------------------------------------------------------------------------------------- */

typedef struct {
    const char *prefix, *dot; /* of all names */
    vae_tensor_visitor *visit;
    void *user;
} visitor;

static void visit(const visitor *v, const char *prefix, const char *name, int rank, const int64_t *shape)
{
    char full[2 * VAE_NAME_SIZE];
    snprintf(full, sizeof full, "%s%s%s%s", v->prefix, v->dot, prefix, name);
    v->visit(v->user, full, rank, shape);
}

static void vit_config_visit_norm(const visitor *v, const char *prefix, const char *layer, int64_t width)
{
    char name[VAE_NAME_SIZE];
    snprintf(name, sizeof name, "%s.weight", layer);
    visit(v, prefix, name, 1, &width);
    snprintf(name, sizeof name, "%s.bias", layer);
    visit(v, prefix, name, 1, &width);
}

static void vit_config_visit_conv(const visitor *v, const char *prefix, const char *layer, int64_t a, int64_t b,
                                  int64_t kernel)
{
    char name[VAE_NAME_SIZE];
    const int64_t shape[4] = {a, b, kernel, kernel};
    snprintf(name, sizeof name, "%s.weight", layer);
    visit(v, prefix, name, 4, shape);
}

static void visit_layer(const visitor *v, const vae_vit_shape *s, int layer)
{
    const int64_t d = s->width, h = s->hidden;
    char prefix[VAE_NAME_SIZE];
    snprintf(prefix, sizeof prefix, "layers.%d.", layer);
    visit(v, prefix, "attention.wqkv.weight", 2, (int64_t[]){3 * d, d});
    visit(v, prefix, "attention.wo.weight", 2, (int64_t[]){d, d});
    visit(v, prefix, "feed_forward.w1.weight", 2, (int64_t[]){2 * h, d});
    visit(v, prefix, "feed_forward.w2.weight", 2, (int64_t[]){d, h});
    visit(v, prefix, "attention_norm.weight", 1, &d);
    visit(v, prefix, "ffn_norm.weight", 1, &d);
}

static void visit_table(const visitor *v, const vae_vit_shape *s)
{
    if (s->grid)
        visit(v, "", "freqs_cis", 3, (int64_t[]){s->registers + s->grid * s->grid, s->width / s->heads / 2, 2});
}

static void visit_transformer(const visitor *v, const vae_vit_shape *s)
{
    visit(v, "", "register_token.weight", 2, (int64_t[]){s->registers, s->width});
    for (int i = 0; i < s->depth; i++) visit_layer(v, s, i);
}

/* Visits a block that halves rows and columns. */
static void visit_halving(const visitor *v, int block, int in, int out)
{
    const vae_residual_names *names = &vae_residual_names_up;
    char prefix[VAE_NAME_SIZE];
    snprintf(prefix, sizeof prefix, "patchify.0.net.%d", block);
    vit_config_visit_norm(v, prefix, names->norm[0], in);
    vit_config_visit_conv(v, prefix, names->conv[0], out, in, 3);
    vit_config_visit_norm(v, prefix, names->norm[1], out);
    vit_config_visit_conv(v, prefix, names->conv[1], out, out, 3);
    vit_config_visit_conv(v, prefix, names->shortcut, out, in, 2);
}

static void visit_block(const visitor *v, int block, int in, int out)
{
    const vae_residual_names *first = &vae_residual_names_up, *second = &vae_residual_names_vit;
    char prefix[VAE_NAME_SIZE];
    snprintf(prefix, sizeof prefix, "unpatchify.1.net.%d", block);
    vit_config_visit_norm(v, prefix, first->norm[0], in);
    vit_config_visit_conv(v, prefix, first->conv[0], in, out, 4);
    vit_config_visit_norm(v, prefix, first->norm[1], out);
    vit_config_visit_conv(v, prefix, first->conv[1], out, out, 3);
    vit_config_visit_conv(v, prefix, first->shortcut, in, out, 2);
    strcat(prefix, ".block2");
    for (int i = 0; i < 2; i++) {
        vit_config_visit_norm(v, prefix, second->norm[i], out);
        vit_config_visit_conv(v, prefix, second->conv[i], out, out, 3);
    }
}

static void visit_encoder(const visitor *v, const vae_vit_shape *s)
{
    const int64_t width = s->width;
    int channels = s->in;
    visit_table(v, s);
    vit_config_visit_conv(v, "", "conv_in", channels, 3, 3);
    for (int i = 0; i < s->blocks; channels = s->out[i++]) visit_halving(v, i, channels, s->out[i]);
    visit_transformer(v, s);
    visit(v, "", "norm.weight", 1, &width);
    visit(v, "", "output.weight", 2, (int64_t[]){width, width});
}

static void visit_decoder(const visitor *v, const vae_vit_shape *s)
{
    const vae_end_names *ends = &vae_end_names_vit; /* begin with a dot */
    int width = s->width;
    visit_table(v, s);
    vit_config_visit_conv(v, "", ends->conv_in + 1, width, width, 3);
    visit_transformer(v, s);
    for (int i = 0; i < s->blocks; width = s->out[i++]) visit_block(v, i, width, s->out[i]);
    vit_config_visit_norm(v, "", ends->norm_out + 1, width);
    vit_config_visit_conv(v, "", ends->conv_out + 1, 3, width, 3);
}

void vae_sphere_tensors(const wt_file *f, const vae_vit_shape *s, vae_tensor_visitor *to, void *user)
{
    const visitor v = {s->side, ".", to, user}, whole = {s->prefix, "", to, user};
    const int64_t rows = s->channels + 1;
    vae_vit_shape encoder;
    const int has_encoder = vae_sphere_derive_encoder(f, &encoder, NULL) == MAR_OK;
    if (has_encoder) visit_encoder(&(visitor){encoder.side, ".", to, user}, &encoder);
    visit_decoder(&v, s);
    if (has_encoder) visit(&whole, "", "quant_proj.weight", 2, (int64_t[]){rows, s->width});
    if (has_encoder) visit(&whole, "", "quant_proj.bias", 1, &rows);
    visit(&whole, "", parts[0], 2, (int64_t[]){s->width, s->channels});
}
