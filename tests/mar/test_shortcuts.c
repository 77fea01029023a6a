/* Tests the shortcuts in the whole loop: DiSA's annealing, solvers, LazyMAR against the released code, GtR. Covers
 * their cost, their refusals, and the promises of mar.h under each. */
#include "mar.h"
#include "mar_measure.h"
#include "tests/support/brief.h"
#include "tests/support/masked.h"
#include "mar/accel/gtr.h"
#include "tests/support/demo.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char small[] = "tests/golden/data/lazy_small.safetensors";
enum { SEQ = 64, GRID = 8, CHANNELS = 5, D = 24, TOKENS = SEQ * CHANNELS };

extern const mar_accel mar_accel_disa;

static mar_params defaults(int num_iter, int steps)
{
    mar_params p = plain_params();
    p.num_iter = num_iter;
    p.num_sampling_steps = steps;
    p.cfg = 2.9f;
    return p;
}

/* --- annealing ---------------------------------------------------------------------------------------------------- */

/* Checks the number of diffusion steps of every autoregressive step against DiSA's own DiffLoss.sample. */
TEST_CASE(annealing)
{
    static const char *const names[] = {"", "linear", "cosine", "two-stage"};
    static const int cases[3][3] = {{64, 50, 5}, {17, 23, 4}, {2, 9, 9}};
    wt_file *golden = golden_open("shortcuts");
    for (int kind = MAR_ANNEAL_LINEAR; kind <= MAR_ANNEAL_TWO_STAGE; kind++)
        for (int i = 0; i < 3; i++) {
            char name[48];
            mar_params p = defaults(cases[i][0], 100);
            p.diff_annealing = (mar_annealing)kind;
            p.diff_upper_steps = cases[i][1], p.diff_lower_steps = cases[i][2];
            snprintf(name, sizeof name, "annealing.%s.%d", names[kind], p.num_iter);
            float *expected = golden_f32(golden, name, p.num_iter);
            for (int j = 0; j < p.num_iter; j++)
                assert_int_equal(mar_accel_disa.sampling_steps(&p, j), (int)expected[j]);
            free(expected);
        }
    wt_close(golden);
}

/* --- LazyMAR ------------------------------------------------------------------------------------------------------ */

static int place_among(const int *positions, int n, int position)
{
    int before = 0;
    for (int i = 0; i < n; i++) before += positions[i] < position;
    return before;
}

/* Compares the step's z with the release's. Ours are images x predicted in the order of `order`, conditional then
 * unconditional. The release's come by ascending position. Returns the number of rows. Similarities select the kept
 * rows, and some are equal but for rounding. A few rows may therefore differ, by about 1e-4. */
static int compare_z(const mar_masked *s, const mar_step *step, const float *expected, int *differing)
{
    const int n = step->predicted, begin = SEQ - step->known - n;
    for (int q = 0; q < 2 * s->images; q++)
        for (int i = 0; i < n; i++) {
            const int *positions = s->order[q % s->images] + begin;
            const float *mine = s->target.net.z + (size_t)(q * n + i) * D;
            const float *theirs = expected + (size_t)(q * n + place_among(positions, n, positions[i])) * D;
            assert_close(mine, theirs, D, 1e-3);
            *differing += relative_error(mine, theirs, D) > 1e-5;
        }
    return 2 * s->images * n;
}

