/* Convolution and group normalisation of the CPU backend against plain loops in double, for f32 and bf16.
 * Inputs are rounded to the backend's operand type first, so the tolerance is that of the accumulation and of
 * the output. */
#include "tests/support/conv_case.h"
#include "tests/support/support.h"

#include "kernels/ops.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 1;

/* Uniform in [-1, 1). */
static float uniform(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(state >> 32) / 2147483648.0f;
}

static float *uniform_array(size_t n)
{
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = uniform();
    return x;
}

/* Multiples of 1/8 up to 1: they and the sums of four that upsampling makes are exact in bf16. */
static float *coarse_array(size_t n)
{
    float *x = uniform_array(n);
    for (size_t i = 0; i < n; i++) x[i] = rintf(x[i] * 8) / 8;
    return x;
}

/* Skips the test where bf16 is asked for and the processor has none. */
static kern_queue *open_or_skip(mar_dtype dtype, int threads)
{
    kern_queue *k = open_queue(dtype, threads);
    if (!k) skip();
    return k;
}

static void *device_array(kern_queue *k, size_t bytes)
{
    void *p = NULL;
    mar_err err = {0};
    assert_ok(k->core->alloc(k->device, bytes, &p, &err), &err);
    return p;
}

static void from_act(kern_queue *k, const void *a, size_t n, float *x)
{
    if (k->device->act_size == sizeof(float)) {
        k->core->download(k, x, a, n * sizeof *x);
        return;
    }
    uint16_t *half = malloc(n * sizeof *half + 1);
    assert_non_null(half);
    k->core->download(k, half, a, n * sizeof *half);
    for (size_t i = 0; i < n; i++) {
        uint32_t u = (uint32_t)half[i] << 16;
        memcpy(&x[i], &u, sizeof u);
    }
    free(half);
}

/* n floats -> act in the backend; x is replaced by what they became. */
static void *to_act(kern_queue *k, float *x, size_t n)
{
    float *copy = device_array(k, n * sizeof *x);
    void *a = device_array(k, n * k->device->act_size);
    k->core->upload(k, copy, x, n * sizeof *x);
    k->core->to_act(k, copy, n, a);
    k->core->free(k->device, copy);
    from_act(k, a, n, x);
    return a;
}

/* --- convolution -------------------------------------------------------------------------------- */

static const conv_case conv_cases[] = {
    {1, 1, 8, 3, 3, KERN_OUT_F32, 0},
    {5, 7, 32, 64, 3, KERN_OUT_F32, 0},
    {5, 7, 32, 64, 3, KERN_OUT_F32 | KERN_OUT_ADD, 0},
    {6, 8, 64, 32, 3, 0, 0},
    {16, 16, 64, 32, 1, KERN_OUT_F32, 0},
    {9, 13, 96, 40, 1, KERN_OUT_F32 | KERN_OUT_ADD, 0},
    {33, 3, 16, 48, 3, KERN_OUT_F32, 0},
    {2, 40, 24, 17, 3, KERN_OUT_F32, 0},
    {131, 5, 32, 32, 3, KERN_OUT_F32 | KERN_OUT_ADD, 0}, /* uneven bands */
    {150, 33, 32, 3, 3, KERN_OUT_F32, 0},                /* the output convolution */
    {16, 16, 16, 128, 3, KERN_OUT_F32, 0},               /* the input convolution */
    {1, 1, 32, 32, 3, KERN_OUT_F32 | KERN_UPSAMPLE, 0},
    {4, 4, 64, 64, 3, KERN_OUT_F32 | KERN_UPSAMPLE, 0},
    {7, 5, 32, 48, 3, KERN_OUT_F32 | KERN_UPSAMPLE, 0},
    {40, 37, 16, 16, 3, KERN_OUT_F32 | KERN_UPSAMPLE, 0},
    {5, 7, 32, 64, 3, KERN_OUT_F32 | KERN_OUT_ADD, 2}, /* several images */
    {6, 8, 64, 32, 3, 0, 3},
    {40, 9, 32, 3, 1, KERN_OUT_F32, 1},
    {7, 5, 32, 48, 3, KERN_OUT_F32 | KERN_UPSAMPLE, 2},
};

