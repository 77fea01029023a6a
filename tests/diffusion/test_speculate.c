/* Speculation inside the head: the plain chain's bits with window 1, its distribution with any window, and fewer calls.
 * The heads are the demo models', with conditions of half-generated images. */
#include "diffusion/speculate.h"
#include "tests/diffusion/demo_head.h"
#include "tests/support/brief.h"
#include "tests/support/statistics.h"

#include <math.h>

/* Opens speculation with its own memory. */
static void *open_speculation(diff_chain *chain, diff_chain *draft, int window, diff_speculation *s)
{
    mar_err err = {0};
    assert_ok(diff_speculate_create(chain, draft, window, 0, s, &err), &err);
    void *p = memory(chain->k, diff_speculate_lay_out(s, NULL));
    diff_speculate_lay_out(s, p);
    return p;
}

static void close_speculation(diff_speculation *s, void *p)
{
    kern_queue *k = s->target.chain->k;
    diff_speculate_free(s);
    k->core->free(k->device, p);
}

/* Runs one token of each condition. draft may be NULL. */
static diff_speculation_stats speculate(fixture *f, fixture *draft, int window, float *x)
{
    mar_err err = {0};
    diff_speculation s;
    diff_speculation_stats stats = {0};
    void *p = open_speculation(f->chain, draft ? draft->chain : NULL, window, &s);
    assert_ok(diff_speculate_plan(&s, f->tokens, f->tokens, &err), &err);
    const diff_tokens drawn = {.count = f->tokens,
                               .sources = f->tokens,
                               .z = f->z,
                               .draft_z = draft ? draft->z : NULL,
                               .cfg = f->cfg,
                               .seed = f->seed,
                               .image = f->image,
                               .position = f->position};
    diff_speculate_sample(&s, &drawn, x, NULL, &stats);
    assert_ok(kern_check(f->k, &err), &err);
    assert_true(stats.flop > 0);
    close_speculation(&s, p);
    return stats;
}

TEST_CASE(window_one_is_the_plain_chain)
{
    static const struct {
        int steps, window;
        float cfg, temperature;
    } cases[] = {{50, 1, 2.9f, 1}, {20, 1, 1, 1}, {33, 1, 3, 0.9f}, {2, 1, 3, 1}, {10, 8, 3, 0}};
    for (int dtype = 0; dtype < DTYPES; dtype++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            fixture f;
            if (!test_all && dtype > 0 && cases[i].steps % 40 != 10) continue; /* 50 steps, and no noise */
            const mar_params p = params_of(cases[i].steps, cases[i].cfg, MAR_CFG_LINEAR, cases[i].temperature);
            if (!open_fixture(&f, target_path, dtypes[dtype], 1, p)) continue;
            float plain[MAX * CHANNELS], x[MAX * CHANNELS];
            mix_seeds(&f);
            diff_chain_sample(f.chain, f.z, f.tokens, f.cfg, f.seed, f.image, f.position, plain);
            const diff_speculation_stats stats = speculate(&f, NULL, cases[i].window, x);
            assert_memory_equal(x, plain, sizeof(float) * (size_t)f.tokens * CHANNELS);
            assert_int_equal(stats.calls, (long)f.tokens * cases[i].steps);
            assert_int_equal(stats.evaluations, (long)f.tokens * cases[i].steps);
            assert_int_equal(stats.accepted + stats.rejected, 0);
            close_fixture(&f);
        }
}

