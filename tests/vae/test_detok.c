/* l-DeTok's tokenizer against the official code (tests/golden/make_detok.py): the decoder in f32 and bf16, the encoder,
 * batches, and the statistics of the latents, which a file beside it has. Also damaged files. */
#include "tests/support/archive.h"
#include "tests/support/brief.h"
#include "tests/support/detok.h"
#include "tests/support/device.h"
#include "tests/vae/files.h"

#include "kernels/pixels.h"
#include "mar_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GRID = 4, PATCH = 4, CHANNELS = 6, IMAGES = 2, WIDTH = 128, DEPTH = 2, SIDE = GRID * PATCH };
enum { TOKENS = GRID * GRID, EACH = TOKENS * CHANNELS, VALUES = SIDE * SIDE * 3 };

static const char *tokenizer_path(void)
{
    return detok_path("detok-tiny-decoder_tuned.pth");
}

/* Opens a file with its statistics. */
static wt_file *open_detok(const char *path)
{
    wt_file *f = open_weights(path);
    mar_err err = {0};
    assert_ok(vae_config_complete(f, &err), &err);
    return f;
}

static vae_decoder *load(kern_queue *k, const char *path, int encoder)
{
    wt_file *f = open_detok(path);
    vae_decoder *d = NULL;
    mar_err err = {0};
    assert_ok(vae_decoder_create(k, f, &d, &err), &err);
    if (encoder) assert_ok(vae_decoder_add_encoder(d, k, f, &err), &err);
    wt_close(f);
    return d;
}

/* A run for at most `images` images, `at_a_time` of them at once. */
typedef struct {
    kern_queue *k;
    vae_run *r;
    void *memory;
    float *tokens; /* backend [images] */
} running;

static running begin_run(kern_queue *k, const vae_decoder *d, int images, int at_a_time)
{
    running run = {.k = k};
    mar_err err = {0};
    const size_t budget = k->device->image_budget;
    assert_ok(vae_run_create(k, d, GRID, GRID, 1, VAE_MEMORY, &run.r, &err), &err);
    k->device->image_budget = (size_t)at_a_time * vae_run_lay_out(run.r, NULL);
    vae_run_free(run.r);
    assert_ok(vae_run_create(k, d, GRID, GRID, images, VAE_MEMORY, &run.r, &err), &err);
    k->device->image_budget = budget;
    assert_ok(vae_run_plan(run.r, images, &err), &err);
    vae_run_lay_out(run.r, run.memory = backend_memory(k, vae_run_lay_out(run.r, NULL)));
    run.tokens = backend_memory(k, (size_t)images * EACH * sizeof *run.tokens);
    return run;
}

static void end_run(running *run)
{
    mar_err err = {0};
    assert_ok(kern_check(run->k, &err), &err);
    run->k->core->free(run->k->device, run->memory), run->k->core->free(run->k->device, run->tokens);
    vae_run_free(run->r);
}

/* Decodes images to pixels and bytes. */
static void decode(kern_queue *k, const vae_decoder *d, const float *tokens, int images, int at_a_time, float *pixels,
                   uint8_t *rgb)
{
    running run = begin_run(k, d, images, at_a_time);
    k->core->upload(k, run.tokens, tokens, (size_t)images * EACH * sizeof *tokens);
    for (int done = 0, n; done < images; done += n) {
        n = images - done < at_a_time ? images - done : at_a_time;
        const vae_pictures p = vae_decode(run.r, run.tokens + (size_t)done * EACH, n);
        k->core->download(k, pixels + (size_t)done * VALUES, p.pixels, (size_t)n * VALUES * sizeof *pixels);
        k->core->download(k, rgb + (size_t)done * VALUES, p.bytes, (size_t)n * VALUES);
    }
    end_run(&run);
}

/* --- numbers ------------------------------------------------------------------------------------------------------ */

