/* The registry of model families, and the public calls on models. */
#include "mar/core/engine.h"

#include "mar/api/kinds.h"
#include "mar/core/vae.h"

static const mar_engine *const *engines(void)
{
    extern const mar_engine mar_masked_engine, mar_discrete_engine, mar_eagle_engine;
    static const mar_engine *const list[] = {&mar_masked_engine, &mar_discrete_engine, &mar_eagle_engine, NULL};
    return list;
}

/* Returns the family of a checkpoint that mar_check_kind has accepted as a model. */
static const mar_engine *engine_of(const wt_file *f)
{
    const mar_kind kind = mar_kind_of(f)->kind;
    const mar_engine *const *e = engines();
    while ((*e)->kind != kind) e++;
    return *e;
}

/* Returns whether any of the model's matrices are int8 in the file. */
static int has_int8(const wt_file *f)
{
    const mar_file_kind *kind = mar_kind_of(f);
    for (int i = 0; kind && kind->is_int8 && i < wt_count(f); i++)
        if (wt_at(f, i)->dtype == WT_I8 && kind->is_int8(wt_at(f, i)->name)) return 1;
    return 0;
}

/* Loads the model on a queue of its own. Once that queue has finished, all queues can use the model. */
static mar_status load(mar *m, const wt_file *file, int heads, mar_model **out, mar_err *err)
{
    kern_queue *k;
    mar_status status = mar_check_kind(file, MAR_KINDS_OF_MODELS, "a MAR or LlamaGen model", err);
    if (status == MAR_OK) status = mar_check_heads(file, heads, err);
    if (status == MAR_OK) status = m->device->core->queue_create(m->device, &k, err);
    if (status != MAR_OK) return status;
    const mar_engine *engine = engine_of(file);
    k->core->bind(k);
    status = engine->load(m, k, file, heads, out, err);
    const int loaded = status == MAR_OK;
    k->core->finish(k);
    if (loaded) status = kern_check(k, err);
    status = wt_check_unchanged(file, status, err);
    if (loaded && status != MAR_OK) {
        engine->unload(*out);
        *out = NULL;
    }
    k->core->unbind(k);
    k->core->queue_free(k);
    if (status != MAR_OK) return status;
    (*out)->engine = engine;
    (*out)->config.int8_weights = has_int8(file);
    (*out)->references = 1;
    mar_retain(m);
    return MAR_OK;
}

mar_status mar_model_load(mar *m, const char *path, int heads, mar_model **out)
{
    const double start = mar_now();
    mar_err err = {0};
    char weights[96];
    if (out) *out = NULL;
    mar_status status = mar_check_load(m, path, out, &err);
    if (status != MAR_OK) return mar_result(m, status, &err);
    wt_file *file = NULL;
    status = mar_open_checkpoint(path, 0, m->weights, &file, &err);
    if (status == MAR_OK) {
        wt_allow_nonfinite(file, m->allow_nonfinite);
        status = load(m, file, heads, out, &err);
        mar_weights_text(file, weights, sizeof weights);
    }
    wt_close(file);
    if (status == MAR_OK) {
        char how[ERR_TEXT_MAX];
        (*out)->engine->describe(*out, how, sizeof how);
        mar_log(m, MAR_LOG_INFO, "model %s: %ld parameters%s, loaded in %.3g s; %s%s", path, (*out)->config.parameters,
                weights, mar_now() - start, how,
                (*out)->config.int8_weights && !m->device->int8
                    ? "; its int8 weights are restored, where --dtype int8 would multiply them as they are"
                    : "");
    }
    return mar_result(m, status, &err);
}

void mar_model_free(mar_model *model)
{
    if (!model || mar_in_forked_child(model->m) || atomic_fetch_sub(&model->references, 1) > 1) return;
    mar *m = model->m;
    model->engine->unload(model);
    mar_release(m);
}

const mar_model_config *mar_model_get_config(const mar_model *model)
{
    return model ? &model->config : NULL;
}
