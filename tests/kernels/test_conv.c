/* Operations of convolutional networks on the CPU against PyTorch and TensorFlow's resize (tests/golden/make_conv.py):
 * layers of Inception's shapes and odd ones, pools, means, resizing. Inputs are hashes of their index, the same here as
 * there. Whatever is computed for an image has the same bits beside other images and with any number of threads. */
#include "tests/support/support.h"

#include "kernels/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const mar_dtype dtypes[2] = {MAR_DTYPE_F32, MAR_DTYPE_BF16};
static const char *const dtype_names[2] = {"f32", "bf16"};

/* --- data --------------------------------------------------------------------------------------------------------- */

static uint64_t hashed(int seed, size_t i)
{
    uint64_t z = (((uint64_t)seed << 32) + i) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static float *uniform(int seed, size_t n)
{
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = (float)(int32_t)(uint32_t)(hashed(seed, i) >> 32) / 2147483648.0f;
    return x;
}

static void *device_array(kern_queue *k, size_t bytes)
{
    void *p = NULL;
    mar_err err = {0};
    assert_ok(k->core->alloc(k->device, bytes, &p, &err), &err);
    return p;
}

/* act in the backend -> floats; the caller frees them. */
static float *from_act(kern_queue *k, const void *a, size_t n)
{
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    k->core->download(k, x, a, n * k->device->act_size);
    if (k->device->act_size == sizeof(uint16_t))
        for (size_t i = n; i-- > 0;) {
            uint16_t half;
            memcpy(&half, (const char *)x + 2 * i, sizeof half);
            const uint32_t u = (uint32_t)half << 16;
            memcpy(&x[i], &u, sizeof u);
        }
    return x;
}

/* The hashes of a seed as act in the backend. */
static void *act_of(kern_queue *k, int seed, size_t n)
{
    float *x = uniform(seed, n), *copy = device_array(k, n * sizeof *x);
    void *a = device_array(k, n * k->device->act_size);
    k->core->upload(k, copy, x, n * sizeof *x);
    k->core->to_act(k, copy, n, a);
    k->core->free(k->device, copy);
    free(x);
    return a;
}

/* The numbers of case i, or NULL if there are no more. */
static const int *case_of(const wt_file *golden, const char *kind, int i, int count, int *numbers)
{
    char name[32];
    snprintf(name, sizeof name, "%s.%d", kind, i);
    if (!wt_find(golden, name)) return NULL;
    float *values = golden_f32(golden, name, count);
    for (int j = 0; j < count; j++) numbers[j] = (int)values[j];
    free(values);
    return numbers;
}

/* Compares with the stored values of case i, as many as make_conv.py keeps of n. */
static void check_golden(const wt_file *golden, const char *kind, int i, int bf16, const float *y, size_t n,
                         double tolerance)
{
    enum { SAMPLES = 1009 };
    char name[32];
    const size_t step = n <= SAMPLES ? 1 : n / SAMPLES, count = (n + step - 1) / step;
    snprintf(name, sizeof name, "%s.%d.%s", kind, i, dtype_names[bf16]);
    float *expected = golden_f32(golden, name, (int64_t)count), *got = malloc(count * sizeof *got);
    assert_non_null(got);
    for (size_t j = 0; j < count; j++) got[j] = y[j * step];
    const double error = relative_error(got, expected, count);
    if (!(error <= tolerance)) fail_msg("%s: relative error %.3g, allowed %.3g", name, error, tolerance);
    free(expected), free(got);
}

/* --- convolutions ------------------------------------------------------------------------------------------------- */

typedef struct {
    kern_conv_spec spec;
    int height, width, images, rows, columns, stride; /* rows and columns of y, elements between its pixels */
    int seed;
} conv_case;

static int conv_case_of(const wt_file *golden, int i, conv_case *c)
{
    int n[12];
    if (!case_of(golden, "conv", i, 12, n)) return 0;
    *c = (conv_case){.spec = {.out = n[0],
                              .in = n[1],
                              .kernel_h = n[2],
                              .kernel_w = n[3],
                              .stride = n[4],
                              .pad_h = n[5],
                              .pad_w = n[6],
                              .flags = n[10],
                              .y_stride = n[11]},
                     .height = n[7],
                     .width = n[8],
                     .images = n[9],
                     .rows = (n[7] + 2 * n[5] - n[2]) / n[4] + 1,
                     .columns = (n[8] + 2 * n[6] - n[3]) / n[4] + 1,
                     .stride = n[11] ? n[11] : n[0],
                     .seed = 100 + 4 * i};
    return 1;
}

static size_t conv_pixels(const conv_case *c)
{
    return (size_t)c->images * (size_t)c->rows * (size_t)c->columns;
}

static kern_conv *make_conv(kern_queue *k, const conv_case *c)
{
    mar_err err = {0};
    kern_conv *conv = NULL;
    const size_t weights = (size_t)(c->spec.out * c->spec.in) * (size_t)(c->spec.kernel_h * c->spec.kernel_w);
    float *weight = uniform(c->seed + 1, weights), *bias = uniform(c->seed + 2, (size_t)c->spec.out);
    kern_conv_spec spec = c->spec;
    spec.weight = weight;
    spec.bias = bias;
    assert_ok(k->conv->create(k, &spec, &conv, &err), &err);
    free(weight), free(bias);
    assert_ok(k->conv->plan(k, conv, c->images, c->height, c->width, &err), &err);
    return conv;
}

/* The elements of y, whose pixels are c->stride apart, before the call: the terms that are added to, and -7 between. */
static float *before(const conv_case *c)
{
    const size_t n = conv_pixels(c) * (size_t)c->spec.out;
    float *term = uniform(c->seed + 3, n), *y = malloc(conv_pixels(c) * (size_t)c->stride * sizeof *y);
    assert_non_null(y);
    for (size_t i = 0; i < conv_pixels(c); i++)
        for (int j = 0; j < c->stride; j++)
            y[i * (size_t)c->stride + (size_t)j] = j < c->spec.out ? term[i * (size_t)c->spec.out + (size_t)j] : -7;
    free(term);
    return y;
}

/* Runs the convolution on all images of x. Returns the whole of y as floats. */
static float *run_conv(kern_queue *k, const conv_case *c, const kern_conv *conv, const void *x, const float *y0)
{
    const size_t n = conv_pixels(c) * (size_t)c->stride;
    const int f32 = (c->spec.flags & KERN_OUT_F32) != 0;
    float *y, *copy = device_array(k, n * sizeof *copy);
    void *out = device_array(k, n * sizeof(float));
    k->core->upload(k, copy, y0, n * sizeof *copy);
    if (f32)
        k->core->upload(k, out, y0, n * sizeof *copy);
    else
        k->core->to_act(k, copy, n, out);
    k->conv->conv(k, conv, x, c->images, c->height, c->width, out);
    if (f32) {
        y = malloc(n * sizeof *y);
        assert_non_null(y);
        k->core->download(k, y, out, n * sizeof *y);
    } else {
        y = from_act(k, out, n);
    }
    k->core->free(k->device, copy), k->core->free(k->device, out);
    return y;
}

/* Takes the channels of the convolution out of y, and asserts that those between are as they were. */
static float *own_channels(const conv_case *c, const float *y)
{
    const size_t out = (size_t)c->spec.out, stride = (size_t)c->stride;
    float *own = malloc(conv_pixels(c) * out * sizeof *own);
    assert_non_null(own);
    for (size_t i = 0; i < conv_pixels(c); i++) {
        memcpy(own + i * out, y + i * stride, out * sizeof *own);
        for (size_t j = out; j < stride; j++) assert_true(y[i * stride + j] == -7);
    }
    return own;
}

static void *conv_input(kern_queue *k, const conv_case *c)
{
    return act_of(k, c->seed, (size_t)c->images * (size_t)c->height * (size_t)c->width * (size_t)c->spec.in);
}

/* The convolution of c's hashes. */
static float *conv_result(const conv_case *c, int bf16, int threads)
{
    kern_queue *k = open_queue(dtypes[bf16], threads);
    if (!k) return NULL;
    void *x = conv_input(k, c);
    kern_conv *conv = make_conv(k, c);
    float *y0 = before(c), *y = run_conv(k, c, conv, x, y0);
    k->conv->free(k->device, conv);
    k->core->free(k->device, x);
    close_queue(k);
    free(y0);
    return y;
}

static void convolutions_match_pytorch(void **unused)
{
    wt_file *golden = golden_open("conv");
    conv_case c;
    int cases = 0;
    (void)unused;
    for (; conv_case_of(golden, cases, &c); cases++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            float *y = conv_result(&c, bf16, 2);
            if (!y) continue; /* the processor has no bf16 */
            float *own = own_channels(&c, y);
            const int rounded = bf16 && !(c.spec.flags & KERN_OUT_F32);
            check_golden(golden, "conv", cases, bf16, own, conv_pixels(&c) * (size_t)c.spec.out,
                         rounded ? 2.5e-3 : 2e-6);
            free(y), free(own);
        }
    assert_true(cases >= 30);
    wt_close(golden);
}

static void convolutions_bits_do_not_depend_on_threads(void **unused)
{
    static const int threads[] = {1, 3, 8};
    wt_file *golden = golden_open("conv");
    conv_case c;
    (void)unused;
    for (int i = 0; conv_case_of(golden, i, &c); i++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            float *two = conv_result(&c, bf16, 2);
            for (size_t t = 0; two && t < sizeof threads / sizeof *threads; t++) {
                float *other = conv_result(&c, bf16, threads[t]);
                assert_memory_equal(two, other, conv_pixels(&c) * (size_t)c.stride * sizeof *two);
                free(other);
            }
            free(two);
        }
    wt_close(golden);
}

static void images_have_the_bits_they_have_alone(void **unused)
{
    wt_file *golden = golden_open("conv");
    conv_case c;
    (void)unused;
    for (int i = 0; conv_case_of(golden, i, &c); i++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            kern_queue *k = open_queue(dtypes[bf16], 2);
            if (!k) continue;
            conv_case one = c;
            c.images = 5, one.images = 1;
            char *x = conv_input(k, &c);
            kern_conv *conv = make_conv(k, &c);
            const size_t n = conv_pixels(&one) * (size_t)c.stride;
            const size_t in = (size_t)c.height * (size_t)c.width * (size_t)c.spec.in * k->device->act_size;
            float *y0 = before(&c), *y = run_conv(k, &c, conv, x, y0);
            for (int image = 0; image < c.images; image++) {
                const size_t at = (size_t)image * n;
                float *alone = run_conv(k, &one, conv, x + (size_t)image * in, y0 + at);
                assert_memory_equal(y + at, alone, n * sizeof *alone);
                free(alone);
            }
            k->conv->free(k->device, conv);
            k->core->free(k->device, x);
            close_queue(k);
            free(y0), free(y);
        }
    wt_close(golden);
}

/* A weight is packed for the first size; others may need another layout, and other divisions into bands. */
static void a_convolution_takes_several_sizes(void **unused)
{
    static const int sizes[][2] = {{17, 17}, {1, 3}, {40, 2}, {35, 35}, {4, 100}, {17, 17}};
    (void)unused;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        conv_case c = {
            .spec = {.out = 48, .in = 32, .kernel_h = 7, .kernel_w = 1, .stride = 1, .pad_h = 3, .flags = KERN_RELU},
            .height = 17,
            .width = 17,
            .images = 1,
            .stride = 48,
            .seed = 3};
        kern_queue *k = open_queue(dtypes[bf16], 2);
        if (!k) continue;
        kern_conv *conv = make_conv(k, &c);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            mar_err err = {0};
            c.height = c.rows = sizes[i][0], c.width = c.columns = sizes[i][1];
            assert_ok(k->conv->plan(k, conv, 1, c.height, c.width, &err), &err);
            void *x = conv_input(k, &c);
            float *y0 = before(&c), *y = run_conv(k, &c, conv, x, y0), *fresh = conv_result(&c, bf16, 2);
            /* Bit for bit if oneDNN has no other layout for this size, and to rounding in any case. */
            assert_close(y, fresh, conv_pixels(&c) * (size_t)c.stride, bf16 ? 1e-3 : 1e-6);
            k->core->free(k->device, x);
            free(y0), free(y), free(fresh);
        }
        k->conv->free(k->device, conv);
        close_queue(k);
    }
}

