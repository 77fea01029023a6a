/* The registry of ways to be faster, and what follows from it. */
#include "mar/masked.h"
#include "mar/params.h"
#include "specdec/verifier.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Every way: its file is mar/ways/NAME.c. The order is that of their hooks (a draft model is there before those who use
 * it, a solver settles its start after DiSA) and of `mar methods`. */
#define WAYS(X)                                                                                                        \
    X(draft)                                                                                                           \
    X(path)                                                                                                            \
    X(spec)                                                                                                            \
    X(head_spec)                                                                                                       \
    X(disa)                                                                                                            \
    X(lazy)                                                                                                            \
    X(lazy_head)                                                                                                       \
    X(gtr)                                                                                                             \
    X(sampler)

#define DECLARE(name) extern const mar_way mar_way_##name;
WAYS(DECLARE)

#define ADDRESS(name) &mar_way_##name,
static const mar_way *const ways[] = {WAYS(ADDRESS) NULL};
_Static_assert(sizeof ways / sizeof *ways - 1 <= MAR_WAYS_MAX, "MAR_WAYS_MAX is too small");

const mar_way *const *mar_ways(void)
{
    return ways;
}

int mar_way_is_on(const mar_way *way, const mar_params *params)
{
    if (mar_param_is_default(mar_param_find(way->name), params)) return 0;
    return !way->is_on || way->is_on(params);
}

void mar_ways_resolve(mar_params *params)
{
    for (int i = 0; ways[i]; i++)
        if (ways[i]->resolve) ways[i]->resolve(params);
}

/* --- which go together -------------------------------------------------------------------------------------------- */

/* What a message calls the stages. */
static const char *stage_name(unsigned stages)
{
    static const char *const names[] = {
        "the autoregressive steps",       "the drafting", "the transformer passes", "the numbers of diffusion steps",
        "the update of a diffusion step", "the chain",    "the head's evaluations"};
    int i = 0;
    while (!(stages >> i & 1)) i++;
    return names[i];
}

/* The first stage that `a` changes and `b` changes, too, or needs plain; 0 if there is none. */
static unsigned clash_of(const mar_way *a, const mar_way *b)
{
    const unsigned stages = a->changes & (b->changes | b->needs);
    return stages & -stages;
}

static mar_status check_pair(const mar_way *a, const mar_way *b, mar_err *err)
{
    const unsigned clash = clash_of(a, b);
    if (!clash) return MAR_OK;
    return err_set(err, MAR_EARG, "%s and %s do not go together: %s changes %s, which %s %s; expected one of them",
                   a->name, b->name, a->name, stage_name(clash), b->name,
                   clash & b->needs ? "needs unchanged" : "changes, too");
}

mar_status mar_ways_check(const mar_params *params, mar_err *err)
{
    for (int i = 0; ways[i]; i++)
        for (int j = 0; ways[j]; j++) {
            if (i == j || !mar_way_is_on(ways[i], params) || !mar_way_is_on(ways[j], params)) continue;
            const mar_status status = check_pair(ways[i], ways[j], err);
            if (status != MAR_OK) return status;
        }
    return MAR_OK;
}

/* --- what they make of the law ------------------------------------------------------------------------------------ */

/* ", sampler ddim" */
static void add_change(const mar_way *way, const mar_params *params, char *text, size_t size)
{
    char value[32] = "";
    const size_t used = strlen(text);
    const int several = way->methods && way->methods[0].value;
    if (several) mar_param_text(mar_param_find(way->name), params, value, sizeof value);
    snprintf(text + used, size - used, ", %s%s%s", way->name, several ? " " : "", value);
}

void mar_ways_describe(const mar_params *params, char *text, size_t size)
{
    char changes[128] = "";
    const char *by = NULL; /* what an exact way does, if one is on that says so */
    for (int i = 0; ways[i]; i++) {
        if (!mar_way_is_on(ways[i], params)) continue;
        if (!ways[i]->exact) add_change(ways[i], params, changes, sizeof changes);
        if (ways[i]->exact_by) by = ways[i]->exact_by;
    }
    if (changes[0])
        snprintf(text, size, "approximate: changed by %s", changes + 2);
    else
        snprintf(text, size, "exact: the target's law%s%s", by ? ", by " : "", by ? by : "");
}

