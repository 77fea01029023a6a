#include "mar/steps.h"

#include <math.h>

void mar_steps_plan(int num_iter, int seq_len, float cfg, mar_cfg_schedule schedule, mar_step *steps)
{
    int masked = seq_len;
    for (int i = 0; i < num_iter; i++) {
        /* cosine schedule of MaskGIT; at least one token now and at least one left for the next step */
        const double ratio = cos(3.14159265358979323846 / 2 * (i + 1) / num_iter);
        int after = (int)floor(seq_len * ratio);
        if (after > masked - 1) after = masked - 1;
        if (after < 1) after = 1;
        steps[i].known = seq_len - masked;
        steps[i].predicted = i == num_iter - 1 ? masked : masked - after;
        /* The last step too is guided as if one token were left, as in the official code. */
        steps[i].cfg =
            schedule == MAR_CFG_CONSTANT ? cfg : 1.0f + (cfg - 1.0f) * (float)(seq_len - after) / (float)seq_len;
        masked = after;
    }
}
