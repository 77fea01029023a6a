/* A session's options from a program: set up, set by name, and read, of this or an older mar.h. */
#include "mar/core/params.h"
#include "mar/core/sized.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mar_params_init(mar_params *params, size_t size)
{
    mar_params all = {0};
    for (int i = 0; i < mar_param_count(); i++) mar_param_reset(mar_param_get(i), &all);
    mar_sized_init(params, size, &all, sizeof all);
}

mar_params *mar_params_new(void)
{
    mar_params *params = malloc(sizeof *params);
    mar_params_init(params, sizeof *params); /* NULL is fine */
    return params;
}

void mar_params_free(mar_params *params)
{
    free(params);
}

/* Returns whether the field lies in a struct of `size` bytes. */
static int is_within(const mar_param *o, size_t size)
{
    return o->offset + mar_param_size(o) <= size;
}

/* Returns whether the text sets two options: cfg_interval as LOW,HIGH. */
static int is_interval(const char *name, const char *text)
{
    return name && text && strcmp(name, "cfg_interval") == 0 && strchr(text, ',');
}

/* Sets cfg_low and cfg_high, which lie before cfg_interval in the struct. */
static mar_status set_interval(mar_params *params, const char *text, mar_err *err)
{
    const mar_param *ends[] = {mar_param_find("cfg_low"), mar_param_find("cfg_high")};
    char end[2][32];
    mar_params p = {0};
    const size_t low = strcspn(text, ",");
    snprintf(end[0], sizeof end[0], "%.*s", (int)low, text);
    snprintf(end[1], sizeof end[1], "%s", text + low + 1);
    if (low >= sizeof end[0] || strlen(text + low + 1) >= sizeof end[1] ||
        mar_param_set(ends[0], &p, end[0], NULL, 0) != MAR_OK ||
        mar_param_set(ends[1], &p, end[1], NULL, 0) != MAR_OK || p.cfg_low > p.cfg_high)
        return err_set(
            err, MAR_EARG,
            "--cfg_interval %s: expected LOW,HIGH, two fractions of known tokens from 0 to 1, the lower first", text);
    params->cfg_low = p.cfg_low;
    params->cfg_high = p.cfg_high;
    return MAR_OK;
}

/* Returns MAR_EARG if these parameters have no option of that name that text can set. */
static mar_status check_settable(const mar_params *params, const char *name, const mar_param *o, mar_err *err)
{
    const mar_status status = mar_sized_check(params, sizeof *params, "mar_params", err);
    if (status != MAR_OK) return status;
    if (!o) return err_set(err, MAR_EARG, "%s: no such option", name ? name : "NULL");
    if (!is_within(o, params->size))
        return err_set(err, MAR_EARG, "--%s: the program was compiled with a mar.h that does not have it", name);
    if (o->type == MAR_TYPE_MODEL)
        return err_set(err, MAR_EARG, "--%s: is a model that the program loads, expected its field to be set", name);
    return MAR_OK;
}

mar_status mar_params_set(mar_params *params, const char *name, const char *text, char *why, size_t size)
{
    mar_err err;
    const mar_param *o = name ? mar_param_find(name) : NULL;
    mar_status status = check_settable(params, name, o, &err);
    if (status == MAR_OK && !is_interval(name, text)) return mar_param_set(o, params, text, why, size);
    if (status == MAR_OK) status = set_interval(params, text, &err);
    if (why && status != MAR_OK) err_line(why, size, "%s", err.text);
    return status;
}

mar_status mar_params_read(const mar_params *params, mar_params *out, mar_err *err)
{
    mar_params_init(out, sizeof *out);
    mar_status status = mar_sized_read(params, out, sizeof *out, "mar_params", err);
    for (int i = 0; i < mar_param_count() && status == MAR_OK; i++) {
        const mar_param *o = mar_param_get(i);
        status = mar_param_check(o, out, err);
        if (status != MAR_OK) break;
        const char **name = mar_param_field(o, out);
        if (o->type == MAR_TYPE_NAME && *name) *name = o->choices[mar_param_choice(o, *name)];
    }
    return status;
}

mar_status mar_params_suit(const mar_params *params, const mar_model_config *model, mar_err *err)
{
    if (params->time_shift != 0 && model->time_shift == 0)
        return err_set(err, MAR_EARG, "--time_shift has no effect: %s draws tokens without a flow", model->title);
    if (params->cache_dtype != MAR_CACHE_AUTO && model->order != MAR_ORDER_RASTER)
        return err_set(err, MAR_EARG, "--cache_dtype has no effect: %s does not make its tokens in raster order",
                       model->title);
    if (params->token_norm != 0 && model->token_norm == 0)
        return err_set(err, MAR_EARG, "--token_norm has no effect: the tokens of %s have no normalisation to choose",
                       model->title);
    return MAR_OK;
}

void mar_params_take_defaults(mar_params *params, const mar_model_config *model)
{
    if (params->num_iter == 0) params->num_iter = model->num_iter;
    if (params->cfg < 0) params->cfg = model->cfg;
    if (params->cfg_schedule == MAR_CFG_AUTO) params->cfg_schedule = model->cfg_schedule;
    if (params->num_sampling_steps == 0) params->num_sampling_steps = model->num_sampling_steps;
    if (params->time_shift == 0) params->time_shift = model->time_shift;
    if (params->token_norm == 0) params->token_norm = model->token_norm;
}
