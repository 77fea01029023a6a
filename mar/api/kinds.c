#include "mar/api/kinds.h"

#include "eval/kinds.h"
#include "vae/kinds.h"

#include <stdio.h>
#include <string.h>

extern const wt_kind nets_t5_kind;

/* All rows, in the order in which they are asked to recognise a file. */
static const wt_kind *kind_at(int i)
{
    for (const wt_kind *const *k = families; *k; k++)
        if (i-- == 0) return *k;
    for (const wt_kind *k = vae_kinds; k->name; k++)
        if (i-- == 0) return k;
    for (const wt_kind *k = eval_kinds; k->name; k++)
        if (i-- == 0) return k;
    return i == 0 ? &nets_t5_kind : NULL;
}

const wt_kind *mar_kind_of(const wt_file *f)
{
    const wt_kind *k;
    for (int i = 0; (k = kind_at(i)) != NULL; i++)
        if (k->recognise(f)) return k;
    return NULL;
}

const char *mar_kinds_lack(unsigned wanted, char *text, size_t size)
{
    const wt_kind *k;
    int n = 0, many = 0;
    for (int i = 0; (k = kind_at(i)) != NULL; i++) many += k->lacks && (wanted & 1u << k->kind);
    *text = '\0';
    for (int i = 0; (k = kind_at(i)) != NULL; i++) {
        const size_t used = strlen(text);
        if (!k->lacks || !(wanted & 1u << k->kind)) continue;
        snprintf(text + used, size - used, "%s%s %s (%s)",
                 n++        ? " nor "
                 : many > 1 ? "neither "
                            : "not ",
                 k->article, k->name, k->lacks);
    }
    return text;
}

mar_status mar_check_kind(const wt_file *f, unsigned wanted, const char *expected, mar_err *err)
{
    char text[ERR_TEXT_MAX];
    const wt_kind *k = mar_kind_of(f);
    if (k && (wanted & 1u << k->kind)) return MAR_OK;
    if (!k) return err_set(err, MAR_EMODEL, "%s: %s", wt_path(f), mar_kinds_lack(wanted, text, sizeof text));
    if (k->kind == MAR_KIND_VAE)
        return err_set(err, MAR_EMODEL, "%s: is an image decoder (%s), expected %s", wt_path(f), k->name, expected);
    return err_set(err, MAR_EMODEL, "%s: is %s %s, expected %s", wt_path(f), k->article, k->name,
                   k->for_kinds & wanted ? k->instead : expected);
}

int mar_has_low(const wt_file *f, wt_dtype dtype)
{
    const wt_kind *kind = mar_kind_of(f);
    for (int i = 0; kind && kind->is_int8 && i < wt_count(f); i++)
        if (wt_at(f, i)->dtype == dtype && kind->is_int8(wt_at(f, i)->name)) return 1;
    return 0;
}

void mar_weights_text(const wt_file *f, char *text, size_t size)
{
    int n;
    const char *prefix = wt_prefix(f, &n), *set = wt_set(f);
    snprintf(text, size, "%s%s%s%s", set ? " of " : "", set ? set : "", prefix ? ", names without " : "",
             prefix ? prefix : "");
}

mar_status mar_check_heads(const wt_file *f, int heads, mar_err *err)
{
    const wt_kind *k = mar_kind_of(f);
    if (heads < 65536 || !k || k->kind == MAR_KIND_MAR) return MAR_OK;
    return err_set(err, MAR_EARG, "--heads %d,%d: expected one number: %s is %s %s", heads % 65536, heads / 65536,
                   wt_path(f), k->article, k->name);
}
