/* Compares LlamaGen's runner with gpt.py and generate.py (tests/golden/make_llamagen.py): distributions at every
 * position, with and without guidance, greedy sequences, captions. */
#include "tests/support/causal_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const mar_dtype dtypes[2] = {MAR_DTYPE_F32, MAR_DTYPE_BF16};
static const double tolerance[2] = {1e-5, 2e-2};
enum { IMAGES = 4 };

/* Returns a golden array of integers. */
static int *golden_ints(const wt_file *f, const char *name, int64_t count)
{
    float *values = golden_f32(f, name, count);
    int *ints = malloc((size_t)count * sizeof *ints);
    for (int64_t i = 0; i < count; i++) ints[i] = (int)values[i];
    free(values);
    return ints;
}

/* A case: names in the golden file */
typedef struct {
    const char *model, *tokens, *laws, *greedy;
    int seq_len; /* 0: the file's */
    int images;
    causal_sampling sampling;
} golden_case;

static void begin(const golden_case *c, causal_fixture *f, const wt_file *golden)
{
    static const int c2i[] = {3, 0}, c2i20[] = {1, 2, 3};
    const causal_shape *config = &f->model->shape;
    if (config->caption_dim) {
        const size_t positions = (size_t)c->images * (size_t)config->prefix;
        float *features = golden_f32(golden, "t2i.captions", (int64_t)positions * config->caption_dim);
        int *mask = golden_ints(golden, "t2i.masks", (int64_t)positions);
        uint8_t *bytes = malloc(positions);
        for (size_t i = 0; i < positions; i++) bytes[i] = (uint8_t)mask[i];
        causal_runner_begin_captions(f->runner, c->images, features, bytes);
        free(features), free(mask), free(bytes);
    } else {
        causal_runner_begin(f->runner, c->images, strcmp(c->model, "llamagen_c2i") == 0 ? c2i : c2i20);
    }
}

static void ask(causal_fixture *f, int images, int *const *tokens, int length)
{
    causal_request request[IMAGES];
    for (int i = 0; i < images; i++)
        request[i] = (causal_request){.sequence = i, .prefix = tokens[i], .length = length, .row = i};
    causal_fixture_laws(f, request, images);
}

/* Compares the distributions after the golden tokens, at every position. */
static void laws_case(const golden_case *c, int d)
{
    causal_fixture f;
    if (!causal_fixture_open(&f, open_queue(dtypes[d], 2), c->model, c->seq_len, &c->sampling, c->images, 0, 0,
                             c->images))
        return;
    const int n = f.seq_len, v = f.vocabulary, images = c->images;
    wt_file *golden = golden_open("llamagen");
    int *all = golden_ints(golden, c->tokens, wt_find(golden, c->tokens)->count), *tokens[IMAGES];
    float *expected = golden_f32(golden, c->laws, (int64_t)images * n * v);
    float *found = malloc(sizeof *found * (size_t)(images * n * v));
    for (int i = 0; i < images; i++) tokens[i] = all + i * n;
    begin(c, &f, golden);
    for (int t = 0; t < n; t++) {
        ask(&f, images, tokens, t);
        for (int i = 0; i < images; i++)
            memcpy(found + (i * n + t) * v, causal_fixture_law(&f, i), sizeof *found * (size_t)v);
    }
    assert_close(found, expected, (size_t)(images * n * v), tolerance[d]);
    wt_close(golden);
    free(all), free(expected), free(found);
    causal_fixture_close(&f);
}

/* Checks that temperature 0 gives the official sampler's tokens. */
static void greedy_case(const golden_case *c)
{
    causal_fixture f;
    causal_sampling sampling = c->sampling;
    sampling.temperature = 0;
    assert_true(causal_fixture_open(&f, open_queue(MAR_DTYPE_F32, 2), c->model, c->seq_len, &sampling, c->images, 0, 0,
                                    c->images));
    const int n = f.seq_len, images = c->images;
    wt_file *golden = golden_open("llamagen");
    int *expected = golden_ints(golden, c->greedy, images * n), *tokens[IMAGES];
    for (int i = 0; i < images; i++) tokens[i] = calloc((size_t)n, sizeof **tokens);
    begin(c, &f, golden);
    for (int t = 0; t < n; t++) {
        ask(&f, images, tokens, t);
        for (int i = 0; i < images; i++)
            while (tokens[i][t] < f.vocabulary && causal_fixture_law(&f, i)[tokens[i][t]] != 0) tokens[i][t]++;
    }
    for (int i = 0; i < images; i++) assert_memory_equal(tokens[i], expected + i * n, (size_t)n * sizeof *expected);
    for (int i = 0; i < images; i++) free(tokens[i]);
    wt_close(golden);
    free(expected);
    causal_fixture_close(&f);
}

