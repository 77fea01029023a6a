/* Tests Harmon and UniPic-1 against their own code (tests/golden/make_harmon.py): prompts, z of passes, and whole
 * images, of a small model in the layouts of their releases. */
#include "tests/support/harmon.h"

#include "tests/support/contexts.h"
#include "tests/support/demo.h"
#include "tests/support/support.h"
#include "tests/support/tensor_files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHANNELS = HARMON_CHANNELS, WIDTH = 128, KEPT = WIDTH / 4, IMAGES = 2, FIRST = 40, TOKENS_MAX = 24, CELL = 4 };
enum { PICTURES = IMAGES * TOKENS_MAX * CELL * CELL * 3 }; /* bytes */
static const uint64_t seed = 0x1234567890ABCDEF;
static const char *const prompts[IMAGES] = {"a corgi in the snow", "Ein Café, naïve; e\u0301tude."};

TEST_GROUP(harmon_set_up, harmon_tear_down)

/* Makes images FIRST.. of the prompts: tokens [n][seq][CHANNELS] and pixels [n][height][width][3]. */
static void generate(const harmon *h, const mar_params *p, int n, float *tokens, uint8_t *rgb)
{
    mar_session *s = harmon_session(h, p, IMAGES);
    assert_session(s, mar_session_begin_captions(s, FIRST, h->ids, h->mask, n));
    demo_finish(s);
    assert_session(s, mar_session_tokens(s, tokens));
    assert_session(s, mar_session_images(s, rgb));
    mar_session_free(s);
}

static mar_params params_of(int sets, int steps, float cfg)
{
    mar_params p;
    mar_params_init(&p, sizeof p);
    p.num_iter = sets;
    p.num_sampling_steps = steps;
    p.cfg = cfg;
    p.cfg_schedule = MAR_CFG_CONSTANT;
    p.seed = seed;
    return p;
}

/* Compares 8-bit values: tokens that differ in their last digits may be rounded to another one. */
static void compare_pictures(const wt_file *golden, const char *name, const uint8_t *rgb, size_t n)
{
    float *expected = golden_f32(golden, name, (int64_t)n);
    for (size_t i = 0; i < n; i++) assert_float_equal(rgb[i], expected[i], 1);
    free(expected);
}

/* --- comparisons -------------------------------------------------------------------------------------------------- */

/* Compares the ids of a prompt, which end the positions where the mask is 1. */
static void compare_ids(const wt_file *golden, const char *name, const harmon *h, int prompt)
{
    const float *ids = harmon_ids(h, prompt);
    const uint8_t *mask = harmon_mask(h, prompt);
    int first = 0;
    while (first < h->tokens && !mask[first]) first++;
    float *expected = golden_f32(golden, name, h->tokens - first);
    assert_memory_equal(ids + first, expected, (size_t)(h->tokens - first) * sizeof *ids);
    for (int i = first; i < h->tokens; i++) assert_int_equal(mask[i], 1);
    free(expected);
}

/* The tokenizer is a tokenizer.json, or a vocab.json with merges.txt. */
TEST_CASE(prompts_of_the_official_code)
{
    static const char *const texts[] = {"a corgi in the snow",
                                        "Ein Café, naïve; e\u0301tude.",
                                        "two\nlines\r\n\r\n  and  spaces ",
                                        " ",
                                        "12345 7's IT'LL",
                                        "雪 の 犬 🐶",
                                        "say <|im_end|> and <tool_call>"};
    static const int number[] = {0, 1, 2, 3, 4, 6, 7};
    const char *const empty = ""; /* number 5: the release has an id for the line end alone, the library refuses it */
    enum { TEXTS = sizeof texts / sizeof *texts };
    wt_file *golden = golden_open("harmon");
    for (int kind = HARMON_FOLDER; kind <= HARMON_UNIPIC; kind++) {
        harmon h = harmon_open(*state, kind, MAR_DTYPE_F32, NULL, texts, TEXTS);
        char name[32];
        for (int i = 0; i < TEXTS; i++) {
            snprintf(name, sizeof name, "ids.%d", number[i]);
            compare_ids(golden, name, &h, i);
        }
        compare_ids(golden, "ids.default", &h, TEXTS);
        assert_int_equal(mar_text_encode(h.text, &empty, 1, MAR_CLEAN_OFF, h.tokens, h.ids, h.mask, NULL), MAR_EARG);
        assert_library(h.m, mar_text_encode_negative(h.text, "blurry, text", h.tokens, h.ids, h.mask, NULL));
        compare_ids(golden, "ids.9", &h, 0);
        harmon_close(&h);
    }
    wt_close(golden);
}

