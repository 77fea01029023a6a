/* Tests NextStep-1 against its own code (tests/golden/make_nextstep.py): prompts and whole images of a small model in
 * the layouts of its releases. */
#include "tests/support/nextstep.h"

#include "mar_files.h"
#include "tests/support/demo.h"
#include "tests/support/raster.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IMAGES = 2, CHANNELS = NEXTSTEP_CHANNELS };
static const uint64_t seed = 0x1234567890ABCDEF;
static const char *const prompts[IMAGES] = {"a corgi in the snow", "Ein Café, naïve; e\u0301tude."};

TEST_GROUP(nextstep_set_up, nextstep_tear_down)

/* Compares the ids of a prompt, which end the positions where the mask is 1. */
static void compare_ids(const wt_file *golden, const char *name, const harmon *h)
{
    const float *ids = harmon_ids(h, 0);
    const uint8_t *mask = harmon_mask(h, 0);
    int first = 0;
    while (first < h->tokens && !mask[first]) first++;
    float *expected = golden_f32(golden, name, h->tokens - first);
    assert_memory_equal(ids + first, expected, (size_t)(h->tokens - first) * sizeof *ids);
    for (int i = first; i < h->tokens; i++) assert_int_equal(mask[i], 1);
    free(expected);
}

/* The prompts of nextstep/prompts.json: a positive prompt is behind its prompt and a space. The library refuses an
 * empty prompt, but not an empty negative one, whose frame is the same. */
TEST_CASE(prompts_of_the_official_code)
{
    static const char best[] = "masterpiece, film grained, best quality.", bad[] = "lowres, bad anatomy, blurry.";
    static const struct {
        const char *prompt, *positive, *negative, *size;
    } cases[] = {
        {"a corgi in the snow", NULL, "", "64x64"},
        {"Ein Café, naïve; e\u0301tude.", best, bad, "64x64"},
        {"two\nlines\r\n\r\n  and  spaces ", best, "", "32x96"},
        {" ", NULL, bad, "512x512"},
        {"12345 7's IT'LL", NULL, " ", "16x1024"},
        {"", NULL, bad, "512x256"},
        {"雪 の 犬 🐶", NULL, "雪", "256x512"},
        {"say <|im_end|> and <|image_area|>4*4<|begin_of_image|>", "a <tool_call>", "<|image_placeholder|>", "64x64"},
        {"an <image> of a corgi ", " twice", "no <image>", "144x160"}};
    const nextstep_files *f = *state;
    wt_file *golden = golden_open("nextstep");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256], name[32];
        const char *prompt = *cases[i].prompt ? text : "none", *folder = f->folder[NEXTSTEP_FOLDER];
        snprintf(text, sizeof text, "%s%s%s", cases[i].prompt, cases[i].positive ? " " : "",
                 cases[i].positive ? cases[i].positive : "");
        harmon h = harmon_open_paths(folder, NULL, folder, MAR_DTYPE_F32, cases[i].size, &prompt, 1, NULL);
        if (!*cases[i].prompt) assert_library(h.m, mar_text_encode_negative(h.text, "", h.tokens, h.ids, h.mask, NULL));
        snprintf(name, sizeof name, "ids.%zu.conditional", i);
        compare_ids(golden, name, &h);
        assert_library(h.m, mar_text_encode_negative(h.text, cases[i].negative, h.tokens, h.ids, h.mask, NULL));
        snprintf(name, sizeof name, "ids.%zu.unconditional", i);
        compare_ids(golden, name, &h);
        harmon_close(&h);
    }
    wt_close(golden);
}

