/* SphereAR's image decoder against the official code (tests/golden/make_vit.py), in f32 and bf16: pixels, bytes and
 * batches. Also facts read from the file, and damaged files. */
#include "tests/support/device.h"
#include "tests/vae/files.h"

#include "kernels/pixels.h"
#include "vae/vae.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHANNELS = 4, WIDTH = 64, HEADS = 2, DEPTH = 2, REGISTERS = 4, GRID = 5, STRIDE = 4, IMAGES = 2 };
enum { TOKENS = GRID * GRID, VALUES = TOKENS * STRIDE * STRIDE * 3, MOST = 256 };
static const char golden_path[] = "tests/golden/data/vit.pt";

static wt_file *open_checkpoint(void)
{
    return open_weights(golden_path);
}

static vae_decoder *load(kern_queue *k, const char *path)
{
    wt_file *f = open_weights(path);
    vae_decoder *d = NULL;
    mar_err err = {0};
    assert_ok(vae_decoder_create(k, f, &d, &err), &err);
    wt_close(f);
    return d;
}

/* Decodes the images, at most `at_a_time` at once, to pixels and bytes. */
static void decode(kern_queue *k, const vae_decoder *d, const float *tokens, int images, int at_a_time, float *pixels,
                   uint8_t *rgb)
{
    const size_t each = TOKENS * CHANNELS, budget = k->device->image_budget;
    vae_run *r = NULL;
    mar_err err = {0};
    assert_ok(vae_run_create(k, d, GRID, GRID, 1, VAE_MEMORY, &r, &err), &err);
    k->device->image_budget = (size_t)at_a_time * vae_run_lay_out(r, NULL);
    vae_run_free(r);
    assert_ok(vae_run_create(k, d, GRID, GRID, images, VAE_MEMORY, &r, &err), &err);
    k->device->image_budget = budget;
    assert_int_equal(vae_run_images(r), at_a_time < images ? at_a_time : images);
    assert_ok(vae_run_plan(r, images, &err), &err);
    void *memory = backend_memory(k, vae_run_lay_out(r, NULL));
    float *on_device = backend_memory(k, (size_t)images * each * sizeof *tokens);
    vae_run_lay_out(r, memory);
    k->core->upload(k, on_device, tokens, (size_t)images * each * sizeof *tokens);
    for (int done = 0, pass; done < images; done += pass) {
        pass = images - done < at_a_time ? images - done : at_a_time;
        const vae_pictures p = vae_decode(r, on_device + (size_t)done * each, pass);
        k->core->download(k, pixels + (size_t)done * VALUES, p.pixels, (size_t)pass * VALUES * sizeof *pixels);
        k->core->download(k, rgb + (size_t)done * VALUES, p.bytes, (size_t)pass * VALUES);
    }
    assert_ok(kern_check(k, &err), &err);
    k->core->free(k->device, memory), k->core->free(k->device, on_device);
    vae_run_free(r);
}

/* --- numbers ------------------------------------------------------------------------------------------------------ */

/* Compares the decoder of a file with the golden images. */
static void check_golden(const char *path, mar_dtype dtype, double tolerance, int byte_tolerance)
{
    kern_queue *k = open_queue(dtype, 2);
    if (!k) skip(); /* a processor without bf16 */
    wt_file *f = golden_open("vit");
    vae_decoder *d = load(k, path);
    float *tokens = golden_f32(f, "golden.tokens", IMAGES * TOKENS * CHANNELS);
    float *expected = golden_f32(f, "golden.image", IMAGES * VALUES);
    float *byte = golden_f32(f, "golden.bytes", IMAGES * VALUES), pixels[IMAGES * VALUES];
    uint8_t rgb[IMAGES * VALUES];
    decode(k, d, tokens, IMAGES, IMAGES, pixels, rgb);
    assert_close(pixels, expected, IMAGES * VALUES, tolerance);
    for (int j = 0; j < IMAGES * VALUES; j++) {
        assert_int_equal(rgb[j], kern_pixel_byte(pixels[j], KERN_BYTES_DOWN));
        assert_int_equal(byte[j], kern_pixel_byte(expected[j], KERN_BYTES_DOWN));
        assert_true(abs(rgb[j] - (int)byte[j]) <= byte_tolerance);
    }
    free(tokens), free(expected), free(byte);
    vae_decoder_free(d);
    close_queue(k);
    wt_close(f);
}