/* Compares a file's decoder with the golden images, and its encoder with the golden tokens. */
static void check_golden(const char *path, mar_dtype dtype, double tolerance, int byte_tolerance)
{
    kern_queue *k = open_queue(dtype, 2);
    if (!k) return; /* a processor without bf16 */
    wt_file *f = golden_open("detok");
    float *tokens = golden_f32(f, "tokens", IMAGES * EACH), *expected = golden_f32(f, "image", IMAGES * VALUES);
    float *byte = golden_f32(f, "bytes", IMAGES * VALUES), *rgb = golden_f32(f, "rgb", VALUES);
    float *encoded = golden_f32(f, "encoded", EACH), pixels[IMAGES * VALUES], mine[EACH];
    uint8_t got[IMAGES * VALUES], picture[VALUES];
    vae_decoder *d = load(k, path, 1);
    decode(k, d, tokens, IMAGES, IMAGES, pixels, got);
    assert_close(pixels, expected, IMAGES * VALUES, tolerance);
    for (int i = 0; i < IMAGES * VALUES; i++) {
        assert_int_equal(got[i], kern_pixel_byte(pixels[i], KERN_BYTES_CUT));
        assert_int_equal(byte[i], kern_pixel_byte(expected[i], KERN_BYTES_CUT));
        assert_true(abs(got[i] - (int)byte[i]) <= byte_tolerance);
    }
    for (int i = 0; i < VALUES; i++) picture[i] = (uint8_t)rgb[i];
    running run = begin_run(k, d, 1, 1);
    vae_encode(run.r, picture, (size_t)SIDE * 3, 3, mine);
    assert_close(mine, encoded, EACH, tolerance);
    end_run(&run);
    vae_decoder_free(d);
    free(tokens), free(expected), free(byte), free(rgb), free(encoded);
    wt_close(f);
    close_queue(k);
}

TEST_CASE(both_sides_are_the_official_codes)
{
    check_golden(tokenizer_path(), MAR_DTYPE_F32, 1e-5, 1);
    check_golden(tokenizer_path(), MAR_DTYPE_BF16, 2.5e-2, 12);
}

/* mar_convert writes the statistics into the file, which then needs no other. */
TEST_CASE(a_converted_file_needs_no_statistics)
{
    char *path = test_path("detok.safetensors");
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    assert_library(m, mar_convert(m, tokenizer_path(), path, MAR_DTYPE_F32, 0));
    mar_close(m);
    check_golden(path, MAR_DTYPE_F32, 1e-5, 1);
}

TEST_CASE(images_are_those_alone)
{
    enum { BATCH = 5 };
    static float alone[BATCH * VALUES], pixels[BATCH * VALUES];
    static uint8_t rgb[BATCH * VALUES];
    float *tokens = random_floats(BATCH * EACH, 1, 7);
    for (int threads = 1; threads <= 3; threads++) {
        kern_queue *k = open_queue(MAR_DTYPE_F32, threads);
        vae_decoder *d = load(k, tokenizer_path(), 0);
        for (int i = 0; threads == 1 && i < BATCH; i++) decode(k, d, tokens + i * EACH, 1, 1, alone + i * VALUES, rgb);
        for (int at_a_time = 1; at_a_time <= BATCH; at_a_time += 2) {
            decode(k, d, tokens, BATCH, at_a_time, pixels, rgb);
            assert_memory_equal(pixels, alone, sizeof alone);
        }
        vae_decoder_free(d);
        close_queue(k);
    }
    free(tokens);
}

/* --- facts -------------------------------------------------------------------------------------------------------- */

TEST_CASE(config_and_flop)
{
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    vae_decoder *d = load(k, tokenizer_path(), 0);
    const mar_vae_config *c = vae_decoder_config(d);
    vae_run *r = NULL;
    mar_err err = {0};
    assert_int_equal(c->z_channels, CHANNELS);
    assert_int_equal(c->stride, PATCH);
    assert_int_equal(c->channels, 3);
    assert_int_equal(c->levels, 1);
    assert_int_equal(c->width, WIDTH);
    assert_int_equal(c->depth, DEPTH);
    assert_int_equal(c->heads, 2);
    assert_int_equal(c->grid, GRID);
    assert_int_equal(vae_decoder_is_sphere(d), 0);
    assert_ok(vae_run_create(k, d, GRID, GRID, 1, VAE_MEMORY, &r, &err), &err);
    /* multiply-adds: decoder_embed, two layers with a SwiGLU of 341, patches, conv_out */
    const double layer = TOKENS * WIDTH * (4 * WIDTH + 3 * 341.0) + 2.0 * TOKENS * TOKENS * WIDTH;
    const double ends = TOKENS * WIDTH * (CHANNELS + 3.0 * PATCH * PATCH) + 27.0 * VALUES;
    assert_true(vae_run_flop(r) == 2 * (DEPTH * layer + ends));
    vae_run_free(r);
    assert_int_equal(vae_run_create(k, d, GRID, GRID + 1, 1, VAE_MEMORY, &r, &err), MAR_EMODEL);
    assert_string_equal(err.text, "the image decoder is for 4x4 tokens, expected such an image, not 4x5");
    vae_decoder_free(d);
    close_queue(k);
}

