/* The prompts of NextStep-1, and the sizes of its images. */
#include "families/nextstep.h"

#include "vae/vae.h"
#include "weights/shape.h"

#include <string.h>

int nextstep_recognise(const wt_file *f)
{
    return wt_find(f, NEXTSTEP_INPUT) || wt_find(f, "image_head.net.input_proj.weight");
}

static int nextstep_is_language(const wt_file *f, const char *name)
{
    return (name && (strcmp(name, "NextStep") == 0 || strcmp(name, "nextstep") == 0)) || nextstep_recognise(f);
}

int nextstep_is_newer(const wt_file *f)
{
    const char *release = wt_metadata(f, "mar.release");
    return language_member(f, "genloss_depth") != NULL || (release && strcmp(release, "1.1") == 0);
}

mar_status nextstep_patch(const wt_file *f, int *out, mar_err *err)
{
    enum { PATCH_MAX = 64 };
    const char *key = nextstep_is_newer(f) ? "patch_size" : "latent_patch_size";
    const wt_tensor *in = wt_find(f, NEXTSTEP_INPUT);
    const int numbers = in && in->rank == 2 && in->shape[1] <= WT_DIM_MAX ? (int)in->shape[1] : 0;
    long written = 2;
    *out = 2;
    mar_status status = wt_metadata_number(f, "mar.patch_size", &written, err);
    if (written > 0 && written <= PATCH_MAX) *out = (int)written;
    if (status == MAR_OK) status = language_number(f, key, 1, out, err);
    if (status != MAR_OK || (*out <= PATCH_MAX && numbers % (*out * *out) == 0)) return status;
    return err_set(err, MAR_EMODEL, "%s: %s %d: tokens of %d numbers are no patches of %dx%d latent pixels", wt_path(f),
                   key, *out, numbers, *out, *out);
}

mar_status nextstep_positions(const wt_file *f, int *used, const wt_tensor **table, mar_err *err)
{
    const json_value *use = language_member(f, "use_gen_pos_embed");
    long written = 0;
    const mar_status status = wt_metadata_number(f, "mar.positions", &written, err);
    *used = use ? use->type == JSON_TRUE : written != 0;
    const wt_tensor *t = *used ? wt_find(f, NEXTSTEP_TABLE) : NULL;
    *table = t && t->rank == 3 && t->shape[0] == 1 && t->shape[1] >= 1 && t->shape[1] <= WT_DIM_MAX ? t : NULL;
    return status;
}

/* Sets the pixels of a token's side, which are the patch's in the decoder beside the model (down_factor in
 * pipeline_nextstep.py), and the size of images, which a table of positions says. */
static mar_status nextstep_read(const wt_file *f, language *l, mar_err *err)
{
    wt_file *decoder = NULL;
    mar_vae_config vae = {0};
    const wt_tensor *table = NULL;
    int patch = 0, used = 0;
    mar_status status = nextstep_patch(f, &patch, err);
    if (status == MAR_OK) status = nextstep_positions(f, &used, &table, err);
    if (status == MAR_OK) status = vae_open_inside(f, &decoder, err);
    if (decoder) status = vae_config_derive(decoder, &vae, err);
    wt_close(decoder);
    if (status != MAR_OK) return status;
    if (vae.stride) l->stride = l->unit = vae.stride * patch; /* 0: no decoder is inside */
    const int side = table ? causal_side((int)table->shape[1]) : 0;
    if (side && side <= LANGUAGE_SIDE_MAX / l->stride) l->width = l->height = side * l->stride;
    return MAR_OK;
}

/* pipeline_nextstep.py (_add_prefix_ids) */
const language_family language_nextstep = {
    .name = "nextstep",
    .title = "NextStep-1",
    .prompt = "{prompt}<|image_area|>{rows}*{columns}<|begin_of_image|>",
    .negative = "{prompt}<|image_area|>{rows}*{columns}<|begin_of_image|>",
    .negative_prompt = "",
    .stride = 16,
    .unit = 16,
    .width = 512,
    .height = 512,
    .context = 32768,
    .recognise = nextstep_is_language,
    .read = nextstep_read,
};
