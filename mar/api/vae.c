/* Public calls of the image decoder. */
#include "mar/core/vae.h"
#include "mar/api/kinds.h"
#include "mar/api/load.h"
#include "weights/shape.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Loads the decoder, and the encoder if the source asks for it, on a queue of its own. Once that queue has finished,
 * all queues can use them. */
static mar_status api_vae_load(mar *m, wt_file *file, const mar_source *source, mar_vae *vae, mar_err *err)
{
    mar_loader l;
    mar_status status = mar_loader_begin(&l, m, file, source, err);
    if (status != MAR_OK) return status;
    status = vae_decoder_create(l.k, file, &vae->decoder, err);
    const int loaded = status == MAR_OK;
    if (loaded && source->encoder)
        status = wt_digest_end(file, &l.hash, err); /* it names the decoder, with and without its encoder */
    if (status == MAR_OK && source->encoder) status = vae_decoder_add_encoder(vae->decoder, l.k, file, err);
    status = mar_loader_end(&l, status, err);
    if (loaded && status != MAR_OK) vae_decoder_free(vae->decoder);
    if (status != MAR_OK) return status;
    vae->config = *vae_decoder_config(vae->decoder);
    vae->config.encoder = source->encoder;
    vae->config.hash = l.hash;
    return MAR_OK;
}

/* Returns an absolute path; the caller frees it. Returns NULL without memory. */
static char *path_from_root(const char *path)
{
    char folder[PATH_MAX], *joined = NULL;
    if (*path == '/' || !getcwd(folder, sizeof folder)) return strdup(path);
    return asprintf(&joined, "%s/%s", folder, path) < 0 ? NULL : joined;
}

/* Of a model of Chameleon or Emu3 as Hugging Face writes it, and of Harmon and NextStep-1, keeps the image decoder.
 * Returns MAR_EMODEL if the model has only the image encoder, as Chameleon's of transformers have it. */
static mar_status find_in_model(wt_file *file, mar_err *err)
{
    static const char *const parts[] = {"model.vqmodel.", "vqmodel."}, *const inside[] = {VAE_INSIDE "decoder.mid.",
                                                                                          NULL};
    static const char decoder[] = "decoder.";
    for (int p = 0; p < 2; p++) {
        const size_t length = strlen(parts[p]);
        int tensors = 0, decodes = 0;
        for (int i = 0; i < wt_count(file); i++) {
            const char *name = wt_at(file, i)->name;
            if (strncmp(name, parts[p], length) != 0) continue;
            tensors++;
            decodes += strncmp(name + length, decoder, sizeof decoder - 1) == 0;
        }
        if (tensors && !decodes)
            return err_set(err, MAR_EMODEL,
                           "%s: its %s has an image encoder alone, expected a decoder: Chameleon's is vqgan.ckpt, "
                           "Emu3's the folder "
                           "Emu3-VisionTokenizer",
                           wt_path(file), p ? "vqmodel" : "model.vqmodel");
        if (decodes) wt_narrow(file, parts[p]);
    }
    if (wt_sum_elements(file, inside)) wt_narrow(file, VAE_INSIDE); /* a convolutional one */
    return vae_config_rename(file, err);
}

/* Creates a VAE of an open file. */
static mar_status vae_create(mar *m, wt_file *file, const mar_source *source, mar_vae **out, mar_err *err)
{
    mar_status status =
        vae_config_is_vit(file) /* of a SphereAR model's file, too */
            ? MAR_OK
            : mar_check_kind(file, 1 << MAR_KIND_VAE, "an image decoder (KL, VQ or ViT autoencoder)", err);
    if (status == MAR_OK && source->heads)
        status = err_set(err, MAR_EARG, "--heads has no effect: %s is an image decoder", wt_path(file));
    if (status != MAR_OK) return status;
    mar_vae *vae = calloc(1, sizeof *vae);
    if (vae) vae->name = strdup(wt_path(file));
    status = vae && vae->name ? api_vae_load(m, file, source, vae, err) : err_set(err, MAR_ENOMEM, "out of memory");
    if (status != MAR_OK) {
        if (vae) free(vae->name);
        free(vae);
        return status;
    }
    vae->m = m;
    vae->references = 1;
    mar_retain(m);
    *out = vae;
    return MAR_OK;
}

mar_status mar_vae_load_from(mar *m, const mar_source *source, mar_vae **out)
{
    const double start = mar_now();
    mar_err err = {0};
    mar_source s;
    char weights[160];
    wt_file *file = NULL;
    if (out) *out = NULL;
    mar_status status = mar_check_source(m, source, out, &s, &err);
    if (status == MAR_OK) status = mar_open_source(&s, 1, MAR_WEIGHTS_AUTO, &file, &err);
    if (status != MAR_OK) return mar_result(m, status, &err);
    wt_allow_nonfinite(file, m->allow_nonfinite);
    status = find_in_model(file, &err);
    if (status == MAR_OK) status = vae_create(m, file, &s, out, &err);
    if (status == MAR_OK) {
        const char *path = s.file ? s.file->folder : s.path;
        if (path && !wt_demo_vae(path) && (*out)->config.codebook) (*out)->path = path_from_root(path);
        mar_weights_text(file, weights, sizeof weights);
        mar_log(m, MAR_LOG_INFO, "VAE %s: %ld parameters%s, loaded%s in %.3g s", wt_path(file),
                (*out)->config.parameters, weights, s.encoder ? " with its encoder" : "", mar_now() - start);
    }
    wt_close(file);
    return mar_result(m, status, &err);
}

mar_status mar_vae_load(mar *m, const char *path, mar_vae **out)
{
    mar_source source;
    mar_source_init(&source, sizeof source);
    source.path = path;
    return mar_vae_load_from(m, &source, out);
}

void mar_vae_retain(mar_vae *vae)
{
    atomic_fetch_add(&vae->references, 1);
}

void mar_vae_free(mar_vae *vae)
{
    if (!vae || mar_in_forked_child(vae->m) || atomic_fetch_sub(&vae->references, 1) > 1) return;
    mar *m = vae->m;
    vae_decoder_free(vae->decoder);
    free(vae->name);
    free(vae->path);
    free(vae);
    mar_release(m);
}

const mar_vae_config *mar_vae_get_config(const mar_vae *vae)
{
    return vae ? &vae->config : NULL;
}

const float *mar_vae_codebook(const mar_vae *vae)
{
    return vae ? vae_decoder_codebook(vae->decoder) : NULL;
}