/* Checks that a token's bits do not depend on the other tokens, the threads or the groups. */
TEST_CASE(tokens_stand_alone)
{
    for (int dtype = 0; dtype < DTYPES; dtype++) {
        float all[MAX * CHANNELS], x[MAX * CHANNELS];
        for (int threads = 1; threads <= 3; threads += test_all ? 1 : 2) {
            fixture f;
            const mar_params p = params_of(50, 2.9f, MAR_CFG_LINEAR, 1);
            if (!open_fixture(&f, target_path, dtypes[dtype], threads, p)) continue;
            const size_t bytes = sizeof(float) * (size_t)f.tokens * CHANNELS;
            mix_seeds(&f);
            if (threads == 1) speculate(&f, NULL, 8, all);
            diff_speculation s;
            diff_speculation_stats stats = {0};
            void *arena = open_speculation(f.chain, NULL, 8, &s);
            s.w.group = s.sources = 2 + 5 * threads;
            const diff_tokens drawn = {.count = f.tokens,
                                       .sources = f.tokens,
                                       .z = f.z,
                                       .cfg = f.cfg,
                                       .seed = f.seed,
                                       .image = f.image,
                                       .position = f.position};
            diff_speculate_sample(&s, &drawn, x, NULL, &stats);
            assert_memory_equal(x, all, bytes);
            const int d = f.chain->head->shape.z_dim;
            for (int r = 0; r < f.tokens; r += 7) {
                float z[2 * 64], one[CHANNELS];
                memcpy(z, f.z + r * d, (size_t)d * sizeof *z);
                memcpy(z + d, f.z + (f.tokens + r) * d, (size_t)d * sizeof *z);
                const diff_tokens alone = {.count = 1,
                                           .sources = 1,
                                           .z = z,
                                           .cfg = f.cfg + r,
                                           .seed = f.seed + r,
                                           .image = f.image + r,
                                           .position = f.position + r};
                diff_speculate_sample(&s, &alone, one, NULL, &stats);
                assert_memory_equal(one, all + r * CHANNELS, sizeof one);
            }
            close_speculation(&s, arena);
            close_fixture(&f);
        }
    }
}

/* Checks sequential calls per token at 100 steps: at least 3, 4.5 and 6 times fewer, the project's goal. The goal at
 * window 16 is 8. Two of the four cases have each guidance and each arithmetic once. */
TEST_CASE(fewer_calls)
{
    static const struct {
        int window;
        double calls;
    } goals[] = {{4, 100 / 3.0}, {8, 100 / 4.5}, {16, 100 / 8.0}, {32, 100 / 8.0}};
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int constant = 0; constant < 2; constant++) {
            fixture f;
            if (!test_all && constant != bf16) continue;
            const mar_params p =
                params_of(100, constant ? 3.0f : 2.9f, constant ? MAR_CFG_CONSTANT : MAR_CFG_LINEAR, 1);
            if (!open_fixture(&f, target_path, bf16 ? MAR_DTYPE_BF16 : MAR_DTYPE_F32, 1, p)) continue;
            for (size_t i = 0; i < sizeof goals / sizeof *goals; i++) {
                float x[MAX * CHANNELS];
                const diff_speculation_stats stats = speculate(&f, NULL, goals[i].window, x);
                const double calls = (double)stats.calls / (double)stats.tokens;
                print_message("window %2d: %.2f calls a token, at most %d, %.1f evaluations, %.1f tries a rejection\n",
                              goals[i].window, calls, stats.calls_max, (double)stats.evaluations / (double)stats.tokens,
                              (double)stats.tries / (double)stats.rejected);
                assert_true(calls <= goals[i].calls);
                assert_true(stats.calls_max <= 100 && stats.batched >= stats.calls_max);
            }
            close_fixture(&f);
        }
}

/* --- the distribution --------------------------------------------------------------------------------------------- */

/* Draws of each condition: 10^5 numbers and more in the nightly lane. A sanitizer has fewer, too few to detect mutants.
 */
enum { STEPS = 20, SOME_DRAWS = test_all ? 32 : 16, DRAWS = test_brief ? SOME_DRAWS : test_all ? 256 : 128 };

/* Gives draw number n of all conditions its own addresses. */
static void set_draw(fixture *f, int n)
{
    for (int i = 0; i < f->tokens; i++) f->image[i] = (uint64_t)(n * IMAGES + i * IMAGES / f->tokens);
}

