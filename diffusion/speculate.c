#include "diffusion/speculate.h"

#include "base/arena.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of a token's entries of seed, image, position, source and cfg (kern_speculation), uploaded in one piece. */
enum { TOKEN_BYTES = 2 * sizeof(uint64_t) + 2 * sizeof(int) + sizeof(float) };

/* --- memory ------------------------------------------------------------------------------------------------------- */

/* Returns the maximum rows of one call of the head. */
static int speculate_most_rows(const diff_speculation *s)
{
    const kern_speculation *w = &s->w;
    const int evaluated = w->window * w->group, modulated = w->max_steps * s->sources;
    return w->conditions * (evaluated > modulated ? evaluated : modulated);
}

static size_t speculate_mod_bytes(const kern_speculation *w, const diff_head *head, int sources)
{
    return (size_t)sources * (size_t)w->conditions * (size_t)w->max_steps * head->device->head->mod_bytes(head->net);
}

static void speculate_lay_out_evaluator(const diff_speculation *s, diff_evaluator *e, char *base, size_t *used)
{
    const kern_speculation *w = &s->w;
    if (!e->chain) return;
    const diff_head *head = e->chain->head;
    const size_t rows = (size_t)(w->conditions * w->group * w->window), sources = (size_t)(w->conditions * s->sources);
    e->at.net = head->net;
    e->cond = arena_carve(base, used, sources * (size_t)head->shape.width, sizeof(float));
    e->at.mod = arena_carve(base, used, 1, speculate_mod_bytes(w, head, s->sources));
    e->at.out = arena_carve(base, used, rows * 2 * (size_t)w->channels, sizeof(float));
    e->at.scratch = arena_carve(base, used, 1, head->device->head->scratch_bytes(head->net, speculate_most_rows(s)));
}

size_t diff_speculate_lay_out(diff_speculation *s, char *base)
{
    kern_speculation *w = &s->w;
    const size_t c = (size_t)w->channels, g = (size_t)w->group, rows = g * (size_t)w->window;
    const size_t steps = (size_t)w->max_steps, cfg_branches = (size_t)s->target.chain->cfg_branches, f = sizeof(float),
                 i = sizeof(int);
    size_t used = 0;
    w->window = s->window;
    w->conditions = s->target.chain->cfg_branches;
    speculate_lay_out_evaluator(s, &s->target, base, &used);
    speculate_lay_out_evaluator(s, &s->draft, base, &used);
    w->coef = arena_carve(base, &used, steps, sizeof *w->coef);
    w->t = arena_carve(base, &used, steps, i);
    w->snr = arena_carve(base, &used, steps + 1, f);
    w->gain = arena_carve(base, &used, steps + 1, f);
    w->seed = arena_carve(base, &used, g, TOKEN_BYTES);
    w->token = arena_carve(base, &used, g * c, f);
    w->index = arena_carve(base, &used, g, i);
    w->lowest = arena_carve(base, &used, g, i);
    w->calls = arena_carve(base, &used, g, i);
    w->wide = arena_carve(base, &used, g, i);
    w->rejected = arena_carve(base, &used, g, i);
    s->limit = arena_carve(base, &used, g, sizeof *s->limit);
    w->noise = arena_carve(base, &used, steps * g * c, f);
    w->evaluated = arena_carve(base, &used, g * (steps + 1) * KERN_EVALUATED * c, f);
    w->secant = arena_carve(base, &used, g * KERN_SECANT * c, f);
    w->slot_token = arena_carve(base, &used, g, i);
    w->slot_row = arena_carve(base, &used, g, i);
    w->row_token = arena_carve(base, &used, rows, i);
    w->row_index = arena_carve(base, &used, rows, i);
    w->row_list = arena_carve(base, &used, rows, i);
    w->x_index = arena_carve(base, &used, cfg_branches * rows, i);
    w->mod_index = arena_carve(base, &used, cfg_branches * rows, i);
    w->state = arena_carve(base, &used, rows * c, f);
    w->mean_p = arena_carve(base, &used, rows * c, f);
    w->log_std_p = arena_carve(base, &used, rows * c, f);
    w->mean_q = arena_carve(base, &used, rows * c, f);
    w->log_std_q = arena_carve(base, &used, rows * c, f);
    w->tempered_p = arena_carve(base, &used, rows * c, f);
    w->tempered_q = arena_carve(base, &used, rows * c, f);
    w->draft_index = arena_carve(base, &used, cfg_branches * rows, i);
    w->left = arena_carve(base, &used, KERN_LEFT, i);
    w->count = arena_carve(base, &used, 1, sizeof *w->count);
    s->schedule = NULL;
    return used;
}