/* Compares with the release on the same weights, orders and noise: the conditions of every step, and the tokens. */
TEST_CASE(lazy_matches_release)
{
    static const struct {
        const char *name;
        int num_iter, images, labels[2];
    } cases[2] = {{"32", 32, 2, {3, 0}}, {"48", 48, 1, {4}}};
    wt_file *golden = golden_open("shortcuts");
    mar *m = open_mar(MAR_DTYPE_F32, 2);
    mar_model *model;
    assert_library(m, mar_model_load(m, small, 0, &model));
    for (int i = 0; i < 2; i++) {
        const int images = cases[i].images;
        int differing = 0;
        char name[32];
        mar_session *s;
        mar_params p = defaults(cases[i].num_iter, 10);
        p.lazy = 1;
        p.seed = 0x1234567890ABCDEF;
        snprintf(name, sizeof name, "lazy.%s.z", cases[i].name);
        float *z = golden_f32(golden, name, 2 * images * SEQ * D), *next = z;
        snprintf(name, sizeof name, "lazy.%s.tokens", cases[i].name);
        float *expected = golden_f32(golden, name, images * TOKENS), tokens[2 * TOKENS];
        assert_library(m, mar_session_create(model, NULL, &p, images, &s));
        assert_session(s, mar_session_begin(s, 11, cases[i].labels, images));
        while (!mar_session_done(s)) {
            const mar_masked *g = mar_masked_of(s);
            const mar_step *step = &g->steps[g->step];
            assert_session(s, mar_session_step(s));
            next += (size_t)compare_z(g, step, next, &differing) * D;
        }
        assert_session(s, mar_session_tokens(s, tokens));
        assert_close(tokens, expected, images * TOKENS, 1e-3);
        assert_true(differing <= 2 * images * SEQ / 10);
        mar_session_free(s);
        free(z), free(expected);
    }
    mar_model_free(model);
    mar_close(m);
    wt_close(golden);
}

/* --- the loop under each shortcut --------------------------------------------------------------------------------- */

enum { PLAIN, DISA, DDIM, DPMPP, LAZY, GTR, GTR_DDIM, LAZY_DPMPP_DISA, LAZY_UNGUIDED, LAZY_HEAD, MODES, STEPS = 24 };

static mar_params mode(int i)
{
    mar_params p = defaults(STEPS, 9);
    p.diff_upper_steps = 12, p.diff_lower_steps = 4;
    p.gtr_generation_steps = 5, p.gtr_reconstruction_steps = 2, p.gtr_sampling_steps = 4;
    if (i == DISA) p.diff_annealing = MAR_ANNEAL_LINEAR;
    if (i == LAZY_DPMPP_DISA) p.diff_annealing = MAR_ANNEAL_COSINE;
    if (i == DDIM || i == GTR_DDIM) p.sampler = MAR_SAMPLER_DDIM;
    if (i == DPMPP || i == LAZY_DPMPP_DISA) p.sampler = MAR_SAMPLER_DPMPP;
    p.lazy_head = i == LAZY_HEAD;
    p.lazy = i == LAZY || i == LAZY_HEAD || i == LAZY_DPMPP_DISA || i == LAZY_UNGUIDED;
    p.gtr = i == GTR || i == GTR_DDIM;
    if (i == LAZY_UNGUIDED) p.cfg = 1;
    return p;
}

/* Generates tokens of images 100.. in batches of at most `batch`. Returns the statistics of the last batch in
 * *stats. */
static void generate(mar *m, mar_model *model, const mar_params *p, int n, int batch, float *tokens, mar_stats *stats)
{
    const int labels[4] = {2, -1, 0, 4};
    mar_session *s;
    assert_library(m, mar_session_create(model, NULL, p, batch, &s));
    for (int i = 0; i < n; i += batch) {
        const int count = n - i < batch ? n - i : batch;
        assert_session(s, mar_session_begin(s, (uint64_t)(100 + i), labels + i, count));
        while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
        assert_session(s, mar_session_tokens(s, tokens + i * TOKENS));
    }
    if (stats) {
        mar_stats_init(stats, sizeof *stats);
        mar_session_get_stats(s, stats);
    }
    mar_session_free(s);
}

TEST_CASE(batch_and_threads_do_not_matter)
{
    enum { N = 3 };
    static float reference[MODES][N * TOKENS], tokens[N * TOKENS];
    static const int runs[][2] = {{1, 1}, {1, 3}, {2, 2}, {4, 3}}; /* threads, batch */
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int run = 0; run < 4; run += test_all ? 1 : 2) {
            mar *m = open_mar(bf16 ? MAR_DTYPE_BF16 : MAR_DTYPE_F32, runs[run][0]);
            if (!m) continue;
            mar_model *model;
            assert_library(m, mar_model_load(m, small, 0, &model));
            for (int i = 0; i < MODES; i++) {
                const mar_params p = mode(i);
                generate(m, model, &p, N, runs[run][1], run ? tokens : reference[i], NULL);
                if (run && memcmp(tokens, reference[i], sizeof tokens) != 0)
                    fail_msg("mode %d, %d threads, batches of %d: other tokens", i, runs[run][0], runs[run][1]);
                for (int j = 0; run == 0 && j < i; j++)
                    assert_memory_not_equal(reference[i], reference[j], sizeof reference[i]);
            }
            mar_model_free(model);
            mar_close(m);
        }
}

