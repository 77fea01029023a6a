/* The image decoder in a SphereAR model's own file: pictures of the official code's tokens
 * (tests/golden/make_sphere.py), the report of the file, and decoders of other models. */
#include "mar.h"
#include "mar_files.h"
#include "tests/support/changed.h"
#include "tests/support/detok.h"
#include "tests/support/sphere.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char path[] = "tests/golden/data/sphere_model.safetensors";
enum { IMAGES = 2, SEQ = 16, C = 8, SIDE = 16, RGB = SIDE * SIDE * 3 };

static mar_model *load_model(mar *m, const char *name)
{
    mar_model *model;
    assert_library(m, mar_model_load(m, name, 0, &model));
    return model;
}

static mar_vae *load_vae(mar *m, const char *name)
{
    mar_vae *vae;
    assert_library(m, mar_vae_load(m, name, &vae));
    return vae;
}

static mar_session *create(mar *m, mar_model *model, mar_vae *vae)
{
    mar_params p;
    mar_session *s = NULL;
    mar_params_init(&p, sizeof p);
    assert_library(m, mar_session_create(model, vae, &p, IMAGES, &s));
    return s;
}

TEST_CASE(pictures_are_the_official_codes)
{
    wt_file *golden = golden_open("sphere");
    const wt_tensor *t = wt_find(golden, "pictures");
    float *tokens = golden_f32(golden, "sample.linear", IMAGES * SEQ * C);
    uint8_t expected[IMAGES * RGB], rgb[IMAGES * RGB];
    mar_err err = {0};
    assert_true(t && t->count == IMAGES * RGB);
    assert_ok(wt_read_bytes(golden, t, 0, sizeof expected, expected, &err), &err);
    mar *m = open_mar(MAR_DTYPE_F32, 2);
    mar_model *model = load_model(m, path);
    mar_vae *vae = load_vae(m, path);
    mar_session *s = create(m, model, vae);
    int width, height, worst = 0;
    mar_session_image_size(s, &width, &height);
    assert_true(width == SIDE && height == SIDE);
    assert_int_equal(mar_session_decode(s, 0, tokens, IMAGES, rgb), MAR_OK);
    for (int i = 0; i < IMAGES * RGB; i++) {
        const int difference = abs(rgb[i] - expected[i]);
        if (difference > worst) worst = difference;
    }
    assert_true(worst <= 1);
    mar_pixels pixels;
    mar_pixels_init(&pixels, sizeof pixels);
    pixels.data = rgb;
    pixels.capacity = RGB;
    assert_int_equal(mar_session_encode(s, &pixels, tokens), MAR_EARG);
    assert_non_null(strstr(mar_session_error(s), "the image decoder was loaded without its encoder"));
    mar_session_free(s);
    mar_vae_free(vae);
    mar_model_free(model);
    mar_close(m);
    wt_close(golden);
    free(tokens);
}

static void expect_misfit(mar *m, const char *model_name, const char *vae_name, const char *reason)
{
    mar_model *model = load_model(m, model_name);
    mar_vae *vae = load_vae(m, vae_name);
    mar_params p;
    mar_session *s = NULL;
    mar_params_init(&p, sizeof p);
    assert_int_equal(mar_session_create(model, vae, &p, 1, &s), MAR_EMODEL);
    if (!strstr(mar_error(m), reason)) fail_msg("\"%s\" does not say: %s", mar_error(m), reason);
    mar_vae_free(vae);
    mar_model_free(model);
}

TEST_CASE(decoders_of_other_models_are_refused)
{
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    expect_misfit(m, path, "demo", "the VAE is a KL autoencoder, expected the ViT decoder of SphereAR");
    expect_misfit(m, path, "demo-discrete", "the VAE is a VQ autoencoder, expected the ViT decoder of SphereAR");
    expect_misfit(m, "demo", path, "the VAE is the ViT decoder of SphereAR, expected a KL autoencoder");
    expect_misfit(m, "demo-discrete", path, "the VAE is the ViT decoder of SphereAR, expected a VQ tokenizer");
    expect_misfit(m, path, "tests/golden/data/vit.pt", "the VAE decodes 4 channels but the model's tokens have 8");
    const char *const detok = detok_path("detok-tiny-decoder_tuned.pth");
    expect_misfit(m, path, detok, "the VAE is an l-DeTok autoencoder, expected the ViT decoder of SphereAR");
    expect_misfit(m, "demo-discrete", detok, "the VAE decodes continuous latents (l-DeTok), but the model's tokens");
    expect_misfit(m, "demo", detok, "the VAE decodes 6 channels but the model's tokens have 8");
    mar_source source;
    mar_vae *vae = NULL;
    mar_source_init(&source, sizeof source);
    source.path = path;
    source.encoder = 1;
    assert_int_equal(mar_vae_load_from(m, &source, &vae), MAR_EMODEL);
    assert_non_null(strstr(mar_error(m), "has no encoder"));
    mar_close(m);
}

