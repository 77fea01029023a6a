#include "mar/raster_costs.h"

#include "mar_measure.h"

#include "mar/raster_measure.h"

#include <math.h>

/* Each width has at least 3 rounds, and more while QUICK_S have not passed; but no more once SLOW_S have. */
#define QUICK_S 0.01
#define SLOW_S  1.

enum { GIVEN_MOST = 128 }; /* tokens before the rounds, of all images together */

/* Implements spec_choice.choose: takes the last width of the table. */
static int costs_choose_last(const spec_choice *c, const spec_past *past)
{
    (void)past;
    return c->drafts[c->widths - 1];
}

/* Starts an image in every place, and runs the round that computes its given tokens. */
static mar_status costs_start(mar_raster *g, spec_sampler *s, int *token, int most, mar_err *err)
{
    const causal_shape *c = &g->model->net->shape;
    int given = GIVEN_MOST / g->max_images;
    if (given > causal_half(c)) given = causal_half(c);
    if (given > c->seq_len - 2 * most) given = c->seq_len > 2 * most ? c->seq_len - 2 * most : 0;
    for (int i = 0; i < given; i++) token[i] = i * 5 % c->vocabulary;
    spec_sampler_begin(s);
    const mar_status status = raster_begin_any(g->target, c, g->max_images, err);
    if (status != MAR_OK) return status;
    for (int i = 0; i < g->max_images; i++)
        spec_sampler_admit(s, i, &(spec_start){.image = (uint64_t)i, .n = c->seq_len, .token = token, .given = given});
    return spec_sampler_round(s, err);
}

static int costs_least_left(const mar_raster *g, const spec_sampler *s)
{
    int least = spec_sampler_left(s, 0);
    for (int i = 1; i < g->max_images; i++)
        if (spec_sampler_left(s, i) < least) least = spec_sampler_left(s, i);
    return least;
}

/* Measures one round of each width. Keeps the shortest times. */
static mar_status costs_measure_widths(mar_raster *g, spec_sampler *s, int *token, int widths, double *seconds,
                                       mar_err *err)
{
    spec_choice *c = &g->plan.choice;
    mar_status status = MAR_OK;
    for (int i = 0; i < widths && status == MAR_OK; i++) {
        c->widths = i + 1;
        if (costs_least_left(g, s) <= c->drafts[i]) status = costs_start(g, s, token, c->drafts[widths - 1], err);
        if (status != MAR_OK) break;
        g->k->core->finish(g->k);
        const double begun = mar_now();
        status = spec_sampler_round(s, err);
        g->k->core->finish(g->k);
        const double took = mar_now() - begun;
        if (seconds[i] == 0 || took < seconds[i]) seconds[i] = took;
    }
    return status;
}

mar_status raster_costs_measure(mar_raster *g, spec_sampler *s, int *token, mar_err *err)
{
    spec_choice *c = &g->plan.choice;
    const int widths = c->widths;
    double seconds[SPEC_WIDTHS] = {0};
    c->choose = costs_choose_last;
    mar_status status = costs_start(g, s, token, c->drafts[widths - 1], err);
    const double begun = mar_now();
    for (int i = 0; status == MAR_OK; i++) {
        const double passed = mar_now() - begun;
        if (i > 0 && passed > QUICK_S && (i >= 3 || passed > SLOW_S)) break;
        status = costs_measure_widths(g, s, token, widths, seconds, err);
    }
    if (status != MAR_OK) return status;
    c->widths = widths;
    for (int i = 1; i < widths; i++) /* a NaN is the cost before */
        c->cost[i] = fmin(fmax(seconds[i] / seconds[0], c->cost[i - 1]), RASTER_COST_MOST);
    raster_costs_write(c, g->plan.costs_text, sizeof g->plan.costs_text);
    g->plan.params.window_costs = g->plan.costs_text;
    spec_sampler_begin(s);
    causal_runner_clear_stats(g->target);
    return raster_costs_read(g->plan.costs_text, c, err);
}
