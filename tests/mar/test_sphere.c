/* Tests SphereAR's model against its own code (tests/golden/make_sphere.py): the head, the transformer's conditions,
 * and whole images by the same noise. And the promises of mar.h for this family. */
#include "mar.h"
#include "mar_measure.h"
#include "mar/core/handle.h"
#include "mar/raster_model.h"
#include "nets/causal_runner.h"
#include "tests/support/demo.h"
#include "tests/support/raster.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char path[] = "tests/golden/data/sphere_model.safetensors";
#define ANNEALED "diff_annealing linear, diff_upper_steps 9, diff_lower_steps 3"
enum { SEQ = 16, C = 8, D = 48, TOKENS = SEQ * C, IMAGES = 2, STEPS = 12 };

static mar_model *load(mar *m)
{
    mar_model *model;
    assert_library(m, mar_model_load(m, path, 0, &model));
    return model;
}

TEST_CASE(the_shape_is_read_from_the_tensors)
{
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_model *model = load(m);
    const mar_model_config *c = mar_model_get_config(model);
    assert_string_equal(c->family, "spherear");
    assert_int_equal(c->width, D);
    assert_int_equal(c->decoder_depth, 2);
    assert_int_equal(c->heads, 3);
    assert_int_equal(c->mlp_hidden, 256);
    assert_int_equal(c->buffer, 3);
    assert_int_equal(c->seq_len, SEQ);
    assert_int_equal(c->token_dim, C);
    assert_int_equal(c->classes, 5);
    assert_int_equal(c->head_width, 32);
    assert_int_equal(c->head_depth, 4);
    assert_int_equal(c->image_decoder, 1);
    mar_model_free(model);
    mar_close(m);
}

/* --- against the official code ------------------------------------------------------------------------------------ */

TEST_CASE(the_head_is_pytorchs)
{
    enum { N = 6 };
    wt_file *golden = golden_open("sphere");
    mar *m = open_mar(MAR_DTYPE_F32, 2);
    mar_model *model = load(m);
    float *velocity = raster_velocities(m, model, golden, "head.z"),
          *expected = golden_f32(golden, "head.velocity", N * C);
    assert_close(velocity, expected, N * C, 1e-5);
    free(velocity), free(expected);
    mar_model_free(model);
    mar_close(m);
    wt_close(golden);
}

/* Computes z [IMAGES][SEQ][D] of the golden tokens in passes of at most `most` tokens, with keys and values of this
 * type. */
static float *conditions(kern_queue *k, const mar_raster_model *model, const float *tokens, int most,
                         kern_cache_type type)
{
    static const int label[IMAGES] = {1, 3};
    causal_runner *r;
    mar_err err = {0};
    int source[SEQ], to[SEQ];
    assert_ok(causal_runner_create(k, model->net, &(causal_sampling){.cfg = 1}, IMAGES, most - 1, 0, &r, &err), &err);
    causal_runner_set_cache(r, type);
    void *memory = backend_memory(k, causal_runner_lay_out(r, NULL));
    causal_runner_lay_out(r, memory);
    assert_ok(causal_runner_plan(r, IMAGES, &err), &err);
    float *x = backend_memory(k, IMAGES * TOKENS * 4), *z = backend_memory(k, IMAGES * SEQ * D * 4);
    k->core->upload(k, x, tokens, IMAGES * TOKENS * 4);
    causal_runner_begin(r, IMAGES, label);
    causal_vectors_begin(r, NULL);
    for (int i = 0; i < IMAGES; i++) causal_vectors_want_first(r, i, 0, i * SEQ);
    causal_vectors_run(r, z);
    for (int first = 0, n; first < SEQ - 1; first += n) {
        n = SEQ - 1 - first < most ? SEQ - 1 - first : most;
        causal_vectors_begin(r, x);
        for (int i = 0; i < IMAGES; i++) {
            for (int j = 0; j < n; j++) source[j] = i * SEQ + first + j, to[j] = first + 1 + j;
            causal_vectors_add(r, i, 0, first, n, source, n, to, i * SEQ);
        }
        causal_vectors_run(r, z);
    }
    float *host = backend_floats(k, z, IMAGES * SEQ * D);
    assert_ok(kern_check(k, &err), &err);
    causal_runner_free(r);
    k->core->free(k->device, memory);
    k->core->free(k->device, x);
    k->core->free(k->device, z);
    return host;
}

