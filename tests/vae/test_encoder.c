/* The image encoders against PyTorch (tests/golden/make_encoder.py), in f32 and bf16: a KL one with attention, that of
 * the demo model, a VQ one. Patches, round trips, damaged files. */
#include "tests/support/changed.h"
#include "tests/support/support.h"

#include "vae/vae.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char kl_path[] = "tests/golden/data/encoder.pth", vq_path[] = "tests/golden/data/vq.pth",
                  demo_path[] = "weights/demo/vae.safetensors";

/* A decoder with its encoder, and a run for one image. */
typedef struct {
    kern_queue *k;
    vae_decoder *d;
    vae_run *r;
    void *memory;
    int width;             /* of the image */
    size_t pixels, tokens; /* bytes of an image, and its numbers */
} encoder;

static encoder open_encoder(const char *path, mar_dtype dtype, int threads, int grid_h, int grid_w, int patch)
{
    encoder e = {.k = open_queue(dtype, threads)};
    mar_err err = {0};
    if (!e.k) skip(); /* a processor without bf16 */
    wt_file *f = open_weights(path);
    assert_ok(vae_decoder_create(e.k, f, &e.d, &err), &err);
    assert_false(vae_decoder_has_encoder(e.d));
    assert_ok(vae_decoder_add_encoder(e.d, e.k, f, &err), &err);
    assert_true(vae_decoder_has_encoder(e.d));
    wt_close(f);
    const mar_vae_config *c = vae_decoder_config(e.d);
    assert_ok(vae_run_create(e.k, e.d, grid_h, grid_w, 1, VAE_MEMORY, &e.r, &err), &err);
    assert_ok(vae_run_unpatchify(e.r, patch, &err), &err);
    assert_ok(vae_run_plan(e.r, 1, &err), &err);
    vae_run_lay_out(e.r, e.memory = backend_memory(e.k, vae_run_lay_out(e.r, NULL)));
    e.width = grid_w * c->stride;
    e.pixels = (size_t)(grid_h * c->stride * e.width) * 3;
    e.tokens = (size_t)(grid_h * grid_w) * (size_t)(c->codebook ? 1 : c->z_channels);
    return e;
}

static void close_encoder(encoder *e)
{
    vae_run_free(e->r);
    vae_decoder_free(e->d);
    e->k->core->free(e->k->device, e->memory);
    close_queue(e->k);
}

/* Returns the bytes of a golden picture; the caller frees them. */
static uint8_t *golden_picture(const char *name, size_t n)
{
    char tensor[64];
    wt_file *f = golden_open("encoder");
    snprintf(tensor, sizeof tensor, "golden.pixels_%s", name);
    float *values = golden_f32(f, tensor, (int64_t)n);
    uint8_t *rgb = malloc(n);
    assert_non_null(rgb);
    for (size_t i = 0; i < n; i++) rgb[i] = (uint8_t)values[i];
    free(values);
    wt_close(f);
    return rgb;
}

static float *golden_tokens(const char *name, size_t n)
{
    char tensor[64];
    wt_file *f = golden_open("encoder");
    snprintf(tensor, sizeof tensor, "golden.tokens_%s", name);
    float *tokens = golden_f32(f, tensor, (int64_t)n);
    wt_close(f);
    return tokens;
}

/* Encodes RGB bytes whose rows are adjacent; the caller frees the tokens. */
static float *encode(encoder *e, const uint8_t *rgb)
{
    mar_err err = {0};
    float *tokens = malloc(e->tokens * sizeof *tokens);
    assert_non_null(tokens);
    vae_encode(e->r, rgb, (size_t)e->width * 3, 3, tokens);
    assert_ok(kern_check(e->k, &err), &err);
    return tokens;
}

/* Decodes an image to bytes; the caller frees them. */
static uint8_t *decode(encoder *e, const float *tokens)
{
    float *at = backend_memory(e->k, e->tokens * sizeof *tokens);
    uint8_t *rgb = malloc(e->pixels);
    assert_non_null(rgb);
    e->k->core->upload(e->k, at, tokens, e->tokens * sizeof *tokens);
    e->k->core->download(e->k, rgb, vae_decode(e->r, at, 1).bytes, e->pixels);
    e->k->core->free(e->k->device, at);
    return rgb;
}

/* --- numbers ------------------------------------------------------------------------------------------------------ */