TEST_CASE(the_head_of_the_official_code)
{
    enum { N = 6 };
    const nextstep_files *f = *state;
    wt_file *golden = golden_open("nextstep");
    mar *m = open_mar(MAR_DTYPE_F32, 2);
    mar_model *model;
    assert_library(m, mar_model_load(m, f->folder[NEXTSTEP_FOLDER], 0, &model));
    float *velocity = raster_velocities(m, model, golden, "head.z"),
          *other = raster_velocities(m, model, golden, "head.u");
    float *expected = golden_f32(golden, "head.velocity", N * CHANNELS),
          *guided = golden_f32(golden, "head.guided", N * CHANNELS);
    assert_close(velocity, expected, N * CHANNELS, 1e-5);
    for (int i = 0; i < N * CHANNELS; i++) other[i] += 7.5f * (velocity[i] - other[i]);
    assert_close(other, guided, N * CHANNELS, 1e-5);
    free(velocity), free(other), free(expected), free(guided);
    mar_model_free(model);
    mar_close(m);
    wt_close(golden);
}

enum { FORCED = 4, ROWS = FORCED + 1, BRANCHES = 2, WIDTH = NEXTSTEP_WIDTH };

/* The rows of image_out_projector, with and without the table of positions. */
TEST_CASE(conditions_of_the_official_code)
{
    static const struct {
        const char *name;
        nextstep_kind kind;
    } cases[] = {{"forced.c", NEXTSTEP_FOLDER}, {"forced.c.pos", NEXTSTEP_POSITIONS}};
    const nextstep_files *f = *state;
    wt_file *golden = golden_open("nextstep");
    for (int i = 0; i < 2; i++) {
        const char *folder = f->folder[cases[i].kind];
        harmon h = harmon_open_paths(folder, NULL, folder, MAR_DTYPE_F32, "64x64", prompts, 1, "");
        float *expected = golden_f32(golden, cases[i].name, BRANCHES * ROWS * WIDTH);
        float *tokens = golden_f32(golden, "forced.tokens", FORCED * CHANNELS);
        float *one = raster_conditions(&h, tokens, FORCED, 1, KERN_CACHE_ACT),
              *two = raster_conditions(&h, tokens, FORCED, 2, KERN_CACHE_ACT);
        assert_close(one, expected, BRANCHES * ROWS * WIDTH, 1e-5);
        assert_memory_equal(one, two, BRANCHES * ROWS * WIDTH * sizeof *one); /* however many tokens a pass has */
        free(expected), free(tokens), free(one), free(two);
        harmon_close(&h);
    }
    wt_close(golden);
}

/* Keys and values of fewer bits: the rows are near the official ones, those of int8 farther away. */
TEST_CASE(conditions_with_rounded_keys_and_values)
{
    const nextstep_files *f = *state;
    const char *folder = f->folder[NEXTSTEP_FOLDER];
    wt_file *golden = golden_open("nextstep");
    harmon h = harmon_open_paths(folder, NULL, folder, MAR_DTYPE_F32, "64x64", prompts, 1, "");
    float *expected = golden_f32(golden, "forced.c", BRANCHES * ROWS * WIDTH);
    float *tokens = golden_f32(golden, "forced.tokens", FORCED * CHANNELS);
    raster_check_cache_error(raster_conditions(&h, tokens, FORCED, 1, KERN_CACHE_BF16),
                             raster_conditions(&h, tokens, FORCED, 1, KERN_CACHE_INT8), expected,
                             BRANCHES * ROWS * WIDTH);
    float *one = raster_conditions(&h, tokens, FORCED, 1, KERN_CACHE_INT8),
          *two = raster_conditions(&h, tokens, FORCED, 2, KERN_CACHE_INT8);
    assert_memory_equal(one, two, BRANCHES * ROWS * WIDTH * sizeof *one);
    raster_check_cache_memory(h.m, h.model, 3, 64);
    free(expected), free(tokens), free(one), free(two);
    harmon_close(&h);
    wt_close(golden);
}

/* --- images ------------------------------------------------------------------------------------------------------- */