/* The official code turns queries and keys in f32: its own f32 differs from these numbers by 2e-6. */
TEST_CASE(f32_is_the_official_code)
{
    check_golden(golden_path, MAR_DTYPE_F32, 1e-5, 1);
}

/* bf16 rounds every operand to 8 bits. The official code's own bf16 differs from its f32 by 0.025. */
TEST_CASE(bf16_is_near)
{
    check_golden(golden_path, MAR_DTYPE_BF16, 2.5e-2, 10);
}

/* Compares the encoder's tokens of the golden pictures, which the model's norm brings to the sphere. */
static void check_encoder(mar_dtype dtype, double tolerance)
{
    enum { SIDE = GRID * STRIDE, RGB = SIDE * SIDE * 3, EACH = TOKENS * CHANNELS };
    kern_queue *k = open_queue(dtype, 2);
    if (!k) skip(); /* a processor without bf16 */
    wt_file *golden = golden_open("vit"), *f = open_checkpoint();
    float *picture = golden_f32(golden, "golden.picture", IMAGES * RGB),
          *expected = golden_f32(golden, "golden.encoded", IMAGES * EACH), tokens[EACH];
    vae_decoder *d = load(k, golden_path);
    vae_run *r = NULL;
    mar_err err = {0};
    assert_ok(vae_decoder_add_encoder(d, k, f, &err), &err);
    assert_ok(vae_run_create(k, d, GRID, GRID, 1, VAE_MEMORY, &r, &err), &err);
    assert_ok(vae_run_plan(r, 1, &err), &err);
    void *memory = backend_memory(k, vae_run_lay_out(r, NULL));
    vae_run_lay_out(r, memory);
    for (int i = 0; i < IMAGES; i++) {
        uint8_t rgb[RGB];
        for (int j = 0; j < RGB; j++) rgb[j] = (uint8_t)picture[i * RGB + j];
        vae_encode(r, rgb, SIDE * 3, 3, tokens);
        for (int t = 0; t < TOKENS; t++) {
            double squares = 0;
            for (int c = 0; c < CHANNELS; c++) squares += pow((double)tokens[t * CHANNELS + c], 2);
            for (int c = 0; c < CHANNELS; c++) tokens[t * CHANNELS + c] *= (float)sqrt(CHANNELS / squares);
        }
        assert_close(tokens, expected + i * EACH, EACH, tolerance);
    }
    assert_ok(kern_check(k, &err), &err);
    vae_run_free(r);
    vae_decoder_free(d);
    k->core->free(k->device, memory);
    free(picture), free(expected);
    wt_close(f), wt_close(golden);
    close_queue(k);
}

TEST_CASE(the_encoder_is_the_official_codes)
{
    check_encoder(MAR_DTYPE_F32, 1e-5);
}

TEST_CASE(the_encoder_in_bf16_is_near)
{
    check_encoder(MAR_DTYPE_BF16, 5e-2);
}

/* Checks that an image is bit for bit as if decoded alone, whatever the number of images at a time and of threads. */
static void check_batches(mar_dtype dtype)
{
    enum { BATCH = 5, EACH = TOKENS * CHANNELS };
    float *tokens = random_floats(BATCH * EACH, 1, 7), *alone = malloc(BATCH * VALUES * sizeof *alone);
    float *pixels = malloc(BATCH * VALUES * sizeof *pixels);
    uint8_t *rgb = malloc(BATCH * VALUES);
    assert_true(tokens && alone && pixels && rgb);
    for (int threads = 1; threads <= 3; threads++) {
        kern_queue *k = open_queue(dtype, threads);
        if (!k) skip();
        vae_decoder *d = load(k, golden_path);
        for (size_t i = 0; threads == 1 && i < BATCH; i++)
            decode(k, d, tokens + i * EACH, 1, 1, alone + i * VALUES, rgb);
        for (int at_a_time = 1; at_a_time <= BATCH; at_a_time += 2) {
            decode(k, d, tokens, BATCH, at_a_time, pixels, rgb);
            assert_memory_equal(pixels, alone, BATCH * VALUES * sizeof *pixels);
        }
        vae_decoder_free(d);
        close_queue(k);
    }
    free(tokens), free(alone), free(pixels), free(rgb);
}