/* Checks real calls and arithmetic against counts made by hand. */
TEST_CASE(statistics)
{
    enum { N = 2 };
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_model *model;
    assert_library(m, mar_model_load(m, small, 0, &model));
    mar_stats stats[MODES];
    float tokens[N * TOKENS];
    for (int i = 0; i < MODES; i++) {
        const mar_params p = mode(i);
        generate(m, model, &p, N, N, tokens, &stats[i]);
        assert_int_equal(stats[i].tokens, N * SEQ);
        assert_true(stats[i].head_rows == stats[i].head_calls);
        /* A pass with caches, or over half the tokens, counts as one pass. */
        const double passes = p.gtr ? p.gtr_generation_steps + p.gtr_reconstruction_steps : p.num_iter;
        assert_true(stats[i].passes == passes && stats[i].contexts == N * passes);
    }
    const int constant[] = {PLAIN, DDIM, DPMPP, LAZY, LAZY_UNGUIDED, LAZY_HEAD};
    for (int i = 0; i < 6; i++) {
        assert_true(stats[constant[i]].head_calls == 9.0 * N * SEQ);
        assert_int_equal(stats[constant[i]].head_calls_max, 9);
    }
    /* The annealed chains, by the plan */
    mar_step steps[STEPS];
    const mar_params p = mode(DISA);
    mar_steps_plan(STEPS, SEQ, p.cfg, p.cfg_schedule, steps);
    for (int i = 0; i < STEPS; i++) steps[i].sampling_steps = mar_accel_disa.sampling_steps(&p, i);
    double calls = 0;
    for (int i = 0; i < STEPS; i++) calls += N * steps[i].predicted * steps[i].sampling_steps;
    assert_int_equal(steps[0].sampling_steps, 12);
    assert_int_equal(steps[STEPS - 1].sampling_steps, 4);
    assert_true(stats[DISA].head_calls == calls);
    assert_int_equal(stats[DISA].head_calls_max, 12);
    /* GtR: 9 steps for the first 32 tokens. The second stage's two steps have 10 and 22 tokens; 30 % of each, rounded
     * up, take 9. */
    assert_true(stats[GTR].head_calls == N * (9 * 32 + 9 * (3 + 7) + 4 * (32 - 10)));
    assert_true(stats[GTR_DDIM].head_calls == stats[GTR].head_calls);
    assert_true(stats[GTR].encoder_flop < 0.5 * stats[PLAIN].encoder_flop);
    assert_true(stats[GTR].decoder_flop < 0.5 * stats[PLAIN].decoder_flop);
    assert_true(stats[LAZY].encoder_flop < 0.7 * stats[PLAIN].encoder_flop);
    assert_true(stats[LAZY].head_flop == stats[PLAIN].head_flop);
    assert_true(stats[LAZY_HEAD].head_flop < 0.6 * stats[PLAIN].head_flop);
    assert_true(stats[LAZY].decoder_flop < 0.8 * stats[PLAIN].decoder_flop);
    mar_model_free(model);
    mar_close(m);
}

/* --- GtR ---------------------------------------------------------------------------------------------------------- */

