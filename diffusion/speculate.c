#include "diffusion/speculate.h"

#include "base/arena.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The modulation of all steps of a group is held at once, in so many bytes or one token's. For MAR-B at 100 steps that
 * is 7 tokens, whose windows make a call large enough to lose nothing against a larger group. */
enum { MOD_BUDGET = 64 << 20 };

/* Of r: weight of the prior value 1, how fast old steps are forgotten, bounds. From trials on the demo; none of them is
 * delicate. */
static const float prior_weight = 2, forget = 0.8f, ratio_min = 0.5f, ratio_max = 2;

/* Of q: any bounds do, they keep it finite where untrained weights throw the chain far away. */
static const float clean_max = 1e6f, fraction_min = -1, fraction_max = 2;

enum { STATE, X0, FRACTION, SEEN };      /* of diff_speculation.seen */
enum { RATIO, PRODUCT, SQUARE, SECANT }; /* of diff_speculation.secant */

static float *seen(const diff_speculation *s, int token, int index)
{
    const int entries = s->target.chain->max_steps + 1;
    return s->seen + (size_t)(token * entries + index) * SEEN * (size_t)s->channels;
}

static const float *noise(const diff_speculation *s, int token, int index)
{
    return s->eps + (size_t)(index * s->group + token) * (size_t)s->channels;
}

/* --- memory -------------------------------------------------------------------------------------------------- */

static size_t lay_out(diff_speculation *s, char *base)
{
    const size_t c = (size_t)s->channels, g = (size_t)s->group, window = (size_t)s->window, rows = g * window;
    const size_t steps = (size_t)s->target.chain->max_steps, f = sizeof(float), i = sizeof(int);
    size_t used = 0;
    s->eps = arena_carve(base, &used, steps * g * c, f);
    s->state = arena_carve(base, &used, rows * c, f);
    s->out = arena_carve(base, &used, rows * 2 * c, f);
    s->mean_p = arena_carve(base, &used, rows * c, f);
    s->log_std_p = arena_carve(base, &used, rows * c, f);
    s->mean_q = arena_carve(base, &used, rows * c, f);
    s->log_std_q = arena_carve(base, &used, rows * c, f);
    s->seen = arena_carve(base, &used, g * (steps + 1) * SEEN * c, f);
    s->secant = arena_carve(base, &used, g * SECANT * c, f);
    s->tempered = arena_carve(base, &used, 2 * window * c, f);
    s->walked = arena_carve(base, &used, window * c, f);
    s->site = arena_carve(base, &used, window, sizeof *s->site);
    s->draft_state = arena_carve(base, &used, window, sizeof *s->draft_state);
    s->address = arena_carve(base, &used, window, sizeof *s->address);
    s->verdict = arena_carve(base, &used, window, sizeof *s->verdict);
    s->token = arena_carve(base, &used, g * c, f);
    s->snr = arena_carve(base, &used, steps + 1, f);
    s->gain = arena_carve(base, &used, steps + 1, f);
    s->row_cfg = arena_carve(base, &used, rows, f);
    s->row_token = arena_carve(base, &used, rows, i);
    s->row_index = arena_carve(base, &used, rows, i);
    s->row_child = arena_carve(base, &used, rows, i);
    s->index = arena_carve(base, &used, g, i);
    s->lowest = arena_carve(base, &used, g, i);
    s->calls = arena_carve(base, &used, g, i);
    s->x_index = arena_carve(base, &used, (size_t)s->conditions * rows, i);
    s->mod_index = arena_carve(base, &used, (size_t)s->conditions * rows, i);
    s->coef = arena_carve(base, &used, rows, sizeof *s->coef);
    return used;
}

/* Rows of one call: modulation makes a condition's at a time. */
static int most_rows(const diff_speculation *s)
{
    const int evaluated = s->conditions * s->window, modulated = s->target.chain->max_steps;
    return s->group * (evaluated > modulated ? evaluated : modulated);
}

static size_t mod_bytes(const diff_speculation *s, const diff_head *head, int tokens)
{
    return (size_t)tokens * (size_t)s->conditions * (size_t)s->target.chain->max_steps *
           head->k->ops->head_mod_bytes(head->net);
}

