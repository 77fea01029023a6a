#include "diffusion/schedule.h"

#include <math.h>
#include <stdlib.h>

static const double pi = 3.14159265358979323846;

/* alpha_bar of the cosine schedule at time u in [0,1] (Nichol & Dhariwal, Eq. 17), not normalised. */
static double cosine_alpha_bar(double u)
{
    double c = cos((u + 0.008) / 1.008 * pi / 2);
    return c * c;
}

/* Cumulative products of 1 - beta over the base steps, beta clipped at 0.999. */
static void base_alphas_cumprod(double abar[DIFF_BASE_STEPS])
{
    double product = 1;
    for (int i = 0; i < DIFF_BASE_STEPS; i++) {
        double beta =
            1 - cosine_alpha_bar((i + 1) / (double)DIFF_BASE_STEPS) / cosine_alpha_bar(i / (double)DIFF_BASE_STEPS);
        product *= 1 - fmin(beta, 0.999);
        abar[i] = product;
    }
}

/* Evenly spaced base steps, first and last included; the stride is accumulated and rounded half to even, as the
 * official space_timesteps does. */
static void space_timesteps(int steps, int *t)
{
    const double stride = (DIFF_BASE_STEPS - 1) / (double)(steps - 1);
    double current = 0;
    for (int i = 0; i < steps; i++, current += stride) t[i] = (int)nearbyint(current);
}

static kern_chain_coef coefficients(double beta, double abar, double abar_prev, double posterior_variance, float noise)
{
    return (kern_chain_coef){
        .sqrt_recip_abar = (float)sqrt(1 / abar),
        .sqrt_recipm1_abar = (float)sqrt(1 / abar - 1),
        .coef_x0 = (float)(beta * sqrt(abar_prev) / (1 - abar)),
        .coef_xt = (float)((1 - abar_prev) * sqrt(1 - beta) / (1 - abar)),
        .log_var_min = (float)log(posterior_variance),
        .log_var_max = (float)log(beta),
        .noise = noise,
    };
}

static void fill(diff_schedule *s, float temperature)
{
    double base[DIFF_BASE_STEPS], last = 1, abar = 1;
    base_alphas_cumprod(base);
    for (int i = 0; i < s->steps; i++) {
        const double beta = 1 - base[s->t[i]] / last, abar_prev = abar;
        last = base[s->t[i]];
        abar *= 1 - beta;
        s->coef[i] = coefficients(beta, abar, abar_prev, beta * (1 - abar_prev) / (1 - abar), i ? temperature : 0);
    }
    s->coef[0].log_var_min = s->coef[1].log_var_min; /* index 0 has variance 0: the official code clips it so */
}

mar_status diff_schedule_create(int steps, float temperature, diff_schedule *out, mar_err *err)
{
    *out = (diff_schedule){0};
    if (steps < 2 || steps > DIFF_BASE_STEPS)
        return err_set(err, MAR_EARG, "num_sampling_steps %d: expected 2..%d", steps, DIFF_BASE_STEPS);
    if (!(temperature >= 0 && temperature <= 100))
        return err_set(err, MAR_EARG, "temperature %g: expected 0..100", (double)temperature);
    out->steps = steps;
    out->t = malloc(sizeof *out->t * (size_t)steps);
    out->coef = malloc(sizeof *out->coef * (size_t)steps);
    if (!out->t || !out->coef) {
        diff_schedule_free(out);
        return err_set(err, MAR_ENOMEM, "out of memory");
    }
    space_timesteps(steps, out->t);
    fill(out, temperature);
    return MAR_OK;
}

void diff_schedule_free(diff_schedule *s)
{
    free(s->t);
    free(s->coef);
    *s = (diff_schedule){0};
}