/* Checks that every order and plan has each token once, in its stage. */
TEST_CASE(stages)
{
    for (int grid = 2; grid <= 16; grid++) {
        const int all = grid * grid, first = (all + 1) / 2;
        int order[256], scratch[256], count[256] = {0};
        kern_random_order(1, 2, all, order);
        mar_gtr_order(grid, order, scratch);
        for (int i = 0; i < all; i++) {
            count[order[i]]++;
            assert_int_equal((order[i] / grid + order[i] % grid) % 2, i < all - first);
        }
        for (int i = 0; i < all; i++) assert_int_equal(count[i], 1);
        for (int n = 1; n <= first; n++)
            for (int k = 1; k <= all - first; k += 3) {
                mar_step steps[256];
                mar_params p = defaults(1, 100);
                p.gtr = 1, p.gtr_generation_steps = n, p.gtr_reconstruction_steps = k;
                mar_gtr_plan(&p, grid, steps);
                int known = 0;
                for (int i = 0; i < n + k; i++) {
                    if (i == n) assert_int_equal(known, first);
                    assert_int_equal(steps[i].known, known);
                    assert_true(steps[i].predicted >= 1 && steps[i].detailed <= steps[i].predicted);
                    assert_int_equal(steps[i].detailed > 0, i >= n);
                    known += steps[i].predicted;
                }
                assert_int_equal(known, all);
            }
    }
}

/* Checks a flat image with an edge: the tokens beside it are the detailed ones, and none is lost. */
TEST_CASE(detail_is_found)
{
    float tokens[SEQ][2], energy[SEQ];
    int positions[SEQ / 2], count[SEQ] = {0}, n = 0;
    for (int i = 0; i < SEQ; i++) {
        tokens[i][0] = i % GRID < 4 ? -1.0f : 1.0f;
        tokens[i][1] = 5;
        if ((i / GRID + i % GRID) % 2 == 0) continue;
        tokens[i][0] = tokens[i][1] = NAN; /* unknown: must not be read */
        positions[n++] = i;
    }
    mar_gtr_select(tokens[0], GRID, 2, positions, n, 8, energy);
    for (int i = 0; i < n; i++) {
        count[positions[i]]++;
        const int column = positions[i] % GRID, beside = column == 3 || column == 4;
        assert_int_equal(beside, i >= n - 8);
        assert_true(beside ? energy[i] > 1 : energy[i] < 1e-6f);
    }
    for (int i = 0; i < SEQ; i++) assert_int_equal(count[i], (i / GRID + i % GRID) % 2);
}

/* --- quality, roughly --------------------------------------------------------------------------------------------- */

enum { DEMO_IMAGES = 10 };

/* Returns the number of right answers of the digit classifier on the demo's images. */
static int recognised(mar *m, mar_model *model, mar_vae *vae, const mar_params *p)
{
    int labels[DEMO_IMAGES];
    static uint8_t rgb[DEMO_IMAGES][DEMO_BYTES];
    mar_session *s;
    for (int i = 0; i < DEMO_IMAGES; i++) labels[i] = i % 10;
    assert_library(m, mar_session_create(model, vae, p, DEMO_IMAGES, &s));
    assert_session(s, mar_session_begin(s, 0, labels, DEMO_IMAGES));
    while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_images(s, rgb[0]));
    mar_session_free(s);
    return demo_recognised(rgb[0], labels, DEMO_IMAGES);
}

/* Checks that each shortcut still writes digits: 7 of 10 right. Guessing reaches that once in 10^5. */
TEST_CASE(demo_digits)
{
    static const int modes[] = {DISA, DPMPP, GTR, LAZY_HEAD, LAZY_DPMPP_DISA};
    if (test_brief) skip();
    mar *m = open_mar(MAR_DTYPE_AUTO, 1);
    mar_model *model;
    mar_vae *vae;
    assert_library(m, mar_model_load(m, "demo", 0, &model));
    assert_library(m, mar_vae_load(m, "demo", &vae));
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        mar_params p = mode(modes[i]);
        p.num_sampling_steps = modes[i] == LAZY_HEAD ? 50 : 20;
        p.diff_upper_steps = 20, p.diff_lower_steps = 8;
        p.gtr_generation_steps = 10, p.gtr_sampling_steps = 12;
        const int right = recognised(m, model, vae, &p);
        if (right < 7) fail_msg("mode %d: %d of %d digits", modes[i], right, DEMO_IMAGES);
    }
    mar_vae_free(vae);
    mar_model_free(model);
    mar_close(m);
}