static mar_status create_evaluator(const diff_speculation *s, diff_chain *chain, diff_evaluator *e, mar_err *err)
{
    kern *k = chain->head->k;
    const size_t out = (size_t)(s->conditions * s->group * s->window) * 2 * (size_t)s->channels * sizeof(float);
    void *p = NULL;
    e->chain = chain;
    mar_status status = k->ops->alloc(k, mod_bytes(s, chain->head, s->group), &e->mod, err);
    if (status == MAR_OK)
        status = k->ops->alloc(k, k->ops->head_scratch_bytes(chain->head->net, most_rows(s)), &e->scratch, err);
    if (status == MAR_OK) status = k->ops->alloc(k, out, &p, err);
    e->out = p;
    return status;
}

static mar_status create_arrays(diff_speculation *s, mar_err *err)
{
    kern *k = s->target.chain->head->k;
    const size_t rows = (size_t)s->group * (size_t)s->window;
    float **arrays[] = {&s->x, &s->mean, &s->log_std, &s->noise};
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && i < 4; i++) {
        void *p = NULL;
        const size_t n = i < 3 ? rows : (size_t)s->group * (size_t)s->target.chain->max_steps;
        status = k->ops->alloc(k, n * (size_t)s->channels * sizeof(float), &p, err);
        *arrays[i] = p;
    }
    if (status != MAR_OK) return status;
    s->host = aligned_alloc(64, lay_out(s, NULL));
    if (!s->host) return err_set(err, MAR_ENOMEM, "out of memory");
    lay_out(s, s->host);
    return MAR_OK;
}

static mar_status check(const diff_chain *target, const diff_chain *draft, int window, mar_err *err)
{
    if (window < 1) return err_set(err, MAR_EARG, "head_spec %d: expected at least 1", window);
    for (int i = 0; i < target->courses; i++)
        if (!target->course[i].schedule.coef)
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
    out->target.chain = target;
    out->method = spec_method_find("conditional");
    out->window = window < target->max_steps ? window : target->max_steps;
    if (target->temperature == 0) out->window = 1;
    out->conditions = target->guided ? 2 : 1;
    out->channels = target->head->channels;
    const size_t fit = MOD_BUDGET / mod_bytes(out, target->head, 1);
    out->group = fit < 1 ? 1 : fit < (size_t)target->max_tokens ? (int)fit : target->max_tokens;
    status = create_evaluator(out, target, &out->target, err);
    if (status == MAR_OK && draft) status = create_evaluator(out, draft, &out->draft, err);
    if (status == MAR_OK) status = create_arrays(out, err);
    if (status != MAR_OK) diff_speculate_free(out);
    return status;
}

void diff_speculate_free(diff_speculation *s)
{
    if (!s->target.chain) return;
    kern *k = s->target.chain->head->k;
    void *arrays[] = {s->target.mod, s->target.scratch, s->target.out, s->draft.mod, s->draft.scratch, s->draft.out,
                      s->x,          s->mean,           s->log_std,    s->noise};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        if (arrays[i]) k->ops->free(k, arrays[i]);
    free(s->host);
    *s = (diff_speculation){0};
}

static size_t evaluator_bytes(const diff_speculation *s, const diff_evaluator *e)
{
    if (!e->chain) return 0;
    const diff_head *head = e->chain->head;
    return mod_bytes(s, head, s->group) + head->k->ops->head_scratch_bytes(head->net, most_rows(s)) +
           (size_t)(s->conditions * s->group * s->window) * 2 * (size_t)s->channels * sizeof(float);
}

size_t diff_speculate_bytes(const diff_speculation *s)
{
    const size_t rows = (size_t)s->group * (size_t)s->window, noises = (size_t)(s->group * s->target.chain->max_steps);
    diff_speculation copy = *s;
    return evaluator_bytes(s, &s->target) + evaluator_bytes(s, &s->draft) +
           (3 * rows + noises) * (size_t)s->channels * sizeof(float) + lay_out(&copy, NULL);
}