TEST_CASE(images_are_those_alone)
{
    check_batches(MAR_DTYPE_F32);
    check_batches(MAR_DTYPE_BF16); /* skipped on processors without bf16 */
}

/* --- other files -------------------------------------------------------------------------------------------------- */

/* What a copy of the checkpoint has otherwise. */
typedef struct {
    const char *without; /* a tensor that is missing; or, with rank, has that shape */
    int rank;
    const int64_t *shape;
    wt_dtype table;    /* dtype of freqs_cis */
    int strip;         /* 1: names without "vae." */
    const char *heads; /* mar.vae_heads in the metadata, or NULL */
    int encoder;       /* 1: with the encoder's tensors */
} change;

static int is_of_encoder(const char *name)
{
    return strncmp(name, "vae.encoder.", 12) == 0 || strncmp(name, "vae.quant_proj.", 15) == 0;
}

/* Writes a copy. */
static void write_copy(const char *path, const change *c)
{
    const char *const metadata[][2] = {{"mar.vae_heads", c->heads}};
    wt_file *f = open_checkpoint();
    mar_err err = {0};
    wt_output out[MOST];
    int count = 0, seen = 0;
    for (int i = 0; i < wt_count(f); i++) {
        const wt_tensor *t = wt_at(f, i);
        const int is_it = c->without && strcmp(t->name, c->without) == 0, is_table = strstr(t->name, "freqs_cis") != 0;
        seen += is_it;
        if ((is_of_encoder(t->name) && !c->encoder) || (is_it && c->rank == 0)) continue;
        out[count] = (wt_output){t->name + (c->strip ? 4 : 0),
                                 is_table ? c->table : WT_F32,
                                 is_it ? c->rank : t->rank,
                                 {0},
                                 f,
                                 t,
                                 WT_VALUES,
                                 NULL};
        memcpy(out[count++].shape, is_it ? c->shape : t->shape, sizeof *c->shape * (size_t)(is_it ? c->rank : t->rank));
    }
    assert_int_equal(seen, c->without != NULL);
    assert_ok(wt_save_safetensors(path, out, count, metadata, c->heads != NULL, &err), &err);
    wt_close(f);
}

TEST_CASE(files_with_other_names_and_tables_decode_alike)
{
    static const char table[] = "vae.decoder.freqs_cis";
    static const change changes[] = {
        {.table = WT_F32, .strip = 1},
        {.table = WT_BF16},                                /* rounded: made anew */
        {.without = table, .table = WT_F32, .heads = "2"}, /* made for the run's grid */
        {.without = table, .table = WT_F32, .heads = "2", .strip = 1},
    };
    char *path = test_path("vit.safetensors");
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        write_copy(path, &changes[i]);
        check_golden(path, MAR_DTYPE_F32, 1e-5, 1);
    }
}

/* --- facts -------------------------------------------------------------------------------------------------------- */

