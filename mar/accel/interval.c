/* Guidance in an interval (Kynkäänniemi et al., "Applying Guidance in a Limited Interval Improves Sample and
 * Distribution Quality in Diffusion Models", 2024): none at the noisy end, nor near the clean end. The paper limits it
 * by the noise level of an image's one chain. Here the limit is the fraction of known tokens, as in a MAR model's own
 * schedule of guidance. Steps without guidance compute no unconditional rows. */
#include "mar/accel.h"
#include "mar/masked_runner.h"

static int interval_is_on(const mar_params *p)
{
    return p->cfg != 1;
}

static void interval_plan_steps(const mar_model_config *model, const mar_params *p, mar_step *steps)
{
    for (int i = 0; i < p->num_iter; i++) {
        const float known = (float)steps[i].known / (float)model->seq_len;
        if (known < p->cfg_low || known > p->cfg_high) steps[i].cfg = 1, steps[i].share = 0;
    }
}

const mar_accel mar_accel_interval = {
    .name = "cfg_low",
    .also = "cfg_high",
    .change = "guidance in an interval",
    .methods = (const mar_accel_method[]){{.name = "cfg-interval",
                                           .guarantee = "none",
                                           .source = "Kynkäänniemi et al. 2024, by known tokens",
                                           .summary = "guidance only while the fraction of known tokens is in an "
                                                      "interval"},
                                          {0}},
    .is_on = interval_is_on,
    .plan_steps = interval_plan_steps,
};
