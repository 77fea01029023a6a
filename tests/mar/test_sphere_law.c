/* Tests the distribution of speculation inside the head of a flow: that of the plain chain of Euler-Maruyama steps,
 * with any window, and not that of mutants. The head is demo-sphere's, with conditions of its own images. */
#include "diffusion/speculate.h"
#include "mar.h"
#include "mar/core/handle.h"
#include "mar/raster_model.h"
#include "nets/causal_runner.h"
#include "tests/support/brief.h"
#include "tests/support/statistics.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ = 64, C = 16, IMAGES = 4, SOURCES = 16, STEPS = 8 };
/* Draws of each condition. A sanitizer has fewer, too few to detect mutants. */
enum { DRAWS = test_brief ? 16 : 512, N = DRAWS * SOURCES };
static const uint64_t seed = 20261124;

/* A chain with conditions z [2][SOURCES][D] of tokens all over the images. */
typedef struct {
    mar *m;
    kern_queue *k;
    mar_model *model;
    diff_chain chain;
    void *memory;
    float *z; /* backend */
    float cfg[SOURCES];
    uint64_t seed[SOURCES], image[SOURCES];
    int position[SOURCES];
} fixture;

static void *device_array(kern_queue *k, size_t bytes)
{
    void *p;
    mar_err err = {0};
    assert_ok(k->core->alloc(k->device, bytes, &p, &err), &err);
    return p;
}

/* Makes images of classes 0, 1, .. and returns their tokens [IMAGES][SEQ][C]. The caller frees them. */
static float *make_images(const fixture *f)
{
    mar_params p = params_with("num_iter 0, num_sampling_steps 20, cfg 2.9");
    float *tokens = malloc(IMAGES * SEQ * C * sizeof *tokens);
    int label[IMAGES];
    mar_session *s;
    assert_non_null(tokens);
    for (int i = 0; i < IMAGES; i++) label[i] = i;
    assert_library(f->m, mar_session_create(f->model, NULL, &p, IMAGES, &s));
    assert_session(s, mar_session_begin(s, 0, label, IMAGES));
    while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_tokens(s, tokens));
    mar_session_free(s);
    return tokens;
}

/* Computes the conditions of each image's tokens in both branches, and takes every sixteenth. */
static void make_conditions(fixture *f)
{
    const mar_raster_model *model = mar_raster_model_of(f->model);
    const int width = model->facts.net.width, rows = IMAGES * SEQ;
    float *tokens = make_images(f), *x = device_array(f->k, (size_t)rows * C * 4);
    float *all = device_array(f->k, 2 * (size_t)rows * (size_t)width * 4);
    causal_runner *r;
    int label[IMAGES];
    mar_err err = {0};
    int source[SEQ], to[SEQ], index[2 * SOURCES];
    const causal_sampling guided = {.cfg = 2};
    assert_ok(causal_runner_create(f->k, model->net, &guided, IMAGES, SEQ - 1, 0, &r, &err), &err);
    void *memory = device_array(f->k, causal_runner_lay_out(r, NULL));
    causal_runner_lay_out(r, memory);
    assert_ok(causal_runner_plan(r, IMAGES, &err), &err);
    f->k->core->upload(f->k, x, tokens, (size_t)rows * C * 4);
    for (int i = 0; i < IMAGES; i++) label[i] = i;
    causal_runner_begin(r, IMAGES, label);
    causal_vectors_begin(r, NULL);
    for (int i = 0; i < 2 * IMAGES; i++) causal_vectors_want_first(r, i % IMAGES, i / IMAGES, i * SEQ);
    causal_vectors_run(r, all);
    causal_vectors_begin(r, x);
    for (int i = 0; i < 2 * IMAGES; i++) {
        for (int j = 0; j < SEQ - 1; j++) source[j] = i % IMAGES * SEQ + j, to[j] = j + 1;
        causal_vectors_add(r, i % IMAGES, i / IMAGES, 0, SEQ - 1, source, SEQ - 1, to, i * SEQ);
    }
    causal_vectors_run(r, all);
    for (int i = 0; i < SOURCES; i++) {
        const int at = (i * rows + rows / 2) / SOURCES;
        index[i] = at, index[SOURCES + i] = rows + at;
        f->position[i] = at % SEQ;
        f->cfg[i] = 1 + 1.9f * (float)(at % SEQ) / SEQ;
    }
    f->z = device_array(f->k, 2 * SOURCES * (size_t)width * 4);
    f->k->core->copy_rows(f->k, f->z, NULL, all, index, NULL, NULL, 2 * SOURCES, width);
    f->k->core->finish(f->k);
    assert_ok(kern_check(f->k, &err), &err);
    causal_runner_free(r);
    void *arrays[] = {x, all, memory};
    for (int i = 0; i < 3; i++) f->k->core->free(f->k->device, arrays[i]);
    free(tokens);
}