/* A NaN or an infinity is not lost on the way through a network. */
static void relu_keeps_what_is_not_finite(void **unused)
{
    (void)unused;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        kern_queue *k = open_queue(dtypes[bf16], 1);
        if (!k) continue;
        float weight[64], bias[64], x[64] = {1}, y0[64] = {0};
        for (int i = 0; i < 64; i++) weight[i] = 1, bias[i] = 0;
        bias[3] = NAN, bias[4] = INFINITY, bias[5] = -INFINITY, bias[6] = -2;
        const conv_case c = {
            .spec = {.out = 64, .in = 1, .kernel_h = 1, .kernel_w = 1, .stride = 1, .flags = KERN_RELU},
            .height = 1,
            .width = 1,
            .images = 1,
            .rows = 1,
            .columns = 1,
            .stride = 64};
        kern_conv_spec spec = c.spec;
        spec.weight = weight, spec.bias = bias;
        kern_conv *conv;
        mar_err err = {0};
        assert_ok(k->conv->create(k, &spec, &conv, &err), &err);
        assert_ok(k->conv->plan(k, conv, 1, 1, 1, &err), &err);
        float *in = device_array(k, sizeof x);
        void *a = device_array(k, sizeof x);
        k->core->upload(k, in, x, sizeof x);
        k->core->to_act(k, in, 1, a);
        float *y = run_conv(k, &c, conv, a, y0);
        assert_true(isnan(y[3]));
        assert_true(y[4] == INFINITY && y[5] == 0 && y[6] == 0 && y[7] == 1);
        k->conv->free(k->device, conv);
        k->core->free(k->device, in), k->core->free(k->device, a);
        close_queue(k);
        free(y);
    }
}

