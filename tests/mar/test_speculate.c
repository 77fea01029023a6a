/* Tests speculation across tokens: exactness, equality to the bit, and the released code's criterion. */
#include "eval/statistics.h"
#include "mar.h"
#include "mar_measure.h"
#include "mar/accel/spec.h"
#include "tests/support/brief.h"
#include "tests/support/demo.h"
#include "tests/support/masked.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ = DEMO_SEQ, CHANNELS = DEMO_CHANNELS, TOKENS = DEMO_TOKENS, CLASSES = 10 };

static mar_params params_of(mar_model *draft, const char *spec, mar_context context, int gamma, float prefill)
{
    mar_params p = plain_params();
    p.num_iter = 8, p.num_sampling_steps = 20, p.cfg = 2.9f, p.seed = 11;
    p.draft = draft, p.spec = spec, p.context = context, p.gamma = gamma, p.prefill = prefill;
    return p;
}

static mar_speculation *speculation_of(mar_session *s)
{
    return mar_masked_state(mar_masked_of(s), &mar_accel_spec);
}

static mar_session *begin(mar_model *target, const mar_params *p, int first, int n)
{
    mar_session *s;
    int *labels = malloc((size_t)n * sizeof *labels);
    for (int i = 0; i < n; i++) labels[i] = (first + i) % CLASSES;
    assert_library(target->m, mar_session_create(target, NULL, p, n, &s));
    assert_session(s, mar_session_begin(s, (uint64_t)first, labels, n));
    free(labels);
    return s;
}

/* Generates tokens of images first.. [n][TOKENS], in one batch. stats may be NULL. */
static void generate(mar_model *target, const mar_params *p, int first, int n, float *tokens, mar_stats *stats)
{
    mar_session *s = begin(target, p, first, n);
    demo_finish(s);
    assert_session(s, mar_session_tokens(s, tokens));
    if (stats) {
        mar_stats_init(stats, sizeof *stats);
        mar_session_get_stats(s, stats);
    }
    mar_session_free(s);
}

static const char *const methods[] = {"conditional", "paper", "cspd"};

/* --- the same to the bit --- */

/* Checks that a model that drafts for itself in the same context is always accepted. The image equals the one without a
 * draft. */
TEST_CASE(own_draft_is_accepted)
{
    static const struct {
        mar_context context;
        int gamma;
        float prefill;
    } cases[] = {
        {MAR_CONTEXT_PREFIX, 1, 0}, {MAR_CONTEXT_FULL, 1, 0.3f}, {MAR_CONTEXT_FULL, 3, 0}, {MAR_CONTEXT_FULL, 8, 0.1f}};
    enum { N = 3 };
    demo d = demo_open(1);
    float plain[N * TOKENS], tokens[N * TOKENS];
    const mar_params alone = params_of(NULL, NULL, MAR_CONTEXT_PREFIX, 8, 0);
    generate(d.draft, &alone, 5, N, plain, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int method = 0; method < 3; method++) {
            const mar_params p =
                params_of(d.draft, methods[method], cases[i].context, cases[i].gamma, cases[i].prefill);
            mar_stats stats;
            generate(d.draft, &p, 5, N, tokens, &stats);
            assert_true(stats.drafted > 0);
            assert_int_equal(stats.accepted, stats.drafted);
            assert_memory_equal(tokens, plain, sizeof plain);
        }
    demo_close(d);
}

/* Runs the target at the steps that speculation in context prefix amounts to. These are `prefill` steps of the plan,
 * then blocks of gamma steps at once. Makes one image. */