/* A picture's tokens, which an image keeps at any place, are on the sphere as drawn ones are. */
TEST_CASE(tokens_of_a_picture_are_on_the_sphere)
{
    char *const folder = test_directory(), written[600];
    uint8_t rgb[RGB], known[SEQ];
    float tokens[SEQ * C], made[SEQ * C];
    sphere_write_with_encoder(folder, "e.safetensors");
    snprintf(written, sizeof written, "%s/e.safetensors", folder);
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_model *model = load_model(m, written);
    mar_source source;
    mar_vae *vae;
    mar_source_init(&source, sizeof source);
    source.path = written, source.encoder = 1;
    assert_library(m, mar_vae_load_from(m, &source, &vae));
    assert_int_equal(mar_vae_get_config(vae)->encoder, 1);
    mar_params p;
    mar_session *s;
    mar_params_init(&p, sizeof p);
    p.num_sampling_steps = 4;
    assert_library(m, mar_session_create(model, vae, &p, 1, &s));
    mar_pixels pixels;
    mar_pixels_init(&pixels, sizeof pixels);
    pixels.data = rgb, pixels.capacity = RGB;
    for (int i = 0; i < RGB; i++) rgb[i] = (uint8_t)(i * 37);
    assert_session(s, mar_session_encode(s, &pixels, tokens));
    for (int t = 0; t < SEQ; t++) {
        double squares = 0;
        for (int c = 0; c < C; c++) squares += (double)tokens[t * C + c] * (double)tokens[t * C + c];
        assert_float_equal(squares, C, 1e-4);
        known[t] = t % 3 == 1;
    }
    mar_request r;
    uint64_t id;
    mar_request_init(s, &r, sizeof r);
    r.label = 2, r.tokens = tokens, r.known = known;
    assert_session(s, mar_session_submit(s, &r, &id));
    while (mar_session_pending(s)) assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_take(s, id, made, &pixels));
    for (int t = 0; t < SEQ; t++)
        assert_int_equal(memcmp(made + t * C, tokens + t * C, C * sizeof *made) == 0, known[t]);
    mar_session_free(s);
    mar_vae_free(vae);
    mar_model_free(model);
    mar_close(m);
}

static int is_around_latents(const char *name)
{
    return strncmp(name, "quant_conv.", 11) == 0 || strncmp(name, "post_quant_conv.", 16) == 0;
}

/* The demo's decoder without the layers around the latents is one of Flux's, whose latents are shifted. */
TEST_CASE(flux_decodes_no_tokens_of_mar)
{
    static const char config[] = "{\"scaling_factor\": 0.3611, \"shift_factor\": 0.1159, \"encoder_norm\": false}";
    char *const flux = test_path("flux.safetensors"), path_of_config[600];
    snprintf(path_of_config, sizeof path_of_config, "%.*s/config.json", (int)(strrchr(flux, '/') - flux), flux);
    write_copy_without("weights/demo/vae.safetensors", flux, WT_F32, NULL, 0, NULL, is_around_latents);
    bytes b = {0};
    bytes_text(&b, config);
    bytes_to_file(&b, path_of_config);
    bytes_free(&b);
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    expect_misfit(m, "demo", flux, "the VAE's latents are shifted by 0.1159, as Flux's are, which NextStep-1 draws");
    mar_close(m);
}

/* A conversion keeps the decoder, and rounds its table of positions, which is then made anew. */
TEST_CASE(a_converted_file_has_it)
{
    char *copy = test_path("sphere.safetensors");
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_report *r = NULL;
    assert_library(m, mar_convert(m, path, copy, MAR_DTYPE_BF16, 0));
    assert_library(m, mar_inspect(m, copy, 0, &r));
    assert_int_equal(mar_report_problem_count(r), 0);
    assert_int_equal(mar_report_kind(r), MAR_KIND_SPHEREAR);
    mar_report_free(r);
    mar_vae *vae = load_vae(m, copy);
    const mar_vae_config *c = mar_vae_get_config(vae);
    assert_true(c->grid == 4 && c->stride == 4 && c->width == 64 && c->depth == 2 && c->heads == 1);
    mar_vae_free(vae);
    assert_library(m, mar_convert(m, "tests/golden/data/vit.pt", copy, MAR_DTYPE_F16, 0));
    assert_library(m, mar_inspect(m, copy, 0, &r));
    assert_int_equal(mar_report_problem_count(r), 0);
    assert_int_equal(mar_report_vae(r)->depth, 2);
    mar_report_free(r);
    mar_close(m);
}