static const struct {
    const char *name, *path;
    int grid_h, grid_w;
} kl_cases[] = {{"kl_4x4", kl_path, 4, 4}, {"kl_6x10", kl_path, 6, 10}, {"demo", demo_path, 8, 8}};
enum { KL_CASES = sizeof kl_cases / sizeof *kl_cases };

static void check_kl(mar_dtype dtype, double tolerance)
{
    for (int i = 0; i < KL_CASES; i++) {
        float *one = NULL;
        for (int threads = 1; threads <= 3; threads++) {
            encoder e = open_encoder(kl_cases[i].path, dtype, threads, kl_cases[i].grid_h, kl_cases[i].grid_w, 1);
            uint8_t *picture = golden_picture(kl_cases[i].name, e.pixels);
            float *expected = golden_tokens(kl_cases[i].name, e.tokens), *tokens = encode(&e, picture);
            assert_close(tokens, expected, e.tokens, tolerance);
            if (one) assert_memory_equal(tokens, one, e.tokens * sizeof *tokens);
            free(one);
            one = tokens;
            free(picture), free(expected);
            close_encoder(&e);
        }
        free(one);
    }
}

TEST_CASE(f32_is_pytorch)
{
    check_kl(MAR_DTYPE_F32, 1e-5); /* required: 1e-4 */
}

/* bf16 rounds every operand to 8 bits. Some twenty layers add up this relative error of 2e-3. */
TEST_CASE(bf16_is_near)
{
    check_kl(MAR_DTYPE_BF16, 2e-2);
}

/* The second nearest row is farther by 0.007 at least, so f32 finds the official rows. */
TEST_CASE(vq_tokens_are_the_official_rows)
{
    encoder e = open_encoder(vq_path, MAR_DTYPE_F32, 2, 6, 4, 1);
    uint8_t *picture = golden_picture("vq", e.pixels);
    float *expected = golden_tokens("vq", e.tokens), *tokens = encode(&e, picture);
    assert_memory_equal(tokens, expected, e.tokens * sizeof *tokens);
    free(picture), free(expected), free(tokens);
    close_encoder(&e);
}

/* --- pixels, patches, round trips --------------------------------------------------------------------------------- */

/* Checks that a fourth channel and the bytes after a row change nothing. */
TEST_CASE(rows_and_pixels_may_be_padded)
{
    enum { STRIDE = 77 };
    encoder e = open_encoder(kl_path, MAR_DTYPE_F32, 1, 4, 4, 1);
    uint8_t *picture = golden_picture("kl_4x4", e.pixels), padded[8 * STRIDE];
    float *expected = encode(&e, picture), *tokens = malloc(e.tokens * sizeof *tokens);
    assert_non_null(tokens);
    memset(padded, 0xa5, sizeof padded);
    for (int i = 0; i < 8 * 8; i++) memcpy(padded + i / 8 * STRIDE + i % 8 * 4, picture + i * 3, 3);
    vae_encode(e.r, padded, STRIDE, 4, tokens);
    assert_memory_equal(tokens, expected, e.tokens * sizeof *tokens);
    free(picture), free(expected), free(tokens);
    close_encoder(&e);
}

/* Checks that tokens of patches decode to the image of the same latents in tokens of a pixel. */
TEST_CASE(tokens_may_be_patches)
{
    encoder e = open_encoder(demo_path, MAR_DTYPE_F32, 2, 8, 8, 1),
            p = open_encoder(demo_path, MAR_DTYPE_F32, 2, 8, 8, 2);
    uint8_t *picture = golden_picture("demo", e.pixels);
    float *tokens = encode(&e, picture), *packed = encode(&p, picture);
    assert_memory_not_equal(packed, tokens, e.tokens * sizeof *tokens);
    uint8_t *image = decode(&e, tokens), *unpacked = decode(&p, packed);
    assert_memory_equal(image, unpacked, e.pixels);
    free(picture), free(tokens), free(packed), free(image), free(unpacked);
    close_encoder(&e);
    close_encoder(&p);
}