static void coarse_run(mar_model *target, const mar_params *p, int prefill, int image, float *tokens)
{
    mar_err reason = {0}, *err = &reason;
    kern_queue *k = queue_of(target->m);
    mar_step steps[SEQ];
    int order[SEQ], position[SEQ], slot[SEQ] = {0};
    const int label = image % CLASSES, *orders[1] = {order};
    float cfg[SEQ];
    uint64_t seeds[SEQ], images[SEQ];
    float *x;
    mar_runner r;
    assert_ok(plain_runner(k, target, 1, 2, SEQ, p, &r, err), err);
    void *memory = backend_memory(k, mar_runner_lay_out(&r, NULL));
    mar_runner_lay_out(&r, memory);
    x = backend_memory(k, TOKENS * sizeof(float));
    mar_steps_plan(p->num_iter, SEQ, p->cfg, p->cfg_schedule, steps);
    kern_random_order(p->seed, (uint64_t)image, SEQ, order);
    mar_runner_begin(&r, 1, &label);
    for (int i = 0, last; i < p->num_iter; i = last + 1) {
        last = i < prefill ? i : i + p->gamma - 1 < p->num_iter ? i + p->gamma - 1 : p->num_iter - 1;
        const int known = steps[i].known, until = steps[last].known + steps[last].predicted;
        const mar_step step = {.known = known, .predicted = until - known, .cfg_branches = r.net.cfg_branches};
        for (int t = 0; t < step.predicted; t++) {
            const int place = SEQ - until + t;
            int of = i;
            while (place < SEQ - steps[of].known - steps[of].predicted) of++;
            position[t] = order[place], seeds[t] = p->seed, images[t] = (uint64_t)image, cfg[t] = steps[of].cfg;
        }
        const mar_batch batch = {.images = 1, .order = orders};
        const mar_draw draw = {
            .count = step.predicted, .seed = seeds, .image = images, .position = position, .cfg = cfg};
        assert_ok(mar_runner_plan(&r, 1, &step, err), err);
        assert_ok(diff_chain_plan(&r.chain, step.predicted, err), err);
        mar_runner_predict(&r, &batch, &step, 0, step.predicted, NULL);
        mar_runner_draw(&r, 0, &draw, p->num_sampling_steps - 1, 0, x, NULL, NULL);
        masked_runner_add_known_tokens(&r.net, x, step.predicted, slot, position, NULL);
        for (int t = 0; t < step.predicted; t++)
            k->core->download(k, tokens + position[t] * CHANNELS, x + t * CHANNELS, CHANNELS * sizeof(float));
    }
    k->core->free(k->device, x);
    k->core->free(k->device, memory);
    mar_runner_free(&r);
    free_queue(k);
}

/* Checks the case without noise at the verified step. There only one state is right, whatever was drafted: the target's
 * at coarser steps. */
TEST_CASE(prefix_is_the_target_at_coarser_steps)
{
    static const struct {
        int gamma, prefill;
    } cases[] = {{1, 0}, {2, 0}, {3, 1}, {5, 4}, {8, 0}, {8, 7}, {8, 8}};
    demo d = demo_open(1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int align = 0; align < 2; align++) {
            mar_params p = params_of(align ? d.model : d.draft, "conditional", MAR_CONTEXT_PREFIX, cases[i].gamma,
                                     (float)cases[i].prefill / 8);
            float tokens[TOKENS], expected[TOKENS];
            p.temperature = 0;
            p.align = align;
            generate(d.model, &p, 7, 1, tokens, NULL);
            coarse_run(d.model, &p, cases[i].prefill, 7, expected);
            assert_memory_equal(tokens, expected, sizeof tokens);
        }
    demo_close(d);
}

/* Generates images first.. [n][TOKENS] in batches of at most `batch`, with a handle of `threads` threads. */
static void in_batches(mar_dtype dtype, int threads, int batch, int n, const char *spec, int context, float *tokens)
{
    demo d = demo_open_in(dtype, threads);
    if (!d.m) return; /* no bf16 here */
    /* Some tokens are accepted. In context full images advance at different rates. */
    mar_params p = params_of(context ? d.draft : d.model, spec, (mar_context)context, 4, 0.1f);
    p.num_iter = 6, p.num_sampling_steps = 5;
    p.inner_temperature = 400;
    for (int i = 0; i < n; i += batch)
        generate(d.model, &p, 100 + i, n - i < batch ? n - i : batch, tokens + i * TOKENS, NULL);
    demo_close(d);
}