static mar_status plan_group(const diff_speculation *s, const diff_evaluator *e, int tokens, mar_err *err)
{
    const diff_head *head = e->chain->head;
    kern *k = head->k;
    mar_status status = k->ops->head_plan(k, head->net, tokens * e->chain->schedule.steps, err);
    for (int n = 1; status == MAR_OK && n <= tokens * s->window; n++) /* tokens finish one by one */
        status = k->ops->head_plan(k, head->net, s->conditions * n, err);
    return status;
}

mar_status diff_speculate_plan(diff_speculation *s, int tokens, mar_err *err)
{
    const diff_evaluator *evaluators[2] = {&s->target, &s->draft};
    const int full = tokens < s->group ? tokens : s->group, rest = tokens % s->group;
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && i < 2 && evaluators[i]->chain; i++) {
        const diff_head *head = evaluators[i]->chain->head;
        status = head->k->ops->linear_plan(head->k, head->cond, s->conditions * tokens, err);
        if (status == MAR_OK) status = plan_group(s, evaluators[i], full, err);
        if (status == MAR_OK && rest) status = plan_group(s, evaluators[i], rest, err);
    }
    return status;
}

/* --- proposals ----------------------------------------------------------------------------------------------- */

/* q of transition k from the state x: the filter of speculate.h. Reads no evaluation below k. */
static void propose(const diff_speculation *s, int token, int k, const float *x, float *mean, float *log_std)
{
    const int channels = s->channels, from = k > s->lowest[token] ? k : s->lowest[token];
    const float *state = seen(s, token, from), *x0 = state + X0 * channels, *fraction = state + FRACTION * channels;
    const float *ratio = s->secant + (size_t)token * SECANT * (size_t)channels;
    const kern_chain_coef coef = s->target.chain->schedule.coef[k];
    const float prior = 1 / (1 + s->snr[from]), rise = s->snr[k] - s->snr[from];
    const float gain = s->gain[k], gain_from = s->gain[from];
    for (int c = 0; c < channels; c++) {
        const float v = prior * ratio[c];
        const float clean = (x0[c] + v * (gain * x[c] - gain_from * state[c])) / (1 + v * rise);
        const float part = fminf(fmaxf(fraction[c], fraction_min), fraction_max);
        mean[c] = coef.coef_x0 * fminf(fmaxf(clean, -clean_max), clean_max) + coef.coef_xt * x[c];
        log_std[c] = 0.5f * (part * coef.log_var_max + (1 - part) * coef.log_var_min);
    }
}

/* Keeps what the head said of a row's state. Each round reaches lower than those before. */
static void remember(diff_speculation *s, int row)
{
    const size_t channels = (size_t)s->channels, first = (size_t)row * channels;
    const kern_chain_coef coef = s->target.chain->schedule.coef[s->row_index[row]];
    const float *x = s->state + first, *mean = s->mean_p + first, *v = s->out + 2 * first + channels;
    float *state = seen(s, s->row_token[row], s->row_index[row]);
    float *x0 = state + X0 * channels, *fraction = state + FRACTION * channels;
    for (size_t c = 0; c < channels; c++) {
        state[c] = x[c];
        x0[c] = (mean[c] - coef.coef_xt * x[c]) / coef.coef_x0;
        fraction[c] = (v[c] + 1) * 0.5f;
    }
    s->lowest[s->row_token[row]] = s->row_index[row];
}

/* Adds the step from index k+1 to k, both evaluated at the chain's own states, to the sums of r: by how much x0 moved
 * against what the filter with r = 1 expected. */
static void learn(diff_speculation *s, int token, int k)
{
    const int channels = s->channels;
    const float *above = seen(s, token, k + 1), *here = seen(s, token, k);
    const float *x0_above = above + X0 * channels, *x0 = here + X0 * channels;
    float *ratio = s->secant + (size_t)token * SECANT * (size_t)channels;
    float *product = ratio + PRODUCT * channels, *square = ratio + SQUARE * channels;
    const float prior = 1 / (1 + s->snr[k + 1]), rise = s->snr[k] - s->snr[k + 1];
    const float gain = s->gain[k], gain_above = s->gain[k + 1];
    float mean_square = 1e-12f; /* of the expected moves: a step's weight does not depend on its size */
    for (int c = 0; c < channels; c++) {
        const float expected = prior * (gain * here[c] - gain_above * above[c] - rise * x0[c]);
        mean_square += expected * expected / (float)channels;
    }
    for (int c = 0; c < channels; c++) {
        const float expected = prior * (gain * here[c] - gain_above * above[c] - rise * x0[c]);
        product[c] = forget * product[c] + expected * (x0[c] - x0_above[c]) / mean_square;
        square[c] = forget * square[c] + expected * expected / mean_square;
        ratio[c] = fminf(fmaxf((prior_weight + product[c]) / (prior_weight + square[c]), ratio_min), ratio_max);
    }
}