static void copy_golden(const char *folder, const char *name, const char *from)
{
    bytes b = bytes_from_file(from);
    bytes_to_folder(folder, name, &b);
}

/* Encodes the prompt with <image>. Returns its status. */
static mar_status encode_picture(const harmon *h, mar_text *text)
{
    static const char *const prompt = "an <image> of a corgi";
    return mar_text_encode(text, &prompt, 1, MAR_CLEAN_OFF, h->tokens, h->ids, h->mask, NULL);
}

static void expect_picture_refused(const harmon *h, mar_text *text)
{
    static const char reason[] = "<image> is UniPic-1's token for a picture";
    assert_int_equal(encode_picture(h, text), MAR_EARG);
    assert_non_null(strstr(mar_error(h->m), reason));
    assert_int_equal(mar_text_encode_negative(text, "no <image>", h->tokens, h->ids, h->mask, NULL), MAR_EARG);
    assert_non_null(strstr(mar_error(h->m), reason));
}

/* UniPic-1's code adds <image> to the tokenizer, behind Qwen2.5's tokens. To Harmon it is text. Qwen2.5's folder does
 * not tell which model it is for. */
TEST_CASE(tokens_of_pictures_are_refused)
{
    const harmon_files *f = *state;
    wt_file *golden = golden_open("harmon");
    for (int kind = HARMON_FOLDER; kind <= HARMON_UNIPIC; kind++) {
        harmon h = harmon_open(f, kind, MAR_DTYPE_F32, NULL, prompts, 1);
        if (kind == HARMON_FOLDER) {
            assert_library(h.m, encode_picture(&h, h.text));
            compare_ids(golden, "ids.8", &h, 0);
        } else {
            expect_picture_refused(&h, h.text);
        }
        harmon_close(&h);
    }
    wt_close(golden);
}

/* The model's file in the folder may tell it, and so may the tokenizer's. */
TEST_CASE(tokens_of_pictures_by_the_folder)
{
    static const char tool[] = "\"<tool_call>\"", picture[] = "\"<image>\"";
    const harmon_files *f = *state;
    harmon h = harmon_open(f, HARMON_UNIPIC, MAR_DTYPE_F32, NULL, prompts, 1);
    mar_text *text;
    copy_golden(f->folder[HARMON_UNIPIC], "tokenizer.json", "tests/golden/data/text/qwen2/tokenizer.json");
    assert_library(h.m, mar_text_load(h.m, f->folder[HARMON_UNIPIC], &text));
    expect_picture_refused(&h, text);
    mar_text_free(text);

    bytes b = bytes_from_file("tests/golden/data/text/qwen2/tokenizer.json"), changed = {0};
    const uint8_t *at = memmem(b.data, b.size, tool, strlen(tool));
    assert_non_null(at);
    bytes_put(&changed, b.data, (size_t)(at - b.data));
    bytes_put(&changed, picture, strlen(picture));
    bytes_put(&changed, at + strlen(tool), b.size - (size_t)(at - b.data) - strlen(tool));
    bytes_to_folder(f->folder[HARMON_UNIPIC], "tokenizer.json", &changed);
    bytes_free(&b);
    assert_library(h.m, mar_text_load(h.m, f->folder[HARMON_UNIPIC], &text));
    assert_library(h.m, encode_picture(&h, text));
    mar_text_free(text);
    harmon_close(&h);
}

