/* The registry of accelerators, and the checks and messages that follow from it. */
#include "mar/accel/registry.h"

#include "mar/accel/draft.h"
#include "mar/core/params.h"
#include "mar/accel.h"
#include "specdec/verifier.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Every accelerator; its file is mar/accel/NAME.c, or discrete.c. The order is that of their hooks and of `mar
 * methods`. A draft model precedes its users; a solver sets its start after DiSA. */
#define ACCELS(X)                                                                                                      \
    X(draft)                                                                                                           \
    X(spec)                                                                                                            \
    X(drafted)                                                                                                         \
    X(jacobi)                                                                                                          \
    X(tree)                                                                                                            \
    X(levels)                                                                                                          \
    X(path)                                                                                                            \
    X(head_spec)                                                                                                       \
    X(disa)                                                                                                            \
    X(lazy)                                                                                                            \
    X(lazy_head)                                                                                                       \
    X(gtr)                                                                                                             \
    X(interval)                                                                                                        \
    X(sampler)

#define DECLARE(name) extern const mar_accel mar_accel_##name;
ACCELS(DECLARE)

#define ADDRESS(name) &mar_accel_##name,
static const mar_accel *const accels[] = {ACCELS(ADDRESS) NULL};
_Static_assert(sizeof accels / sizeof *accels - 1 <= MAR_ACCELS_MAX, "MAR_ACCELS_MAX is too small");

const mar_accel *const *mar_accels(void)
{
    return accels;
}

int mar_accel_is_on(const mar_accel *accel, const mar_params *params)
{
    const int is_given = !mar_param_is_default(mar_param_find(accel->name), params) ||
                         (accel->also && !mar_param_is_default(mar_param_find(accel->also), params));
    return is_given && (!accel->is_on || accel->is_on(params));
}

/* Returns whether something for tokens of kind `a` applies to tokens of kind `b`. NULL: both kinds. */
static int goes_with(const char *a, const char *b)
{
    return !a || !b || strcmp(a, b) == 0;
}

static const char *accels_tokens_of(const mar_accel *accel)
{
    return accel->tokens ? accel->tokens : mar_param_find(accel->name)->tokens;
}

void mar_accels_resolve(mar_params *params, const char *tokens)
{
    const int is_discrete = strcmp(tokens, "discrete") == 0;
    for (int i = 0; accels[i]; i++)
        if (accels[i]->resolve && goes_with(accels_tokens_of(accels[i]), tokens)) accels[i]->resolve(params);
    /* for these the engine resolves it (mar/raster_options.c, mar/path_costs.c) */
    if (params->gamma < 0 && !is_discrete && !mar_verifies_paths(params)) params->gamma = MAR_GAMMA_AUTO;
}

/* --- conflicts ---------------------------------------------------------------------------------------------------- */

/* Returns the name of the stages in messages. */
static const char *stage_name(unsigned stages)
{
    static const char *const names[] = {
        "the autoregressive steps",       "the drafting", "the transformer passes", "the numbers of diffusion steps",
        "the update of a diffusion step", "the chain",    "the head's evaluations", "the verdicts on states"};
    int i = 0;
    while (!(stages >> i & 1)) i++;
    return names[i];
}

/* Returns the first stage on which a and b conflict; 0 if there is none. */
static unsigned conflict_of(const mar_accel *a, const mar_accel *b)
{
    const unsigned stages = a->changes & (b->changes | b->needs);
    return stages & -stages;
}

/* Returns whether another accelerator has the same option. */
static int shares_option(const mar_accel *accel)
{
    for (int i = 0; accels[i]; i++)
        if (accels[i] != accel && strcmp(accels[i]->name, accel->name) == 0) return 1;
    return 0;
}

/* Writes the name of an accelerator that is on: its option, with the value if several accelerators share it. Returns
 * text. */
static const char *name_of(const mar_accel *accel, const mar_params *params, char *text, size_t size)
{
    char value[32] = "";
    const int several = shares_option(accel);
    if (several) mar_param_text(mar_param_find(accel->name), params, value, sizeof value);
    snprintf(text, size, "--%s%s%s", accel->name, several ? " " : "", value);
    return text;
}

static mar_status check_pair(const mar_accel *a, const mar_accel *b, const mar_params *params, mar_err *err)
{
    char first[64], second[64];
    const unsigned clash = conflict_of(a, b);
    if (!clash) return MAR_OK;
    name_of(a, params, first, sizeof first);
    name_of(b, params, second, sizeof second);
    return err_set(err, MAR_EARG, "%s and %s do not go together: %s changes %s, which %s %s; expected one of them",
                   first, second, first, stage_name(clash), second,
                   clash & b->needs ? "needs unchanged" : "changes, too");
}

mar_status mar_accels_check(const mar_params *params, mar_err *err)
{
    for (int i = 0; accels[i]; i++)
        for (int j = 0; accels[j]; j++) {
            if (i == j || !mar_accel_is_on(accels[i], params) || !mar_accel_is_on(accels[j], params)) continue;
            const mar_status status = check_pair(accels[i], accels[j], params, err);
            if (status != MAR_OK) return status;
        }
    return MAR_OK;
}

/* --- stages of an engine -------------------------------------------------------------------------------------------
 */

__attribute__((format(printf, 3, 4))) static void registry_append(char *text, size_t size, const char *format, ...)
{
    const size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, size - used, format, arguments);
    va_end(arguments);
}

/* Returns whether the value, a name, of its option turns the accelerator on. */
static int is_turned_on_by(const mar_accel *accel, const char *value)
{
    mar_params p;
    const mar_param *o = mar_param_find(accel->name);
    if ((o->type != MAR_TYPE_NAME && o->type != MAR_TYPE_TEXT) || mar_param_choice(o, value) < 0) return 0;
    mar_params_init(&p, sizeof p);
    *(const char **)mar_param_field(o, &p) = value;
    return mar_accel_is_on(accel, &p);
}

/* Writes the accelerators that an engine has: "--draft, --spec path or --sampler". */
static void list_fitting(const mar_engine *engine, char *text, size_t size)
{
    char last[64] = "";
    text[0] = '\0';
    for (int i = 0; accels[i]; i++) {
        if (!goes_with(accels_tokens_of(accels[i]), engine->tokens) || accels[i]->changes & ~engine->stages) continue;
        const mar_param *o = mar_param_find(accels[i]->name);
        const char *value = "";
        for (int v = 0; shares_option(accels[i]) && o->choices[v] && !*value; v++)
            if (is_turned_on_by(accels[i], o->choices[v])) value = o->choices[v];
        if (*last) registry_append(text, size, "%s%s", *text ? ", " : "", last);
        snprintf(last, sizeof last, "--%s%s%s", o->name, *value ? " " : "", value);
    }
    if (*last) registry_append(text, size, "%s%s", *text ? " or " : "", last);
}

/* Returns MAR_EARG, naming the option, if an accelerator that is on changes a stage that the engine leaves plain. */
static mar_status check_stages(const mar_params *params, const mar_engine *engine, mar_err *err)
{
    char name[64], fitting[256];
    for (int i = 0; accels[i]; i++) {
        const unsigned stages = accels[i]->changes & ~engine->stages;
        if (!stages || !mar_accel_is_on(accels[i], params)) continue;
        list_fitting(engine, fitting, sizeof fitting);
        return err_set(err, MAR_EARG, "%s changes %s, which no option does with %s tokens in %s: expected %s",
                       name_of(accels[i], params, name, sizeof name), stage_name(stages), engine->tokens,
                       engine->order == MAR_ORDER_RASTER ? "raster order" : "random sets", fitting);
    }
    return MAR_OK;
}

/* --- the effect on the distribution ------------------------------------------------------------------------------- */

/* Appends ", sampler ddim". */
static void add_change(const mar_accel *accel, const mar_params *params, char *text, size_t size)
{
    char value[32] = "";
    const size_t used = strlen(text);
    const int several = accel->methods && accel->methods[0].value;
    if (several) mar_param_text(mar_param_find(accel->name), params, value, sizeof value);
    snprintf(text + used, size - used, ", %s%s%s", accel->change ? accel->change : accel->name, several ? " " : "",
             value);
}

void mar_accels_effect(const mar_params *params, mar_effect *out)
{
    char changes[128] = "";
    const char *by = NULL; /* reason of exactness, if an exact accelerator gives one */
    for (int i = 0; accels[i]; i++) {
        if (!mar_accel_is_on(accels[i], params)) continue;
        if (!accels[i]->exact) add_change(accels[i], params, changes, sizeof changes);
        if (accels[i]->exact_by) by = accels[i]->exact_by;
    }
    out->exact = !changes[0];
    if (changes[0])
        snprintf(out->how, sizeof out->how, "changed by %s", changes + 2);
    else
        snprintf(out->how, sizeof out->how, "%s%s", by ? "by " : "", by ? by : "");
}

/* --- kinds of tokens ---------------------------------------------------------------------------------------------- */

const mar_accel *mar_accel_of_verifier(const char *verifier)
{
    for (int i = 0; accels[i]; i++)
        if (is_turned_on_by(accels[i], verifier)) return accels[i];
    return NULL;
}

/* Returns the kind of tokens that the option's value is for; NULL: both, or it is not given. */
static const char *tokens_asked(const mar_param *o, const mar_params *p)
{
    if (mar_param_is_default(o, p)) return NULL;
    const mar_accel *accel =
        o->type == MAR_TYPE_NAME ? mar_accel_of_verifier(*(const char **)mar_param_field(o, p)) : NULL;
    return accel && accel->tokens ? accel->tokens : o->tokens;
}

/* Writes the values of an option, names, for such tokens: "path, conditional, paper or cspd". */
static void list_values(const mar_param *o, const char *tokens, char *text, size_t size)
{
    const char *last = NULL;
    text[0] = '\0';
    for (int i = 0; o->choices[i]; i++) {
        const mar_accel *accel = mar_accel_of_verifier(o->choices[i]);
        if (!accel || !goes_with(accel->tokens, tokens)) continue;
        if (last) registry_append(text, size, "%s%s", *text ? ", " : "", last);
        last = o->choices[i];
    }
    if (last) registry_append(text, size, "%s%s", *text ? " or " : "", last);
}

/* Returns MAR_EARG, naming the option, if one for other tokens is given. The functions below assume that none is. */
static mar_status accels_check_tokens(const mar_params *params, const char *tokens, mar_err *err)
{
    char values[160];
    for (int i = 0; i < mar_param_count(); i++) {
        const mar_param *o = mar_param_get(i);
        const char *asked = tokens_asked(o, params);
        if (goes_with(asked, tokens)) continue;
        if (o->type != MAR_TYPE_NAME)
            return err_set(err, MAR_EARG, "--%s has no effect: the model's tokens are %s", o->name, tokens);
        list_values(o, tokens, values, sizeof values);
        return err_set(err, MAR_EARG, "--%s %s verifies %s tokens, but the model's are %s: expected %s", o->name,
                       *(const char **)mar_param_field(o, params), asked, tokens, values);
    }
    return MAR_OK;
}

/* Checks cfg_interval. Continuous tokens take LOW,HIGH (cfg_low and cfg_high), discrete ones one number. */
static mar_status check_interval(const mar_params *p, const char *tokens, mar_err *err)
{
    const int is_discrete = strcmp(tokens, "discrete") == 0;
    if (is_discrete && (p->cfg_low != 0 || p->cfg_high != 1))
        return err_set(err, MAR_EARG,
                       "--cfg_interval %g,%g: expected one number, the last step with guidance, as the model's tokens "
                       "are discrete",
                       (double)p->cfg_low, (double)p->cfg_high);
    if (!is_discrete && !mar_param_is_default(mar_param_find("cfg_interval"), p))
        return err_set(err, MAR_EARG,
                       "--cfg_interval %d: expected LOW,HIGH, two fractions of known tokens, as the model's tokens are "
                       "continuous",
                       p->cfg_interval);
    if (p->cfg_low > p->cfg_high)
        return err_set(err, MAR_EARG, "--cfg_low %g and --cfg_high %g: expected low <= high", (double)p->cfg_low,
                       (double)p->cfg_high);
    return MAR_OK;
}

mar_status mar_accels_resolve_params(mar_params *params, const mar_engine *engine, mar_accels_on *out, mar_err *err)
{
    const char *tokens = engine->tokens;
    int n = 0;
    *out = (mar_accels_on){{NULL}};
    mar_status status = check_interval(params, tokens, err);
    if (status == MAR_OK) status = accels_check_tokens(params, tokens, err);
    if (status != MAR_OK) return status;
    mar_accels_resolve(params, tokens);
    status = check_stages(params, engine, err);
    if (status == MAR_OK) status = mar_accels_check(params, err);
    for (int i = 0; status == MAR_OK && accels[i]; i++) {
        if (!mar_accel_is_on(accels[i], params)) continue;
        if (params->spec && strcmp(accels[i]->name, "spec") == 0 && accels[i]->asks_for && !params->draft)
            status = err_set(err, MAR_EARG, "--spec %s: needs --%s", params->spec, accels[i]->asks_for);
        out->on[n++] = accels[i];
    }
    return status;
}

/* --- options without effect --------------------------------------------------------------------------------------- */

/* Copies the next name of a list "lantern|lantern-gstar" to `name`. Returns the rest of the list; NULL at its end. */
static const char *next_method(const char *list, char name[64])
{
    if (!list || !*list) return NULL;
    const size_t n = strcspn(list, "|");
    snprintf(name, 64, "%.*s", (int)n, list);
    return list + n + (list[n] == '|');
}

/* Returns whether the accelerator turns on the method, of an option or a verifier. It has that option, or the verifier
 * is a value of it. */
static int accels_serves(const mar_accel *accel, const char *method)
{
    return strcmp(accel->name, method) == 0 || is_turned_on_by(accel, method);
}

/* Returns the accelerator that is on and serves one of the methods, with the verifier's value if it is one; NULL if
 * there is none. */
static const mar_accel *on_for(const char *methods, const mar_params *p)
{
    char value[64], method[64];
    for (const char *at = methods; (at = next_method(at, method));)
        for (int i = 0; accels[i]; i++) {
            if (!accels_serves(accels[i], method) || !mar_accel_is_on(accels[i], p)) continue;
            if (strcmp(accels[i]->name, method) == 0) return accels[i];
            mar_param_text(mar_param_find(accels[i]->name), p, value, sizeof value);
            if (strcmp(value, method) == 0) return accels[i];
        }
    return NULL;
}

static const mar_accel_exception *exception_of(const mar_accel *accel, const mar_param *o)
{
    const mar_accel_exception *e = accel->exceptions;
    while (e && e->option && strcmp(e->option, o->name) != 0) e++;
    return e && e->option ? e : NULL;
}

/* Copies the first of the methods that the accelerator serves to `method`. Returns 0 if there is none. */
static int served_by(const mar_accel *accel, const char *methods, char method[64])
{
    for (const char *at = methods; (at = next_method(at, method));)
        if (accels_serves(accel, method)) return 1;
    return 0;
}

/* Appends how to turn the accelerator on for the methods: "--gtr", "--spec cspd", "--spec sjd or sjd-pac",
 * "--diff_annealing linear, cosine or two-stage". */
static void append_option(const mar_accel *accel, const char *methods, char *text, size_t size)
{
    const mar_param *o = mar_param_find(accel->name);
    char method[64];
    const char *listed[32];
    int n = 0;
    served_by(accel, methods, method);
    const int by_name = strcmp(accel->name, method) == 0;
    registry_append(text, size, "--%s", o->name);
    for (int i = 0; o->choices && o->choices[i] && n < 32; i++) {
        const int is_one = o->type == MAR_TYPE_CHOICE ? i != (int)o->value : is_turned_on_by(accel, o->choices[i]);
        const int is_asked = by_name || mar_is_listed(methods, o->choices[i]);
        if (is_one && is_asked) listed[n++] = o->choices[i];
    }
    for (int i = 0; i < n; i++)
        registry_append(text, size, "%s%s", i == 0 ? " " : i + 1 < n ? ", " : " or ", listed[i]);
}

/* Returns the parameters with the accelerator on for the method, if a value of its option does that. */
static mar_params turned_on(const mar_accel *accel, const char *method, const mar_params *p)
{
    mar_params q = *p;
    const mar_param *o = mar_param_find(accel->name);
    for (int i = 0; o->type == MAR_TYPE_NAME && o->choices[i]; i++) {
        const int is_verifier = strcmp(accel->name, method) != 0;
        if (is_verifier ? strcmp(o->choices[i], method) != 0 : !is_turned_on_by(accel, o->choices[i])) continue;
        *(const char **)mar_param_field(o, &q) = o->choices[i];
        break;
    }
    return q;
}

/* Appends what turns the accelerator on by default: "--draft", "--draft and no --head_spec". Returns whether it is more
 * than one word. */
static int append_default(const mar_accel *accel, const mar_params *p, char *text, size_t size)
{
    const int lacks = !on_for(accel->default_with, p),
              hinders = accel->default_without && on_for(accel->default_without, p);
    registry_append(text, size, "%s%s%s", lacks ? "--" : "", lacks ? accel->default_with : "",
                    lacks && hinders ? " and " : "");
    if (hinders) registry_append(text, size, "no --%s", accel->default_without);
    return hinders;
}

/* Appends what must be on, and what must be off, for the methods by this accelerator. It serves one of them: "--draft
 * and --spec cspd", "--draft and no --head_spec". */
static void append_needs(const mar_accel *accel, const char *methods, const mar_params *p, char *text, size_t size)
{
    char method[64];
    served_by(accel, methods, method);
    const mar_params q = turned_on(accel, method, p);
    const mar_accel *other = NULL;
    const int lacks = accel->asks_for && !on_for(accel->asks_for, p), by_name = strcmp(accel->name, method) == 0;
    const int is_given = mar_accel_is_on(accel, p), others_are = !is_given && on_for(accel->name, p) != NULL;
    const int says_option = !by_name || (!is_given && !(accel->default_with && accel->asks_for)) || others_are;
    if (by_name && !is_given && !others_are && accel->default_with && !accel->asks_for) {
        const int is_long = append_default(accel, p, text, size);
        registry_append(text, size, "%s or ", is_long ? "," : "");
    }
    if (lacks) registry_append(text, size, "--%s", accel->asks_for);
    if (lacks && says_option) registry_append(text, size, " and ");
    if (says_option) append_option(accel, methods, text, size);
    for (int i = 0; accels[i] && !other; i++)
        if (strcmp(accels[i]->name, accel->name) != 0 && mar_accel_is_on(accels[i], &q) &&
            (conflict_of(accels[i], accel) || conflict_of(accel, accels[i])))
            other = accels[i];
    if (other) registry_append(text, size, "%sno --%s", says_option || lacks ? " and " : "", other->name);
}

/* Returns whether the option has an effect with the accelerator on such tokens, by itself or with what turns the
 * accelerator on by default. */
static int accels_is_open(const mar_accel *accel, const mar_param *o, const char *tokens)
{
    char method[64];
    const mar_accel_exception *e = exception_of(accel, o);
    if (!goes_with(accels_tokens_of(accel), tokens) || !served_by(accel, o->method, method)) return 0;
    return !e || (e->needs && accel->default_with && strcmp(e->needs, accel->default_with) == 0);
}

/* Returns whether the option that the accelerator asks for turns on another one with which the option has an effect.
 * The message then needs no more. */
static int is_default_elsewhere(const mar_accel *accel, const mar_param *o, const char *tokens)
{
    for (int i = 0; accels[i]; i++)
        if (accels[i] != accel && strcmp(accels[i]->name, accel->name) == 0 && accels[i]->default_with &&
            strcmp(accels[i]->default_with, accel->asks_for) == 0 && accels_is_open(accels[i], o, tokens) &&
            mar_is_listed(o->method, accel->name))
            return 1;
    return 0;
}

/* Writes which accelerators would give an option an effect: "needs --gtr", "needs --draft or --spec path". */
static void write_needs(const mar_param *o, const mar_params *p, const char *tokens, char *text, size_t size)
{
    const mar_accel *on = on_for(o->method, p);
    const mar_accel_exception *e = on ? exception_of(on, o) : NULL;
    snprintf(text, size, "needs ");
    if (e && e->needs) {
        registry_append(text, size, "--%s", e->needs);
        return;
    }
    int n = 0;
    for (int i = 0; accels[i]; i++) {
        if (!accels_is_open(accels[i], o, tokens) ||
            (accels[i]->asks_for && is_default_elsewhere(accels[i], o, tokens)))
            continue;
        const int is_long = strstr(text, " and ") || strstr(text, "no ");
        if (n++) registry_append(text, size, "%s or ", is_long ? "," : "");
        if (exception_of(accels[i], o))
            append_default(accels[i], p, text, size);
        else
            append_needs(accels[i], o->method, p, text, size);
    }
}

/* Returns whether an accelerator that the option asks for is on and gives it an effect. */
static int has_effect(const mar_param *o, const mar_params *p)
{
    const mar_accel *on = on_for(o->method, p);
    const mar_accel_exception *e = on ? exception_of(on, o) : NULL;
    return on && (!e || (e->needs && on_for(e->needs, p)));
}

/* Returns whether the option stands at "auto", which contradicts nothing. */
static int accels_is_auto(const mar_param *o, const mar_params *p)
{
    return o->type == MAR_TYPE_INT && o->choices && *(const int *)mar_param_field(o, p) == 0;
}

/* Returns whether the option has no effect on such tokens, and writes the reason to `why`. */
static int accels_is_unused(const mar_param *o, const mar_params *params, const char *tokens, char *why, size_t size)
{
    mar_params p = *params;
    mar_accels_resolve(&p, tokens);
    for (int k = 0; accels[k]; k++) {
        const char *replaced = accels[k]->replaces;
        if (!mar_accel_is_on(accels[k], &p)) continue;
        if (replaced && strcmp(replaced, o->name) == 0 && !accels_is_auto(o, &p)) {
            snprintf(why, size, "has no effect with --%s, expected %s", accels[k]->name, accels[k]->in_place);
            return 1;
        }
        if (strcmp(accels[k]->name, o->name) == 0 && accels[k]->asks_for && !on_for(accels[k]->asks_for, &p)) {
            snprintf(why, size, "needs --%s", accels[k]->asks_for);
            return 1;
        }
    }
    if (!o->method || has_effect(o, &p)) return 0;
    write_needs(o, &p, tokens, why, size);
    return 1;
}

/* Returns the first given option for one kind of tokens, spec first; NULL if there is none. */
static const mar_param *option_for_tokens(const mar_params *p)
{
    const mar_param *first = mar_param_find("spec");
    if (tokens_asked(first, p)) return first;
    for (int i = 0; i < mar_param_count(); i++)
        if (tokens_asked(mar_param_get(i), p)) return mar_param_get(i);
    return NULL;
}

const char *mar_params_unused(const mar_params *params, int i)
{
    static _Thread_local char why[256];
    const mar_param *o = mar_param_get(i);
    mar_params p;
    if (!o || mar_params_read(params, &p, NULL) != MAR_OK) return NULL;
    const mar_param *given = option_for_tokens(&p);
    const char *tokens = given ? tokens_asked(given, &p) : o->tokens;
    if (!goes_with(o->tokens, tokens)) {
        char value[64] = "";
        if (given->type == MAR_TYPE_NAME) mar_param_text(given, &p, value, sizeof value);
        snprintf(why, sizeof why, "has no effect with --%s%s%s, which is for %s tokens", given->name, *value ? " " : "",
                 value, tokens);
        return why;
    }
    /* an option that discrete tokens would use is not refused before the model is known */
    if (!tokens && !accels_is_unused(o, &p, "discrete", why, sizeof why)) return NULL;
    return accels_is_unused(o, &p, tokens ? tokens : "continuous", why, sizeof why) ? why : NULL;
}