static void open_fixture(fixture *f, int steps, float shift)
{
    const diff_spec spec = {MAR_SAMPLER_DDPM, steps, DIFF_TOP, .process = DIFF_FLOW, .shift = shift};
    mar_err err = {0};
    *f = (fixture){.m = open_mar(MAR_DTYPE_F32, 1)};
    assert_library(f->m, mar_model_load(f->m, "demo-sphere", 0, &f->model));
    f->k = queue_of(f->m);
    make_conditions(f);
    const diff_head *head = &mar_raster_model_of(f->model)->head;
    assert_ok(diff_chain_create_for(f->k, head, &spec, 1, 1, SOURCES, 1, &f->chain, &err), &err);
    f->memory = device_array(f->k, diff_chain_lay_out(&f->chain, NULL));
    diff_chain_lay_out(&f->chain, f->memory);
    assert_ok(diff_chain_plan(&f->chain, SOURCES, &err), &err);
}

static void close_fixture(fixture *f)
{
    diff_chain_free(&f->chain);
    f->k->core->free(f->k->device, f->memory);
    f->k->core->free(f->k->device, f->z);
    free_queue(f->k);
    mar_model_free(f->model);
    mar_close(f->m);
}

/* Gives draw number n its own noise. */
static void set_draw(fixture *f, int n, uint64_t key)
{
    for (int i = 0; i < SOURCES; i++) f->image[i] = (uint64_t)(n * SOURCES + i), f->seed[i] = key;
}

/* x [DRAWS][SOURCES][C] */
static void draw_plain(fixture *f, uint64_t key, float *x)
{
    for (int n = 0; n < DRAWS; n++, x += SOURCES * C) {
        set_draw(f, n, key);
        diff_chain_sample(&f->chain, f->z, SOURCES, f->cfg, f->seed, f->image, f->position, x);
    }
}

static diff_speculation_stats draw_speculative(fixture *f, int window, const kern_gaussian_rule *rule, int draws,
                                               float *x)
{
    diff_speculation s;
    diff_speculation_stats stats = {0};
    mar_err err = {0};
    assert_ok(diff_speculate_create(&f->chain, NULL, window, 0, &s, &err), &err);
    void *memory = device_array(f->k, diff_speculate_lay_out(&s, NULL));
    diff_speculate_lay_out(&s, memory);
    assert_ok(diff_speculate_plan(&s, SOURCES, SOURCES, &err), &err);
    if (rule) s.w.rule = *rule;
    for (int n = 0; n < draws; n++, x += SOURCES * C) {
        set_draw(f, n, seed);
        const diff_tokens tokens = {.count = SOURCES,
                                    .sources = SOURCES,
                                    .z = f->z,
                                    .cfg = f->cfg,
                                    .seed = f->seed,
                                    .image = f->image,
                                    .position = f->position};
        diff_speculate_sample(&s, &tokens, x, NULL, &stats);
    }
    assert_ok(kern_check(f->k, &err), &err);
    diff_speculate_free(&s);
    f->k->core->free(f->k->device, memory);
    return stats;
}

/* Returns whether two tests accept x as drawn from the plain chain's law, as in tests/diffusion/test_speculate.c: an
 * energy distance to the plain chain with the same noise, and Kolmogorov-Smirnov by channel with other noise. */
static int same_law(const float *x, const float *plain, const float *other)
{
    const double energy = stat_energy_p(x, plain, N, C, 1, 5);
    float *a = malloc(sizeof *a * N), *b = malloc(sizeof *b * N);
    double least = 1;
    assert_true(a && b);
    for (int c = 0; c < C; c++) {
        for (int i = 0; i < N; i++) a[i] = x[i * C + c], b[i] = other[i * C + c];
        least = fmin(least, stat_ks_two_sample_p(a, N, b, N));
    }
    free(a), free(b);
    print_message("    energy distance p = %.2f, least Kolmogorov-Smirnov p = %.2g\n", energy, least);
    return energy > 0.01 && least > 1e-4;
}

