#include "mar/raster_costs.h"

#include "mar_measure.h"

#include "mar/raster_measure.h"

/* Each width has at least 3 rounds, and more while QUICK_S have not passed; but no more once SLOW_S have. */
#define QUICK_S 0.01
#define SLOW_S  1.

enum {
    GIVEN_MOST = 128, /* tokens before the rounds, of all images together */
    BEHIND = SPEC_COSTS_BEHIND
};

/* Runs a round of the width of this number. */
static mar_status costs_run(mar_raster *g, spec_sampler *s, int width, mar_err *err)
{
    g->plan.choice.widths = width + 1;
    return spec_sampler_round(s, err);
}

/* Starts an image in every place. Runs the round in which the model computes its given tokens, and one in which the
 * draft model does. */
static mar_status costs_start(mar_raster *g, spec_sampler *s, raster_drafter *draft, int *token, mar_err *err)
{
    const int most = g->plan.method->stale ? g->plan.params.window : g->plan.params.gamma;
    const causal_shape *c = &g->model->net->shape;
    const int last = g->plan.choice.widths - 1;
    int given = GIVEN_MOST / g->max_images;
    if (given > causal_half(c)) given = causal_half(c);
    if (given > c->seq_len - 3 * most) given = c->seq_len > 3 * most ? c->seq_len - 3 * most : 0;
    for (int i = 0; i < given; i++) token[i] = i * 5 % c->vocabulary;
    spec_sampler_begin(s);
    mar_status status = raster_begin_any(g->target, c, g->max_images, err);
    if (status == MAR_OK && draft->model)
        status =
            raster_begin_any(draft->model, &mar_raster_model_of(g->plan.params.draft)->net->shape, g->max_images, err);
    if (status != MAR_OK) return status;
    if (draft->eagle) eagle_runner_begin(draft->eagle, g->max_images);
    for (int i = 0; i < g->max_images; i++)
        spec_sampler_admit(s, i, &(spec_start){.image = (uint64_t)i, .n = c->seq_len, .token = token, .given = given});
    status = costs_run(g, s, 0, err);
    return status == MAR_OK ? costs_run(g, s, last, err) : status;
}

static int costs_least_left(const mar_raster *g, const spec_sampler *s)
{
    int least = spec_sampler_left(s, 0);
    for (int i = 1; i < g->max_images; i++)
        if (spec_sampler_left(s, i) < least) least = spec_sampler_left(s, i);
    return least;
}

/* Times a round of the width of this number, and keeps the shortest time. */
static mar_status costs_time(mar_raster *g, spec_sampler *s, int width, double *seconds, mar_err *err)
{
    g->k->core->finish(g->k);
    const double begun = mar_now();
    const mar_status status = costs_run(g, s, width, err);
    g->k->core->finish(g->k);
    const double took = mar_now() - begun;
    if (*seconds == 0 || took < *seconds) *seconds = took;
    return status;
}

/* Measures one round of each width. With a draft model seconds[widths] is the time of the first width's behind BEHIND
 * plain rounds, else it stays 0. All other rounds with drafts stand behind one with drafts. */
static mar_status costs_measure_widths(mar_raster *g, spec_sampler *s, raster_drafter *draft, int *token, int widths,
                                       double *seconds, mar_err *err)
{
    spec_choice *c = &g->plan.choice;
    const int jacobi = g->plan.method->stale;
    mar_status status = MAR_OK;
    for (int i = 1; i <= widths && status == MAR_OK; i++) {
        const int width = i < widths ? i : 1, positions = c->depth ? c->depth : c->drafts[width];
        c->widths = widths;
        if (costs_least_left(g, s) <= positions + BEHIND) status = costs_start(g, s, draft, token, err);
        for (int j = i == widths && !jacobi ? 1 : BEHIND; j < BEHIND && status == MAR_OK; j++)
            status = costs_run(g, s, 0, err);
        if (i == widths && status == MAR_OK) status = costs_time(g, s, 0, &seconds[0], err);
        if (i < widths + !jacobi && status == MAR_OK) status = costs_time(g, s, width, &seconds[i], err);
    }
    return status;
}

mar_status raster_costs_measure(mar_raster *g, spec_sampler *s, raster_drafter *draft, int *token, mar_err *err)
{
    spec_choice *c = &g->plan.choice;
    const int widths = c->widths;
    double seconds[SPEC_WIDTHS + 1] = {0};
    c->choose = spec_costs_choose_last;
    mar_status status = costs_start(g, s, draft, token, err);
    const double begun = mar_now();
    for (int i = 0; status == MAR_OK; i++) {
        const double passed = mar_now() - begun;
        if (i > 0 && passed > QUICK_S && (i >= 3 || passed > SLOW_S)) break;
        status = costs_measure_widths(g, s, draft, token, widths, seconds, err);
    }
    if (status != MAR_OK) return status;
    c->widths = widths;
    spec_costs_take(c, seconds, seconds[widths]);
    g->plan.params.round_costs = spec_costs_write(c, g->plan.costs_text);
    c->choose = spec_choose;
    spec_sampler_begin(s);
    causal_runner_clear_stats(g->target);
    raster_drafter_clear_stats(draft);
    return MAR_OK;
}