/* --- rounds -------------------------------------------------------------------------------------------------- */

/* A group: tokens that go through the chain together. */
typedef struct {
    int tokens;
    const float *cfg;
    uint64_t seed;
    const uint64_t *image;
    const int *position;
    diff_speculation_stats *stats;
} job;

/* Laws of the transitions from rows first..first+n-1, at temperature 1. */
static void evaluate(diff_speculation *s, const diff_evaluator *e, const job *j, int first, int n, float *mean,
                     float *log_std)
{
    kern *k = e->chain->head->k;
    const size_t offset = (size_t)first * (size_t)s->channels, bytes = (size_t)n * (size_t)s->channels * sizeof(float);
    for (int r = 0; r < n; r++) {
        const int token = s->row_token[first + r], index = s->row_index[first + r];
        s->coef[r] = &s->target.chain->schedule.coef[index];
        if (j->cfg) s->row_cfg[r] = j->cfg[token];
        for (int c = 0; c < s->conditions; c++) {
            s->x_index[c * n + r] = r;
            s->mod_index[c * n + r] = (c * e->chain->schedule.steps + index) * j->tokens + token;
        }
    }
    k->ops->upload(k, s->x, s->state + offset, bytes);
    k->ops->head_eval(k, e->chain->head->net, s->x, s->x_index, e->mod, s->mod_index, s->conditions * n, e->out,
                      e->scratch);
    k->ops->chain_law(k, s->x, e->out, n, s->channels, j->cfg ? s->row_cfg : NULL, s->coef, 1, s->mean, s->log_std);
    k->ops->download(k, mean + offset, s->mean, bytes);
    k->ops->download(k, log_std + offset, s->log_std, bytes);
}

/* The state after a transition of this law, with its own noise. */
static void move(const diff_speculation *s, int token, int index, const float *mean, const float *log_std, float *x)
{
    const float *eps = noise(s, token, index), scale = s->target.chain->schedule.coef[index].noise;
    for (int c = 0; c < s->channels; c++) x[c] = mean[c] + expf(log_std[c]) * eps[c] * scale;
}

/* Lists the proposals behind a round's first `unfinished` rows, level by level. Returns the number of rows. */
static int propose_all(diff_speculation *s, const job *j, int unfinished)
{
    const size_t channels = (size_t)s->channels;
    int first = 0, last = unfinished; /* rows of the level at hand */
    for (int level = 1; level < s->window; level++) {
        int next = last;
        if (s->draft.chain) {
            evaluate(s, &s->draft, j, first, last - first, s->mean_q, s->log_std_q);
            j->stats->draft_evaluations += last - first;
            j->stats->draft_batched++;
        }
        for (int r = first; r < last; r++) {
            const int token = s->row_token[r], k = s->row_index[r];
            if (k == 0) continue; /* the end of the chain */
            float *mean = s->mean_q + (size_t)r * channels, *log_std = s->log_std_q + (size_t)r * channels;
            if (!s->draft.chain) propose(s, token, k, s->state + (size_t)r * channels, mean, log_std);
            move(s, token, k, mean, log_std, s->state + (size_t)next * channels);
            s->row_child[r] = next;
            s->row_child[next] = -1;
            s->row_token[next] = token;
            s->row_index[next++] = k - 1;
        }
        first = last, last = next;
    }
    return last;
}

