/* A session's options from a program: set up, set by name, and read, of this or an older mar.h. */
#include "mar/core/params.h"

#include <stdio.h>
#include <string.h>

void mar_params_init(mar_params *params, size_t size)
{
    mar_params all = {0};
    for (int i = 0; i < mar_param_count(); i++) mar_param_reset(mar_param_get(i), &all);
    all.size = size;
    if (!params) return;
    memset(params, 0, size);
    memcpy(params, &all, size < sizeof all ? size : sizeof all);
}

/* Returns whether the field lies in a struct of `size` bytes. */
static int is_within(const mar_param *o, size_t size)
{
    return o->offset + mar_param_size(o) <= size;
}

/* Returns whether the size can be that of a struct: in every header it is a multiple of the alignment. */
static int is_set_up(const mar_params *params)
{
    return is_within(mar_param_get(0), params->size) && params->size % _Alignof(mar_params) == 0;
}

/* Returns whether the text sets two options: cfg_interval as LOW,HIGH. */
static int is_interval(const char *name, const char *text)
{
    return name && text && strcmp(name, "cfg_interval") == 0 && strchr(text, ',');
}

static mar_status set_interval(mar_params *params, const char *text, mar_err *err)
{
    const mar_param *ends[] = {mar_param_find("cfg_low"), mar_param_find("cfg_high")};
    char end[2][32];
    mar_params p = {0};
    const size_t low = strcspn(text, ",");
    snprintf(end[0], sizeof end[0], "%.*s", (int)low, text);
    snprintf(end[1], sizeof end[1], "%s", text + low + 1);
    if (!is_within(ends[0], params->size) || !is_within(ends[1], params->size))
        return err_set(err, MAR_EARG,
                       "--cfg_interval %s: the program was compiled with a mar.h that does not have --cfg_low", text);
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

mar_status mar_params_set(mar_params *params, const char *name, const char *text, char *why, size_t size)
{
    mar_err err;
    const mar_param *o = name ? mar_param_find(name) : NULL;
    mar_status status = MAR_OK;
    if (!params)
        status = err_set(&err, MAR_EARG, "params is NULL");
    else if (!o)
        status = err_set(&err, MAR_EARG, "%s: no such option", name ? name : "NULL");
    else if (!is_set_up(params))
        status = err_set(&err, MAR_EARG, "mar_params of %zu bytes: expected mar_params_init to have set them up",
                         params->size);
    else if (is_interval(name, text))
        status = set_interval(params, text, &err);
    else if (!is_within(o, params->size))
        status = err_set(&err, MAR_EARG, "--%s: the program was compiled with a mar.h that does not have it", name);
    else if (o->type == MAR_TYPE_MODEL)
        status = err_set(&err, MAR_EARG, "--%s: is a model that the program loads, expected its field to be set", name);
    else
        return mar_param_set(o, params, text, why, size);
    if (why && status != MAR_OK) err_line(why, size, "%s", err.text);
    return status;
}

mar_status mar_params_read(const mar_params *params, mar_params *out, mar_err *err)
{
    mar_params_init(out, sizeof *out);
    if (!params) return err_set(err, MAR_EARG, "params is NULL, expected what mar_params_init has set up");
    if (!is_set_up(params))
        return err_set(err, MAR_EARG, "mar_params of %zu bytes: expected mar_params_init to have set them up",
                       params->size);
    if (params->size > sizeof *out)
        return err_set(err, MAR_EARG,
                       "mar_params of %zu bytes: the program was compiled with a newer mar.h, expected %zu at most "
                       "with libmar %s",
                       params->size, sizeof *out, mar_version());
    for (int i = 0; i < mar_param_count(); i++) {
        const mar_param *o = mar_param_get(i);
        if (!is_within(o, params->size)) continue;
        memcpy(mar_param_field(o, out), mar_param_field(o, params), mar_param_size(o));
        const mar_status status = mar_param_check(o, out, err);
        if (status != MAR_OK) return status;
        const char **name = mar_param_field(o, out);
        if (o->type == MAR_TYPE_NAME && *name) *name = o->choices[mar_param_choice(o, *name)];
    }
    return MAR_OK;
}