/* --- pools -------------------------------------------------------------------------------------------------------- */

typedef struct {
    kern_pool pool;
    int images, height, width, channels, stride, rows, columns, seed;
} pool_case;

static int pool_case_of(const wt_file *golden, int i, pool_case *c)
{
    int n[9];
    if (!case_of(golden, "pool", i, 9, n)) return 0;
    *c = (pool_case){.pool = {n[0] ? KERN_POOL_MEAN : KERN_POOL_MAX, n[1], n[2], n[3]},
                     .images = n[4],
                     .height = n[5],
                     .width = n[6],
                     .channels = n[7],
                     .stride = n[8],
                     .rows = (n[5] + 2 * n[3] - n[1]) / n[2] + 1,
                     .columns = (n[6] + 2 * n[3] - n[1]) / n[2] + 1,
                     .seed = 500 + i};
    return 1;
}

/* The pooled channels. Those between are looked at: nothing may have been written there. */
static float *run_pool(kern_queue *k, const pool_case *c, const void *x)
{
    const size_t pixels = (size_t)c->images * (size_t)c->rows * (size_t)c->columns, n = (size_t)c->channels;
    const size_t stride = (size_t)c->stride;
    void *y = device_array(k, pixels * stride * k->device->act_size); /* zeros */
    k->conv->pool(k, &c->pool, x, c->images, c->height, c->width, c->channels, y, c->stride);
    float *all = from_act(k, y, pixels * stride), *own = malloc(pixels * n * sizeof *own);
    assert_non_null(own);
    for (size_t i = 0; i < pixels; i++) {
        memcpy(own + i * n, all + i * stride, n * sizeof *own);
        for (size_t j = n; j < stride; j++) assert_true(all[i * stride + j] == 0);
    }
    k->core->free(k->device, y);
    free(all);
    return own;
}