/* The proposals behind a row, as a block for the verifier; *last is the row of the one behind which there is none. */
static spec_block block_behind(diff_speculation *s, const job *j, int row, int *last)
{
    const size_t channels = (size_t)s->channels;
    const float log_temperature = logf(s->target.chain->temperature);
    const int token = s->row_token[row];
    int n = 0;
    for (; s->row_child[row] >= 0; row = s->row_child[row], n++) {
        const size_t first = (size_t)row * channels;
        float *log_std_p = s->tempered + (size_t)(2 * n) * channels, *log_std_q = log_std_p + channels;
        for (size_t c = 0; c < channels; c++) {
            log_std_p[c] = s->log_std_p[first + c] + log_temperature;
            log_std_q[c] = s->log_std_q[first + c] + log_temperature;
        }
        s->site[n] = (spec_site){.size = s->channels,
                                 .mean_p = s->mean_p + first,
                                 .mean_q = s->mean_q + first,
                                 .log_std_p = log_std_p,
                                 .log_std_q = log_std_q};
        s->draft_state[n].x = s->state + (size_t)s->row_child[row] * channels;
        s->address[n] = (spec_address){j->seed, j->image[token], (uint32_t)j->position[token],
                                       (uint32_t)s->target.chain->schedule.t[s->row_index[row]]};
    }
    *last = row;
    return (spec_block){
        .count = n, .length = n, .draft = s->draft_state, .site = s->site, .address = s->address, .stop = 1};
}

/* Takes a token from its row down to where its round ends. */
static void walk(diff_speculation *s, const job *j, int row)
{
    const size_t channels = (size_t)s->channels;
    const int token = s->row_token[row], from = s->index[token];
    float *x = s->token + (size_t)token * channels;
    int last;
    const spec_block block = block_behind(s, j, row, &last);
    const spec_output out = {.verdict = s->verdict, .x = s->walked};
    spec_outcome o = {0};
    if (block.count > 0) o = spec_verify(s->method, NULL, &block, &out);
    if (o.final > 0) memcpy(x, s->walked + (size_t)(o.final - 1) * channels, channels * sizeof *x);
    s->index[token] = from - o.final;
    if (o.accepted == block.count) { /* the last transition's p is known: no proposal is needed */
        move(s, token, s->row_index[last], s->mean_p + (size_t)last * channels, s->log_std_p + (size_t)last * channels,
             x);
        s->index[token]--;
    }
    for (int index = from; index > s->index[token]; index--)
        if (index + 1 < s->target.chain->schedule.steps) learn(s, token, index);
    s->calls[token]++;
    j->stats->accepted += o.accepted;
    j->stats->rejected += o.final - o.accepted;
    j->stats->tries += o.tries;
}

/* One round of the unfinished tokens; returns 0 when there are none. */
static int run_round(diff_speculation *s, const job *j)
{
    kern *k = s->target.chain->head->k;
    const size_t channels = (size_t)s->channels;
    int unfinished = 0;
    for (int t = 0; t < j->tokens; t++) {
        if (s->index[t] < 0) continue;
        s->row_token[unfinished] = t;
        s->row_index[unfinished] = s->index[t];
        s->row_child[unfinished] = -1;
        memcpy(s->state + (size_t)unfinished++ * channels, s->token + (size_t)t * channels, channels * sizeof(float));
    }
    if (unfinished == 0) return 0;
    const int rows = propose_all(s, j, unfinished);
    evaluate(s, &s->target, j, 0, rows, s->mean_p, s->log_std_p);
    k->ops->download(k, s->out, s->target.out, (size_t)rows * 2 * channels * sizeof(float));
    for (int r = 0; r < rows; r++) remember(s, r);
    for (int r = 0; r < unfinished; r++) walk(s, j, r);
    j->stats->batched++;
    j->stats->evaluations += rows;
    return 1;
}

/* The modulation of all steps of tokens first..first+n-1 of the `tokens` whose conditions are embedded. */
static void modulate(const diff_speculation *s, const diff_evaluator *e, int tokens, int first, int n)
{
    const diff_chain *c = e->chain;
    kern *k = c->head->k;
    const size_t half = (size_t)c->schedule.steps * (size_t)n * k->ops->head_mod_bytes(c->head->net);
    for (int i = 0; i < s->conditions; i++)
        k->ops->head_modulate(k, c->head->net, c->temb, c->step_index, c->schedule.steps,
                              c->cond + (size_t)(i * tokens + first) * (size_t)c->head->width, n,
                              (char *)e->mod + (size_t)i * half, e->scratch);
}

