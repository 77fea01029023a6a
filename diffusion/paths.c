#include "diffusion/paths.h"

#include "base/arena.h"

#include <stdlib.h>

/* Rows of a call of the head that judges paths: enough for large products, few enough to store their activations. */
enum { JUDGED_ROWS = 4096 };

const char diff_paths_bf16_warning[] =
    "criterion path with a head in bf16: its rounding alone rejects many drafts; --head_dtype f32 avoids that";

static int paths_rows_of_one(const diff_paths *p)
{
    return p->draws.w.conditions * p->draws.w.max_steps;
}

mar_status diff_paths_create(diff_chain *chain, int window, int tokens, diff_paths *out, mar_err *err)
{
    *out = (diff_paths){0};
    const mar_status status = diff_speculate_create(chain, NULL, window, tokens, &out->draws, err);
    if (status != MAR_OK) return status;
    const kern_speculation *w = &out->draws.w;
    out->stride = (w->max_steps + 1) * KERN_EVALUATED * w->channels;
    out->most = JUDGED_ROWS / paths_rows_of_one(out);
    if (out->most < 1) out->most = 1;
    const size_t rows = (size_t)out->most * (size_t)paths_rows_of_one(out);
    out->x_index = malloc(rows * sizeof *out->x_index);
    out->mod_index = malloc(rows * sizeof *out->mod_index);
    if (out->x_index && out->mod_index) return MAR_OK;
    diff_paths_free(out);
    return err_set(err, MAR_ENOMEM, "out of memory");
}

size_t diff_paths_lay_out(diff_paths *p, char *base)
{
    const diff_head *head = p->draws.target.chain->head;
    const int rows = p->most * paths_rows_of_one(p);
    size_t used = diff_speculate_lay_out(&p->draws, base);
    p->out = arena_carve(base, &used, (size_t)rows * 2 * (size_t)head->shape.channels, sizeof(float));
    p->scratch = arena_carve(base, &used, 1, head->device->head->scratch_bytes(head->net, rows));
    return used;
}

void diff_paths_free(diff_paths *p)
{
    diff_speculate_free(&p->draws);
    free(p->x_index);
    free(p->mod_index);
    *p = (diff_paths){0};
}

mar_status diff_paths_plan(diff_paths *p, int tokens, mar_err *err)
{
    const diff_chain *c = p->draws.target.chain;
    const int judged = tokens < p->most ? tokens : p->most; /* in one call of the head */
    const mar_status status = diff_speculate_plan(&p->draws, tokens, tokens, err);
    if (status != MAR_OK) return status;
    return c->k->head->plan(c->k, c->head->net, p->draws.w.conditions * judged * c->schedule.steps, err);
}

void diff_paths_draw(diff_paths *p, const diff_tokens *tokens, float *x, float *path, diff_speculation_stats *stats)
{
    diff_speculate_sample(&p->draws, tokens, x, path, stats);
}

/* Evaluates the head at all states of paths first .. first+n-1. Their modulation is that of `sources` sources from
 * number `from` on. */
static void paths_evaluate(diff_paths *p, const diff_tokens *t, const float *path, int first, int n, int from,
                           int sources)
{
    const diff_chain *c = p->draws.target.chain;
    kern_queue *k = c->k;
    const int steps = c->schedule.steps, cfg_branches = p->draws.w.conditions;
    for (int branch = 0, row = 0; branch < cfg_branches; branch++)
        for (int i = 0; i < n; i++)
            for (int step = 0; step < steps; step++, row++) {
                p->x_index[row] = (i * (p->draws.w.max_steps + 1) + step) * KERN_EVALUATED + KERN_EVALUATED_STATE;
                p->mod_index[row] = (step * cfg_branches + branch) * sources + diff_tokens_source(t, first + i) - from;
            }
    k->watch.part = c->part;
    k->head->eval(k, c->head->net, path + (size_t)first * (size_t)p->stride, p->x_index, p->draws.target.at.mod,
                  p->mod_index, cfg_branches * n * steps, p->out, p->scratch);
}

/* Judges paths first .. first+n-1 in one call of the head. */
static void paths_judge_chunk(diff_paths *p, const diff_tokens *t, const float *path, int first, int n,
                              double *log_ratio, float *last, diff_speculation_stats *stats)
{
    const diff_chain *c = p->draws.target.chain;
    kern_queue *k = c->k;
    const int from = diff_tokens_source(t, first), sources = diff_tokens_source(t, first + n - 1) - from + 1;
    const kern_path_job job = {
        .paths = n,
        .channels = c->head->shape.channels,
        .conditions = p->draws.w.conditions,
        .steps = c->schedule.steps,
        .stride = p->stride,
        .path = path + (size_t)first * (size_t)p->stride,
        .out = p->out,
        .coef = c->schedule.coef,
        .cfg = c->guided ? t->cfg + first : NULL,
        .log_temperature = p->draws.w.log_temperature,
        .log_ratio = log_ratio + first,
        .last = last + (size_t)first * (size_t)c->head->shape.channels,
    };
    diff_speculate_modulate(&p->draws, &p->draws.target, t->sources, from, sources);
    paths_evaluate(p, t, path, first, n, from, sources);
    k->head->path_ratio(k, &job);
    stats->batched++;
    stats->evaluations += (long)n * c->schedule.steps;
    stats->modulations += (long)sources * c->schedule.steps;
}

void diff_paths_judge(diff_paths *p, const diff_tokens *t, const float *path, double *log_ratio, float *last,
                      diff_speculation_stats *stats)
{
    const diff_speculation_stats before = *stats;
    if (t->count == 0) return;
    diff_speculate_embed(&p->draws, &p->draws.target, t->z, t->sources);
    for (int first = 0, n; first < t->count; first += n) {
        n = diff_tokens_from(t, first, p->most, p->draws.sources);
        paths_judge_chunk(p, t, path, first, n, log_ratio, last, stats);
    }
    stats->sources += t->sources;
    diff_speculate_count_flop(&p->draws, &before, stats);
}