TEST_CASE(config_and_flop)
{
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    vae_decoder *d = load(k, golden_path);
    const mar_vae_config *c = vae_decoder_config(d);
    assert_int_equal(c->z_channels, CHANNELS);
    assert_int_equal(c->stride, STRIDE);
    assert_int_equal(c->channels, 16);
    assert_int_equal(c->levels, 3);
    assert_int_equal(c->res_blocks, 1);
    assert_int_equal(c->codebook, 0);
    assert_int_equal(c->width, WIDTH);
    assert_int_equal(c->depth, DEPTH);
    assert_int_equal(c->heads, HEADS);
    assert_int_equal(c->grid, GRID);
    assert_null(vae_decoder_codebook(d));
    vae_run *r = NULL;
    mar_err err = {0};
    assert_ok(vae_run_create(k, d, GRID, GRID, 1, VAE_MEMORY, &r, &err), &err);
    /* Multiply-adds by hand: post_quant_proj, conv_in, two layers over 29 rows, two blocks (a quarter of 4x4 taps and a
     * quarter of 2x2 for each result, then three 3x3), conv_out. SwiGLU has 256. */
    const double rows = REGISTERS + TOKENS, layer = rows * WIDTH * (4 * WIDTH + 3 * 256) + 2 * rows * rows * WIDTH;
    const double first = 4 * TOKENS * (5 * 64 * 32 + 3 * 9 * 32 * 32.0);
    const double second = 16 * TOKENS * (5 * 32 * 16 + 3 * 9 * 16 * 16.0 + 9 * 16 * 3);
    const double in = TOKENS * (CHANNELS * WIDTH + 9.0 * WIDTH * WIDTH);
    assert_true(vae_run_flop(r) == 2 * (in + DEPTH * layer + first + second));
    vae_run_free(r);
    vae_decoder_free(d);
    close_queue(k);
}

TEST_CASE(other_grids_are_refused)
{
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    vae_decoder *d = load(k, golden_path);
    vae_run *r = (vae_run *)k;
    mar_err err = {0};
    assert_int_equal(vae_run_create(k, d, GRID, GRID + 1, 1, VAE_MEMORY, &r, &err), MAR_EMODEL);
    assert_string_equal(err.text, "the image decoder is for 5x5 tokens, expected such an image, not 5x6");
    assert_null(r);
    vae_decoder_free(d);
    close_queue(k);
}

static int skips_none(const char *name)
{
    (void)name;
    return 0;
}

TEST_CASE(all_tensors_are_listed)
{
    wt_file *f = open_checkpoint();
    assert_true(vae_config_is_vit(f) && !vae_config_is_vq(f));
    wt_close(f);
    check_listing(golden_path, skips_none); /* the encoder, too */
}

