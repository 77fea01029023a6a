/* Tests the whole loop through the public API: against PyTorch, and the promises of mar.h. */
#include "mar.h"
#include "families/mar.h"
#include "mar/core/handle.h"
#include "mar/core/vae.h"
#include "tests/support/detok.h"
#include "tests/support/llamagen.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char small[] = "tests/golden/data/mar_small.safetensors";
enum { SEQ = 16, CHANNELS = 6, TOKENS = SEQ * CHANNELS };

static mar_params params_of(int num_iter, int steps, float cfg, mar_cfg_schedule schedule, float temperature,
                            uint64_t seed)
{
    mar_params p = plain_params();
    p.num_iter = num_iter, p.num_sampling_steps = steps, p.cfg = cfg, p.cfg_schedule = schedule;
    p.temperature = temperature, p.seed = seed;
    return p;
}

/* Generates the tokens of images first..first+n-1, in batches of at most `batch`. */
static void generate_with(mar *m, const char *path, int heads, const mar_params *p, const int *labels, int first, int n,
                          int batch, int tokens, float *out)
{
    mar_model *model;
    mar_session *s;
    assert_library(m, mar_model_load(m, path, heads, &model));
    assert_library(m, mar_session_create(model, NULL, p, batch, &s));
    for (int i = 0; i < n; i += batch) {
        const int count = n - i < batch ? n - i : batch;
        assert_session(s, mar_session_begin(s, (uint64_t)(first + i), labels + i, count));
        while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
        assert_session(s, mar_session_tokens(s, out + i * tokens));
    }
    mar_session_free(s);
    mar_model_free(model);
}

static void generate(mar *m, const char *path, const mar_params *p, const int *labels, int first, int n, int batch,
                     int tokens, float *out)
{
    generate_with(m, path, 0, p, labels, first, n, batch, tokens, out);
}

/* Compares the tokens of a model in `path` with those of a golden file. */
static void check_pytorch(const char *path, int heads, const char *golden_name)
{
    const struct {
        const char *name;
        mar_params params;
        int n, labels[3];
    } cases[] = {
        {"images.linear", params_of(8, 100, 2.9f, MAR_CFG_LINEAR, 1.0f, 0x1234567890ABCDEF), 3, {3, 0, 4}},
        {"images.constant", params_of(16, 20, 1.5f, MAR_CFG_CONSTANT, 0.8f, 0x1234567890ABCDEF), 2, {1, 2}},
        {"images.plain", params_of(1, 50, 1.0f, MAR_CFG_LINEAR, 1.0f, 0x1234567890ABCDEF), 1, {2}},
        {"images.unconditional", params_of(5, 10, 1.0f, MAR_CFG_LINEAR, 1.0f, 0x1234567890ABCDEF), 1, {-1}},
    };
    wt_file *golden = golden_open(golden_name);
    mar *m = open_mar(MAR_DTYPE_F32, 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float tokens[3 * TOKENS];
        float *expected = golden_f32(golden, cases[i].name, cases[i].n * TOKENS);
        generate_with(m, path, heads, &cases[i].params, cases[i].labels, 40, cases[i].n, 3, TOKENS, tokens);
        assert_close(tokens, expected, (size_t)cases[i].n * TOKENS, 1e-3);
        free(expected);
    }
    mar_close(m);
    wt_close(golden);
}

TEST_CASE(matches_pytorch)
{
    check_pytorch(small, 0, "mar");
}

/* tests/golden/make_detok.py runs l-DeTok's MAR, with its own order of tokens, guidance and chain. */
TEST_CASE(matches_detok)
{
    check_pytorch(detok_path("mar_tiny.pth"), 3, "detok_mar");
}

/* Checks that another seed, image index, class or temperature gives another image. */
TEST_CASE(everything_else_does_matter)
{
    const mar_params base = params_of(4, 10, 2.0f, MAR_CFG_LINEAR, 1.0f, 1);
    mar_params other[4] = {base, base, base, base};
    other[0].seed = 2;
    other[1].temperature = 0.5f;
    other[2].cfg = 3;
    other[3].cfg_schedule = MAR_CFG_CONSTANT;
    const int label = 1, another = 2;
    float tokens[7][TOKENS];
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    generate(m, small, &base, &label, 0, 1, 1, TOKENS, tokens[0]);
    for (int i = 0; i < 4; i++) generate(m, small, &other[i], &label, 0, 1, 1, TOKENS, tokens[1 + i]);
    generate(m, small, &base, &label, 1, 1, 1, TOKENS, tokens[5]);
    generate(m, small, &base, &another, 0, 1, 1, TOKENS, tokens[6]);
    for (int i = 0; i < 7; i++)
        for (int j = 0; j < i; j++) assert_memory_not_equal(tokens[i], tokens[j], sizeof tokens[i]);
    mar_close(m);
}

