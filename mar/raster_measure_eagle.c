/* Measures an EAGLE drafter's passes, with the bytes and flop they need. */
#include "mar/raster_measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS = 5 };

/* A drafter and its target with runners of their own, and their request, the same for every image. */
typedef struct {
    kern_queue *k;
    const causal_shape *shape;
    causal_runner *target;
    eagle_runner *drafter;
    void *memory;        /* backend: memory of both runners, then the distributions */
    float *target_probs; /* backend [images][vocabulary] */
    float *log_probs;    /* backend [images][1 + drafts][vocabulary] */
    int images;
    int length, levels;      /* positions that a round drafts; levels of drafts that the drafter is asked about */
    int drafts;              /* drafts of all these levels */
    causal_request *request; /* [images] */
    int *prefix;             /* [seq_len] */
    int *draft, *parent;     /* [drafts] by levels; each level follows the first draft of the level before */
    int *end;                /* [levels + 1] drafts up to each level; end[0] is 0 */
} passes;

/* --- the drafts of a round ---------------------------------------------------------------------------------------- */

/* Returns the number of drafts at depth `depth`, 1 or more, that a round of the plan asks the drafter about. */
static int width_at(const raster_plan *plan, int vocabulary, int depth)
{
    const raster_tree *t = &plan->tree;
    int level[RASTER_TREE_DRAFTS], n = 0;
    if (plan->params.tree && strcmp(plan->params.tree, "dynamic") == 0)
        return vocabulary < plan->params.tree_top ? vocabulary : plan->params.tree_top;
    if (t->count == 0) return 1;
    for (int i = 0; i < t->count; i++) {
        level[i] = t->parent[i] < 0 ? 1 : level[t->parent[i]] + 1;
        n += level[i] == depth;
    }
    return n;
}

/* Lists the levels that fit behind half an image. The drafter is not asked about a round's last level. */
static mar_status list_levels(passes *p, const raster_plan *plan, mar_err *err)
{
    const int positions = p->shape->seq_len - causal_half(p->shape);
    p->length = plan->params.gamma;
    p->levels = (p->length < positions ? p->length : positions) - 1;
    if (p->levels < 0) p->levels = 0;
    p->end = calloc((size_t)p->levels + 1, sizeof *p->end);
    if (!p->end) return err_set(err, MAR_ENOMEM, "out of memory");
    for (int d = 1; d <= p->levels; d++) p->end[d] = p->end[d - 1] + width_at(plan, p->shape->vocabulary, d);
    p->drafts = p->end[p->levels];
    p->draft = calloc((size_t)p->drafts + 1, sizeof *p->draft);
    p->parent = calloc((size_t)p->drafts + 1, sizeof *p->parent);
    if (!p->draft || !p->parent) return err_set(err, MAR_ENOMEM, "out of memory");
    for (int d = 1; d <= p->levels; d++)
        for (int i = p->end[d - 1]; i < p->end[d]; i++) {
            p->draft[i] = i % p->shape->vocabulary;
            p->parent[i] = d == 1 ? -1 : p->end[d - 2];
        }
    return MAR_OK;
}

/* --- the runners -------------------------------------------------------------------------------------------------- */

static void eagle_passes_destroy(passes *p)
{
    p->k->core->finish(p->k); /* a timer mark adds to the runner's statistics */
    eagle_runner_free(p->drafter);
    causal_runner_free(p->target);
    p->k->device->core->free(p->k->device, p->memory);
    free(p->request);
    int *lists[] = {p->prefix, p->draft, p->parent, p->end};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) free(lists[i]);
}

static mar_status eagle_passes_create_runners(passes *p, const eagle_model *eagle, const causal_model *model,
                                              const causal_sampling *sampling, kern_cache_type cache, mar_err *err)
{
    /* rows of a pass in a round whose drafts are all accepted */
    const int drafts = p->drafts > p->length ? p->drafts : p->length;
    mar_status status = causal_runner_create(p->k, model, sampling, p->images, 0, 1, &p->target, err);
    if (status == MAR_OK)
        status = eagle_runner_create(p->k, eagle, model, p->target, sampling, p->images, drafts, &p->drafter, err);
    if (status == MAR_OK) causal_runner_set_cache(p->target, cache);
    if (status == MAR_OK) eagle_runner_set_cache(p->drafter, cache);
    return status;
}

static mar_status eagle_passes_lay_out(passes *p, mar_err *err)
{
    const size_t images = (size_t)p->images, row = (size_t)p->shape->vocabulary * sizeof(float);
    const size_t target = causal_runner_lay_out(p->target, NULL), drafter = eagle_runner_lay_out(p->drafter, NULL);
    const size_t probs_bytes = images * (2 + (size_t)p->drafts) * row;
    mar_status status = p->k->device->core->alloc(p->k->device, target + drafter + probs_bytes, &p->memory, err);
    if (status != MAR_OK) return status;
    char *base = p->memory;
    causal_runner_lay_out(p->target, base);
    eagle_runner_lay_out(p->drafter, base + target);
    p->target_probs = (float *)(base + target + drafter);
    p->log_probs = p->target_probs + images * (size_t)p->shape->vocabulary;
    status = causal_runner_plan(p->target, p->images, err);
    return status == MAR_OK ? eagle_runner_plan(p->drafter, p->images, err) : status;
}

