/* Latents of Flux's KL autoencoder (Black Forest Labs 2024; modeling_flux_vae.py of NextStep-1's release): no layer
 * stands between encoder and decoder. What makes tokens of latents is in config.json beside the tensors, or the
 * metadata of a converted file. */
#include "vae/steps.h"
#include "weights/shape.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NORM_MAX = 64 };
#define NUMBER_MAX 1e6 /* of both, and of 1 / scale */

static const char scale_key[] = "mar.vae_scale", shift_key[] = "mar.vae_shift", norm_key[] = "mar.vae_norm";

int vae_flux_recognise(const wt_file *f, const char *prefix)
{
    static const char *const around[] = {"post_quant_conv.", "quant_conv.", NULL};
    const size_t length = strlen(prefix);
    char name[VAE_NAME_SIZE];
    snprintf(name, sizeof name, "%sdecoder.mid.block_1.conv1.weight", prefix);
    if (!wt_find(f, name)) return 0;
    for (int i = 0; i < wt_count(f); i++) {
        const char *other = wt_at(f, i)->name;
        if (strncmp(other, prefix, length) == 0 && wt_begins_with(other + length, around)) return 0;
    }
    return 1;
}

/* --- config.json -------------------------------------------------------------------------------------------------- */

typedef struct {
    wt_file *f;
    const char *name;        /* of the configuration's file */
    const json_value *value; /* its object */
    mar_err *err;
} flux_config;

static mar_status flux_refuse(const flux_config *s, const char *key, const json_value *v, const char *expected)
{
    static const char *const types[] = {"null", "false", "true", "number", "string", "array", "object"};
    const char *text = !v ? "missing" : v->text ? v->text : types[v->type];
    const int length = v && v->text ? (int)v->length : (int)strlen(text);
    return err_set(s->err, MAR_EMODEL, "%s: %s has %s %.*s, expected %s", wt_path(s->f), s->name, key,
                   length < 40 ? length : 40, text, expected);
}

/* Adds the number `key` to the metadata; it is above `least`. */
static mar_status flux_add_real(const flux_config *s, const char *key, double least, const char *expected,
                                const char *to)
{
    char text[32];
    const json_value *v = json_member(s->value, key);
    const double x = v ? json_double(v) : NAN;
    if (!(x > least && x < NUMBER_MAX)) return flux_refuse(s, key, v, expected);
    snprintf(text, sizeof text, "%.9g", x);
    return wt_add_metadata(s->f, to, text, s->err);
}

/* Adds the patch of latents that the encoder normalises, if it does: psz x psz, or one. The releases' codes differ in
 * what a file without encoder_norm means, and in scale and shift. */
static mar_status flux_add_norm(const flux_config *s)
{
    char text[32];
    int64_t patch = 1;
    const json_value *norm = json_member(s->value, "encoder_norm"), *psz = json_member(s->value, "psz");
    if (!norm || (norm->type != JSON_TRUE && norm->type != JSON_FALSE))
        return flux_refuse(s, "encoder_norm", norm, "true or false");
    if (psz && psz->type != JSON_NULL && (!json_integer(psz, &patch) || patch < 1 || patch > NORM_MAX))
        return flux_refuse(s, "psz", psz, "null or 1 to 64");
    if (norm->type == JSON_FALSE) return MAR_OK;
    snprintf(text, sizeof text, "%d", (int)patch);
    return wt_add_metadata(s->f, norm_key, text, s->err);
}

mar_status vae_flux_complete(wt_file *f, mar_err *err)
{
    const int inside = vae_flux_recognise(f, VAE_INSIDE);
    char *text;
    json j;
    if ((!inside && !vae_flux_recognise(f, "")) || wt_metadata(f, scale_key)) return MAR_OK;
    flux_config s = {f, inside ? "vae/config.json" : "config.json", NULL, err};
    mar_status status = wt_read_beside(f, s.name, &text, &j, err);
    if (status == MAR_OK && (s.value = j.values) != NULL) {
        status = flux_add_real(&s, "scaling_factor", 1 / NUMBER_MAX, "a positive number", scale_key);
        if (status == MAR_OK) status = flux_add_real(&s, "shift_factor", -NUMBER_MAX, "a number", shift_key);
        if (status == MAR_OK) status = flux_add_norm(&s);
    }
    json_free(&j);
    free(text);
    return status;
}

/* --- metadata ----------------------------------------------------------------------------------------------------- */

static mar_status flux_read_real(const wt_file *f, const char *key, double least, float *out, mar_err *err)
{
    const char *text = wt_metadata(f, key);
    char *end = NULL;
    const double x = text ? strtod(text, &end) : NAN;
    if (!(x > least && x < NUMBER_MAX) || end == text || *end)
        return err_set(err, MAR_EMODEL, "%s: metadata %s is \"%s\", expected a number%s", wt_path(f), key,
                       text ? text : "", least < 0 ? "" : " above 0");
    *out = (float)x;
    return MAR_OK;
}

mar_status vae_flux_derive(const wt_file *f, mar_vae_config *c, mar_err *err)
{
    long norm = 0;
    if (!wt_metadata(f, scale_key))
        return err_set(err, MAR_EMODEL,
                       "%s: has neither post_quant_conv.weight nor, as NextStep-1's decoder, config.json beside it: "
                       "expected its scaling_factor and shift_factor",
                       wt_path(f));
    mar_status status = flux_read_real(f, scale_key, 1 / NUMBER_MAX, &c->scale, err);
    if (status == MAR_OK) status = flux_read_real(f, shift_key, -NUMBER_MAX, &c->shift, err);
    if (status == MAR_OK) status = wt_metadata_number(f, norm_key, &norm, err);
    if (status == MAR_OK && norm > NORM_MAX)
        status = err_set(err, MAR_EMODEL, "%s: metadata %s is %ld, expected at most %d", wt_path(f), norm_key, norm,
                         NORM_MAX);
    c->norm = (int)norm;
    return status;
}

void vae_put_latents(const mar_vae_config *c, wt_pairs *m)
{
    if (!c->scale) return;
    wt_put_real(m, scale_key, (double)c->scale);
    wt_put_real(m, shift_key, (double)c->shift);
    if (c->norm) wt_put_number(m, norm_key, c->norm);
}
