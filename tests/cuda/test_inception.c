/* What Inception-v3 is made of, on the CUDA backend: convolutions with rectangular kernels, strides, padding and ReLU,
 * pools, the mean over pixels and the resize, against plain loops in double, as is the CPU's f32. */
#include "tests/support/device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The backends under test: the CPU in f32, as everywhere the oracle of the CUDA tests, and CUDA in f32 and in bf16. */
enum { CPU_F32, CUDA_F32, CUDA_BF16, BACKENDS };

static kern_queue *open_backend(int which)
{
    return which == CPU_F32 ? open_cpu() : open_cuda(which == CUDA_F32 ? MAR_DTYPE_F32 : MAR_DTYPE_BF16);
}

static int is_f32(const kern_queue *k)
{
    return k->device->act_size == 4;
}

static double tolerance(const kern_queue *k)
{
    return is_f32(k) ? 1e-5 : 4e-3;
}

/* Multiples of 1/8 up to 4, which are exact in bf16. */
static float *coarse_floats(size_t n, uint64_t seed)
{
    float *x = random_floats(n, 1, seed);
    for (size_t i = 0; i < n; i++) x[i] = fminf(fmaxf(rintf(x[i] * 8) / 8, -4), 4);
    return x;
}

static int results(int size, int pad, int window, int stride)
{
    return (size + 2 * pad - window) / stride + 1;
}

/* What stands where no result belongs, and must stay there. */
static const float untouched = 77;