static void solve(mar *m, mar_model *model, mar_sampler sampler, int steps, float *tokens)
{
    mar_session *s;
    mar_params p = defaults(1, steps);
    p.sampler = sampler;
    assert_library(m, mar_session_create(model, NULL, &p, 1, &s));
    assert_session(s, mar_session_begin(s, 3, (int[]){4}, 1));
    assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_tokens(s, tokens));
    mar_session_free(s);
}

/* Checks that the solvers converge to one result with many steps, the second-order one faster. */
TEST_CASE(solvers_converge)
{
    if (test_brief) skip();
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_model *model;
    assert_library(m, mar_model_load(m, "demo", 0, &model));
    static float limit[DEMO_TOKENS], tokens[DEMO_TOKENS];
    double error[2][2];
    solve(m, model, MAR_SAMPLER_DPMPP, 327, limit);
    for (int i = 0; i < 4; i++) {
        solve(m, model, i / 2 ? MAR_SAMPLER_DPMPP : MAR_SAMPLER_DDIM, i % 2 ? 99 : 25, tokens);
        error[i / 2][i % 2] = relative_error(tokens, limit, DEMO_TOKENS);
    }
    const double ddim = error[0][0] / error[0][1]; /* first order: a quarter of the step, a quarter of the error */
    assert_true(ddim > 3 && ddim < 6);
    assert_true(error[1][0] < 0.6 * error[0][0] && error[1][1] < 0.6 * error[0][1] && error[1][1] < 5e-3);
    mar_model_free(model);
    mar_close(m);
}

/* --- refusals ----------------------------------------------------------------------------------------------------- */

TEST_CASE(refuses)
{
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_model *model;
    mar_session *s;
    assert_library(m, mar_model_load(m, small, 0, &model));
    mar_params bad[9];
    const char *says[9];
    int n = 0;
    for (int i = 0; i < 9; i++) bad[i] = defaults(16, 10);
#define REFUSED(text, ...)                                                                                             \
    do {                                                                                                               \
        mar_params *p = &bad[n];                                                                                       \
        __VA_ARGS__;                                                                                                   \
        says[n++] = text;                                                                                              \
    } while (0)
    REFUSED("--diff_upper_steps 5 and --diff_lower_steps 6", p->diff_annealing = MAR_ANNEAL_LINEAR,
            p->diff_upper_steps = 5, p->diff_lower_steps = 6);
    REFUSED("--diff_lower_steps 1: expected a whole number from 2", p->diff_annealing = MAR_ANNEAL_LINEAR,
            p->diff_lower_steps = 1);
    REFUSED("--temperature 0.9: expected 1", p->sampler = MAR_SAMPLER_DPMPP, p->temperature = 0.9f);
    REFUSED("--sampler and --head_spec do not go together: --sampler changes the update of a diffusion step, which "
            "--head_spec "
            "needs unchanged",
            p->sampler = MAR_SAMPLER_DDIM, p->head_spec = 4);
    REFUSED(
        "--lazy and --draft do not go together: --lazy changes the transformer passes, which --draft needs unchanged",
        p->draft = model, p->lazy = 1);
    REFUSED("--diff_annealing changes the numbers of diffusion steps, which --gtr needs unchanged", p->gtr = 1,
            p->diff_annealing = MAR_ANNEAL_COSINE);
    REFUSED("expected --num_iter 7 or more", p->lazy = 1, p->num_iter = 6);
    REFUSED("--gtr_generation_steps 33: expected 1..32", p->gtr = 1, p->gtr_generation_steps = 33);
    REFUSED("--gtr_sampling_steps 1: expected 0, or 2..10", p->gtr = 1, p->gtr_sampling_steps = 1);
#undef REFUSED
    for (int i = 0; i < n; i++) {
        assert_int_equal(mar_session_create(model, NULL, &bad[i], 1, &s), MAR_EARG);
        assert_null(s);
        if (!strstr(mar_error(m), says[i])) fail_msg("'%s' lacks '%s'", mar_error(m), says[i]);
    }
    mar_model_free(model);
    mar_close(m);
}