static void run_cases(const golden_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        for (int d = 0; d < 2; d++) laws_case(&cases[i], d);
        if (cases[i].greedy) greedy_case(&cases[i]);
    }
}

#define SAMPLING(scale, interval)                                                                                      \
    {                                                                                                                  \
        .cfg = scale, .cfg_interval = interval, .temperature = 1, .top_p = 1                                           \
    }

TEST_CASE(classes)
{
    static const golden_case cases[] = {
        {"llamagen_c2i", "c2i.tokens", "c2i.plain", "c2i.greedy", 0, 2, SAMPLING(1, -1)},
        {"llamagen_c2i", "c2i.tokens", "c2i.guided", "c2i.greedy_guided", 0, 2, SAMPLING(2.5f, -1)},
        {"llamagen_c2i", "c2i.tokens", "c2i.interval", NULL, 0, 1, SAMPLING(2.5f, 9)},
    };
    run_cases(cases, sizeof cases / sizeof *cases);
}

/* Heads of size 20, uneven like 3B's heads of 100; and the same model with more tokens than its file states. */
TEST_CASE(uneven_heads)
{
    static const golden_case cases[] = {
        {"llamagen_c2i20", "c2i20.tokens", "c2i20.guided", "c2i20.greedy", 0, 3, SAMPLING(1.7f, -1)},
        {"llamagen_c2i20", "c2i20.large.tokens", "c2i20.large.guided", "c2i20.large.greedy", 36, 3, SAMPLING(1.7f, -1)},
    };
    run_cases(cases, sizeof cases / sizeof *cases);
}

/* Captions of 1, 66 and 120 positions; a mask with holes, also at the last position; prefixes that take two passes. */
TEST_CASE(captions)
{
    static const golden_case cases[] = {
        {"llamagen_t2i", "t2i.tokens", "t2i.plain", NULL, 0, 4, SAMPLING(1, -1)},
        {"llamagen_t2i", "t2i.tokens", "t2i.guided", "t2i.greedy", 0, 4, SAMPLING(3, -1)},
    };
    run_cases(cases, sizeof cases / sizeof *cases);
}

/* With temperature, top-k and top-p: compares with the probabilities from which sample of generate.py draws. */
TEST_CASE(filters)
{
    const golden_case c = {"llamagen_c2i20", "c2i20.tokens", "c2i20.filtered", NULL, 0, 3, {1.7f, -1, 0.8f, 20, 0.9f}};
    causal_fixture f;
    assert_true(causal_fixture_open(&f, open_queue(MAR_DTYPE_F32, 2), c.model, 0, &c.sampling, 3, 0, 0, 3));
    const int n = f.seq_len, v = f.vocabulary;
    wt_file *golden = golden_open("llamagen");
    int *all = golden_ints(golden, c.tokens, 3 * n), *const tokens[3] = {all, all + n, all + 2 * n};
    float *expected = golden_f32(golden, c.laws, 3 * n * v), *found = malloc(sizeof *found * (size_t)(3 * n * v));
    begin(&c, &f, golden);
    for (int t = 0; t < n; t++) {
        ask(&f, 3, tokens, t);
        for (int i = 0; i < 3 * v; i++) found[(i / v * n + t) * v + i % v] = expf(f.laws[i]);
    }
    assert_close(found, expected, (size_t)(3 * n * v), 1e-5);
    for (int i = 0; i < 3 * n * v; i++) assert_int_equal(found[i] > 0, expected[i] > 0);
    wt_close(golden);
    free(all), free(expected), free(found);
    causal_fixture_close(&f);
}

/* Label -1 is the unconditional class. Guidance between equal distributions changes nothing. */
TEST_CASE(unconditional)
{
    const causal_sampling guided = SAMPLING(4, -1);
    const int none[2] = {-1, 5}, token[1] = {7};
    float law[2][2][61];
    for (int g = 0; g < 2; g++) {
        causal_fixture f;
        assert_true(causal_fixture_open(&f, open_queue(MAR_DTYPE_F32, 2), "llamagen_c2i", 0,
                                        g ? &guided : &causal_fixture_plain, 2, 0, 0, 2));
        causal_runner_begin(f.runner, 2, none);
        causal_fixture_laws(&f,
                            (causal_request[]){{.sequence = 0, .prefix = token, .length = 1, .row = 1},
                                               {.sequence = 1, .prefix = token, .length = 1, .row = 0}},
                            2);
        memcpy(law[g], f.laws, sizeof law[g]);
        causal_fixture_close(&f);
    }
    assert_memory_equal(law[0][0], law[0][1], sizeof law[0][0]); /* -1 stands for class 5 */
    assert_close(law[1][0], law[0][0], 61, 1e-6);
}
