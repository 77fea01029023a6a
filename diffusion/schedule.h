/* The diffusion process of the head: cosine betas over 1000 base steps, respaced (Nichol & Dhariwal 2021, as the
 * official MAR code configures it). All arithmetic in double, stored as f32 the way the official code uses it. */
#ifndef DIFFUSION_SCHEDULE_H
#define DIFFUSION_SCHEDULE_H

#include "kernels/ops.h"

enum {
    DIFF_BASE_STEPS = 1000,
    /* Highest base timesteps. At t = 999 abar is 2e-9, so x0 = x/sqrt(abar) - ... multiplies an error of eps by 2e4.
     * The plain chain starts there all the same, as the official one does: its noise covers most of the error. An ODE
     * solver adds no noise, and each of its steps is large. So it starts lower, where abar is 9e-4 or 6e-3. */
    DIFF_TOP = 999,
    DIFF_TOP_SOLVER = 980,   /* clip_timesteps of DiSA's DDIM */
    DIFF_TOP_ANNEALED = 950, /* clip_timesteps of DiSA's DDPM */
};

/* Which timesteps a chain takes. DDPM: `steps` timesteps spaced over 0..999, of which those above `top` become `top`,
 * and duplicates are dropped (DiSA's clip_timesteps; with 50 steps and top 950, 48 remain). Solvers: `steps` timesteps
 * spaced over 0..top (50 steps and top 980 give those of DiSA's "ddim50"). */
typedef struct {
    mar_sampler sampler;
    int steps; /* 2..1000 */
    int top;   /* 1..999 */
} diff_spec;

typedef struct {
    int steps;             /* of the chain, which runs from index steps-1 down to 0 */
    int *t;                /* [steps] base timestep of each index: the head's input and the step in the noise address */
    kern_chain_coef *coef; /* [steps]; noise = temperature, 0 at index 0. NULL for a solver */
    kern_ode_coef *ode;    /* [steps]; NULL for DDPM */
} diff_schedule;

/* MAR_EARG if steps or temperature is out of range, or if a solver's temperature is not 1: a solver adds no noise that
 * a temperature could scale. */
mar_status diff_schedule_create_for(const diff_spec *spec, float temperature, diff_schedule *out, mar_err *err);
/* The plain chain: DDPM over 0..999. */
mar_status diff_schedule_create(int steps, float temperature, diff_schedule *out, mar_err *err);
void diff_schedule_free(diff_schedule *s);

#endif