/* x [draws][tokens][CHANNELS] */
static void draw_plain(fixture *f, int draws, uint64_t key, float *x)
{
    uint64_t keys[MAX];
    for (int i = 0; i < f->tokens; i++) keys[i] = key;
    for (int n = 0; n < draws; n++) {
        set_draw(f, n);
        diff_chain_sample(f->chain, f->z, f->tokens, f->cfg, keys, f->image, f->position, x);
        x += f->tokens * CHANNELS;
    }
}

static diff_speculation_stats draw_speculative(fixture *f, fixture *draft, int window, const kern_gaussian_rule *rule,
                                               int draws, float *x)
{
    mar_err err = {0};
    diff_speculation s;
    diff_speculation_stats stats = {0};
    void *p = open_speculation(f->chain, draft ? draft->chain : NULL, window, &s);
    if (rule) s.w.rule = *rule;
    for (int n = 0; n < draws; n++) {
        set_draw(f, n);
        const diff_tokens drawn = {.count = f->tokens,
                                   .sources = f->tokens,
                                   .z = f->z,
                                   .draft_z = draft ? draft->z : NULL,
                                   .cfg = f->cfg,
                                   .seed = f->seed,
                                   .image = f->image,
                                   .position = f->position};
        diff_speculate_sample(&s, &drawn, x, NULL, &stats);
        x += f->tokens * CHANNELS;
    }
    assert_ok(kern_check(f->k, &err), &err);
    close_speculation(&s, p);
    return stats;
}

/* Returns whether two tests accept x as drawn from the plain chain's law. Energy distance uses the plain chain with the
 * same noise, and swaps labels within pairs. The shared noise makes it sensitive. Kolmogorov-Smirnov by channel uses
 * the plain chain with other noise. The first has 1 % false positives. The second has below 0.1 %: 8 channels of 1e-4,
 * and less by the shared conditions. With fixed seeds a false positive occurs always or never. */
static int same_law(const float *x, const float *plain, const float *other, int n)
{
    const double energy = stat_energy_p(x, plain, n, CHANNELS, 1, 5);
    float *a = malloc(sizeof *a * (size_t)n), *b = malloc(sizeof *b * (size_t)n);
    double least = 1;
    assert_true(a && b);
    for (int c = 0; c < CHANNELS; c++) {
        for (int i = 0; i < n; i++) a[i] = x[i * CHANNELS + c], b[i] = other[i * CHANNELS + c];
        least = fmin(least, stat_ks_two_sample_p(a, n, b, n));
    }
    free(a), free(b);
    print_message("    energy distance p = %.2f, least Kolmogorov-Smirnov p = %.2g\n", energy, least);
    return energy > 0.01 && least > 1e-4;
}

static int (*real_propose)(kern_queue *k, kern_speculation *w, const kern_speculation_head *draft);

/* A mutant: moves every q towards the drawn state, as if an evaluation that depends on the noise had refined it. So q
 * favours what was drawn. */
static int propose_knowing(kern_queue *k, kern_speculation *w, const kern_speculation_head *draft)
{
    const int unfinished = real_propose(k, w, draft);
    for (int row = 0; row + 1 < w->rows; row++)
        for (int c = 0; c < CHANNELS && w->row_token[row + 1] == w->row_token[row]; c++) {
            float *mean = &w->mean_q[row * CHANNELS + c];
            *mean += 0.1f * (w->state[(row + 1) * CHANNELS + c] - *mean);
        }
    return unfinished;
}

/* Sets the window of each token's next round: by what is decided, or by the noise of the next transition. */
static void choose(kern_speculation *w, int peeks)
{
    static kern_speculation_limit chosen[MAX];
    for (int i = 0; i < w->tokens; i++) {
        if (w->index[i] < 0) continue;
        const float eps = kern_speculation_noise(w, i, w->index[i])[0], x = w->token[i * CHANNELS];
        const int small = peeks ? eps > 0 : x > 0, least = !peeks && w->rejected[i] % 2 ? 2 : 1;
        chosen[i] = (kern_speculation_limit){.window = small ? least : w->window, .cost = 1, .loss = 1e9f};
    }
    w->limit = chosen;
}