static float *filled(size_t n)
{
    float *x = malloc((n + 1) * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = untouched;
    return x;
}

/* --- convolution ------------------------------------------------------------------------------------------- */

typedef struct {
    int images, height, width, in, out;
    int kernel_h, kernel_w, stride, pad_h, pad_w, flags;
    int y_stride, at; /* 0: dense; else results begin at channel `at` */
} shape;

/* The layers of Inception-v3, the sizes of images and numbers of channels smaller; odd ones among them, and channels
 * that do not fill a vector. */
static const shape shapes[] = {
    {2, 21, 19, 3, 32, 3, 3, 2, 0, 0, KERN_RELU, 0, 0},    /* Conv2d_1a */
    {2, 10, 9, 32, 32, 3, 3, 1, 0, 0, KERN_RELU, 0, 0},    /* 2a */
    {3, 9, 11, 32, 64, 3, 3, 1, 1, 1, KERN_RELU, 0, 0},    /* 2b */
    {3, 7, 5, 64, 80, 1, 1, 1, 0, 0, KERN_RELU, 0, 0},     /* 3b */
    {1, 11, 9, 80, 192, 3, 3, 1, 0, 0, KERN_RELU, 0, 0},   /* 4a */
    {2, 7, 6, 48, 64, 5, 5, 1, 2, 2, KERN_RELU, 256, 64},  /* Mixed_5b */
    {2, 7, 6, 64, 32, 1, 1, 1, 0, 0, KERN_RELU, 256, 224}, /* its pool's branch */
    {2, 9, 8, 24, 16, 3, 3, 2, 0, 0, KERN_RELU, 48, 16},   /* 6a, even and odd */
    {3, 9, 7, 16, 24, 1, 7, 1, 0, 3, KERN_RELU, 0, 0},     /* 6b */
    {3, 9, 7, 24, 40, 7, 1, 1, 3, 0, KERN_RELU, 64, 24},   /* the same */
    {2, 3, 2, 16, 16, 7, 1, 1, 3, 0, KERN_RELU, 0, 0},     /* less than a kernel high */
    {4, 5, 5, 32, 16, 1, 3, 1, 0, 1, KERN_RELU, 32, 0},    /* 7b */
    {4, 5, 5, 32, 16, 3, 1, 1, 1, 0, KERN_RELU, 32, 16},   /* beside it */
    {1, 3, 3, 8, 8, 3, 3, 2, 0, 0, KERN_RELU, 0, 0},       /* one pixel of y */
    {2, 5, 8, 5, 6, 1, 7, 1, 0, 3, KERN_RELU, 11, 3},      /* no vectors */
    {2, 6, 5, 12, 7, 1, 1, 2, 0, 0, KERN_RELU, 9, 2},      /* a 1x1 kernel with a stride */
    {2, 8, 6, 16, 24, 1, 1, 2, 0, 0, 0, 0, 0},             /* the same in vectors, without ReLU */
    {2, 6, 7, 8, 16, 5, 3, 2, 4, 1, KERN_OUT_F32, 20, 4},  /* f32 results */
    {2, 6, 7, 8, 16, 3, 5, 1, 0, 2, KERN_OUT_F32 | KERN_OUT_ADD, 20, 4},
    {7, 13, 9, 8, 512, 3, 3, 1, 1, 1, KERN_RELU, 520, 8}, /* bands that begin in the middle of an image */
};

static size_t pixels_of_y(const shape *s)
{
    return (size_t)s->images * (size_t)results(s->height, s->pad_h, s->kernel_h, s->stride) *
           (size_t)results(s->width, s->pad_w, s->kernel_w, s->stride);
}

static int stride_of_y(const shape *s)
{
    return s->y_stride ? s->y_stride : s->out;
}

static kern_conv *make_conv(kern_queue *k, const shape *s, const float *weight, const float *bias)
{
    mar_err err = {0};
    kern_conv *conv = NULL;
    const kern_conv_spec spec = {.out = s->out,
                                 .in = s->in,
                                 .kernel_h = s->kernel_h,
                                 .kernel_w = s->kernel_w,
                                 .stride = s->stride,
                                 .pad_h = s->pad_h,
                                 .pad_w = s->pad_w,
                                 .weight = weight,
                                 .bias = bias,
                                 .flags = s->flags,
                                 .y_stride = s->y_stride};
    assert_ok(k->conv->create(k, &spec, &conv, &err), &err);
    assert_ok(k->conv->plan(k, conv, s->images, s->height, s->width, &err), &err);
    return conv;
}

/* The sum of one result over the kernel's pixels inside x. */
static double one_result(const shape *s, const float *weight, const float *x, int top, int left, int out)
{
    double sum = 0;
    for (int u = 0; u < s->kernel_h; u++)
        for (int v = 0; v < s->kernel_w; v++) {
            const int r = top + u, c = left + v;
            if (r < 0 || c < 0 || r >= s->height || c >= s->width) continue;
            for (int i = 0; i < s->in; i++)
                sum += (double)x[(r * s->width + c) * s->in + i] *
                       weight[((out * s->in + i) * s->kernel_h + u) * s->kernel_w + v];
        }
    return sum;
}

/* y becomes the result; where the convolution adds, it is the first term on entry. */
static void plain_conv(const shape *s, const float *weight, const float *bias, const float *x, float *y)
{
    const int rows = results(s->height, s->pad_h, s->kernel_h, s->stride);
    const int columns = results(s->width, s->pad_w, s->kernel_w, s->stride);
    for (int p = 0; p < s->images * rows * columns; p++) {
        const int image = p / (rows * columns), top = p / columns % rows * s->stride - s->pad_h;
        const int left = p % columns * s->stride - s->pad_w;
        for (int o = 0; o < s->out; o++) {
            const double sum = bias[o] + one_result(s, weight, x + image * s->height * s->width * s->in, top, left, o);
            float *to = y + (size_t)p * (size_t)stride_of_y(s) + s->at + o;
            *to = (float)(s->flags & KERN_OUT_ADD ? *to + sum : s->flags & KERN_RELU ? fmax(sum, 0) : sum);
        }
    }
}

static void run_conv(kern_queue *k, const shape *s, const float *weight, const float *bias, const float *x, float *y)
{
    const size_t n = pixels_of_y(s) * (size_t)stride_of_y(s);
    const int f32 = (s->flags & KERN_OUT_F32) != 0;
    const size_t size = f32 ? sizeof(float) : k->device->act_size;
    void *in = to_act(k, x, (size_t)(s->images * s->height * s->width * s->in));
    void *out = f32 ? to_device(k, y, n * sizeof *y) : to_act(k, y, n);
    kern_conv *conv = make_conv(k, s, weight, bias);
    k->conv->conv(k, conv, in, s->images, s->height, s->width, (char *)out + (size_t)s->at * size);
    if (f32) {
        from_device(k, y, out, n * sizeof *y);
    } else {
        float *result = act_to_floats(k, out, n);
        memcpy(y, result, n * sizeof *y);
        free(result);
    }
    kern_conv_spec of;
    k->device->measure->conv_spec(conv, &of);
    assert_int_equal(of.kernel_h, s->kernel_h);
    assert_int_equal(of.kernel_w, s->kernel_w);
    assert_int_equal(of.stride, s->stride);
    assert_int_equal(of.pad_h, s->pad_h);
    assert_int_equal(of.pad_w, s->pad_w);
    assert_int_equal(of.flags, s->flags);
    k->conv->free(k->device, conv);
    k->core->free(k->device, in), k->core->free(k->device, out);
}

static void check_convs(kern_queue *k)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const shape *s = &shapes[i];
        const size_t n = pixels_of_y(s) * (size_t)stride_of_y(s);
        float *x = coarse_floats((size_t)(s->images * s->height * s->width * s->in), 10 * i);
        float *weight = coarse_floats((size_t)(s->out * s->in * s->kernel_h * s->kernel_w), 10 * i + 1);
        float *bias = random_floats((size_t)s->out, 1, 10 * i + 2), *want = filled(n), *got = filled(n);
        plain_conv(s, weight, bias, x, want);
        run_conv(k, s, weight, bias, x, got);
        size_t zeros = 0;
        for (size_t j = 0; j < n; j++) {
            const int channel = (int)(j % (size_t)stride_of_y(s));
            if (channel < s->at || channel >= s->at + s->out) {
                assert_true(got[j] == untouched);
                got[j] = want[j] = 0;
            } else {
                zeros += got[j] == 0;
            }
        }
        if (s->flags & KERN_RELU) /* about half of the sums were negative */
            assert_in_range(zeros, pixels_of_y(s) * (size_t)s->out / 5, pixels_of_y(s) * (size_t)s->out * 4 / 5);
        const double error = relative_error(got, want, n);
        if (!(error <= tolerance(k))) fail_msg("shape %zu: relative error %.3g", i, error);
        free(x), free(weight), free(bias), free(want), free(got);
    }
}

