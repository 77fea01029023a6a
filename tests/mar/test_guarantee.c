/* The guarantee as facts, and that of a request, whose guidance may be another and some of whose tokens are known. */
#include "mar/core/engine.h"
#include "tests/support/demo.h"

#include <string.h>

TEST_CASE(facts)
{
    demo d = demo_open(1);
    mar_params p;
    mar_session *s;
    mar_params_init(&p, sizeof p);
    assert_library(d.m, mar_session_create(d.model, NULL, &p, 1, &s));
    const mar_guarantee *g = mar_session_get_guarantee(s);
    assert_int_equal(g->size, sizeof *g);
    assert_true(g->exact && g->departures == 0);
    assert_string_equal(g->reference, "plain sampling, 64 steps of 100");
    assert_string_equal(g->method, "");
    assert_string_equal(g->departing, "");
    assert_string_equal(mar_session_guarantee(s), "exact to: plain sampling, 64 steps of 100 (the model's defaults)");
    mar_session_free(s);

    p.num_iter = 64; /* given, and the default */
    p.head_spec = 4;
    p.temperature = 0;
    p.cfg = 30;
    p.seed = 7; /* no departure */
    assert_library(d.m, mar_session_create(d.model, NULL, &p, 1, &s));
    g = mar_session_get_guarantee(s);
    assert_true(g->exact && g->departures == 2);
    assert_string_equal(g->method, "by speculation inside the head");
    assert_string_equal(g->departing, "cfg 30 (2.9), temperature 0 (1)");
    mar_session_free(s);

    p.temperature = 1; /* the next float is another value, though it is 2.9 in six digits */
    p.cfg = 2.9000004f;
    assert_library(d.m, mar_session_create(d.model, NULL, &p, 1, &s));
    assert_string_equal(mar_session_get_guarantee(s)->departing, "cfg 2.9000003 (2.9)");
    mar_session_free(s);
    p.temperature = 0;
    p.cfg = 30;

    p.lazy = 1;
    assert_library(d.m, mar_session_create(d.model, NULL, &p, 1, &s));
    g = mar_session_get_guarantee(s);
    assert_true(!g->exact && g->departures == 2);
    assert_string_equal(g->method, "changed by lazy");
    mar_session_free(s);
    demo_close(d);
}

TEST_CASE(requests)
{
    static uint8_t known[DEMO_SEQ];
    char text[1024];
    demo d = demo_open(1);
    mar_params p;
    mar_session *s;
    mar_request r;
    mar_params_init(&p, sizeof p);
    assert_library(d.m, mar_session_create(d.model, NULL, &p, 1, &s));
    mar_request_init(s, &r, sizeof r);
    assert_string_equal(mar_session_request_guarantee(s, &r, text, sizeof text), mar_session_guarantee(s));
    r.cfg = 30;
    assert_string_equal(mar_session_request_guarantee(s, &r, text, sizeof text),
                        "exact to: plain sampling, 64 steps of 100; not the model's defaults: cfg 30 (2.9)");
    r.cfg = 2.9f;
    r.known = known;
    assert_string_equal(mar_session_request_guarantee(s, &r, text, sizeof text),
                        "exact to: plain sampling of the unknown tokens, 64 steps of 100 (the model's defaults)");
    mar_session_free(s);
    demo_close(d);
}

/* The list has room for all options of plain sampling, with their longest values. */
TEST_CASE(all_departures)
{
    demo d = demo_open(1);
    mar_params p;
    mar_session *s;
    mar_params_init(&p, sizeof p);
    p.num_iter = 63;
    p.num_sampling_steps = 99;
    p.cfg_schedule = MAR_CFG_CONSTANT;
    p.cfg = 1.23456789e-5f;
    p.temperature = 1.23456789e-5f;
    assert_library(d.m, mar_session_create(d.model, NULL, &p, 1, &s));
    const mar_guarantee *g = mar_session_get_guarantee(s);
    assert_int_equal(g->departures, 5);
    assert_string_equal(g->departing, "num_iter 63 (64), num_sampling_steps 99 (100), cfg 1.23457e-05 (2.9), "
                                      "cfg_schedule constant (linear), temperature 1.23457e-05 (1)");
    mar_session_free(s);
    demo_close(d);
}

/* Automatic values are those of the model's configuration, whatever they are; given ones are used as they are. */
TEST_CASE(automatic_values_are_the_models)
{
    demo d = demo_open(1);
    mar_params p;
    mar_session *s;
    d.model->config.num_iter = 5;
    d.model->config.cfg = 3;
    d.model->config.cfg_schedule = MAR_CFG_CONSTANT;
    mar_params_init(&p, sizeof p);
    assert_true(p.num_iter == 0 && p.cfg == -1 && p.cfg_schedule == MAR_CFG_AUTO);
    assert_library(d.m, mar_session_create(d.model, NULL, &p, 1, &s));
    const mar_params *used = mar_session_get_params(s);
    assert_true(used->num_iter == 5 && used->cfg == 3 && used->cfg_schedule == MAR_CFG_CONSTANT);
    assert_string_equal(mar_session_guarantee(s), "exact to: plain sampling, 5 steps of 100 (the model's defaults)");
    mar_session_free(s);
    p.num_iter = 4, p.cfg = 0, p.cfg_schedule = MAR_CFG_LINEAR;
    assert_library(d.m, mar_session_create(d.model, NULL, &p, 1, &s));
    used = mar_session_get_params(s);
    assert_true(used->num_iter == 4 && used->cfg == 0 && used->cfg_schedule == MAR_CFG_LINEAR);
    assert_string_equal(mar_session_get_guarantee(s)->departing,
                        "num_iter 4 (5), cfg 0 (3), cfg_schedule linear (constant)");
    mar_session_free(s);
    demo_close(d);
}