TEST_CASE(images_of_the_official_code)
{
    static const struct {
        const char *name, *pictures, *size;
        harmon_kind kind;
        int images, sets, steps;
        float cfg, temperature;
        mar_cfg_schedule schedule;
    } cases[] = {
        {"images.square", "pictures.square", NULL, HARMON_FOLDER, 2, 8, 20, 3, 1, MAR_CFG_CONSTANT},
        {"images.square", "pictures.square", "16x16", HARMON_RELEASE, 2, 8, 20, 3, 1, MAR_CFG_CONSTANT},
        {"images.tall", "pictures.tall", "16x24", HARMON_FOLDER, 2, 5, 20, 3, 1, MAR_CFG_CONSTANT},
        {"images.linear", NULL, NULL, HARMON_FOLDER, 1, 6, 10, 3, 0.9f, MAR_CFG_LINEAR},
        {"images.plain", NULL, NULL, HARMON_FOLDER, 1, 4, 10, 1, 1, MAR_CFG_CONSTANT},
        {"unipic.square", NULL, "16x16", HARMON_UNIPIC, 2, 8, 20, 3, 1, MAR_CFG_CONSTANT},
    };
    wt_file *golden = golden_open("harmon");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float tokens[IMAGES * TOKENS_MAX * CHANNELS];
        uint8_t rgb[PICTURES];
        mar_params p = params_of(cases[i].sets, cases[i].steps, cases[i].cfg);
        p.cfg_schedule = cases[i].schedule;
        p.temperature = cases[i].temperature;
        harmon h = harmon_open(*state, cases[i].kind, MAR_DTYPE_F32, cases[i].size, prompts, IMAGES);
        generate(&h, &p, cases[i].images, tokens, rgb);
        const size_t count = (size_t)(cases[i].images * mar_model_get_config(h.model)->seq_len), n = count * CHANNELS;
        float *expected = golden_f32(golden, cases[i].name, (int64_t)n);
        const double error = relative_difference(tokens, expected, n);
        if (error > 1e-3) fail_msg("%s: relative error %g", cases[i].name, error);
        free(expected);
        if (cases[i].pictures) compare_pictures(golden, cases[i].pictures, rgb, count * CELL * CELL * 3);
        harmon_close(&h);
    }
    wt_close(golden);
}

