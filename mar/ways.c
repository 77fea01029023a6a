/* The registry of ways to be faster, and what follows from it. */
#include "mar/way.h"

#include "mar/params.h"
#include "specdec/verifier.h"

#include <stdio.h>
#include <string.h>

/* Every way: its file is mar/ways/NAME.c. The order is that of their hooks (a draft model is there before those who use
 * it, a solver settles its start after DiSA) and of `mar methods`. */
#define WAYS(X)                                                                                                        \
    X(draft)                                                                                                           \
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

const mar_way *const *mar_ways(void)
{
    return ways;
}

int mar_way_is_on(const mar_way *way, const mar_params *params)
{
    return !mar_param_is_default(mar_param_find(way->name), params);
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
    static const char *const names[] = {"the autoregressive steps",       "the draft",   "the transformer passes",
                                        "the numbers of diffusion steps", "the sampler", "the chain",
                                        "the head's evaluations"};
    int i = 0;
    while (!(stages >> i & 1)) i++;
    return names[i];
}

static mar_status check_pair(const mar_way *a, const mar_way *b, mar_err *err)
{
    const unsigned clash = a->changes & (b->changes | b->needs);
    if (!clash) return MAR_OK;
    return err_set(err, MAR_EARG, "%s and %s do not go together: %s changes %s, which %s %s; expected one of them",
                   a->name, b->name, a->name, stage_name(clash), b->name,
                   clash & b->needs ? "needs plain" : "changes, too");
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
    int inside = 0;
    for (int i = 0; ways[i]; i++) {
        if (!mar_way_is_on(ways[i], params)) continue;
        if (!ways[i]->exact) add_change(ways[i], params, changes, sizeof changes);
        inside |= (ways[i]->changes & MAR_STAGE_CHAIN) != 0;
    }
    if (changes[0])
        snprintf(text, size, "approximate: changed by %s", changes + 2);
    else
        snprintf(text, size, "exact: the target's law%s", inside ? ", by speculation inside the head" : "");
}

/* --- which options have an effect --------------------------------------------------------------------------------- */

static const mar_way *find(const char *name)
{
    for (int i = 0; ways[i]; i++)
        if (strcmp(ways[i]->name, name) == 0) return ways[i];
    return NULL;
}

static int is_on(const char *method, const mar_params *p)
{
    const mar_way *way = find(method);
    return way ? mar_way_is_on(way, p) : p->spec && strcmp(p->spec, method) == 0;
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
    const mar_way *way = find(o->method);
    const mar_param *choice = mar_param_find(way ? way->name : "spec");
    char needs[96];
    snprintf(needs, sizeof needs, "%s%s%s", choice->name, way ? "" : " ", way ? "" : o->method);
    if (choice->method && !is_on(choice->method, &p))
        snprintf(why, sizeof why, "needs %s and %s", choice->method, needs);
    else if (p.head_spec && strcmp(choice->name, "spec") == 0)
        snprintf(why, sizeof why, "needs %s and no head_spec", needs);
    else
        snprintf(why, sizeof why, "needs %s", needs);
    return why;
}
