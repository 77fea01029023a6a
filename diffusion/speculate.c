#include "diffusion/speculate.h"

#include "base/arena.h"
#include "specdec/verifier.h"

#include <math.h>
#include <stdlib.h>

/* --- memory -------------------------------------------------------------------------------------------------- */

/* The most rows of one call of the head. Modulation is one condition at a time. */
static int most_rows(const kern_speculation *w)
{
    const int evaluated = w->conditions * w->window;
    return w->group * (evaluated > w->max_steps ? evaluated : w->max_steps);
}

static size_t mod_bytes(const kern_speculation *w, const diff_head *head, int tokens)
{
    return (size_t)tokens * (size_t)w->conditions * (size_t)w->max_steps * head->device->head->mod_bytes(head->net);
}

static void lay_out_evaluator(const kern_speculation *w, diff_evaluator *e, char *base, size_t *used)
{
    if (!e->chain) return;
    const diff_head *head = e->chain->head;
    const size_t rows = (size_t)(w->conditions * w->group * w->window);
    e->at.net = head->net;
    e->at.mod = arena_carve(base, used, 1, mod_bytes(w, head, w->group));
    e->at.out = arena_carve(base, used, rows * 2 * (size_t)w->channels, sizeof(float));
    e->at.scratch = arena_carve(base, used, 1, head->device->head->scratch_bytes(head->net, most_rows(w)));
}

size_t diff_speculate_lay_out(diff_speculation *s, char *base)
{
    kern_speculation *w = &s->w;
    const size_t c = (size_t)w->channels, g = (size_t)w->group, rows = g * (size_t)w->window;
    const size_t steps = (size_t)w->max_steps, conditions = (size_t)w->conditions, f = sizeof(float), i = sizeof(int);
    size_t used = 0;
    lay_out_evaluator(w, &s->target, base, &used);
    lay_out_evaluator(w, &s->draft, base, &used);
    w->coef = arena_carve(base, &used, steps, sizeof *w->coef);
    w->t = arena_carve(base, &used, steps, i);
    w->snr = arena_carve(base, &used, steps + 1, f);
    w->gain = arena_carve(base, &used, steps + 1, f);
    w->image = arena_carve(base, &used, g, sizeof *w->image);
    w->position = arena_carve(base, &used, g, i);
    w->cfg = arena_carve(base, &used, g, f);
    w->token = arena_carve(base, &used, g * c, f);
    w->index = arena_carve(base, &used, g, i);
    w->lowest = arena_carve(base, &used, g, i);
    w->calls = arena_carve(base, &used, g, i);
    w->noise = arena_carve(base, &used, steps * g * c, f);
    w->evaluated = arena_carve(base, &used, g * (steps + 1) * KERN_EVALUATED * c, f);
    w->secant = arena_carve(base, &used, g * KERN_SECANT * c, f);
    w->slot_token = arena_carve(base, &used, g, i);
    w->slot_row = arena_carve(base, &used, g, i);
    w->row_token = arena_carve(base, &used, rows, i);
    w->row_index = arena_carve(base, &used, rows, i);
    w->row_list = arena_carve(base, &used, rows, i);
    w->x_index = arena_carve(base, &used, conditions * rows, i);
    w->mod_index = arena_carve(base, &used, conditions * rows, i);
    w->state = arena_carve(base, &used, rows * c, f);
    w->mean_p = arena_carve(base, &used, rows * c, f);
    w->log_std_p = arena_carve(base, &used, rows * c, f);
    w->mean_q = arena_carve(base, &used, rows * c, f);
    w->log_std_q = arena_carve(base, &used, rows * c, f);
    w->tempered_p = arena_carve(base, &used, rows * c, f);
    w->tempered_q = arena_carve(base, &used, rows * c, f);
    w->draft_index = arena_carve(base, &used, conditions * rows, i);
    w->left = arena_carve(base, &used, KERN_LEFT, i);
    w->count = arena_carve(base, &used, 1, sizeof *w->count);
    s->schedule = NULL;
    return used;
}

static mar_status check(const diff_chain *target, const diff_chain *draft, int window, mar_err *err)
{
    if (window < 1) return err_set(err, MAR_EARG, "head_spec %d: expected at least 1", window);
    for (int i = 0; i < target->respacings; i++)
        if (!target->respacing[i].schedule.coef)
            return err_set(err, MAR_EARG, "head_spec %d: expected sampler ddpm, the others draw nothing", window);
    if (draft && draft->head->channels != target->head->channels)
        return err_set(err, MAR_EARG, "draft of %d channels: expected %d, the target's", draft->head->channels,
                       target->head->channels);
    if (draft && (draft->guided != target->guided || draft->max_tokens < target->max_tokens ||
                  draft->max_steps != target->max_steps))
        return err_set(err, MAR_EARG, "the draft's chain: expected the guidance, tokens and steps of the target's");
    return MAR_OK;
}