TEST_CASE(the_transformer_is_pytorchs)
{
    wt_file *golden = golden_open("sphere");
    mar *m = open_mar(MAR_DTYPE_F32, 2);
    mar_model *model = load(m);
    kern_queue *k = queue_of(m);
    float *tokens = golden_f32(golden, "tokens", IMAGES * TOKENS),
          *expected = golden_f32(golden, "z", IMAGES * SEQ * D);
    const mar_raster_model *net = mar_raster_model_of(model);
    float *one = conditions(k, net, tokens, 1, KERN_CACHE_ACT), *four = conditions(k, net, tokens, 4, KERN_CACHE_ACT);
    assert_close(one, expected, IMAGES * SEQ * D, 1e-5);
    assert_memory_equal(one, four, IMAGES * SEQ * D * sizeof *one); /* however many tokens a pass has */
    raster_check_cache_error(conditions(k, net, tokens, 1, KERN_CACHE_BF16),
                             conditions(k, net, tokens, 4, KERN_CACHE_INT8), expected, IMAGES * SEQ * D);
    raster_check_cache_memory(m, model, 2, 3 + SEQ);
    free(tokens), free(expected), free(one), free(four);
    free_queue(k);
    mar_model_free(model);
    mar_close(m);
    wt_close(golden);
}

static mar_params params_of(const char *options)
{
    mar_params p = params_set(params_with("num_iter 0"), options);
    p.seed = 77;
    return p;
}

/* Generates images first .. first+n-1 in batches of `batch`. */
static void generate(mar *m, const mar_params *p, const int *labels, int first, int n, int batch, float *out)
{
    mar_model *model = load(m);
    mar_session *s;
    assert_library(m, mar_session_create(model, NULL, p, batch, &s));
    for (int i = 0; i < n; i += batch) {
        const int count = n - i < batch ? n - i : batch;
        assert_session(s, mar_session_begin(s, (uint64_t)(first + i), labels + i, count));
        while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
        assert_session(s, mar_session_tokens(s, out + i * TOKENS));
    }
    mar_session_free(s);
    mar_model_free(model);
}

TEST_CASE(images_are_pytorchs)
{
    static const struct {
        const char *name, *options;
    } cases[] = {{"sample.plain", "cfg 1, num_sampling_steps 12"},
                 {"sample.linear", "cfg 3, num_sampling_steps 12"},
                 {"sample.constant", "cfg 2, num_sampling_steps 12, cfg_schedule constant"}};
    static const int labels[IMAGES] = {1, 3};
    wt_file *golden = golden_open("sphere");
    mar *m = open_mar(MAR_DTYPE_F32, 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const mar_params p = params_of(cases[i].options);
        float tokens[IMAGES * TOKENS], *expected = golden_f32(golden, cases[i].name, IMAGES * TOKENS);
        generate(m, &p, labels, 5, IMAGES, IMAGES, tokens);
        assert_close(tokens, expected, IMAGES * TOKENS, 1e-4);
        free(expected);
    }
    mar_close(m);
    wt_close(golden);
}

/* --- promises ----------------------------------------------------------------------------------------------------- */

TEST_CASE(an_image_does_not_depend_on_its_batch)
{
    static const char *const options[] = {"cfg 3, num_sampling_steps 5",
                                          "cfg 3, num_sampling_steps 5, head_spec 4",
                                          "cfg 2, num_sampling_steps 4, sampler dpmpp",
                                          "cfg 3, " ANNEALED,
                                          "cfg 3, head_spec 4, " ANNEALED,
                                          "cfg 2, sampler ddim, " ANNEALED};
    static const int labels[3] = {1, 3, -1};
    mar *m = open_mar(MAR_DTYPE_F32, 2);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        const mar_params p = params_of(options[i]);
        float alone[3 * TOKENS], together[3 * TOKENS];
        generate(m, &p, labels, 5, 3, 1, alone);
        generate(m, &p, labels, 5, 3, 3, together);
        assert_memory_equal(alone, together, sizeof alone);
        for (int t = 0; t < 3 * SEQ; t++) { /* on the sphere */
            double squares = 0;
            for (int c = 0; c < C; c++) squares += (double)alone[t * C + c] * (double)alone[t * C + c];
            assert_float_equal(squares, C, 1e-4);
        }
    }
    mar_close(m);
}

TEST_CASE(a_window_of_one_step_is_the_plain_chain)
{
    static const int labels[IMAGES] = {1, 3};
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    const mar_params plain = params_of("cfg 3, num_sampling_steps 9"),
                     spec = params_of("cfg 3, num_sampling_steps 9, head_spec 1");
    float a[IMAGES * TOKENS], b[IMAGES * TOKENS];
    generate(m, &plain, labels, 0, IMAGES, 2, a);
    generate(m, &spec, labels, 0, IMAGES, 2, b);
    assert_memory_equal(a, b, sizeof a);
    mar_close(m);
}