static mar_status eagle_passes_create(passes *p, const eagle_model *eagle, const causal_model *model,
                                      const causal_sampling *sampling, const raster_plan *plan, mar_err *err)
{
    p->request = calloc((size_t)p->images, sizeof *p->request);
    p->prefix = calloc((size_t)p->shape->seq_len, sizeof *p->prefix);
    mar_status status = p->request && p->prefix ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
    if (status == MAR_OK) status = list_levels(p, plan, err);
    if (status == MAR_OK)
        status = eagle_passes_create_runners(p, eagle, model, sampling, raster_cache_type(&plan->params), err);
    if (status == MAR_OK) status = eagle_passes_lay_out(p, err);
    if (status == MAR_OK) status = raster_begin_any(p->target, p->shape, p->images, err);
    if (status == MAR_OK) eagle_runner_begin(p->drafter, p->images);
    return status;
}

/* --- passes ------------------------------------------------------------------------------------------------------- */

/* Requests of all images what follows the first `length` tokens and `count` drafts. The first `from` distributions are
 * known. */
static void eagle_passes_ask(passes *p, int length, int count, int from, int stride)
{
    for (int i = 0; i < p->images; i++)
        p->request[i] = (causal_request){.sequence = i,
                                         .prefix = p->prefix,
                                         .length = length,
                                         .draft = p->draft,
                                         .parent = p->parent,
                                         .count = count,
                                         .from = from,
                                         .row = i * stride};
}

static mar_status target_follows(passes *p, int length, mar_err *err)
{
    eagle_passes_ask(p, length, 0, 0, 1);
    return causal_runner_log_probs(p->target, p->request, p->images, p->target_probs, err);
}

static mar_status drafter_follows(passes *p, int length, int count, int from, mar_err *err)
{
    eagle_passes_ask(p, length, count, from, 1 + p->drafts);
    return eagle_runner_log_probs(p->drafter, p->request, p->images, p->log_probs, err);
}

/* Times the drafter's pass from distribution `from` on. */
static mar_status time_pass(passes *p, int length, int count, int from, mar_measured *m, mar_err *err)
{
    const raster_timer timer = raster_time(p->k, eagle_runner_get_stats(p->drafter));
    const mar_status status = drafter_follows(p, length, count, from, err);
    raster_timed(&timer, m);
    return status == MAR_OK ? kern_check(p->k, err) : status;
}

/* Runs the target over half an image, and the drafter over all of it but the last tokens. Times the drafter's pass over
 * those. */
static mar_status eagle_passes_run_tokens(passes *p, int number, int tokens, mar_measured *m, mar_err *err)
{
    const int half = causal_half(p->shape);
    for (int i = 0; i < half; i++)
        p->prefix[i] = (i * 5 + (i >= half - tokens ? number : 0)) % p->shape->vocabulary; /* differs each time */
    mar_status status = target_follows(p, half - tokens, err);
    if (status == MAR_OK) status = drafter_follows(p, half - tokens, 0, 0, err);
    if (status == MAR_OK) status = target_follows(p, half, err);
    return status == MAR_OK ? time_pass(p, half, 0, 0, m, err) : status;
}

/* Runs the passes of a round that begins with `tokens` new tokens. level [levels + 1] receives their times; level[0] is
 * that of the tokens. */
static mar_status eagle_passes_run_round(passes *p, int number, int tokens, int levels, mar_measured *level,
                                         mar_err *err)
{
    mar_status status = eagle_passes_run_tokens(p, number, tokens, &level[0], err);
    for (int d = 1; status == MAR_OK && d <= levels; d++)
        status = time_pass(p, causal_half(p->shape), p->end[d], p->end[d - 1] + 1, &level[d], err);
    return status;
}

/* Measures the fastest of several rounds. The first also allocates, and does not count. */
static mar_status eagle_passes_measure(passes *p, int tokens, int levels, mar_measurements *all, mar_err *err)
{
    mar_measured *level = calloc((size_t)levels + 1, sizeof *level);
    mar_status status = level ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
    for (int i = 0; status == MAR_OK && i <= REPEATS; i++) {
        status = eagle_passes_run_round(p, i, tokens, levels, level, err);
        for (int d = 0; i == 0 && d <= levels; d++) level[d].seconds = 0;
    }
    for (int d = 0; status == MAR_OK && d <= levels; d++) {
        level[d].count = 1;
        snprintf(level[d].name, sizeof level[d].name, "draft, %d drafts at depth %d", d ? p->end[d] - p->end[d - 1] : 0,
                 d);
        mar_measurements_add(all, "pass", &level[d]);
    }
    free(level);
    return status;
}

mar_status raster_measure_eagle(kern_queue *k, const eagle_model *eagle, const causal_model *model,
                                const causal_sampling *sampling, const raster_plan *plan, int images,
                                mar_measurements *all, mar_err *err)
{
    passes p = {.k = k, .shape = &model->shape, .images = images};
    const int half = causal_half(&model->shape);
    mar_status status = eagle_passes_create(&p, eagle, model, sampling, plan, err);
    if (status == MAR_OK && half > 0) status = eagle_passes_measure(&p, 1, p.levels, all, err);
    if (status == MAR_OK && p.length < half) status = eagle_passes_measure(&p, p.length + 1, 0, all, err);
    eagle_passes_destroy(&p);
    return status;
}
