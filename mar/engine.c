/* The registry of model families, and models as the public header shows them. */
#include "mar/engine.h"

static const mar_engine *const *engines(void)
{
    extern const mar_engine mar_masked_engine;
    static const mar_engine *const list[] = {&mar_masked_engine, NULL};
    return list;
}

/* The family of a checkpoint; the first if it looks like none, whose load says what is missing. */
static const mar_engine *engine_of(const wt_file *f)
{
    for (const mar_engine *const *e = engines(); *e; e++)
        if ((*e)->recognise(f)) return *e;
    return engines()[0];
}

/* Loads the model on a queue of its own. When that has finished, all queues can use the model. */
static mar_status load(mar *m, const wt_file *file, int heads, mar_model **out, mar_err *err)
{
    const mar_engine *engine = engine_of(file);
    kern_queue *k;
    mar_status status = m->device->core->queue_create(m->device, &k, err);
    if (status != MAR_OK) return status;
    k->core->enter(k);
    status = engine->load(m, k, file, heads, out, err);
    k->core->finish(k);
    if (status == MAR_OK && (status = kern_check(k, err)) != MAR_OK) {
        engine->unload(*out);
        *out = NULL;
    }
    k->core->leave(k);
    k->core->queue_free(k);
    if (status != MAR_OK) return status;
    (*out)->engine = engine;
    (*out)->references = 1;
    mar_retain(m);
    return MAR_OK;
}

mar_status mar_model_load(mar *m, const char *path, int heads, mar_model **out)
{
    const double start = mar_now();
    mar_err err = {0};
    if (out) *out = NULL;
    mar_status status = mar_check_handle(m, &err);
    if (status == MAR_OK) status = mar_check_given(path, "path", &err);
    if (status == MAR_OK) status = mar_check_given(out, "out", &err);
    if (status != MAR_OK) return mar_result(m, status, &err);
    wt_file *file = NULL;
    const wt_embedded *demo = wt_demo_mar(path);
    status = demo ? wt_open_memory(demo->data, demo->size, path, &file, &err) : wt_open(path, &file, &err);
    if (status == MAR_OK) status = load(m, file, heads, out, &err);
    wt_close(file);
    if (status == MAR_OK)
        mar_log(m, MAR_LOG_INFO, "model %s: %ld parameters, loaded in %.3g s", path, (*out)->config.parameters,
                mar_now() - start);
    return mar_result(m, status, &err);
}

void mar_model_retain(mar_model *model)
{
    atomic_fetch_add(&model->references, 1);
}

void mar_model_free(mar_model *model)
{
    if (!model || mar_is_elsewhere(model->m) || atomic_fetch_sub(&model->references, 1) > 1) return;
    mar *m = model->m;
    model->engine->unload(model);
    mar_release(m);
}

const mar_model_config *mar_model_get_config(const mar_model *model)
{
    return model ? &model->config : NULL;
}
