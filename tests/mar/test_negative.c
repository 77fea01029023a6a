/* Tests the second context of guidance (mar_session_set_negative) over a small decoder that writes images among text:
 * its effect and its time, and the guarantee of sessions whose cached keys and values are rounded. */
#include "tests/support/decoders.h"
#include "tests/support/demo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 4, WIDTH = DECODER_WIDTH };

/* A model of images of 2 x 2 tokens, and captions for it. */
typedef struct {
    char *path;
    mar *m;
    mar_model *model;
    size_t positions;
    float *prompt, *negative, *other;    /* [positions] ids */
    uint8_t *mask, *few_mask, *two_mask; /* [positions] */
} fixture;

static void add_caption(const fixture *f, const int *ids, int n, float **features, uint8_t **mask)
{
    *features = malloc(f->positions * sizeof **features);
    *mask = malloc(f->positions);
    decoder_features(ids, n, (int)f->positions, *features, *mask);
}

static void open_in(fixture *f, mar_dtype dtype)
{
    static const int ids[] = {0, 40, 521, 8}, two[] = {300, 8};
    mar_options o;
    f->path = decoder_write(test_directory(), DECODER_FEW, 0);
    mar_options_init(&o, sizeof o);
    o.dtype = dtype;
    o.threads = 1;
    o.image_size = "32x32";
    assert_library(f->m, mar_open(&o, &f->m));
    assert_library(f->m, mar_model_load(f->m, f->path, 0, &f->model));
    f->positions = (size_t)mar_model_get_config(f->model)->caption_tokens;
    add_caption(f, ids, 4, &f->prompt, &f->mask);
    add_caption(f, ids + 3, 1, &f->negative, &f->few_mask);
    add_caption(f, two, 2, &f->other, &f->two_mask);
}

static void open_fixture(fixture *f)
{
    open_in(f, MAR_DTYPE_F32);
}

static void close_fixture(fixture *f)
{
    free(f->path);
    free(f->prompt), free(f->negative), free(f->other);
    free(f->mask), free(f->few_mask), free(f->two_mask);
    mar_model_free(f->model);
    mar_close(f->m);
}

static mar_session *session_for(const fixture *f, mar_params *p, int images)
{
    mar_session *s;
    p->top_k = 0;
    assert_library(f->m, mar_session_create(f->model, NULL, p, images, &s));
    return s;
}

static mar_session *session_of(const fixture *f, mar_cache cache, const char *spec, float cfg)
{
    mar_params p;
    mar_params_init(&p, sizeof p);
    p.cfg = cfg;
    p.cache_dtype = cache;
    p.spec = spec;
    p.window = TOKENS;
    return session_for(f, &p, 1);
}

static void begin(const fixture *f, mar_session *s)
{
    assert_session(s, mar_session_begin_captions(s, 0, f->prompt, f->mask, 1));
}

/* Makes the image that has begun. */
static void finish(mar_session *s, float *tokens)
{
    while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_tokens(s, tokens));
}

/* Begins an image of the prompt and makes it, for seeds that show a difference between contexts. */
static void make(const fixture *f, mar_session *s, float tokens[16 * TOKENS])
{
    for (uint64_t i = 0; i < 16; i++) {
        assert_session(s, mar_session_begin_captions(s, i, f->prompt, f->mask, 1));
        finish(s, tokens + i * TOKENS);
    }
}

/* An image in progress keeps the context that it began with. */
TEST_CASE(a_context_counts_for_images_that_begin_later)
{
    fixture f = {NULL};
    float first[16 * TOKENS], second[16 * TOKENS], again[16 * TOKENS];
    (void)state;
    open_fixture(&f);
    mar_session *s = session_of(&f, MAR_CACHE_AUTO, NULL, 6);
    assert_int_equal(mar_session_begin_captions(s, 0, f.prompt, f.mask, 1), MAR_EARG);
    assert_non_null(strstr(mar_session_error(s), "expected mar_session_set_negative before the first image"));
    assert_session(s, mar_session_set_negative(s, f.negative, f.few_mask));
    make(&f, s, first);
    assert_session(s, mar_session_set_negative(s, f.other, f.two_mask));
    make(&f, s, second);
    assert_memory_not_equal(first, second, sizeof first);
    for (uint64_t i = 0; i < 16; i++) {
        assert_session(s, mar_session_set_negative(s, f.negative, f.few_mask));
        assert_session(s, mar_session_begin_captions(s, i, f.prompt, f.mask, 1));
        assert_session(s, mar_session_step(s));
        assert_session(s, mar_session_set_negative(s, f.other, f.two_mask));
        finish(s, again + i * TOKENS);
    }
    assert_memory_equal(first, again, sizeof first);
    mar_session_free(s);
    close_fixture(&f);
}

/* Makes the images of make as requests, every second one with a context of its own. */
static void make_requests(const fixture *f, mar_session *s, float tokens[16 * TOKENS])
{
    uint64_t id[16];
    for (uint64_t i = 0; i < 16; i++) {
        mar_request r;
        mar_request_init(s, &r, sizeof r);
        r.image = i, r.features = f->prompt, r.mask = f->mask;
        if (i % 2) r.negative = f->other, r.negative_mask = f->two_mask;
        assert_session(s, mar_session_submit(s, &r, &id[i]));
    }
    while (mar_session_pending(s)) assert_session(s, mar_session_step(s));
    for (uint64_t i = 0; i < 16; i++) assert_session(s, mar_session_take(s, id[i], tokens + i * TOKENS, NULL));
}

