/* The diffusion process of the head: cosine betas over 1000 base steps, respaced (Nichol & Dhariwal 2021, as the
 * official MAR code configures it). Arithmetic is in double, and stored as f32 where the official code does so. */
#ifndef DIFFUSION_SCHEDULE_H
#define DIFFUSION_SCHEDULE_H

#include "kernels/ops.h"

enum {
    DIFF_BASE_STEPS = 1000,
    /* Highest base timesteps. At t = 999 abar is 2e-9, so x0 = x/sqrt(abar) - ... multiplies an error of eps by 2e4.
     * The official chain starts there, and so does the plain chain: its noise covers most of the error. An ODE solver
     * adds no noise, and its steps are large. It starts lower, where abar is 9e-4 or 6e-3. */
    DIFF_TOP = 999,
    DIFF_TOP_SOLVER = 980,   /* clip_timesteps of DiSA's DDIM */
    DIFF_TOP_ANNEALED = 950, /* clip_timesteps of DiSA's DDPM */
};

/* Choice of a chain's timesteps. DDPM takes `steps` timesteps spaced over 0..999, and replaces those above `top` by
 * `top` once (DiSA's clip_timesteps). With 50 steps and top 950, 48 remain. Solvers take `steps` timesteps spaced over
 * 0..top. 50 steps and top 980 are those of DiSA's "ddim50". */
typedef struct {
    mar_sampler sampler;
    int steps; /* 2..1000 */
    int top;   /* 1..999 */
} diff_spec;

typedef struct {
    int steps; /* steps of the chain; it runs from index steps-1 down to 0 */
    int *t;    /* [steps] base timestep of each index: the head's input, and the step of the noise address */
    kern_chain_coef *coef; /* [steps]; noise = temperature, 0 at index 0. NULL for a solver */
    kern_ode_coef *ode;    /* [steps]; NULL for DDPM */
} diff_schedule;

/* Creates the schedule of a spec. Returns MAR_EARG if steps or temperature is out of range, or if a solver's
 * temperature is not 1: a solver adds no noise to scale. Free it with diff_schedule_free. */
mar_status diff_schedule_create_for(const diff_spec *spec, float temperature, diff_schedule *out, mar_err *err);
/* Creates the plain chain's schedule: DDPM over 0..999. */
mar_status diff_schedule_create(int steps, float temperature, diff_schedule *out, mar_err *err);
void diff_schedule_free(diff_schedule *s);

#endif
