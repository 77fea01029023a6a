/* The sampler over LlamaGen's runner. At temperature 0 every exact method makes the greedy tokens of generate.py, for
 * any drafts. It takes fewer passes than tokens. */
#include "specdec/sampler.h"
#include "tests/support/discrete.h"
#include "tests/support/causal_fixture.h"

#include <stdlib.h>
#include <string.h>

enum { IMAGES = 2, TOKENS = 64, DRAFTS = 100 };

static const int label[IMAGES] = {3, 0};
static const causal_sampling greedy = {.cfg = 2.5f, .cfg_interval = -1, .temperature = 0, .top_p = 1};

/* A drafting method. The draft model is the target's weights without guidance. It is right about half of the time. */
typedef struct {
    const char *method; /* NULL: plain */
    int drafts;         /* 1: a draft model with point distributions; 2: a draft model with its softmax */
    spec_sampler_options options;
} way;

/* Returns the number of rounds. */
static long sample(const way *w, const int *expected)
{
    spec_sampler_options options = w->options;
    causal_sampling alone = greedy;
    causal_fixture f;
    causal_runner *drafter = NULL;
    spec_sampler *s = NULL;
    mar_err err = {0};
    double parameter[SPEC_PARAMETERS_MAX];
    alone.cfg = 1;
    if (w->drafts == 2) alone.temperature = 1;
    assert_true(
        causal_fixture_open(&f, open_queue(MAR_DTYPE_F32, 2), "llamagen_c2i", 0, &greedy, IMAGES, DRAFTS, 0, 1));
    options.method = w->method ? spec_method_find(w->method) : NULL;
    for (int i = 0; options.method && options.method->parameters[i].name; i++)
        parameter[i] = options.method->parameters[i].value;
    options.parameter = parameter;
    options.side = 8;
    assert_ok(causal_runner_create(f.k, f.model, &alone, IMAGES, DRAFTS, 0, &drafter, &err), &err);
    const spec_model target = {f.vocabulary, f.runner, causal_runner_log_probs, NULL},
                     draft = {f.vocabulary, drafter, causal_runner_log_probs, NULL};
    assert_ok(spec_sampler_create(f.k, &target, w->drafts ? &draft : NULL, &options, IMAGES, TOKENS, &s, &err), &err);
    assert_true(spec_sampler_target_drafts(s) <= DRAFTS && spec_sampler_draft_drafts(s) <= DRAFTS);
    void *memory = backend_memory(f.k, causal_runner_lay_out(drafter, NULL));
    void *others = backend_memory(f.k, spec_sampler_lay_out(s, NULL));
    causal_runner_lay_out(drafter, memory);
    spec_sampler_lay_out(s, others);
    causal_runner_begin(f.runner, IMAGES, label);
    causal_runner_begin(drafter, IMAGES, label);
    sampling_begin(s, &(spec_start){.n = TOKENS}, IMAGES);
    while (spec_sampler_running(s) > 0) assert_ok(spec_sampler_round(s, &err), &err);
    for (int i = 0; i < IMAGES; i++)
        assert_memory_equal(spec_sampler_tokens(s, i), expected + i * TOKENS, TOKENS * sizeof *expected);
    const spec_sampler_stats *stats = spec_sampler_get_stats(s);
    /* One pass a call. With drafts there is also one for the prefixes, in place of the first distribution's. */
    assert_int_equal(causal_runner_get_stats(f.runner)->passes, (w->drafts || w->method) + stats->calls);
    if (w->method) assert_true(stats->accepted > 0 && stats->calls < TOKENS);
    if (w->drafts) assert_int_equal(causal_runner_get_stats(drafter)->passes, stats->draft_calls);
    const long rounds = stats->rounds;
    spec_sampler_free(s);
    causal_runner_free(drafter);
    f.k->core->free(f.k->device, memory);
    f.k->core->free(f.k->device, others);
    causal_fixture_close(&f);
    return rounds;
}

/* Reads the greedy tokens of generate.py with guidance. */
static void read_expected(int *expected)
{
    wt_file *golden = golden_open("llamagen");
    float *values = golden_f32(golden, "c2i.greedy_guided", IMAGES * TOKENS);
    for (int i = 0; i < IMAGES * TOKENS; i++) expected[i] = (int)values[i];
    free(values);
    wt_close(golden);
}

static int choose_cycling(const spec_choice *c, const spec_past *past)
{
    (void)c;
    return 9 - past->rounds % 4 * 3;
}

TEST_CASE(greedy_tokens)
{
    static const spec_choice cycling = {.choose = choose_cycling};
    static const int tree[] = {-1, -1, -1, 0, 0, 1, 3, 3, 6};
    static const way ways[] = {
        {NULL, 0, {.length = 1}},
        {"vanilla", 1, {.length = 4}},
        {"vanilla", 1, {.length = 4, .parent = tree, .count = 9}},
        {"vanilla", 1, {.length = 4, .top = 3, .total = 12}},
        {"sjd", 0, {.length = 16, .first = SPEC_FIRST_LEFT}},
        {"sjd-pac", 0, {.length = 8, .first = SPEC_FIRST_UNIFORM}},
        {"scd", 0, {.length = 8, .first = SPEC_FIRST_UNIFORM}},
        {"sjd-pac", 0, {.length = 9, .first = SPEC_FIRST_LEFT, .choice = &cycling}},
        {"vanilla", 1, {.length = 4, .choice = &cycling}},
        {"vanilla", 1, {.length = 4, .top = 3, .total = 12, .choice = &cycling}},
    };
    int expected[IMAGES * TOKENS];
    read_expected(expected);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) sample(&ways[i], expected);
}

/* At temperature 0 a draft's distribution is a point, and a tree of it is a chain. A tree of the softmax's likeliest
 * tokens saves rounds against a chain of its depth. */
TEST_CASE(greedy_trees)
{
    static int tree[4 + 8 + 8];
    for (int n = 0; n < 20; n++) tree[n] = n < 4 ? -1 : n < 12 ? (n - 4) / 2 : n - 8; /* 4,2,1 */
    const way chain = {"vanilla", 1, {.length = 3}},
              by_levels = {"vanilla", 2, {.length = 3, .parent = tree, .count = 20, .likeliest = 1}},
              dynamic = {"vanilla", 2, {.length = 3, .top = 4, .total = 20}};
    int expected[IMAGES * TOKENS];
    read_expected(expected);
    const long alone = sample(&chain, expected), levels = sample(&by_levels, expected);
    const long wide = sample(&dynamic, expected);
    if (!(levels < 0.95 * (double)alone && wide < 0.95 * (double)alone))
        fail_msg("rounds: chain %ld, 4,2,1 %ld, dynamic %ld", alone, levels, wide);
}