TEST_CASE(batch_and_threads_do_not_matter)
{
    enum { N = 4 };
    for (int method = 0; method < 3; method++)
        for (int context = 0; context < 2; context++)
            for (int bf16 = 0; bf16 <= (method == 2); bf16++) {
                const mar_dtype dtype = bf16 ? MAR_DTYPE_BF16 : MAR_DTYPE_F32;
                float one[N * TOKENS] = {0}, three[N * TOKENS] = {0}, four[N * TOKENS] = {0};
                in_batches(dtype, 1, 1, N, methods[method], context, one);
                in_batches(dtype, 1, 3, N, methods[method], context, three);
                in_batches(dtype, 2, 4, N, methods[method], context, four);
                assert_memory_equal(three, one, sizeof one);
                assert_memory_equal(four, one, sizeof one);
            }
}

/* --- bookkeeping --- */

static void check_counts(mar_model *target, const mar_params *p, int prefill)
{
    enum { N = 2 };
    mar_session *s = begin(target, p, 0, N);
    mar_step steps[SEQ];
    mar_stats stats = {.size = sizeof stats};
    uint8_t fate[N * SEQ];
    int born[N * SEQ], late[N * SEQ], made[SEQ] = {0}, of_fate[3] = {0};
    mar_steps_plan(p->num_iter, SEQ, p->cfg, p->cfg_schedule, steps);
    for (int left = p->num_iter; !mar_session_done(s); left = mar_session_steps_left(s)) {
        assert_int_equal(left, mar_session_steps_left(s));
        assert_session(s, mar_session_step(s));
        assert_true(mar_session_steps_left(s) < left);
    }
    mar_session_get_stats(s, &stats);
    assert_session(s, mar_session_token_status(s, fate, born));
    for (int i = 0; i < N * SEQ; i++) {
        of_fate[fate[i]]++;
        made[born[i]]++;
        assert_int_equal(fate[i] == MAR_TOKEN_TARGET, born[i] < prefill);
    }
    for (int i = 0; i < p->num_iter; i++) assert_int_equal(made[i], N * steps[i].predicted);
    assert_int_equal(stats.accepted, of_fate[MAR_TOKEN_ACCEPTED]);
    assert_int_equal(stats.drafted, of_fate[MAR_TOKEN_ACCEPTED] + of_fate[MAR_TOKEN_REPLACED]);
    assert_int_equal(stats.tokens, N * SEQ);
    assert_true(stats.residual_tries >= of_fate[MAR_TOKEN_REPLACED] || p->temperature == 0);
    assert_int_equal(stats.round_steps, N * (p->num_iter - prefill));
    const int blocks = (p->num_iter - prefill + p->gamma - 1) / p->gamma;
    if (p->context == MAR_CONTEXT_PREFIX) assert_int_equal(stats.rounds, N * blocks);
    assert_true(stats.rounds >= N * blocks && stats.rounds <= stats.round_steps);
    assert_int_equal((long)stats.head_calls, (long)N * SEQ * p->num_sampling_steps);
    assert_int_equal(stats.head_calls_max, p->num_sampling_steps);
    assert_true(stats.head_rows >= stats.head_calls);
    if (p->context == MAR_CONTEXT_PREFIX) assert_true(stats.head_rows == stats.head_calls);
    assert_int_equal(stats.draft_flop > 0, prefill < p->num_iter); /* the draft runs only for speculation */
    if (p->context == MAR_CONTEXT_PREFIX) {
        assert_true(stats.passes == prefill + blocks);
        assert_true(stats.contexts == N * stats.passes);
    } else { /* passes of blocks are of one image */
        assert_true(stats.contexts - N * prefill == stats.passes - prefill);
        assert_true(stats.contexts >= N * p->num_iter);
    }
    assert_session(s, mar_session_staleness(s, late));
    for (int i = 0; i < N * SEQ; i++) assert_int_equal(late[i], 0);
    mar_session_free(s);
}

