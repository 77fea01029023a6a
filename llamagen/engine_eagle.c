/* EAGLE drafters behind mar.h: models that serve as drafts only. */
#include "llamagen/engine.h"
#include "mar_files.h"

#include <stdio.h>
#include <stdlib.h>

static void unload(mar_model *base)
{
    mar_eagle_model *model = (mar_eagle_model *)base;
    if (!model) return;
    eagle_model_free(model->eagle);
    free(model);
}

static mar_status load(mar *m, kern_queue *k, const wt_file *f, int heads, mar_model **out, mar_err *err)
{
    mar_eagle_model *model = calloc(1, sizeof *model);
    *out = NULL;
    if (!model) return err_set(err, MAR_ENOMEM, "out of memory");
    model->base.m = m;
    const mar_status status = eagle_model_create(k, f, heads, &model->eagle, err);
    if (status != MAR_OK) {
        free(model);
        return status;
    }
    model->base.config = mar_eagle_public_config(&model->eagle->config);
    *out = &model->base;
    return MAR_OK;
}

static void describe(const mar_model *model, char *text, size_t size)
{
    const kern_device *d = model->m->device;
    const char *low = kern_low_name(d);
    snprintf(text, size, "layer: matrix products in %s", low ? low : d->act_size == sizeof(float) ? "f32" : "bf16");
}

static mar_status create(mar_model *model, const mar_vae *vae, kern_queue *k, const mar_params *params,
                         const mar_accel *const *accels, int max_images, mar_engine_state **out, mar_err *err)
{
    (void)model, (void)vae, (void)k, (void)params, (void)accels, (void)max_images;
    *out = NULL;
    return err_set(err, MAR_EMODEL,
                   "an EAGLE drafter makes no images: expected a LlamaGen model, for which it is the draft");
}

const mar_engine mar_eagle_engine = {
    .name = "eagle",
    .tokens = "discrete",
    .kinds = 1 << MAR_KIND_EAGLE,
    .load = load,
    .unload = unload,
    .describe = describe,
    .create = create,
};
