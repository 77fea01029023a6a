/* Shape of l-DeTok's tokenizer (Yang et al., "Latent Denoising Makes Good Visual Tokenizers", 2025; models/detok.py): a
 * ViT encoder of patches and a ViT decoder to patches, of which a file needs the decoder only. The latents' mean and
 * standard deviation are tensors beside them (wt_add_statistics). No tensor shows the number of heads: it is that of
 * the official widths, or the metadata's of a decoder. */
#include "vae/steps.h"
#include "weights/shape.h"

#include <stdio.h>
#include <string.h>

enum { HEAD = 64, GRID_MAX = 1024, PATCH_MAX = 64 };

const vae_vit_names vae_vit_names_detok = {.layers = ".transformer",
                                           .norm = {"norm1", "norm2"},
                                           .attention = "attn",
                                           .qkv = "qkv",
                                           .wo = "proj",
                                           .mlp = "mlp",
                                           .w1 = "w12",
                                           .w2 = "w3",
                                           .positions = "positional_embedding",
                                           .before = "ln_pre",
                                           .after = "ln_post",
                                           .bias = 1,
                                           .angles = 2,
                                           .bytes = KERN_BYTES_CUT};
const vae_end_names vae_end_names_detok = {NULL, NULL, ".conv_out"};

int vae_config_is_detok(const wt_file *f)
{
    return wt_find(f, "decoder.decoder_embed.weight") || wt_find(f, "decoder.ffn.1.weight") ||
           wt_find(f, "encoder.latent_head.weight");
}

int vae_config_ignores_detok(const char *tensor)
{
    return strcmp(tensor, "decoder.mask_token") == 0;
}

mar_status vae_config_complete(wt_file *f, mar_err *err)
{
    int channels;
    if (!vae_config_is_detok(f)) return vae_flux_complete(f, err);
    if (wt_find(f, "mean") || wt_find(f, "std")) return MAR_OK;
    const mar_status status = vae_vit_find(f, "", "decoder.decoder_embed.weight", 2, 1, &channels, err);
    return status == MAR_OK ? wt_add_statistics(f, channels, err) : status;
}

/* --- reading the shape from tensors ------------------------------------------------------------------------------- */

/* Sets *out to dimension `dim` of the tensor side.name. */
static mar_status detok_find(const wt_file *f, const char *side, const char *name, int rank, int dim, int *out,
                             mar_err *err)
{
    char full[VAE_NAME_SIZE];
    snprintf(full, sizeof full, "%s.%s", side, name);
    return vae_vit_find(f, "", full, rank, dim, out, err);
}

static mar_status detok_derive_grid(const wt_file *f, vae_vit_shape *s, mar_err *err)
{
    int tokens;
    const mar_status status = detok_find(f, s->side, "positional_embedding", 3, 1, &tokens, err);
    if (status != MAR_OK) return status;
    while (s->grid < GRID_MAX && s->grid * s->grid < tokens) s->grid++;
    if (s->grid * s->grid == tokens) return MAR_OK;
    return err_set(err, MAR_EMODEL, "%s: tensor %s.positional_embedding has %d positions, expected a square number",
                   wt_path(f), s->side, tokens);
}

/* Derives the width, the channels of a token and the side of its patch from the first and the last layer. */
static mar_status detok_derive_ends(const wt_file *f, vae_vit_shape *s, mar_err *err)
{
    int values;
    mar_status status;
    if (strcmp(s->side, "encoder") == 0) {
        status = detok_find(f, s->side, "latent_head.weight", 2, 0, &values, err);
        if (status == MAR_OK) status = detok_find(f, s->side, "latent_head.weight", 2, 1, &s->width, err);
        if (status == MAR_OK) status = detok_find(f, s->side, "patch_embed.0.weight", 4, 2, &s->patch, err);
        if (status != MAR_OK) return status;
        s->channels = values / 2; /* means, then logarithms of variances */
        if (s->channels > 0 && s->patch <= PATCH_MAX) return MAR_OK;
        return err_set(err, MAR_EMODEL,
                       "%s: the encoder makes %d numbers of %dx%d pixels, expected 2 or more of up to %dx%d pixels",
                       wt_path(f), values, s->patch, s->patch, PATCH_MAX, PATCH_MAX);
    }
    status = detok_find(f, s->side, "decoder_embed.weight", 2, 0, &s->width, err);
    if (status == MAR_OK) status = detok_find(f, s->side, "decoder_embed.weight", 2, 1, &s->channels, err);
    if (status == MAR_OK) status = detok_find(f, s->side, "ffn.1.weight", 4, 0, &values, err);
    while (status == MAR_OK && s->patch < PATCH_MAX && 3 * s->patch * s->patch < values) s->patch++;
    if (status != MAR_OK || 3 * s->patch * s->patch == values) return status;
    return err_set(err, MAR_EMODEL,
                   "%s: tensor decoder.ffn.1.weight has %d rows, expected those of a patch of up to %dx%d pixels",
                   wt_path(f), values, PATCH_MAX, PATCH_MAX);
}

