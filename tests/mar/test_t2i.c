/* Prompts to pictures in the official layouts, against LlamaGen's own code (tests/golden/make_t2i.py): features, greedy
 * tokens with guidance 7.5, pixels. */
#include "tests/support/demo.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 120, DIM = 32, PROMPTS = 3, SEQ = 16, SIDE = 16 };

static const char *const prompts[PROMPTS] = {
    "a bold seven", "The quick brown fox jumps over the lazy dog, twice, and then once more over the moon",
    "A PHOTO of two <b>dogs</b> & 3 cats: https://example.com/x.jpg"};

/* Compares features and mask with the last positions of the golden ones; the others must be 0. */
static void check_features(const wt_file *golden, const float *features, const uint8_t *mask)
{
    float *expected = golden_f32(golden, "features", -1), *ones = golden_f32(golden, "mask", -1);
    const wt_tensor *t = wt_find(golden, "mask");
    const int last = (int)t->shape[1];
    double worst = 0, largest = 0;
    for (int i = 0; i < PROMPTS * TOKENS; i++) {
        const int at = i % TOKENS - (TOKENS - last), row = i / TOKENS * last + at;
        assert_int_equal(mask[i], at >= 0 && ones[row] != 0);
        for (int k = 0; k < DIM; k++) {
            const double x = at < 0 ? 0 : (double)expected[row * DIM + k];
            worst = fmax(worst, fabs((double)features[i * DIM + k] - x));
            largest = fmax(largest, fabs(x));
        }
    }
    if (!(worst <= 1e-5 * largest)) fail_msg("features differ by %.3g of %.3g, allowed 1e-5 of it", worst, largest);
    free(expected);
    free(ones);
}

static void check_picture(const wt_file *golden, mar_session *session)
{
    float tokens[PROMPTS * SEQ], *codes = golden_f32(golden, "codes", PROMPTS * SEQ),
                                 *pixels = golden_f32(golden, "pixels", PROMPTS * SIDE * SIDE * 3);
    uint8_t rgb[PROMPTS * SIDE * SIDE * 3];
    assert_session(session, mar_session_tokens(session, tokens));
    assert_memory_equal(tokens, codes, sizeof tokens);
    assert_session(session, mar_session_images(session, rgb));
    for (int i = 0; i < PROMPTS * SIDE * SIDE * 3; i++)
        if (fabsf((float)rgb[i] - pixels[i]) > 2) fail_msg("value %d is %d, expected %g", i, rgb[i], (double)pixels[i]);
    free(codes);
    free(pixels);
}

/* The whole way with one handle: the encoder is freed before the model is loaded. */
TEST_CASE(official_code)
{
    static float features[PROMPTS * TOKENS * DIM];
    static uint8_t mask[PROMPTS * TOKENS];
    mar_options o;
    mar *m;
    mar_text *text;
    mar_model *model;
    mar_vae *vae;
    mar_session *session;
    mar_options_init(&o, sizeof o);
    o.dtype = MAR_DTYPE_F32;
    o.threads = 2;
    assert_library(m, mar_open(&o, &m));
    assert_library(m, mar_text_load(m, "tests/golden/data/t5", &text));
    assert_library(m, mar_text_encode(text, prompts, PROMPTS, MAR_CLEAN_LLAMAGEN, TOKENS, features, mask, NULL));
    mar_text_free(text);
    wt_file *golden = golden_open("t2i");
    check_features(golden, features, mask);
    assert_library(m, mar_model_load(m, "tests/golden/data/t2i_model.safetensors", 0, &model));
    assert_library(m, mar_vae_load(m, "tests/golden/data/vq.pth", &vae));
    mar_params p;
    mar_params_init(&p, sizeof p);
    p.cfg = 7.5F;
    p.top_k = 1;
    assert_library(m, mar_session_create(model, vae, &p, PROMPTS, &session));
    assert_session(session, mar_session_begin_captions(session, 0, features, mask, PROMPTS));
    demo_finish(session);
    check_picture(golden, session);
    wt_close(golden);
    mar_session_free(session);
    mar_vae_free(vae);
    mar_model_free(model);
    mar_close(m);
}
