/* Convolution, group normalisation and the whole image decoder of the CUDA backend against the CPU's in f32, on the
 * same operands. */
#include "tests/cuda/support.h"
#include "tests/support/conv_case.h"

#include "vae/vae.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Multiples of 1/8 up to 4: they and the sums of four that upsampling makes are exact in bf16. */
static float *coarse_floats(size_t n, uint64_t seed)
{
    float *x = random_floats(n, 1, seed);
    for (size_t i = 0; i < n; i++) x[i] = fminf(fmaxf(rintf(x[i] * 8) / 8, -4), 4);
    return x;
}

static double tolerance(mar_dtype dtype, int f32_result)
{
    return dtype == MAR_DTYPE_F32 ? 1e-5 : f32_result ? 1e-4 : 4e-3;
}

/* --- convolution ------------------------------------------------------------------------------------------- */

static const conv_case conv_cases[] = {
    {1, 1, 8, 3, 3, KERN_OUT_F32},
    {5, 7, 32, 64, 3, KERN_OUT_F32},
    {5, 7, 32, 64, 3, KERN_OUT_F32 | KERN_OUT_ADD},
    {6, 8, 64, 32, 3, 0},
    {9, 4, 5, 6, 3, KERN_OUT_F32},  /* a patch is no multiple of a vector */
    {9, 4, 12, 7, 1, KERN_OUT_F32}, /* nor is a row */
    {16, 16, 64, 32, 1, KERN_OUT_F32},
    {9, 13, 96, 40, 1, KERN_OUT_F32 | KERN_OUT_ADD},
    {2, 40, 24, 17, 3, KERN_OUT_F32},
    {40, 33, 32, 3, 3, KERN_OUT_F32},  /* the output convolution */
    {12, 13, 8, 512, 3, KERN_OUT_F32}, /* more than one band, where there are few multiprocessors */
    {1, 1, 32, 32, 3, KERN_OUT_F32 | KERN_UPSAMPLE},
    {7, 5, 32, 48, 3, KERN_OUT_F32 | KERN_UPSAMPLE},
    {4, 9, 6, 5, 3, KERN_OUT_F32 | KERN_UPSAMPLE},
    {13, 11, 8, 128, 3, KERN_OUT_F32 | KERN_UPSAMPLE}, /* the same */
};

/* y becomes the result; where the convolution adds, it is the first term on entry. */
static void run_conv(kern_queue *k, const conv_case *c, const float *weight, const float *bias, const float *x,
                     float *y)
{
    mar_err err = {0};
    const size_t n = out_size(c);
    void *in = to_act(k, x, in_size(c)), *out = to_device(k, y, n * sizeof *y);
    kern_conv *conv = make_conv(k, c, weight, bias);
    assert_ok(k->conv->plan(k, conv, c->height, c->width, &err), &err);
    k->conv->conv(k, conv, in, c->height, c->width, out);
    if (c->flags & KERN_OUT_F32) {
        from_device(k, y, out, n * sizeof *y);
    } else {
        float *result = act_to_floats(k, out, n);
        memcpy(y, result, n * sizeof *y);
        free(result);
    }
    k->conv->free(k->device, conv);
    k->core->free(k->device, in), k->core->free(k->device, out);
}

static void check_conv(kern_queue *cpu, kern_queue *cuda, mar_dtype dtype, const conv_case *c, uint64_t seed)
{
    const size_t n = out_size(c);
    float *x = coarse_floats(in_size(c), seed), *weight = coarse_floats(weight_size(c), seed + 1);
    float *bias = random_floats((size_t)c->out, 1, seed + 2);
    float *want = random_floats(n, 1, seed + 3), *got = random_floats(n, 1, seed + 3);
    run_conv(cpu, c, weight, bias, x, want);
    run_conv(cuda, c, weight, bias, x, got);
    const double error = relative_error(got, want, n), allowed = tolerance(dtype, c->flags & KERN_OUT_F32);
    if (!(error <= allowed))
        fail_msg("%dx%d pixels, %d -> %d channels, kernel %d, flags %d: relative error %.3g, allowed %.3g", c->height,
                 c->width, c->in, c->out, c->kernel, c->flags, error, allowed);
    free(x), free(weight), free(bias), free(want), free(got);
}

