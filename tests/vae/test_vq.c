/* LlamaGen's image decoder against the official code (tests/golden/make_vq.py), in f32 and bf16: pixels, bytes and
 * batches. Also facts read from the file, and damaged files. */
#include "tests/support/support.h"
#include "tests/vae/files.h"

#include "kernels/pixels.h"
#include "vae/vae.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CODEBOOK = 50, CHANNELS = 4, LATENT = 32, STRIDE = 4 };
static const char golden_path[] = "tests/golden/data/vq.pth";
static const int grids[][3] = {{6, 6, 3}, {4, 4, 2}, {3, 5, 1}}; /* rows, columns, images */
enum { GRIDS = sizeof grids / sizeof *grids };

static size_t pixel_values(const int grid[3])
{
    return (size_t)(grid[0] * grid[1]) * STRIDE * STRIDE * 3;
}

static float *golden_grid(const wt_file *f, const char *what, const int grid[3], size_t each)
{
    char name[64];
    snprintf(name, sizeof name, "golden.%s_%dx%d", what, grid[0], grid[1]);
    return golden_f32(f, name, (int64_t)each * grid[2]);
}

static wt_file *open_checkpoint(void)
{
    return open_weights(golden_path);
}

static vae_decoder *load(kern_queue *k)
{
    wt_file *f = open_checkpoint();
    vae_decoder *d = NULL;
    mar_err err = {0};
    assert_ok(vae_decoder_create(k, f, &d, &err), &err);
    wt_close(f);
    return d;
}

/* Decodes the images of a grid's tokens, at most `at_a_time` at once, to pixels and bytes. */
static void decode(kern_queue *k, const vae_decoder *d, const int grid[3], const float *tokens, int images,
                   int at_a_time, float *pixels, uint8_t *rgb)
{
    const size_t each = (size_t)(grid[0] * grid[1]), n = pixel_values(grid);
    const size_t budget = k->device->image_budget;
    vae_run *r = NULL;
    mar_err err = {0};
    assert_ok(vae_run_create(k, d, grid[0], grid[1], 1, VAE_MEMORY, &r, &err), &err);
    k->device->image_budget = (size_t)at_a_time * vae_run_lay_out(r, NULL);
    vae_run_free(r);
    assert_ok(vae_run_create(k, d, grid[0], grid[1], images, VAE_MEMORY, &r, &err), &err);
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
        k->core->download(k, pixels + (size_t)done * n, p.pixels, (size_t)pass * n * sizeof *pixels);
        k->core->download(k, rgb + (size_t)done * n, p.bytes, (size_t)pass * n);
    }
    assert_ok(kern_check(k, &err), &err);
    k->core->free(k->device, memory), k->core->free(k->device, on_device);
    vae_run_free(r);
}

/* --- numbers ------------------------------------------------------------------------------------------------------ */

static void check_golden(mar_dtype dtype, double tolerance, int byte_tolerance)
{
    kern_queue *k = open_queue(dtype, 2);
    if (!k) skip(); /* a processor without bf16 */
    wt_file *f = golden_open("vq");
    vae_decoder *d = load(k);
    for (int i = 0; i < GRIDS; i++) {
        const int images = grids[i][2];
        const size_t n = pixel_values(grids[i]), all = n * (size_t)images;
        float *tokens = golden_grid(f, "tokens", grids[i], (size_t)(grids[i][0] * grids[i][1]));
        float *expected = golden_grid(f, "image", grids[i], n), *byte = golden_grid(f, "bytes", grids[i], n);
        float *pixels = malloc(all * sizeof *pixels);
        uint8_t *rgb = malloc(all);
        assert_true(pixels && rgb);
        decode(k, d, grids[i], tokens, images, images, pixels, rgb);
        assert_close(pixels, expected, all, tolerance);
        for (size_t j = 0; j < all; j++) {
            assert_int_equal(rgb[j], kern_pixel_byte(pixels[j], KERN_BYTES_DOWN));
            assert_int_equal(byte[j], kern_pixel_byte(expected[j], KERN_BYTES_DOWN));
            assert_true(abs(rgb[j] - (int)byte[j]) <= byte_tolerance);
        }
        free(tokens), free(expected), free(byte), free(pixels), free(rgb);
    }
    vae_decoder_free(d);
    close_queue(k);
    wt_close(f);
}