/* One image by definition: upsample, pad, multiply, add. */
static void one_image(const conv_case *c, const float *x, const float *w, const float *bias, float *y)
{
    const int scale = c->flags & KERN_UPSAMPLE ? 2 : 1, height = scale * c->height, width = scale * c->width;
    const int size = c->kernel, pad = size / 2;
    for (int i = 0; i < height; i++)
        for (int j = 0; j < width; j++)
            for (int o = 0; o < c->out; o++, y++) {
                double sum = bias[o] + (c->flags & KERN_OUT_ADD ? (double)*y : 0.0);
                for (int r = 0; r < size; r++)
                    for (int s = 0; s < size; s++) {
                        const int u = i + r - pad, v = j + s - pad;
                        if (u < 0 || v < 0 || u >= height || v >= width) continue;
                        const float *in = x + (size_t)((u / scale) * c->width + v / scale) * (size_t)c->in;
                        const float *tap = w + (size_t)o * (size_t)(c->in * size * size) + r * size + s;
                        for (int n = 0; n < c->in; n++) sum += (double)in[n] * tap[n * size * size];
                    }
                *y = (float)sum;
            }
}

static void conv_reference(const conv_case *c, const float *x, const float *w, const float *bias, float *y)
{
    const conv_case one = {c->height, c->width, c->in, c->out, c->kernel, c->flags, 0};
    for (int i = 0; i <= c->more; i++)
        one_image(&one, x + (size_t)i * in_size(&one), w, bias, y + (size_t)i * out_size(&one));
}

/* Where the convolution adds, y is the first term on entry. */
static void run_conv(kern_queue *k, const conv_case *c, kern_conv *conv, const void *x, float *y)
{
    mar_err err = {0};
    const size_t n = out_size(c), bytes = n * (c->flags & KERN_OUT_F32 ? sizeof(float) : k->device->act_size);
    void *out = device_array(k, bytes);
    assert_ok(k->conv->plan(k, conv, c->more + 1, c->height, c->width, &err), &err);
    if (c->flags & KERN_OUT_F32) k->core->upload(k, out, y, bytes);
    k->conv->conv(k, conv, x, c->more + 1, c->height, c->width, out);
    if (c->flags & KERN_OUT_F32)
        k->core->download(k, y, out, bytes);
    else
        from_act(k, out, n, y);
    k->core->free(k->device, out);
}

static void check_conv(mar_dtype dtype, const conv_case *c)
{
    kern_queue *k = open_or_skip(dtype, 2);
    float *x = uniform_array(in_size(c)), *w = coarse_array(weight_size(c)), *bias = uniform_array((size_t)c->out);
    float *expected = uniform_array(out_size(c)), *y = malloc(out_size(c) * sizeof *y);
    assert_non_null(y);
    memcpy(y, expected, out_size(c) * sizeof *y);
    void *in = to_act(k, x, in_size(c));
    kern_conv *conv = make_conv(k, c, w, bias);
    run_conv(k, c, conv, in, y);
    conv_reference(c, x, w, bias, expected);
    assert_close(y, expected, out_size(c), dtype == MAR_DTYPE_BF16 && !(c->flags & KERN_OUT_F32) ? 4e-3 : 2e-6);
    k->conv->free(k->device, conv);
    k->core->free(k->device, in);
    close_queue(k);
    free(x), free(w), free(bias), free(expected), free(y);
}

static void conv_f32_matches_the_definition(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof conv_cases / sizeof *conv_cases; i++) check_conv(MAR_DTYPE_F32, &conv_cases[i]);
}

static void conv_bf16_matches_the_definition(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof conv_cases / sizeof *conv_cases; i++) check_conv(MAR_DTYPE_BF16, &conv_cases[i]);
}

static void conv_bits(mar_dtype dtype, const conv_case *c, int threads, float *y)
{
    state = 77;
    kern_queue *k = open_or_skip(dtype, threads);
    float *x = uniform_array(in_size(c)), *w = uniform_array(weight_size(c)), *bias = uniform_array((size_t)c->out);
    for (size_t i = 0; i < out_size(c); i++) y[i] = uniform();
    void *in = to_act(k, x, in_size(c));
    kern_conv *conv = make_conv(k, c, w, bias);
    run_conv(k, c, conv, in, y);
    k->conv->free(k->device, conv);
    k->core->free(k->device, in);
    close_queue(k);
    free(x), free(w), free(bias);
}