/* Compares final images of the demo models with PyTorch's, to one grey level in f32. Their chains are stable. */
TEST_CASE(demo_images)
{
    enum { N = 3, SIDE = 32, BYTES = SIDE * SIDE * 3 };
    const mar_params p = params_of(16, 50, 2.9f, MAR_CFG_LINEAR, 1.0f, 5);
    const int labels[N] = {3, 7, 0};
    wt_file *golden = golden_open("demo");
    float *tokens = golden_f32(golden, "tokens", N * 64 * 8), *pixels = golden_f32(golden, "pixels", N * BYTES);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        mar *m = open_mar(bf16 ? MAR_DTYPE_BF16 : MAR_DTYPE_F32, 2);
        if (!m) continue;
        mar_model *model;
        mar_vae *vae;
        mar_session *s;
        assert_library(m, mar_model_load(m, "demo", 0, &model));
        assert_library(m, mar_vae_load(m, "demo", &vae));
        assert_library(m, mar_session_create(model, vae, &p, N, &s));
        assert_session(s, mar_session_begin(s, 0, labels, N));
        while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
        float mine[N * 64 * 8];
        uint8_t rgb[N * BYTES];
        assert_session(s, mar_session_tokens(s, mine));
        assert_session(s, mar_session_images(s, rgb));
        double worst = 0, mean = 0;
        for (int i = 0; i < N * BYTES; i++) {
            double difference = fabs(rgb[i] - 255 * fmin(1, fmax(0, (pixels[i] + 1) / 2)));
            worst = fmax(worst, difference);
            mean += difference / (N * BYTES);
        }
        if (bf16) { /* rounding perturbs the chains: the same digits, not the same bits */
            assert_true(mean < 12);
        } else {
            assert_close(mine, tokens, N * 64 * 8, 1e-3);
            assert_true(worst <= 1.01);
        }
        mar_session_free(s);
        mar_vae_free(vae);
        mar_model_free(model);
        mar_close(m);
    }
    free(tokens), free(pixels);
    wt_close(golden);
}

TEST_CASE(refuses)
{
    const mar_params good = params_of(4, 10, 2.0f, MAR_CFG_LINEAR, 1.0f, 1);
    const struct {
        mar_params params;
        int batch;
        const char *says;
    } cases[] = {
        {params_of(-1, 10, 2, MAR_CFG_LINEAR, 1, 1), 1, "--num_iter -1: expected a whole number from 0"},
        {params_of(17, 10, 2, MAR_CFG_LINEAR, 1, 1), 1, "--num_iter 17: expected 0..16"},
        {params_of(4, 1, 2, MAR_CFG_LINEAR, 1, 1), 1, "--num_sampling_steps 1: expected 2..1000"},
        {params_of(4, 10, 2, MAR_CFG_LINEAR, 1, 1), 0, "batch of 0"},
    };
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    mar_model *model;
    mar_session *s;
    assert_library(m, mar_model_load(m, small, 0, &model));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(mar_session_create(model, NULL, &cases[i].params, cases[i].batch, &s), MAR_EARG);
        assert_null(s);
        if (!strstr(mar_error(m), cases[i].says)) fail_msg("'%s' lacks '%s'", mar_error(m), cases[i].says);
    }
    mar_vae *vae;
    assert_library(m, mar_vae_load(m, "demo", &vae));
    assert_int_equal(mar_session_create(model, vae, &good, 1, &s), MAR_EMODEL); /* 8 channels against 6 */
    assert_non_null(strstr(mar_error(m), "8 channels"));
    assert_library(m, mar_session_create(model, NULL, &good, 2, &s));
    float tokens[2 * TOKENS];
    uint8_t rgb[1];
    assert_int_equal(mar_session_step(s), MAR_EARG);
    assert_int_equal(mar_session_tokens(s, tokens), MAR_EARG);
    assert_int_equal(mar_session_begin(s, 0, (int[]){5, 0}, 2), MAR_EARG);
    assert_non_null(strstr(mar_session_error(s), "class 5: expected 0..4"));
    assert_int_equal(mar_session_begin(s, 0, (int[]){0, 0, 0}, 3), MAR_EARG);
    assert_session(s, mar_session_begin(s, 0, (int[]){0}, 1));
    assert_int_equal(mar_session_tokens(s, tokens), MAR_EARG);
    assert_non_null(strstr(mar_session_error(s), "4 steps left"));
    while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
    assert_int_equal(mar_session_images(s, rgb), MAR_EARG);
    mar_session_free(s);
    mar_vae_free(vae);
    mar_model_free(model);
    assert_int_equal(mar_model_load(m, "no such file", 0, &model), MAR_EIO);
    assert_null(model);
    assert_int_equal(mar_model_load(m, "LICENSE", 0, &model), MAR_EFORMAT);
    assert_int_equal(mar_model_load(m, "weights/demo/vae.safetensors", 0, &model), MAR_EMODEL);
    assert_string_equal(
        mar_error(m),
        "weights/demo/vae.safetensors: is an image decoder (KL autoencoder), expected a MAR, SphereAR or LlamaGen "
        "model");
    assert_int_equal(mar_model_load(m, "demo-vae", 0, &model), MAR_EMODEL);
    assert_string_equal(mar_error(m),
                        "demo-vae: is an image decoder (KL autoencoder), expected a MAR, SphereAR or LlamaGen model");
    assert_int_equal(mar_vae_load(m, "demo-draft", &vae), MAR_EMODEL);
    assert_string_equal(mar_error(m),
                        "demo-draft: is a MAR model, expected an image decoder (KL, VQ or ViT autoencoder)");
    assert_int_equal(mar_vae_load(m, small, &vae), MAR_EMODEL);
    assert_non_null(strstr(mar_error(m), ": is a MAR model, expected an image decoder"));
    assert_true(model == NULL && vae == NULL);
    assert_int_equal(mar_model_load(m, small, 7, &model), MAR_EARG); /* 7 heads do not divide 96 */
    mar_close(m);
}