static void pools_match_pytorch(void **unused)
{
    static const int threads[] = {1, 2, 5};
    wt_file *golden = golden_open("conv");
    pool_case c;
    int cases = 0;
    (void)unused;
    for (; pool_case_of(golden, cases, &c); cases++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            const size_t image = (size_t)c.height * (size_t)c.width * (size_t)c.channels;
            const size_t n = (size_t)c.rows * (size_t)c.columns * (size_t)c.channels;
            float *first = NULL;
            for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
                kern_queue *k = open_queue(dtypes[bf16], threads[t]);
                if (!k) break;
                char *x = act_of(k, c.seed, (size_t)c.images * image);
                float *y = run_pool(k, &c, x);
                const int exact = c.pool.kind == KERN_POOL_MAX;
                check_golden(golden, "pool", cases, bf16, y, (size_t)c.images * n, exact ? 0 : bf16 ? 2.5e-3 : 2e-7);
                if (first) assert_memory_equal(first, y, (size_t)c.images * n * sizeof *y);
                pool_case one = c; /* the last image by itself */
                one.images = 1;
                float *alone = run_pool(k, &one, x + (size_t)(c.images - 1) * image * k->device->act_size);
                assert_memory_equal(alone, y + (size_t)(c.images - 1) * n, n * sizeof *y);
                k->core->free(k->device, x);
                close_queue(k);
                free(alone), free(first);
                first = y;
            }
            free(first);
        }
    assert_int_equal(cases, 9);
    wt_close(golden);
}