TEST_CASE(counts)
{
    static const struct {
        int iter, gamma;
        float prefill;
        int prefill_steps;
        float temperature, cfg;
    } cases[] = {
        {8, 4, 0, 0, 1, 2.9f},   {8, 4, 0.05f, 1, 1, 2.9f}, {20, 20, 0.15f, 3, 1, 1}, {8, 3, 0.5f, 4, 0, 2.9f},
        {1, 1, 0, 0, 1, 2.9f},   {1, 1, 1, 1, 1, 1},        {8, 8, 1, 8, 1, 2.9f},    {8, 5, 0.9f, 8, 1, 2.9f},
        {30, 7, 0.05f, 2, 1, 1}, {8, 1, 0, 0, 0, 1},
    };
    demo d = demo_open(1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int context = 0; context < 2; context++) {
            const int method = ((int)i + context) % 3;
            mar_params p = params_of(d.draft, methods[method], (mar_context)context, cases[i].gamma, cases[i].prefill);
            p.num_iter = cases[i].iter, p.temperature = cases[i].temperature, p.cfg = cases[i].cfg;
            p.num_sampling_steps = 4, p.align = method != 1, p.inner_temperature = 1000;
            check_counts(d.model, &p, cases[i].prefill_steps);
        }
    demo_close(d);
}

/* Heats the draft: it nearly agrees, but its paths have 3 % more noise in every step. */
static void heat_draft(mar_session *s)
{
    diff_chain *c = &speculation_of(s)->draft->runner.chain;
    c->temperature = 1.03f;
    for (int i = 1; i < c->schedule.steps; i++) c->schedule.coef[i].noise = c->temperature;
}

/* Checks that in context full a round ends with the first step in which a token is replaced. */
TEST_CASE(full_stops_at_a_replacement)
{
    int ends[2] = {0};
    demo d = demo_open(1);
    mar_params p = params_of(d.model, "conditional", MAR_CONTEXT_FULL, 3, 0);
    p.num_iter = 30, p.num_sampling_steps = 8;
    for (int image = 0; image < 4; image++) {
        mar_session *s = begin(d.model, &p, image, 1);
        heat_draft(s);
        check_rounds(s, SEQ, p.num_iter, 3, ends);
        mar_session_free(s);
    }
    assert_true(ends[0] > 0 && ends[1] > 0);
    demo_close(d);
}

/* Checks that prefill of all steps leaves no speculation: the target alone. */
TEST_CASE(prefill_of_all_is_the_target)
{
    float plain[2 * TOKENS], tokens[2 * TOKENS];
    demo d = demo_open(1);
    const mar_params alone = params_of(NULL, NULL, MAR_CONTEXT_PREFIX, 8, 0);
    const mar_params p = params_of(d.draft, "cspd", MAR_CONTEXT_PREFIX, 8, 1);
    generate(d.model, &alone, 0, 2, plain, NULL);
    generate(d.model, &p, 0, 2, tokens, NULL);
    assert_memory_equal(tokens, plain, sizeof plain);
    demo_close(d);
}

/* Checks the shift of accepted tokens. In context full they are near the draft's, not equal to the bit. cspd keeps the
 * draft's. */
TEST_CASE(shift_of_accepted_tokens)
{
    demo d = demo_open(1);
    for (int method = 0; method < 3; method++) {
        mar_params p = params_of(d.draft, methods[method], MAR_CONTEXT_FULL, 4, 0);
        p.inner_temperature = 400;
        mar_session *s = begin(d.model, &p, 0, 6);
        demo_finish(s);
        mar_stats stats = {.size = sizeof stats};
        mar_session_get_stats(s, &stats);
        assert_true(stats.accepted > 0);
        const double shift = stats.accepted_shift;
        if (method == 2)
            assert_true(shift == 0);
        else
            assert_true(shift > 0 && shift < 0.01); /* tokens have a standard deviation of 1 */
        mar_session_free(s);
    }
    demo_close(d);
}