/* --- patches ------------------------------------------------------------------------------------------------------ */

enum { GRID = 4, PATCH = 2, Z = 8, SIDE = GRID * PATCH * 4 }; /* of the demo's image decoder */

static const mar_model_config patches = {.width = 32,
                                         .encoder_depth = 1,
                                         .decoder_depth = 1,
                                         .heads = 2,
                                         .mlp_hidden = 64,
                                         .buffer = 2,
                                         .seq_len = GRID * GRID,
                                         .token_dim = PATCH * PATCH * Z,
                                         .classes = 5,
                                         .head_width = 32,
                                         .head_depth = 1};

/* Decodes latents float [GRID * PATCH][GRID * PATCH][Z] to pixels. */
static void decode_latents(mar *m, const float *latents, uint8_t *rgb)
{
    mar_vae *vae;
    vae_run *r;
    mar_err err = {0};
    kern_queue *k = queue_of(m);
    assert_library(m, mar_vae_load(m, "demo-vae", &vae));
    assert_ok(vae_run_create(k, vae->decoder, GRID * PATCH, GRID * PATCH, 1, VAE_MEMORY, &r, &err), &err);
    assert_ok(vae_run_plan(r, 1, &err), &err);
    const size_t n = (size_t)(GRID * PATCH * GRID * PATCH * Z) * sizeof *latents;
    void *memory = backend_memory(k, vae_run_lay_out(r, NULL));
    float *at = backend_memory(k, n);
    vae_run_lay_out(r, memory);
    k->core->upload(k, at, latents, n);
    k->core->download(k, rgb, vae_decode(r, at, 1).bytes, (size_t)SIDE * SIDE * 3);
    k->core->free(k->device, memory), k->core->free(k->device, at);
    vae_run_free(r);
    free_queue(k);
    mar_vae_free(vae);
}

/* Implements unpatchify of models/mar.py, "nhwcpq->nchpwq", for latents with channels last. */
static void unpatchify(const float *tokens, float *latents)
{
    for (int h = 0; h < GRID; h++)
        for (int w = 0; w < GRID; w++)
            for (int c = 0; c < Z; c++)
                for (int p = 0; p < PATCH; p++)
                    for (int q = 0; q < PATCH; q++)
                        latents[((h * PATCH + p) * GRID * PATCH + w * PATCH + q) * Z + c] =
                            tokens[(((h * GRID + w) * Z + c) * PATCH + p) * PATCH + q];
}

