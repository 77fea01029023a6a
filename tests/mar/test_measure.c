/* Tests mar_session_measure: its rows, their sums against the session's counts, and sessions after it. Times need only
 * be positive. */
#include "base/cpus.h"

#include "mar_measure.h"
#include "tests/support/demo.h"
#include "tests/support/measured.h"
#include "tests/support/spy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double flop_of(const measured_list *l, const char *group)
{
    double sum = 0;
    for (int i = 0; i < l->count; i++)
        if (strcmp(l->row[i].group, group) == 0) sum += l->row[i].count * l->row[i].flop;
    return sum;
}

static mar_params quick(void)
{
    return params_with("num_iter 8, num_sampling_steps 8, cfg 2.9");
}

TEST_CASE(lists_every_part)
{
    const demo d = demo_open(2);
    const mar_params p = quick();
    mar_session *s = demo_session(&d, &p, 2);
    measured_list *l = measured_session(s);
    const int cores = cpus_affinity();
    assert_true(measured_get(l, "machine", "processors", 0)->count == (cores < 2 ? cores : 2));
    for (int i = 0; i < l->count; i++) {
        const mar_measurement *m = &l->row[i];
        if (strcmp(m->group, "machine") != 0)
            if (!(m->seconds > 0 && isfinite(m->seconds)))
                fail_msg("%s %s of %d rows takes %g s", m->group, m->name, m->rows, m->seconds);
        assert_int_equal(m->size, sizeof *m);
        if (!(m->count > 0 && m->bytes >= 0 && m->flop >= 0))
            fail_msg("%s %s: count %g, bytes %g, flop %g", m->group, m->name, m->count, m->bytes, m->flop);
    }
    measured_get(l, "machine", "matrix product", 1024);
    measured_get(l, "machine", "memory", -1);
    /* The demo: 4 blocks of width 64, a head of 2 blocks of width 128; step 4 of 8, of two images with guidance. */
    const int tokens = measured_get(l, "pass", "head", -1)->rows;
    assert_true(measured_get(l, "operation", "chain 2 x 128, 8 steps", 2 * tokens)->count == 1);
    assert_true(measured_get(l, "operation", "modulation 2 x 128", 8 * 2 * tokens)->count == 1);
    measured_get(l, "image decoder", "convolution 3x3, 64 to 64, upsampled", 256);
    free(l);
    mar_session_free(s);
    demo_close(d);
}

/* Checks that the operations' arithmetic adds up to the passes', which sessions count. */
TEST_CASE(operations_add_up)
{
    static const char *const ways[] = {"num_iter 8, num_sampling_steps 8, cfg 2.9",
                                       "num_iter 4, num_sampling_steps 8, cfg 1",
                                       "num_iter 8, num_sampling_steps 25, sampler ddim, cfg 2.9"};
    const demo d = demo_open(1);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const mar_params p = params_with(ways[i]);
        mar_session *s = demo_session(&d, &p, 2);
        measured_list *l = measured_session(s);
        double passes = 0;
        for (int j = 0; j < l->count; j++)
            if (strcmp(l->row[j].group, "pass") == 0 && strcmp(l->row[j].name, "image decoder") != 0)
                passes += l->row[j].flop;
        const double operations = flop_of(l, "operation");
        if (!(fabs(operations / passes - 1) < 0.02))
            fail_msg("%s: operations have %g flop, passes %g", ways[i], operations, passes);
        const double decoder = measured_get(l, "pass", "image decoder", 1)->flop;
        if (!(fabs(flop_of(l, "image decoder") / decoder - 1) < 0.02))
            fail_msg("image decoder: operations have %g flop, the pass %g", flop_of(l, "image decoder"), decoder);
        free(l);
        mar_session_free(s);
    }
    demo_close(d);
}

/* Measures a call that takes all steps at once. No later step is left to measure. */
TEST_CASE(blocks_of_steps_are_measured)
{
    const demo d = demo_open(1);
    mar_params p = params_with("num_iter 4, num_sampling_steps 8, spec cspd, gamma 8, prefill 0");
    p.draft = d.draft;
    mar_session *s = demo_session(&d, &p, 1);
    measured_list *l = measured_session(s);
    assert_true(measured_get(l, "pass", "draft", 0)->seconds > 0);
    assert_true(measured_get(l, "operation", "verify", -1)->count >= 1);
    free(l);
    mar_session_free(s);
    demo_close(d);
}

/* Checks that a batch after measuring has the tokens of an unmeasured session. Without a batch the session cannot go
 * on. */
TEST_CASE(the_session_goes_on)
{
    static float tokens[DEMO_TOKENS], again[DEMO_TOKENS];
    const demo d = demo_open(2);
    const mar_params p = quick();
    mar_session *s = demo_session(&d, &p, 1);
    demo_generate(s, 1, tokens);
    free(measured_session(s));
    assert_int_equal(mar_session_tokens(s, again), MAR_EARG);
    demo_assert_dropped(s, "the session was measured: begin a batch first");
    assert_int_equal(mar_session_step(s), MAR_EARG);
    assert_string_equal(mar_session_error(s), "the session was measured: begin a batch first");
    demo_generate(s, 1, again);
    assert_memory_equal(tokens, again, sizeof tokens);
    mar_session_free(s);
    demo_close(d);
}

/* Cancels or fails measuring at some operations. The call says so and lists nothing. The next batch is complete. */
TEST_CASE(stops_where_it_is)
{
    static float tokens[DEMO_TOKENS], again[DEMO_TOKENS];
    static const long at[] = {3, 200};
    const demo d = demo_open(1);
    const mar_params p = quick();
    mar_session *s = demo_session(&d, &p, 1);
    demo_generate(s, 1, tokens);
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        for (int broken = 0; broken < 2; broken++) {
            measured_list *l = calloc(1, sizeof *l);
            assert_non_null(l);
            spy_on(s, NULL, at[i], broken ? spy_break : spy_cancel);
            const mar_status status = mar_session_measure(s, measured_take, l);
            assert_true(spy_off() > at[i]);
            assert_int_equal(status, broken ? MAR_EBACKEND : MAR_ECANCELLED);
            assert_says(mar_session_error(s), broken ? "injected" : "cancelled");
            assert_int_equal(l->count, 0);
            free(l);
            demo_assert_dropped(s,
                                broken ? "the batch failed, begin another first: injected" : "the batch was cancelled");
            if (i == 0) free(measured_session(s)); /* measuring replaces the earlier reason */
            if (i == 0) demo_assert_dropped(s, "the session was measured: begin a batch first");
            demo_generate(s, 1, again);
            assert_memory_equal(tokens, again, sizeof tokens);
        }
    mar_session_free(s);
    demo_close(d);
}

/* Checks that the rate is plausible: a machine reads between 10 MB and 100 TB in a second. */
TEST_CASE(bandwidth)
{
    for (int threads = 1; threads <= 2; threads++) {
        mar *m = open_mar(MAR_DTYPE_F32, threads);
        double rate = 0;
        assert_library(m, mar_measure_bandwidth(m, &rate));
        if (!(rate > 1e7 && rate < 1e14)) fail_msg("%g bytes a second", rate);
        mar_close(m);
    }
}
