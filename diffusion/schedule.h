/* The diffusion process of a head as data: the transitions of its chain, and the steps of ODE solvers. Arithmetic is in
 * double, and stored as f32 where the official code does so. */
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

/* The processes.
 *
 * DDPM: cosine betas over 1000 base steps, respaced (Nichol & Dhariwal 2021, as the official MAR code configures it).
 * The head predicts eps and the variance. Its input is the base timestep.
 *
 * DDPM_CLIPPED: the same, with betas of at most 0.2 in place of 0.999 (UniPic-1's gaussian_diffusion.py).
 *
 * FLOW: x_t = t x1 + (1 - t) noise, from t = 0 to the clean token x1 (SphereAR's sampling.py, also NextStep-1's). The
 * head predicts the velocity v = x1 - noise. Its input is 1000 t. With the score (t v - x) / (1 - t), an
 * Euler-Maruyama step of size dt is
 *     x + dt ((1 + t) v - x) + sqrt(2 (1 - t) dt) n,
 * a Gaussian chain's step with x1 = x + (1 - t) v. `steps` of them go from t = 0 to 0.96, and one Euler step without
 * noise to t = 1. So the chain has steps + 1 indices. A shift s makes t / (s - (s - 1) t) of each t; the last step
 * keeps its size of 0.04 (NextStep-1's modeling_fm_head.py). With last_is_noisy the steps + 1 Euler-Maruyama steps are
 * equal before the shift (NextStep-1.1's heads.py). The chain ends at the last one's mean. Its noise does not depend on
 * the states, so the caller adds it (diff_schedule.last_noise). */
typedef enum { DIFF_DDPM, DIFF_FLOW, DIFF_DDPM_CLIPPED } diff_process;

/* Choice of a chain's timesteps. DDPM takes `steps` timesteps spaced over 0..999, and replaces those above `top` by
 * `top` once (DiSA's clip_timesteps). With 50 steps and top 950, 48 remain. Its solvers take `steps` timesteps spaced
 * over 0..top. 50 steps and top 980 are those of DiSA's "ddim50". A flow's solvers take `steps` equal steps from t = 0
 * to 1. */
typedef struct {
    mar_sampler sampler; /* MAR_SAMPLER_DDPM: the process's own chain */
    int steps;           /* 2..1000 */
    int top;             /* 1..999; unused by FLOW */
    diff_process process;
    float shift;       /* FLOW: of time; 0 is 1, none */
    int last_is_noisy; /* FLOW's own chain: 1: as above */
} diff_spec;

typedef struct {
    int steps;   /* steps of the chain; it runs from index steps-1 down to 0 */
    int *t;      /* [steps] the step of the noise address. DDPM: base timestep. FLOW: index */
    float *time; /* [steps] the head's input: base timestep, or 1000 t */
    float *snr;  /* [steps+1] signal-to-noise ratio; 0 at index `steps`, before the chain */
    float *gain; /* [steps+1] snr / (coefficient of the clean token): snr x0 + noise of variance snr = gain * x */
    kern_chain_coef *coef; /* [steps]; noise = temperature, 0 at index 0. NULL for a solver */
    kern_ode_coef *ode;    /* [steps]; NULL for the process's own chain */
    float last_noise;      /* standard deviation of the noise behind the last step, at step 0's address; 0: none */
} diff_schedule;

/* Creates the schedule of a spec. Returns MAR_EARG if steps or temperature is out of range, or if a solver's
 * temperature is not 1: a solver adds no noise to scale. Free it with diff_schedule_free. */
mar_status diff_schedule_create_for(const diff_spec *spec, float temperature, diff_schedule *out, mar_err *err);
/* Creates the plain chain's schedule: DDPM over 0..999. */
mar_status diff_schedule_create(int steps, float temperature, diff_schedule *out, mar_err *err);
void diff_schedule_free(diff_schedule *s);
/* Returns the base timestep of DDPM that compares with an index, 0..1000: the noise that is left. */
int diff_schedule_level(const diff_schedule *s, diff_process process, int index);

#endif