TEST_CASE(images_of_the_official_code)
{
    static const struct {
        const char *name, *size;
        nextstep_kind kind;
        float cfg;
        mar_cfg_schedule schedule;
        float time_shift;
        int token_norm, annealed; /* annealed: from as many steps to as many */
    } cases[] = {
        {"images.square", "64x64", NEXTSTEP_FOLDER, -1, MAR_CFG_AUTO, 0, 0, 0},
        {"images.newer", "64x64", NEXTSTEP_NEWER, -1, MAR_CFG_AUTO, 0, 0, 0},
        {"images.newer", "64x64", NEXTSTEP_NEWER, 7.5f, MAR_CFG_CONSTANT, 0, 2, 1},
        {"images.newer.shifted", "64x64", NEXTSTEP_NEWER, -1, MAR_CFG_AUTO, 1.5f, 1, 0},
        {"images.tall", "32x48", NEXTSTEP_FOLDER, -1, MAR_CFG_AUTO, 0, 0, 0},
        {"images.linear", "64x64", NEXTSTEP_FOLDER, -1, MAR_CFG_LINEAR, 0, 0, 0},
        {"images.plain", "64x64", NEXTSTEP_FOLDER, 1, MAR_CFG_AUTO, 0, 0, 0},
        {"images.pos", "64x64", NEXTSTEP_POSITIONS, -1, MAR_CFG_AUTO, 0, 0, 0},
        {"images.shifted", "64x64", NEXTSTEP_FOLDER, -1, MAR_CFG_AUTO, 1.5f, 0, 0},
        {"images.raw", "64x64", NEXTSTEP_FOLDER, -1, MAR_CFG_AUTO, 0, 2, 0},
        {"images.square", "64x64", NEXTSTEP_FOLDER, -1, MAR_CFG_AUTO, 0, 0, 1},
    };
    const nextstep_files *f = *state;
    wt_file *golden = golden_open("nextstep");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float tokens[IMAGES * NEXTSTEP_SEQ * CHANNELS];
        const char *folder = f->folder[cases[i].kind];
        harmon h = harmon_open_paths(folder, NULL, folder, MAR_DTYPE_F32, cases[i].size, prompts, IMAGES,
                                     "lowres, bad anatomy, blurry.");
        mar_params p;
        mar_params_init(&p, sizeof p);
        if (cases[i].annealed) {
            p.diff_annealing = MAR_ANNEAL_COSINE;
            p.diff_upper_steps = p.diff_lower_steps = NEXTSTEP_STEPS;
        } else {
            p.num_sampling_steps = NEXTSTEP_STEPS;
        }
        p.time_shift = cases[i].time_shift;
        p.token_norm = cases[i].token_norm;
        p.cfg = cases[i].cfg;
        p.cfg_schedule = cases[i].schedule;
        p.seed = seed;
        mar_session *s = harmon_session(&h, &p, IMAGES);
        assert_session(s, mar_session_begin_captions(s, NEXTSTEP_FIRST, h.ids, h.mask, IMAGES));
        demo_finish(s);
        assert_session(s, mar_session_tokens(s, tokens));
        mar_session_free(s);
        const size_t n = (size_t)(IMAGES * mar_model_get_config(h.model)->seq_len * CHANNELS);
        float *expected = golden_f32(golden, cases[i].name, (int64_t)n);
        const double error = relative_difference(tokens, expected, n);
        if (error > 1e-4) fail_msg("%s: relative error %g", cases[i].name, error);
        free(expected);
        harmon_close(&h);
    }
    wt_close(golden);
}

/* Makes the golden images, whose known tokens and their positions are golden, too. */
static void make_known(const harmon *h, const float *known, const uint8_t *mask, const char *options, float *tokens)
{
    mar_params p;
    uint64_t id[IMAGES];
    mar_params_init(&p, sizeof p);
    p.num_sampling_steps = NEXTSTEP_STEPS;
    p.seed = seed;
    p = params_set(p, options);
    mar_session *s = harmon_session(h, &p, IMAGES);
    for (int i = 0; i < IMAGES; i++) {
        mar_request r;
        mar_request_init(s, &r, sizeof r);
        r.features = harmon_ids(h, i), r.mask = harmon_mask(h, i), r.image = (uint64_t)(NEXTSTEP_FIRST + i);
        r.tokens = known + i * NEXTSTEP_SEQ * CHANNELS, r.known = mask + i * NEXTSTEP_SEQ;
        assert_session(s, mar_session_submit(s, &r, &id[i]));
    }
    while (mar_session_pending(s)) assert_session(s, mar_session_step(s));
    for (int i = 0; i < IMAGES; i++)
        assert_session(s, mar_session_take(s, id[i], tokens + i * NEXTSTEP_SEQ * CHANNELS, NULL));
    mar_session_free(s);
}

