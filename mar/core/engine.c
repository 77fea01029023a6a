/* Checks and messages shared by the engines. */
#include "mar/core/engine.h"

#include "families/mar.h"
#include "mar/core/vae.h"

#include <stdio.h>
#include <string.h>

void mar_model_retain(mar_model *model)
{
    atomic_fetch_add(&model->references, 1);
}

mar_status mar_refuse_heads(const wt_file *f, int width, mar_err *err)
{
    return err_set(err, MAR_EMODEL,
                   "%s: its width of %d is no official model's, and nothing in it says its number of attention heads: "
                   "expected --heads N or --heads ENCODER,DECODER; mar convert --heads writes them to its metadata",
                   wt_path(f), width);
}

mar_status mar_check_draft(const mar_model *model, const mar_model *draft, mar_err *err)
{
    const mar_model_config *t = &model->config, *d = &draft->config;
    if (draft->m != model->m) return err_set(err, MAR_EARG, "draft and model belong to different handles");
    if (draft->engine != model->engine)
        return err_set(err, MAR_EMODEL, "the draft is a model of family %s, expected one of family %s, as the model is",
                       d->family, t->family);
    if (d->seq_len != t->seq_len || d->token_dim != t->token_dim)
        return err_set(err, MAR_EMODEL, "the draft makes %d tokens of %d channels, expected the model's %d of %d",
                       d->seq_len, d->token_dim, t->seq_len, t->token_dim);
    if (d->classes != t->classes)
        return err_set(err, MAR_EMODEL, "the draft knows %d classes, expected the model's %d", d->classes, t->classes);
    if (d->caption_tokens != t->caption_tokens || d->conditioning != t->conditioning)
        return err_set(err, MAR_EMODEL, "the draft takes prompts of %d tokens, expected the model's %d",
                       d->caption_tokens, t->caption_tokens);
    return MAR_OK;
}

static mar_status refuse_channels(const mar_model_config *model, const mar_vae *vae, mar_err *err)
{
    char hint[64] = "";
    const int z_channels = vae->config.z_channels;
    const int patch = model->patch_size, n = family_mar_patches(model->token_dim, z_channels);
    if (patch > 1)
        snprintf(hint, sizeof hint, ", %d in each of %d latent pixels", model->token_dim / (patch * patch),
                 patch * patch);
    else if (n && !patch)
        snprintf(hint, sizeof hint, "; if a token is %dx%d latent pixels, expected --patch_size %d", n, n, n);
    return err_set(err, MAR_EMODEL, "%s: the VAE decodes %d channels but the model's tokens have %d%s", vae->name,
                   z_channels, model->token_dim, hint);
}

mar_status mar_check_vae(const mar_model_config *model, const mar_vae *vae, mar_err *err)
{
    if (!vae) return MAR_OK;
    const mar_vae_config *c = &vae->config;
    const int is_sphere = model->head == MAR_HEAD_FLOW && model->conditioning == MAR_CONDITION_CLASS,
              has_sphere = vae_decoder_is_sphere(vae->decoder);
    const char *kind = c->codebook ? "VQ" : c->depth ? "l-DeTok" : "KL";
    if (is_sphere && !has_sphere)
        return err_set(
            err, MAR_EMODEL,
            "%s: the VAE is %s %s autoencoder, expected the ViT decoder of SphereAR, which the model's file has",
            vae->name, c->depth ? "an" : "a", kind);
    if (!is_sphere && has_sphere)
        return err_set(err, MAR_EMODEL, "%s: the VAE is the ViT decoder of SphereAR, expected a %s", vae->name,
                       model->vocabulary ? "VQ tokenizer" : "KL autoencoder");
    if (!model->vocabulary && c->codebook)
        return err_set(
            err, MAR_EMODEL,
            "%s: the VAE decodes numbers of a codebook (VQ), but the model's tokens are continuous: expected a KL "
            "autoencoder",
            vae->name);
    if (!model->vocabulary && !mar_patch_size(model, c->z_channels)) return refuse_channels(model, vae, err);
    if (model->head == MAR_HEAD_DDPM && c->shift != 0)
        return err_set(err, MAR_EMODEL,
                       "%s: the VAE's latents are shifted by %g, as Flux's are, which NextStep-1 draws: expected KL-16 "
                       "or another of unshifted latents",
                       vae->name, (double)c->shift);
    const int pixels = model->vocabulary ? 0 : c->stride * mar_patch_size(model, c->z_channels);
    if (model->token_pixels && pixels != model->token_pixels)
        return err_set(err, MAR_EMODEL, "%s: the VAE makes %d pixels of a token's side, expected %d as the model's",
                       vae->name, pixels, model->token_pixels);
    if (model->vocabulary && !c->codebook)
        return err_set(err, MAR_EMODEL,
                       "%s: the VAE decodes continuous latents (%s), but the model's tokens are numbers of a codebook: "
                       "expected a VQ tokenizer",
                       vae->name, kind);
    if (model->vocabulary && model->vocabulary != c->codebook)
        return err_set(err, MAR_EMODEL,
                       "%s: the VAE and the model have different codebooks: the VAE's has %d tokens, the model's %d",
                       vae->name, c->codebook, model->vocabulary);
    return MAR_OK;
}

const char *mar_layer_text(const kern_queue *k, char text[MAR_LAYER_TEXT])
{
    const kern_watching *w = &k->watch;
    snprintf(text, MAR_LAYER_TEXT, "%s%s",
             w->on && w->layer[0] ? "; the first layer whose output is not finite: "
             : w->on              ? "; the outputs of all layers in front of it are finite"
                                  : "; --check names the first layer whose output is not finite",
             w->on ? w->layer : "");
    return text;
}
