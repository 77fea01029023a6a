/* The diffusion process of the head: cosine betas over 1000 base steps, respaced (Nichol & Dhariwal 2021, as the
 * official MAR code configures it). All arithmetic in double, stored as f32 the way the official code uses it. */
#ifndef DIFFUSION_SCHEDULE_H
#define DIFFUSION_SCHEDULE_H

#include "kernels/ops.h"

enum {
    DIFF_BASE_STEPS = 1000,
    /* Highest base timesteps. At t = 999 abar is 2e-9 and x0 = x/sqrt(abar) - ... multiplies an error of eps by 2e4.
     * The plain chain starts there all the same, as the official one does, and its noise covers much of it. An ODE
     * solver has no noise to do so, and few steps make each one count: hence lower starts, where abar is 9e-4 and 6e-3.
     */
    DIFF_TOP = 999,
    DIFF_TOP_SOLVER = 980,   /* clip_timesteps of DiSA's DDIM */
    DIFF_TOP_ANNEALED = 950, /* clip_timesteps of DiSA's DDPM */
};

/* A way through the process. DDPM: `steps` timesteps spaced over 0..999, those above `top` replaced by it, duplicates
 * dropped (DiSA's clip_timesteps; with 50 steps and top 950, 48 remain). Solvers: `steps` timesteps spaced over 0..top
 * (with 50 and 980 those of DiSA's "ddim50"). */
typedef struct {
    mar_sampler sampler;
    int steps; /* 2..1000 */
    int top;   /* 1..999 */
} diff_spec;

typedef struct {
    int steps;             /* of the chain, which runs index steps-1 down to 0 */
    int *t;                /* [steps] base timestep of each index: what the head sees, and the noise address */
    kern_chain_coef *coef; /* [steps]; noise = temperature, 0 at index 0. NULL for a solver */
    kern_ode_coef *ode;    /* [steps]; NULL for DDPM */
} diff_schedule;

/* MAR_EARG if steps or temperature is out of range, or a solver's temperature is not 1: it adds no noise to scale. */
mar_status diff_schedule_create_for(const diff_spec *spec, float temperature, diff_schedule *out, mar_err *err);
/* The plain chain: DDPM over 0..999. */
mar_status diff_schedule_create(int steps, float temperature, diff_schedule *out, mar_err *err);
void diff_schedule_free(diff_schedule *s);

#endif
