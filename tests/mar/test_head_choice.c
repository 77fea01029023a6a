/* --head_spec auto: the images follow from the times given, and the account of the times holds. */
#include "mar.h"
#include "mar_measure.h"
#include "tests/support/demo.h"

#include <string.h>

enum { TOKENS = DEMO_TOKENS, N = 3 };

static mar_params auto_params(const char *costs)
{
    mar_params p = plain_params();
    p.num_iter = 16, p.num_sampling_steps = 50, p.cfg = 2.9f, p.seed = 11;
    p.head_spec = -1, p.head_costs = costs;
    return p;
}

/* Makes tokens [n][TOKENS] of images first.. in one batch. */
static mar_stats make(mar_model *model, const mar_params *p, int first, int n, float *tokens)
{
    mar_session *s;
    mar_stats stats;
    int label[N];
    for (int i = 0; i < n; i++) label[i] = first + i;
    assert_library(model->m, mar_session_create(model, NULL, p, n, &s));
    assert_session(s, mar_session_begin(s, (uint64_t)first, label, n));
    demo_finish(s);
    assert_session(s, mar_session_tokens(s, tokens));
    mar_stats_init(&stats, sizeof stats);
    mar_session_get_stats(s, &stats);
    mar_session_free(s);
    return stats;
}

/* Where many states cost as many times one, the images are those of the plain chain. */
TEST_CASE(dear_states_are_the_plain_chain)
{
    const demo d = demo_open(1);
    float x[TOKENS], plain[TOKENS];
    mar_params p = auto_params("2,4,8,16,32,64");
    const mar_stats stats = make(d.model, &p, 3, 1, x);
    p.head_spec = 0, p.head_costs = NULL;
    make(d.model, &p, 3, 1, plain);
    assert_memory_equal(x, plain, sizeof x);
    assert_true(stats.undrafted == stats.tokens && stats.proposals == 0 && stats.plain_s == stats.head_s);
    demo_close(d);
}

/* An image depends on the times, and not on the batch or the images before it. */
TEST_CASE(images_stand_alone)
{
    const demo d = demo_open(1);
    float all[N * TOKENS], x[N * TOKENS], others[N * TOKENS];
    const mar_params p = auto_params("1.1,1.3,1.6,2.5"), dearer = auto_params("1.4,2.3,4,7.5");
    const mar_stats stats = make(d.model, &p, 0, N, all);
    assert_true(stats.undrafted < stats.tokens && stats.proposals > 0);
    for (int i = 0; i < N; i++) {
        make(d.model, &p, i, 1, x);
        assert_memory_equal(x, all + i * TOKENS, TOKENS * sizeof *x);
    }
    make(d.model, &dearer, 0, N, others);
    assert_true(memcmp(all, others, sizeof all) != 0);
    demo_close(d);
}

/* Measured times make the images that they make when they are given. */
TEST_CASE(measured_times_are_kept)
{
    const demo d = demo_open(1);
    mar_session *s;
    float x[TOKENS], again[TOKENS];
    const int label = 3;
    mar_params p = auto_params(NULL);
    assert_library(d.m, mar_session_create(d.model, NULL, &p, 1, &s));
    assert_session(s, mar_session_begin(s, 0, &label, 1));
    demo_finish(s);
    assert_session(s, mar_session_tokens(s, x));
    char costs[256];
    assert_non_null(mar_session_get_params(s)->head_costs);
    strcpy(costs, mar_session_get_params(s)->head_costs);
    mar_session_free(s);
    p = auto_params(costs);
    assert_library(d.m, mar_session_create(d.model, NULL, &p, 1, &s));
    assert_string_equal(mar_session_get_params(s)->head_costs, costs);
    assert_session(s, mar_session_begin(s, 0, &label, 1));
    demo_finish(s);
    assert_session(s, mar_session_tokens(s, again));
    assert_memory_equal(x, again, sizeof x);
    mar_session_free(s);
    demo_close(d);
}

/* Whatever the times are, by them an image takes at most 2 % longer than by the plain chain. The first ones promise a
 * gain that verdicts then deny. */
TEST_CASE(losses_are_bounded)
{
    static const char *const costs[] = {"1.9,3.6,6.8,10.9", "1.98,3.9,7,11", "1.2,1.5,7,13", "1,1,1,1", "1.8,3.3"};
    const demo d = demo_open(1);
    float x[N * TOKENS];
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++) {
        mar_params p = auto_params(costs[i]);
        for (int first = 0; first < 2 * N; first++) {
            if (first == N) p.num_sampling_steps = 6; /* fewer proposals are accepted */
            const mar_stats stats = make(d.model, &p, first % N, 1, x);
            const double account = stats.head_s / stats.plain_s;
            print_message("%s: %.3f of the plain chain's time, %ld of %ld tokens plain\n", costs[i], account,
                          stats.undrafted, stats.tokens);
            assert_true(stats.plain_s > 0 && account < 1.02001);
        }
    }
    demo_close(d);
}

TEST_CASE(refusals)
{
    static const struct {
        int window;
        const char *costs, *spec, *why;
    } cases[] = {
        {-1, "0.9", NULL, "--head_costs 0.9: expected the times of evaluations of 2, 4, 8, ... states"},
        {-1, "1.5,1.4", NULL, "--head_costs 1.5,1.4: expected"},
        {-1, "", NULL, "--head_costs : expected"},
        {8, "1.5", NULL, "--head_costs with --head_spec 8: expected --head_spec auto"},
        {-1, NULL, "path", "--head_spec auto with --spec path: expected --head_spec N"},
    };
    const demo d = demo_open(1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mar_session *s;
        mar_params p = auto_params(cases[i].costs);
        p.head_spec = cases[i].window, p.spec = cases[i].spec;
        assert_int_equal(mar_session_create(d.model, NULL, &p, 1, &s), MAR_EARG);
        assert_says(mar_error(d.m), cases[i].why);
    }
    mar_session *s;
    mar_params p = auto_params(NULL);
    p.draft = d.draft;
    assert_int_equal(mar_session_create(d.model, NULL, &p, 1, &s), MAR_EARG);
    assert_says(mar_error(d.m), "--head_spec auto with --draft: expected --head_spec N");
    demo_close(d);
}