/* Writes a copy with the statistics, without the mask's token; or, of that copy, one as write_copy_without does. */
static void write_changed_copy(const char *path, const char *tensor, int rank, const int64_t *shape)
{
    char *whole = test_path("whole.safetensors");
    mar *m = open_mar(MAR_DTYPE_F32, 1);
    assert_library(m, mar_convert(m, tokenizer_path(), whole, MAR_DTYPE_F32, 0));
    mar_close(m);
    write_copy_without(whole, path, WT_F32, tensor, rank, shape, NULL);
}

static int none(const char *tensor)
{
    (void)tensor;
    return 0;
}

TEST_CASE(all_tensors_are_listed)
{
    char *path = test_path("detok.safetensors");
    write_changed_copy(path, NULL, 0, NULL);
    wt_file *f = open_weights(path);
    assert_true(vae_config_is_vit(f) && vae_config_is_detok(f) && !vae_config_is_vq(f));
    wt_close(f);
    check_listing(path, none);
}

/* Checks that the search for layers names the layer of a damaged tensor. */
TEST_CASE(layers_have_the_files_names)
{
    static const struct {
        const char *tensor, *layer;
    } spoiled[] = {{"mean", "decoder.decoder_embed"},
                   {"decoder.decoder_embed.bias", "decoder.decoder_embed"},
                   {"decoder.positional_embedding", "decoder.ln_pre"},
                   {"decoder.transformer.0.norm2.weight", "decoder.transformer.0.norm2"},
                   {"decoder.transformer.1.attn.proj.weight", "decoder.transformer.1.attn.proj"},
                   {"decoder.transformer.0.mlp.w12.bias", "decoder.transformer.0.mlp.w12"},
                   {"decoder.ln_post.weight", "decoder.ln_post"},
                   {"decoder.ffn.1.weight", "decoder.ffn.1"},
                   {"decoder.conv_out.bias", "decoder.conv_out"}};
    static float tokens[EACH], pixels[VALUES];
    uint8_t rgb[VALUES];
    char *path = test_path("detok.safetensors");
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    for (int i = 0; i < EACH; i++) tokens[i] = (float)(i % 7) / 7;
    for (size_t i = 0; i < sizeof spoiled / sizeof *spoiled; i++) {
        write_changed_copy(path, NULL, 0, NULL);
        vae_decoder *d = load_spoiled(k, path, spoiled[i].tensor);
        k->watch.on = 1;
        kern_watch_begin(k);
        decode(k, d, tokens, 1, 1, pixels, rgb);
        k->watch.on = 0;
        assert_string_equal(k->watch.layer, spoiled[i].layer);
        vae_decoder_free(d);
    }
    close_queue(k);
}

/* --- damaged files ------------------------------------------------------------------------------------------------ */

/* Expects the side of the file to be refused in one line with the reason. */
static void expect_refused(const char *path, const char *tensor, const char *reason)
{
    if (strncmp(tensor, "encoder.", 8) != 0) {
        expect_decoder_refused(path, reason);
        return;
    }
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    wt_file *f = open_weights(path);
    vae_decoder *d = NULL;
    mar_err err = {0};
    assert_ok(vae_decoder_create(k, f, &d, &err), &err);
    const mar_status status = vae_decoder_add_encoder(d, k, f, &err);
    if (status != MAR_EMODEL || !strstr(err.text, reason) || strchr(err.text, '\n'))
        fail_msg("expected \"%s\": %s (%s)", reason, mar_status_name(status), err.text);
    vae_decoder_free(d);
    wt_close(f);
    close_queue(k);
}

TEST_CASE(every_tensor_is_needed)
{
    char *path = test_path("detok.safetensors");
    wt_file *f = open_detok(tokenizer_path());
    int seen = 0;
    for (int i = 0; i < wt_count(f); i++) {
        const char *name = wt_at(f, i)->name;
        if (vae_config_ignores_detok(name)) continue;
        write_changed_copy(path, name, 0, NULL);
        expect_refused(path, name, name);
        seen++;
    }
    assert_int_equal(seen, 48);
    wt_close(f);
}

