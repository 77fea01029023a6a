/* One step of the denoising chain, per channel: one source for host and device. */
#ifndef KERNELS_CHAIN_H
#define KERNELS_CHAIN_H

#include "kernels/ops.h"

/* Returns eps with guidance. Without guidance the caller passes cond as uncond. */
KERN_FN float kern_chain_eps(float cond, float uncond, float cfg)
{
    return uncond + cfg * (cond - uncond);
}

/* Returns the position of the log variance between its bounds, from the head's output v: 0 is log_var_min, 1 is
 * log_var_max. */
KERN_FN float kern_chain_fraction(float v)
{
    return (v + 1) * 0.5f;
}

/* Returns the mean of the posterior q(x_{t-1} | x_t, x0), with x0 predicted from eps. */
KERN_FN float kern_chain_mean(const kern_chain_coef *coef, float x, float eps)
{
    const float x0 = coef->x0_x * x - coef->x0_prediction * eps;
    return coef->coef_x0 * x0 + coef->coef_xt * x;
}

/* Returns the log standard deviation of a step, at temperature 1. */
KERN_FN float kern_chain_log_std(const kern_chain_coef *coef, float fraction)
{
    return 0.5f * (fraction * coef->log_var_max + (1 - fraction) * coef->log_var_min);
}

/* Returns the next state (p_sample) from the head's outputs eps and v. `normal` may be any finite number where no noise
 * is added. */
KERN_FN float kern_chain_next(const kern_chain_coef *coef, float x, float eps, float v, float normal)
{
    return kern_chain_mean(coef, x, eps) +
           expf(kern_chain_log_std(coef, kern_chain_fraction(v))) * normal * coef->noise;
}

/* Returns a solver's next state. *x0 is the previous step's x0 on entry, and this step's on return. */
KERN_FN float kern_chain_ode_next(const kern_ode_coef *coef, float x, float eps, float *x0)
{
    const float now = coef->x0_x * x - coef->x0_prediction * eps;
    const float before = coef->coef_previous != 0 ? coef->coef_previous * *x0 : 0;
    *x0 = now;
    return coef->coef_x * x + coef->coef_x0 * now + before;
}

#endif
