/* The image decoder against PyTorch (tests/golden/make_vae.py), in f32 and bf16; its batches; its errors. */
#include "tests/support/support.h"
#include "tests/support/tensor_files.h"

#include "kernels/pixels.h"
#include "vae/vae.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { Z = 8, STRIDE = 4 };
static const int grids[][2] = {{4, 4}, {8, 6}, {5, 7}};
enum { GRIDS = sizeof grids / sizeof *grids };

static size_t pixel_values(const int grid[2])
{
    return (size_t)(grid[0] * grid[1]) * STRIDE * STRIDE * 3;
}

static float *golden_grid(const wt_file *f, const char *what, const int grid[2], int64_t count)
{
    char name[64];
    snprintf(name, sizeof name, "golden.%s_%dx%d", what, grid[0], grid[1]);
    return golden_f32(f, name, count);
}

static kern_queue *open_or_skip(mar_dtype dtype, int threads)
{
    kern_queue *k = open_queue(dtype, threads);
    if (!k) skip(); /* a processor without bf16 */
    return k;
}

/* Returns the path of the decoder's file, which the first call writes. */
static const char *decoder_path(void)
{
    static char path[4096];
    if (*path) return path;
    file_tensor *tensors = calloc(FILE_TENSORS_MAX, sizeof *tensors);
    assert_non_null(tensors);
    const char *folder = test_directory();
    const int count = tensors_drawn("vae_tensors.txt", tensors);
    tensors_write_safetensors(folder, "decoder.safetensors", tensors, count);
    tensors_free(tensors, count);
    free(tensors);
    snprintf(path, sizeof path, "%s/decoder.safetensors", folder);
    return path;
}

static vae_decoder *load(kern_queue *k)
{
    wt_file *f = open_weights(decoder_path());
    vae_decoder *d = NULL;
    mar_err err = {0};
    assert_ok(vae_decoder_create(k, f, &d, &err), &err);
    wt_close(f);
    return d;
}

static vae_run *make_run(kern_queue *k, vae_decoder *d, const int grid[2], int batch)
{
    vae_run *r = NULL;
    mar_err err = {0};
    assert_ok(vae_run_create(k, d, grid[0], grid[1], batch, VAE_MEMORY, &r, &err), &err);
    assert_ok(vae_run_plan(r, batch, &err), &err);
    return r;
}

/* Decodes one image: makes memory for it, takes tokens, and writes pixels. */
static void run(kern_queue *k, vae_run *r, const int grid[2], const float *tokens, float *pixels)
{
    const size_t n = (size_t)(grid[0] * grid[1]) * Z * sizeof *tokens;
    void *memory = backend_memory(k, vae_run_lay_out(r, NULL)), *latent = backend_memory(k, n);
    vae_run_lay_out(r, memory);
    k->core->upload(k, latent, tokens, n);
    k->core->download(k, pixels, vae_decode(r, latent, 1).pixels, pixel_values(grid) * sizeof *pixels);
    k->core->free(k->device, memory);
    k->core->free(k->device, latent);
}

/* Decodes one image by a fresh backend; the caller frees it. */
static float *decode(const wt_file *f, mar_dtype dtype, int threads, const int grid[2])
{
    float *tokens = golden_grid(f, "tokens", grid, (int64_t)grid[0] * grid[1] * Z);
    float *pixels = malloc(pixel_values(grid) * sizeof *pixels);
    assert_non_null(pixels);
    kern_queue *k = open_or_skip(dtype, threads);
    vae_decoder *d = load(k);
    vae_run *r = make_run(k, d, grid, 1);
    run(k, r, grid, tokens, pixels);
    vae_run_free(r);
    vae_decoder_free(d);
    close_queue(k);
    free(tokens);
    return pixels;
}

/* --- numbers ------------------------------------------------------------------------------------------------------ */

static void check_golden(mar_dtype dtype, double tolerance)
{
    wt_file *f = golden_open("vae");
    for (int i = 0; i < GRIDS; i++) {
        const size_t n = pixel_values(grids[i]);
        float *expected = golden_grid(f, "image", grids[i], (int64_t)n), *image = decode(f, dtype, 2, grids[i]);
        assert_close(image, expected, n, tolerance);
        free(expected), free(image);
    }
    wt_close(f);
}

TEST_CASE(f32_is_pytorch)
{
    check_golden(MAR_DTYPE_F32, 5e-6); /* required: 1/255 */
}

/* bf16 rounds every operand to 8 bits. Some twenty layers add up this relative error of 2e-3. */
TEST_CASE(bf16_is_near)
{
    check_golden(MAR_DTYPE_BF16, 2e-2);
}