/* Every token to the top of the chain: x_T, all its noise, and nothing known. */
static void start(diff_speculation *s, const job *j)
{
    kern *k = s->target.chain->head->k;
    const diff_schedule *schedule = &s->target.chain->schedule;
    const size_t channels = (size_t)s->channels, row = channels * sizeof(float);
    const int n = j->tokens;
    k->ops->normal(k, s->x, n, s->channels, j->seed, KERN_NOISE_INIT, j->image, j->position, 0);
    k->ops->download(k, s->token, s->x, (size_t)n * row);
    for (int i = 1; i < schedule->steps; i++)
        k->ops->normal(k, s->noise + (size_t)(i * s->group) * channels, n, s->channels, j->seed, KERN_NOISE_STEP,
                       j->image, j->position, schedule->t[i]);
    k->ops->download(k, s->eps, s->noise, (size_t)(schedule->steps * s->group) * row);
    for (int t = 0; t < n; t++) {
        s->index[t] = schedule->steps - 1;
        s->lowest[t] = schedule->steps;
        s->calls[t] = 0;
        float *prior = seen(s, t, schedule->steps), *secant = s->secant + (size_t)t * SECANT * channels;
        for (size_t c = 0; c < channels; c++) {
            prior[STATE * channels + c] = prior[X0 * channels + c] = 0;
            prior[FRACTION * channels + c] = 0.5f;
            secant[RATIO * channels + c] = 1;
            secant[PRODUCT * channels + c] = secant[SQUARE * channels + c] = 0;
        }
    }
}

void diff_speculate_sample(diff_speculation *s, const float *z, const float *draft_z, int tokens, const float *cfg,
                           uint64_t seed, const uint64_t *image, const int *position, float *x,
                           diff_speculation_stats *stats)
{
    const diff_chain *c = s->target.chain;
    kern *k = c->head->k;
    const size_t channels = (size_t)s->channels;
    for (int i = 0; i < c->schedule.steps; i++) { /* snr = 1 / (1/abar - 1) */
        const float recip = c->schedule.coef[i].sqrt_recip_abar, recipm1 = c->schedule.coef[i].sqrt_recipm1_abar;
        s->snr[i] = 1 / (recipm1 * recipm1);
        s->gain[i] = recip * s->snr[i];
    }
    s->snr[c->schedule.steps] = s->gain[c->schedule.steps] = 0;
    k->ops->linear(k, c->head->cond, z, s->conditions * tokens, c->cond);
    if (s->draft.chain)
        k->ops->linear(k, s->draft.chain->head->cond, draft_z, s->conditions * tokens, s->draft.chain->cond);
    for (int first = 0; first < tokens; first += s->group) {
        const int n = tokens - first < s->group ? tokens - first : s->group;
        const job j = {n, c->guided ? cfg + first : NULL, seed, image + first, position + first, stats};
        modulate(s, &s->target, tokens, first, n);
        if (s->draft.chain) modulate(s, &s->draft, tokens, first, n);
        start(s, &j);
        while (run_round(s, &j)) continue;
        k->ops->upload(k, x + (size_t)first * channels, s->token, (size_t)n * channels * sizeof(float));
        for (int t = 0; t < n; t++) {
            stats->calls += s->calls[t];
            if (s->calls[t] > stats->calls_max) stats->calls_max = s->calls[t];
        }
    }
    stats->tokens += tokens;
    stats->modulations += (long)tokens * c->schedule.steps;
}

static double evaluator_flop(const diff_speculation *s, const diff_evaluator *e, const diff_speculation_stats *stats,
                             long evaluations)
{
    if (!e->chain) return 0;
    const diff_head *head = e->chain->head;
    return 2.0 * s->conditions *
           ((double)stats->modulations * diff_head_modulation_macs(head) +
            (double)evaluations * diff_head_sequential_macs(head) + (double)stats->tokens * head->z_dim * head->width);
}

double diff_speculate_flop(const diff_speculation *s, const diff_speculation_stats *stats)
{
    return evaluator_flop(s, &s->target, stats, stats->evaluations) +
           evaluator_flop(s, &s->draft, stats, stats->draft_evaluations);
}