TEST_CASE(f32_is_the_official_code)
{
    check_golden(MAR_DTYPE_F32, 1e-5, 1);
}

/* bf16 rounds every operand to 8 bits. The official code's own bf16 differs from its f32 by 0.034 to 0.047. */
TEST_CASE(bf16_is_near)
{
    check_golden(MAR_DTYPE_BF16, 5e-2, 20);
}

/* Checks that an image is bit for bit as if decoded alone, whatever the number of images at a time and of threads. */
static void check_batches(mar_dtype dtype)
{
    enum { IMAGES = 5 };
    const int *grid = grids[1];
    const size_t n = pixel_values(grid), each = (size_t)(grid[0] * grid[1]);
    float *tokens = malloc(IMAGES * each * sizeof *tokens);
    float *alone = malloc(IMAGES * n * sizeof *alone), *pixels = malloc(IMAGES * n * sizeof *pixels);
    uint8_t *rgb = malloc(IMAGES * n);
    assert_true(tokens && alone && pixels && rgb);
    for (size_t i = 0; i < IMAGES * each; i++) tokens[i] = (float)(i * 17 % CODEBOOK);
    for (int threads = 1; threads <= 3; threads++) {
        kern_queue *k = open_queue(dtype, threads);
        if (!k) skip();
        vae_decoder *d = load(k);
        for (size_t i = 0; threads == 1 && i < IMAGES; i++)
            decode(k, d, grid, tokens + i * each, 1, 1, alone + i * n, rgb);
        for (int at_a_time = 1; at_a_time <= IMAGES; at_a_time += 2) {
            decode(k, d, grid, tokens, IMAGES, at_a_time, pixels, rgb);
            assert_memory_equal(pixels, alone, IMAGES * n * sizeof *pixels);
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

/* --- facts -------------------------------------------------------------------------------------------------------- */

TEST_CASE(config_codebook_and_flop)
{
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    wt_file *f = open_checkpoint();
    vae_decoder *d = load(k);
    const mar_vae_config *c = vae_decoder_config(d);
    assert_int_equal(c->codebook, CODEBOOK);
    assert_int_equal(c->z_channels, CHANNELS);
    assert_int_equal(c->stride, STRIDE);
    assert_int_equal(c->channels, 32);
    assert_int_equal(c->levels, 3);
    assert_int_equal(c->res_blocks, 1);
    const wt_tensor *t = wt_find(f, "quantize.embedding.weight");
    float rows[CODEBOOK * CHANNELS];
    mar_err err = {0};
    assert_non_null(t);
    assert_ok(wt_read_f32(f, t, rows, &err), &err);
    assert_memory_equal(vae_decoder_embedding(d), rows, sizeof rows);
    for (int i = 0; i < CODEBOOK; i++) {
        const float *a = rows + i * CHANNELS, *b = vae_decoder_codebook(d) + i * CHANNELS;
        double square = 0, product = 0;
        for (int j = 0; j < CHANNELS; j++) square += a[j] * a[j], product += a[j] * b[j];
        assert_true(fabs(product - sqrt(square)) <= 1e-6 * sqrt(square)); /* row 7 is zero and stays zero */
        for (int j = 0; j < CHANNELS; j++) assert_true(fabs(b[j] * sqrt(square) - a[j]) <= 1e-6);
    }
    vae_run *r = NULL;
    assert_ok(vae_run_create(k, d, 4, 4, 1, VAE_MEMORY, &r, &err), &err);
    /* Multiply-adds by hand. 16 pixels: conv_in, mid (4 convolutions, q k v proj, scores, values), the coarsest level
     * (4 convolutions, 2 attentions), its upsampling. 64: the level of 32 channels with its shortcut, upsampling. 256:
     * the finest level and conv_out. */
    const double c64 = 64 * 64 * 9, c32 = 32 * 32 * 9, attention = 4 * 64 * 64 + 2 * 16 * 64;
    const double low = 16 * (LATENT * 64 * 9 + 4 * c64 + attention + 4 * c64 + 2 * attention);
    const double mid = 64 * (64 * 64 * 4) + 64 * (64 * 32 * 9 + 64 * 32 + 3 * c32);
    const double high = 256 * (32 * 32 * 4) + 256 * (4 * c32 + 32 * 3 * 9);
    assert_true(vae_run_flop(r) == 2 * (low + mid + high));
    vae_run_free(r);
    vae_decoder_free(d);
    wt_close(f);
    close_queue(k);
}

static int is_unused(const char *name)
{
    return strcmp(name, "quantize.codebook_used") == 0;
}

TEST_CASE(all_tensors_are_listed)
{
    check_listing(golden_path, is_unused);
}

/* Checks that the search for layers names the layer of a damaged tensor. A NaN in the codebook is found in the layer
 * after it. */
TEST_CASE(layers_have_the_files_names)
{
    static const struct {
        const char *tensor, *layer;
    } spoiled[] = {{"quantize.embedding.weight", "post_quant_conv"},
                   {"decoder.mid.1.q.weight", "decoder.mid.1.q"},
                   {"decoder.conv_blocks.0.attn.1.proj_out.bias", "decoder.conv_blocks.0.attn.1.proj_out"},
                   {"decoder.conv_blocks.1.res.0.nin_shortcut.weight", "decoder.conv_blocks.1.res.0.nin_shortcut"},
                   {"decoder.conv_blocks.1.upsample.conv.bias", "decoder.conv_blocks.1.upsample.conv"},
                   {"decoder.conv_out.weight", "decoder.conv_out"}};
    char *path = test_path("vq.safetensors");
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    for (size_t i = 0; i < sizeof spoiled / sizeof *spoiled; i++) {
        write_copy_without(golden_path, path, WT_F32, NULL, 0, NULL, NULL);
        vae_decoder *d = load_spoiled(k, path, spoiled[i].tensor);
        const int grid[3] = {2, 2, 1};
        const float tokens[4] = {0, 1, 2, 0};
        float pixels[8 * 8 * 3];
        uint8_t rgb[8 * 8 * 3];
        k->watch.on = 1;
        kern_watch_begin(k);
        decode(k, d, grid, tokens, 1, 1, pixels, rgb);
        k->watch.on = 0;
        assert_string_equal(k->watch.layer, spoiled[i].layer);
        vae_decoder_free(d);
    }
    close_queue(k);
}

/* --- files that are no decoder ------------------------------------------------------------------------------------ */

static int is_encoders(const char *name)
{
    return strncmp(name, "encoder.", 8) == 0;
}

/* Expects the decoder to refuse the golden file without tensor `without`, or with that tensor in another shape. */
static void expect_refused(const char *path, const char *without, int rank, const int64_t *shape, const char *reason)
{
    write_copy_without(golden_path, path, WT_F16, without, rank, shape, is_encoders);
    expect_decoder_refused(path, reason);
}

/* Removes each tensor in turn. The decoder must be refused, the message must name the tensor, and nothing may leak
 * (sanitizers). */
TEST_CASE(every_tensor_is_needed)
{
    char *path = test_path("vq.safetensors");
    wt_file *f = open_checkpoint();
    int seen = 0;
    for (int i = 0; i < wt_count(f); i++) {
        const char *name = wt_at(f, i)->name;
        if (is_encoders(name) || strncmp(name, "quant_conv.", 11) == 0 || is_unused(name)) continue;
        expect_refused(path, name, 0, NULL, name);
        seen++;
    }
    assert_int_equal(seen, 109);
    wt_close(f);
}

TEST_CASE(wrong_shapes_are_refused)
{
    char *path = test_path("vq.safetensors");
    expect_refused(path, "quantize.embedding.weight", 2, (int64_t[]){CODEBOOK / 2, 2 * CHANNELS},
                   "quantize.embedding.weight has shape [25, 8], expected a codebook");
    expect_refused(path, "quantize.embedding.weight", 1, (int64_t[]){CODEBOOK * CHANNELS},
                   "quantize.embedding.weight has shape [200], expected a codebook");
    expect_refused(path, "post_quant_conv.weight", 4, (int64_t[]){CHANNELS, LATENT, 1, 1}, "expected a codebook");
    expect_refused(path, "decoder.conv_in.weight", 4, (int64_t[]){64, LATENT, 9, 1}, "decoder.conv_in.weight");
    expect_refused(path, "decoder.conv_blocks.0.attn.0.q.weight", 4, (int64_t[]){64, 32, 2, 1},
                   "decoder.conv_blocks.0.attn.0.q.weight");
}