static void on_all_backends(void (*check)(kern_queue *k))
{
    for (int i = 0; i < BACKENDS; i++) {
        kern_queue *k = open_backend(i);
        check(k);
        close_queue(k);
    }
}

static void convolutions(void **unused)
{
    (void)unused;
    on_all_backends(check_convs);
}

static void relu_is_not_added(void **unused)
{
    (void)unused;
    kern_queue *k = open_cuda(MAR_DTYPE_F32);
    const float weight[64] = {0}, bias[8] = {0};
    mar_err err = {0};
    kern_conv *conv = NULL;
    const kern_conv_spec spec = {8, 8, 1, 1, 1, 0, 0, weight, bias, KERN_OUT_F32 | KERN_OUT_ADD | KERN_RELU, 0};
    assert_int_equal(k->conv->create(k, &spec, &conv, &err), MAR_EARG);
    assert_null(conv);
    close_queue(k);
}

/* A kernel that does not fit has no results. */
static void small_images_have_no_results(void **unused)
{
    (void)unused;
    kern_queue *k = open_cuda(MAR_DTYPE_F32);
    const shape s = {2, 2, 9, 8, 8, 3, 3, 1, 0, 0, KERN_RELU, 0, 0};
    float *weight = coarse_floats(9 * 64, 1), bias[8] = {0}, y[8];
    float *kept = filled(8);
    void *x = to_device(k, NULL, 2 * 2 * 9 * 8 * sizeof *y), *out = to_device(k, kept, sizeof y);
    kern_conv *conv = make_conv(k, &s, weight, bias);
    k->conv->conv(k, conv, x, 2, 2, 9, out);
    const kern_pool pool = {KERN_POOL_MAX, 3, 2, 0};
    k->conv->pool(k, &pool, x, 2, 2, 9, 8, out, 8);
    from_device(k, y, out, sizeof y);
    assert_memory_equal(y, kept, sizeof y);
    k->conv->free(k->device, conv);
    k->core->free(k->device, x), k->core->free(k->device, out);
    close_queue(k);
    free(weight), free(kept);
}

