#include "diffusion/schedule.h"

#include <math.h>
#include <stdlib.h>

static const double pi = 3.14159265358979323846;

/* Returns alpha_bar of the cosine schedule at time u in [0,1] (Nichol & Dhariwal, Eq. 17), not normalised. */
static double cosine_alpha_bar(double u)
{
    double c = cos((u + 0.008) / 1.008 * pi / 2);
    return c * c;
}

/* Computes cumulative products of 1 - beta over the base steps, beta clipped at 0.999. */
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

/* Spaces `steps` base steps evenly over 0..last, both included. Accumulates the stride and rounds half to even, as the
 * official space_timesteps does. */
static void space_timesteps(int steps, int last, int *t)
{
    const double stride = last / (double)(steps - 1);
    double current = 0;
    for (int i = 0; i < steps; i++, current += stride) t[i] = (int)nearbyint(current);
}

/* Replaces the timesteps above `top` by `top`, once. Returns how many remain. */
static int clip_timesteps(int steps, int top, int *t)
{
    int kept = 0;
    for (int i = 0; i < steps; i++) {
        const int clipped = t[i] < top ? t[i] : top;
        if (kept == 0 || clipped > t[kept - 1]) t[kept++] = clipped;
    }
    return kept;
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
    s->coef[0].log_var_min = s->coef[1].log_var_min; /* index 0 has variance 0: the official code clips it like this */
}

/* A noise level; lambda = log(alpha/sigma). A solver's step goes from level `now` to level `next`: DPM-Solver++ (Lu et
 * al. 2022), data prediction. First order is DDIM with eta 0. The second-order multistep form (its Algorithm 2, "2M")
 * adds the slope of x0 over the step before. That step began at level `before`. */
typedef struct {
    double alpha, sigma, lambda;
} level;

static level level_of(double abar)
{
    return (level){sqrt(abar), sqrt(1 - abar), 0.5 * log(abar / (1 - abar))};
}

static kern_ode_coef solver_step(const level *before, level now, level next)
{
    const double h = next.lambda - now.lambda;
    const double gain = -next.alpha * expm1(-h), slope = before ? 0.5 * h / (now.lambda - before->lambda) : 0;
    return (kern_ode_coef){
        .sqrt_recip_abar = (float)(1 / now.alpha),
        .sqrt_recipm1_abar = (float)(now.sigma / now.alpha),
        .coef_x = (float)(next.sigma / now.sigma),
        .coef_x0 = (float)(gain * (1 + slope)),
        .coef_previous = (float)(-gain * slope),
    };
}

/* Fills a solver's coefficients. The last step goes to clean data: next.sigma = 0, lambda infinite, x = x0. It and the
 * first step are of first order. */
static void fill_solver(diff_schedule *s, int order)
{
    double base[DIFF_BASE_STEPS];
    base_alphas_cumprod(base);
    for (int i = 0; i < s->steps; i++) {
        const level now = level_of(base[s->t[i]]), next = i ? level_of(base[s->t[i - 1]]) : (level){1, 0, INFINITY};
        const level before = i + 1 < s->steps ? level_of(base[s->t[i + 1]]) : now;
        s->ode[i] = solver_step(order == 2 && i > 0 && i + 1 < s->steps ? &before : NULL, now, next);
    }
}

static mar_status check(const diff_spec *spec, float temperature, mar_err *err)
{
    if (spec->steps < 2 || spec->steps > DIFF_BASE_STEPS)
        return err_set(err, MAR_EARG, "--num_sampling_steps %d: expected 2..%d", spec->steps, DIFF_BASE_STEPS);
    if (!(temperature >= 0 && temperature <= 100))
        return err_set(err, MAR_EARG, "--temperature %g: expected 0..100", (double)temperature);
    if (spec->sampler != MAR_SAMPLER_DDPM && temperature != 1)
        return err_set(err, MAR_EARG,
                       "--temperature %g: expected 1 with an ODE solver as --sampler, which adds no noise to scale",
                       (double)temperature);
    return MAR_OK;
}

mar_status diff_schedule_create_for(const diff_spec *spec, float temperature, diff_schedule *out, mar_err *err)
{
    *out = (diff_schedule){0};
    mar_status status = check(spec, temperature, err);
    if (status != MAR_OK) return status;
    const int solver = spec->sampler != MAR_SAMPLER_DDPM;
    const size_t steps = (size_t)spec->steps;
    out->t = malloc(sizeof *out->t * steps);
    if (solver)
        out->ode = malloc(sizeof *out->ode * steps);
    else
        out->coef = malloc(sizeof *out->coef * steps);
    if (!out->t || (!out->ode && !out->coef)) {
        diff_schedule_free(out);
        return err_set(err, MAR_ENOMEM, "out of memory");
    }
    space_timesteps(spec->steps, solver ? spec->top : DIFF_TOP, out->t);
    out->steps = clip_timesteps(spec->steps, spec->top, out->t);
    if (solver)
        fill_solver(out, spec->sampler == MAR_SAMPLER_DPMPP ? 2 : 1);
    else
        fill(out, temperature);
    return MAR_OK;
}

mar_status diff_schedule_create(int steps, float temperature, diff_schedule *out, mar_err *err)
{
    return diff_schedule_create_for(&(diff_spec){MAR_SAMPLER_DDPM, steps, DIFF_TOP}, temperature, out, err);
}

void diff_schedule_free(diff_schedule *s)
{
    free(s->t);
    free(s->coef);
    free(s->ode);
    *s = (diff_schedule){0};
}