/* An adversary within the rules: the window is long where the state's first channel is negative, and follows the
 * verdicts. */
static int propose_choosing(kern_queue *k, kern_speculation *w, const kern_speculation_head *draft)
{
    choose(w, 0);
    return real_propose(k, w, draft);
}

/* A mutant: a transition has a proposal only if its noise is negative. */
static int propose_peeking(kern_queue *k, kern_speculation *w, const kern_speculation_head *draft)
{
    choose(w, 1);
    return real_propose(k, w, draft);
}

/* Draws with an operation in place of speculate_propose. */
static diff_speculation_stats draw_by(fixture *f,
                                      int (*propose)(kern_queue *, kern_speculation *, const kern_speculation_head *),
                                      const kern_gaussian_rule *rule, float *x)
{
    kern_queue *k = f->k;
    kern_head_ops ops = *k->head;
    const kern_head_ops *real = k->head;
    real_propose = ops.speculate_propose;
    if (propose) ops.speculate_propose = propose;
    k->head = &ops;
    const diff_speculation_stats stats = draw_speculative(f, NULL, 8, rule, DRAWS, x);
    k->head = real;
    return stats;
}

TEST_CASE(same_law_as_the_plain_chain)
{
    static const struct {
        const char *name;
        kern_gaussian_rule rule;
        int (*propose)(kern_queue *k, kern_speculation *w, const kern_speculation_head *draft);
    } mutants[] = {{"accepts always", {.temper = 1, .path_accept = 1e9}, NULL},
                   {"redraws from p", {.temper = 1, .path_scale = -1e9}, NULL},
                   {"p and q swapped", {.temper = -1}, NULL},
                   {"q knows the noise", {.temper = 1}, propose_knowing},
                   {"the choice knows the noise", {.temper = 1}, propose_peeking}};
    fixture f;
    assert_true(open_fixture(&f, draft_path, MAR_DTYPE_F32, 1, params_of(STEPS, 3, MAR_CFG_CONSTANT, 1)));
    const int n = DRAWS * f.tokens;
    float *arrays = malloc(sizeof *arrays * 3 * (size_t)n * CHANNELS);
    assert_non_null(arrays);
    float *x = arrays, *plain = x + n * CHANNELS, *other = plain + n * CHANNELS;
    draw_plain(&f, DRAWS, seed, plain);
    draw_plain(&f, DRAWS, seed + 1, other);
    for (int window = 4; window <= (test_all ? 16 : 4); window *= 4) {
        const diff_speculation_stats stats = draw_speculative(&f, NULL, window, NULL, DRAWS, x);
        print_message("window %2d: %.2f calls a token, accepted %.3f\n", window,
                      (double)stats.calls / (double)stats.tokens,
                      (double)stats.accepted / (double)(stats.accepted + stats.rejected));
        assert_true(stats.rejected > n);
        assert_true(same_law(x, plain, other, n));
    }
    const diff_speculation_stats by_choice = draw_by(&f, propose_choosing, NULL, x);
    print_message("windows by an adversary: %.2f calls a token\n", (double)by_choice.calls / (double)by_choice.tokens);
    assert_true(by_choice.rejected > n);
    assert_true(same_law(x, plain, other, n));
    for (size_t i = 0; !test_brief && i < sizeof mutants / sizeof *mutants; i++) {
        draw_by(&f, mutants[i].propose, &mutants[i].rule, x);
        print_message("mutant: %s\n", mutants[i].name);
        assert_false(same_law(x, plain, other, n));
    }
    free(arrays);
    close_fixture(&f);
}