/* --- pools ------------------------------------------------------------------------------------------------- */

typedef struct {
    kern_pool pool;
    int images, height, width, channels, y_stride, at;
} pool_case;

static const pool_case pools[] = {
    {{KERN_POOL_MAX, 3, 2, 0}, 2, 15, 13, 64, 64, 0}, /* after 2b and 4a */
    {{KERN_POOL_MAX, 3, 2, 0}, 2, 9, 8, 24, 64, 40},  /* 6a, beside others */
    {{KERN_POOL_MAX, 3, 1, 1}, 2, 8, 8, 40, 40, 0},   /* 7c */
    {{KERN_POOL_MEAN, 3, 1, 1}, 3, 7, 5, 48, 48, 0},  /* 5b to 7b */
    {{KERN_POOL_MEAN, 3, 1, 1}, 1, 1, 1, 8, 8, 0},    /* one pixel of nine */
    {{KERN_POOL_MEAN, 3, 2, 2}, 2, 6, 7, 16, 32, 8},  /* corners of one pixel */
    {{KERN_POOL_MEAN, 3, 1, 1}, 2, 6, 5, 7, 7, 0},    /* no vectors */
    {{KERN_POOL_MAX, 2, 2, 0}, 3, 5, 4, 5, 12, 3},    /* nor here; a row is left over */
    {{KERN_POOL_MAX, 5, 3, 4}, 2, 11, 9, 16, 20, 2},  /* nor where y is not aligned */
};

static void plain_pool(const pool_case *p, const float *x, float *y)
{
    const kern_pool *q = &p->pool;
    const int rows = results(p->height, q->pad, q->window, q->stride);
    const int columns = results(p->width, q->pad, q->window, q->stride);
    for (int i = 0; i < p->images * rows * columns * p->channels; i++) {
        const int channel = i % p->channels, pixel = i / p->channels, image = pixel / (rows * columns);
        const int top = pixel / columns % rows * q->stride - q->pad, left = pixel % columns * q->stride - q->pad;
        double sum = 0, most = -INFINITY;
        int count = 0;
        for (int r = top; r < top + q->window; r++)
            for (int s = left; s < left + q->window; s++) {
                if (r < 0 || s < 0 || r >= p->height || s >= p->width) continue;
                const double v = x[((image * p->height + r) * p->width + s) * p->channels + channel];
                sum += v, count++;
                most = fmax(most, v);
            }
        y[pixel * p->y_stride + p->at + channel] = (float)(q->kind == KERN_POOL_MAX ? most : sum / count);
    }
}

static void check_pools(kern_queue *k)
{
    for (size_t i = 0; i < sizeof pools / sizeof *pools; i++) {
        const pool_case *p = &pools[i];
        const kern_pool *q = &p->pool;
        const size_t in = (size_t)(p->images * p->height * p->width * p->channels);
        const size_t n = (size_t)(p->images * results(p->height, q->pad, q->window, q->stride) *
                                  results(p->width, q->pad, q->window, q->stride) * p->y_stride);
        float *x = coarse_floats(in, i), *want = filled(n);
        void *from = to_act(k, x, in), *to = to_act(k, want, n);
        plain_pool(p, x, want);
        k->conv->pool(k, q, from, p->images, p->height, p->width, p->channels,
                      (char *)to + (size_t)p->at * k->device->act_size, p->y_stride);
        float *got = act_to_floats(k, to, n);
        for (size_t j = 0; j < n; j++)
            if (q->kind == KERN_POOL_MAX || want[j] == untouched) assert_true(got[j] == want[j]);
        assert_close(got, want, n, tolerance(k));
        k->core->free(k->device, from), k->core->free(k->device, to);
        free(x), free(want), free(got);
    }
}

