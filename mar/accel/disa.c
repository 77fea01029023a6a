/* DiSA: fewer diffusion steps for later tokens (Zhao et al. 2025; its diffloss.py). */
#include "mar/accel.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

/* Returns the excess of step i of 0..last over the lower count, at most `range` (DiSA's schedule_id). */
static int annealed(mar_annealing annealing, int i, int last, int range)
{
    if (last == 0) return range;
    switch (annealing) {
    case MAR_ANNEAL_LINEAR:
        return (int)((last - i) / (double)last * range);
    case MAR_ANNEAL_COSINE:
        return (int)((cos(pi * i / last) + 1) / 2 * range);
    default:
        return i < last / 2.0 ? range : 0;
    }
}

static mar_status disa_check(const mar_model *model, mar_params *p, mar_err *err)
{
    (void)model;
    if (p->diff_lower_steps <= p->diff_upper_steps) return MAR_OK;
    return err_set(err, MAR_EARG, "--diff_upper_steps %d and --diff_lower_steps %d: expected upper >= lower",
                   p->diff_upper_steps, p->diff_lower_steps);
}

static int disa_sampling_steps(const mar_params *p, int i)
{
    const int lower = p->diff_lower_steps;
    return lower + annealed(p->diff_annealing, i, p->num_iter - 1, p->diff_upper_steps - lower);
}

static void disa_respace(const mar_params *p, diff_spec *spec)
{
    (void)p;
    spec->top = DIFF_TOP_ANNEALED;
}

const mar_accel mar_accel_disa = {
    .name = "diff_annealing",
    .changes = MAR_STAGE_COUNTS,
    .replaces = "num_sampling_steps",
    .in_place = "--diff_upper_steps and --diff_lower_steps",
    .methods = (const mar_accel_method[]){{.name = "disa",
                                           .guarantee = "none",
                                           .source = "DiSA (Zhao et al. 2025)",
                                           .summary = "fewer diffusion steps for later tokens"},
                                          {0}},
    .check = disa_check,
    .sampling_steps = disa_sampling_steps,
    .respace = disa_respace,
};