static void check_threads(mar_dtype dtype)
{
    wt_file *f = golden_open("vae");
    for (int i = 0; i < GRIDS; i++) {
        float *one = decode(f, dtype, 1, grids[i]);
        for (int threads = 2; threads <= 5; threads++) {
            float *many = decode(f, dtype, threads, grids[i]);
            assert_memory_equal(one, many, pixel_values(grids[i]) * sizeof *one);
            free(many);
        }
        free(one);
    }
    wt_close(f);
}

TEST_CASE(bits_do_not_depend_on_threads)
{
    check_threads(MAR_DTYPE_F32);
    check_threads(MAR_DTYPE_BF16); /* skipped on processors without bf16 */
}

/* Checks runs of several sizes on one decoder, with images in turn: each image is as if decoded alone. */
static void check_runs(mar_dtype dtype)
{
    wt_file *f = golden_open("vae");
    kern_queue *k = open_or_skip(dtype, 2);
    vae_decoder *d = load(k);
    vae_run *runs[GRIDS];
    for (int i = 0; i < GRIDS; i++) runs[i] = make_run(k, d, grids[i], 1);
    for (int i = 0; i < 2 * GRIDS; i++) {
        const int *grid = grids[i % GRIDS];
        const size_t n = pixel_values(grid);
        float *tokens = golden_grid(f, "tokens", grid, -1), *alone = decode(f, dtype, 2, grid);
        float *pixels = malloc(n * sizeof *pixels);
        assert_non_null(pixels);
        run(k, runs[i % GRIDS], grid, tokens, pixels);
        assert_memory_equal(pixels, alone, n * sizeof *pixels);
        free(tokens), free(alone), free(pixels);
    }
    for (int i = 0; i < GRIDS; i++) vae_run_free(runs[i]);
    vae_decoder_free(d);
    close_queue(k);
    wt_close(f);
}

TEST_CASE(runs_share_a_decoder)
{
    check_runs(MAR_DTYPE_F32);
    check_runs(MAR_DTYPE_BF16); /* skipped on processors without bf16 */
}

/* --- patches ------------------------------------------------------------------------------------------------------ */

/* Checks that tokens in patches, packed as by the official code (tests/golden/make_patches.py), give the same
 * images. They are decoded alone and side by side. */
TEST_CASE(tokens_may_be_patches)
{
    static const int cases[][3] = {{4, 4, 2}, {4, 4, 4}, {8, 6, 2}}; /* rows, columns, patch */
    wt_file *f = golden_open("vae"), *patches = golden_open("patches");
    kern_queue *k = open_or_skip(MAR_DTYPE_F32, 2);
    vae_decoder *d = load(k);
    mar_err err = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[64];
        const int *grid = cases[i];
        const size_t n = pixel_values(grid), count = (size_t)(grid[0] * grid[1]) * Z;
        snprintf(name, sizeof name, "tokens_%dx%d_%d", grid[0], grid[1], grid[2]);
        float *packed = golden_f32(patches, name, (int64_t)count), *alone = decode(f, MAR_DTYPE_F32, 2, grid);
        float *tokens = malloc(2 * count * sizeof *tokens), *pixels = malloc(2 * n * sizeof *pixels);
        assert_true(tokens && pixels);
        memcpy(tokens, packed, count * sizeof *tokens);
        memcpy(tokens + count, packed, count * sizeof *tokens);
        vae_run *r = make_run(k, d, grid, 2);
        assert_ok(vae_run_unpatchify(r, grid[2], &err), &err);
        void *memory = backend_memory(k, vae_run_lay_out(r, NULL));
        float *latents = backend_memory(k, 2 * count * sizeof *tokens);
        vae_run_lay_out(r, memory);
        k->core->upload(k, latents, tokens, 2 * count * sizeof *tokens);
        const int most = vae_run_images(r) < 2 ? 1 : 2;
        for (int done = 0; done < 2; done += most)
            k->core->download(k, pixels + (size_t)done * n, vae_decode(r, latents + (size_t)done * count, most).pixels,
                              (size_t)most * n * sizeof *pixels);
        assert_memory_equal(pixels, alone, n * sizeof *pixels);
        assert_memory_equal(pixels + n, alone, n * sizeof *pixels);
        k->core->free(k->device, memory), k->core->free(k->device, latents);
        vae_run_free(r);
        free(packed), free(alone), free(tokens), free(pixels);
    }
    vae_decoder_free(d);
    close_queue(k);
    wt_close(f), wt_close(patches);
}