/* Checks that the search for layers names the layer of a damaged tensor. */
TEST_CASE(layers_have_the_files_names)
{
    static const struct {
        const char *tensor, *layer;
    } spoiled[] = {{"vae.post_quant_proj.weight", "vae.post_quant_proj"},
                   {"vae.decoder.conv_in.1.weight", "vae.decoder.conv_in.1"},
                   {"vae.decoder.layers.1.attention.wo.weight", "vae.decoder.layers.1.attention.wo"},
                   {"vae.decoder.layers.0.feed_forward.w1.weight", "vae.decoder.layers.0.feed_forward.w1"},
                   {"vae.decoder.unpatchify.1.net.0.shortcut.weight", "vae.decoder.unpatchify.1.net.0.shortcut"},
                   {"vae.decoder.unpatchify.1.net.1.block.2.weight", "vae.decoder.unpatchify.1.net.1.block.2"},
                   {"vae.decoder.unpatchify.1.net.1.block2.3.bias", "vae.decoder.unpatchify.1.net.1.block2.3"},
                   {"vae.decoder.conv_out.2.weight", "vae.decoder.conv_out.2"}};
    static float tokens[TOKENS * CHANNELS], pixels[VALUES];
    uint8_t rgb[VALUES];
    char *path = test_path("vit.safetensors");
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    for (int i = 0; i < TOKENS * CHANNELS; i++) tokens[i] = (float)(i % 7) / 7;
    for (size_t i = 0; i < sizeof spoiled / sizeof *spoiled; i++) {
        write_copy(path, &(change){.table = WT_F32});
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

/* --- files that are no decoder ------------------------------------------------------------------------------------ */

/* Expects one line for the changed copy, with the reason in it. */
static void expect_refused(const char *path, const change *c, const char *reason)
{
    write_copy(path, c);
    expect_decoder_refused(path, reason);
}

/* Removes each tensor in turn but the table. The decoder must be refused, the message must name the tensor, and nothing
 * may leak (sanitizers). */
TEST_CASE(every_tensor_is_needed)
{
    char *path = test_path("vit.safetensors");
    wt_file *f = open_checkpoint();
    int seen = 0;
    for (int i = 0; i < wt_count(f); i++) {
        const char *name = wt_at(f, i)->name;
        if (is_of_encoder(name) || strstr(name, "freqs_cis")) continue;
        expect_refused(path, &(change){.without = name, .table = WT_F32}, name);
        seen++;
    }
    assert_int_equal(seen, 44);
    wt_close(f);
}

/* Expects one line for the encoder of the changed copy, with the reason in it. The decoder loads. */
static void expect_encoder_refused(const char *path, const change *c, const char *reason)
{
    mar_err err = {0};
    write_copy(path, c);
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    wt_file *f = open_weights(path);
    vae_decoder *d = load(k, path);
    assert_int_equal(vae_decoder_add_encoder(d, k, f, &err), MAR_EMODEL);
    if (!strstr(err.text, reason)) fail_msg("%s: expected %s", err.text, reason);
    vae_decoder_free(d);
    wt_close(f);
    close_queue(k);
}

TEST_CASE(every_tensor_of_the_encoder_is_needed)
{
    char *path = test_path("vit.safetensors");
    wt_file *f = open_checkpoint();
    for (int i = 0; i < wt_count(f); i++) {
        const char *name = wt_at(f, i)->name;
        if (!is_of_encoder(name) || strstr(name, "freqs_cis")) continue;
        expect_encoder_refused(path, &(change){.without = name, .table = WT_F32, .encoder = 1}, name);
    }
    wt_close(f);
    expect_encoder_refused(path, &(change){.table = WT_F32}, "has no encoder");
    expect_encoder_refused(path,
                           &(change){"vae.encoder.patchify.0.net.1.block.2.weight", 4, (const int64_t[]){128, 16, 3, 3},
                                     WT_F32, 0, NULL, 1},
                           "the last block of vae.encoder.patchify has 128 output channels, expected 64");
}

TEST_CASE(wrong_shapes_are_refused)
{
    static const struct {
        const char *tensor;
        int rank;
        int64_t shape[4];
        const char *reason;
    } wrong[] = {
        {"vae.decoder.freqs_cis", 3, {32, 29, 1}, "has shape [32, 29, 1], expected [4 + a square number"},
        {"vae.decoder.freqs_cis", 3, {58, 8, 2}, "expected [4 + a square number"},
        {"vae.decoder.register_token.weight", 2, {8, 32}, "expected [8 + a square number"},
        {"vae.decoder.register_token.weight", 1, {256}, "register_token.weight has shape [256]"},
        {"vae.post_quant_proj.weight", 2, {32, 8}, "vae.decoder"},
        {"vae.decoder.layers.0.feed_forward.w2.weight", 2, {32, 512}, "feed_forward.w1.weight"},
        {"vae.decoder.layers.1.attention.wqkv.weight", 2, {64, 192}, "vae.decoder.layers.1.attention.wqkv.weight"},
        {"vae.decoder.unpatchify.1.net.0.block.2.weight", 4, {128, 16, 4, 4}, "vae.decoder.unpatchify.1.net.0.block"},
        {"vae.decoder.unpatchify.1.net.1.block.2.weight", 4, {64, 8, 4, 4}, "has 8 output channels, expected a multip"},
        {"vae.decoder.unpatchify.1.net.0.shortcut.weight", 4, {32, 64, 2, 2}, "net.0.shortcut.weight"},
    };
    char *path = test_path("vit.safetensors");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        expect_refused(path, &(change){wrong[i].tensor, wrong[i].rank, wrong[i].shape, WT_F32, 0, NULL, 0},
                       wrong[i].reason);
    expect_refused(path, &(change){.without = "vae.decoder.freqs_cis", .heads = "3"}, "with 3 heads");
    expect_refused(path, &(change){.without = "vae.decoder.freqs_cis", .heads = "0"}, "mar.vae_heads");
}