TEST_CASE(guarantees)
{
    demo d = demo_open(1);
    const struct {
        mar_params params;
        const char *says;
    } cases[] = {
        {params_of(d.draft, NULL, MAR_CONTEXT_AUTO, 8, 0),
         "of whole paths, by criterion path with drafts of the draft model; an accepted token is"},
        {params_of(d.draft, NULL, MAR_CONTEXT_PREFIX, 8, 0),
         "approximate: criterion path, context prefix: each block is drawn in the context before it, 1 in place of 8 "
         "contexts; relative to plain sampling, 8 steps of "},
        {params_of(d.draft, "conditional", MAR_CONTEXT_AUTO, 8, 0),
         "approximate: criterion conditional, context prefix: each block is drawn in the context before it, 1 in place "
         "of 8 contexts"},
        {params_of(d.draft, "conditional", MAR_CONTEXT_PREFIX, 3, 0.25f), "4 in place of 8 contexts"},
        {params_of(d.draft, "conditional", MAR_CONTEXT_PREFIX, 1, 0),
         ", by criterion conditional, context prefix with one step a block"},
        {params_of(d.draft, "conditional", MAR_CONTEXT_FULL, 3, 0.25f),
         "approximate: criterion conditional, context full"},
        {params_of(d.draft, "paper", MAR_CONTEXT_PREFIX, 3, 0.25f), "approximate: criterion paper"},
        {params_of(d.draft, "cspd", MAR_CONTEXT_FULL, 3, 0.25f), "approximate: criterion cspd"},
        {params_of(d.draft, "cspd", MAR_CONTEXT_FULL, 3, 1),
         ", by the model alone, which with prefill 1 makes every step"},
        {params_of(NULL, NULL, MAR_CONTEXT_FULL, 3, 1), "exact to: plain sampling, 8 steps of "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mar_session *s = begin(d.model, &cases[i].params, 0, 1);
        if (!strstr(mar_session_guarantee(s), cases[i].says))
            fail_msg("\"%s\" does not say \"%s\"", mar_session_guarantee(s), cases[i].says);
        mar_session_free(s);
    }
    demo_close(d);
}

TEST_CASE(refuses)
{
    demo d = demo_open(1), other = demo_open(1);
    mar_model *small;
    assert_library(d.m, mar_model_load(d.m, "tests/golden/data/mar_small.safetensors", 0, &small));
    const mar_params good = params_of(d.draft, "cspd", MAR_CONTEXT_PREFIX, 8, 0);
    mar_params bad[6] = {good, good, good, good, good, good};
    bad[0].spec = "vanilla", bad[1].spec = "speculative", bad[2].draft = other.draft, bad[3].draft = small;
    bad[4].draft = NULL, bad[5].head_spec = 4;
    static const char *const says[6] = {
        "--spec vanilla verifies discrete tokens, but the model's are continuous: expected path, conditional, paper or "
        "cspd",
        "--spec speculative: expected",
        "different handles",
        "the draft makes 16 tokens of 6 channels, expected the model's 64 of 8",
        "--spec cspd: needs --draft",
        "--head_spec and --spec cspd do not go together: --head_spec changes the chain, which --spec cspd needs "
        "unchanged; expected one of",
    };
    for (int i = 0; i < 6; i++) {
        mar_session *s;
        assert_int_not_equal(mar_session_create(d.model, NULL, &bad[i], 1, &s), MAR_OK);
        assert_null(s);
        if (!strstr(mar_error(d.m), says[i])) fail_msg("\"%s\" does not say \"%s\"", mar_error(d.m), says[i]);
    }
    mar_model_free(small);
    demo_close(other);
    demo_close(d);
}

/* --- the same in distribution --- */

/* Verified states are standardised by the target's distribution at the verified step. They are then independent
 * standard normals, whatever the draft. A further coordinate lies along the gap of the two means, where errors show
 * first. */
enum { COORDINATES = CHANNELS + 1, IMAGES = test_all ? 208 : 104, ROWS = IMAGES * SEQ, PERMUTATIONS = 499 };

/* Returns a host copy of a backend array of `count` elements. The caller frees it. */
static void *fetch(mar_session *s, const void *array, size_t count, size_t size)
{
    kern_queue *k = mar_masked_of(s)->k;
    void *host = malloc(count * size);
    assert_non_null(host);
    k->core->download(k, host, array, count * size);
    return host;
}

/* A block's distributions and verified states: [rows][CHANNELS] */
typedef struct {
    float *mean_p, *log_std_p, *mean_q, *state;
} block;

static block fetch_block(mar_session *s)
{
    const mar_speculation *sp = speculation_of(s);
    const size_t count = (size_t)sp->rows * CHANNELS, size = sizeof(float);
    return (block){fetch(s, sp->block.p.mean, count, size), fetch(s, sp->block.p.log_std, count, size),
                   fetch(s, sp->block.q.mean, count, size), fetch(s, sp->block.state, count, size)};
}

/* Writes a standardised state and its coordinate along the gap: float [COORDINATES]. */
static void project(const block *b, int row, const double *u, float *out)
{
    double along = 0, length = 0;
    for (int c = 0; c < CHANNELS; c++) {
        const int i = row * CHANNELS + c;
        const double gap = ((double)b->mean_q[i] - b->mean_p[i]) * exp(-(double)b->log_std_p[i]);
        out[c] = (float)u[c];
        along += gap * u[c];
        length += gap * gap;
    }
    out[CHANNELS] = (float)(length > 0 ? along / sqrt(length) : u[0]);
}

/* Collects the verified state of every row. Also collects standard normals from an address that no session uses. These
 * stand for states drawn from the target's distribution. */
static void collect(mar_session *s, float *states, float *noise)
{
    const mar_masked *g = mar_masked_of(s);
    const block b = fetch_block(s);
    for (int r = 0; r < speculation_of(s)->rows; r++) {
        double u[CHANNELS], plain[CHANNELS];
        const uint64_t place = g->row_image[r] * SEQ + (uint64_t)g->row_position[r];
        for (int c = 0; c < CHANNELS; c++) {
            const int i = r * CHANNELS + c;
            uint32_t words[4];
            float normal[4];
            kern_random_words(4711, KERN_NOISE_STEP, place, 0, 0, (uint32_t)c / 4, words);
            kern_normal4(words, normal);
            u[c] = ((double)b.state[i] - b.mean_p[i]) * exp(-(double)b.log_std_p[i]);
            plain[c] = (double)normal[c % 4];
        }
        project(&b, r, u, states + place * COORDINATES);
        project(&b, r, plain, noise + place * COORDINATES);
    }
    free(b.mean_p), free(b.log_std_p), free(b.mean_q), free(b.state);
}

/* Runs the smaller model as its own heated draft, two steps a block. Returns the least p-value of the tests that the
 * method's states are standard normals, corrected for their number. An exact method gets a value below 0.01 at most
 * once in 100 seeds. Returns 0 if the states grow until they are not finite; normal states never do. States are
 * independent, so four images form one of 256 tokens, which saves O(images^2). */
static double law_p_value(demo d, const spec_method *method, mar_stats *stats)
{
    float *states = calloc((size_t)ROWS * COORDINATES, sizeof *states);
    float *noise = calloc((size_t)ROWS * COORDINATES, sizeof *noise);
    mar_params p = params_of(d.draft, "conditional", MAR_CONTEXT_PREFIX, 2, 0);
    p.num_iter = 4, p.num_sampling_steps = 8, p.cfg = 1;
    mar_session *s = begin(d.draft, &p, 0, IMAGES);
    speculation_of(s)->block.rule = method->rule(NULL);
    heat_draft(s);
    mar_status status = MAR_OK;
    while (status == MAR_OK && !mar_session_done(s)) {
        status = mar_session_step(s);
        if (status == MAR_OK) collect(s, states, noise);
    }
    mar_stats_init(stats, sizeof *stats);
    mar_session_get_stats(s, stats);
    if (status == MAR_EMODEL) {
        mar_session_free(s);
        free(states), free(noise);
        return 0;
    }
    assert_session(s, status);
    const eval_pairs pairs = {IMAGES / 4, SEQ * 4, COORDINATES, states, noise};
    eval_energy_test image, token;
    double ks[COORDINATES], ks_p[COORDINATES], p_values[3] = {1, 1, 1};
    assert_int_equal(eval_energy(&pairs, PERMUTATIONS, &image, &token), MAR_OK);
    assert_int_equal(eval_ks(&pairs, PERMUTATIONS, ks, ks_p), MAR_OK);
    for (int c = 0; c < COORDINATES; c++) p_values[0] = fmin(p_values[0], ks_p[c]);
    p_values[1] = image.p, p_values[2] = token.p;
    eval_holm(p_values, 3);
    mar_session_free(s);
    free(states), free(noise);
    return fmin(p_values[0], fmin(p_values[1], p_values[2]));
}

/* Accepts everything: drops the exponents. The heated draft's standard deviations are the larger ones. */
static kern_gaussian_rule accept_all(const double *parameter)
{
    (void)parameter;
    return (kern_gaussian_rule){.temper = INFINITY};
}

static kern_gaussian_rule accept_swapped(const double *parameter)
{
    (void)parameter;
    return (kern_gaussian_rule){.temper = -1};
}

/* Removes the residual's constant c: draws come from p instead. */
static kern_gaussian_rule no_residual(const double *parameter)
{
    (void)parameter;
    return (kern_gaussian_rule){.temper = 1, .path_scale = NAN};
}

TEST_CASE(conditional_is_exact_and_mutants_are_not)
{
    const spec_method *good = spec_method_find("conditional");
    spec_method mutant[4] = {*good, *good, *good, *spec_method_find("paper")};
    mutant[0].rule = accept_all;
    mutant[1].rule = accept_swapped;
    mutant[2].rule = no_residual;
    demo d = demo_open(1);
    mar_stats stats;
    const double p = law_p_value(d, good, &stats);
    print_message("conditional: accepted %ld of %ld, p = %.3f\n", stats.accepted, stats.drafted, p);
    assert_true(stats.drafted * CHANNELS > IMAGES * 480);
    assert_true(stats.accepted > stats.drafted / 10 && stats.accepted < stats.drafted * 9 / 10);
    assert_true(p > 0.01);
    for (int i = 0; i < (test_brief ? 1 : 4); i++) {
        const double caught = law_p_value(d, &mutant[i], &stats);
        print_message("mutant %d: accepted %ld of %ld, p = %.3f\n", i, stats.accepted, stats.drafted, caught);
        assert_true(caught < 0.01);
    }
    demo_close(d);
}

/* --- the released code --- */

static double release_error(const float *mine, const float *theirs, int n)
{
    double worst = 0;
    for (int i = 0; i < n; i++)
        if (theirs[i] > 1e-30f) worst = fmax(worst, fabs(mine[i] / (double)theirs[i] - 1));
    return worst;
}

/* Checks its acceptance probabilities and its residual, on distributions of the demo pair. */
TEST_CASE(cspd_is_the_released_criterion)
{
    enum { N = 19 };
    const spec_method *m = spec_method_find("cspd");
    wt_file *f = golden_open("cspd");
    float *mean_p = golden_f32(f, "mean_p", N * CHANNELS), *log_std_p = golden_f32(f, "log_std_p", N * CHANNELS);
    float *path_p = golden_f32(f, "path_p", N), *candidates = golden_f32(f, "candidates", N * CHANNELS);
    static const char *const draft[2] = {"far", "near"};
    static const int temperature[2][2] = {{42, 10}, {42, 1}};
    for (int i = 0; i < 2; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s_mean", draft[i]);
        float *mean_q = golden_f32(f, name, N * CHANNELS), *x = i ? candidates : mean_q;
        snprintf(name, sizeof name, "%s_log_std", draft[i]);
        float *log_std_q = golden_f32(f, name, N * CHANNELS);
        snprintf(name, sizeof name, "%s_path", draft[i]);
        float *path_q = golden_f32(f, name, N);
        for (int t = 0; t < 3; t++) {
            if (t == 2 && i == 0) continue;
            const double parameter[SPEC_PARAMETERS_MAX] = {temperature[i][t % 2]};
            const kern_gaussian_rule rule = m->rule(parameter);
            float mine[N];
            for (int r = 0; r < N; r++) {
                const int at = r * CHANNELS;
                const kern_gaussians g = {CHANNELS, mean_p + at, mean_q + at, log_std_p + at, log_std_q + at};
                const double path = (double)path_q[r] - path_p[r], ratio = kern_gaussian_log_ratio(&g, x + at);
                mine[r] = (float)(t < 2 ? exp(fmin(0, kern_gaussian_log_accept(&rule, &g, path, x + at)))
                                        : fmax(0, -expm1(kern_gaussian_log_scale(&rule, path) - ratio)));
            }
            snprintf(name, sizeof name, t < 2 ? "%s_accept_%d" : "%s_keep", draft[i], temperature[i][t % 2]);
            float *theirs = golden_f32(f, name, N);
            const double error = release_error(mine, theirs, N);
            if (!(error < 1e-3)) fail_msg("%s: relative error %.3g", name, error);
            free(theirs);
        }
        free(mean_q), free(log_std_q), free(path_q);
    }
    free(mean_p), free(log_std_p), free(path_p), free(candidates);
    wt_close(f);
}

/* Compares a block's distributions of draft and target at the last index with PyTorch's. */
TEST_CASE(laws_match_pytorch)
{
    enum { N = 19 };
    demo d = demo_open(1);
    mar_params p = params_of(d.draft, "cspd", MAR_CONTEXT_PREFIX, 4, 0);
    p.num_sampling_steps = 25;
    mar_session *s;
    const int label = 3;
    assert_library(d.m, mar_session_create(d.model, NULL, &p, 1, &s));
    assert_session(s, mar_session_begin(s, 0, &label, 1));
    assert_session(s, mar_session_step(s));
    const mar_speculation *sp = speculation_of(s);
    assert_int_equal(sp->rows, N);
    wt_file *f = golden_open("cspd");
    float *position = golden_f32(f, "position", N);
    const struct {
        const char *name;
        const float *mine;
    } arrays[] = {{"mean_p", sp->block.p.mean},
                  {"log_std_p", sp->block.p.log_std},
                  {"far_mean", sp->block.q.mean},
                  {"far_log_std", sp->block.q.log_std}};
    for (size_t a = 0; a < sizeof arrays / sizeof *arrays; a++) {
        float *theirs = golden_f32(f, arrays[a].name, N * CHANNELS), mine[N * CHANNELS];
        float *rows = fetch(s, arrays[a].mine, N * CHANNELS, sizeof *rows);
        for (int r = 0; r < N; r++)
            for (int i = 0; i < N; i++)
                if ((int)position[i] == mar_masked_of(s)->row_position[r])
                    memcpy(mine + i * CHANNELS, rows + r * CHANNELS, CHANNELS * sizeof *mine);
        assert_close(mine, theirs, N * CHANNELS, 1e-3);
        free(theirs), free(rows);
    }
    float *path_p = golden_f32(f, "path_p", N), *path_q = golden_f32(f, "far_path", N);
    double *my_p = fetch(s, sp->block.p.path, N, sizeof *my_p), *my_q = fetch(s, sp->block.q.path, N, sizeof *my_q);
    for (int r = 0; r < N; r++)
        for (int i = 0; i < N; i++)
            if ((int)position[i] == mar_masked_of(s)->row_position[r]) {
                assert_true(fabs(my_p[r] - path_p[i]) < 0.01);
                assert_true(fabs(my_q[r] - path_q[i]) < 0.01);
            }
    free(path_p), free(path_q), free(position), free(my_p), free(my_q);
    wt_close(f);
    mar_session_free(s);
    demo_close(d);
}
