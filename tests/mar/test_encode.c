/* Tests mar_session_encode: PyTorch's tokens (tests/golden/make_encoder.py) from every pixel format, beside a batch in
 * progress, and back to a picture. */
#include "tests/support/demo.h"
#include "tests/support/detok.h"

#include "mar/api/session.h"
#include "mar/core/vae.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char demo_path[] = "weights/demo/vae.safetensors";

/* The demo models with the encoder of `path`, and a session for batches of 2. */
typedef struct {
    demo d;
    mar_session *s;
    uint8_t picture[DEMO_BYTES]; /* golden */
    float *tokens;               /* [DEMO_TOKENS] PyTorch's of the picture */
} fixture;

static fixture open_fixture(const char *path, const char *options)
{
    fixture f = {.d = demo_open(2)};
    mar_source source;
    wt_file *golden = golden_open("encoder");
    float *values = golden_f32(golden, "golden.pixels_demo", DEMO_BYTES);
    const mar_params p = params_with(options);
    mar_vae_free(f.d.vae);
    mar_source_init(&source, sizeof source);
    source.path = path;
    source.encoder = 1;
    assert_library(f.d.m, mar_vae_load_from(f.d.m, &source, &f.d.vae));
    f.s = demo_session(&f.d, &p, 2);
    for (int i = 0; i < DEMO_BYTES; i++) f.picture[i] = (uint8_t)values[i];
    f.tokens = golden_f32(golden, "golden.tokens_demo", DEMO_TOKENS);
    free(values);
    wt_close(golden);
    return f;
}

static void close_fixture(const fixture *f)
{
    mar_session_free(f->s);
    demo_close(f->d);
    free(f->tokens);
}

static mar_pixels adjacent(uint8_t *rgb)
{
    mar_pixels pixels;
    mar_pixels_init(&pixels, sizeof pixels);
    pixels.data = rgb;
    pixels.capacity = DEMO_BYTES;
    return pixels;
}

TEST_CASE(tokens_are_pytorchs)
{
    enum { STRIDE = 4 * DEMO_SIDE + 9 };
    fixture f = open_fixture("demo", "num_iter 2, num_sampling_steps 2");
    float tokens[DEMO_TOKENS], same[DEMO_TOKENS];
    uint8_t padded[DEMO_SIDE * STRIDE];
    mar_pixels pixels = adjacent(f.picture);
    assert_session(f.s, mar_session_encode(f.s, &pixels, tokens));
    assert_close(tokens, f.tokens, DEMO_TOKENS, 1e-5); /* required: 1e-4 */
    memset(padded, 0x77, sizeof padded);
    for (int i = 0; i < DEMO_SIDE * DEMO_SIDE; i++)
        memcpy(padded + i / DEMO_SIDE * STRIDE + i % DEMO_SIDE * 4, f.picture + 3 * i, 3);
    pixels.format = MAR_PIXELS_RGBA8;
    pixels.data = padded;
    pixels.stride = STRIDE;
    pixels.capacity = sizeof padded;
    assert_session(f.s, mar_session_encode(f.s, &pixels, same));
    assert_memory_equal(same, tokens, sizeof tokens);
    pixels.format = MAR_PIXELS_RGB_F32;
    assert_int_equal(mar_session_encode(f.s, &pixels, same), MAR_EARG);
    close_fixture(&f);
}

/* Checks that a digit survives encoding, and that encoding changes no image in progress. */
TEST_CASE(pictures_of_a_batch_come_back)
{
    fixture f = open_fixture("demo", "num_iter 4, num_sampling_steps 10");
    static float plain[2 * DEMO_TOKENS], tokens[2 * DEMO_TOKENS], encoded[DEMO_TOKENS];
    static uint8_t rgb[2 * DEMO_BYTES], again[DEMO_BYTES];
    demo_generate(f.s, 2, plain);
    demo_begin(f.s, 2);
    for (mar_pixels pixels = adjacent(f.picture); !mar_session_done(f.s);) {
        assert_session(f.s, mar_session_step(f.s));
        assert_session(f.s, mar_session_encode(f.s, &pixels, encoded));
    }
    assert_session(f.s, mar_session_tokens(f.s, tokens));
    assert_memory_equal(tokens, plain, sizeof tokens);
    assert_session(f.s, mar_session_images(f.s, rgb));
    const mar_pixels digit = adjacent(rgb);
    assert_session(f.s, mar_session_encode(f.s, &digit, encoded));
    assert_session(f.s, mar_session_decode(f.s, 0, encoded, 1, again));
    double square = 0;
    for (int i = 0; i < DEMO_BYTES; i++) square += pow(again[i] - rgb[i], 2) / DEMO_BYTES;
    assert_true(square > 0 && sqrt(square) < 12); /* a digit of 4 coarse steps; 2 to 3 of 255 for real ones */
    close_fixture(&f);
}

/* Makes the tokens and the pixels of an oblong picture, of 4 rows of 16 tokens, without a session. */
static void run_oblong(const fixture *f, float *tokens, uint8_t *rgb)
{
    vae_run *r;
    mar_err err = {0};
    kern_queue *k = mar_session_queue(f->s);
    assert_ok(vae_run_create(k, f->d.vae->decoder, 4, 16, 1, VAE_MEMORY, &r, &err), &err);
    assert_ok(vae_run_plan(r, 1, &err), &err);
    void *memory = backend_memory(k, vae_run_lay_out(r, NULL));
    vae_run_lay_out(r, memory);
    vae_encode(r, f->picture, (size_t)DEMO_SIDE * 2 * 3, 3, tokens);
    memcpy(rgb, vae_decode(r, tokens, 1).bytes, DEMO_BYTES);
    vae_run_free(r);
    k->core->free(k->device, memory);
}

