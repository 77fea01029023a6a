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

mar_status mar_model_load(mar *m, const char *path, int heads, mar_model **out)
{
    *out = NULL;
    wt_file *file = NULL;
    const wt_embedded *demo = wt_demo_mar(path);
    mar_status status =
        demo ? wt_open_memory(demo->data, demo->size, path, &file, &m->err) : wt_open(path, &file, &m->err);
    kern_queue *k = NULL;
    if (status == MAR_OK) status = m->device->core->queue_create(m->device, &k, &m->err);
    if (status == MAR_OK) {
        const mar_engine *engine = engine_of(file);
        status = engine->load(m, k, file, heads, out, &m->err);
        if (*out) (*out)->engine = engine;
        k->core->finish(k);
        k->core->queue_free(k);
    }
    wt_close(file);
    return status;
}

void mar_model_free(mar_model *model)
{
    if (model) model->engine->unload(model);
}

const mar_model_config *mar_model_get_config(const mar_model *model)
{
    return &model->config;
}
