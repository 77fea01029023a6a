#include "llamagen/engine.h"

mar_status mar_drafter_create(kern_queue *k, const mar_model *draft, const mar_discrete_model *model,
                              causal_runner *target, const causal_sampling *sampling, int images, int drafts,
                              mar_drafter *out, mar_err *err)
{
    const eagle_model *eagle = mar_eagle_of(draft);
    *out = (mar_drafter){NULL, NULL};
    if (eagle) return eagle_runner_create(k, eagle, model->gpt, target, sampling, images, drafts, &out->eagle, err);
    const mar_status status =
        causal_runner_create(k, mar_discrete_model_of(draft)->gpt, sampling, images, drafts, 0, &out->model, err);
    if (status == MAR_OK) causal_runner_name(out->model, "draft: ");
    return status;
}

void mar_drafter_set_cache(mar_drafter *d, kern_cache_type type)
{
    if (d->eagle) eagle_runner_set_cache(d->eagle, type);
    if (d->model) causal_runner_set_cache(d->model, type);
}

void mar_drafter_set_negative(mar_drafter *d, const float *features, const uint8_t *mask)
{
    if (d->model) causal_runner_set_negative(d->model, features, mask); /* a drafter reads the target's */
}

void mar_drafter_free(mar_drafter *d)
{
    causal_runner_free(d->model);
    eagle_runner_free(d->eagle);
}

size_t mar_drafter_lay_out(mar_drafter *d, char *base)
{
    if (d->eagle) return eagle_runner_lay_out(d->eagle, base);
    return d->model ? causal_runner_lay_out(d->model, base) : 0;
}

mar_status mar_drafter_plan(mar_drafter *d, int images, mar_err *err)
{
    if (d->eagle) return eagle_runner_plan(d->eagle, images, err);
    return d->model ? causal_runner_plan(d->model, images, err) : MAR_OK;
}

void mar_drafter_clear_stats(mar_drafter *d)
{
    if (d->eagle) eagle_runner_clear_stats(d->eagle);
    if (d->model) causal_runner_clear_stats(d->model);
}

void mar_drafter_admit(mar_drafter *d, const causal_start *start, int n)
{
    if (d->eagle) eagle_runner_admit(d->eagle, start, n);
    if (d->model) causal_runner_admit(d->model, start, n);
}

mar_status mar_drafter_log_probs(mar_drafter *d, const causal_request *request, int n, float *log_probs, mar_err *err)
{
    return d->eagle ? eagle_runner_log_probs(d->eagle, request, n, log_probs, err)
                    : causal_runner_log_probs(d->model, request, n, log_probs, err);
}

const causal_runner_stats *mar_drafter_stats(const mar_drafter *d)
{
    if (d->eagle) return eagle_runner_get_stats(d->eagle);
    return d->model ? causal_runner_get_stats(d->model) : NULL;
}
