/* Speculation inside the head (diffusion/speculate.h). With a draft model, the draft's head proposes.
 *
 * With --head_spec auto each image has a window for each of its draws, chosen by specdec/choice.h from the times of an
 * evaluation of 1, 2, 4, ... states and from the verdicts of its earlier draws. One that it loses by ends within the
 * draw (kern_speculation_limit). diffusion/speculate.h proves that the choice keeps the distribution. */
#include "mar/accel.h"
#include "mar/accel/draft.h"
#include "specdec/costs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    WINDOW_MOST = 16, /* of auto */
    STATES_MOST = 32, /* of the table */
    TURNS = 2,        /* of measuring all entries */
    ROUNDS = 2        /* measured of each entry in a turn, or more if QUICK_S have not passed */
};
#define QUICK_S 2e-4

/* The acceptance of a proposal before any is known, as tests and successes. The choice's own prior, 0.7, is that of
 * drafted tokens; every head measured accepted more than 0.9 (bench/RESULTS.md). */
#define PRIOR_TESTED 12.
#define PRIOR_PASSED 11.7

typedef struct {
    mar_chain_stage stage;
    diff_speculation head;

    /* auto */
    int chooses;
    int measures;      /* 1: its costs are not known yet */
    spec_choice costs; /* time of an evaluation of drafts[i] states of each image, over that of one: drafts[0] is 0 */
    char text[SPEC_COSTS_TEXT];
    spec_past *past;               /* [max_images] in times of an evaluation of one state of each image */
    kern_speculation_limit *limit; /* [the chain's max_tokens] */
    diff_tally *tally;             /* as long */
    double spent, plain;           /* costs of the draws that the statistics count, and by the plain chain */
} head_spec;

/* --- costs -------------------------------------------------------------------------------------------------------- */

/* Returns the time of an evaluation of this many states of each image. */
static double head_spec_cost(const head_spec *h, int states)
{
    const spec_choice *c = &h->costs;
    int i = 1;
    while (i + 1 < c->widths && c->drafts[i] < states) i++;
    if (i >= c->widths) return states;
    const double before = i == 1 ? 1 : c->drafts[i - 1];
    return c->cost[i - 1] + (c->cost[i] - c->cost[i - 1]) * (states - before) / (c->drafts[i] - before);
}

/* Returns the seconds of a round of this many tokens, all with this window: the least of some in a row, as threads and
 * caches are warm then. */
static double head_spec_time(head_spec *h, int tokens, int window)
{
    const double first = mar_now();
    double least = INFINITY;
    diff_speculate_rehearse(&h->head, tokens, window);
    for (int i = 0; i < ROUNDS || mar_now() - first < QUICK_S; i++) {
        diff_speculate_restart(&h->head);
        const double begun = mar_now();
        diff_speculate_round(&h->head);
        least = fmin(least, mar_now() - begun);
    }
    return least;
}

/* Measures the costs: all in turns, as the machine's speed changes. Keeps them as text, which pictures have. */
static void head_spec_measure(head_spec *h)
{
    double seconds[SPEC_WIDTHS];
    spec_choice *c = &h->costs;
    const int group = h->head.w.group, images = h->stage.max_images < group ? h->stage.max_images : group;
    int n = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        n = 0;
        for (int states = 1; states <= STATES_MOST; states *= 2) {
            const int window = states < h->head.window ? states : h->head.window;
            const int tokens = images * (states / window);
            if (tokens > group || states % window) break;
            const double took = head_spec_time(h, tokens, window);
            seconds[n] = turn ? fmin(seconds[n], took) : took;
            n++;
        }
    }
    spec_costs_begin(c, 2, 1 << (n - 1));
    spec_costs_take(c, seconds, 0);
    h->stage.params->head_costs = spec_costs_write(c, h->text);
}

/* --- choice ------------------------------------------------------------------------------------------------------- */

/* Makes the choice among the windows 1, 2, 4, ... for draws of this many tokens of an image. It is 1 alone if a full
 * batch's would not fit in one group: the plain chain has no groups. */
static spec_choice head_spec_windows(const head_spec *h, int tokens)
{
    spec_choice c = {.widths = 0};
    const double plain = head_spec_cost(h, tokens);
    const int fits = (int64_t)tokens * h->stage.max_images <= h->head.w.group;
    for (int window = 1; window <= (fits ? h->head.window : 1) && h->costs.widths > 1; window *= 2) {
        c.drafts[c.widths] = window - 1;
        c.cost[c.widths++] = fmax(head_spec_cost(h, window * tokens) / plain, 1);
    }
    return c;
}