/* --- batches ------------------------------------------------------------------------------------------------------ */

/* Decodes `images` images, 3 of them different, in passes of at most the run's size. */
static void run_batch(kern_queue *k, vae_run *r, const int grid[2], const float *tokens, int images, float *pixels)
{
    const size_t one = (size_t)(grid[0] * grid[1]) * Z, n = pixel_values(grid);
    void *memory = backend_memory(k, vae_run_lay_out(r, NULL));
    float *latents = backend_memory(k, (size_t)images * one * sizeof *tokens);
    vae_run_lay_out(r, memory);
    for (int i = 0; i < images; i++)
        k->core->upload(k, latents + (size_t)i * one, tokens + (size_t)(i % 3) * one, one * sizeof *tokens);
    for (int done = 0, pass; done < images; done += pass) {
        pass = images - done < vae_run_images(r) ? images - done : vae_run_images(r);
        const vae_pictures p = vae_decode(r, latents + (size_t)done * one, pass);
        assert_int_equal(p.n, pass);
        k->core->download(k, pixels + (size_t)done * n, p.pixels, (size_t)pass * n * sizeof *pixels);
        uint8_t *data = malloc((size_t)pass * n);
        int found[8];
        assert_non_null(data);
        k->core->download(k, data, p.bytes, (size_t)pass * n);
        k->core->download(k, found, p.found, (size_t)pass * sizeof *found);
        for (size_t i = 0; i < (size_t)pass * n; i++)
            assert_int_equal(data[i], kern_pixel_byte(pixels[(size_t)done * n + i], KERN_BYTES_NEAREST));
        for (int i = 0; i < pass; i++) assert_int_equal(found[i], KERN_PIXELS_WITHIN);
        free(data);
    }
    k->core->free(k->device, memory), k->core->free(k->device, latents);
}

/* Checks that with any budget an image is bit for bit as if decoded alone. */
static void check_batches(mar_dtype dtype)
{
    enum { IMAGES = 7 };
    const int *grid = grids[2];
    wt_file *f = golden_open("vae");
    kern_queue *k = open_or_skip(dtype, 2);
    vae_decoder *d = load(k);
    const size_t n = pixel_values(grid), values = (size_t)(grid[0] * grid[1]) * Z;
    float *tokens = malloc(3 * values * sizeof *tokens), *golden = golden_grid(f, "tokens", grid, -1);
    float *pixels = malloc(IMAGES * n * sizeof *pixels), *alone = malloc(3 * n * sizeof *alone);
    assert_true(tokens && pixels && alone);
    for (size_t i = 0; i < 3 * values; i++) tokens[i] = golden[i % values] * (1 - 0.3f * (float)(i / values));
    vae_run *r = make_run(k, d, grid, 1);
    for (int i = 0; i < 3; i++) run(k, r, grid, tokens + (size_t)i * values, alone + (size_t)i * n);
    const size_t one = vae_run_lay_out(r, NULL), budget = k->device->image_budget;
    vae_run_free(r);
    for (int fit = 0; fit <= 8; fit++) {
        k->device->image_budget = (size_t)fit * one;
        r = make_run(k, d, grid, IMAGES);
        assert_int_equal(vae_run_images(r), fit < 1 ? 1 : fit < IMAGES ? fit : IMAGES);
        run_batch(k, r, grid, tokens, IMAGES, pixels);
        for (int i = 0; i < IMAGES; i++)
            assert_memory_equal(pixels + (size_t)i * n, alone + (size_t)(i % 3) * n, n * sizeof *alone);
        vae_run_free(r);
    }
    k->watch.on = 1; /* the search for layers works on one image */
    r = make_run(k, d, grid, IMAGES);
    assert_int_equal(vae_run_images(r), 1);
    vae_run_free(r);
    k->watch.on = 0;
    k->device->image_budget = budget;
    vae_decoder_free(d);
    close_queue(k);
    free(tokens), free(golden), free(pixels), free(alone);
    wt_close(f);
}

TEST_CASE(images_of_a_batch_are_those_alone)
{
    check_batches(MAR_DTYPE_F32);
    check_batches(MAR_DTYPE_BF16); /* skipped on processors without bf16 */
}

/* --- facts -------------------------------------------------------------------------------------------------------- */

