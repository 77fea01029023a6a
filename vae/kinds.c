/* Kinds of files with an image decoder, and those that are often taken for one. */
#include "vae/kinds.h"

#include "vae/vae.h"

#include <stdio.h>
#include <string.h>

/* Adds the shape of a ViT image decoder. */
void vae_add_vit(const wt_report *to, const mar_vae_config *c)
{
    char grid[32] = "any number of";
    if (c->grid) snprintf(grid, sizeof grid, "%dx%d", c->grid, c->grid);
    wt_add_fact(to, "image decoder: %s tokens of %d channels, stride %d; transformer of width %d, %d blocks, %d head%s",
                grid, c->z_channels, c->stride, c->width, c->depth, c->heads, c->heads == 1 ? "" : "s");
}

static int recognise_vq(const wt_file *f)
{
    return vae_config_recognise(f) && vae_config_is_vq(f);
}

static int recognise_emu3(const wt_file *f)
{
    return vae_config_recognise(f) && vae_config_is_emu3(f);
}

static int recognise_flux(const wt_file *f)
{
    return vae_config_recognise(f) && vae_config_is_flux(f);
}

static mar_status derive_vae(const wt_file *f, const wt_asked *asked, void *facts, mar_err *err)
{
    (void)asked;
    return vae_config_derive(f, facts, err);
}

static void visit_vae(const wt_file *f, const void *facts, wt_tensor_visitor *visit, void *user)
{
    vae_config_tensors(f, facts, visit, user);
}

static void describe_vae(const wt_file *f, const void *facts, const wt_report *to)
{
    static const char *const encoder[] = {"encoder.",     "quant_conv.",     "quant_proj.",
                                          "vae.encoder.", "vae.quant_proj.", NULL};
    static const char *const decoder[] = {"decoder.",
                                          "post_quant_conv.",
                                          "quantize.embedding.",
                                          "post_quant_proj.",
                                          "vae.decoder.",
                                          "vae.post_quant_proj.",
                                          NULL};
    const mar_vae_config *c = facts;
    char norm[64] = "";
    if (c->depth) {
        vae_add_vit(to, c);
        wt_add_fact(to, "parameters: %ld (encoder %ld, decoder %ld)", c->parameters, wt_sum_elements(f, encoder),
                    wt_sum_elements(f, decoder));
        return;
    }
    wt_add_fact(to, "autoencoder: %d latent channels, stride %d, %d levels from width %d, %d residual blocks",
                c->z_channels, c->stride, c->levels, c->channels, c->res_blocks);
    if (c->codebook)
        wt_add_fact(to, "codebook: %d tokens of %d numbers, of %s models", c->codebook, c->z_channels,
                    vae_config_made_for(f));
    if (vae_config_is_emu3(f))
        wt_add_fact(to, "parameters: %ld; without the encoder, which nothing needs", c->parameters);
    else
        wt_add_fact(to, "parameters: %ld (encoder %ld, decoder %ld)", c->parameters, wt_sum_elements(f, encoder),
                    wt_sum_elements(f, decoder));
    if (c->norm) snprintf(norm, sizeof norm, "; the encoder normalises %dx%d of them together", c->norm, c->norm);
    if (vae_config_is_flux(f)) wt_add_fact(to, "latents: tokens / %g + %g%s", (double)c->scale, (double)c->shift, norm);
}

static void put_vae(const void *facts, wt_pairs *m)
{
    const mar_vae_config *c = facts;
    wt_put_text(m, "mar.kind", "vae");
    wt_put_number(m, "mar.vae_z_channels", c->z_channels);
    wt_put_number(m, "mar.vae_stride", c->stride);
    wt_put_number(m, "mar.vae_channels", c->channels);
    wt_put_number(m, "mar.vae_levels", c->levels);
    wt_put_number(m, "mar.vae_res_blocks", c->res_blocks);
    if (c->codebook) wt_put_number(m, "mar.vae_codebook", c->codebook);
    if (c->depth) {
        wt_put_number(m, "mar.vae_width", c->width);
        wt_put_number(m, "mar.vae_depth", c->depth);
        wt_put_number(m, "mar.vae_heads", c->heads);
    }
    wt_put_number(m, "mar.parameters", c->parameters);
}

static void put_flux(const void *facts, wt_pairs *m)
{
    put_vae(facts, m);
    vae_put_latents(facts, m);
}

/* --- unsupported files -------------------------------------------------------------------------------------------- */

static int has_any(const wt_file *f, const char *const *prefixes)
{
    for (int i = 0; i < wt_count(f); i++)
        if (wt_begins_with(wt_at(f, i)->name, prefixes)) return 1;
    return 0;
}

static int recognise_stable_diffusion(const wt_file *f)
{
    static const char *const parts[] = {"model.diffusion_model.", "first_stage_model.", "cond_stage_model.", NULL};
    return has_any(f, parts);
}

/* Recognises a KL or VQ autoencoder with the layer names of Hugging Face's diffusers. */
static int recognise_diffusers(const wt_file *f)
{
    static const char *const parts[] = {"decoder.up_blocks.", "decoder.mid_block.", NULL};
    return has_any(f, parts);
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

/* What all image decoders share. */
#define IMAGE_DECODER                                                                                                  \
    .kind = MAR_KIND_VAE, .article = "a", .facts_size = sizeof(mar_vae_config), .derive = derive_vae,                  \
    .tensors = visit_vae, .describe = describe_vae

const wt_kind vae_kinds[] = {
    {.name = "Stable Diffusion checkpoint",
     .article = "a",
     .instead = "a MAR, SphereAR or LlamaGen model, or an image decoder alone",
     .for_kinds = WT_KINDS_OF_MODELS | 1 << MAR_KIND_VAE,
     .recognise = recognise_stable_diffusion},
    {.name = "autoencoder with diffusers' names (decoder.up_blocks)",
     .article = "an",
     .instead = "CompVis's (decoder.up)",
     .for_kinds = 1 << MAR_KIND_VAE,
     .recognise = recognise_diffusers},
    {IMAGE_DECODER, .put = put_vae, .name = "ViT autoencoder of l-DeTok", .recognise = vae_config_is_detok,
     .ignores = vae_config_ignores_detok},
    {IMAGE_DECODER, .put = put_vae, .name = "ViT autoencoder", .recognise = vae_config_is_vit},
    {IMAGE_DECODER, .put = put_vae, .name = "VQ autoencoder", .recognise = recognise_emu3,
     .ignores = vae_config_ignores_emu3},
    {IMAGE_DECODER, .put = put_vae, .name = "VQ autoencoder", .recognise = recognise_vq,
     .ignores = vae_config_ignores_vq},
    {IMAGE_DECODER, .put = put_flux, .name = "KL autoencoder of Flux", .recognise = recognise_flux},
    {IMAGE_DECODER, .put = put_vae, .name = "KL autoencoder", .lacks = "no post_quant_conv.weight",
     .recognise = vae_config_recognise},
    {.name = NULL},
};