static mar_status speculate_check(const diff_chain *target, const diff_chain *draft, int window, mar_err *err)
{
    if (window < 1) return err_set(err, MAR_EARG, "--head_spec %d: expected at least 1", window);
    for (int i = 0; i < target->respacings; i++)
        if (!target->respacing[i].schedule.coef)
            return err_set(err, MAR_EARG, "--head_spec %d: expected --sampler ddpm, the others draw nothing", window);
    if (draft && draft->head->shape.channels != target->head->shape.channels)
        return err_set(err, MAR_EARG, "draft of %d channels: expected %d, the target's", draft->head->shape.channels,
                       target->head->shape.channels);
    if (draft && (draft->cfg_branches != target->cfg_branches || draft->max_tokens < target->max_tokens ||
                  draft->max_steps != target->max_steps))
        return err_set(err, MAR_EARG, "the draft's chain: expected the guidance, tokens and steps of the target's");
    return MAR_OK;
}

mar_status diff_speculate_create(diff_chain *target, diff_chain *draft, int window, int tokens, diff_speculation *out,
                                 mar_err *err)
{
    *out = (diff_speculation){0};
    mar_status status = speculate_check(target, draft, window, err);
    if (status != MAR_OK) return status;
    kern_speculation *w = &out->w;
    out->target.chain = target;
    out->draft.chain = draft;
    w->rule = (kern_gaussian_rule){.temper = 1}; /* min(1, p/q) and Norm[p - q]+ */
    w->window = window < target->max_steps ? window : target->max_steps;
    if (target->temperature == 0) w->window = 1;
    out->window = w->window;
    w->conditions = target->cfg_branches;
    w->channels = target->head->shape.channels;
    w->max_steps = target->max_steps;
    w->sphere = target->head->shape.sphere && w->channels <= KERN_SPHERE_CHANNELS;
    w->log_temperature = logf(target->temperature);
    /* A group has at most as many sources as have their modulation rows, of all steps, in the budget. */
    const size_t fit = target->k->device->mod_budget / speculate_mod_bytes(w, target->head, 1);
    out->sources = fit < 1 ? 1 : fit < (size_t)target->max_tokens ? (int)fit : target->max_tokens;
    w->group = tokens ? tokens : out->sources;
    out->packed = malloc((size_t)w->group * TOKEN_BYTES);
    if (out->packed) return MAR_OK;
    diff_speculate_free(out);
    return err_set(err, MAR_ENOMEM, "out of memory");
}

void diff_speculate_free(diff_speculation *s)
{
    free(s->packed);
    *s = (diff_speculation){0};
}

static mar_status speculate_plan_modulation(const diff_speculation *s, const diff_evaluator *e, int sources,
                                            mar_err *err)
{
    const diff_chain *c = e->chain;
    return c->k->head->plan(c->k, e->at.net, s->w.conditions * sources * c->schedule.steps, err);
}

static mar_status speculate_plan_rounds(diff_speculation *s, const diff_evaluator *e, int tokens, mar_err *err)
{
    kern_queue *k = e->chain->k;
    mar_status status = MAR_OK;
    s->w.tokens = tokens;
    s->w.window = s->window;
    do {
        status = k->head->speculate_plan(k, e->at.net, &s->w, err);
        s->w.window /= 2;
    } while (status == MAR_OK && s->has_limits && s->w.window > 0);
    return status;
}

/* Sets the branches to those in use by the target's chain; the draft's has the same. */
static void speculate_use_guidance(diff_speculation *s)
{
    s->w.conditions = s->target.chain->guided ? 2 : 1;
}

