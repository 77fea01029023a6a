#include "mar/steps.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

void mar_steps_plan_part(int n, int known, int until, int seq_len, float cfg, mar_cfg_schedule schedule,
                         mar_step *steps)
{
    const int last = seq_len - until, first = seq_len - known; /* masked tokens, from first down to last */
    int masked = first;
    for (int i = 0; i < n; i++) {
        /* cosine schedule of MaskGIT; at least one token now and at least one left for the next step */
        int after = last + (int)floor((first - last) * cos(pi / 2 * (i + 1) / n));
        if (after > masked - 1) after = masked - 1;
        if (after < last + 1) after = last + 1;
        const int predicted = i == n - 1 ? masked - last : masked - after;
        /* The last step too is guided as if one token were left, as in the official code. */
        const float share = (float)(seq_len - after) / (float)seq_len;
        steps[i] = (mar_step){.known = seq_len - masked,
                              .predicted = predicted,
                              .cfg = schedule == MAR_CFG_CONSTANT ? cfg : 1.0f + (cfg - 1.0f) * share};
        masked = after;
    }
}

void mar_steps_plan(int num_iter, int seq_len, float cfg, mar_cfg_schedule schedule, mar_step *steps)
{
    mar_steps_plan_part(num_iter, 0, seq_len, seq_len, cfg, schedule, steps);
}

/* DiSA's schedule_id: how far from the lower count, `range` at most, step i of 0..last is. */
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

static int sampling_steps(const mar_params *p, int i)
{
    const int lower = p->diff_lower_steps;
    if (p->diff_annealing == MAR_ANNEAL_OFF) return p->num_sampling_steps;
    return lower + annealed(p->diff_annealing, i, p->num_iter - 1, p->diff_upper_steps - lower);
}

void mar_steps_anneal(const mar_params *params, mar_step *steps)
{
    for (int i = 0; i < params->num_iter; i++) steps[i].sampling_steps = sampling_steps(params, i);
}

/* Adds a chain, unless it is there. */
static int add(diff_spec *specs, int n, const mar_params *p, int steps)
{
    for (int i = 0; i < n; i++)
        if (specs[i].steps == steps) return n;
    const int clipped = p->diff_annealing == MAR_ANNEAL_OFF ? DIFF_TOP : DIFF_TOP_ANNEALED;
    specs[n] = (diff_spec){p->sampler, steps, p->sampler == MAR_SAMPLER_DDPM ? clipped : DIFF_TOP_SOLVER};
    return n + 1;
}

int mar_steps_specs(const mar_params *params, diff_spec *specs)
{
    int n = 0;
    for (int i = 0; i < params->num_iter; i++) n = add(specs, n, params, sampling_steps(params, i));
    return params->gtr ? add(specs, n, params, params->gtr_sampling_steps) : n;
}