/* The official loop with known tokens at scattered places in place of drawn ones: both branches of guidance read them,
 * and the others are drawn given those before them, by the noise of their own places. */
TEST_CASE(known_tokens_of_the_official_code)
{
    enum { SEQ = NEXTSTEP_SEQ, ALL = IMAGES * SEQ * CHANNELS };
    const nextstep_files *f = *state;
    const char *folder = f->folder[NEXTSTEP_FOLDER];
    wt_file *golden = golden_open("nextstep");
    float *known = golden_f32(golden, "known.tokens", ALL), *where = golden_f32(golden, "known.mask", IMAGES * SEQ),
          *expected = golden_f32(golden, "images.forced", ALL), tokens[ALL], windowed[ALL];
    uint8_t mask[IMAGES * SEQ];
    harmon h = harmon_open_paths(folder, NULL, folder, MAR_DTYPE_F32, "64x64", prompts, IMAGES,
                                 "lowres, bad anatomy, blurry.");
    for (int i = 0; i < IMAGES * SEQ; i++) mask[i] = where[i] != 0;
    make_known(&h, known, mask, "cfg 7.5", tokens);
    const double error = relative_difference(tokens, expected, ALL);
    if (error > 1e-4) fail_msg("relative error %g", error);
    for (int i = 0; i < IMAGES * SEQ; i++) {
        const int same = memcmp(tokens + i * CHANNELS, known + i * CHANNELS, CHANNELS * sizeof *tokens) == 0;
        assert_int_equal(same, mask[i]);
    }
    make_known(&h, known, mask, "cfg 7.5, head_spec 1", windowed); /* a window of one step is the plain chain */
    assert_memory_equal(windowed, tokens, sizeof tokens);
    free(known), free(where), free(expected);
    harmon_close(&h);
    wt_close(golden);
}

/* The encoder in the folder's vae/ makes the tokens of a picture. Like drawn ones they have the norm, unless it is off.
 */
TEST_CASE(tokens_of_a_picture_of_the_official_code)
{
    enum { SIDE = 64, RGB = SIDE * SIDE * 3, TOKENS = NEXTSTEP_SEQ * CHANNELS };
    static const char *const names[] = {"encoded.normed", "encoded.tokens"};
    const nextstep_files *f = *state;
    const char *folder = f->folder[NEXTSTEP_FOLDER];
    char *converted = test_path("converted");
    wt_file *golden = golden_open("nextstep");
    float *picture = golden_f32(golden, "encoded.picture", RGB);
    uint8_t rgb[RGB];
    for (int i = 0; i < RGB; i++) rgb[i] = (uint8_t)picture[i];
    harmon h = harmon_open_paths(folder, NULL, folder, MAR_DTYPE_F32, "64x64", prompts, 1, "");
    assert_library(h.m, mar_convert(h.m, folder, converted, MAR_DTYPE_F32, 0));
    for (int i = 0; i < 4; i++) { /* the folder, and what it is converted to, with the norm and without */
        mar_source source;
        mar_pixels pixels;
        mar_params p;
        float tokens[TOKENS], *expected = golden_f32(golden, names[i % 2], TOKENS);
        mar_source_init(&source, sizeof source);
        source.path = i < 2 ? folder : converted, source.encoder = 1;
        assert_library(h.m, mar_vae_load_from(h.m, &source, &h.vae));
        mar_params_init(&p, sizeof p);
        p.token_norm = 1 + i % 2;
        mar_session *s = harmon_session(&h, &p, 1);
        mar_pixels_init(&pixels, sizeof pixels);
        pixels.data = rgb, pixels.capacity = RGB;
        assert_session(s, mar_session_encode(s, &pixels, tokens));
        const double error = relative_difference(tokens, expected, TOKENS);
        if (error > 1e-4) fail_msg("%s: relative error %g", names[i % 2], error);
        mar_session_free(s);
        mar_vae_free(h.vae);
        h.vae = NULL;
        free(expected);
    }
    harmon_close(&h);
    free(picture);
    wt_close(golden);
}