mar_status diff_speculate_plan(diff_speculation *s, int tokens, int sources, mar_err *err)
{
    const diff_evaluator *evaluators[2] = {&s->target, &s->draft};
    const int group = s->w.group, full = sources < s->sources ? sources : s->sources;
    mar_status status = MAR_OK;
    speculate_use_guidance(s);
    for (int i = 0; status == MAR_OK && i < 2 && evaluators[i]->chain; i++) {
        const diff_evaluator *e = evaluators[i];
        const diff_chain *c = e->chain;
        status = c->k->core->linear_plan(c->k, c->head->cond, s->w.conditions * sources, err);
        if (status == MAR_OK) status = speculate_plan_modulation(s, e, full, err);
        if (status == MAR_OK && sources % s->sources)
            status = speculate_plan_modulation(s, e, sources % s->sources, err);
        if (status == MAR_OK) status = speculate_plan_rounds(s, e, tokens < group ? tokens : group, err);
        if (status == MAR_OK && tokens % group) status = speculate_plan_rounds(s, e, tokens % group, err);
    }
    return status;
}

/* --- tokens ------------------------------------------------------------------------------------------------------- */

/* Uploads the tables of the respacing in use, unless they are already there. */
static void speculate_use_schedule(diff_speculation *s)
{
    kern_queue *k = s->target.chain->k;
    kern_speculation *w = &s->w;
    const diff_schedule *schedule = &s->target.chain->schedule;
    const size_t steps = (size_t)schedule->steps;
    w->steps = schedule->steps;
    if (s->schedule == schedule->coef) return;
    s->schedule = schedule->coef;
    k->core->upload(k, w->coef, schedule->coef, steps * sizeof *w->coef);
    k->core->upload(k, w->t, schedule->t, steps * sizeof *w->t);
    k->core->upload(k, w->snr, schedule->snr, (steps + 1) * sizeof *w->snr);
    k->core->upload(k, w->gain, schedule->gain, (steps + 1) * sizeof *w->gain);
}

void diff_speculate_modulate(const diff_speculation *s, const diff_evaluator *e, int sources, int first, int n)
{
    const diff_chain *c = e->chain;
    kern_queue *k = c->k;
    const int width = c->head->shape.width, conditions = s->w.conditions;
    k->watch.part = c->part;
    for (int i = 0; i < conditions && n < sources; i++)
        k->core->copy_rows(k, e->cond + (size_t)(i * n) * (size_t)width, NULL,
                           c->cond + (size_t)(i * sources + first) * (size_t)width, NULL, NULL, NULL, n, width);
    k->head->modulate(k, c->head->net, c->temb, c->step_index, c->fine, c->schedule.steps,
                      n < sources ? e->cond : c->cond, conditions * n, e->at.mod, e->at.scratch);
}

/* Runs all rounds of the group's tokens. */
static void speculate_run_rounds(diff_speculation *s)
{
    kern_queue *k = s->target.chain->k;
    kern_speculation *w = &s->w;
    const kern_speculation_head *draft = s->draft.chain ? &s->draft.at : NULL;
    s->target.at.part = s->target.chain->part;
    if (draft) s->draft.at.part = s->draft.chain->part;
    k->head->speculate_start(k, w);
    k->fused->speculate_run(k, w, draft, &s->target.at);
    if (!k->watch.on || k->watch.layer[0] ||
        k->core->first_nonfinite(k, w->token, MAR_DTYPE_F32, w->tokens, w->channels, w->channels) < 0)
        return;
    k->head->speculate_start(k, w); /* again, round by round, to show the layers */
    kern_speculate_rounds(k, w, draft, &s->target.at);
}

/* draft_calls: calls of the draft's head in a round. */
static void speculate_add_stats(const kern_speculation_count *count, int draft_calls, diff_speculation_stats *stats)
{
    stats->calls += (long)count->calls;
    if ((int)count->calls_max > stats->calls_max) stats->calls_max = (int)count->calls_max;
    stats->batched += (long)count->rounds;
    stats->draft_batched += (long)count->rounds * draft_calls;
    stats->evaluations += (long)count->evaluations;
    stats->draft_evaluations += (long)count->draft_evaluations;
    stats->accepted += (long)count->accepted;
    stats->rejected += (long)count->rejected;
    stats->tries += (long)count->tries;
}

/* Returns the arithmetic of one of the models: the work counted in stats, and this many evaluations. */
static double speculate_evaluator_flop(const diff_speculation *s, const diff_evaluator *e,
                                       const diff_speculation_stats *stats, long evaluations)
{
    if (!e->chain) return 0;
    const diff_head *head = e->chain->head;
    return 2.0 * s->w.conditions *
           (diff_head_macs(head, (double)stats->modulations, (double)evaluations) +
            (double)stats->sources * head->shape.z_dim * head->shape.width);
}

