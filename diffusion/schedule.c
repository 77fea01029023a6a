#include "diffusion/schedule.h"

#include <math.h>
#include <stdlib.h>

static const double pi = 3.14159265358979323846;

/* Returns alpha_bar of the cosine schedule at time u in [0,1] (Nichol & Dhariwal, Eq. 17), not normalised. */
static double schedule_cosine_alpha_bar(double u)
{
    double c = cos((u + 0.008) / 1.008 * pi / 2);
    return c * c;
}

/* Computes cumulative products of 1 - beta over the base steps, beta clipped. */
static void schedule_base_alphas_cumprod(diff_process process, double abar[DIFF_BASE_STEPS])
{
    const double most = process == DIFF_DDPM_CLIPPED ? 0.2 : 0.999;
    double product = 1;
    for (int i = 0; i < DIFF_BASE_STEPS; i++) {
        double beta = 1 - schedule_cosine_alpha_bar((i + 1) / (double)DIFF_BASE_STEPS) /
                              schedule_cosine_alpha_bar(i / (double)DIFF_BASE_STEPS);
        product *= 1 - fmin(beta, most);
        abar[i] = product;
    }
}

/* Spaces `steps` base steps evenly over 0..last, both included. Accumulates the stride and rounds half to even, as the
 * official space_timesteps does. */
static void schedule_space_timesteps(int steps, int last, int *t)
{
    const double stride = last / (double)(steps - 1);
    double current = 0;
    for (int i = 0; i < steps; i++, current += stride) t[i] = (int)nearbyint(current);
}

/* Replaces the timesteps above `top` by `top`, once. Returns how many remain. */
static int schedule_clip_timesteps(int steps, int top, int *t)
{
    int kept = 0;
    for (int i = 0; i < steps; i++) {
        const int clipped = t[i] < top ? t[i] : top;
        if (kept == 0 || clipped > t[kept - 1]) t[kept++] = clipped;
    }
    return kept;
}

static kern_chain_coef schedule_coefficients(double beta, double abar, double abar_prev, double posterior_variance,
                                             float noise)
{
    return (kern_chain_coef){
        .x0_x = (float)sqrt(1 / abar),
        .x0_prediction = (float)sqrt(1 / abar - 1),
        .coef_x0 = (float)(beta * sqrt(abar_prev) / (1 - abar)),
        .coef_xt = (float)((1 - abar_prev) * sqrt(1 - beta) / (1 - abar)),
        .log_var_min = (float)log(posterior_variance),
        .log_var_max = (float)log(beta),
        .noise = noise,
    };
}

/* Fills what does not depend on the steps' coefficients: the head's input, and the signal-to-noise ratio at index i. */
static void schedule_set_level(diff_schedule *s, int i, float time, float snr, float gain)
{
    s->time[i] = time;
    s->snr[i] = snr;
    s->gain[i] = gain;
}

static void schedule_fill(diff_schedule *s, diff_process process, float temperature)
{
    double base[DIFF_BASE_STEPS], last = 1, abar = 1;
    schedule_base_alphas_cumprod(process, base);
    for (int i = 0; i < s->steps; i++) {
        const double beta = 1 - base[s->t[i]] / last, abar_prev = abar;
        last = base[s->t[i]];
        abar *= 1 - beta;
        s->coef[i] =
            schedule_coefficients(beta, abar, abar_prev, beta * (1 - abar_prev) / (1 - abar), i ? temperature : 0);
        const float recipm1 = s->coef[i].x0_prediction, snr = 1 / (recipm1 * recipm1); /* 1 / (1/abar - 1) */
        schedule_set_level(s, i, (float)s->t[i], snr, s->coef[i].x0_x * snr);
    }
    s->coef[0].log_var_min = s->coef[1].log_var_min; /* index 0 has variance 0: the official code clips it like this */
}

/* A noise level; lambda = log(alpha/sigma). A solver's step goes from level `now` to level `next`: DPM-Solver++ (Lu et
 * al. 2022), data prediction. First order is DDIM with eta 0. The second-order multistep form (its Algorithm 2, "2M")
 * adds the slope of x0 over the step before. That step began at level `before`. */
typedef struct {
    double alpha, sigma, lambda;
} level;

static level schedule_level_of(double abar)
{
    return (level){sqrt(abar), sqrt(1 - abar), 0.5 * log(abar / (1 - abar))};
}

