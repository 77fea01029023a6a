/* The CUDA backend's image decoder and encoder against the CPU's in f32. Passes of several images are recorded and
 * replayed. */
#include "tests/support/detok.h"
#include "tests/support/device.h"

#include "kernels/pixels.h"
#include "vae/vae.h"

#include <stdlib.h>
#include <string.h>

static wt_file *open_demo(void)
{
    mar_err err = {0};
    wt_file *f = NULL;
    assert_ok(wt_open_demo(wt_demo_vae("demo"), &f, &err), &err);
    return f;
}

/* A decoder, its memory, and a run for batches of `batch` images. A pass decodes `fit` images. */
typedef struct {
    kern_queue *k;
    vae_decoder *d;
    vae_run *r;
    void *memory;
} decoder;

static decoder open_decoder(kern_queue *k, const wt_file *f, int height, int width, int batch, int fit)
{
    decoder o = {.k = k};
    mar_err err = {0};
    const size_t budget = k->device->image_budget;
    assert_ok(vae_decoder_create(k, f, &o.d, &err), &err);
    assert_ok(vae_run_create(k, o.d, height, width, 1, VAE_MEMORY, &o.r, &err), &err);
    k->device->image_budget = (size_t)fit * vae_run_lay_out(o.r, NULL);
    vae_run_free(o.r);
    assert_ok(vae_run_create(k, o.d, height, width, batch, VAE_MEMORY, &o.r, &err), &err);
    assert_int_equal(vae_run_images(o.r), fit);
    k->device->image_budget = budget;
    o.memory = to_device(k, NULL, vae_run_lay_out(o.r, NULL));
    vae_run_lay_out(o.r, o.memory);
    return o;
}

static void close_decoder(decoder *o)
{
    vae_run_free(o->r);
    vae_decoder_free(o->d);
    o->k->core->free(o->k->device, o->memory);
}

enum { HEIGHT = 4, WIDTH = 5 };

/* Decodes a batch. An image has `values` numbers in its tokens and n in its pixels. Bytes are rounded as the decoder's
 * family has it: LlamaGen's and SphereAR's down, l-DeTok's cut, others to the nearest. */
static void decode(const decoder *o, const float *tokens, size_t values, int images, float *pixels, size_t n)
{
    mar_err err = {0};
    kern_queue *k = o->k;
    const int down = vae_decoder_config(o->d)->codebook || vae_decoder_is_sphere(o->d);
    const kern_bytes how = down                              ? KERN_BYTES_DOWN
                           : vae_decoder_config(o->d)->depth ? KERN_BYTES_CUT
                                                             : KERN_BYTES_NEAREST;
    assert_ok(vae_run_plan(o->r, images, &err), &err);
    float *on_device = to_device(k, tokens, (size_t)images * values * sizeof *tokens);
    uint8_t *bytes = malloc((size_t)images * n);
    assert_non_null(bytes);
    for (int done = 0, pass; done < images; done += pass) {
        pass = images - done < vae_run_images(o->r) ? images - done : vae_run_images(o->r);
        const vae_pictures p = vae_decode(o->r, on_device + (size_t)done * values, pass);
        float *to = pixels + (size_t)done * n;
        from_device(k, to, p.pixels, (size_t)pass * n * sizeof *pixels);
        from_device(k, bytes, p.bytes, (size_t)pass * n);
        for (size_t i = 0; i < (size_t)pass * n; i++) assert_int_equal(bytes[i], kern_pixel_byte(to[i], how));
    }
    k->core->free(k->device, on_device);
    free(bytes);
}