/* Checks the trained encoder: the demo's digits survive it, and a call of either side leaves the other's results. */
TEST_CASE(digits_survive_a_round_trip)
{
    encoder e = open_encoder(demo_path, MAR_DTYPE_F32, 2, 8, 8, 1);
    wt_file *f = golden_open("demo");
    float *golden = golden_f32(f, "tokens", (int64_t)(3 * e.tokens));
    for (size_t i = 0; i < 3; i++) {
        uint8_t *digit = decode(&e, golden + i * e.tokens);
        float *tokens = encode(&e, digit), *again = encode(&e, digit);
        uint8_t *image = decode(&e, tokens);
        assert_memory_equal(again, tokens, e.tokens * sizeof *tokens);
        double square = 0, contrast = 0;
        for (size_t j = 0; j < e.pixels; j++) {
            square += pow(image[j] - digit[j], 2);
            contrast += pow(digit[j] - 128.0, 2);
        }
        assert_true(sqrt(square / (double)e.pixels) < 4); /* measured: 1.6 to 2.7 of 255 */
        assert_true(sqrt(contrast / (double)e.pixels) > 80);
        free(digit), free(tokens), free(again), free(image);
    }
    free(golden);
    wt_close(f);
    close_encoder(&e);
}

/* --- damaged files ------------------------------------------------------------------------------------------------ */

/* Expects the decoder of a file to be good and its encoder to be refused. */
static void expect_refused(const char *path, const char *reason)
{
    wt_file *f = open_weights(path);
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    vae_decoder *d = NULL;
    mar_err err = {0};
    assert_ok(vae_decoder_create(k, f, &d, &err), &err);
    const mar_status status = vae_decoder_add_encoder(d, k, f, &err);
    if (status != MAR_EMODEL || !strstr(err.text, reason) || !strstr(err.text, path) || strchr(err.text, '\n'))
        fail_msg("expected \"%s\": %s (%s)", reason, mar_status_name(status), err.text);
    assert_false(vae_decoder_has_encoder(d));
    vae_decoder_free(d);
    wt_close(f);
    close_queue(k);
}

TEST_CASE(a_decoder_alone_has_no_encoder)
{
    expect_refused("weights/demo/discrete-vq.safetensors", "discrete-vq.safetensors has no encoder");
}

/* Removes every third tensor in turn. The message must name it, and nothing may leak (sanitizers). */
TEST_CASE(tensors_are_needed)
{
    char *path = test_path("encoder.safetensors");
    wt_file *f = open_weights(kl_path);
    int seen = 0;
    for (int i = 0; i < wt_count(f); i++) {
        const char *name = wt_at(f, i)->name;
        if (strncmp(name, "encoder.", 8) != 0 && strncmp(name, "quant_conv.", 11) != 0) continue;
        if (seen++ % 3 != 0) continue;
        write_copy_without(kl_path, path, WT_F32, name, 0, NULL, NULL);
        expect_refused(path, name);
    }
    assert_int_equal(seen, 90);
    wt_close(f);
}

/* Checks that the search for layers names the layer of a damaged tensor. */
TEST_CASE(layers_have_the_files_names)
{
    static const char *const spoiled[][2] = {{"encoder.conv_in.bias", "encoder.conv_in"},
                                             {"encoder.down.0.downsample.conv.bias", "encoder.down.0.downsample.conv"},
                                             {"encoder.down.1.attn.1.k.weight", "encoder.down.1.attn.1.k"},
                                             {"encoder.conv_out.weight", "encoder.conv_out"},
                                             {"quant_conv.weight", "quant_conv"}};
    char *path = test_path("encoder.safetensors");
    for (size_t i = 0; i < sizeof spoiled / sizeof *spoiled; i++) {
        write_copy_without(kl_path, path, WT_F32, NULL, 0, NULL, NULL);
        write_nan(path, spoiled[i][0], 0);
        expect_refused(path, spoiled[i][0]);
        kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
        vae_decoder *d = NULL;
        mar_err err = {0};
        wt_file *f = open_weights(path);
        wt_allow_nonfinite(f, 1);
        assert_ok(vae_decoder_create(k, f, &d, &err), &err);
        assert_ok(vae_decoder_add_encoder(d, k, f, &err), &err);
        vae_run *r = NULL;
        assert_ok(vae_run_create(k, d, 2, 2, 1, VAE_MEMORY, &r, &err), &err);
        assert_ok(vae_run_plan(r, 1, &err), &err);
        void *memory = backend_memory(k, vae_run_lay_out(r, NULL));
        vae_run_lay_out(r, memory);
        const uint8_t grey[4 * 4 * 3] = {0};
        float tokens[2 * 2 * 4];
        k->watch.on = 1;
        kern_watch_begin(k);
        vae_encode(r, grey, 4 * 3, 3, tokens);
        k->watch.on = 0;
        assert_string_equal(k->watch.layer, spoiled[i][1]);
        vae_run_free(r);
        vae_decoder_free(d);
        k->core->free(k->device, memory);
        wt_close(f);
        close_queue(k);
    }
}
