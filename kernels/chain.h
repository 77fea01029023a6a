/* One step of the denoising chain, per channel: one source for host and device. */
#ifndef KERNELS_CHAIN_H
#define KERNELS_CHAIN_H

#include "kernels/ops.h"

/* Returns a * b + c, rounded twice everywhere. A GPU's compiler would fuse it in one kernel and not in another, but
 * laws that two kernels compute must be equal to the last bit (kernels/path.h). */
KERN_FN float kern_multiply_add(float a, float b, float c)
{
#ifdef __CUDA_ARCH__
    return __fadd_rn(__fmul_rn(a, b), c);
#else
    return a * b + c;
#endif
}

/* Returns eps with guidance. Without guidance the caller passes cond as uncond. */
KERN_FN float kern_chain_eps(float cond, float uncond, float cfg)
{
    return kern_multiply_add(cfg, cond - uncond, uncond);
}

/* Returns the position of the log variance between its bounds, from the head's output v: 0 is log_var_min, 1 is
 * log_var_max. */
KERN_FN float kern_chain_fraction(float v)
{
    return (v + 1) * 0.5f;
}

/* Returns the mean of the posterior q(x_{t-1} | x_t, x0); kern_chain_mean: with x0 predicted from eps. */
KERN_FN float kern_chain_mean_of(const kern_chain_coef *coef, float x, float x0)
{
    return kern_multiply_add(coef->coef_x0, x0, coef->coef_xt * x);
}
KERN_FN float kern_chain_mean(const kern_chain_coef *coef, float x, float eps)
{
    const float x0 = kern_multiply_add(-coef->x0_prediction, eps, coef->x0_x * x);
    return kern_chain_mean_of(coef, x, x0);
}

/* Returns the log standard deviation of a step, at temperature 1. */
KERN_FN float kern_chain_log_std(const kern_chain_coef *coef, float fraction)
{
    return 0.5f * kern_multiply_add(fraction, coef->log_var_max, (1 - fraction) * coef->log_var_min);
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