TEST_CASE(wrong_shapes_are_refused)
{
    static const struct {
        const char *tensor;
        int rank;
        int64_t shape[4];
        const char *reason;
    } wrong[] = {
        {"decoder.positional_embedding", 3, {1, 32, 64}, "has 32 positions, expected a square number"},
        {"decoder.decoder_embed.weight", 2, {96, 8}, "a ViT decoder of width 96 with 0 heads"},
        {"decoder.ffn.1.weight", 4, {64, 96, 1, 1}, "decoder.ffn.1.weight has 64 rows, expected those of a patch"},
        {"decoder.transformer.0.mlp.w3.weight", 2, {64, 682}, "transformer.0.mlp.w12"},
        {"decoder.transformer.1.attn.qkv.weight", 2, {128, 384}, "transformer.1.attn.qkv.weight"},
        {"encoder.patch_embed.0.weight", 4, {192, 1, 4, 4}, "encoder.patch_embed.0.weight"},
        {"encoder.patch_embed.0.weight", 4, {64, 12, 2, 2}, "the encoder makes 4x4 tokens of 6 channels of 2x2 pixels"},
        {"encoder.latent_head.weight", 2, {6, 128}, "the encoder makes 4x4 tokens of 3 channels"},
        {"std", 2, {2, 3}, "std"},
    };
    char *path = test_path("detok.safetensors");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_changed_copy(path, wrong[i].tensor, wrong[i].rank, wrong[i].shape);
        expect_refused(path, wrong[i].tensor, wrong[i].reason);
    }
}

/* --- stats.pkl ---------------------------------------------------------------------------------------------------- */

static void copy_file(const char *from, const char *to)
{
    bytes b = bytes_from_file(from);
    bytes_to_file(&b, to);
    bytes_free(&b);
}

/* Writes the path of a file in the folder of the next tests. Returns path. */
static const char *in_folder(const char *folder, const char *name, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/%s", folder, name);
    return path;
}

/* Opens a copy of the tokenizer under a name in the folder. Expects the reason, or with NULL none. */
static void expect_statistics(const char *folder, const char *name, mar_status status, const char *reason)
{
    char path[PATH_MAX];
    mar_err err = {0};
    copy_file(tokenizer_path(), in_folder(folder, name, path));
    wt_file *f = open_weights(path);
    const mar_status found = vae_config_complete(f, &err);
    if (found != status || (reason && !strstr(err.text, reason)) || strchr(err.text, '\n'))
        fail_msg("expected \"%s\": %s (%s)", reason ? reason : "", mar_status_name(found), err.text);
    assert_true(status != MAR_OK || (wt_find(f, "mean") && wt_find(f, "std")->shape[0] == CHANNELS));
    wt_close(f);
}

TEST_CASE(statistics_are_found_beside_the_file)
{
    const char *folder = test_directory();
    char path[PATH_MAX];
    mar_err err = {0};
    expect_statistics(folder, "detok-tiny.pth", MAR_EIO,
                      "has no tensors mean and std, the statistics of its latents: expected");
    copy_file(detok_path("stats.pkl"), in_folder(folder, "stats.pkl", path));
    expect_statistics(folder, "detok-tiny.pth", MAR_OK, NULL);
    expect_statistics(folder, "vitok-tiny-more.pth", MAR_OK, NULL);
    expect_statistics(folder, "other.pth", MAR_EMODEL,
                      "has 2 tokenizers, expected one whose name begins that of the file");
    bytes b = bytes_from_file(tokenizer_path());
    wt_file *f = NULL;
    assert_ok(wt_open_memory(b.data, b.size, "memory", &f, &err), &err);
    assert_int_equal(vae_config_complete(f, &err), MAR_EMODEL);
    assert_non_null(
        strstr(err.text, "memory: has no tensors mean and std, the statistics of its latents, and no folder"));
    wt_close(f);
    bytes_free(&b);
}

/* Any damage is found, or changes numbers: nothing is read beyond the file (sanitizers), and messages are lines. */
TEST_CASE(damaged_statistics_are_refused)
{
    const char *folder = test_directory();
    char path[PATH_MAX], tokenizer[PATH_MAX];
    copy_file(tokenizer_path(), in_folder(folder, "detok-tiny.pth", tokenizer));
    in_folder(folder, "stats.pkl", path);
    bytes whole = bytes_from_file(detok_path("stats.pkl"));
    for (size_t i = 0; i < whole.size; i += test_all ? 1 : test_brief ? 31 : 7) {
        mar_err err = {0};
        const uint8_t kept = whole.data[i];
        const bytes damaged = {whole.data, i % 3 ? whole.size : i, whole.capacity};
        whole.data[i] = i % 2 ? kept ^ 0x41 : 0xff;
        bytes_to_file(&damaged, path);
        whole.data[i] = kept;
        wt_file *f = open_weights(tokenizer);
        const mar_status status = vae_config_complete(f, &err);
        assert_true(status == MAR_OK || status == MAR_EFORMAT || status == MAR_EMODEL);
        assert_true(status == MAR_OK || (*err.text && !strchr(err.text, '\n')));
        wt_close(f);
    }
    bytes_free(&whole);
}
