#include "mar/path_costs.h"

#include "mar/accel.h"

#include <math.h>

enum {
    FIRST = 2,      /* drafted steps: one alone is never better than a plain round */
    MOST = 16,      /* of auto */
    TURNS = 2,      /* of measuring all widths */
    ROUNDS_MOST = 3 /* measured of each width in a turn, but none after the first once SLOW_S have passed */
};
#define SLOW_S 0.25

/* --- options ------------------------------------------------------------------------------------------------------ */

static mar_status costs_check_given(mar_params *p, int steps, mar_err *err)
{
    spec_choice c = {.widths = 0};
    const mar_status status = raster_costs_read(p->round_costs, FIRST, MOST, p->draft != NULL, &c, err);
    if (status != MAR_OK) return status;
    const int most = c.drafts[c.widths - 1], is_set = p->gamma > 0;
    if (is_set ? most != p->gamma : most > steps)
        return err_set(err, MAR_EARG, "--round_costs %s: has times of up to %d drafts, expected up to %d, the %s",
                       p->round_costs, most, is_set ? p->gamma : steps, is_set ? "--gamma" : "steps of an image");
    p->gamma = most;
    return MAR_OK;
}

mar_status path_costs_check(const mar_model *model, mar_params *p, int steps, mar_err *err)
{
    const int in_one_context = p->context == MAR_CONTEXT_PREFIX;
    if (in_one_context && (p->gamma == 0 || p->round_costs))
        return err_set(err, MAR_EARG,
                       "--%s with --context prefix: expected --gamma N, as there the steps of a round decide the "
                       "distribution",
                       p->round_costs ? "round_costs" : "gamma auto");
    if (p->round_costs) return costs_check_given(p, steps, err);
    if (p->gamma < 0 && (in_one_context || model->m->device->asynchronous)) p->gamma = MAR_GAMMA_AUTO;
    if (p->gamma == 0 && steps < FIRST) p->gamma = -1;
    if (p->gamma > steps) p->gamma = steps; /* the rest of the image */
    return MAR_OK;
}

/* Keeps the costs as text, which pictures have. */
static void costs_take(path_costs *c, mar_params *p)
{
    p->round_costs = spec_costs_write(&c->choice, c->text);
    p->gamma = c->choice.drafts[c->choice.widths - 1];
}

int path_costs_gamma(const mar_params *p, int steps)
{
    int most = FIRST;
    while (2 * most <= MOST && 2 * most <= steps) most *= 2;
    return p->gamma < 0 ? 1 : p->gamma ? p->gamma : most;
}

mar_status path_costs_create(mar_params *p, int steps, path_costs *c, mar_err *err)
{
    *c = (path_costs){.never = p->gamma < 0, .measures = p->gamma == 0};
    if (c->never) spec_costs_begin(&c->choice, FIRST, 0);
    if (c->measures) spec_costs_begin(&c->choice, FIRST, p->gamma = path_costs_gamma(p, steps));
    if (!p->round_costs) return MAR_OK;
    const mar_status status = raster_costs_read(p->round_costs, FIRST, MOST, p->draft != NULL, &c->choice, err);
    if (status == MAR_OK) costs_take(c, p);
    return status;
}

spec_choice path_costs_choice(const path_costs *c)
{
    spec_choice choice = c->choice;
    for (int i = 1; i < choice.widths; i++) choice.drafts[i]--;
    return choice;
}

/* --- measuring ---------------------------------------------------------------------------------------------------- */

/* Puts the images before step `begin`, and runs a round. Without a draft model it is plain, and draws the next drafts.
 */
static mar_status costs_start(spec_path *s, int images, int begin, mar_err *err)
{
    spec_path_begin(s);
    for (int i = 0; i < images; i++) spec_path_admit(s, i, 0, (uint64_t)i, begin);
    return spec_path_round(s, err);
}

static int costs_least_left(const spec_path *s)
{
    int least = s->o.steps;
    for (int i = 0; i < s->images; i++)
        if (s->o.steps - s->image[i].begin < least) least = s->o.steps - s->image[i].begin;
    return least;
}

/* Measures the mean seconds of some rounds of the table's last width, each behind `plain` plain ones, and keeps them in
 * *least if they are less. */
static mar_status costs_time(const mar_measured_parts *parts, spec_path *s, int first, int middle, int plain,
                             double *least, mar_err *err)
{
    const int widths = s->o.choice.widths, needed = 2 * (s->o.choice.drafts[widths - 1] + 1) + plain;
    const int room = s->o.steps - needed - 1, begin = middle < room ? middle : room > first ? room : first;
    const double begun = mar_now();
    double total = 0;
    int n = 0;
    mar_status status = costs_start(s, parts->images, begin, err);
    while (status == MAR_OK && (n == 0 || (n < ROUNDS_MOST && mar_now() - begun < SLOW_S))) {
        if (n > 0 && costs_least_left(s) < needed) status = costs_start(s, parts->images, begin, err);
        s->o.choice.widths = 1;
        for (int i = 0; i < plain && status == MAR_OK; i++) status = spec_path_round(s, err);
        s->o.choice.widths = widths;
        if (status != MAR_OK) break;
        parts->k->core->finish(parts->k);
        const double before = mar_now();
        status = spec_path_round(s, err);
        parts->k->core->finish(parts->k);
        total += mar_now() - before;
        n++;
    }
    if (n > 0) *least = fmin(*least, total / n);
    return status;
}

/* Measures all widths in turns, but none beyond the first one that an image can never pay for. Measures what a draft
 * model needs to catch up on a token, if images are long enough. */
static mar_status costs_measure_widths(path_costs *c, const mar_measured_parts *parts, spec_path *s, int first,
                                       int middle, mar_err *err)
{
    const double dear = 1 + spec_choice_loss(s->o.steps);
    const int catches_up = s->o.draft && first + 2 * FIRST + SPEC_COSTS_BEHIND <= s->o.steps;
    double least[SPEC_WIDTHS], caught_up = INFINITY;
    mar_status status = MAR_OK;
    for (int i = 0; i < SPEC_WIDTHS; i++) least[i] = INFINITY;
    s->o.choice = path_costs_choice(c);
    s->o.choice.choose = spec_costs_choose_last;
    for (int turn = 0; turn < TURNS && status == MAR_OK; turn++) {
        for (int i = 0; i < c->choice.widths && status == MAR_OK; i++) {
            s->o.choice.widths = i + 1;
            status = costs_time(parts, s, first, middle, 0, &least[i], err);
            if (i > 0 && least[i] > dear * least[0]) c->choice.widths = i + 1;
        }
        s->o.choice.widths = 2;
        if (catches_up && status == MAR_OK)
            status = costs_time(parts, s, first, middle, SPEC_COSTS_BEHIND, &caught_up, err);
    }
    if (status == MAR_OK) spec_costs_take(&c->choice, least, catches_up ? caught_up : 0);
    return status;
}

mar_status path_costs_measure(path_costs *c, const mar_measured_parts *parts, spec_path *rounds, int first, int middle,
                              mar_params *p, mar_err *err)
{
    mar_status status = mar_measure_begin(parts, err);
    for (int i = 0; i < first && status == MAR_OK; i++) status = parts->engine->step(parts->engine_state, err);
    if (status == MAR_OK) status = costs_measure_widths(c, parts, rounds, first, middle, err);
    for (int i = 0; i < parts->images; i++) parts->engine->release(parts->engine_state, i);
    spec_path_begin(rounds);
    if (status == MAR_OK) costs_take(c, p), c->measures = 0;
    rounds->o.choice = path_costs_choice(c);
    rounds->o.gamma = p->gamma;
    return status;
}
