#include "mar/core/conditioning.h"

#include "mar/core/engine.h"

#include <float.h>
#include <math.h>

static mar_status check_labels(const int *labels, const mar_model_config *c, int n, mar_err *err)
{
    for (int i = 0; i < n; i++)
        if (labels[i] < -1 || labels[i] >= c->classes)
            return err_set(err, MAR_EARG, "class %d: expected 0..%d, or -1 for unconditional", labels[i],
                           c->classes - 1);
    return MAR_OK;
}

mar_status mar_features_check(const float *features, const mar_model_config *c, int n, mar_err *err)
{
    const size_t dim = (size_t)c->caption_dim, tokens = (size_t)c->caption_tokens, count = (size_t)n * tokens * dim;
    for (size_t at = 0; at < count; at++)
        if (!(fabsf(features[at]) <= FLT_MAX))
            return err_set(err, MAR_EARG, "caption %zu: a feature is %s (position %zu, number %zu)", at / dim / tokens,
                           mar_not_finite(features[at]), at / dim % tokens, at % dim);
    return MAR_OK;
}

mar_status mar_prompt_check(const float *ids, const uint8_t *mask, int prefix, int rows, mar_err *err)
{
    int first = 0;
    if (!ids) return MAR_OK;
    while (mask && first < prefix && !mask[first]) first++;
    if (first == prefix) return err_set(err, MAR_EARG, "the caption's mask is 0 everywhere, expected a prompt");
    for (int i = first; i < prefix; i++) {
        if (mask && !mask[i])
            return err_set(err, MAR_EARG,
                           "the caption's mask is 0 at position %d behind a 1, expected padding on the "
                           "left alone",
                           i);
        if (!(ids[i] >= 0 && ids[i] < (float)rows) || ids[i] != (float)(int)ids[i])
            return err_set(err, MAR_EARG, "the prompt's id at position %d is %g, expected 0..%d", i, (double)ids[i],
                           rows - 1);
    }
    return MAR_OK;
}

mar_status mar_refuse_no_negative(float cfg, mar_err *err)
{
    return err_set(err, MAR_EARG,
                   "guidance %g has nothing to guide away from: expected mar_session_set_negative before the first "
                   "image",
                   (double)cfg);
}

mar_status mar_conditioning_check(const mar_conditions *of, const mar_model_config *model, int n, mar_err *err)
{
    if (of->labels && model->caption_tokens)
        return err_set(err, MAR_EARG, "the model makes images of captions: expected their features, %d by %d",
                       model->caption_tokens, model->caption_dim);
    if (!of->labels && !model->caption_tokens)
        return err_set(err, MAR_EARG, "the model makes images of classes, not of captions: expected labels");
    return of->labels ? check_labels(of->labels, model, n, err) : mar_features_check(of->features, model, n, err);
}