static void check_convs(mar_dtype dtype)
{
    kern_queue *cpu = open_cpu(), *cuda = open_cuda(dtype);
    for (size_t i = 0; i < sizeof conv_cases / sizeof *conv_cases; i++)
        check_conv(cpu, cuda, dtype, &conv_cases[i], 10 * i);
    if (cuda_test_scale() > 1) {
        const conv_case large[] = {{80, 80, 512, 512, 3, KERN_OUT_F32 | KERN_OUT_ADD}, /* more than one band */
                                   {80, 80, 256, 256, 3, KERN_OUT_F32 | KERN_UPSAMPLE}};
        for (size_t i = 0; i < 2; i++) check_conv(cpu, cuda, dtype, &large[i], 1000 + 10 * i);
    }
    close_queue(cpu);
    close_queue(cuda);
}

static void conv_f32_is_the_cpus(void **unused)
{
    (void)unused;
    check_convs(MAR_DTYPE_F32);
}

static void conv_bf16_is_near(void **unused)
{
    (void)unused;
    check_convs(MAR_DTYPE_BF16);
}

static void conv_without_a_plan_fails(void **unused)
{
    (void)unused;
    kern_queue *k = open_cuda(MAR_DTYPE_BF16);
    mar_err err = {0};
    kern_conv *conv = NULL;
    float *weight = random_floats(9 * 64, 1, 1), *bias = random_floats(8, 1, 2);
    const kern_conv_spec spec = {.out = 8, .in = 8, .kernel = 3, .weight = weight, .bias = bias, .flags = KERN_OUT_F32};
    void *x = to_device(k, NULL, 20 * 8 * sizeof(float));
    assert_ok(k->conv->create(k, &spec, &conv, &err), &err);
    k->conv->conv(k, conv, x, 4, 5, x);
    assert_int_equal(kern_check(k, &err), MAR_EBACKEND);
    assert_non_null(strstr(err.text, "4x5"));
    k->conv->free(k->device, conv);
    k->conv->free(k->device, NULL);
    k->core->free(k->device, x);
    close_queue(k);
    free(weight), free(bias);
}

/* --- group normalisation ----------------------------------------------------------------------------------- */

typedef struct {
    int pixels, channels, groups;
    float mean, spread; /* of the input */
    double tolerance;   /* of f32: the CPU's x*scale + shift cancels where the mean is far from 0 */
} norm_case;

static const norm_case norm_cases[] = {
    {1, 32, 32, 0, 1, 1e-4},     {1, 64, 32, 0, 1, 1e-5},       {35, 64, 32, 1, 1, 1e-5},
    {256, 512, 32, 0, 30, 1e-5}, {1031, 96, 32, -3, 1, 1e-5},   {1000, 40, 8, 100, 1, 1e-4},
    {70, 33, 1, 0, 0.01f, 1e-5}, {2100, 128, 32, 10, 10, 1e-5},
};

static float *run_norm(kern_queue *k, const norm_case *c, const float *x, const float *w, const float *b, int silu)
{
    mar_err err = {0};
    const size_t n = (size_t)c->pixels * (size_t)c->channels, vector = sizeof(float) * (size_t)c->channels;
    float *in = to_device(k, x, n * sizeof *x), *weight = to_device(k, w, vector), *bias = to_device(k, b, vector);
    void *out = to_device(k, NULL, n * k->device->act_size);
    assert_ok(k->conv->group_norm_plan(k, c->pixels, c->channels, &err), &err);
    k->conv->group_norm(k, in, c->pixels, c->channels, c->groups, weight, bias, 1e-6f, silu, out);
    float *y = act_to_floats(k, out, n);
    k->core->free(k->device, in), k->core->free(k->device, weight), k->core->free(k->device, bias),
        k->core->free(k->device, out);
    return y;
}

static void check_norms(mar_dtype dtype)
{
    kern_queue *cpu = open_cpu(), *cuda = open_cuda(dtype);
    for (size_t i = 0; i < sizeof norm_cases / sizeof *norm_cases; i++)
        for (int silu = 0; silu < 2; silu++) {
            const norm_case *c = &norm_cases[i];
            const size_t n = (size_t)c->pixels * (size_t)c->channels;
            float *x = random_floats(n, c->spread, 10 * i), *w = random_floats((size_t)c->channels, 1, 10 * i + 1);
            float *b = random_floats((size_t)c->channels, 1, 10 * i + 2);
            for (size_t j = 0; j < n; j++) x[j] += c->mean;
            float *want = run_norm(cpu, c, x, w, b, silu), *got = run_norm(cuda, c, x, w, b, silu);
            assert_close(got, want, n, dtype == MAR_DTYPE_BF16 ? 4e-3 : c->tolerance);
            free(x), free(w), free(b), free(want), free(got);
        }
    close_queue(cpu);
    close_queue(cuda);
}