/* A model with grid_width makes and reads oblong images. */
TEST_CASE(pictures_may_be_oblong)
{
    fixture f = open_fixture("demo", "num_iter 2, num_sampling_steps 2");
    const mar_params p = params_with("num_iter 2, num_sampling_steps 2");
    static float tokens[DEMO_TOKENS], expected[DEMO_TOKENS];
    static uint8_t rgb[DEMO_BYTES], expected_rgb[DEMO_BYTES];
    int width, height;
    mar_session_free(f.s);
    f.d.model->config.grid_width = 16;
    f.s = demo_session(&f.d, &p, 1);
    mar_session_image_size(f.s, &width, &height);
    assert_true(width == DEMO_SIDE * 2 && height == DEMO_SIDE / 2);
    const mar_pixels pixels = adjacent(f.picture);
    assert_session(f.s, mar_session_encode(f.s, &pixels, tokens));
    assert_session(f.s, mar_session_decode(f.s, 0, tokens, 1, rgb));
    run_oblong(&f, expected, expected_rgb);
    assert_memory_equal(tokens, expected, sizeof tokens);
    assert_memory_equal(rgb, expected_rgb, sizeof rgb);
    close_fixture(&f);
}

/* Checks that a cancel ends a call, and the next one works. */
TEST_CASE(a_cancelled_call_can_be_repeated)
{
    fixture f = open_fixture(demo_path, "num_iter 2, num_sampling_steps 2");
    float tokens[DEMO_TOKENS];
    const mar_pixels pixels = adjacent(f.picture);
    mar_session_cancel(f.s);
    assert_int_equal(mar_session_encode(f.s, &pixels, tokens), MAR_ECANCELLED);
    assert_session(f.s, mar_session_encode(f.s, &pixels, tokens));
    assert_close(tokens, f.tokens, DEMO_TOKENS, 1e-5);
    close_fixture(&f);
}

TEST_CASE(a_decoder_alone_encodes_nothing)
{
    const demo d = demo_open(1);
    const mar_params p = params_with("num_iter 2, num_sampling_steps 2");
    mar_session *s = demo_session(&d, &p, 1);
    static uint8_t rgb[DEMO_BYTES];
    float tokens[DEMO_TOKENS];
    const mar_pixels pixels = adjacent(rgb);
    assert_int_equal(mar_session_encode(s, &pixels, tokens), MAR_EARG);
    assert_string_equal(mar_session_error(s),
                        "the image decoder was loaded without its encoder: expected mar_source.encoder = 1");
    mar_session_free(s);
    const fixture f = open_fixture("demo", "num_iter 2, num_sampling_steps 2");
    assert_true(mar_vae_get_config(f.d.vae)->encoder);
    assert_true(mar_vae_get_config(f.d.vae)->hash == mar_vae_get_config(d.vae)->hash);
    close_fixture(&f);
    demo_close(d);
}

/* A session of MAR on l-DeTok, whose tokenizer's statistics are beside it, has the official code's tokens and bytes
 * (tests/golden/make_detok.py). */
TEST_CASE(pictures_of_detok)
{
    enum { SIDE = 16, TOKENS = 16 * 6, BYTES = SIDE * SIDE * 3 };
    wt_file *golden = golden_open("detok");
    float *rgb = golden_f32(golden, "rgb", BYTES), *encoded = golden_f32(golden, "encoded", TOKENS);
    float *expected = golden_f32(golden, "bytes", 2 * BYTES), *tokens = golden_f32(golden, "tokens", 2 * TOKENS);
    mar *m = open_mar(MAR_DTYPE_F32, 2);
    mar_model *model;
    mar_vae *vae;
    mar_session *s;
    mar_source source;
    const mar_params p = params_with("num_iter 2, num_sampling_steps 2");
    mar_source_init(&source, sizeof source);
    source.path = detok_path("detok-tiny-decoder_tuned.pth");
    source.encoder = 1;
    assert_library(m, mar_model_load(m, detok_path("mar_tiny.pth"), 3, &model));
    assert_library(m, mar_vae_load_from(m, &source, &vae));
    assert_library(m, mar_session_create(model, vae, &p, 2, &s));
    float mine[TOKENS];
    uint8_t picture[BYTES];
    for (int i = 0; i < BYTES; i++) picture[i] = (uint8_t)rgb[i];
    mar_pixels pixels = adjacent(picture);
    pixels.capacity = BYTES;
    assert_session(s, mar_session_encode(s, &pixels, mine));
    assert_close(mine, encoded, TOKENS, 1e-5);
    for (int i = 0; i < 2; i++) {
        assert_session(s, mar_session_decode(s, i, tokens + i * TOKENS, 1, picture));
        for (int j = 0; j < BYTES; j++) assert_true(abs(picture[j] - (int)expected[i * BYTES + j]) <= 1);
    }
    mar_session_free(s);
    mar_vae_free(vae);
    mar_model_free(model);
    mar_close(m);
    free(rgb), free(encoded), free(expected), free(tokens);
    wt_close(golden);
}