static void check_conv_threads(mar_dtype dtype)
{
    static const conv_case wide[] = {
        {16, 16, 512, 512, 3, KERN_OUT_F32, 0}, {32, 32, 512, 256, 1, KERN_OUT_F32, 0},
        {64, 64, 64, 64, 3, KERN_OUT_F32, 0},   {16, 16, 256, 256, 3, KERN_OUT_F32 | KERN_UPSAMPLE, 0},
        {256, 32, 32, 3, 3, KERN_OUT_F32, 0},   {150, 33, 32, 32, 3, KERN_OUT_F32 | KERN_OUT_ADD, 0},
    };
    static const int threads[] = {2, 3, 4, 8};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        const size_t n = out_size(&wide[i]);
        float *one = malloc(n * sizeof *one), *many = malloc(n * sizeof *many);
        assert_non_null(one);
        assert_non_null(many);
        conv_bits(dtype, &wide[i], 1, one);
        for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
            conv_bits(dtype, &wide[i], threads[t], many);
            assert_memory_equal(one, many, n * sizeof *one);
        }
        free(one), free(many);
    }
}

static void conv_f32_bits_do_not_depend_on_threads(void **unused)
{
    (void)unused;
    check_conv_threads(MAR_DTYPE_F32);
}

static void conv_bf16_bits_do_not_depend_on_threads(void **unused)
{
    (void)unused;
    check_conv_threads(MAR_DTYPE_BF16);
}

/* The weights are packed for the first size; every later size takes them or makes its own. */
static void check_conv_sizes(mar_dtype dtype)
{
    static const int sizes[][2] = {{16, 16}, {3, 70}, {128, 128}, {1, 5}, {64, 64}, {16, 16}};
    conv_case c = {0, 0, 64, 64, 3, KERN_OUT_F32, 0};
    kern_queue *k = open_or_skip(dtype, 2);
    float *w = coarse_array(weight_size(&c)), *bias = uniform_array((size_t)c.out);
    kern_conv *conv = make_conv(k, &c, w, bias);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        c.height = sizes[i][0], c.width = sizes[i][1];
        float *x = uniform_array(in_size(&c)), *y = uniform_array(out_size(&c)),
              *expected = uniform_array(out_size(&c));
        void *in = to_act(k, x, in_size(&c));
        run_conv(k, &c, conv, in, y);
        conv_reference(&c, x, w, bias, expected);
        assert_close(y, expected, out_size(&c), 2e-6);
        k->core->free(k->device, in);
        free(x), free(y), free(expected);
    }
    k->conv->free(k->device, conv);
    close_queue(k);
    free(w), free(bias);
}

static void conv_takes_several_sizes(void **unused)
{
    (void)unused;
    check_conv_sizes(MAR_DTYPE_F32);
    check_conv_sizes(MAR_DTYPE_BF16);
}

static void conv_free_takes_null_and_unplanned(void **unused)
{
    (void)unused;
    const conv_case c = {1, 1, 8, 8, 3, KERN_OUT_F32, 0};
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    float *w = uniform_array(weight_size(&c)), *bias = uniform_array(8);
    k->conv->free(k->device, make_conv(k, &c, w, bias));
    k->conv->free(k->device, NULL);
    close_queue(k);
    free(w), free(bias);
}

static void unplanned_sizes_fail_and_are_remembered(void **unused)
{
    (void)unused;
    const conv_case c = {4, 4, 8, 8, 3, KERN_OUT_F32, 0};
    kern_queue *k = open_queue(MAR_DTYPE_F32, 2);
    mar_err err = {0};
    float *w = uniform_array(weight_size(&c)), *bias = uniform_array(8), *y = uniform_array(out_size(&c));
    kern_conv *conv = make_conv(k, &c, w, bias);
    void *x = device_array(k, in_size(&c) * sizeof(float));
    run_conv(k, &c, conv, x, y);
    assert_int_equal(kern_check(k, &err), MAR_OK);
    k->conv->conv(k, conv, x, 1, 4, 5, x);
    assert_int_equal(kern_check(k, &err), MAR_EBACKEND);
    assert_non_null(strstr(err.text, "4x5"));
    kern_queue *other; /* another queue's plan is not its own */
    assert_ok(k->core->queue_create(k->device, &other, &err), &err);
    k->conv->conv(other, conv, x, 1, 4, 4, x);
    assert_int_equal(kern_check(other, &err), MAR_EBACKEND);
    assert_non_null(strstr(err.text, "4x4"));
    k->core->queue_free(other);
    k->conv->free(k->device, conv);
    k->core->free(k->device, x);
    close_queue(k);
    free(w), free(bias), free(y);
}

static void unplanned_norm_fails(void **unused)
{
    (void)unused;
    kern_queue *k = open_queue(MAR_DTYPE_F32, 2);
    mar_err err = {0};
    float *x = device_array(k, 64 * sizeof *x);
    k->conv->group_norm(k, x, 1, 1, 64, 32, x, x, 1e-6f, 0, x);
    assert_int_equal(kern_check(k, &err), MAR_EBACKEND);
    k->core->free(k->device, x);
    close_queue(k);
}