static void pools_keep_what_is_not_finite(void **unused)
{
    (void)unused;
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int place = 0; place < 9; place++) {
            kern_queue *k = open_queue(dtypes[bf16], 1);
            if (!k) continue;
            enum { N = 9 * 70 };
            float x[N];
            for (int i = 0; i < N; i++) x[i] = (float)(i % 5) - 2;
            x[place * 70 + 3] = x[place * 70 + 68] = NAN;
            x[place * 70 + 5] = -INFINITY;
            float *copy = device_array(k, sizeof x);
            void *a = device_array(k, sizeof x);
            k->core->upload(k, copy, x, sizeof x);
            k->core->to_act(k, copy, N, a);
            pool_case c = {.pool = {KERN_POOL_MAX, 3, 1, 0},
                           .images = 1,
                           .height = 3,
                           .width = 3,
                           .channels = 70,
                           .stride = 70,
                           .rows = 1,
                           .columns = 1};
            float *y = run_pool(k, &c, a);
            assert_true(isnan(y[3]) && isnan(y[68]) && y[5] <= 2 && y[4] <= 2);
            free(y);
            c.pool.kind = KERN_POOL_MEAN;
            y = run_pool(k, &c, a);
            assert_true(isnan(y[3]) && isnan(y[68]) && y[5] == -INFINITY && isfinite(y[4]));
            free(y);
            k->core->free(k->device, copy), k->core->free(k->device, a);
            close_queue(k);
        }
}

static void means_match_pytorch(void **unused)
{
    wt_file *golden = golden_open("conv");
    int n[3], cases = 0;
    (void)unused;
    for (; case_of(golden, "mean", cases, 3, n); cases++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            kern_queue *k = open_queue(dtypes[bf16], 1 + cases);
            if (!k) continue;
            const size_t count = (size_t)(n[0] * n[2]);
            void *x = act_of(k, 600 + cases, count * (size_t)n[1]);
            float *mean = device_array(k, count * sizeof *mean), *y = malloc(count * sizeof *y);
            assert_non_null(y);
            k->conv->mean_pixels(k, x, n[0], n[1], n[2], mean);
            k->core->download(k, y, mean, count * sizeof *y);
            check_golden(golden, "mean", cases, bf16, y, count, 1e-7);
            k->core->free(k->device, x), k->core->free(k->device, mean);
            close_queue(k);
            free(y);
        }
    assert_int_equal(cases, 3);
    wt_close(golden);
}

static void channels_are_taken(void **unused)
{
    enum { ROWS = 300, STRIDE = 11, CHANNELS = 7 };
    (void)unused;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        kern_queue *k = open_queue(dtypes[bf16], 2);
        if (!k) continue;
        void *x = act_of(k, 9, (size_t)ROWS * STRIDE);
        float *all = from_act(k, x, (size_t)ROWS * STRIDE), *out = device_array(k, ROWS * CHANNELS * sizeof *out);
        float y[ROWS * CHANNELS];
        k->conv->take_channels(k, x, ROWS, STRIDE, CHANNELS, out);
        k->core->download(k, y, out, sizeof y);
        for (int i = 0; i < ROWS * CHANNELS; i++) assert_true(y[i] == all[i / CHANNELS * STRIDE + i % CHANNELS]);
        k->conv->take_channels(k, x, 0, STRIDE, CHANNELS, out);
        k->core->free(k->device, x), k->core->free(k->device, out);
        close_queue(k);
        free(all);
    }
}

/* --- resizing ----------------------------------------------------------------------------------------------------- */

static float *resized(int bf16, int threads, const int *n, int seed)
{
    kern_queue *k = open_queue(dtypes[bf16], threads);
    if (!k) return NULL;
    const size_t in = (size_t)(n[0] * n[1] * n[2]) * 3, out = (size_t)(n[0] * n[3] * n[3]) * 3;
    uint8_t *rgb = malloc(in), *x = device_array(k, in);
    assert_non_null(rgb);
    for (size_t i = 0; i < in; i++) rgb[i] = (uint8_t)(hashed(seed, i) >> 56);
    k->core->upload(k, x, rgb, in);
    void *y = device_array(k, out * k->device->act_size);
    k->conv->resize(k, x, n[0], n[1], n[2], n[3], y);
    float *values = from_act(k, y, out);
    k->core->free(k->device, x), k->core->free(k->device, y);
    close_queue(k);
    free(rgb);
    return values;
}