/* Returns the limit of an image's draw of this many tokens. */
static kern_speculation_limit head_spec_choose(head_spec *h, int slot, int tokens)
{
    spec_past *past = &h->past[slot];
    const spec_choice c = head_spec_windows(h, tokens);
    const double plain = head_spec_cost(h, tokens);
    const int known = past->known + (int)lround(plain * h->stage.chain->schedule.steps);
    if (past->n < known) past->n = known;
    const int window = c.widths ? spec_choose(&c, past) + 1 : 1;
    const double cost = spec_choice_cost(&c, window - 1), left = spec_past_left(past) / plain;
    return (kern_speculation_limit){.window = cost - 1 > left ? 1 : window, .cost = (float)cost, .loss = (float)left};
}

/* Returns the cost of a draw's rounds: its tokens go on together until each is finished. */
static double head_spec_spent(const head_spec *h, const diff_tally *tally, int tokens, int window)
{
    double spent = 0;
    for (int round = 0, states = 1; states > 0; round++) {
        states = 0;
        for (int i = 0; i < tokens; i++)
            if (round < tally[i].rounds) states += round < tally[i].wide ? window : 1;
        if (states > 0) spent += head_spec_cost(h, states);
    }
    return spent;
}

/* Adds an image's draw to its past. */
static void head_spec_learn(head_spec *h, int slot, const diff_tally *tally, int tokens, int window)
{
    const spec_choice c = head_spec_windows(h, tokens);
    const int steps = h->stage.chain->schedule.steps;
    spec_rounds sum = {.spent = head_spec_spent(h, tally, tokens, window),
                       .known = (int)lround(head_spec_cost(h, tokens) * steps)};
    for (int i = 0; i < tokens; i++) {
        sum.rounds += tally[i].wide;
        sum.decided += steps - (tally[i].rounds - tally[i].wide);
        sum.passed += steps - tally[i].rounds;
        sum.tested += steps - tally[i].rounds + tally[i].rejected;
    }
    spec_past_add_rounds(&h->past[slot], &c, window - 1, &sum);
    h->spent += sum.spent;
    h->plain += head_spec_cost(h, tokens) * steps;
}

/* Returns the first token behind `first` of another image. */
static int head_spec_end(const diff_tokens *t, int first)
{
    int end = first + 1;
    while (end < t->count && t->slot[end] == t->slot[first]) end++;
    return end;
}

/* Chooses the windows of a call. Returns the largest. */
static int head_spec_choose_all(head_spec *h, const diff_tokens *t)
{
    int most = 1;
    for (int i = 0, end; i < t->count; i = end) {
        end = head_spec_end(t, i);
        const kern_speculation_limit limit = head_spec_choose(h, t->slot[i], end - i);
        if (limit.window > most) most = limit.window;
        for (int j = i; j < end; j++) h->limit[j] = limit;
    }
    return most;
}

/* Draws tokens by the plain chain. */
static void head_spec_draw_plainly(head_spec *h, const diff_tokens *t, float *x, diff_speculation_stats *stats)
{
    diff_chain *c = h->stage.chain;
    const int steps = c->schedule.steps;
    diff_chain_sample(c, t->z, t->count, t->cfg, t->seed, t->image, t->position, x);
    for (int i = 0; i < t->count; i++) h->tally[i] = (diff_tally){.rounds = steps};
    *stats = (diff_speculation_stats){.calls = (long)steps * t->count,
                                      .calls_max = steps,
                                      .batched = steps,
                                      .evaluations = (long)steps * t->count,
                                      .flop = diff_chain_flop(c, t->count)};
}

static void head_spec_draw_by_choice(head_spec *h, const diff_tokens *tokens, float *x, diff_speculation_stats *stats)
{
    diff_tokens t = *tokens;
    mar_stats *sum = h->stage.stats;
    if (sum->head_batched == 0) h->spent = h->plain = 0; /* the statistics have begun anew */
    t.limit = h->limit;
    t.tally = h->tally;
    if (head_spec_choose_all(h, &t) > 1)
        diff_speculate_sample(&h->head, &t, x, NULL, stats);
    else
        head_spec_draw_plainly(h, &t, x, stats);
    for (int i = 0, end; i < t.count; i = end) {
        end = head_spec_end(&t, i);
        head_spec_learn(h, t.slot[i], h->tally + i, end - i, h->limit[i].window);
        sum->undrafted += h->limit[i].window == 1 ? end - i : 0;
    }
}

/* --- hooks -------------------------------------------------------------------------------------------------------- */