TEST_CASE(config_bytes_and_flop)
{
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    vae_decoder *d = load(k);
    const mar_vae_config *c = vae_decoder_config(d);
    assert_int_equal(c->z_channels, Z);
    assert_int_equal(c->stride, STRIDE);
    assert_int_equal(c->channels, 32);
    assert_int_equal(c->levels, 3);
    assert_int_equal(c->res_blocks, 1);
    vae_run *r = make_run(k, d, (const int[]){4, 4}, 3);
    /* Multiply-adds by hand. 16 pixels: post_quant, conv_in, mid (4 convolutions, q k v proj, scores,
     * values), level 2 (4 convolutions), its upsampling. 64 pixels: level 1 (64 -> 32 with shortcut, 32 ->
     * 32), upsampling. 256: level 0 and conv_out. */
    const double c64 = 64 * 64 * 9, c32 = 32 * 32 * 9;
    const double low = 16 * (8 * 8 + 8 * 64 * 9 + 4 * c64 + 4 * 64 * 64 + 2 * 16 * 64 + 4 * c64);
    const double mid = 64 * (64 * 64 * 4) + 64 * (64 * 32 * 9 + 64 * 32 + 3 * c32);
    const double high = 256 * (32 * 32 * 4) + 256 * (4 * c32 + 32 * 3 * 9);
    assert_true(vae_run_flop(r) == 2 * (low + mid + high));
    assert_int_equal(vae_run_images(r), 1); /* a CPU decodes one of the three images at a time */
    /* Two streams and one operand, 32 channels of 16x16 pixels. */
    assert_int_equal(vae_run_lay_out(r, NULL), 3 * 256 * 32 * sizeof(float));
    vae_run_free(r);
    vae_decoder_free(d);
    close_queue(k);
}

TEST_CASE(grids_out_of_range_are_refused)
{
    static const int bad[][2] = {{0, 4}, {4, 0}, {-1, 4}, {4, 100000}, {100000, 4}, {2147483647, 2147483647}};
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    vae_decoder *d = load(k);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mar_err err = {0};
        vae_run *r = (vae_run *)&err;
        assert_int_equal(vae_run_create(k, d, bad[i][0], bad[i][1], 1, VAE_MEMORY, &r, &err), MAR_EARG);
        assert_null(r);
        assert_non_null(strstr(err.text, "latent grid"));
    }
    vae_run_free(NULL);
    vae_decoder_free(d);
    vae_decoder_free(NULL);
    close_queue(k);
}

/* --- files that are no decoder ------------------------------------------------------------------------------------ */

static char *read_decoder(size_t *size)
{
    bytes b = bytes_from_file(decoder_path());
    *size = b.size;
    return (char *)b.data;
}

static char *find_bytes(char *data, size_t size, const char *text)
{
    char *p = memmem(data, size, text, strlen(text));
    if (!p) fail_msg("%s is not in the file", text);
    return p;
}

static void expect_refused(const char *data, size_t size, const char *reason)
{
    wt_file *f = NULL;
    mar_err err = {0};
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    vae_decoder *d = (vae_decoder *)&err;
    assert_ok(wt_open_memory(data, size, "spoiled", &f, &err), &err);
    mar_status status = vae_decoder_create(k, f, &d, &err);
    if (status != MAR_EMODEL || !strstr(err.text, reason))
        fail_msg("without %s: %s (%s)", reason, mar_status_name(status), err.text);
    assert_null(d);
    wt_close(f);
    close_queue(k);
}

/* Renames each tensor in turn. The decoder must be refused, the message must name the tensor, and nothing may leak
 * (sanitizers). */
TEST_CASE(every_tensor_is_needed)
{
    wt_file *f = open_weights(decoder_path());
    size_t size;
    char *data = read_decoder(&size);
    int seen = 0;
    for (int i = 0; i < wt_count(f); i++) {
        const char *name = wt_at(f, i)->name;
        char quoted[128];
        snprintf(quoted, sizeof quoted, "\"%s\"", name);
        char *at = find_bytes(data, size, quoted) + strlen(quoted) - 2; /* its last letter */
        const char letter = *at;
        *at = '_';
        expect_refused(data, size, strncmp(name, "decoder.up.", 11) == 0 ? "decoder.up." : name);
        *at = letter;
        seen++;
    }
    assert_int_equal(seen, 88);
    free(data);
    wt_close(f);
}

/* [64,64,3,3] becomes [64,64,9,1]: as many values, another convolution. */
TEST_CASE(wrong_shapes_are_refused)
{
    size_t size;
    char *data = read_decoder(&size);
    char *at = strstr(find_bytes(data, size, "\"decoder.mid.block_1.conv1.weight\""), "[64,64,3,3]");
    assert_non_null(at);
    memcpy(at, "[64,64,9,1]", 11);
    expect_refused(data, size, "decoder.mid.block_1.conv1.weight");
    free(data);
}