/* --- group normalisation ------------------------------------------------------------------------ */

typedef struct {
    int pixels, channels, groups;
    float mean;       /* of the input, whose spread is about 0.6 */
    double tolerance; /* of f32: x*scale + shift cancels where mean >> sqrt(variance + eps), as of 1 or 2
                         values */
} norm_case;

static const norm_case norm_cases[] = {
    {1, 32, 32, 0, 1e-4},     {1, 64, 32, 0, 1e-4},     {35, 64, 32, 1, 2e-6}, {256, 512, 32, 0, 2e-6},
    {4109, 96, 32, -3, 2e-6}, {1000, 40, 8, 100, 3e-5}, {70, 33, 1, 0, 2e-6},
};

static void norm_reference(const norm_case *c, const float *x, const float *w, const float *b, int silu, float *y)
{
    const int size = c->channels / c->groups;
    for (int g = 0; g < c->groups; g++) {
        double mean = 0, variance = 0;
        const double count = (double)c->pixels * size;
        for (int p = 0; p < c->pixels; p++)
            for (int i = g * size; i < (g + 1) * size; i++) mean += x[p * c->channels + i] / count;
        for (int p = 0; p < c->pixels; p++)
            for (int i = g * size; i < (g + 1) * size; i++) variance += pow(x[p * c->channels + i] - mean, 2) / count;
        for (int p = 0; p < c->pixels; p++)
            for (int i = g * size; i < (g + 1) * size; i++) {
                const double v = (x[p * c->channels + i] - mean) / sqrt(variance + 1e-6) * w[i] + b[i];
                y[p * c->channels + i] = (float)(silu ? v / (1 + exp(-v)) : v);
            }
    }
}

static void run_norm(kern_queue *k, const norm_case *c, const float *x, const float *w, const float *b, int silu,
                     float *y)
{
    mar_err err = {0};
    const size_t n = (size_t)c->pixels * (size_t)c->channels, vector = sizeof(float) * (size_t)c->channels;
    float *in = device_array(k, n * sizeof *in), *weight = device_array(k, vector), *bias = device_array(k, vector);
    void *out = device_array(k, n * k->device->act_size);
    k->core->upload(k, in, x, n * sizeof *x);
    k->core->upload(k, weight, w, vector);
    k->core->upload(k, bias, b, vector);
    assert_ok(k->conv->group_norm_plan(k, 1, c->pixels, c->channels, &err), &err);
    k->conv->group_norm(k, in, 1, c->pixels, c->channels, c->groups, weight, bias, 1e-6f, silu, out);
    from_act(k, out, n, y);
    k->core->free(k->device, in), k->core->free(k->device, weight), k->core->free(k->device, bias),
        k->core->free(k->device, out);
}

static void check_norm(mar_dtype dtype, const norm_case *c, int silu)
{
    static const int threads[] = {1, 2, 3, 8};
    const size_t n = (size_t)c->pixels * (size_t)c->channels;
    float *x = uniform_array(n), *w = uniform_array((size_t)c->channels), *b = uniform_array((size_t)c->channels);
    float *expected = malloc(n * sizeof *expected), *first = malloc(n * sizeof *first), *y = malloc(n * sizeof *y);
    for (size_t i = 0; i < n; i++) x[i] += c->mean;
    assert_true(expected && first && y);
    norm_reference(c, x, w, b, silu, expected);
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        kern_queue *k = open_or_skip(dtype, threads[t]);
        run_norm(k, c, x, w, b, silu, t ? y : first);
        if (t) assert_memory_equal(y, first, n * sizeof *y);
        close_queue(k);
    }
    assert_close(first, expected, n, dtype == MAR_DTYPE_BF16 ? 4e-3 : c->tolerance);
    free(x), free(w), free(b), free(expected), free(first), free(y);
}

static void group_norm_f32(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof norm_cases / sizeof *norm_cases; i++)
        for (int silu = 0; silu < 2; silu++) check_norm(MAR_DTYPE_F32, &norm_cases[i], silu);
}

static void group_norm_bf16(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof norm_cases / sizeof *norm_cases; i++)
        for (int silu = 0; silu < 2; silu++) check_norm(MAR_DTYPE_BF16, &norm_cases[i], silu);
}

/* --- images of a batch ------------------------------------------------------------------------------ */