static kern_ode_coef schedule_solver_step(const level *before, level now, level next)
{
    const double h = next.lambda - now.lambda;
    const double gain = -next.alpha * expm1(-h), slope = before ? 0.5 * h / (now.lambda - before->lambda) : 0;
    return (kern_ode_coef){
        .x0_x = (float)(1 / now.alpha),
        .x0_prediction = (float)(now.sigma / now.alpha),
        .coef_x = (float)(next.sigma / now.sigma),
        .coef_x0 = (float)(gain * (1 + slope)),
        .coef_previous = (float)(-gain * slope),
    };
}

/* Fills a solver's coefficients. The last step goes to clean data: next.sigma = 0, lambda infinite, x = x0. It and the
 * first step are of first order. */
static void schedule_fill_solver(diff_schedule *s, diff_process process, int order)
{
    double base[DIFF_BASE_STEPS];
    schedule_base_alphas_cumprod(process, base);
    for (int i = 0; i < s->steps; i++) {
        const level now = schedule_level_of(base[s->t[i]]),
                    next = i ? schedule_level_of(base[s->t[i - 1]]) : (level){1, 0, INFINITY};
        const level before = i + 1 < s->steps ? schedule_level_of(base[s->t[i + 1]]) : now;
        s->ode[i] = schedule_solver_step(order == 2 && i > 0 && i + 1 < s->steps ? &before : NULL, now, next);
        s->time[i] = (float)s->t[i];
    }
}

/* --- flow --------------------------------------------------------------------------------------------------------- */

static const double last_step = 0.04; /* of SphereAR's euler_maruyama, and NextStep-1's last_step_size */

/* Returns t, shifted. */
static double schedule_shift(double t, double shift)
{
    return t / (shift - (shift - 1) * t);
}

static double schedule_shift_of(const diff_spec *spec)
{
    return spec->shift > 0 ? (double)spec->shift : 1;
}

/* Returns the size of the last step before the shift. */
static double schedule_last_step(const diff_spec *spec)
{
    return spec->last_is_noisy ? 1.0 / (spec->steps + 1) : last_step;
}

/* Returns what the shift leaves for the last step. */
static double schedule_rest(const diff_spec *spec)
{
    const double shift = schedule_shift_of(spec), last = schedule_last_step(spec);
    return shift == 1 ? last : 1 - schedule_shift(1 - last, shift);
}

/* Fills the chain: Euler-Maruyama steps at t = 0, dt, 2 dt, .. and the last step. */
static void schedule_fill_flow(diff_schedule *s, const diff_spec *spec, float temperature)
{
    const double shift = schedule_shift_of(spec), step = (1 - schedule_last_step(spec)) / (s->steps - 1);
    float even = 0; /* accumulated in f32, as SphereAR's code does */
    for (int i = s->steps - 1; i > 0; i--, even += (float)step) {
        const double now = shift == 1 ? (double)even : schedule_shift((double)even, shift);
        const double dt = shift == 1 ? step : schedule_shift((double)even + step, shift) - now;
        const double gain = dt * (1 + now) / (1 - now), log_variance = log(2 * (1 - now) * dt);
        s->coef[i] = (kern_chain_coef){.x0_x = 1,
                                       .x0_prediction = (float)(now - 1),
                                       .coef_x0 = (float)gain,
                                       .coef_xt = (float)(1 - dt - gain),
                                       .log_var_min = (float)log_variance,
                                       .log_var_max = (float)log_variance,
                                       .noise = temperature};
        schedule_set_level(s, i, 1000 * (float)now, (float)(now * now / ((1 - now) * (1 - now))),
                           (float)(now / ((1 - now) * (1 - now))));
    }
    const double rest = schedule_rest(spec), now = 1 - rest, euler = last_step / rest;
    s->coef[0] = (kern_chain_coef){.x0_x = 1,
                                   .x0_prediction = (float)-rest,
                                   .coef_x0 = (float)(spec->last_is_noisy ? 1 + now : euler),
                                   .coef_xt = (float)(spec->last_is_noisy ? -1 : 1 - euler)};
    s->coef[0].log_var_min = s->coef[0].log_var_max = s->coef[1].log_var_max; /* for a trace; no noise is added */
    if (spec->last_is_noisy) s->last_noise = (float)(sqrt(2) * rest * (double)temperature);
    schedule_set_level(s, 0, 1000 * (float)now, (float)(now * now / (rest * rest)), (float)(now / (rest * rest)));
}