/* Checks that 16 tokens of 2x2 latent pixels make 32x32 images with the demo's decoder, given the patch size. */
TEST_CASE(tokens_may_be_patches)
{
    static float tokens[2][GRID * GRID * PATCH * PATCH * Z], latents[GRID * PATCH * GRID * PATCH * Z];
    static uint8_t rgb[2][SIDE * SIDE * 3], expected[SIDE * SIDE * 3];
    static const int labels[2] = {1, 2};
    mar_params p = params_of(4, 10, 1.5f, MAR_CFG_LINEAR, 1.0f, 1);
    p.sampler = MAR_SAMPLER_DDIM; /* otherwise the random head's variances would diverge */
    char *dir = test_directory(), *path = write_mar(dir, "patches.safetensors", &patches, 1, "");
    mar *m = open_mar(MAR_DTYPE_F32, 2), *told;
    mar_model *model;
    mar_vae *vae;
    mar_session *s;
    assert_library(m, mar_model_load(m, path, 0, &model));
    assert_library(m, mar_vae_load(m, "demo-vae", &vae));
    assert_int_equal(mar_model_get_config(model)->patch_size, 0);
    assert_int_equal(mar_session_create(model, vae, &p, 2, &s), MAR_EMODEL);
    assert_string_equal(mar_error(m),
                        "demo-vae: the VAE decodes 8 channels but the model's tokens have 32; if a token is "
                        "2x2 latent pixels, expected --patch_size 2");
    mar_model_free(model), mar_vae_free(vae);
    const mar_options options = {
        .size = sizeof options, .dtype = MAR_DTYPE_F32, .threads = 2, .backend = MAR_BACKEND_CPU, .patch_size = PATCH};
    assert_library(told, mar_open(&options, &told));
    assert_library(told, mar_model_load(told, path, 0, &model));
    assert_library(told, mar_vae_load(told, "demo-vae", &vae));
    assert_int_equal(mar_model_get_config(model)->patch_size, PATCH);
    assert_library(told, mar_session_create(model, vae, &p, 2, &s));
    int width, height;
    mar_session_image_size(s, &width, &height);
    assert_true(width == SIDE && height == SIDE);
    assert_session(s, mar_session_begin(s, 0, labels, 2));
    while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
    assert_session(s, mar_session_tokens(s, tokens[0]));
    assert_session(s, mar_session_images(s, rgb[0]));
    for (int i = 0; i < 2; i++) {
        unpatchify(tokens[i], latents);
        decode_latents(m, latents, expected);
        assert_memory_equal(rgb[i], expected, sizeof expected);
    }
    assert_memory_not_equal(rgb[0], rgb[1], sizeof expected);
    mar_session_free(s);
    mar_model_free(model), mar_vae_free(vae);
    mar_close(told), mar_close(m);
    free(path);
}

static void keep_model_line(void *user, mar_log_level level, const char *line)
{
    (void)level;
    if (strncmp(line, "model ", 6) == 0) snprintf(user, 512, "%s", line);
}

/* Checks that prefixes from wrappers of a training run change no number. The log reports that they were removed. */
TEST_CASE(prefixes_are_no_part_of_names)
{
    static const char *const prefixes[] = {"", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."};
    static const char *const removed[] = {"", "module.", "_orig_mod.", "module. and _orig_mod.",
                                          "module. and _orig_mod."};
    static float tokens[2][GRID * GRID * PATCH * PATCH * Z];
    char line[512], *dir = test_directory(), wanted[128];
    mar_params p = params_of(4, 10, 1.0f, MAR_CFG_LINEAR, 1.0f, 1);
    p.sampler = MAR_SAMPLER_DDIM;
    const mar_options options = {.size = sizeof options,
                                 .dtype = MAR_DTYPE_F32,
                                 .threads = 2,
                                 .backend = MAR_BACKEND_CPU,
                                 .log = keep_model_line,
                                 .log_user = line};
    mar *m;
    assert_library(m, mar_open(&options, &m));
    for (int i = 0; i < 5; i++) {
        char *path = write_mar(dir, "prefixed.safetensors", &patches, 1, prefixes[i]);
        generate(m, path, &p, (const int[]){1}, 0, 1, 1, GRID * GRID * PATCH * PATCH * Z, tokens[i > 0]);
        snprintf(wanted, sizeof wanted, " parameters, names without %s, loaded in ", removed[i]);
        if ((strstr(line, wanted) != NULL) != (i > 0)) fail_msg("\"%s\", expected \"%s\" in it", line, wanted);
        if (i > 0) assert_memory_equal(tokens[1], tokens[0], sizeof *tokens);
        free(path);
    }
    mar_close(m);
}

/* Checks the patch size found from the token's dimension, the given patch size and the channels. */
TEST_CASE(patch_sizes)
{
    static const struct {
        int token_dim, said, channels, expected; /* expected 0: must be given */
    } cases[] = {{16, 0, 16, 1}, {64, 0, 16, 2}, {144, 0, 16, 3}, {64, 0, 64, 1}, {8, 0, 8, 1},   {16, 0, 4, 0},
                 {64, 0, 4, 0},  {32, 0, 8, 0},  {48, 0, 16, 0},  {16, 2, 4, 2},  {64, 2, 16, 2}, {64, 2, 64, 0},
                 {64, 1, 64, 1}, {64, 1, 16, 0}, {64, 4, 4, 4},   {16, 0, 64, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const mar_model_config c = {.token_dim = cases[i].token_dim, .patch_size = cases[i].said};
        if (mar_patch_size(&c, cases[i].channels) != cases[i].expected)
            fail_msg("case %zu: patch_size %d", i, mar_patch_size(&c, cases[i].channels));
    }
}
