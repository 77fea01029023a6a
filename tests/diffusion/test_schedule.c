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