/* Images of a batch have the bits that each has alone. */
static void check_batch_conv(mar_dtype dtype, conv_case c)
{
    kern_queue *k = open_or_skip(dtype, 2);
    const int images = c.more + 1;
    float *x = uniform_array(in_size(&c)), *w = uniform_array(weight_size(&c)), *bias = uniform_array((size_t)c.out);
    float *y = uniform_array(out_size(&c)), *alone = malloc(out_size(&c) * sizeof *alone);
    assert_non_null(alone);
    memcpy(alone, y, out_size(&c) * sizeof *alone);
    char *in = to_act(k, x, in_size(&c));
    kern_conv *conv = make_conv(k, &c, w, bias);
    run_conv(k, &c, conv, in, y);
    c.more = 0;
    for (int i = 0; i < images; i++)
        run_conv(k, &c, conv, in + (size_t)i * in_size(&c) * k->device->act_size, alone + (size_t)i * out_size(&c));
    assert_memory_equal(y, alone, (size_t)images * out_size(&c) * sizeof *y);
    k->conv->free(k->device, conv);
    k->core->free(k->device, in);
    close_queue(k);
    free(x), free(w), free(bias), free(y), free(alone);
}

static void check_batch_norm(mar_dtype dtype)
{
    enum { IMAGES = 3, PIXELS = 67, CHANNELS = 64, SIZE = PIXELS * CHANNELS };
    kern_queue *k = open_or_skip(dtype, 2);
    mar_err err = {0};
    float *x = uniform_array(IMAGES * SIZE), *vectors = uniform_array((size_t)2 * CHANNELS);
    float y[IMAGES * SIZE], alone[SIZE];
    for (int i = 0; i < IMAGES * SIZE; i++) x[i] = (float)(i / SIZE + 1) * x[i] + (float)(i / SIZE);
    float *in = device_array(k, IMAGES * SIZE * sizeof *x), *scale = device_array(k, 2 * CHANNELS * sizeof *vectors);
    void *out = device_array(k, IMAGES * SIZE * sizeof(float));
    k->core->upload(k, in, x, IMAGES * SIZE * sizeof *x);
    k->core->upload(k, scale, vectors, 2 * CHANNELS * sizeof *vectors);
    assert_ok(k->conv->group_norm_plan(k, IMAGES, PIXELS, CHANNELS, &err), &err);
    k->conv->group_norm(k, in, IMAGES, PIXELS, CHANNELS, 32, scale, scale + CHANNELS, 1e-6f, 1, out);
    from_act(k, out, IMAGES * SIZE, y);
    for (int i = 0; i < IMAGES; i++) {
        k->conv->group_norm(k, in + i * SIZE, 1, PIXELS, CHANNELS, 32, scale, scale + CHANNELS, 1e-6f, 1, out);
        from_act(k, out, SIZE, alone);
        assert_memory_equal(y + i * SIZE, alone, sizeof alone);
    }
    k->core->free(k->device, in), k->core->free(k->device, scale), k->core->free(k->device, out);
    close_queue(k);
    free(x), free(vectors);
}

static void images_have_the_bits_they_have_alone(void **unused)
{
    (void)unused;
    const mar_dtype dtypes[2] = {MAR_DTYPE_F32, MAR_DTYPE_BF16};
    for (int d = 0; d < 2; d++) {
        check_batch_conv(dtypes[d], (conv_case){17, 9, 32, 64, 3, KERN_OUT_F32 | KERN_OUT_ADD, 2});
        check_batch_conv(dtypes[d], (conv_case){6, 8, 64, 32, 1, 0, 3});
        check_batch_conv(dtypes[d], (conv_case){7, 5, 32, 48, 3, KERN_OUT_F32 | KERN_UPSAMPLE, 2});
        check_batch_norm(dtypes[d]);
    }
}

/* --- bytes ------------------------------------------------------------------------------------------ */

/* Converts one image of n values. Returns what is found in it. */
static int bytes_of(kern_queue *k, const float *x, int n, kern_bytes how, uint8_t *bytes)
{
    float *in = device_array(k, (size_t)n * sizeof *in);
    uint8_t *out = device_array(k, (size_t)n);
    int found, *at = device_array(k, sizeof *at);
    k->core->upload(k, in, x, (size_t)n * sizeof *x);
    k->conv->to_bytes(k, in, 1, n, how, out, at);
    k->core->download(k, bytes, out, (size_t)n);
    k->core->download(k, &found, at, sizeof found);
    k->core->free(k->device, in), k->core->free(k->device, out), k->core->free(k->device, at);
    return found;
}