static void check_decoder(mar_dtype dtype, double allowed)
{
    enum { IMAGES = 3, FIT = 2, OTHER = 1 };
    wt_file *f = open_demo();
    kern_queue *cpu = open_cpu(), *cuda = open_cuda(dtype);
    decoder plain = open_decoder(cpu, f, HEIGHT, WIDTH, 1, 1),
            tested = open_decoder(cuda, f, HEIGHT, WIDTH, IMAGES, FIT);
    const mar_vae_config *config = vae_decoder_config(plain.d);
    const size_t values = (size_t)(HEIGHT * WIDTH * config->z_channels);
    const size_t n = (size_t)(HEIGHT * WIDTH * config->stride * config->stride * 3);
    float *tokens = random_floats(IMAGES * values, 1, 3);
    float *want = malloc(IMAGES * n * sizeof *want), *got = malloc(IMAGES * n * sizeof *got);
    assert_true(want && got);
    decode(&plain, tokens, values, IMAGES, want, n);
    /* Passes of 2 images and of 1. The last batch replays them. With little time there is one batch before it. */
    for (int images = cuda_test_brief() ? IMAGES : 1; images <= IMAGES; images++) {
        decode(&tested, tokens, values, images, got, n);
        for (int i = 0; i < images; i++) assert_close(got + (size_t)i * n, want + (size_t)i * n, n, allowed);
    }
    /* An image's bits do not depend on the other images of its batch. */
    float *again = malloc(IMAGES * n * sizeof *again);
    assert_non_null(again);
    for (size_t i = 0; i < values; i++) tokens[i] *= 3, tokens[OTHER * values + i] *= -2;
    decode(&tested, tokens, values, IMAGES, again, n);
    for (size_t i = 0; i < IMAGES; i++)
        assert_int_equal(memcmp(again + i * n, got + i * n, n * sizeof *got) == 0, i != 0 && i != OTHER);
    free(tokens), free(want), free(got), free(again);
    close_decoder(&plain);
    close_decoder(&tested);
    close_queue(cpu);
    close_queue(cuda);
    wt_close(f);
}

/* Checks LlamaGen's decoder: it looks tokens up, and its coarsest level has attention. */
static void check_vq(mar_dtype dtype, double allowed)
{
    enum { IMAGES = 3, FIT = 2, TOKENS = HEIGHT * WIDTH };
    wt_file *f = NULL;
    mar_err err = {0};
    assert_ok(wt_open("tests/golden/data/vq.pth", &f, &err), &err);
    kern_queue *cpu = open_cpu(), *cuda = open_cuda(dtype);
    decoder plain = open_decoder(cpu, f, HEIGHT, WIDTH, 1, 1),
            tested = open_decoder(cuda, f, HEIGHT, WIDTH, IMAGES, FIT);
    const mar_vae_config *config = vae_decoder_config(plain.d);
    const size_t n = (size_t)(TOKENS * config->stride * config->stride * 3);
    float tokens[IMAGES * TOKENS], *want = malloc(IMAGES * n * sizeof *want), *got = malloc(IMAGES * n * sizeof *got);
    assert_true(want && got);
    for (int i = 0; i < IMAGES * TOKENS; i++) tokens[i] = (float)(i * 13 % config->codebook);
    decode(&plain, tokens, TOKENS, IMAGES, want, n);
    for (int pass = 0; pass < 2; pass++) { /* run, and replayed */
        decode(&tested, tokens, TOKENS, IMAGES, got, n);
        assert_close(got, want, IMAGES * n, allowed);
    }
    free(want), free(got);
    close_decoder(&plain);
    close_decoder(&tested);
    close_queue(cpu);
    close_queue(cuda);
    wt_close(f);
}

TEST_CASE(vq_decoder_f32_is_the_cpus)
{
    check_vq(MAR_DTYPE_F32, 1e-4);
}

/* Opens a file, l-DeTok's with its statistics. */
static wt_file *open_whole(const char *path)
{
    wt_file *f = NULL;
    mar_err err = {0};
    assert_ok(wt_open(path, &f, &err), &err);
    assert_ok(vae_config_complete(f, &err), &err);
    return f;
}

/* Checks SphereAR's decoder, a transformer and transposed convolutions, or l-DeTok's, a transformer and patches. */
static void check_vit(const char *path, int grid, mar_dtype dtype, double allowed)
{
    enum { IMAGES = 3, FIT = 2 };
    wt_file *f = open_whole(path);
    kern_queue *cpu = open_cpu(), *cuda = open_cuda(dtype);
    decoder plain = open_decoder(cpu, f, grid, grid, 1, 1), tested = open_decoder(cuda, f, grid, grid, IMAGES, FIT);
    const mar_vae_config *config = vae_decoder_config(plain.d);
    const size_t values = (size_t)(grid * grid * config->z_channels);
    const size_t n = (size_t)(grid * grid * config->stride * config->stride * 3);
    float *tokens = random_floats(IMAGES * values, 1, 3);
    float *want = malloc(IMAGES * n * sizeof *want), *got = malloc(IMAGES * n * sizeof *got);
    assert_true(want && got);
    decode(&plain, tokens, values, IMAGES, want, n);
    for (int pass = 0; pass < 2; pass++) { /* run, and replayed */
        decode(&tested, tokens, values, IMAGES, got, n);
        assert_close(got, want, IMAGES * n, allowed);
    }
    free(tokens), free(want), free(got);
    close_decoder(&plain);
    close_decoder(&tested);
    close_queue(cpu);
    close_queue(cuda);
    wt_close(f);
}

