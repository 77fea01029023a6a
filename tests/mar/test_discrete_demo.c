/* Tests the demo of discrete tokens. The built-in models load with the right kind. They write digits that the
 * classifier recognises, with and without drafts. */
#include "tests/support/demo.h"

#include "mar_measure.h"

#include "eval/classifier.h"

#include <stdlib.h>
#include <string.h>

enum { IMAGES = 20, TOKENS = 64, CODES = 256 };

static mar *library;
static mar_model *target, *draft, *eagle;
static mar_vae *decoder;

static int open_demo(void **state)
{
    (void)state;
    library = open_mar(MAR_DTYPE_AUTO, 1);
    assert_library(library, mar_model_load(library, "demo-discrete", 0, &target));
    assert_library(library, mar_model_load(library, "demo-discrete-draft", 0, &draft));
    assert_library(library, mar_model_load(library, "demo-discrete-eagle", 0, &eagle));
    assert_library(library, mar_vae_load(library, "demo-discrete", &decoder));
    return 0;
}

static int close_demo(void **state)
{
    (void)state;
    mar_vae_free(decoder);
    mar_model_free(eagle);
    mar_model_free(draft);
    mar_model_free(target);
    mar_close(library);
    return 0;
}

TEST_CASE(shapes)
{
    const mar_model_config *models[] = {mar_model_get_config(target), mar_model_get_config(draft)};
    for (int i = 0; i < 2; i++) {
        assert_string_equal(models[i]->family, "llamagen");
        assert_int_equal(models[i]->vocabulary, CODES);
        assert_int_equal(models[i]->seq_len, TOKENS);
        assert_int_equal(models[i]->token_dim, 1);
        assert_int_equal(models[i]->classes, EVAL_DIGITS);
    }
    assert_int_equal(models[0]->width, 128);
    assert_int_equal(models[1]->width, 64);
    assert_int_equal(mar_vae_get_config(decoder)->codebook, CODES);
    assert_int_equal(mar_vae_get_config(decoder)->stride, 4);
}

/* Returns the number of right answers of the classifier on a batch of images of each digit. */
static int recognised(mar_session *s, int first)
{
    static uint8_t rgb[IMAGES][DEMO_BYTES];
    static float tokens[IMAGES * TOKENS];
    int labels[IMAGES];
    for (int i = 0; i < IMAGES; i++) labels[i] = i % EVAL_DIGITS;
    assert_session(s, mar_session_begin(s, (uint64_t)first, labels, IMAGES));
    while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_tokens(s, tokens));
    assert_session(s, mar_session_images(s, rgb[0]));
    for (int i = 0; i < IMAGES * TOKENS; i++) {
        const float token = tokens[i];
        assert_true(token >= 0 && token < CODES && token == (float)(int)token);
    }
    return demo_recognised(rgb[0], labels, IMAGES);
}

/* Checks that nine of ten digits are right; weights/demo/README.md has 99 in 100. With drafts, rounds must accept
 * some. */
TEST_CASE(digits)
{
    const struct {
        mar_model *draft;
        const char *spec, *tree;
        int batches;
    } ways[] = {{NULL, NULL, NULL, 2},       {draft, "vanilla", NULL, 1},
                {eagle, "vanilla", NULL, 1}, {eagle, "vanilla", "dynamic", 1},
                {NULL, "sjd", NULL, 1},      {NULL, "scd", NULL, 1}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        mar_params p;
        mar_session *s;
        mar_stats stats = {.size = sizeof stats};
        int right = 0;
        mar_params_init(&p, sizeof p);
        p.draft = ways[i].draft;
        p.spec = ways[i].spec;
        p.gamma = 8, p.window = 16; /* by default the demo's rounds are plain: drafts do not pay */
        if (ways[i].tree) p.tree = ways[i].tree;
        assert_library(library, mar_session_create(target, decoder, &p, IMAGES, &s));
        for (int b = 0; b < ways[i].batches; b++) right += recognised(s, b * IMAGES);
        if (right < 9 * IMAGES * ways[i].batches / 10)
            fail_msg("way %zu: %d of %d digits", i, right, IMAGES * ways[i].batches);
        mar_session_get_stats(s, &stats);
        if (ways[i].spec) {
            assert_true(stats.rounds > 0);
            assert_true(stats.accepted > stats.rounds / 2);
        }
        mar_session_free(s);
    }
}

TEST_GROUP(open_demo, close_demo)