mar_status diff_speculate_create(diff_chain *target, diff_chain *draft, int window, diff_speculation *out, mar_err *err)
{
    *out = (diff_speculation){0};
    mar_status status = check(target, draft, window, err);
    if (status != MAR_OK) return status;
    kern_speculation *w = &out->w;
    out->target.chain = target;
    out->draft.chain = draft;
    w->rule = spec_method_find("conditional")->rule(NULL);
    w->window = window < target->max_steps ? window : target->max_steps;
    if (target->temperature == 0) w->window = 1;
    w->conditions = target->guided ? 2 : 1;
    w->channels = target->head->channels;
    w->max_steps = target->max_steps;
    w->log_temperature = logf(target->temperature);
    /* a group has as many tokens as its modulation rows, of all steps, fit in the budget */
    const size_t fit = target->k->device->mod_budget / mod_bytes(w, target->head, 1);
    w->group = fit < 1 ? 1 : fit < (size_t)target->max_tokens ? (int)fit : target->max_tokens;
    out->table = malloc(((size_t)w->max_steps + 1) * sizeof *out->table);
    return out->table ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
}

void diff_speculate_free(diff_speculation *s)
{
    free(s->table);
    *s = (diff_speculation){0};
}

static mar_status plan_group(diff_speculation *s, const diff_evaluator *e, int tokens, mar_err *err)
{
    kern_queue *k = e->chain->k;
    s->w.tokens = tokens;
    const mar_status status = k->head->plan(k, e->at.net, tokens * e->chain->schedule.steps, err);
    return status == MAR_OK ? k->head->speculate_plan(k, e->at.net, &s->w, err) : status;
}

mar_status diff_speculate_plan(diff_speculation *s, int tokens, mar_err *err)
{
    const diff_evaluator *evaluators[2] = {&s->target, &s->draft};
    const int full = tokens < s->w.group ? tokens : s->w.group, rest = tokens % s->w.group;
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && i < 2 && evaluators[i]->chain; i++) {
        const diff_chain *c = evaluators[i]->chain;
        status = c->k->core->linear_plan(c->k, c->head->cond, s->w.conditions * tokens, err);
        if (status == MAR_OK) status = plan_group(s, evaluators[i], full, err);
        if (status == MAR_OK && rest) status = plan_group(s, evaluators[i], rest, err);
    }
    return status;
}

/* --- tokens -------------------------------------------------------------------------------------------------- */

/* Uploads the tables of the respacing in use, unless they are there. */
static void use_schedule(diff_speculation *s)
{
    kern_queue *k = s->target.chain->k;
    kern_speculation *w = &s->w;
    const diff_schedule *schedule = &s->target.chain->schedule;
    const size_t steps = (size_t)schedule->steps;
    if (s->schedule == schedule->coef) return;
    s->schedule = schedule->coef;
    w->steps = schedule->steps;
    k->core->upload(k, w->coef, schedule->coef, steps * sizeof *w->coef);
    k->core->upload(k, w->t, schedule->t, steps * sizeof *w->t);
    s->table[steps] = 0;
    for (size_t i = 0; i < steps; i++) { /* snr = 1 / (1/abar - 1) */
        const float recipm1 = schedule->coef[i].sqrt_recipm1_abar;
        s->table[i] = 1 / (recipm1 * recipm1);
    }
    k->core->upload(k, w->snr, s->table, (steps + 1) * sizeof *w->snr);
    for (size_t i = 0; i < steps; i++) s->table[i] = schedule->coef[i].sqrt_recip_abar * s->table[i];
    k->core->upload(k, w->gain, s->table, (steps + 1) * sizeof *w->gain);
}

/* Computes the modulation of all steps of tokens first .. first+n-1; the conditions of all `tokens` are embedded. */
static void modulate(const diff_speculation *s, const diff_evaluator *e, int tokens, int first, int n)
{
    const diff_chain *c = e->chain;
    kern_queue *k = c->k;
    const size_t half = (size_t)c->schedule.steps * (size_t)n * k->head->mod_bytes(c->head->net);
    k->watch.part = c->part;
    for (int i = 0; i < s->w.conditions; i++)
        k->head->modulate(k, c->head->net, c->temb, c->step_index, c->schedule.steps,
                          c->cond + (size_t)(i * tokens + first) * (size_t)c->head->width, n,
                          (char *)e->at.mod + (size_t)i * half, e->at.scratch);
}