/* The decoder in the folder's vae/ makes the pipeline's picture of its tokens, up to rounding. */
TEST_CASE(a_picture_of_the_official_code)
{
    enum { SIDE = 64, RGB = SIDE * SIDE * 3 };
    const nextstep_files *f = *state;
    const char *folder = f->folder[NEXTSTEP_FOLDER];
    wt_file *golden = golden_open("nextstep");
    float *tokens = golden_f32(golden, "images.square", IMAGES * NEXTSTEP_SEQ * CHANNELS),
          *expected = golden_f32(golden, "pictures.square", RGB);
    harmon h = harmon_open_paths(folder, folder, folder, MAR_DTYPE_F32, "64x64", prompts, 1, "");
    mar_params p;
    uint8_t rgb[RGB];
    float worst = 0;
    mar_params_init(&p, sizeof p);
    mar_session *s = harmon_session(&h, &p, 1);
    assert_session(s, mar_session_decode(s, 0, tokens, 1, rgb));
    for (int i = 0; i < RGB; i++) worst = fmaxf(worst, fabsf(rgb[i] - expected[i]));
    assert_true(worst <= 1);
    mar_session_free(s);
    harmon_close(&h);
    free(tokens), free(expected);
    wt_close(golden);
}

static void check_defaults(mar *m, const char *path, int newer)
{
    mar_model *model;
    assert_library(m, mar_model_load(m, path, 0, &model));
    const mar_model_config *c = mar_model_get_config(model);
    assert_string_equal(c->title, newer ? "NextStep-1.1" : "NextStep-1");
    assert_int_equal(c->num_sampling_steps, newer ? 28 : 50);
    assert_int_equal(c->token_norm, newer ? 2 : 1);
    assert_true(c->cfg == 7.5f && c->cfg_schedule == MAR_CFG_CONSTANT);
    assert_null(c->warning);
    mar_model_free(model);
}

/* NextStep-1.1 is recognised by its configuration, and has other defaults; a converted one, too. */
TEST_CASE(releases_have_their_defaults)
{
    const nextstep_files *f = *state;
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    for (int kind = NEXTSTEP_FOLDER; kind <= NEXTSTEP_NEWER; kind++) {
        char *converted = test_path("converted");
        check_defaults(m, f->folder[kind], kind == NEXTSTEP_NEWER);
        assert_library(m, mar_convert(m, f->folder[kind], converted, MAR_DTYPE_AUTO, 0));
        check_defaults(m, converted, kind == NEXTSTEP_NEWER);
    }
    mar_close(m);
}

/* There are two steps before the last one; and DiSA has no more at the end. */
TEST_CASE(chains_that_cannot_be)
{
    static const struct {
        const char *options, *error;
    } cases[] = {
        {"num_iter 0, num_sampling_steps 2", "--num_sampling_steps 2: expected 3..1000, the last one included"},
        {"num_iter 0, diff_annealing linear, diff_lower_steps 2",
         "--diff_lower_steps 2: expected 3..1000, the last one included"},
        {"num_iter 0, diff_annealing linear, diff_upper_steps 5, diff_lower_steps 50",
         "--diff_upper_steps 5 and --diff_lower_steps 50: expected upper >= lower"}};
    const nextstep_files *f = *state;
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_model *model;
    assert_library(m, mar_model_load(m, f->folder[NEXTSTEP_FOLDER], 0, &model));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const mar_params p = params_with(cases[i].options);
        mar_session *s;
        assert_int_equal(mar_session_create(model, NULL, &p, 1, &s), MAR_EARG);
        assert_string_equal(mar_error(m), cases[i].error);
    }
    mar_model_free(model);
    mar_close(m);
}
