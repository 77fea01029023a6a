/* Tests a cancel or a failure before operations of every accelerator. It ends the current call and leaves nothing
 * behind. */
#include "tests/support/demo.h"
#include "tests/support/spy.h"

#include <string.h>

enum { IMAGES = 2, TOKENS = DEMO_TOKENS, SEQ = DEMO_SEQ };

static const char lazy_model[] = "tests/golden/data/lazy_small.safetensors"; /* deep enough to prune rows */

/* Runs in addition to demo_runs. */
static const struct {
    const char *options;
    int draft;        /* 1: the draft model; -1: none, and lazy_model as target */
    const char *only; /* disturb this operation alone */
} others[] = {
    {"num_iter 23, num_sampling_steps 2, cfg 2.9, lazy on", -1, NULL},
    {"num_iter 23, num_sampling_steps 2, cfg 2.9, lazy on", -1, "similarity"},
    {"gtr on, gtr_generation_steps 3, num_sampling_steps 8, gtr_sampling_steps 4, cfg 2.9", 0, "download"},
    {"num_iter 4, cfg 2.9, head_spec 4, diff_annealing linear, diff_upper_steps 9", 0, "upload"},
    {"num_iter 4, num_sampling_steps 12, cfg 2.9, head_spec 4", 0, "speculate_propose"},
    {"num_iter 6, num_sampling_steps 4, cfg 2.9, spec cspd, gamma 3, context full", 1, "download"},
    {"num_iter 6, num_sampling_steps 4, cfg 2.9, spec path, gamma 4", 0, NULL},
    {"num_iter 6, num_sampling_steps 4, cfg 2.9, spec path, gamma 3, context full", 1, NULL},
};
enum { OTHERS = sizeof others / sizeof *others };

/* Drops a batch after its first step, then cancels or fails one at some of its operations. The next batch must equal a
 * fresh session's. */
static void disturb(const demo *d, const mar_params *p, const char *options, const char *only)
{
    enum { PLACES = 4 };
    float expected[IMAGES * TOKENS], tokens[IMAGES * TOKENS] = {0};
    const size_t bytes = IMAGES * SEQ * (size_t)d->model->config.token_dim * sizeof *tokens;
    mar_session *alone = demo_session(d, p, IMAGES), *s = demo_session(d, p, IMAGES);
    demo_generate(alone, IMAGES, expected);
    mar_session_free(alone);
    assert_session(s, mar_session_begin(s, 90, (int[]){2}, 1));
    assert_session(s, mar_session_step(s));
    demo_generate(s, IMAGES, tokens);
    if (memcmp(tokens, expected, bytes) != 0) fail_msg("%s: other tokens after a dropped batch", options);
    spy_on(s, only, -1, NULL); /* the first batch does more work */
    assert_session(s, demo_run(s, IMAGES));
    const long all = spy_off();
    assert_in_range(all, 1, 100000);
    for (int i = 0; i < 2 * PLACES; i++) {
        const int fails = i % 2;
        spy_on(s, only, (all - 1) * (i / 2) / (PLACES - 1), fails ? spy_break : spy_cancel);
        const mar_status status = demo_run(s, IMAGES);
        spy_off();
        if (status != (fails ? MAR_EBACKEND : MAR_ECANCELLED))
            fail_msg("%s: at %ld of %ld: %s", options, spy.at, all, mar_status_name(status));
        demo_assert_dropped(s, fails ? "failed, begin another first: injected" : "cancelled: begin another");
        memset(tokens, 0, sizeof tokens);
        demo_generate(s, IMAGES, tokens);
        if (memcmp(tokens, expected, bytes) != 0)
            fail_msg("%s: other tokens after %s at %ld of %ld", options, fails ? "a failure" : "a cancel", spy.at, all);
    }
    mar_session_free(s);
}

TEST_CASE(any_operation_can_be_the_last)
{
    demo l = demo_open(1), small = {.m = l.m}, fast = l;
    fast.model = l.draft; /* as target where nothing drafts */
    assert_library(l.m, mar_model_load(l.m, lazy_model, 0, &small.model));
    for (int i = 0; i < DEMO_RUNS; i++) {
        const mar_params p = demo_params(&l, i);
        disturb(demo_runs[i].draft ? &l : &fast, &p, demo_runs[i].options, NULL);
    }
    for (int i = 0; i < OTHERS; i++) {
        mar_params p = params_with(others[i].options);
        if (others[i].draft > 0) p.draft = l.draft;
        disturb(others[i].draft < 0 ? &small : others[i].draft ? &l : &fast, &p, others[i].options, others[i].only);
    }
    mar_model_free(small.model);
    demo_close(l);
}

/* Checks that a failure in one session does not affect other sessions of the same model. */
TEST_CASE(others_go_on)
{
    const demo l = demo_open(2);
    const mar_params p = params_with(demo_runs[0].options);
    float expected[IMAGES * TOKENS], tokens[IMAGES * TOKENS];
    mar_session *alone = demo_session(&l, &p, IMAGES);
    demo_generate(alone, IMAGES, expected);
    mar_session_free(alone);
    mar_session *bad = demo_session(&l, &p, IMAGES), *good = demo_session(&l, &p, IMAGES);
    demo_begin(good, IMAGES);
    assert_session(good, mar_session_step(good));
    spy_on(bad, NULL, 40, spy_break);
    assert_int_equal(demo_run(bad, IMAGES), MAR_EBACKEND);
    spy_off();
    assert_says(mar_session_error(bad), "injected");
    demo_finish(good);
    assert_session(good, mar_session_tokens(good, tokens));
    assert_memory_equal(tokens, expected, sizeof tokens);
    assert_string_equal(mar_session_error(good), "");
    assert_string_equal(mar_error(l.m), "");
    mar_session *later = demo_session(&l, &p, IMAGES);
    demo_generate(later, IMAGES, tokens);
    assert_memory_equal(tokens, expected, sizeof tokens);
    mar_session_free(later);
    mar_session_free(good);
    mar_session_free(bad);
    demo_close(l);
}
