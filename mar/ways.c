/* The registry of ways to be faster, and what follows from it. */
#include "mar/way.h"

#include "mar/params.h"
#include "specdec/verifier.h"

#include <stdio.h>
#include <string.h>

static const mar_way draft = {.name = "draft",
                              .changes = MAR_STAGE_DRAFT,
                              .needs = MAR_STAGE_AR_STEPS | MAR_STAGE_COUNTS | MAR_STAGE_SOLVER | MAR_STAGE_PASSES |
                                       MAR_STAGE_HEAD,
                              .exact = 1};
static const mar_way spec = {.name = "spec", .needs = MAR_STAGE_CHAIN};
static const mar_way head_spec = {
    .name = "head_spec", .changes = MAR_STAGE_CHAIN, .needs = MAR_STAGE_SOLVER | MAR_STAGE_HEAD, .exact = 1};
static const mar_way disa = {.name = "diff_annealing",
                             .changes = MAR_STAGE_COUNTS,
                             .replaces = "num_sampling_steps",
                             .in_place = "diff_upper_steps and diff_lower_steps"};
static const mar_way lazy = {.name = "lazy", .changes = MAR_STAGE_PASSES, .needs = MAR_STAGE_AR_STEPS};
static const mar_way lazy_head = {
    .name = "lazy_head", .changes = MAR_STAGE_HEAD, .needs = MAR_STAGE_SOLVER | MAR_STAGE_COUNTS};
static const mar_way gtr = {.name = "gtr",
                            .changes = MAR_STAGE_AR_STEPS,
                            .needs = MAR_STAGE_COUNTS,
                            .replaces = "num_iter",
                            .in_place = "gtr_generation_steps and gtr_reconstruction_steps"};
static const mar_way sampler = {.name = "sampler", .changes = MAR_STAGE_SOLVER};
static const mar_way *const ways[] = {&draft, &spec, &head_spec, &disa, &lazy, &lazy_head, &gtr, &sampler, NULL};

const mar_way *const *mar_ways(void)
{
    return ways;
}

int mar_way_is_on(const mar_way *way, const mar_params *params)
{
    return !mar_param_is_default(mar_param_find(way->name), params);
}

void mar_ways_resolve(mar_params *p)
{
    if (p->draft && !p->spec && !p->head_spec) p->spec = "conditional";
}

static const mar_way *find(const char *name)
{
    for (int i = 0; ways[i]; i++)
        if (strcmp(ways[i]->name, name) == 0) return ways[i];
    return NULL;
}

static int is_on(const char *name, const mar_params *p)
{
    const mar_way *way = find(name);
    return way ? mar_way_is_on(way, p) : p->spec && strcmp(p->spec, name) == 0;
}

const char *mar_params_unused(const mar_params *params, int i)
{
    static _Thread_local char why[160];
    const mar_param *o = mar_param_get(i);
    mar_params p;
    if (!o || mar_params_read(params, &p, NULL) != MAR_OK) return NULL;
    mar_ways_resolve(&p);
    for (int k = 0; ways[k]; k++)
        if (ways[k]->replaces && strcmp(ways[k]->replaces, o->name) == 0 && mar_way_is_on(ways[k], &p)) {
            snprintf(why, sizeof why, "has no effect with %s, expected %s", ways[k]->name, ways[k]->in_place);
            return why;
        }
    if (!o->method || is_on(o->method, &p)) return NULL;
    if (find(o->method) != &spec && !spec_method_find(o->method))
        snprintf(why, sizeof why, "needs %s", o->method);
    else if (!p.draft)
        snprintf(why, sizeof why, "needs draft, a model whose tokens are verified%s%s",
                 find(o->method) ? "" : ", and spec ", find(o->method) ? "" : o->method);
    else
        snprintf(why, sizeof why, "needs %s%s", find(o->method) ? "spec, or no head_spec" : "spec ",
                 find(o->method) ? "" : o->method);
    return why;
}