/* --- which options have an effect --------------------------------------------------------------------------------- */

static const mar_way *find(const char *name)
{
    for (int i = 0; ways[i]; i++)
        if (strcmp(ways[i]->name, name) == 0) return ways[i];
    return NULL;
}

/* The way that an option's method is, or whose option has the method, a verifier, among its choices. */
static const mar_way *way_of(const char *method)
{
    for (int i = 0; ways[i]; i++) {
        const mar_param *o = mar_param_find(ways[i]->name);
        if (strcmp(ways[i]->name, method) == 0) return ways[i];
        if (o->type == MAR_TYPE_NAME && mar_param_choice(o, method) >= 0) return ways[i];
    }
    return NULL;
}

static int is_on(const char *method, const mar_params *p)
{
    char value[64];
    const mar_way *way = way_of(method);
    const mar_param *o = mar_param_find(way->name);
    if (!mar_way_is_on(way, p)) return 0;
    return find(method) || strcmp(mar_param_text(o, p, value, sizeof value), method) == 0;
}

__attribute__((format(printf, 3, 4))) static void append(char *text, size_t size, const char *format, ...)
{
    const size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, size - used, format, arguments);
    va_end(arguments);
}

/* "gtr", "spec cspd", "diff_annealing linear, cosine or two-stage": how the way is turned on for the method. */
static void append_option(const mar_way *way, const char *method, char *text, size_t size)
{
    const mar_param *o = mar_param_find(way->name);
    append(text, size, "%s", o->name);
    if (!find(method)) append(text, size, " %s", method);
    if (!find(method) || o->type != MAR_TYPE_CHOICE) return;
    const char *before = " ";
    for (int i = 0; o->choices[i]; i++) {
        if (i == (int)o->value) continue; /* the value that leaves it off */
        append(text, size, "%s%s", before, o->choices[i]);
        before = o->choices[i + 1] && !o->choices[i + 2] ? " or " : ", ";
    }
}

/* What has to be on for a method, and what is on and must not be: "needs draft and spec cspd", "needs draft and no
 * head_spec". */
static void write_needs(const char *method, const mar_params *p, char *text, size_t size)
{
    const mar_way *way = way_of(method), *other = NULL;
    const char *first = mar_param_find(way->name)->method; /* what its own option needs */
    snprintf(text, size, "needs ");
    if (first && is_on(first, p)) first = NULL;
    if (first) append(text, size, "%s", first);
    const int says_option = !find(method) || !way->by_itself;
    if (says_option && first) append(text, size, " and ");
    if (says_option) append_option(way, method, text, size);
    for (int i = 0; ways[i] && !other; i++)
        if (ways[i] != way && mar_way_is_on(ways[i], p) && (clash_of(ways[i], way) || clash_of(way, ways[i])))
            other = ways[i];
    if (other) append(text, size, "%sno %s", says_option || first ? " and " : "", other->name);
}

const char *mar_params_unused(const mar_params *params, int i)
{
    static _Thread_local char why[160];
    const mar_param *o = mar_param_get(i);
    mar_params p;
    if (!o || mar_params_read(params, &p, NULL) != MAR_OK) return NULL;
    mar_ways_resolve(&p);
    for (int k = 0; ways[k]; k++) {
        const char *replaced = ways[k]->replaces;
        if (!replaced || strcmp(replaced, o->name) != 0 || !mar_way_is_on(ways[k], &p)) continue;
        snprintf(why, sizeof why, "has no effect with %s, expected %s", ways[k]->name, ways[k]->in_place);
        return why;
    }
    if (!o->method || is_on(o->method, &p)) return NULL;
    write_needs(o->method, &p, why, sizeof why);
    return why;
}