static void norm_f32_is_the_cpus(void **unused)
{
    (void)unused;
    check_norms(MAR_DTYPE_F32);
}

static void norm_bf16_is_near(void **unused)
{
    (void)unused;
    check_norms(MAR_DTYPE_BF16);
}

/* Sums of several threads are always added in the same order. */
static void norm_repeats_its_bits(void **unused)
{
    (void)unused;
    const norm_case c = {777, 64, 32, 1, 1, 0};
    const size_t n = 777 * 64;
    kern_queue *k = open_cuda(MAR_DTYPE_F32);
    float *x = random_floats(n, 1, 5), *w = random_floats(64, 1, 6), *b = random_floats(64, 1, 7);
    float *first = run_norm(k, &c, x, w, b, 1), *second = run_norm(k, &c, x, w, b, 1);
    assert_memory_equal(first, second, n * sizeof *first);
    free(x), free(w), free(b), free(first), free(second);
    close_queue(k);
}

/* --- the image decoder ------------------------------------------------------------------------------------- */

static wt_file *open_demo(void)
{
    mar_err err = {0};
    wt_file *f = NULL;
    const wt_embedded *demo = wt_demo_vae("demo");
    assert_non_null(demo);
    assert_ok(wt_open_memory(demo->data, demo->size, "demo-vae", &f, &err), &err);
    return f;
}

static float *decode(kern_queue *k, const wt_file *f, int height, int width, const float *tokens, size_t n)
{
    mar_err err = {0};
    vae_decoder *d = NULL;
    vae_run *r = NULL;
    float *pixels = malloc(n * sizeof *pixels);
    assert_non_null(pixels);
    assert_ok(vae_decoder_create(k, f, &d, &err), &err);
    assert_ok(vae_run_create(k, d, height, width, &r, &err), &err);
    void *memory = to_device(k, NULL, vae_run_lay_out(r, NULL));
    vae_run_lay_out(r, memory);
    const size_t values = (size_t)(height * width * vae_decoder_config(d)->z_channels);
    void *on_device = to_device(k, tokens, values * sizeof *tokens);
    from_device(k, pixels, vae_decode(r, on_device), n * sizeof *pixels);
    vae_run_free(r);
    vae_decoder_free(d);
    k->core->free(k->device, memory), k->core->free(k->device, on_device);
    return pixels;
}

static void check_decoder(mar_dtype dtype, double allowed)
{
    enum { HEIGHT = 4, WIDTH = 5 };
    wt_file *f = open_demo();
    kern_queue *cpu = open_cpu(), *cuda = open_cuda(dtype);
    mar_vae_config config;
    mar_err err = {0};
    assert_ok(vae_config_derive(f, &config, &err), &err);
    const size_t n = (size_t)(HEIGHT * WIDTH * config.stride * config.stride * 3);
    float *tokens = random_floats((size_t)(HEIGHT * WIDTH * config.z_channels), 1, 3);
    float *want = decode(cpu, f, HEIGHT, WIDTH, tokens, n), *got = decode(cuda, f, HEIGHT, WIDTH, tokens, n);
    assert_close(got, want, n, allowed);
    free(tokens), free(want), free(got);
    close_queue(cpu);
    close_queue(cuda);
    wt_close(f);
}

static void decoder_f32_is_the_cpus(void **unused)
{
    (void)unused;
    check_decoder(MAR_DTYPE_F32, 1e-4);
}

static void decoder_bf16_is_near(void **unused)
{
    (void)unused;
    check_decoder(MAR_DTYPE_BF16, 2e-2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conv_f32_is_the_cpus),      cmocka_unit_test(conv_bf16_is_near),
        cmocka_unit_test(conv_without_a_plan_fails), cmocka_unit_test(norm_f32_is_the_cpus),
        cmocka_unit_test(norm_bf16_is_near),         cmocka_unit_test(norm_repeats_its_bits),
        cmocka_unit_test(decoder_f32_is_the_cpus),   cmocka_unit_test(decoder_bf16_is_near),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