/* Tests a chain with all its steps and guidance. The target's is that of the figures that fewer_calls asserts. */
static void expect_law_at_full_length(const char *path, mar_dtype dtype)
{
    fixture f;
    if (!open_fixture(&f, path, dtype, 1, params_of(100, 2.9f, MAR_CFG_LINEAR, 1))) return;
    const int n = SOME_DRAWS * f.tokens;
    float *x = malloc(sizeof *x * 3 * (size_t)n * CHANNELS);
    assert_non_null(x);
    float *plain = x + n * CHANNELS, *other = plain + n * CHANNELS;
    draw_plain(&f, SOME_DRAWS, seed, plain);
    draw_plain(&f, SOME_DRAWS, seed + 1, other);
    for (int window = test_all ? 4 : 16; window <= 16; window *= 4) {
        draw_speculative(&f, NULL, window, NULL, SOME_DRAWS, x);
        assert_true(same_law(x, plain, other, n));
    }
    free(x);
    close_fixture(&f);
}

TEST_CASE(same_law_at_full_length)
{
    expect_law_at_full_length(target_path, MAR_DTYPE_F16);
}

/* The first two steps have no int8, so each token's first proposals are for states of both kinds. */
TEST_CASE(same_law_with_int8)
{
    expect_law_at_full_length(draft_path, MAR_DTYPE_INT8);
}

/* The draft's head proposes, at a temperature. The distribution stays the same, and calls are saved. */
TEST_CASE(draft_proposes)
{
    fixture target, draft;
    const mar_params p = params_of(STEPS, 3, MAR_CFG_CONSTANT, 0.9f);
    assert_true(open_fixture(&target, target_path, MAR_DTYPE_F32, 1, p));
    assert_true(open_fixture(&draft, draft_path, MAR_DTYPE_F32, 1, p));
    const int n = SOME_DRAWS * target.tokens;
    float *x = malloc(sizeof *x * 3 * (size_t)n * CHANNELS);
    assert_non_null(x);
    float *plain = x + n * CHANNELS, *other = plain + n * CHANNELS;
    draw_plain(&target, SOME_DRAWS, seed, plain);
    draw_plain(&target, SOME_DRAWS, seed + 1, other);
    const diff_speculation_stats with = draw_speculative(&target, &draft, 8, NULL, SOME_DRAWS, x);
    assert_true(same_law(x, plain, other, n));
    const diff_speculation_stats without = draw_speculative(&target, NULL, 8, NULL, SOME_DRAWS, x);
    assert_true(same_law(x, plain, other, n));
    print_message("calls a token: %.2f with the draft's head, %.2f with the filter\n",
                  (double)with.calls / (double)with.tokens, (double)without.calls / (double)without.tokens);
    assert_true(with.calls < (long)n * STEPS / 3 && without.calls < (long)n * STEPS / 3);
    assert_true(with.draft_evaluations > 0 && without.draft_evaluations == 0);
    free(x);
    close_fixture(&draft);
    close_fixture(&target);
}

/* Tokens with windows of their own: a window of 1 has the plain chain's bits, one that may cost what it likes those of
 * that window for all, and no token loses more than its limit. Proposals of the first model are hardly ever accepted,
 * those of the second nearly always. */