/* Returns the noise level at time t: x_t = t x1 + (1 - t) noise. */
static level schedule_flow_level(double t)
{
    return (level){t, 1 - t, log(t / (1 - t))}; /* lambda is -infinity at 0, infinity at 1 */
}

/* Fills a solver's coefficients over steps from t = 0 to 1, equal before the shift. DDIM is then Euler's method on the
 * velocity. The first and the last step are of first order. */
static void schedule_fill_flow_solver(diff_schedule *s, double shift, int order)
{
    const double dt = 1.0 / s->steps;
    for (int i = s->steps - 1; i >= 0; i--) {
        const double even = dt * (s->steps - 1 - i), t = schedule_shift(even, shift);
        const level now = schedule_flow_level(t);
        const level next = i ? schedule_flow_level(schedule_shift(even + dt, shift)) : (level){1, 0, INFINITY};
        const level before = schedule_flow_level(schedule_shift(even - dt, shift));
        s->ode[i] = schedule_solver_step(order == 2 && i > 0 && i + 1 < s->steps ? &before : NULL, now, next);
        s->ode[i].x0_x = 1;
        s->ode[i].x0_prediction = (float)(t - 1);
        s->time[i] = (float)(1000 * t);
    }
}

int diff_schedule_level(const diff_schedule *s, diff_process process, int index)
{
    return process == DIFF_FLOW ? (int)(1000 - s->time[index]) : s->t[index];
}

static mar_status schedule_check(const diff_spec *spec, float temperature, mar_err *err)
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

/* Allocates the arrays for this many steps. */
static mar_status schedule_allocate(int n, int solver, diff_schedule *out, mar_err *err)
{
    const size_t steps = (size_t)n;
    out->steps = n;
    out->t = malloc(sizeof *out->t * steps);
    out->time = malloc(sizeof *out->time * steps);
    out->snr = calloc(2 * (steps + 1), sizeof *out->snr); /* owns gain, too */
    if (solver)
        out->ode = malloc(sizeof *out->ode * steps);
    else
        out->coef = malloc(sizeof *out->coef * steps);
    if (out->t && out->time && out->snr && (out->ode || out->coef)) {
        out->gain = out->snr + steps + 1;
        return MAR_OK;
    }
    diff_schedule_free(out);
    return err_set(err, MAR_ENOMEM, "out of memory");
}

mar_status diff_schedule_create_for(const diff_spec *spec, float temperature, diff_schedule *out, mar_err *err)
{
    *out = (diff_schedule){0};
    mar_status status = schedule_check(spec, temperature, err);
    if (status != MAR_OK) return status;
    const int solver = spec->sampler != MAR_SAMPLER_DDPM, order = spec->sampler == MAR_SAMPLER_DPMPP ? 2 : 1;
    const int flow = spec->process == DIFF_FLOW;
    status = schedule_allocate(spec->steps + (flow && !solver), solver, out, err);
    if (status != MAR_OK) return status;
    if (flow) {
        for (int i = 0; i < out->steps; i++) out->t[i] = i;
        if (solver)
            schedule_fill_flow_solver(out, schedule_shift_of(spec), order);
        else
            schedule_fill_flow(out, spec, temperature);
        return MAR_OK;
    }
    schedule_space_timesteps(spec->steps, solver ? spec->top : DIFF_TOP, out->t);
    out->steps = schedule_clip_timesteps(spec->steps, spec->top, out->t);
    if (solver)
        schedule_fill_solver(out, spec->process, order);
    else
        schedule_fill(out, spec->process, temperature);
    return MAR_OK;
}

mar_status diff_schedule_create(int steps, float temperature, diff_schedule *out, mar_err *err)
{
    const diff_spec spec = {MAR_SAMPLER_DDPM, steps, DIFF_TOP, .process = DIFF_DDPM};
    return diff_schedule_create_for(&spec, temperature, out, err);
}

void diff_schedule_free(diff_schedule *s)
{
    free(s->t);
    free(s->time);
    free(s->snr);
    free(s->coef);
    free(s->ode);
    *s = (diff_schedule){0};
}
