#include "mar/masked/steps.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

int mar_cfg_branches(float cfg)
{
    return cfg == 1.0f ? 1 : 2;
}

float mar_step_scale(const mar_step *step, float cfg)
{
    return step->share == 1 ? cfg : 1.0f + (cfg - 1.0f) * step->share;
}

void mar_steps_plan_part(int n, int known, int until, int seq_len, float cfg, mar_cfg_schedule schedule,
                         mar_step *steps)
{
    const int last = seq_len - until, first = seq_len - known; /* masked tokens go from first down to last */
    int masked = first;
    for (int i = 0; i < n; i++) {
        /* Cosine schedule of MaskGIT. Predicts at least one token, and leaves at least one for the next step. */
        int after = last + (int)floor((first - last) * cos(pi / 2 * (i + 1) / n));
        if (after > masked - 1) after = masked - 1;
        if (after < last + 1) after = last + 1;
        const int predicted = i == n - 1 ? masked - last : masked - after;
        /* The last step too is guided as if one token were left, as in the official code. */
        const float share = (float)(seq_len - after) / (float)seq_len;
        steps[i] = (mar_step){
            .known = seq_len - masked, .predicted = predicted, .share = schedule == MAR_CFG_CONSTANT ? 1 : share};
        steps[i].cfg = mar_step_scale(&steps[i], cfg);
        steps[i].cfg_branches = mar_cfg_branches(steps[i].cfg);
        masked = after;
    }
}

void mar_steps_plan(int num_iter, int seq_len, float cfg, mar_cfg_schedule schedule, mar_step *steps)
{
    mar_steps_plan_part(num_iter, 0, seq_len, seq_len, cfg, schedule, steps);
}