static void pools_of_all_kinds(void **unused)
{
    (void)unused;
    on_all_backends(check_pools);
}

/* A NaN is the result of the windows that it is in, and of no others. */
static void pools_keep_a_nan(void **unused)
{
    (void)unused;
    enum { SIDE = 9, CHANNELS = 8, AT = (4 * SIDE + 5) * CHANNELS + 3 };
    kern_queue *k = open_cuda(MAR_DTYPE_BF16);
    for (int kind = KERN_POOL_MAX; kind <= KERN_POOL_MEAN; kind++) {
        const kern_pool pool = {kind, 3, 1, 1};
        float *x = coarse_floats(SIDE * SIDE * CHANNELS, 3);
        x[AT] = NAN;
        void *from = to_act(k, x, SIDE * SIDE * CHANNELS), *to = to_act(k, x, SIDE * SIDE * CHANNELS);
        k->conv->pool(k, &pool, from, 1, SIDE, SIDE, CHANNELS, to, CHANNELS);
        float *y = act_to_floats(k, to, SIDE * SIDE * CHANNELS);
        for (int i = 0; i < SIDE * SIDE * CHANNELS; i++) {
            const int r = i / CHANNELS / SIDE, s = i / CHANNELS % SIDE;
            assert_int_equal(isnan(y[i]) != 0, i % CHANNELS == 3 && r >= 3 && r <= 5 && s >= 4 && s <= 6);
        }
        k->core->free(k->device, from), k->core->free(k->device, to);
        free(x), free(y);
    }
    close_queue(k);
}

/* --- the mean over pixels, and channels as floats ------------------------------------------------------------ */

static void check_means(kern_queue *k)
{
    static const int cases[][3] = {{1, 1, 8}, {3, 64, 264}, {2, 25, 7}, {2, 5, 1024}, {5, 63, 40}, {1, 1000, 16}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int images = cases[i][0], pixels = cases[i][1], channels = cases[i][2];
        const size_t n = (size_t)(images * pixels * channels), results_of = (size_t)(images * channels);
        float *x = coarse_floats(n, 50 + i), *want = filled(results_of), *got = filled(results_of);
        void *from = to_act(k, x, n), *to = to_device(k, want, results_of * sizeof *want);
        for (size_t j = 0; j < results_of; j++) {
            double sum = 0;
            for (int p = 0; p < pixels; p++)
                sum += x[(j / (size_t)channels * (size_t)pixels + (size_t)p) * (size_t)channels + j % (size_t)channels];
            want[j] = (float)(sum / pixels);
        }
        k->conv->mean_pixels(k, from, images, pixels, channels, to);
        from_device(k, got, to, results_of * sizeof *got);
        assert_close(got, want, results_of, 1e-6);
        /* Alone an image has the same bits. */
        const size_t last = results_of - (size_t)channels, before = n - (size_t)(pixels * channels);
        k->conv->mean_pixels(k, (char *)from + before * k->device->act_size, 1, pixels, channels, to);
        from_device(k, want, to, (size_t)channels * sizeof *want);
        assert_memory_equal(want, got + last, (size_t)channels * sizeof *want);
        k->core->free(k->device, from), k->core->free(k->device, to);
        free(x), free(want), free(got);
    }
}

static void means(void **unused)
{
    (void)unused;
    on_all_backends(check_means);
}