/* Returns the heads of the official model of this width (models/model_utils.py), else those of 64 numbers; 0 if there
 * are none. */
static long detok_heads(int width)
{
    return width == 1152 || width == 1280 ? 16 : width % HEAD == 0 ? width / HEAD : 0;
}

mar_status vae_detok_derive(const wt_file *f, const char *side, vae_vit_shape *s, mar_err *err)
{
    char layers[VAE_NAME_SIZE];
    *s = (vae_vit_shape){.names = &vae_vit_names_detok, .prefix = "", .side = side};
    mar_status status = detok_derive_ends(f, s, err);
    if (status == MAR_OK) status = detok_derive_grid(f, s, err);
    if (status == MAR_OK) status = detok_find(f, side, "transformer.0.mlp.w3.weight", 2, 1, &s->hidden, err);
    if (status != MAR_OK) return status;
    snprintf(layers, sizeof layers, "%s.transformer.", side);
    s->depth = wt_count_parts(f, layers, VAE_VIT_DEPTH_MAX);
    long heads = detok_heads(s->width);
    if (strcmp(side, "decoder") == 0) status = wt_metadata_number(f, "mar.vae_heads", &heads, err);
    s->heads = (int)heads;
    return status == MAR_OK ? vae_vit_check_heads(f, side, s->width, heads, err) : status;
}

/* --- the tensors of a shape --------------------------------------------------------------------------------------- */

typedef struct {
    const char *side;
    vae_tensor_visitor *visit;
    void *user;
} visitor;

static void detok_visit(const visitor *v, const char *name, int rank, int64_t a, int64_t b, int64_t kernel)
{
    char full[2 * VAE_NAME_SIZE];
    const int64_t shape[4] = {a, b, kernel, kernel};
    snprintf(full, sizeof full, "%s.%s", v->side, name);
    v->visit(v->user, full, rank, shape);
}

/* .weight, a matrix, or a convolution if rank is 4, and .bias */
static void detok_visit_layer(const visitor *v, const char *layer, int rank, int64_t out, int64_t in, int64_t kernel)
{
    char name[VAE_NAME_SIZE];
    snprintf(name, sizeof name, "%s.weight", layer);
    detok_visit(v, name, rank, out, in, kernel);
    snprintf(name, sizeof name, "%s.bias", layer);
    detok_visit(v, name, 1, out, 0, 0);
}

static void detok_visit_transformer(const visitor *v, const vae_vit_shape *s)
{
    const struct {
        const char *layer;
        int64_t out, in;
    } matrices[] = {{"attn.qkv", 3 * (int64_t)s->width, s->width},
                    {"attn.proj", s->width, s->width},
                    {"mlp.w12", 2 * (int64_t)s->hidden, s->width},
                    {"mlp.w3", s->width, s->hidden}};
    char name[VAE_NAME_SIZE / 2];
    detok_visit(v, "ln_pre.weight", 1, s->width, 0, 0);
    for (int i = 0; i < s->depth; i++) {
        for (int j = 0; j < 2; j++) {
            snprintf(name, sizeof name, "transformer.%d.norm%d.weight", i, j + 1);
            detok_visit(v, name, 1, s->width, 0, 0);
        }
        for (int j = 0; j < 4; j++) {
            snprintf(name, sizeof name, "transformer.%d.%s", i, matrices[j].layer);
            detok_visit_layer(v, name, 2, matrices[j].out, matrices[j].in, 0);
        }
    }
    detok_visit(v, "ln_post.weight", 1, s->width, 0, 0);
}

void vae_detok_tensors(const wt_file *f, const vae_vit_shape *s, vae_tensor_visitor *to, void *user)
{
    const int64_t channels = s->channels, tokens = (int64_t)s->grid * s->grid;
    visitor v = {"encoder", to, user};
    vae_vit_shape e;
    if (vae_detok_derive(f, v.side, &e, NULL) == MAR_OK) {
        detok_visit(&v, "positional_embedding", 3, 1, tokens, e.width);
        detok_visit_layer(&v, "patch_embed.0", 4, e.width, 3, s->patch);
        detok_visit_transformer(&v, &e);
        detok_visit_layer(&v, "latent_head", 2, 2 * channels, e.width, 0);
    }
    v.side = "decoder";
    detok_visit(&v, "positional_embedding", 3, 1, tokens, s->width);
    detok_visit_layer(&v, "decoder_embed", 2, s->width, channels, 0);
    detok_visit_transformer(&v, s);
    detok_visit_layer(&v, "ffn.1", 4, 3 * (int64_t)s->patch * s->patch, s->width, 1);
    detok_visit_layer(&v, "conv_out", 4, 3, 3, 3);
    to(user, "mean", 1, &channels);
    to(user, "std", 1, &channels);
}
