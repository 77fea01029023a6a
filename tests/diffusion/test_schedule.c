#include "diffusion/schedule.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TEST_CASE(matches_pytorch)
{
    const int counts[] = {2, 10, 100, 250, 1000};
    wt_file *f = golden_open("mar");
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        char name[32];
        const int n = counts[i];
        mar_err err = {0};
        diff_schedule s;
        assert_ok(diff_schedule_create(n, 0.7f, &s, &err), &err);
        snprintf(name, sizeof name, "schedule%d.t", n);
        float *t = golden_f32(f, name, n);
        snprintf(name, sizeof name, "schedule%d.coef", n);
        float *coef = golden_f32(f, name, n * 6);
        for (int j = 0; j < n; j++) {
            assert_int_equal(s.t[j], (int)t[j]);
            const float mine[6] = {s.coef[j].x0_x,    s.coef[j].x0_prediction, s.coef[j].coef_x0,
                                   s.coef[j].coef_xt, s.coef[j].log_var_min,   s.coef[j].log_var_max};
            for (int c = 0; c < 6; c++)
                assert_true(fabsf(mine[c] - coef[j * 6 + c]) <= 1e-6f * (1e-3f + fabsf(coef[j * 6 + c])));
            assert_float_equal(s.coef[j].noise, j ? 0.7f : 0, 0);
        }
        diff_schedule_free(&s);
        free(t), free(coef);
    }
    wt_close(f);
}

TEST_CASE(refuses)
{
    diff_schedule s;
    mar_err err = {0};
    const int bad[] = {-1, 0, 1, 1001};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(diff_schedule_create(bad[i], 1, &s, &err), MAR_EARG);
        assert_non_null(strstr(err.text, "num_sampling_steps"));
    }
    assert_int_equal(diff_schedule_create(100, NAN, &s, &err), MAR_EARG);
    assert_non_null(strstr(err.text, "temperature"));
    assert_int_equal(diff_schedule_create(100, -0.5f, &s, &err), MAR_EARG);
}

/* Steps and shifts of the flows' chains. */
enum { COUNTS = 3, SHIFTS = 4 };
static const int counts[COUNTS] = {3, 28, 50};
static const float shifts[SHIFTS] = {1, 1.5f, 3, 100};

/* Makes a flow's chain of n noisy steps. */
static diff_schedule flow_of(int n, float shift)
{
    const diff_spec spec = {MAR_SAMPLER_DDPM, n, DIFF_TOP, .process = DIFF_FLOW, .shift = shift};
    diff_schedule s;
    mar_err err = {0};
    assert_ok(diff_schedule_create_for(&spec, 1, &s, &err), &err);
    return s;
}

/* Computes the scale of x, of v and of the noise of a step: x0 = x0_x x - x0_prediction v, and the mean is
 * coef_x0 x0 + coef_xt x. */
static void step_of(const kern_chain_coef *c, double scale[3])
{
    scale[0] = (double)c->coef_x0 * (double)c->x0_x + (double)c->coef_xt;
    scale[1] = -(double)c->coef_x0 * (double)c->x0_prediction;
    scale[2] = c->noise > 0 ? exp((double)c->log_var_min / 2) : 0;
}

static double shifted(double t, double shift)
{
    return t / (shift - (shift - 1) * t);
}

/* NextStep-1.1's chain: t = 0, 1/n, .. 1, shifted; n steps of x + ((1 + t) v - x) dt + sqrt(2 (1 - t) dt) eps, of which
 * the last one's noise is not the chain's. */
TEST_CASE(a_flow_of_noisy_steps)
{
    for (int i = 0; i < COUNTS * SHIFTS; i++) {
        const int n = counts[i % COUNTS];
        const double shift = (double)shifts[i / COUNTS];
        diff_spec spec = {MAR_SAMPLER_DDPM,  n - 1, DIFF_TOP, .process = DIFF_FLOW, .shift = (float)shift,
                          .last_is_noisy = 1};
        diff_schedule s;
        mar_err err = {0};
        assert_ok(diff_schedule_create_for(&spec, 0.5f, &s, &err), &err);
        assert_int_equal(s.steps, n);
        for (int k = 0; k < n; k++) {
            const double t = shifted((double)k / n, shift), dt = shifted((k + 1.0) / n, shift) - t;
            const double noise = sqrt(2 * (1 - t) * dt), expected[2] = {1 - dt, (1 + t) * dt};
            double scale[3];
            step_of(s.coef + n - 1 - k, scale);
            assert_float_equal((double)s.time[n - 1 - k], 1000 * t, 2e-3);
            for (int j = 0; j < 2; j++) assert_float_equal(scale[j], expected[j], 1e-5);
            assert_float_equal(scale[2], k < n - 1 ? noise : 0, 1e-5);
            if (k == n - 1) assert_float_equal((double)s.last_noise, noise / 2, 1e-6);
        }
        diff_schedule_free(&s);
        spec.sampler = MAR_SAMPLER_DDIM;
        assert_ok(diff_schedule_create_for(&spec, 1, &s, &err), &err);
        assert_true(s.last_noise == 0);
        diff_schedule_free(&s);
    }
}

/* NextStep-1's chain: t = linspace(0, 0.96, n), shifted; n - 1 steps of x + ((1 + t) v - x) dt + sqrt(2 (1 - t) dt)
 * eps, and one of 0.04 v with the last t. */
TEST_CASE(a_flow_shifts_its_time)
{
    for (int i = 0; i < COUNTS * SHIFTS; i++) {
        const int n = counts[i % COUNTS];
        const double shift = (double)shifts[i / COUNTS];
        diff_schedule s = flow_of(n - 1, (float)shift);
        assert_int_equal(s.steps, n);
        for (int k = 0; k < n; k++) {
            const kern_chain_coef *c = s.coef + n - 1 - k;
            const double t = shifted(0.96 * k / (n - 1), shift), dt = shifted(0.96 * (k + 1) / (n - 1), shift) - t;
            const int last = k == n - 1;
            const double expected[3] = {last ? 1 : 1 - dt, last ? 0.04 : (1 + t) * dt,
                                        last ? 0 : sqrt(2 * (1 - t) * dt)};
            double scale[3];
            step_of(c, scale);
            assert_float_equal((double)s.time[n - 1 - k], 1000 * t, 2e-3);
            for (int j = 0; j < 3; j++) assert_float_equal(scale[j], expected[j], 1e-5);
        }
        diff_schedule_free(&s);
    }
}

/* No shift and a shift of 1 are the same bits; the steps of a solver shift, too. */
TEST_CASE(a_shift_of_1_is_none)
{
    diff_schedule none = flow_of(20, 0), one = flow_of(20, 1);
    assert_memory_equal(none.coef, one.coef, (size_t)none.steps * sizeof *none.coef);
    assert_memory_equal(none.time, one.time, (size_t)none.steps * sizeof *none.time);
    diff_schedule_free(&none);
    diff_schedule_free(&one);
    for (int order = 1; order <= 2; order++) {
        const diff_spec spec = {order == 1 ? MAR_SAMPLER_DDIM : MAR_SAMPLER_DPMPP, 10, DIFF_TOP, .process = DIFF_FLOW,
                                .shift = 3};
        mar_err err = {0};
        assert_ok(diff_schedule_create_for(&spec, 1, &one, &err), &err);
        for (int i = 0; i < 10; i++) assert_float_equal((double)one.time[i], 1000 * shifted((9 - i) / 10.0, 3), 1e-3);
        diff_schedule_free(&one);
    }
}