static void resizing_matches_tensorflow(void **unused)
{
    wt_file *golden = golden_open("conv");
    int n[4], cases = 0;
    (void)unused;
    for (; case_of(golden, "resize", cases, 4, n); cases++) {
        const size_t count = (size_t)(n[0] * n[3] * n[3]) * 3;
        float *y = resized(0, 2, n, 700 + cases), *other = resized(0, 3, n, 700 + cases);
        check_golden(golden, "resize", cases, 0, y, count, 3e-7);
        assert_memory_equal(y, other, count * sizeof *y);
        float *half = resized(1, 2, n, 700 + cases);
        if (half) assert_true(max_difference(half, y, count) <= 1.0 / 512); /* half a unit of the last place of 1 */
        if (n[1] == n[3] && n[2] == n[3] && half) assert_true(max_difference(half, y, count) == 0);
        free(y), free(other), free(half);
    }
    assert_int_equal(cases, 8);
    wt_close(golden);
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

/* After a failure, and once the queue is cancelled, the operations leave y alone. */
static void operations_do_nothing_after_a_failure(void **unused)
{
    enum { N = 1024 };
    (void)unused;
    for (int cancelled = 0; cancelled < 2; cancelled++) {
        kern_queue *k = open_queue(MAR_DTYPE_F32, 2);
        mar_err err = {0};
        int cancel = 0;
        const conv_case c = {.spec = {.out = 4, .in = 4, .kernel_h = 1, .kernel_w = 1, .stride = 1},
                             .height = 4,
                             .width = 4,
                             .images = 1,
                             .seed = 5};
        kern_conv *conv = make_conv(k, &c);
        float *x = act_of(k, 1, N), *y = device_array(k, N * sizeof *y);
        k->cancel = &cancel;
        cancel = cancelled;
        if (!cancelled) k->conv->conv(k, conv, x, 1, 2, 8, y); /* not planned */
        k->conv->conv(k, conv, x, 1, 4, 4, y);
        k->conv->pool(k, &(kern_pool){KERN_POOL_MAX, 3, 1, 1}, x, 1, 4, 4, 4, y, 4);
        k->conv->mean_pixels(k, x, 1, 16, 4, y);
        k->conv->take_channels(k, x, 16, 4, 4, y);
        k->conv->resize(k, (const uint8_t *)x, 1, 4, 4, 8, y);
        assert_int_equal(kern_check(k, &err), cancelled ? MAR_ECANCELLED : MAR_EBACKEND);
        if (!cancelled) assert_non_null(strstr(err.text, "2x8"));
        for (int i = 0; i < N; i++) assert_true(y[i] == 0);
        cancel = 0;
        k->core->recover(k);
        k->conv->take_channels(k, x, 16, 4, 4, y);
        assert_memory_equal(x, y, 64 * sizeof *y);
        k->conv->free(k->device, conv);
        k->core->free(k->device, x), k->core->free(k->device, y);
        close_queue(k);
    }
}

/* --- our own kernels and oneDNN's --------------------------------------------------------------------------------- */

/* Where the processor has AVX-512, our own kernels convolve, and with this in the environment oneDNN. */
static int without_own_kernels(void **unused)
{
    (void)unused;
    return setenv("MAR_ISA", "avx2", 1);
}

static int with_own_kernels(void **unused)
{
    (void)unused;
    return unsetenv("MAR_ISA");
}

#define by_onednn(test) cmocka_unit_test_setup_teardown(test, without_own_kernels, with_own_kernels)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutions_match_pytorch),
        cmocka_unit_test(convolutions_bits_do_not_depend_on_threads),
        cmocka_unit_test(images_have_the_bits_they_have_alone),
        cmocka_unit_test(a_convolution_takes_several_sizes),
        cmocka_unit_test(relu_keeps_what_is_not_finite),
        by_onednn(convolutions_match_pytorch),
        by_onednn(convolutions_bits_do_not_depend_on_threads),
        by_onednn(images_have_the_bits_they_have_alone),
        by_onednn(a_convolution_takes_several_sizes),
        by_onednn(relu_keeps_what_is_not_finite),
        cmocka_unit_test(pools_match_pytorch),
        cmocka_unit_test(pools_keep_what_is_not_finite),
        cmocka_unit_test(means_match_pytorch),
        cmocka_unit_test(channels_are_taken),
        by_onednn(pools_match_pytorch), /* and row kernels of AVX2 */
        cmocka_unit_test(resizing_matches_tensorflow),
        by_onednn(resizing_matches_tensorflow),
        cmocka_unit_test(operations_do_nothing_after_a_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
