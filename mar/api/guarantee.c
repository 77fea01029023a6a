/* The only place that words a guarantee. "exact" says to what: plain sampling with the steps of this session, and which
 * options of plain sampling are not those that the model has by default. */
#include "mar/api/guarantee.h"

#include "kernels/ops.h"
#include "mar/accel/registry.h"
#include "mar/core/params.h"

#include <stdio.h>
#include <string.h>

/* Returns whether the option has a value in plain sampling of such tokens and no accelerator replaces it. */
static int is_of_plain(int i, const mar_params *p, const char *tokens)
{
    const mar_param *o = mar_param_get(i);
    if (strcmp(o->group, "Sampling") != 0 && strcmp(o->group, "Steps") != 0) return 0;
    if (strcmp(o->name, "seed") == 0 || (o->tokens && strcmp(o->tokens, tokens) != 0)) return 0;
    return mar_params_unused(p, i) == NULL;
}

/* Writes two floats for reading, 30 where records have 3e+01, if their six digits differ. */
static void shorten(const mar_param *o, const mar_params *p, const mar_params *usual, char *value, char *by_default,
                    size_t size)
{
    char short_value[48], short_default[48];
    if (o->type != MAR_TYPE_FLOAT) return;
    snprintf(short_value, sizeof short_value, "%g", (double)*(const float *)mar_param_field(o, p));
    snprintf(short_default, sizeof short_default, "%g", (double)*(const float *)mar_param_field(o, usual));
    if (strcmp(short_value, short_default) == 0) return;
    snprintf(value, size, "%s", short_value);
    snprintf(by_default, size, "%s", short_default);
}

/* Lists the options of plain sampling whose values are not the model's defaults: "num_iter 8 (64), cfg 30 (2.9)".
 * Returns their number. */
static int list_departures(const mar_model *model, const mar_params *p, char *text, size_t size)
{
    mar_params usual;
    int count = 0;
    size_t used = 0;
    mar_params_init(&usual, sizeof usual);
    mar_params_take_defaults(&usual, &model->config);
    text[0] = '\0';
    for (int i = 0; i < mar_param_count(); i++) {
        char value[48], by_default[48];
        const mar_param *o = mar_param_get(i);
        if (!is_of_plain(i, p, model->engine->tokens)) continue;
        mar_param_text(o, p, value, sizeof value);
        mar_param_text(o, &usual, by_default, sizeof by_default);
        if (strcmp(value, by_default) == 0) continue;
        shorten(o, p, &usual, value, by_default, sizeof value);
        const int n =
            snprintf(text + used, size - used, "%s%s %s (%s)", count++ ? ", " : "", o->name, value, by_default);
        used = (size_t)n < size - used ? used + (size_t)n : size - 1; /* cut: nothing replaces what is there */
    }
    return count;
}

/* Tells whether a token that is not known is drawn without a known one: one behind it, in raster order. */
static int misses_known(const mar_model_config *c, const uint8_t *known)
{
    int unknown = 0;
    for (int i = 0; i < c->seq_len; i++) {
        if (unknown && known[i]) return c->order == MAR_ORDER_RASTER;
        unknown |= !known[i];
    }
    return 0;
}

/* Writes what images are compared with: "plain sampling, 64 steps of 100". A step of a continuous token has diffusion
 * steps. */
static void write_reference(const mar_model *model, const mar_params *p, const uint8_t *known, char *text, size_t size)
{
    const char *unknown = !known ? "" : " of the unknown tokens";
    const char *given = known && misses_known(&model->config, known) ? ", each given those before it" : "";
    const int steps = p->gtr ? model->config.num_iter : p->num_iter; /* GtR's stages take the place of num_iter */
    char each[32] = "";
    if (strcmp(model->engine->tokens, "continuous") == 0) snprintf(each, sizeof each, " of %d", p->num_sampling_steps);
    snprintf(text, size, "plain sampling%s%s, %d step%s%s", unknown, given, steps, steps == 1 ? "" : "s", each);
}

/* Adds what is rounded, NULL: nothing. Methods that are exact keep the distribution of the rounded model. */
static void add_rounding(const char *what, mar_effect *effect)
{
    const mar_effect of_method = *effect;
    if (!what) return;
    effect->exact = 0;
    snprintf(effect->how, sizeof effect->how, "%s%s%.*s", what, of_method.exact ? "" : ", ",
             of_method.exact ? 0 : (int)(sizeof effect->how - strlen(what) - sizeof ", "), of_method.how);
}

/* Returns what rounds keys and values more than the products' operands are; NULL if nothing does. */
static const char *cache_rounding(const kern_device *device, mar_cache cache)
{
    if (cache == MAR_CACHE_INT8) return "keys and values in int8";
    return cache == MAR_CACHE_BF16 && device->act_size > 2 ? "keys and values in bf16" : NULL;
}

static void guarantee_write_line(const mar_guarantee *g, char *line, size_t size)
{
    const char *usual = g->departures ? "" : " (the model's defaults)";
    const char *stop = g->departures ? "; not the model's defaults: " : "";
    if (g->exact)
        snprintf(line, size, "exact to: %s%s%s%s%s%s", g->reference, usual, *g->method ? ", " : "", g->method, stop,
                 g->departing);
    else
        snprintf(line, size, "approximate: %s; relative to %s%s%s%s", g->method, g->reference, usual, stop,
                 g->departing);
}

void mar_guarantee_write(const mar_model *model, const mar_engine_state *state, const mar_params *params,
                         const uint8_t *known, mar_guarantee_text *out)
{
    const mar_effect *effect = model->engine->effect(state);
    if (effect)
        out->effect = *effect;
    else
        mar_accels_effect(params, &out->effect);
    add_rounding(cache_rounding(model->m->device, params->cache_dtype), &out->effect);
    add_rounding(kern_low_name(model->m->device), &out->effect);
    write_reference(model, params, known, out->reference, sizeof out->reference);
    out->facts = (mar_guarantee){.size = sizeof out->facts,
                                 .exact = out->effect.exact,
                                 .departures = list_departures(model, params, out->departing, sizeof out->departing),
                                 .reference = out->reference,
                                 .method = out->effect.how,
                                 .departing = out->departing};
    guarantee_write_line(&out->facts, out->line, sizeof out->line);
}