TEST_CASE(limits)
{
    static const kern_speculation_limit limits[] = {{1, 1, 1e9f}, {8, 1, 1e9f},    {8, 2.5f, 0},
                                                    {8, 2.5f, 4}, {4, 1.5f, 7.5f}, {8, 1, 0}};
    enum { LIMITS = sizeof limits / sizeof *limits };
    for (int trained = 0; trained < 2; trained++) {
        fixture f;
        mar_err err = {0};
        diff_speculation s;
        diff_speculation_stats stats = {0};
        kern_speculation_limit limit[MAX];
        diff_tally tally[MAX];
        float plain[MAX * CHANNELS], all[MAX * CHANNELS], x[MAX * CHANNELS];
        const char *path = trained ? target_path : draft_path;
        assert_true(open_fixture(&f, path, MAR_DTYPE_F32, 1, params_of(STEPS, 3, MAR_CFG_CONSTANT, 1)));
        diff_chain_sample(f.chain, f.z, f.tokens, f.cfg, f.seed, f.image, f.position, plain);
        speculate(&f, NULL, 8, all);
        void *p = open_speculation(f.chain, NULL, 8, &s);
        s.has_limits = 1;
        assert_ok(diff_speculate_plan(&s, f.tokens, f.tokens, &err), &err);
        for (int i = 0; i < f.tokens; i++) limit[i] = limits[i % LIMITS];
        const diff_tokens drawn = {.count = f.tokens,
                                   .sources = f.tokens,
                                   .z = f.z,
                                   .cfg = f.cfg,
                                   .seed = f.seed,
                                   .image = f.image,
                                   .position = f.position,
                                   .limit = limit,
                                   .tally = tally};
        diff_speculate_sample(&s, &drawn, x, NULL, &stats);
        assert_ok(kern_check(f.k, &err), &err);
        long calls = 0, wide = 0, rejected = 0;
        for (int i = 0; i < f.tokens; i++) {
            const diff_tally *t = &tally[i];
            const float loss = (float)t->wide * limit[i].cost + (float)(t->rounds - t->wide - STEPS);
            const int is_plain = limit[i].window == 1 || limit[i].cost - 1 > limit[i].loss;
            const float *expected = is_plain ? plain : limit[i].loss > 1e6f ? all : NULL;
            assert_true(loss <= limit[i].loss);
            assert_int_equal(is_plain, t->wide == 0);
            if (expected) assert_memory_equal(x + i * CHANNELS, expected + i * CHANNELS, CHANNELS * sizeof *x);
            calls += t->rounds, wide += t->wide, rejected += t->rejected;
        }
        assert_true(calls == stats.calls && rejected == stats.rejected && wide >= rejected);
        close_speculation(&s, p);
        close_fixture(&f);
    }
}

/* Checks that speculation never makes more calls than steps, for any number of steps. The weights' chain explodes, so
 * that no guess is right. */
TEST_CASE(never_more_calls)
{
    static const int steps[] = {2, 3, 7, 1000};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        fixture f;
        assert_true(open_fixture(&f, draft_path, MAR_DTYPE_F32, 1, params_of(steps[i], 3, MAR_CFG_CONSTANT, 1)));
        for (int window = steps[i] < 1000 ? 2 : 64; window <= 64; window *= 32) {
            float x[MAX * CHANNELS];
            const diff_speculation_stats stats = speculate(&f, NULL, window, x);
            for (int c = 0; c < f.tokens * CHANNELS; c++) assert_true(isfinite(x[c]));
            assert_true(stats.calls_max <= steps[i]);
            assert_true(stats.calls >= (long)f.tokens * ((steps[i] + window - 1) / window));
        }
        close_fixture(&f);
    }
}

/* Chains start below the top, and their number of steps changes from call to call (DiSA). The bits are those of a chain
 * with that respacing alone. With window 1 they are the plain chain's. */
TEST_CASE(respacings)
{
    static const diff_spec specs[] = {{MAR_SAMPLER_DDPM, 50, 950, .process = DIFF_DDPM},
                                      {MAR_SAMPLER_DDPM, 11, 950, .process = DIFF_DDPM}};
    static const int windows[] = {1, 8};
    fixture f;
    mar_err err = {0};
    assert_true(open_fixture(&f, draft_path, MAR_DTYPE_F32, 1, params_of(10, 3, MAR_CFG_CONSTANT, 1)));
    kern_queue *k = f.k;
    const size_t bytes = sizeof(float) * (size_t)f.tokens * CHANNELS;
    float x[MAX * CHANNELS], expected[MAX * CHANNELS];
    for (size_t w = 0; w < sizeof windows / sizeof *windows; w++) {
        diff_chain both;
        diff_speculation s;
        diff_speculation_stats stats = {0};
        assert_ok(diff_chain_create_for(f.k, f.chain->head, specs, 2, 1, MAX, 1, &both, &err), &err);
        void *both_memory = lay_out_chain(&both), *p = open_speculation(&both, NULL, windows[w], &s);
        for (int i = 0; i < 4; i++) {
            diff_chain one;
            diff_speculation alone;
            assert_ok(diff_chain_create_for(f.k, f.chain->head, &specs[i % 2], 1, 1, MAX, 1, &one, &err), &err);
            void *one_memory = lay_out_chain(&one), *q = open_speculation(&one, NULL, windows[w], &alone);
            diff_chain_use(&both, specs[i % 2].steps);
            const diff_tokens drawn = {.count = f.tokens,
                                       .sources = f.tokens,
                                       .z = f.z,
                                       .cfg = f.cfg,
                                       .seed = f.seed,
                                       .image = f.image,
                                       .position = f.position};
            diff_speculate_sample(&s, &drawn, x, NULL, &stats);
            if (windows[w] == 1)
                diff_chain_sample(&one, f.z, f.tokens, f.cfg, f.seed, f.image, f.position, expected);
            else
                diff_speculate_sample(&alone, &drawn, expected, NULL, &stats);
            assert_memory_equal(x, expected, bytes);
            close_speculation(&alone, q);
            diff_chain_free(&one);
            k->core->free(k->device, one_memory);
        }
        close_speculation(&s, p);
        diff_chain_free(&both);
        k->core->free(k->device, both_memory);
    }
    close_fixture(&f);
}

