#include "spherear/model.h"

#include <stdio.h>
#include <stdlib.h>

/* Source, destination and errors of the loading functions. */
typedef struct {
    kern_queue *k;
    const wt_file *file;
    mar_err *err;
} loader;

static mar_status make_ones(const loader *l, sphere_model *m)
{
    const size_t n = (size_t)m->shape.head.channels;
    float *ones = malloc(n * sizeof *ones);
    if (!ones) return err_set(l->err, MAR_ENOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) ones[i] = 1;
    const mar_status status = kern_new_array(l->k, ones, n, &m->ones, l->err);
    free(ones);
    return status;
}

static mar_status load_all(const loader *l, sphere_model *m)
{
    const mar *handle = m->base.m;
    mar_status status = causal_model_load(l->k, l->file, &m->shape.transformer.shape, NULL, &m->transformer, l->err);
    if (status == MAR_OK) status = make_ones(l, m);
    if (status == MAR_OK)
        status =
            diff_head_load(l->k, l->file, &m->shape.head, handle->head_dtype, handle->int8_below, &m->head, l->err);
    return status;
}

mar_model_config sphere_public_config(const sphere_config *config)
{
    const gpt_config *c = &config->transformer;
    return (mar_model_config){.size = sizeof(mar_model_config),
                              .width = c->shape.width,
                              .decoder_depth = c->shape.depth,
                              .heads = c->shape.heads,
                              .decoder_heads = c->shape.heads,
                              .heads_guessed = c->heads_guessed,
                              .mlp_hidden = c->shape.hidden,
                              .buffer = c->shape.prefix,
                              .seq_len = c->shape.seq_len,
                              .grid_width = c->shape.columns,
                              .token_dim = config->head.channels,
                              .classes = c->shape.classes,
                              .head_width = config->head.width,
                              .head_depth = config->head.depth,
                              .parameters = config->parameters,
                              .patch_size = 1,
                              .family = "spherear",
                              .title = "SphereAR",
                              .conditioning = MAR_CONDITION_CLASS,
                              .order = MAR_ORDER_RASTER,
                              .head = MAR_HEAD_FLOW,
                              .image_decoder = config->has_decoder};
}

mar_status sphere_model_load(mar *m, kern_queue *k, const wt_file *f, int heads, mar_model **out, mar_err *err)
{
    sphere_config shape;
    *out = NULL;
    mar_status status = sphere_config_derive(f, heads, &shape, err);
    if (status == MAR_OK && shape.transformer.heads_guessed)
        status = mar_refuse_heads(f, shape.transformer.shape.width, err);
    if (status != MAR_OK) return status;
    sphere_model *model = calloc(1, sizeof *model);
    if (!model) return err_set(err, MAR_ENOMEM, "out of memory");
    const loader l = {k, f, err};
    model->base.m = m;
    model->base.config = sphere_public_config(&shape);
    model->shape = shape;
    status = load_all(&l, model);
    if (status == MAR_OK) {
        if (model->head.dtype != m->head_dtype) model->base.config.warning = diff_head_f32_warning;
        *out = &model->base;
    } else {
        k->core->finish(k); /* waits for uploads that have begun */
        sphere_model_unload(&model->base);
    }
    return status;
}

void sphere_model_unload(mar_model *base)
{
    sphere_model *m = (sphere_model *)base;
    if (!m) return;
    kern_device *d = base->m->device;
    d->core->free(d, m->ones);
    causal_model_free(m->transformer);
    diff_head_free(&m->head);
    free(m);
}

void sphere_model_describe(const mar_model *model, char *text, size_t size)
{
    const diff_head *head = &sphere_model_of(model)->head;
    snprintf(text, size, "head: %s", head->device->head->describe(head->net));
}