/* A request's own context has no effect on others, with and without drafts. */
TEST_CASE(requests_have_contexts_of_their_own)
{
    fixture f = {NULL};
    float made[2][16 * TOKENS], tokens[16 * TOKENS];
    (void)state;
    open_fixture(&f);
    for (int run = 0; run < 3; run++) {
        mar_params p;
        mar_params_init(&p, sizeof p);
        p.cfg = 6;
        p.draft = run == 1 ? f.model : NULL;
        p.spec = run == 2 ? "sjd" : NULL;
        p.window = TOKENS; /* so that there are drafts */
        mar_session *s = session_for(&f, &p, 3);
        for (int own = 0; own < 2; own++) {
            assert_session(s, own ? mar_session_set_negative(s, f.other, f.two_mask)
                                  : mar_session_set_negative(s, f.negative, f.few_mask));
            make(&f, s, made[own]);
        }
        assert_memory_not_equal(made[0], made[1], sizeof made[0]);
        assert_session(s, mar_session_set_negative(s, f.negative, f.few_mask));
        make_requests(&f, s, tokens);
        for (int i = 0; i < 16; i++)
            assert_memory_equal(tokens + i * TOKENS, made[i % 2] + i * TOKENS, TOKENS * sizeof *tokens);
        mar_session_free(s);
    }
    close_fixture(&f);
}

/* A session without a context takes requests that have their own. */
TEST_CASE(a_request_needs_a_context)
{
    fixture f = {NULL};
    mar_request r;
    uint64_t id;
    (void)state;
    open_fixture(&f);
    mar_session *s = session_of(&f, MAR_CACHE_AUTO, NULL, 6);
    mar_request_init(s, &r, sizeof r);
    r.features = f.prompt, r.mask = f.mask;
    assert_int_equal(mar_session_submit(s, &r, &id), MAR_EARG);
    assert_says(mar_session_error(s), "expected mar_session_set_negative before the first image");
    r.negative_mask = f.two_mask;
    assert_int_equal(mar_session_submit(s, &r, &id), MAR_EARG);
    assert_says(mar_session_error(s), "mar_request.negative_mask without negative");
    r.negative_mask = NULL;
    r.negative = f.other; /* without a mask all positions count */
    assert_session(s, mar_session_submit(s, &r, &id));
    while (mar_session_pending(s)) assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_take(s, id, NULL, NULL));
    mar_session_free(s);
    close_fixture(&f);
}

/* What was cancelled is the batch before. */
TEST_CASE(a_context_can_be_set_behind_a_cancelled_batch)
{
    fixture f = {NULL};
    float first[TOKENS], again[TOKENS];
    (void)state;
    open_fixture(&f);
    mar_session *s = session_of(&f, MAR_CACHE_AUTO, "sjd", 6);
    assert_session(s, mar_session_set_negative(s, f.negative, f.few_mask));
    begin(&f, s);
    finish(s, first);
    assert_session(s, mar_session_set_negative(s, f.other, f.two_mask));
    begin(&f, s);
    mar_session_cancel(s);
    assert_int_equal(mar_session_step(s), MAR_ECANCELLED);
    assert_session(s, mar_session_set_negative(s, f.negative, f.few_mask));
    begin(&f, s);
    finish(s, again);
    assert_memory_equal(first, again, sizeof first);
    mar_session_free(s);
    close_fixture(&f);
}

/* A prompt that could not be read is not the one before. */
TEST_CASE(a_context_that_was_not_read_does_not_count)
{
    fixture f = {NULL};
    char command[4200];
    (void)state;
    open_fixture(&f);
    mar_session *s = session_of(&f, MAR_CACHE_AUTO, NULL, 6);
    assert_session(s, mar_session_set_negative(s, f.negative, f.few_mask));
    snprintf(command, sizeof command, "find '%s' -name '*.safetensors' -exec sh -c 'echo >>\"$1\"' - {} \\;", f.path);
    assert_int_equal(system(command), 0);
    assert_int_equal(mar_session_set_negative(s, f.other, f.two_mask), MAR_EIO);
    assert_int_equal(mar_session_begin_captions(s, 0, f.prompt, f.mask, 1), MAR_EARG);
    assert_non_null(strstr(mar_session_error(s), "expected mar_session_set_negative"));
    mar_session_free(s);
    close_fixture(&f);
}

static void expect_guarantee(const fixture *f, mar_cache cache, const char *spec, const char *text)
{
    mar_session *s = session_of(f, cache, spec, 1);
    assert_string_equal(mar_session_guarantee(s), text);
    mar_session_free(s);
}

TEST_CASE(rounded_keys_and_values_are_not_exact)
{
    fixture f = {NULL};
    (void)state;
    open_fixture(&f);
    expect_guarantee(&f, MAR_CACHE_AUTO, NULL,
                     "exact to: plain sampling, 4 steps; not the model's defaults: cfg 1 (2.9)");
    expect_guarantee(&f, MAR_CACHE_AUTO, "sjd",
                     "exact to: plain sampling, 4 steps, by speculation (sjd); not the model's defaults: cfg 1 (2.9)");
    expect_guarantee(&f, MAR_CACHE_BF16, NULL,
                     "approximate: keys and values in bf16; relative to plain sampling, 4 steps; not the model's "
                     "defaults: cfg 1 (2.9)");
    expect_guarantee(&f, MAR_CACHE_INT8, "sjd",
                     "approximate: keys and values in int8; relative to plain sampling, 4 steps; not the model's "
                     "defaults: cfg 1 (2.9)");
    close_fixture(&f);
    open_in(&f, MAR_DTYPE_INT8);
    expect_guarantee(&f, MAR_CACHE_INT8, "sjd",
                     "approximate: int8, keys and values in int8; relative to plain sampling, 4 steps; not the model's "
                     "defaults: cfg 1 (2.9)");
    close_fixture(&f);
}