static mar_status head_spec_create_choice(head_spec *h, mar_err *err)
{
    mar_params *p = h->stage.params;
    const size_t tokens = (size_t)h->stage.chain->max_tokens;
    if (h->stage.draft) return err_set(err, MAR_EARG, "--head_spec auto with --draft: expected --head_spec N, 1 to 64");
    h->past = calloc((size_t)h->stage.max_images, sizeof *h->past);
    h->limit = calloc(tokens, sizeof *h->limit);
    h->tally = calloc(tokens, sizeof *h->tally);
    if (!h->past || !h->limit || !h->tally) return err_set(err, MAR_ENOMEM, "out of memory");
    h->chooses = h->head.has_limits = 1;
    h->measures = !p->head_costs && h->head.window > 1;
    if (!p->head_costs) return MAR_OK;
    const int most = 1 << (SPEC_WIDTHS - 1);
    if (!spec_costs_read(p->head_costs, 2, most, 0, &h->costs))
        return err_set(err, MAR_EARG,
                       "--head_costs %s: expected the times of evaluations of 2, 4, 8, ... states, at most %d of them, "
                       "none below 1 or the one before, as in 1.05,1.1,1.3",
                       p->head_costs, most);
    p->head_costs = spec_costs_write(&h->costs, h->text);
    return MAR_OK;
}

static mar_status head_spec_create(const mar_chain_stage *stage, void **state, mar_err *err)
{
    head_spec *h = *state = calloc(1, sizeof *h);
    if (!h) return err_set(err, MAR_ENOMEM, "out of memory");
    h->stage = *stage;
    const int given = stage->params->head_spec;
    if (given > 0 && stage->params->head_costs)
        return err_set(err, MAR_EARG, "--head_costs with --head_spec %d: expected --head_spec auto", given);
    const int window = given > 0 ? given : WINDOW_MOST;
    const mar_status status = diff_speculate_create(stage->chain, stage->draft, window, 0, &h->head, err);
    return status == MAR_OK && given < 0 ? head_spec_create_choice(h, err) : status;
}

static void head_spec_destroy(void *state)
{
    head_spec *h = state;
    diff_speculate_free(&h->head);
    free(h->past);
    free(h->limit);
    free(h->tally);
    free(h);
}

static size_t head_spec_lay_out(void *state, char *base)
{
    return diff_speculate_lay_out(&((head_spec *)state)->head, base);
}

/* With auto, also prepares the plain chain. The first time that the chain has its guidance, measures. */
static mar_status head_spec_plan(void *state, int tokens, mar_err *err)
{
    head_spec *h = state;
    diff_chain *c = h->stage.chain;
    mar_status status = diff_speculate_plan(&h->head, tokens, tokens, err);
    if (status != MAR_OK || !h->chooses) return status;
    status = diff_chain_plan(c, tokens, err);
    if (status != MAR_OK || !h->measures || c->guided != (c->cfg_branches == 2)) return status;
    h->measures = 0;
    head_spec_measure(h);
    return kern_check(c->k, err);
}

static void head_spec_begin(void *state, int slot, int steps)
{
    head_spec *h = state;
    if (!h->chooses) return;
    spec_past_begin(&h->past[slot], steps, 0, 0);
    h->past[slot].tested[0] = PRIOR_TESTED;
    h->past[slot].passed[0] = PRIOR_PASSED;
}

static void head_spec_draw(void *state, const diff_tokens *tokens, float *x)
{
    head_spec *h = state;
    diff_speculation_stats stats = {0};
    if (h->chooses)
        head_spec_draw_by_choice(h, tokens, x, &stats);
    else
        diff_speculate_sample(&h->head, tokens, x, NULL, &stats);
    *h->stage.head_flop += stats.flop;
    diff_speculate_add_stats(&stats, h->stage.stats);
}

static void head_spec_stats(const void *state, mar_stats *sum)
{
    const head_spec *h = state;
    if (h->chooses && sum->head_batched > 0) sum->plain_s = sum->head_s * (h->plain / h->spent);
}

/* Tells whether it is on. Where whole paths are verified, it works inside that accelerator. */
static int head_spec_is_on(const mar_params *p)
{
    return !mar_verifies_paths(p);
}

static const mar_chain_hooks head_spec_hooks = {
    .create = head_spec_create,
    .destroy = head_spec_destroy,
    .lay_out = head_spec_lay_out,
    .plan = head_spec_plan,
    .begin = head_spec_begin,
    .draw = head_spec_draw,
    .stats = head_spec_stats,
};

const mar_accel mar_accel_head_spec = {
    .name = "head_spec",
    .changes = MAR_STAGE_CHAIN,
    .needs = MAR_STAGE_SOLVER | MAR_STAGE_HEAD,
    .exact = 1,
    .exact_by = "speculation inside the head",
    .methods =
        (const mar_accel_method[]){{.name = "head-spec",
                                    .guarantee = "",
                                    .source = "De Bortoli et al. 2025, with continuous SD Eq. 10's residual",
                                    .summary = "guess W steps of a token's chain, verify them in one call of the "
                                               "head"},
                                   {0}},
    .is_on = head_spec_is_on,
    .chain = &head_spec_hooks,
};