TEST_CASE(vit_decoder_f32_is_the_cpus)
{
    check_vit("tests/golden/data/vit.pt", 5, MAR_DTYPE_F32, 1e-4);
    check_vit(detok_path("detok-tiny-decoder_tuned.pth"), 4, MAR_DTYPE_F32, 1e-4);
}

/* Source of the bound: the official code's own error in bf16 is 0.025 (tests/vae/test_vit.c). */
TEST_CASE(vit_decoder_bf16_is_near)
{
    check_vit("tests/golden/data/vit.pt", 5, MAR_DTYPE_BF16, 3e-2);
    check_vit(detok_path("detok-tiny-decoder_tuned.pth"), 4, MAR_DTYPE_BF16, 3e-2);
}

/* Encodes random bytes on both backends: a demo image into patches, or an image of the VQ checkpoint. */
static void check_encoder(const char *path, mar_dtype dtype, int patch, double allowed)
{
    wt_file *f = open_whole(path);
    mar_err err = {0};
    kern_queue *queue[] = {open_cpu(), open_cuda(dtype)};
    float tokens[2][HEIGHT * 4 * 8];
    uint8_t pixels[HEIGHT * 4 * 4 * 4 * 3];
    size_t values = 0;
    for (size_t i = 0; i < sizeof pixels; i++) pixels[i] = (uint8_t)(i * i * 31 % 251);
    for (int i = 0; i < 2; i++) {
        kern_queue *k = queue[i];
        decoder o = {.k = k};
        assert_ok(vae_decoder_create(k, f, &o.d, &err), &err);
        assert_ok(vae_decoder_add_encoder(o.d, k, f, &err), &err);
        assert_ok(vae_run_create(k, o.d, HEIGHT, 4, 1, VAE_MEMORY, &o.r, &err), &err);
        assert_ok(vae_run_unpatchify(o.r, patch, &err), &err);
        assert_ok(vae_run_plan(o.r, 1, &err), &err);
        vae_run_lay_out(o.r, o.memory = to_device(k, NULL, vae_run_lay_out(o.r, NULL)));
        vae_encode(o.r, pixels, 4 * 4 * 3, 3, tokens[i]);
        check_kern(k);
        const mar_vae_config *c = vae_decoder_config(o.d);
        values = (size_t)(HEIGHT * 4 * (c->codebook ? 1 : c->z_channels));
        close_decoder(&o);
        close_queue(k);
    }
    if (allowed > 0)
        assert_close(tokens[1], tokens[0], values, allowed);
    else
        assert_memory_equal(tokens[1], tokens[0], values * sizeof **tokens);
    wt_close(f);
}

TEST_CASE(encoder_f32_is_the_cpus)
{
    check_encoder("weights/demo/vae.safetensors", MAR_DTYPE_F32, 2, 1e-4);
    check_encoder("tests/golden/data/vq.pth", MAR_DTYPE_F32, 1, 0);
    check_encoder(detok_path("detok-tiny-decoder_tuned.pth"), MAR_DTYPE_F32, 1, 1e-4);
}

TEST_CASE(encoder_bf16_is_near)
{
    check_encoder("weights/demo/vae.safetensors", MAR_DTYPE_BF16, 1, 2e-2);
}

/* Source of the bound: the official code's own error in bf16 against f32 is 0.034 to 0.047 (tests/vae/test_vq.c). */
TEST_CASE(vq_decoder_bf16_is_near)
{
    check_vq(MAR_DTYPE_BF16, 6e-2);
}

TEST_CASE(decoder_f32_is_the_cpus)
{
    check_decoder(MAR_DTYPE_F32, 1e-4);
}

TEST_CASE(decoder_bf16_is_near)
{
    check_decoder(MAR_DTYPE_BF16, 2e-2);
}