TEST_CASE(annealing_between_equal_numbers_is_the_plain_chain)
{
    static const char *const with[] = {"cfg 3", "cfg 3, head_spec 4", "cfg 1, time_shift 2", "cfg 2, sampler dpmpp"};
    static const int labels[IMAGES] = {1, 3};
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    for (size_t i = 0; i < sizeof with / sizeof *with; i++)
        for (int kind = MAR_ANNEAL_LINEAR; kind <= MAR_ANNEAL_TWO_STAGE; kind++) {
            const mar_params plain = params_set(params_of(with[i]), "num_sampling_steps 9");
            mar_params p = params_set(params_of(with[i]), "diff_upper_steps 9, diff_lower_steps 9");
            p.diff_annealing = (mar_annealing)kind;
            float a[IMAGES * TOKENS], b[IMAGES * TOKENS];
            generate(m, &plain, labels, 0, IMAGES, 2, a);
            generate(m, &p, labels, 0, IMAGES, 2, b);
            assert_memory_equal(a, b, sizeof a);
        }
    mar_close(m);
}

/* Token i of n takes lower + (n-1-i)/(n-1) (upper - lower) noisy steps, rounded down, and one without noise. */
TEST_CASE(annealed_steps_fall_over_the_tokens)
{
    static const int labels[IMAGES] = {1, 3};
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_model *model = load(m);
    mar_session *s;
    mar_stats stats;
    const mar_params p = params_of("cfg 1, " ANNEALED);
    int calls = 0;
    for (int i = 0; i < SEQ; i++) calls += 3 + (SEQ - 1 - i) * 6 / (SEQ - 1) + 1;
    assert_library(m, mar_session_create(model, NULL, &p, IMAGES, &s));
    assert_session(s, mar_session_begin(s, 5, labels, IMAGES));
    while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
    mar_stats_init(&stats, sizeof stats);
    mar_session_get_stats(s, &stats);
    assert_true(stats.head_calls == IMAGES * calls && stats.head_batched == calls && stats.head_calls_max == 10);
    assert_says(mar_session_guarantee(s), "approximate: changed by diff_annealing; relative to plain sampling, ");
    mar_session_free(s);
    mar_model_free(model);
    mar_close(m);
}

/* Requests that begin at different steps, one of which has known tokens, are as images alone. */
static void join_at_any_step(const char *options)
{
    static const int labels[IMAGES] = {1, 3};
    mar *m = open_mar(MAR_DTYPE_F32, 2);
    const mar_params p = params_of(options);
    float alone[IMAGES * TOKENS], joined[IMAGES * TOKENS];
    uint8_t known[SEQ] = {1, 1, 1, 1, 1};
    uint64_t id[IMAGES];
    generate(m, &p, labels, 5, IMAGES, 1, alone);
    mar_model *model = load(m);
    mar_session *s;
    assert_library(m, mar_session_create(model, NULL, &p, IMAGES, &s));
    for (int i = 0; i < IMAGES; i++) {
        mar_request request;
        mar_request_init(s, &request, sizeof request);
        request.label = labels[i], request.cfg = 3, request.seed = 77, request.image = (uint64_t)(5 + i);
        if (i == 1) request.tokens = alone + TOKENS, request.known = known;
        assert_session(s, mar_session_submit(s, &request, &id[i]));
        for (int step = 0; step < 3; step++) assert_session(s, mar_session_step(s));
    }
    while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
    for (int i = 0; i < IMAGES; i++) assert_session(s, mar_session_take(s, id[i], joined + i * TOKENS, NULL));
    assert_memory_equal(alone, joined, TOKENS * sizeof *alone);
    assert_memory_equal(alone + TOKENS, joined + TOKENS, 5 * C * sizeof *alone);
    mar_session_free(s);
    mar_model_free(model);
    mar_close(m);
}

TEST_CASE(requests_join_at_any_step)
{
    join_at_any_step("cfg 3, num_sampling_steps 5");
    join_at_any_step("cfg 3, " ANNEALED);
}

/* The official loop with known tokens at scattered places in place of drawn ones: both branches of guidance read them,
 * and a first token that is not known is drawn in each branch. */