static void bytes_are_clipped_and_rounded_half_to_even(void **unused)
{
    (void)unused;
    const float x[] = {-1, 1, 0, -2, 2, 1e30f, -1e30f, INFINITY, -INFINITY, NAN, -NAN, FLT_MAX, 0.999f, -0.0f};
    const uint8_t expected[] = {0, 255, 128 /* 127.5 */, 0, 255, 255, 0, 255, 0, 0, 0, 255, 255 /* 254.87 */, 128};
    enum { N = sizeof expected };
    uint8_t bytes[N];
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    assert_int_equal(bytes_of(k, x, N, KERN_BYTES_NEAREST, bytes), KERN_PIXELS_WITHIN | KERN_PIXELS_NOT_FINITE);
    assert_memory_equal(bytes, expected, N);
    assert_int_equal(bytes_of(k, x, 7, KERN_BYTES_NEAREST, bytes), KERN_PIXELS_WITHIN);
    for (int i = 0; i < N; i++) /* each by itself; -1 and 1 are not between -1 and 1 */
        assert_int_equal(bytes_of(k, x + i, 1, KERN_BYTES_NEAREST, bytes),
                         (i == 2 || i > 11 ? KERN_PIXELS_WITHIN : 0) |
                             (i >= 7 && i <= 10 ? KERN_PIXELS_NOT_FINITE : 0));
    close_queue(k);
}

/* Halves that float32 hits exactly go to the even neighbour. */
static void ties_go_to_even(void **unused)
{
    (void)unused;
    int ties = 0;
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    for (int i = 0; i < 255; i++) {
        const float x = ((float)i + 0.5f) / 255.0f * 2.0f - 1.0f;
        if ((x + 1.0f) / 2.0f * 255.0f != (float)i + 0.5f) continue;
        uint8_t byte;
        bytes_of(k, &x, 1, KERN_BYTES_NEAREST, &byte);
        assert_int_equal(byte, i % 2 ? i + 1 : i);
        ties++;
    }
    assert_true(ties > 50);
    close_queue(k);
}

/* LlamaGen's bytes are torch.clamp(127.5 * x + 128, 0, 255).to(torch.uint8). Expected are torch's own, of values at
 * halves, where the two ways differ most, and of the others. */
static void bytes_are_cut_off_as_torch_does(void **unused)
{
    (void)unused;
    const float x[] = {-1,
                       1,
                       0,
                       -2,
                       2,
                       1e30f,
                       -1e30f,
                       INFINITY,
                       -INFINITY,
                       NAN,
                       0x1.01008p-7f,
                       0x1.010084p-7f,
                       0x1.01007ep-7f,
                       0.999f,
                       0.5f,
                       -0.5f,
                       -0.996f,
                       -0.0f};
    const uint8_t expected[] = {0, 255, 128, 0, 255, 255, 0, 255, 0, 0, 129, 129, 128, 255, 191, 64, 1, 128};
    enum { N = sizeof expected };
    _Static_assert(N == sizeof x / sizeof *x, "a byte for each value");
    uint8_t bytes[N], nearest[N];
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    assert_int_equal(bytes_of(k, x, N, KERN_BYTES_DOWN, bytes), KERN_PIXELS_WITHIN | KERN_PIXELS_NOT_FINITE);
    assert_memory_equal(bytes, expected, N);
    bytes_of(k, x, N, KERN_BYTES_NEAREST, nearest);
    assert_true(nearest[10] == 128 && nearest[11] == 128); /* so it matters which */
    close_queue(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conv_f32_matches_the_definition),
        cmocka_unit_test(conv_bf16_matches_the_definition),
        cmocka_unit_test(conv_f32_bits_do_not_depend_on_threads),
        cmocka_unit_test(conv_bf16_bits_do_not_depend_on_threads),
        cmocka_unit_test(conv_takes_several_sizes),
        cmocka_unit_test(conv_free_takes_null_and_unplanned),
        cmocka_unit_test(unplanned_sizes_fail_and_are_remembered),
        cmocka_unit_test(unplanned_norm_fails),
        cmocka_unit_test(group_norm_f32),
        cmocka_unit_test(group_norm_bf16),
        cmocka_unit_test(images_have_the_bits_they_have_alone),
        cmocka_unit_test(bytes_are_clipped_and_rounded_half_to_even),
        cmocka_unit_test(ties_go_to_even),
        cmocka_unit_test(bytes_are_cut_off_as_torch_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
