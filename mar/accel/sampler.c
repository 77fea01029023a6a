/* The samplers of the head: DDIM (Song et al. 2021) and DPM-Solver++ of second order (Lu et al. 2022) in place of the
 * model's own chain. */
#include "mar/accel.h"

/* A solver starts lower than any chain that draws noise, annealed or not. */
static void sampler_respace(const mar_params *p, diff_spec *spec)
{
    spec->sampler = p->sampler;
    spec->top = DIFF_TOP_SOLVER;
}

const mar_accel mar_accel_sampler = {
    .name = "sampler",
    .changes = MAR_STAGE_SOLVER,
    .methods =
        (const mar_accel_method[]){
            {.name = "ddim",
             .value = "ddim",
             .guarantee = "none: converges to another distribution of the same model with more steps",
             .source = "DDIM, eta 0 (Song et al. 2021)",
             .summary = "the head as an ODE, first order: few diffusion steps"},
            {.name = "dpmpp",
             .value = "dpmpp",
             .guarantee = "none: converges to another distribution of the same model with more steps",
             .source = "DPM-Solver++(2M) (Lu et al. 2022)",
             .summary = "the head as an ODE, second order: few diffusion steps"},
            {0}},
    .respace = sampler_respace,
};