TEST_CASE(known_tokens_of_the_official_code)
{
    static const int labels[IMAGES] = {1, 3};
    wt_file *golden = golden_open("sphere");
    float *known = golden_f32(golden, "tokens", IMAGES * TOKENS),
          *where = golden_f32(golden, "known.mask", IMAGES * SEQ),
          *expected = golden_f32(golden, "sample.forced", IMAGES * TOKENS), made[IMAGES * TOKENS];
    mar *m = open_mar(MAR_DTYPE_F32, 2);
    mar_model *model = load(m);
    mar_params p = params_of("cfg 3, cfg_schedule linear");
    mar_session *s;
    uint64_t id[IMAGES];
    p.num_sampling_steps = STEPS;
    assert_library(m, mar_session_create(model, NULL, &p, IMAGES, &s));
    for (int i = 0; i < IMAGES; i++) {
        mar_request r;
        uint8_t mask[SEQ];
        for (int t = 0; t < SEQ; t++) mask[t] = where[i * SEQ + t] != 0;
        mar_request_init(s, &r, sizeof r);
        r.label = labels[i], r.image = (uint64_t)(5 + i), r.tokens = known + i * TOKENS, r.known = mask;
        assert_session(s, mar_session_submit(s, &r, &id[i]));
    }
    while (mar_session_pending(s)) assert_session(s, mar_session_step(s));
    for (int i = 0; i < IMAGES; i++) assert_session(s, mar_session_take(s, id[i], made + i * TOKENS, NULL));
    assert_close(made, expected, IMAGES * TOKENS, 1e-4);
    for (int t = 0; t < IMAGES * SEQ; t++)
        assert_int_equal(memcmp(made + t * C, known + t * C, C * sizeof *made) == 0, where[t] != 0);
    mar_session_free(s);
    mar_model_free(model);
    mar_close(m);
    free(known), free(where), free(expected);
    wt_close(golden);
}

/* A draft model that is the model itself: every path is accepted, and the images are the plain ones. */
TEST_CASE(paths_of_the_model_itself_are_accepted)
{
    static const int labels[IMAGES] = {1, 3};
    static const char *const options[] = {"cfg 3, num_sampling_steps 5", "cfg 1, num_sampling_steps 5",
                                          "cfg 3, " ANNEALED};
    mar *m = open_mar(MAR_DTYPE_F32, 2);
    mar_model *model = load(m), *draft = load(m);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        const mar_params plain = params_of(options[i]);
        mar_params p = params_set(plain, "spec path, gamma 4");
        p.draft = draft;
        float expected[IMAGES * TOKENS], tokens[IMAGES * TOKENS];
        mar_stats stats;
        mar_session *s;
        generate(m, &plain, labels, 5, IMAGES, IMAGES, expected);
        assert_library(m, mar_session_create(model, NULL, &p, IMAGES, &s));
        assert_session(s, mar_session_begin(s, 5, labels, IMAGES));
        while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
        assert_session(s, mar_session_tokens(s, tokens));
        assert_memory_equal(tokens, expected, sizeof tokens);
        mar_stats_init(&stats, sizeof stats);
        mar_session_get_stats(s, &stats);
        assert_int_equal(stats.drafted, IMAGES * (SEQ - 1));
        assert_int_equal(stats.accepted, IMAGES * (SEQ - 1));
        assert_true(stats.passes == 1 + 4); /* class tokens, and rounds of 4, 4, 4 and 3 tokens */
        assert_true(stats.accepted_shift == 0);
        mar_session_free(s);
    }
    mar_model_free(model);
    mar_model_free(draft);
    mar_close(m);
}

TEST_CASE(what_does_not_apply_is_refused_by_name)
{
    static const struct {
        const char *options, *error;
    } cases[] = {
        {"lazy on", "--lazy changes the transformer passes, which no option does with continuous tokens in raster "
                    "order: expected --draft, "
                    "--spec path, --head_spec, --diff_annealing, --cfg_low or --sampler"},
        {"spec cspd", "--spec cspd changes the verdicts on states, which no option does with continuous tokens in "
                      "raster order: expected "
                      "--draft, --spec path, --head_spec, --diff_annealing, --cfg_low or --sampler"},
        {"num_iter 8", "--num_iter 8: expected 0 or 16: the model makes its tokens one after another"},
        {"top_k 5", "--top_k has no effect: the model's tokens are continuous"},
        {"head_spec 4, sampler ddim", "--sampler and --head_spec do not go together: --sampler changes the "
                                      "update of a diffusion step, which --head_spec needs unchanged; expected one of "
                                      "them"},
    };
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_model *model = load(m);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const mar_params p = params_of(cases[i].options);
        mar_session *s;
        assert_int_equal(mar_session_create(model, NULL, &p, 1, &s), MAR_EARG);
        assert_string_equal(mar_error(m), cases[i].error);
    }
    mar_model_free(model);
    mar_close(m);
}