void diff_speculate_count_flop(const diff_speculation *s, const diff_speculation_stats *before,
                               diff_speculation_stats *stats)
{
    stats->flop += speculate_evaluator_flop(s, &s->target, stats, stats->evaluations) -
                   speculate_evaluator_flop(s, &s->target, before, before->evaluations) +
                   speculate_evaluator_flop(s, &s->draft, stats, stats->draft_evaluations) -
                   speculate_evaluator_flop(s, &s->draft, before, before->draft_evaluations);
}

void diff_speculate_embed(const diff_speculation *s, const diff_evaluator *e, const float *z, int sources)
{
    const diff_chain *c = e->chain;
    kern_queue *k = c->k;
    k->core->linear(k, c->head->cond, z, s->w.conditions * sources, c->cond);
    k->watch.part = c->part;
    diff_chain_watch(c, z, s->w.conditions * sources);
}

int diff_tokens_source(const diff_tokens *t, int i)
{
    return t->source ? t->source[i] : i;
}

int diff_tokens_from(const diff_tokens *t, int first, int most, int sources)
{
    const int end = diff_tokens_source(t, first) + sources;
    int n = 0;
    while (first + n < t->count && n < most && diff_tokens_source(t, first + n) < end) n++;
    return n;
}

/* Places the arrays behind w->seed that belong to n tokens, which have no limits. */
static void speculate_place_tokens(kern_speculation *w, int n)
{
    w->tokens = n;
    w->image = w->seed + n;
    w->position = (int *)(w->image + n);
    w->source = w->position + n;
    w->cfg = (float *)(w->source + n);
    w->limit = NULL;
}

/* Uploads the limits of n tokens. The group's window is the largest of theirs. */
static void speculate_upload_limits(diff_speculation *s, const kern_speculation_limit *limit, int n)
{
    kern_queue *k = s->target.chain->k;
    kern_speculation *w = &s->w;
    w->limit = s->limit;
    w->window = 1;
    for (int i = 0; i < n; i++)
        if (limit[i].window > w->window) w->window = limit[i].window;
    k->core->upload(k, w->limit, limit, (size_t)n * sizeof *w->limit);
}

/* Uploads the arrays of n tokens. */
static void speculate_upload_tokens(diff_speculation *s, const diff_tokens *t, int first, int n)
{
    kern_queue *k = s->target.chain->k;
    kern_speculation *w = &s->w;
    uint64_t *seed = s->packed, *image = seed + n;
    int *position = (int *)(image + n), *source = position + n;
    float *cfg = (float *)(source + n);
    const int from = diff_tokens_source(t, first);
    for (int i = 0; i < n; i++) {
        seed[i] = t->seed[first + i];
        image[i] = t->image[first + i];
        position[i] = t->position[first + i];
        source[i] = diff_tokens_source(t, first + i) - from;
        cfg[i] = s->target.chain->guided ? t->cfg[first + i] : 1;
    }
    speculate_place_tokens(w, n);
    k->core->upload(k, w->seed, s->packed, (size_t)n * TOKEN_BYTES);
    w->window = s->window;
    if (t->limit) speculate_upload_limits(s, t->limit + first, n);
}

/* Sets the working memory to tokens first .. first+n-1. */
static void speculate_begin_group(diff_speculation *s, const diff_tokens *t, int first, int n)
{
    kern_speculation *w = &s->w;
    const int from = diff_tokens_source(t, first), sources = diff_tokens_source(t, first + n - 1) - from + 1;
    w->sources = sources;
    speculate_upload_tokens(s, t, first, n);
    diff_speculate_modulate(s, &s->target, t->sources, from, sources);
    if (s->draft.chain) diff_speculate_modulate(s, &s->draft, t->sources, from, sources);
}