/* Runs all rounds of the group's tokens. */
static void run_rounds(diff_speculation *s, diff_speculation_stats *stats)
{
    kern_queue *k = s->target.chain->k;
    kern_speculation *w = &s->w;
    const kern_speculation_head *draft = s->draft.chain ? &s->draft.at : NULL;
    k->head->speculate_start(k, w);
    if (!draft && k->head->speculate_run && k->head->speculate_run(k, w, &s->target.at)) {
        if (!k->watch.on || k->core->first_nonfinite(k, w->token, 1, w->tokens, w->channels, w->channels) < 0) return;
        k->head->speculate_start(k, w); /* again, round by round, which shows the layers */
    }
    /* Where operations do nothing any more, what propose returns says nothing. */
    for (;;) {
        k->watch.part = draft ? s->draft.chain->part : s->target.chain->part;
        if (kern_check(k, NULL) != MAR_OK || !k->head->speculate_propose(k, w, draft)) return;
        k->watch.part = s->target.chain->part;
        k->head->speculate_walk(k, w, &s->target.at);
        if (draft) stats->draft_batched += w->window - 1;
    }
}

static void add_stats(const kern_speculation_count *count, diff_speculation_stats *stats)
{
    stats->calls += (long)count->calls;
    if ((int)count->calls_max > stats->calls_max) stats->calls_max = (int)count->calls_max;
    stats->batched += (long)count->rounds;
    stats->evaluations += (long)count->evaluations;
    stats->draft_evaluations += (long)count->draft_evaluations;
    stats->accepted += (long)count->accepted;
    stats->rejected += (long)count->rejected;
    stats->tries += (long)count->tries;
}

static double evaluator_flop(const diff_speculation *s, const diff_evaluator *e, const diff_speculation_stats *stats,
                             long evaluations)
{
    if (!e->chain) return 0;
    const diff_head *head = e->chain->head;
    return 2.0 * s->w.conditions *
           (diff_head_macs(head, (double)stats->modulations, (double)evaluations) +
            (double)stats->tokens * head->z_dim * head->width);
}

void diff_speculate_sample(diff_speculation *s, const float *z, const float *draft_z, int tokens, const float *cfg,
                           uint64_t seed, const uint64_t *image, const int *position, float *x,
                           diff_speculation_stats *stats)
{
    const diff_chain *c = s->target.chain;
    kern_queue *k = c->k;
    kern_speculation *w = &s->w;
    use_schedule(s);
    w->seed = seed;
    k->core->linear(k, c->head->cond, z, w->conditions * tokens, c->cond);
    k->watch.part = c->part;
    diff_chain_watch(c, z, w->conditions * tokens);
    if (s->draft.chain) {
        k->core->linear(k, s->draft.chain->head->cond, draft_z, w->conditions * tokens, s->draft.chain->cond);
        k->watch.part = s->draft.chain->part;
        diff_chain_watch(s->draft.chain, draft_z, w->conditions * tokens);
    }
    for (int first = 0; first < tokens; first += w->group) {
        const int n = w->tokens = tokens - first < w->group ? tokens - first : w->group;
        kern_speculation_count count = {0}; /* as it stays if the operations fail */
        k->core->upload(k, w->image, image + first, (size_t)n * sizeof *image);
        k->core->upload(k, w->position, position + first, (size_t)n * sizeof *position);
        if (c->guided) k->core->upload(k, w->cfg, cfg + first, (size_t)n * sizeof *cfg);
        modulate(s, &s->target, tokens, first, n);
        if (s->draft.chain) modulate(s, &s->draft, tokens, first, n);
        run_rounds(s, stats);
        k->core->copy_rows(k, x + (size_t)first * (size_t)w->channels, NULL, w->token, NULL, NULL, NULL, n,
                           w->channels);
        k->core->download(k, &count, w->count, sizeof count);
        add_stats(&count, stats);
    }
    if (kern_check(k, NULL) != MAR_OK) s->schedule = NULL; /* its tables may not be there */
    stats->tokens += tokens;
    stats->modulations += (long)tokens * c->schedule.steps;
    stats->flop = evaluator_flop(s, &s->target, stats, stats->evaluations) +
                  evaluator_flop(s, &s->draft, stats, stats->draft_evaluations);
}