/* Computes z of a golden pass: known tokens and order are its own. */
TEST_CASE(passes_of_the_official_code)
{
    static const struct {
        const char *name, *size;
        int columns, rows, masked, prompt;
    } cases[] = {{"first", NULL, 4, 4, 16, 0},
                 {"half", NULL, 4, 4, 8, 0},
                 {"tall", "16x24", 4, 6, 11, 0},
                 {"long", "16x24", 4, 6, 7, 1}};
    wt_file *golden = golden_open("harmon");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int seq = cases[i].columns * cases[i].rows, known = seq - cases[i].masked;
        const mar_params p = params_of(1, 10, 3);
        mar_err err = {0};
        char name[32];
        mar_runner r;
        int order[TOKENS_MAX], image[TOKENS_MAX] = {0}, position[TOKENS_MAX];
        harmon h = harmon_open(*state, HARMON_FOLDER, MAR_DTYPE_F32, cases[i].size, prompts, IMAGES);
        assert_int_equal(mar_model_get_config(h.model)->seq_len, seq);
        kern_queue *k = queue_of(h.m);
        snprintf(name, sizeof name, "%s.order", cases[i].name);
        float *given = golden_f32(golden, name, seq);
        for (int j = 0; j < seq; j++) order[j] = (int)given[j], position[j] = j;
        free(given);
        assert_ok(plain_runner(k, h.model, 1, 2, seq, &p, &r, &err), &err);
        void *memory = backend_memory(k, mar_runner_lay_out(&r, NULL));
        mar_runner_lay_out(&r, memory);
        const mar_step step = {.known = known, .predicted = cases[i].masked, .cfg_branches = 2};
        assert_ok(mar_runner_plan(&r, 1, &step, &err), &err);
        mar_runner_begin(&r, 1, (const int[]){0});
        const mar_image prompt = {.features = harmon_ids(&h, cases[i].prompt),
                                  .mask = harmon_mask(&h, cases[i].prompt)};
        between_set_negative(r.between, -1, harmon_ids(&h, IMAGES), harmon_mask(&h, IMAGES));
        mar_runner_set_prompts(&r, (const int[]){0}, &prompt, 1);
        snprintf(name, sizeof name, "%s.tokens", cases[i].name);
        const size_t floats = (size_t)(seq * CHANNELS) * sizeof(float);
        given = golden_f32(golden, name, seq * CHANNELS);
        float *there = backend_memory(k, floats);
        k->core->upload(k, there, given, floats);
        free(given);
        assert_ok(masked_runner_plan_known_tokens(&r.net, seq, &err), &err);
        masked_runner_add_known_tokens(&r.net, there, seq, image, position, NULL);
        const mar_batch batch = {.images = 1, .order = (const int *const[]){order}};
        mar_runner_predict(&r, &batch, &step, 0, step.predicted, NULL);
        const size_t rows = 2 * (size_t)step.predicted;
        float *z = malloc(rows * WIDTH * sizeof *z), *kept = malloc(rows * KEPT * sizeof *kept),
              *expected = malloc(rows * KEPT * sizeof *expected);
        assert_true(z && kept && expected);
        k->core->download(k, z, r.net.z, rows * WIDTH * sizeof *z);
        assert_ok(kern_check(k, &err), &err);
        snprintf(name, sizeof name, "%s.z", cases[i].name);
        given = golden_f32(golden, name, 2 * seq * KEPT);
        for (size_t row = 0; row < rows; row++)
            for (int j = 0; j < KEPT; j++) {
                const int branch = (int)row / step.predicted, place = order[(int)row % step.predicted];
                kept[row * KEPT + (size_t)j] = z[row * WIDTH + 4 * (size_t)j];
                expected[row * KEPT + (size_t)j] = given[(branch * seq + place) * KEPT + j];
            }
        const double error = relative_difference(kept, expected, rows * KEPT);
        if (error > 1e-5) fail_msg("%s: relative error %g", cases[i].name, error);
        free(given), free(z), free(kept), free(expected);
        mar_runner_free(&r);
        k->core->free(k->device, there);
        k->core->free(k->device, memory);
        free_queue(k);
        harmon_close(&h);
    }
    wt_close(golden);
}

/* Checks that what config.json says and this library does not do is refused by name. */
TEST_CASE(refused_configurations)
{
    static const struct {
        const char *from, *to, *why;
    } cases[] = {
        {"\"use_sliding_window\": false", "\"use_sliding_window\": true", "has use_sliding_window"},
        {"\"mar_base\"", "\"mar_tiny\"", "mar.type mar_tiny, expected mar_base, mar_large or mar_huge"},
        {"\"encoder_embed_dim\": 128", "\"encoder_embed_dim\": 256", "z_proj.weight is 128 wide, config.json's towers"},
    };
    const harmon_files *f = *state;
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_model *model;
    for (size_t i = 0; i <= sizeof cases / sizeof *cases; i++) { /* the last time the whole file */
        bytes b = bytes_from_file("tests/golden/data/harmon/config.json");
        bytes_put(&b, "", 1);
        const char *text = (const char *)b.data;
        char changed[4096];
        if (i < sizeof cases / sizeof *cases) {
            const char *at = strstr(text, cases[i].from);
            assert_non_null(at);
            snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, cases[i].to,
                     at + strlen(cases[i].from));
        } else {
            snprintf(changed, sizeof changed, "%s", text);
        }
        bytes_free(&b);
        bytes config = {0};
        bytes_put(&config, changed, strlen(changed));
        bytes_to_folder(f->folder[HARMON_FOLDER], "config.json", &config);
        const mar_status status = mar_model_load(m, f->folder[HARMON_FOLDER], 0, &model);
        assert_int_equal(status, i < sizeof cases / sizeof *cases ? MAR_EMODEL : MAR_OK);
        if (status == MAR_OK)
            mar_model_free(model);
        else if (!strstr(mar_error(m), cases[i].why))
            fail_msg("%s, expected %s", mar_error(m), cases[i].why);
    }
    mar_close(m);
}
