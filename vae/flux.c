/* Latents of Flux's KL autoencoder (Black Forest Labs 2024; modeling_flux_vae.py of NextStep-1's release): no layer
 * stands between encoder and decoder. What makes tokens of latents is in config.json beside the tensors, whose values
 * become metadata. The releases' codes have different values for what is missing, so nothing may be. */
#include "vae/steps.h"
#include "weights/shape.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY        "mar.vae_"
#define NUMBER_MAX 1e6 /* of both numbers, and of 1 / scale */
enum { NORM_MAX = 64 };

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

mar_status vae_flux_complete(wt_file *f, mar_err *err)
{
    static const char *const keys[] = {KEY "scaling_factor", KEY "shift_factor", KEY "encoder_norm", KEY "psz"},
                             *const types[] = {"null", "false", "true", "number", "string", "array", "object"};
    const int inside = vae_flux_recognise(f, VAE_INSIDE);
    char *text;
    json j;
    if ((!inside && !vae_flux_recognise(f, "")) || wt_metadata(f, keys[0])) return MAR_OK;
    mar_status status = wt_read_beside(f, inside ? "vae/config.json" : "config.json", &text, &j, err);
    for (size_t i = 0; status == MAR_OK && j.values && i < sizeof keys / sizeof *keys; i++) {
        const json_value *v = json_member(j.values, keys[i] + strlen(KEY));
        const int is_number = v && v->type == JSON_NUMBER;
        if (v)
            status = wt_add_metadata(f, keys[i], is_number ? v->text : types[v->type],
                                     is_number ? v->length : strlen(types[v->type]), err);
    }
    json_free(&j);
    free(text);
    return status;
}

static const char *flux_value(const wt_file *f, const char *key)
{
    char name[64];
    snprintf(name, sizeof name, KEY "%s", key);
    return wt_metadata(f, name);
}

static mar_status flux_refuse(const wt_file *f, const char *key, const char *expected, mar_err *err)
{
    const char *value = flux_value(f, key);
    if (value)
        return err_set(err, MAR_EMODEL, "%s: config.json, or metadata " KEY "%s, has %s %.40s, expected %s", wt_path(f),
                       key, key, value, expected);
    return err_set(err, MAR_EMODEL,
                   "%s: has no post_quant_conv.weight, and no %s of a decoder without it: expected %s (%s) in a "
                   "config.json beside it, or as metadata " KEY "%s",
                   wt_path(f), key, key, expected, key);
}

static mar_status flux_number(const wt_file *f, const char *key, double least, double most, const char *expected,
                              double *out, mar_err *err)
{
    char *end = NULL;
    const char *value = flux_value(f, key);
    *out = value ? strtod(value, &end) : NAN;
    return *out >= least && *out <= most && end != value && !*end ? MAR_OK : flux_refuse(f, key, expected, err);
}

mar_status vae_flux_derive(const wt_file *f, mar_vae_config *c, mar_err *err)
{
    static const char patches[] = "null or 1 to 64";
    const char *norm = flux_value(f, "encoder_norm"), *psz = flux_value(f, "psz");
    double scale, shift, patch = 1;
    mar_status status = flux_number(f, "scaling_factor", 1 / NUMBER_MAX, NUMBER_MAX, "a positive number", &scale, err);
    if (status == MAR_OK) status = flux_number(f, "shift_factor", -NUMBER_MAX, NUMBER_MAX, "a number", &shift, err);
    if (status == MAR_OK && psz && strcmp(psz, "null") != 0)
        status = flux_number(f, "psz", 1, NORM_MAX, patches, &patch, err);
    if (status == MAR_OK && patch != floor(patch)) status = flux_refuse(f, "psz", patches, err);
    if (status == MAR_OK && (!norm || (strcmp(norm, "true") != 0 && strcmp(norm, "false") != 0)))
        status = flux_refuse(f, "encoder_norm", "true or false", err);
    if (status != MAR_OK) return status;
    c->scale = (float)scale;
    c->shift = (float)shift;
    c->norm = *norm == 't' ? (int)patch : 0; /* each latent, or psz x psz of them */
    return MAR_OK;
}

void vae_put_latents(const mar_vae_config *c, wt_pairs *m)
{
    if (!c->scale) return;
    wt_put_real(m, KEY "scaling_factor", (double)c->scale);
    wt_put_real(m, KEY "shift_factor", (double)c->shift);
    wt_put_text(m, KEY "encoder_norm", c->norm ? "true" : "false");
    if (c->norm) wt_put_number(m, KEY "psz", c->norm);
}
