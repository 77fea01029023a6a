#include "mar/raster_draft.h"

#include <stdio.h>
#include <stdlib.h>

mar_status raster_drafter_create(kern_queue *k, const mar_model *draft, const mar_raster_model *model,
                                 causal_runner *target, const causal_sampling *sampling, int images, int drafts,
                                 raster_drafter *out, mar_err *err)
{
    const eagle_model *eagle = raster_eagle_of(draft);
    *out = (raster_drafter){NULL, NULL};
    if (eagle) return eagle_runner_create(k, eagle, model->net, target, sampling, images, drafts, &out->eagle, err);
    const mar_status status =
        causal_runner_create(k, mar_raster_model_of(draft)->net, sampling, images, drafts, 0, &out->model, err);
    if (status == MAR_OK) causal_runner_name(out->model, "draft: ");
    return status;
}

void raster_drafter_set_cache(raster_drafter *d, kern_cache_type type)
{
    if (d->eagle) eagle_runner_set_cache(d->eagle, type);
    if (d->model) causal_runner_set_cache(d->model, type);
}

void raster_drafter_set_negative(raster_drafter *d, const float *features, const uint8_t *mask)
{
    if (d->model) causal_runner_set_negative(d->model, features, mask); /* a drafter reads the target's */
}

void raster_drafter_free(raster_drafter *d)
{
    causal_runner_free(d->model);
    eagle_runner_free(d->eagle);
}

size_t raster_drafter_lay_out(raster_drafter *d, char *base)
{
    if (d->eagle) return eagle_runner_lay_out(d->eagle, base);
    return d->model ? causal_runner_lay_out(d->model, base) : 0;
}

mar_status raster_drafter_plan(raster_drafter *d, int images, mar_err *err)
{
    if (d->eagle) return eagle_runner_plan(d->eagle, images, err);
    return d->model ? causal_runner_plan(d->model, images, err) : MAR_OK;
}

void raster_drafter_clear_stats(raster_drafter *d)
{
    if (d->eagle) eagle_runner_clear_stats(d->eagle);
    if (d->model) causal_runner_clear_stats(d->model);
}

void raster_drafter_admit(raster_drafter *d, const causal_start *start, int n)
{
    if (d->eagle) eagle_runner_admit(d->eagle, start, n);
    if (d->model) causal_runner_admit(d->model, start, n);
}

mar_status raster_drafter_log_probs(raster_drafter *d, const causal_request *request, int n, float *log_probs,
                                    mar_err *err)
{
    return d->eagle ? eagle_runner_log_probs(d->eagle, request, n, log_probs, err)
                    : causal_runner_log_probs(d->model, request, n, log_probs, err);
}

const causal_runner_stats *raster_drafter_stats(const raster_drafter *d)
{
    if (d->eagle) return eagle_runner_get_stats(d->eagle);
    return d->model ? causal_runner_get_stats(d->model) : NULL;
}

/* --- EAGLE drafters behind mar.h: models that serve as drafts only ------------------------------------------------ */

static void eagle_unload(mar_model *base)
{
    raster_eagle_model *model = (raster_eagle_model *)base;
    if (!model) return;
    eagle_model_free(model->eagle);
    free(model);
}

static mar_status eagle_load(mar *m, kern_queue *k, const wt_file *f, const family_facts *facts, mar_model **out,
                             mar_err *err)
{
    raster_eagle_model *model = calloc(1, sizeof *model);
    *out = NULL;
    if (!model) return err_set(err, MAR_ENOMEM, "out of memory");
    model->base.m = m;
    const mar_status status = eagle_model_create(k, f, facts->eagle.heads, &model->eagle, err);
    if (status != MAR_OK) {
        free(model);
        return status;
    }
    model->base.config = facts->config;
    *out = &model->base;
    return MAR_OK;
}

static void raster_draft_eagle_describe(const mar_model *model, char *text, size_t size)
{
    const kern_device *d = model->m->device;
    const char *low = kern_low_name(d);
    snprintf(text, size, "layer: matrix products in %s", low ? low : d->act_size == sizeof(float) ? "f32" : "bf16");
}

static mar_status eagle_create(mar_model *model, const mar_vae *vae, kern_queue *k, const mar_params *params,
                               const mar_accel *const *accels, int max_images, mar_engine_state **out, mar_err *err)
{
    (void)model, (void)vae, (void)k, (void)params, (void)accels, (void)max_images;
    *out = NULL;
    return err_set(err, MAR_EMODEL,
                   "an EAGLE drafter makes no images: expected a LlamaGen model, for which it is the draft");
}

const mar_engine mar_eagle_engine = {
    .tokens = "discrete",
    .order = MAR_ORDER_RASTER,
    .load = eagle_load,
    .unload = eagle_unload,
    .describe = raster_draft_eagle_describe,
    .create = eagle_create,
};
