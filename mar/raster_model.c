#include "mar/raster_model.h"

#include <stdio.h>
#include <stdlib.h>

/* Fills new backend memory with n numbers x. */
static mar_status raster_fill(kern_queue *k, float x, int n, float **out, mar_err *err)
{
    float *host = malloc((size_t)n * sizeof *host);
    if (!host) return err_set(err, MAR_ENOMEM, "out of memory");
    for (int i = 0; i < n; i++) host[i] = x;
    const mar_status status = kern_new_array(k, host, (size_t)n, out, err);
    free(host);
    return status;
}

static mar_status raster_load_head(mar_raster_model *model, kern_queue *k, const wt_file *f, mar_err *err)
{
    const mar *m = model->base.m;
    const int channels = model->facts.head.channels;
    mar_status status = raster_fill(k, 1, channels, &model->ones, err);
    if (status == MAR_OK) status = raster_fill(k, 0, channels, &model->zeros, err);
    if (status == MAR_OK)
        status = diff_head_load(k, f, &model->facts.head, m->head_dtype, m->int8_below, &model->head, err);
    if (status == MAR_OK && model->head.dtype != m->head_dtype) model->base.config.warning = diff_head_f32_warning;
    return status;
}

mar_status mar_raster_load(mar *m, kern_queue *k, const wt_file *f, const raster_facts *facts, const char *note,
                           mar_model **out, mar_err *err)
{
    *out = NULL;
    mar_raster_model *model = calloc(1, sizeof *model);
    if (!model) return err_set(err, MAR_ENOMEM, "out of memory");
    model->base.m = m;
    model->base.config = facts->config;
    model->base.config.warning = NULL;
    model->facts = *facts;
    model->facts.image_id = NULL;
    if (*note) {
        snprintf(model->note, sizeof model->note, "%s", note);
        model->base.config.warning = model->note;
    }
    mar_status status = causal_model_load(k, f, &facts->net, facts->image_id, &model->net, err);
    if (status == MAR_OK && !raster_is_discrete(model)) status = raster_load_head(model, k, f, err);
    if (status == MAR_OK) {
        *out = &model->base;
    } else {
        k->core->finish(k); /* waits for uploads that have begun */
        mar_raster_unload(&model->base);
    }
    return status;
}

mar_status raster_load(mar *m, kern_queue *k, const wt_file *f, const family_facts *of, mar_model **out, mar_err *err)
{
    const raster_facts facts = {.config = of->config,
                                .net = of->shape,
                                .image_id = of->language.vocabulary.image_id,
                                .head = of->head,
                                .process = of->process,
                                .norm = of->norm,
                                .falls = of->falls,
                                .first_is_apart = of->first_is_apart,
                                .last_is_counted = of->last_is_counted,
                                .last_is_noisy = of->last_is_noisy};
    return mar_raster_load(m, k, f, &facts, of->note, out, err);
}

void mar_raster_unload(mar_model *base)
{
    mar_raster_model *m = (mar_raster_model *)base;
    if (!m) return;
    kern_device *d = base->m->device;
    d->core->free(d, m->ones);
    d->core->free(d, m->zeros);
    causal_model_free(m->net);
    diff_head_free(&m->head);
    free(m);
}

void mar_raster_describe(const mar_model *base, char *text, size_t size)
{
    const mar_raster_model *model = mar_raster_model_of(base);
    const kern_device *d = base->m->device;
    const char *low = kern_low_name(d);
    const char *passes = model->net->decoder ? ", passes of few rows in one launch" : "";
    if (raster_is_discrete(model))
        snprintf(text, size, "transformer: matrix products in %s%s%s%s", low ? low : "", low ? ", of logits in " : "",
                 d->act_size == sizeof(float) ? "f32" : "bf16", passes);
    else
        snprintf(text, size, "head: %s%s%s", d->head->describe(model->head.net), *passes ? "; transformer" : "",
                 passes);
}