/* Writes the tallies of the group's tokens. */
static void speculate_read_tallies(diff_speculation *s, diff_tally *tally)
{
    kern_queue *k = s->target.chain->k;
    const kern_speculation *w = &s->w;
    const int *entry[] = {w->calls, w->wide, w->rejected};
    int *host = (int *)s->packed; /* behind the upload */
    for (int e = 0; e < 3; e++) {
        memset(host, 0, (size_t)w->tokens * sizeof *host);
        k->core->download(k, host, entry[e], (size_t)w->tokens * sizeof *host);
        for (int i = 0; i < w->tokens; i++) {
            int *const counts[] = {&tally[i].rounds, &tally[i].wide, &tally[i].rejected};
            *counts[e] = host[i];
        }
    }
}

void diff_speculate_sample(diff_speculation *s, const diff_tokens *t, float *x, float *path,
                           diff_speculation_stats *stats)
{
    kern_queue *k = s->target.chain->k;
    kern_speculation *w = &s->w;
    const size_t channels = (size_t)w->channels, stride = (size_t)(w->max_steps + 1) * KERN_EVALUATED * channels;
    const diff_speculation_stats before = *stats;
    if (t->count == 0) return;
    speculate_use_schedule(s);
    speculate_use_guidance(s);
    diff_speculate_embed(s, &s->target, t->z, t->sources);
    if (s->draft.chain) diff_speculate_embed(s, &s->draft, t->draft_z, t->sources);
    for (int first = 0, n; first < t->count; first += n) {
        kern_speculation_count count = {0}; /* stays so if the operations fail */
        n = diff_tokens_from(t, first, w->group, s->sources);
        speculate_begin_group(s, t, first, n);
        speculate_run_rounds(s);
        k->core->copy_rows(k, x + (size_t)first * channels, NULL, w->token, NULL, NULL, NULL, n, w->channels);
        if (path)
            k->core->copy_rows(k, path + (size_t)first * stride, NULL, w->evaluated, NULL, NULL, NULL, n, (int)stride);
        k->core->download(k, &count, w->count, sizeof count);
        if (t->limit) speculate_read_tallies(s, t->tally + first);
        speculate_add_stats(&count, s->draft.chain ? w->window - 1 : 0, stats);
        stats->modulations += (long)w->sources * w->steps;
    }
    if (kern_check(k, NULL) != MAR_OK) s->schedule = NULL; /* the upload of its tables may have failed */
    stats->tokens += t->count;
    stats->sources += t->sources;
    diff_speculate_count_flop(s, &before, stats);
}

void diff_speculate_rehearse(diff_speculation *s, int tokens, int window)
{
    diff_chain *c = s->target.chain;
    kern_queue *k = c->k;
    kern_speculation *w = &s->w;
    speculate_use_schedule(s);
    speculate_use_guidance(s);
    speculate_place_tokens(w, tokens);
    w->sources = 1;
    w->steps = w->window = window; /* the chain's last steps */
    memset(s->packed, 0, (size_t)tokens * TOKEN_BYTES);
    k->core->upload(k, w->seed, s->packed, (size_t)tokens * TOKEN_BYTES);
    k->head->modulate(k, c->head->net, c->temb, c->step_index, c->fine, window, c->cond, w->conditions,
                      s->target.at.mod, s->target.at.scratch);
    diff_chain_rehearse(c, tokens);
}

void diff_speculate_restart(diff_speculation *s)
{
    kern_queue *k = s->target.chain->k;
    k->head->speculate_start(k, &s->w);
    k->core->finish(k);
}

void diff_speculate_round(diff_speculation *s)
{
    kern_queue *k = s->target.chain->k;
    const uint64_t *zeros = s->packed;
    if (s->w.window == 1)
        diff_chain_take_last(s->target.chain, s->w.tokens, (const float *)zeros, zeros, (const int *)zeros, s->w.token);
    else if (kern_live(k) && k->head->speculate_propose(k, &s->w, NULL))
        k->head->speculate_walk(k, &s->w, &s->target.at);
    k->core->finish(k);
}

void diff_speculate_add_stats(const diff_speculation_stats *s, mar_stats *to)
{
    to->head_calls += (double)s->calls;
    if (s->calls_max > to->head_calls_max) to->head_calls_max = s->calls_max;
    to->head_batched += (double)s->batched;
    to->draft_calls += (double)s->draft_batched;
    to->head_rows += (double)s->evaluations;
    to->proposals += s->accepted + s->rejected;
    to->proposals_accepted += s->accepted;
    to->residual_tries += s->tries;
}