static void check_channels(kern_queue *k)
{
    static const int cases[][3] = {{1, 1, 1}, {289, 16, 7}, {300, 7, 7}, {3, 700, 600}, {1000, 12, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int rows = cases[i][0], stride = cases[i][1], channels = cases[i][2];
        float *x = coarse_floats((size_t)(rows * stride), i), *got = filled((size_t)(rows * channels));
        void *from = to_act(k, x, (size_t)(rows * stride));
        void *to = to_device(k, NULL, (size_t)(rows * channels) * sizeof *got);
        k->conv->take_channels(k, from, rows, stride, channels, to);
        from_device(k, got, to, (size_t)(rows * channels) * sizeof *got);
        for (int j = 0; j < rows * channels; j++) assert_true(got[j] == x[j / channels * stride + j % channels]);
        k->core->free(k->device, from), k->core->free(k->device, to);
        free(x), free(got);
    }
}

static void channels_are_taken(void **unused)
{
    (void)unused;
    on_all_backends(check_channels);
}

/* --- resize ------------------------------------------------------------------------------------------------ */

static double rgb_between(const uint8_t *image, int height, int width, double row, double column, int channel)
{
    const int top = (int)row, left = (int)column;
    const int bottom = top + 1 < height ? top + 1 : top, right = left + 1 < width ? left + 1 : left;
    const double v = row - top, h = column - left;
#define AT(r, c) image[((r)*width + (c)) * 3 + channel]
    return (1 - v) * ((1 - h) * AT(top, left) + h * AT(top, right)) +
           v * ((1 - h) * AT(bottom, left) + h * AT(bottom, right));
#undef AT
}

static void check_resize(kern_queue *k)
{
    static const int cases[][4] = {{1, 1, 1, 5},    {2, 32, 32, 75}, {3, 64, 64, 64},
                                   {1, 90, 40, 37}, {2, 5, 7, 38},   {1, 256, 200, 299}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int images = cases[i][0], height = cases[i][1], width = cases[i][2], side = cases[i][3];
        const size_t bytes = (size_t)(images * height * width * 3), n = (size_t)(images * side * side * 3);
        uint8_t *rgb = malloc(bytes);
        float *noise = random_floats(bytes, 90, i), *want = filled(n);
        assert_non_null(rgb);
        for (size_t j = 0; j < bytes; j++) rgb[j] = (uint8_t)fminf(fmaxf(128 + noise[j], 0), 255);
        for (int j = 0; j < (int)n; j++) {
            const int pixel = j / 3 % (side * side), image = j / 3 / (side * side);
            /* the place as TensorFlow has it: a product of floats */
            const float row = (float)(pixel / side) * ((float)height / (float)side);
            const float column = (float)(pixel % side) * ((float)width / (float)side);
            want[j] = (float)((rgb_between(rgb + (size_t)image * (size_t)(height * width * 3), height, width, row,
                                           column, j % 3) -
                               128) /
                              128);
        }
        void *from = to_device(k, rgb, bytes), *to = to_device(k, NULL, n * k->device->act_size);
        k->conv->resize(k, from, images, height, width, side, to);
        float *got = act_to_floats(k, to, n);
        for (size_t j = 0; j < n; j++)
            if (!(fabsf(got[j] - want[j]) <= (is_f32(k) ? 1e-6f : 4e-3f)))
                fail_msg("case %zu, value %zu: %.9g, expected %.9g", i, j, (double)got[j], (double)want[j]);
        k->core->free(k->device, from), k->core->free(k->device, to);
        free(rgb), free(noise), free(want), free(got);
    }
}

static void resize_is_tensorflows(void **unused)
{
    (void)unused;
    on_all_backends(check_resize);
}

/* --- a recording ------------------------------------------------------------------------------------------- */

/* A small network from bytes to a feature vector. */
typedef struct {
    kern_queue *k;
    kern_conv *first, *left, *right;
    uint8_t *rgb;
    void *x, *y, *z;
    float *features;
} network;

enum { IMAGES = 3, SIDE = 17, FIRST = 16, SECOND = 24 };
static const shape first_shape = {IMAGES, SIDE, SIDE, 3, FIRST, 3, 3, 2, 0, 0, KERN_RELU, 0, 0};
static const shape left_shape = {IMAGES, 8, 8, FIRST, 8, 1, 7, 1, 0, 3, KERN_RELU, SECOND, 0};
static const shape right_shape = {IMAGES, 8, 8, FIRST, 16, 3, 3, 1, 1, 1, KERN_RELU, SECOND, 8};

static void network_body(void *arg)
{
    const network *n = arg;
    const kern_conv_ops *o = n->k->conv;
    const kern_pool mean = {KERN_POOL_MEAN, 3, 1, 1}, most = {KERN_POOL_MAX, 3, 2, 0};
    o->resize(n->k, n->rgb, IMAGES, 9, 12, SIDE, n->x);
    o->conv(n->k, n->first, n->x, IMAGES, SIDE, SIDE, n->y);
    o->pool(n->k, &mean, n->y, IMAGES, 8, 8, FIRST, n->x, FIRST);
    o->conv(n->k, n->left, n->x, IMAGES, 8, 8, n->z);
    o->conv(n->k, n->right, n->y, IMAGES, 8, 8, (char *)n->z + 8 * n->k->device->act_size);
    o->pool(n->k, &most, n->z, IMAGES, 8, 8, SECOND, n->y, SECOND);
    o->mean_pixels(n->k, n->y, IMAGES, 9, SECOND, n->features);
    o->take_channels(n->k, n->y, IMAGES * 9, SECOND, 7, n->features + IMAGES * SECOND);
}

static void a_recording_computes_the_same(void **unused)
{
    (void)unused;
    enum { FEATURES = IMAGES * SECOND + IMAGES * 9 * 7, RGB = IMAGES * 9 * 12 * 3 };
    kern_queue *k = open_cuda(MAR_DTYPE_BF16);
    float *weight = random_floats(FIRST * SECOND * 9, 0.2f, 7), *bias = random_floats(SECOND, 1, 8);
    float want[FEATURES], got[FEATURES];
    kern_recording *recording = NULL;
    network n = {.k = k,
                 .first = make_conv(k, &first_shape, weight, bias),
                 .left = make_conv(k, &left_shape, weight, bias),
                 .right = make_conv(k, &right_shape, weight, bias),
                 .rgb = to_device(k, NULL, RGB),
                 .x = to_device(k, NULL, IMAGES * SIDE * SIDE * FIRST * 4),
                 .y = to_device(k, NULL, IMAGES * 64 * SECOND * 4),
                 .z = to_device(k, NULL, IMAGES * 64 * SECOND * 4),
                 .features = to_device(k, NULL, sizeof want)};
    for (int turn = 0; turn < 4; turn++) {
        uint8_t rgb[RGB];
        for (int i = 0; i < RGB; i++) rgb[i] = (uint8_t)(i * (31 + turn) % 251);
        k->core->upload(k, n.rgb, rgb, RGB);
        network_body(&n);
        from_device(k, want, n.features, sizeof want);
        k->core->upload(k, n.features, got, sizeof got); /* of the turn before */
        k->core->replay(k, &recording, network_body, &n);
        from_device(k, got, n.features, sizeof got);
        assert_memory_equal(got, want, sizeof want);
        if (turn == 0) assert_true(relative_error(want, bias, SECOND) > 0.1); /* something was computed */
    }
    assert_int_equal(k->recordings, 1);
    k->core->recording_free(k, recording);
    k->conv->free(k->device, n.first), k->conv->free(k->device, n.left), k->conv->free(k->device, n.right);
    k->core->free(k->device, n.rgb), k->core->free(k->device, n.x), k->core->free(k->device, n.y),
        k->core->free(k->device, n.z), k->core->free(k->device, n.features);
    close_queue(k);
    free(weight), free(bias);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutions),
        cmocka_unit_test(relu_is_not_added),
        cmocka_unit_test(small_images_have_no_results),
        cmocka_unit_test(pools_of_all_kinds),
        cmocka_unit_test(pools_keep_a_nan),
        cmocka_unit_test(means),
        cmocka_unit_test(channels_are_taken),
        cmocka_unit_test(resize_is_tensorflows),
        cmocka_unit_test(a_recording_computes_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