static int (*real_propose)(kern_queue *k, kern_speculation *w, const kern_speculation_head *draft);

/* A mutant: moves every q towards the drawn state, as if an evaluation that depends on the noise had refined it. */
static int propose_knowing(kern_queue *k, kern_speculation *w, const kern_speculation_head *draft)
{
    const int unfinished = real_propose(k, w, draft);
    for (int row = 0; row + 1 < w->rows; row++)
        for (int c = 0; c < C && w->row_token[row + 1] == w->row_token[row]; c++) {
            float *mean = &w->mean_q[row * C + c];
            *mean += 0.3f * (w->state[(row + 1) * C + c] - *mean);
        }
    return unfinished;
}

TEST_CASE(same_law_as_the_plain_chain)
{
    static const struct {
        const char *name;
        kern_gaussian_rule rule;
        int knowing;
    } mutants[] = {{"accepts always", {.temper = 1, .path_accept = 1e9}, 0},
                   {"redraws from p", {.temper = 1, .path_scale = -1e9}, 0},
                   {"q knows the noise", {.temper = 1}, 1}};
    fixture f;
    open_fixture(&f, STEPS, 1);
    float *x = malloc(3 * (size_t)N * C * sizeof *x);
    assert_non_null(x);
    float *plain = x + N * C, *other = plain + N * C;
    draw_plain(&f, seed, plain);
    draw_plain(&f, seed + 1, other);
    for (int window = 4; window <= (test_all ? 16 : 4); window *= 4) {
        const diff_speculation_stats stats = draw_speculative(&f, window, NULL, DRAWS, x);
        print_message("window %2d: %.2f calls a token of %d, accepted %.3f\n", window,
                      (double)stats.calls / (double)stats.tokens, STEPS + 1,
                      (double)stats.accepted / (double)(stats.accepted + stats.rejected));
        assert_true(stats.rejected > N / 2);
        assert_true(same_law(x, plain, other));
    }
    for (size_t i = 0; !test_brief && i < sizeof mutants / sizeof *mutants; i++) {
        kern_head_ops ops = *f.k->head;
        const kern_head_ops *real = f.k->head;
        real_propose = ops.speculate_propose;
        if (mutants[i].knowing) ops.speculate_propose = propose_knowing;
        f.k->head = &ops;
        draw_speculative(&f, 8, &mutants[i].rule, DRAWS, x);
        f.k->head = real;
        print_message("mutant: %s\n", mutants[i].name);
        assert_false(same_law(x, plain, other));
    }
    free(x);
    close_fixture(&f);
}

/* NextStep-1's chain has a shift of time. */
TEST_CASE(same_law_with_a_shifted_time)
{
    fixture f;
    open_fixture(&f, STEPS, 3);
    float *x = malloc(3 * (size_t)N * C * sizeof *x);
    assert_non_null(x);
    float *plain = x + N * C, *other = plain + N * C;
    draw_plain(&f, seed, plain);
    draw_plain(&f, seed + 1, other);
    const diff_speculation_stats stats = draw_speculative(&f, 4, NULL, DRAWS, x);
    print_message("rejected %lld of %d\n", (long long)stats.rejected, N);
    assert_true(stats.rejected > N / 8);
    assert_true(same_law(x, plain, other));
    free(x);
    close_fixture(&f);
}

/* Checks the project's goals: sequential calls of a token's chain of 101. */
TEST_CASE(fewer_calls)
{
    static const struct {
        int window;
        double calls;
    } goals[] = {{8, 16}, {16, 10}};
    fixture f;
    open_fixture(&f, 100, 1);
    float x[4 * SOURCES * C];
    for (size_t i = 0; i < sizeof goals / sizeof *goals; i++) {
        const diff_speculation_stats stats = draw_speculative(&f, goals[i].window, NULL, 4, x);
        const double calls = (double)stats.calls / (double)stats.tokens;
        print_message("window %2d: %.2f calls a token of 101, at most %d\n", goals[i].window, calls, stats.calls_max);
        assert_true(calls <= goals[i].calls);
    }
    close_fixture(&f);
}