TEST_CASE(random_weights)
{
    enum { WIDTH = 80, DEPTH = 2, C = 6, Z = 96, N = 7, T = 100 };
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    diff_head head;
    diff_chain chain;
    diff_speculation s;
    diff_speculation_stats stats = {0};
    mar_err err = {0};
    uint64_t seeds[N], image[N];
    int position[N];
    float cfg[N], x[N * C];
    wt_file *model = golden_open("mar_small"), *golden = golden_open("mar");
    float *z = golden_f32(golden, "head.z", 2 * N * Z);
    for (int i = 0; i < N; i++) seeds[i] = seed, image[i] = 0, position[i] = i, cfg[i] = 2.9f;
    assert_ok(diff_head_load(k, model, &(diff_head_shape){.width = WIDTH, .depth = DEPTH, .channels = C, .z_dim = Z}, 0,
                             0, &head, &err),
              &err);
    assert_ok(diff_chain_create(k, &head, T, 1, N, 1, &chain, &err), &err);
    void *chain_memory = lay_out_chain(&chain), *p = open_speculation(&chain, NULL, 16, &s);
    const diff_tokens drawn = {
        .count = N, .sources = N, .z = z, .cfg = cfg, .seed = seeds, .image = image, .position = position};
    diff_speculate_sample(&s, &drawn, x, NULL, &stats);
    assert_true(stats.calls_max <= T);
    for (int i = 0; i < N * C; i++) assert_true(isfinite(x[i]));
    close_speculation(&s, p);
    diff_chain_free(&chain);
    k->core->free(k->device, chain_memory);
    diff_head_free(&head);
    close_queue(k);
    free(z);
    wt_close(model), wt_close(golden);
}

TEST_CASE(bad_arguments)
{
    fixture f;
    mar_err err = {0};
    diff_speculation s;
    assert_true(open_fixture(&f, draft_path, MAR_DTYPE_F32, 1, params_of(10, 3, MAR_CFG_CONSTANT, 1)));
    assert_int_equal(diff_speculate_create(f.chain, NULL, 0, 0, &s, &err), MAR_EARG);
    diff_chain ode, longer;
    const diff_spec ddim = {MAR_SAMPLER_DDIM, 10, DIFF_TOP_SOLVER, .process = DIFF_DDPM};
    assert_ok(diff_chain_create_for(f.k, f.chain->head, &ddim, 1, 1, f.chain->max_tokens, 1, &ode, &err), &err);
    assert_int_equal(diff_speculate_create(&ode, NULL, 4, 0, &s, &err), MAR_EARG);
    assert_non_null(strstr(err.text, "ddpm"));
    assert_ok(diff_chain_create(f.k, f.chain->head, 11, 1, f.chain->max_tokens, 1, &longer, &err), &err);
    assert_int_equal(diff_speculate_create(f.chain, &longer, 4, 0, &s, &err), MAR_EARG);
    diff_chain_free(&ode);
    diff_chain_free(&longer);
    close_fixture(&f);
}
