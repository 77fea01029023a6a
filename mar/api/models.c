/* The registry of model families, and the public calls on models. */
#include "mar/core/engine.h"

#include "mar/api/kinds.h"
#include "mar/api/source.h"
#include "mar/core/vae.h"

static const mar_engine *const *engines(void)
{
    extern const mar_engine mar_masked_engine, mar_discrete_engine, mar_eagle_engine, mar_sphere_engine;
    static const mar_engine *const list[] = {&mar_masked_engine, &mar_discrete_engine, &mar_eagle_engine,
                                             &mar_sphere_engine, NULL};
    return list;
}

/* Returns the family of a checkpoint that mar_check_kind has accepted as a model. */
static const mar_engine *engine_of(const wt_file *f)
{
    const mar_kind kind = mar_kind_of(f)->kind;
    const mar_engine *const *e = engines();
    while (!((*e)->kinds & 1u << kind)) e++;
    return *e;
}

/* Loads the model on a queue of its own. Once that queue has finished, all queues can use the model. */
static mar_status load(mar *m, wt_file *file, const mar_source *source, mar_model **out, mar_err *err)
{
    mar_loader l;
    mar_status status = mar_check_kind(file, MAR_KINDS_OF_MODELS, "a MAR, SphereAR or LlamaGen model", err);
    if (status == MAR_OK) status = mar_check_heads(file, source->heads, err);
    if (status == MAR_OK && source->encoder)
        status =
            err_set(err, MAR_EARG, "mar_source.encoder is 1: %s is a model, expected an image decoder", wt_path(file));
    if (status == MAR_OK) status = mar_loader_begin(&l, m, file, source, err);
    if (status != MAR_OK) return status;
    const mar_engine *engine = engine_of(file);
    status = engine->load(m, l.k, file, source->heads, out, err);
    const int loaded = status == MAR_OK;
    status = mar_loader_end(&l, status, err);
    if (loaded && status != MAR_OK) {
        engine->unload(*out);
        *out = NULL;
    }
    if (status != MAR_OK) return status;
    (*out)->engine = engine;
    (*out)->config.int8_weights = mar_has_low(file, WT_I8);
    (*out)->references = 1;
    mar_retain(m);
    return MAR_OK;
}

static void log_loaded(const mar *m, const mar_model *model, const wt_file *file, double seconds)
{
    char how[ERR_TEXT_MAX], weights[160];
    mar_weights_text(file, weights, sizeof weights);
    model->engine->describe(model, how, sizeof how);
    mar_log(m, MAR_LOG_INFO, "model %s: %ld parameters%s, loaded in %.3g s; %s%s", wt_path(file),
            model->config.parameters, weights, seconds, how,
            model->config.int8_weights && !m->device->int8
                ? "; its int8 weights are restored, where --dtype int8 would multiply them as they are"
            : mar_has_low(file, WT_I4) && !m->device->int4
                ? "; its int4 weights are restored, where --dtype int4 would multiply them as they are"
                : "");
    if (model->warning) mar_log(m, MAR_LOG_WARNING, "model %s: %s", wt_path(file), model->warning);
}

mar_status mar_model_load_from(mar *m, const mar_source *source, mar_model **out)
{
    const double start = mar_now();
    mar_err err = {0};
    mar_source s;
    wt_file *file = NULL;
    if (out) *out = NULL;
    mar_status status = mar_check_source(m, source, out, &s, &err);
    if (status == MAR_OK) status = mar_open_source(&s, 0, m->weights, &file, &err);
    if (status == MAR_OK) {
        wt_allow_nonfinite(file, m->allow_nonfinite);
        status = load(m, file, &s, out, &err);
        if (status == MAR_OK) log_loaded(m, *out, file, mar_now() - start);
        wt_close(file);
    }
    return mar_result(m, status, &err);
}

mar_status mar_model_load(mar *m, const char *path, int heads, mar_model **out)
{
    mar_source source;
    mar_source_init(&source, sizeof source);
    source.path = path;
    source.heads = heads;
    return mar_model_load_from(m, &source, out);
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
