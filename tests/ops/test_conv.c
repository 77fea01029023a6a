/* Operations of convolutional networks: convolutions of every kernel, stride and padding, pools, means,
 * resizing, bytes of images. Rows are images here. */
#include "kernels/pixels.h"
#include "tests/ops/ops.h"

#include <float.h>
#include <stdio.h>

static int results(int size, int pad, int window, int stride)
{
    return (size + 2 * pad - window) / stride + 1;
}

static double f32_tolerance(void)
{
    return ops_on_cuda() ? 1e-5 : 2e-6;
}

/* --- PyTorch's and TensorFlow's numbers (tests/golden/make_conv.py) ----------------------------------------------- */

static uint64_t hashed(int seed, size_t i)
{
    uint64_t z = (((uint64_t)seed << 32) + i) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Fills x with hashes of the index, as make_conv.py does. */
static void fill_hashed(const ops_call *c, ops_element type, int seed, size_t n, double *x)
{
    for (size_t i = 0; i < n; i++)
        x[i] = ops_element_of(c, type, (int32_t)(uint32_t)(hashed(seed, i) >> 32) / 2147483648.0);
}

static float *hashed_floats(ops_call *c, int seed, size_t n)
{
    float *x = ops_host(c, n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (float)(int32_t)(uint32_t)(hashed(seed, i) >> 32) / 2147483648.0f;
    return x;
}

/* Reads the numbers of a case. */
static void golden_numbers(ops_call *c, const char *kind, int count, int *n)
{
    char name[32];
    wt_file *f = golden_open("conv");
    snprintf(name, sizeof name, "%s.%d", kind, c->index);
    const float *values = ops_golden(c, f, name, count);
    for (int i = 0; i < count; i++) n[i] = (int)values[i];
    wt_close(f);
}

/* Sets the expected n results. The file has every `step`th of them. Result i is element i / width * stride + i % width
 * of the array. */
static void golden_results(ops_call *c, const char *kind, int bf16, size_t n, size_t width, size_t stride)
{
    enum { SAMPLES = 1009 };
    char name[32];
    wt_file *f = golden_open("conv");
    const size_t step = n <= SAMPLES ? 1 : n / SAMPLES;
    snprintf(name, sizeof name, "%s.%d.%s", kind, c->index, bf16 ? "bf16" : "f32");
    const float *y = ops_golden(c, f, name, (int64_t)((n + step - 1) / step));
    for (size_t i = 0; i < n; i++)
        ops_last(c)->want[i / width * stride + i % width] = i % step ? ops_any : (double)y[i / step];
    wt_close(f);
}

/* --- convolutions ------------------------------------------------------------------------------------------------- */

enum { IMAGES, HEIGHT, WIDTH, IN, OUT, KERNEL_H, KERNEL_W, STRIDE, PAD_H, PAD_W, FLAGS, Y_STRIDE, AT, KIND, PAD_END };
enum { NORMAL, ODD_BIAS, NO_BIAS, GOLDEN, UNALIGNED /* x and y */ }; /* kinds */

#define F32      KERN_OUT_F32
#define ADD      KERN_OUT_F32 | KERN_OUT_ADD
#define UPSAMPLE KERN_OUT_F32 | KERN_UPSAMPLE
#define TRANSPOSED(images, height, width, in, out, size)                                                               \
    images, height, width, in, out, size, size, 2, (size) / 4, (size) / 4, KERN_OUT_F32 | KERN_TRANSPOSED, 0, 0
#define SQUARE(images, height, width, in, out, size, flags)                                                            \
    images, height, width, in, out, size, size, 1, (size) / 2, (size) / 2, flags, 0, 0, NORMAL

static const int convs[][15] = {
    {SQUARE(3, 5, 7, 32, 64, 3, ADD)},
    {SQUARE(1, 1, 1, 8, 3, 3, F32)},
    {SQUARE(1, 5, 7, 32, 64, 3, F32)},
    {SQUARE(1, 6, 8, 64, 32, 3, 0)},
    {SQUARE(1, 9, 4, 5, 6, 3, F32)},  /* a patch is not a multiple of a vector */
    {SQUARE(1, 9, 4, 12, 7, 1, F32)}, /* nor is a row */
    {SQUARE(1, 16, 16, 64, 32, 1, F32)},
    {SQUARE(1, 9, 13, 96, 40, 1, ADD)},
    {SQUARE(1, 33, 3, 16, 48, 3, F32)},
    {SQUARE(1, 2, 40, 24, 17, 3, F32)},
    {SQUARE(1, 40, 33, 32, 3, 3, F32)},  /* the output convolution */
    {SQUARE(1, 12, 13, 8, 512, 3, F32)}, /* more channels than pixels */
    {SQUARE(1, 1, 1, 32, 32, 3, UPSAMPLE)},
    {SQUARE(1, 7, 5, 32, 48, 3, UPSAMPLE)},
    {SQUARE(1, 4, 9, 6, 5, 3, UPSAMPLE)},
    {SQUARE(1, 13, 11, 8, 128, 3, UPSAMPLE)},
    {SQUARE(4, 6, 8, 64, 32, 1, 0)},
    {SQUARE(2, 9, 4, 5, 6, 3, F32)},
    {SQUARE(2, 40, 9, 32, 3, 1, F32)},
    {SQUARE(6, 5, 6, 8, 512, 3, F32)}, /* tiles that begin in the middle of an image */
    {SQUARE(3, 7, 5, 32, 48, 3, UPSAMPLE)},
    {SQUARE(4, 4, 9, 6, 5, 3, UPSAMPLE)},
    {SQUARE(5, 5, 6, 8, 128, 3, UPSAMPLE)},
    {TRANSPOSED(1, 1, 1, 8, 16, 4), NORMAL},
    {TRANSPOSED(3, 5, 7, 32, 48, 4), NORMAL},
    {TRANSPOSED(2, 4, 9, 6, 5, 4), NO_BIAS},
    {TRANSPOSED(5, 5, 6, 8, 128, 4), NORMAL},
    {TRANSPOSED(2, 3, 4, 16, 3, 4), NORMAL}, /* few channels */
    {TRANSPOSED(1, 1, 1, 8, 16, 2), NORMAL},
    {TRANSPOSED(3, 5, 7, 32, 48, 2), NO_BIAS},
    {TRANSPOSED(2, 4, 9, 5, 6, 2), NORMAL}, /* no vectors */
    {TRANSPOSED(5, 5, 6, 8, 128, 2), NORMAL},
    {2, 6, 7, 8, 3, 3, 3, 1, 1, 1, KERN_OUT_F32 | KERN_RELU, 0, 0,
     NORMAL}, /* few channels, but not summed from terms */
    /* Layers of Inception-v3 with smaller images and fewer channels. Some sizes are odd, or channels fill no vector. */
    {2, 21, 19, 3, 32, 3, 3, 2, 0, 0, KERN_RELU, 0, 0, NORMAL},    /* Conv2d_1a */
    {2, 10, 9, 32, 32, 3, 3, 1, 0, 0, KERN_RELU, 0, 0, NORMAL},    /* 2a */
    {3, 9, 11, 32, 64, 3, 3, 1, 1, 1, KERN_RELU, 0, 0, NORMAL},    /* 2b */
    {3, 7, 5, 64, 80, 1, 1, 1, 0, 0, KERN_RELU, 0, 0, NORMAL},     /* 3b */
    {3, 11, 9, 80, 192, 3, 3, 1, 0, 0, KERN_RELU, 0, 0, NORMAL},   /* 4a */
    {2, 7, 6, 48, 64, 5, 5, 1, 2, 2, KERN_RELU, 256, 64, NORMAL},  /* Mixed_5b */
    {2, 7, 6, 64, 32, 1, 1, 1, 0, 0, KERN_RELU, 256, 224, NORMAL}, /* its pool's branch */
    {2, 9, 8, 24, 16, 3, 3, 2, 0, 0, KERN_RELU, 48, 16, NORMAL},   /* 6a, even and odd */
    {3, 9, 7, 16, 24, 1, 7, 1, 0, 3, KERN_RELU, 0, 0, NORMAL},     /* 6b */
    {3, 9, 7, 24, 40, 7, 1, 1, 3, 0, KERN_RELU, 64, 24, NORMAL},   /* the same */
    {2, 3, 2, 16, 16, 7, 1, 1, 3, 0, KERN_RELU, 0, 0, NORMAL},     /* lower than the kernel */
    {4, 5, 5, 32, 16, 1, 3, 1, 0, 1, KERN_RELU, 32, 0, NORMAL},    /* 7b */
    {4, 5, 5, 32, 16, 3, 1, 1, 1, 0, KERN_RELU, 32, 16, NORMAL},   /* beside it */
    {1, 3, 3, 8, 8, 3, 3, 2, 0, 0, KERN_RELU, 0, 0, NORMAL},       /* one pixel of y */
    {2, 5, 8, 5, 6, 1, 7, 1, 0, 3, KERN_RELU, 11, 3, NORMAL},      /* no vectors */
    {2, 6, 5, 12, 7, 1, 1, 2, 0, 0, KERN_RELU, 9, 2, NORMAL},      /* a 1x1 kernel with a stride */
    {2, 8, 6, 16, 24, 1, 1, 2, 0, 0, 0, 0, 0, NORMAL},             /* the same in vectors, without ReLU */
    {2, 6, 7, 8, 16, 5, 3, 2, 4, 1, F32, 20, 4, NORMAL},           /* f32 results */
    {2, 6, 7, 8, 16, 3, 5, 1, 0, 2, ADD, 20, 4, NORMAL},
    {7, 13, 9, 8, 512, 3, 3, 1, 1, 1, KERN_RELU, 520, 8, NORMAL}, /* tiles that begin in the middle of an image */
    {1, 1, 1, 1, 64, 1, 1, 1, 0, 0, KERN_RELU, 0, 0, ODD_BIAS},
    {SQUARE(3, 7, 5, 32, 3, 3, F32)}, /* few channels, of several images */
    {2, 6, 7, 8, 4, 5, 3, 1, 2, 0, F32, 9, 3, NORMAL},
    /* Image encoders: zeros below and on the right only. */
    {2, 8, 6, 32, 40, 3, 3, 2, 0, 0, F32, 0, 0, NORMAL, 1},
    {1, 2, 2, 32, 32, 3, 3, 2, 0, 0, F32, 0, 0, NORMAL, 1}, /* one pixel of y */
    {3, 7, 5, 6, 5, 3, 3, 2, 0, 0, F32, 0, 0, NORMAL, 1},   /* odd sides */
    {2, 5, 6, 5, 8, 3, 3, 2, 1, 0, ADD, 9, 1, NORMAL, 1},   /* zeros on all sides but the left */
    {2, 4, 7, 8, 3, 3, 3, 1, 0, 1, F32, 0, 0, NORMAL, 1},   /* without a stride, few channels */
    /* Channels that fill vectors, at addresses that are no multiples of them. */
    {3, 7, 5, 32, 64, 3, 3, 1, 1, 1, ADD, 0, 0, UNALIGNED},
    {2, 9, 8, 24, 16, 3, 3, 2, 0, 0, KERN_RELU, 48, 16, UNALIGNED},
    {2, 6, 7, 64, 32, 1, 1, 1, 0, 0, 0, 0, 0, UNALIGNED},
    {2, 7, 5, 32, 48, 3, 3, 1, 1, 1, UPSAMPLE, 0, 0, UNALIGNED},
};

static const int large_convs[][15] = {
    {SQUARE(1, 131, 5, 32, 32, 3, ADD)}, /* few pixels in the last tile */
    {SQUARE(1, 150, 33, 32, 3, 3, F32)},    {SQUARE(1, 16, 16, 16, 128, 3, F32)},
    {SQUARE(1, 4, 4, 64, 64, 3, UPSAMPLE)}, {SQUARE(1, 40, 37, 16, 16, 3, UPSAMPLE)},
    {SQUARE(2, 16, 16, 160, 192, 3, ADD)},  {SQUARE(1, 32, 32, 256, 128, 1, F32)},
    {SQUARE(1, 64, 64, 48, 48, 3, F32)},    {SQUARE(1, 16, 16, 96, 96, 3, UPSAMPLE)},
    {SQUARE(1, 3, 70, 64, 64, 3, F32)},     {SQUARE(1, 3, 600, 16, 16, 3, F32)}, /* a row of several chunks */
    {TRANSPOSED(2, 20, 33, 64, 72, 4)},     {TRANSPOSED(2, 40, 33, 64, 72, 2)},
};

typedef struct {
    int rows, columns, stride; /* of y */
    float *weight, *bias;
} conv_sizes;

/* Returns the rows of y of `size` rows of x, or its columns. */
static int results_of(const int *n, int size, int pad, int kernel)
{
    if (n[FLAGS] & KERN_TRANSPOSED) return 2 * size;
    return results((n[FLAGS] & KERN_UPSAMPLE ? 2 : 1) * size + n[PAD_END], pad, kernel, n[STRIDE]);
}

/* Adds x and y. An image's results lie in channels AT.. of each pixel. y ends with 8 unused elements. */
static conv_sizes *conv_arrays(ops_call *c)
{
    const int *n = c->n;
    conv_sizes *s = c->data = ops_host(c, sizeof *s);
    c->rows = n[IMAGES];
    s->rows = results_of(n, n[HEIGHT], n[PAD_H], n[KERNEL_H]);
    s->columns = results_of(n, n[WIDTH], n[PAD_W], n[KERNEL_W]);
    s->stride = n[Y_STRIDE] ? n[Y_STRIDE] : n[OUT];
    const size_t in = (size_t)(n[HEIGHT] * n[WIDTH] * n[IN]), out = (size_t)(s->rows * s->columns * s->stride);
    ops_input(c, OPS_ACT, (size_t)n[IMAGES] * in, in, 1);
    ops_output(c, n[FLAGS] & KERN_OUT_F32 ? OPS_FLOAT : OPS_ACT, (size_t)n[IMAGES] * out + 8, out, f32_tolerance(),
               n[FLAGS] & KERN_OUT_F32 ? 10 * f32_tolerance() : 4e-3);
    if (n[KIND] == UNALIGNED) c->array[0].offset = c->array[1].offset = 1;
    return s;
}

/* Returns one result's sum over the kernel's pixels inside x. weight [out][kernel_h][kernel_w][in]. */
static double conv_sum(const int *n, const double *weight, const double *x, int top, int left, int out)
{
    const int scale = n[FLAGS] & KERN_UPSAMPLE ? 2 : 1;
    double sum = 0;
    for (int u = 0; u < n[KERNEL_H]; u++)
        for (int v = 0; v < n[KERNEL_W]; v++) {
            const int r = top + u, s = left + v;
            if (r < 0 || s < 0 || r >= scale * n[HEIGHT] || s >= scale * n[WIDTH]) continue;
            sum += ops_dot(x + (r / scale * n[WIDTH] + s / scale) * n[IN],
                           weight + ((out * n[KERNEL_H] + u) * n[KERNEL_W] + v) * n[IN], n[IN]);
        }
    return sum;
}

/* Returns result (row, column): each pixel of x adds to the results from 2 * its row - pad on, and columns likewise. */
static double transposed_sum(const int *n, const double *weight, const double *x, int row, int column, int out)
{
    double sum = 0;
    for (int r = 0; r < n[HEIGHT]; r++)
        for (int s = 0; s < n[WIDTH]; s++) {
            const int u = row - (2 * r - n[PAD_H]), v = column - (2 * s - n[PAD_W]);
            if (u < 0 || v < 0 || u >= n[KERNEL_H] || v >= n[KERNEL_W]) continue;
            sum += ops_dot(x + (r * n[WIDTH] + s) * n[IN], weight + ((out * n[KERNEL_H] + u) * n[KERNEL_W] + v) * n[IN],
                           n[IN]);
        }
    return sum;
}

/* Weights are multiples of 1/8. They and upsampling's sums of four weights are exact in bf16. */
static void build_conv(ops_call *c)
{
    const int *n = c->n, window = n[KERNEL_H] * n[KERNEL_W];
    conv_sizes *s = conv_arrays(c);
    s->weight = ops_weights(c, (size_t)(n[OUT] * n[IN] * window), 1), s->bias = ops_weights(c, (size_t)n[OUT], 1);
    for (int i = 0; i < n[OUT] * n[IN] * window; i++) s->weight[i] = fminf(fmaxf(rintf(s->weight[i] * 8) / 8, -2), 2);
    if (n[KIND] == ODD_BIAS) {
        const float odd[] = {NAN, INFINITY, -INFINITY, -20};
        memcpy(s->bias + 3, odd, sizeof odd);
    }
    double *weight = ops_host(c, (size_t)(n[OUT] * n[IN] * window) * sizeof *weight);
    for (int i = 0; i < n[OUT] * n[IN] * window; i++) {
        const int inner = n[FLAGS] & KERN_TRANSPOSED ? n[OUT] : n[IN];
        const int a = i / (inner * window), b = i / window % inner;
        const int o = n[FLAGS] & KERN_TRANSPOSED ? b : a, in = n[FLAGS] & KERN_TRANSPOSED ? a : b;
        weight[(o * window + i % window) * n[IN] + in] = (double)s->weight[i];
    }
    const ops_array *x = &c->array[0], *y = &c->array[1];
    const int image = s->rows * s->columns * n[OUT];
    for (int i = 0; i < n[IMAGES] * image; i++) {
        const int o = i % n[OUT], pixel = i / n[OUT], at = pixel * s->stride + n[AT] + o;
        const int row = pixel / s->columns % s->rows, column = pixel % s->columns;
        const double *from = x->x + (size_t)(i / image) * x->row;
        const double sum = (n[KIND] == NO_BIAS ? 0 : (double)s->bias[o]) +
                           (n[FLAGS] & KERN_TRANSPOSED ? transposed_sum(n, weight, from, row, column, o)
                                                       : conv_sum(n, weight, from, row * n[STRIDE] - n[PAD_H],
                                                                  column * n[STRIDE] - n[PAD_W], o));
        if (n[FLAGS] & KERN_RELU && isnan(sum) && ops_on_cuda()) {
            y->want[at] = ops_any; /* a GPU's ReLU may turn NaN into 0 */
            continue;
        }
        y->want[at] = n[FLAGS] & KERN_OUT_ADD ? sum + y->x[at] : n[FLAGS] & KERN_RELU && sum < 0 ? 0 : sum;
    }
}

enum { GOLDEN_CONVS = 31, GOLDEN_POOLS = 9, GOLDEN_MEANS = 3, GOLDEN_RESIZES = 8 };

static void build_golden_conv(ops_call *c)
{
    int g[12];
    golden_numbers(c, "conv", 12, g);
    const int numbers[] = {g[9], g[7], g[8], g[1], g[0], g[2], g[3], g[4], g[5], g[6], g[10], g[11], 0, GOLDEN};
    memcpy(c->n, numbers, sizeof numbers);
    const int seed = 100 + 4 * c->index;
    conv_sizes *s = conv_arrays(c);
    const size_t out = (size_t)c->n[OUT], n = (size_t)(c->n[IMAGES] * s->rows * s->columns) * out;
    const size_t weights = out * (size_t)(c->n[IN] * c->n[KERNEL_H] * c->n[KERNEL_W]);
    s->weight = hashed_floats(c, seed + 1, weights), s->bias = hashed_floats(c, seed + 2, out);
    fill_hashed(c, OPS_ACT, seed, c->array[0].n, c->array[0].x);
    double *term = ops_host(c, n * sizeof *term);
    fill_hashed(c, c->array[1].type, seed + 3, n, term);
    for (size_t i = 0; i < n; i++) c->array[1].x[i / out * (size_t)s->stride + i % out] = term[i];
    golden_results(c, "conv", c->bf16, n, out, (size_t)s->stride);
    c->array[1].allowed = c->bf16 && !(c->n[FLAGS] & KERN_OUT_F32) ? 2.5e-3 : f32_tolerance();
}

/* Plans every other convolution for another size first. Both plans hold. */
static void *prepare_conv(kern_queue *k, const ops_call *c)
{
    const conv_sizes *s = c->data;
    const int *n = c->n;
    const kern_conv_spec spec = {.out = n[OUT],
                                 .in = n[IN],
                                 .kernel_h = n[KERNEL_H],
                                 .kernel_w = n[KERNEL_W],
                                 .stride = n[STRIDE],
                                 .pad_h = n[PAD_H],
                                 .pad_w = n[PAD_W],
                                 .pad_end = n[PAD_END],
                                 .weight = s->weight,
                                 .bias = n[KIND] == NO_BIAS ? NULL : s->bias,
                                 .flags = n[FLAGS],
                                 .y_stride = n[Y_STRIDE]};
    kern_conv *conv = NULL;
    mar_err err = {0};
    assert_ok(k->conv->create(k, &spec, &conv, &err), &err);
    if (c->index % 2) assert_ok(k->conv->plan(k, conv, 1, 40, 20, &err), &err);
    for (int images = 1; images <= n[IMAGES]; images++)
        assert_ok(k->conv->plan(k, conv, images, n[HEIGHT], n[WIDTH], &err), &err);
    return conv;
}

static void release_conv(kern_device *d, void *object)
{
    d->conv->free(d, object);
    d->conv->free(d, NULL);
}

static void run_conv(kern_queue *k, const ops_call *c, void *const *a)
{
    const size_t size = c->n[FLAGS] & KERN_OUT_F32 ? sizeof(float) : k->device->act_size;
    k->conv->conv(k, c->object, a[0], c->rows, c->n[HEIGHT], c->n[WIDTH], (char *)a[1] + (size_t)c->n[AT] * size);
}

/* --- pools -------------------------------------------------------------------------------------------------------- */

enum { P_KIND, WINDOW, P_STRIDE, PAD, P_IMAGES, P_HEIGHT, P_WIDTH, P_CHANNELS, P_Y_STRIDE, P_AT, P_NAN };

static const int pools[][11] = {
    {KERN_POOL_MAX, 3, 2, 0, 2, 15, 13, 64, 64, 0, 0}, /* after 2b and 4a */
    {KERN_POOL_MAX, 3, 2, 0, 2, 9, 8, 24, 64, 40, 0},  /* 6a, beside others */
    {KERN_POOL_MAX, 3, 1, 1, 2, 8, 8, 40, 40, 0, 0},   /* 7c */
    {KERN_POOL_MEAN, 3, 1, 1, 3, 7, 5, 48, 48, 0, 0},  /* 5b to 7b */
    {KERN_POOL_MEAN, 3, 1, 1, 1, 1, 1, 8, 8, 0, 0},    /* one pixel of nine */
    {KERN_POOL_MEAN, 3, 2, 2, 2, 6, 7, 16, 32, 8, 0},  /* corners of one pixel */
    {KERN_POOL_MEAN, 3, 1, 1, 2, 6, 5, 7, 7, 0, 0},    /* no vectors */
    {KERN_POOL_MAX, 2, 2, 0, 3, 5, 4, 5, 12, 3, 0},    /* no vectors; a row is left over */
    {KERN_POOL_MAX, 5, 3, 4, 2, 11, 9, 16, 20, 2, 0},  /* no vectors: y is not aligned */
    {KERN_POOL_MAX, 3, 1, 1, 1, 9, 9, 8, 8, 0, 1},     /* NaN and infinity show exactly in their windows */
    {KERN_POOL_MEAN, 3, 1, 1, 1, 9, 9, 8, 8, 0, 1},    {KERN_POOL_MAX, 3, 1, 0, 2, 3, 3, 70, 70, 0, 1},
    {KERN_POOL_MEAN, 3, 1, 0, 2, 3, 3, 70, 70, 0, 1},
};

static void pool_arrays(ops_call *c, size_t *rows, size_t *columns)
{
    const int *n = c->n;
    const size_t image = (size_t)(n[P_HEIGHT] * n[P_WIDTH] * n[P_CHANNELS]);
    *rows = (size_t)results(n[P_HEIGHT], n[PAD], n[WINDOW], n[P_STRIDE]);
    *columns = (size_t)results(n[P_WIDTH], n[PAD], n[WINDOW], n[P_STRIDE]);
    const size_t result = *rows * *columns * (size_t)n[P_Y_STRIDE];
    c->rows = n[P_IMAGES];
    ops_input(c, OPS_ACT, (size_t)n[P_IMAGES] * image, image, 1);
    ops_output(c, OPS_ACT, (size_t)n[P_IMAGES] * result + 8, result, 1e-6, 4e-3);
    if (n[P_KIND] == KERN_POOL_MAX) ops_last(c)->allowed = 0;
}

static void build_pool(ops_call *c)
{
    size_t rows, columns;
    pool_arrays(c, &rows, &columns);
    const int *n = c->n, channels = n[P_CHANNELS], image = (int)(rows * columns) * channels;
    double *x = c->array[0].x, *y = c->array[1].want;
    if (n[P_NAN]) {
        double *pixel = x + (n[P_HEIGHT] / 2 * n[P_WIDTH] + n[P_WIDTH] / 2) * channels;
        pixel[3] = pixel[channels - 2] = NAN, pixel[5] = -INFINITY;
    }
    for (int i = 0; i < n[P_IMAGES] * image; i++) {
        const int channel = i % channels, pixel = i / channels;
        const int top = pixel / (int)columns % (int)rows * n[P_STRIDE] - n[PAD];
        const int left = pixel % (int)columns * n[P_STRIDE] - n[PAD];
        double sum = 0, most = -INFINITY;
        int count = 0;
        for (int r = top; r < top + n[WINDOW]; r++)
            for (int s = left; s < left + n[WINDOW]; s++) {
                if (r < 0 || s < 0 || r >= n[P_HEIGHT] || s >= n[P_WIDTH]) continue;
                const double v = x[((i / image * n[P_HEIGHT] + r) * n[P_WIDTH] + s) * channels + channel];
                sum += v, count++;
                most = isnan(v) || v > most ? v : most;
            }
        y[pixel * n[P_Y_STRIDE] + n[P_AT] + channel] = n[P_KIND] == KERN_POOL_MEAN ? sum / count
                                                       : isnan(sum) && n[P_NAN]    ? NAN
                                                                                   : most;
    }
}

static void build_golden_pool(ops_call *c)
{
    int g[9];
    size_t rows, columns;
    golden_numbers(c, "pool", 9, g);
    const int numbers[] = {g[0] ? KERN_POOL_MEAN : KERN_POOL_MAX, g[1], g[2], g[3], g[4], g[5], g[6], g[7], g[8], 0, 0};
    memcpy(c->n, numbers, sizeof numbers);
    pool_arrays(c, &rows, &columns);
    fill_hashed(c, OPS_ACT, 500 + c->index, c->array[0].n, c->array[0].x);
    golden_results(c, "pool", c->bf16, (size_t)(g[4] * g[7]) * rows * columns, (size_t)g[7], (size_t)g[8]);
    if (g[0]) ops_last(c)->allowed = c->bf16 ? 2.5e-3 : 2e-7;
}

static void run_pool(kern_queue *k, const ops_call *c, void *const *a)
{
    const int *n = c->n;
    const kern_pool pool = {(kern_pool_kind)n[P_KIND], n[WINDOW], n[P_STRIDE], n[PAD]};
    k->conv->pool(k, &pool, a[0], c->rows, n[P_HEIGHT], n[P_WIDTH], n[P_CHANNELS],
                  (char *)a[1] + (size_t)n[P_AT] * k->device->act_size, n[P_Y_STRIDE]);
}

/* --- means, channels ---------------------------------------------------------------------------------------------- */

/* images, pixels, channels */
static const int means[][3] = {{3, 64, 264}, {1, 1, 8}, {2, 25, 7}, {2, 5, 1024}, {5, 63, 40}, {1, 1000, 16}};

static void mean_arrays(ops_call *c)
{
    const size_t channels = (size_t)c->n[2], images = (size_t)c->n[0];
    c->rows = c->n[0];
    ops_input(c, OPS_ACT, images * (size_t)c->n[1] * channels, (size_t)c->n[1] * channels, 1);
    ops_output(c, OPS_FLOAT, images * channels, channels, 1e-6, 1e-6);
}

static void build_mean(ops_call *c)
{
    mean_arrays(c);
    const int pixels = c->n[1], channels = c->n[2];
    for (int i = 0; i < c->n[0] * channels; i++) {
        double sum = 0;
        for (int p = 0; p < pixels; p++) sum += c->array[0].x[(i / channels * pixels + p) * channels + i % channels];
        c->array[1].want[i] = sum / pixels;
    }
}

static void build_golden_mean(ops_call *c)
{
    golden_numbers(c, "mean", 3, c->n);
    mean_arrays(c);
    fill_hashed(c, OPS_ACT, 600 + c->index, c->array[0].n, c->array[0].x);
    golden_results(c, "mean", c->bf16, c->array[1].n, c->array[1].n, 0);
    ops_last(c)->allowed = ops_on_cuda() ? 1e-6 : 1e-7;
}

static void run_mean(kern_queue *k, const ops_call *c, void *const *a)
{
    k->conv->mean_pixels(k, a[0], c->rows, c->n[1], c->n[2], a[1]);
}

/* rows, stride, channels */
static const int taken[][3] = {{289, 16, 7}, {1, 1, 1}, {300, 7, 7}, {300, 11, 7}, {3, 700, 600}, {1000, 12, 1}};

static void build_take(ops_call *c)
{
    const size_t rows = (size_t)c->n[0], stride = (size_t)c->n[1], channels = (size_t)c->n[2];
    c->rows = c->n[0];
    const double *x = ops_input(c, OPS_ACT, rows * stride, stride, 1);
    double *y = ops_output(c, OPS_FLOAT, rows * channels, channels, 0, 0);
    for (size_t i = 0; i < rows * channels; i++) y[i] = x[i / channels * stride + i % channels];
}

static void run_take(kern_queue *k, const ops_call *c, void *const *a)
{
    k->conv->take_channels(k, a[0], c->rows, c->n[1], c->n[2], a[1]);
}

/* --- resizing ----------------------------------------------------------------------------------------------------- */

/* images, height, width, side */
static const int resizes[][4] = {{2, 32, 32, 75}, {1, 1, 1, 5},  {3, 64, 64, 64},
                                 {1, 90, 40, 37}, {2, 5, 7, 38}, {1, 256, 200, 299}};

static void resize_arrays(ops_call *c)
{
    const size_t images = (size_t)c->n[0], in = (size_t)(c->n[1] * c->n[2] * 3), side = (size_t)c->n[3];
    c->rows = c->n[0];
    ops_input(c, OPS_BYTE, images * in, in, 1);
    ops_output(c, OPS_ACT, images * side * side * 3, side * side * 3, 1, 1);
    ops_last(c)->each = c->bf16 ? 1.0 / 512 + 1e-6 : 1e-6; /* half a unit in the last place of 1 */
}

static void build_resize(ops_call *c)
{
    resize_arrays(c);
    const int height = c->n[1], width = c->n[2], side = c->n[3];
    for (int i = 0; i < (int)c->array[1].n; i++) {
        const int pixel = i / 3 % (side * side), image = i / 3 / (side * side);
        const double *rgb = c->array[0].x + image * height * width * 3 + i % 3;
        /* TensorFlow's position: a product of floats */
        const float row = (float)(pixel / side) * ((float)height / (float)side);
        const float column = (float)(pixel % side) * ((float)width / (float)side);
        const int top = (int)row, left = (int)column;
        const int bottom = top + 1 < height ? top + 1 : top, right = left + 1 < width ? left + 1 : left;
        const double v = (double)row - top, h = (double)column - left;
        const double above = (1 - h) * rgb[(top * width + left) * 3] + h * rgb[(top * width + right) * 3];
        const double below = (1 - h) * rgb[(bottom * width + left) * 3] + h * rgb[(bottom * width + right) * 3];
        c->array[1].want[i] = ((1 - v) * above + v * below - 128) / 128;
    }
    if (height == side && width == side && c->bf16) ops_last(c)->each = 0, ops_last(c)->allowed = 0; /* exact */
}

static void build_golden_resize(ops_call *c)
{
    golden_numbers(c, "resize", 4, c->n);
    resize_arrays(c);
    for (size_t i = 0; i < c->array[0].n; i++) c->array[0].x[i] = (double)(hashed(700 + c->index, i) >> 56);
    golden_results(c, "resize", 0, c->array[1].n, c->array[1].n, 0);
    if (!c->bf16) ops_last(c)->each = 0, ops_last(c)->allowed = 3e-7;
}

static void run_resize(kern_queue *k, const ops_call *c, void *const *a)
{
    k->conv->resize(k, a[0], c->rows, c->n[1], c->n[2], c->n[3], a[1]);
}

/* --- bytes -------------------------------------------------------------------------------------------------------- */

/* images, values of each, rounding, contents */
enum { PICTURES, LISTED, TIES };
static const int bytes[][4] = {
    {5, 48, KERN_BYTES_NEAREST, PICTURES}, {5, 1, KERN_BYTES_DOWN, PICTURES},
    {5, 1000, KERN_BYTES_DOWN, PICTURES},  {5, 4096, KERN_BYTES_NEAREST, PICTURES},
    {5, 4097, KERN_BYTES_DOWN, PICTURES},  {5, 9001, KERN_BYTES_NEAREST, PICTURES},
    {1, 18, KERN_BYTES_NEAREST, LISTED},   {1, 18, KERN_BYTES_DOWN, LISTED},
    {18, 1, KERN_BYTES_NEAREST, LISTED},   {1, 255, KERN_BYTES_NEAREST, TIES},
    {5, 9001, KERN_BYTES_CUT, PICTURES},
};

/* Expected bytes: numpy's round(clip(...)) and torch's. Values 12 to 14, counted from 0, lie at or next to halves. */
static const float listed[18] = {-1,
                                 1,
                                 0,
                                 -2,
                                 2,
                                 1e30f,
                                 -1e30f,
                                 INFINITY,
                                 -INFINITY,
                                 NAN,
                                 -NAN,
                                 FLT_MAX,
                                 0x1.01008p-7f,
                                 0x1.010084p-7f,
                                 0x1.01007ep-7f,
                                 0.999f,
                                 0.5f,
                                 -0.996f};
static const uint8_t listed_nearest[18] = {0, 255, 128, 0, 255, 255, 0, 255, 0, 0, 0, 255, 128, 128, 128, 255, 191, 1};
static const uint8_t listed_down[18] = {0, 255, 128, 0, 255, 255, 0, 255, 0, 0, 0, 255, 129, 129, 128, 255, 191, 1};

static double byte_of(float x, int how)
{
    const float scaled = (x + 1.0f) / 2.0f * 255.0f;
    const float y = how == KERN_BYTES_DOWN  ? floorf((float)(127.5 * (double)x) + 128.0f)
                    : how == KERN_BYTES_CUT ? floorf(scaled)
                                            : rintf(scaled);
    return isnan(y) ? 0 : fmin(fmax((double)y, 0), 255);
}

static void build_bytes(ops_call *c)
{
    static const float wrong[] = {NAN, -NAN, INFINITY, -INFINITY};
    const int images = c->rows = c->n[0], values = c->n[1], how = c->n[2], n = images * values;
    double *x = ops_input(c, OPS_FLOAT, (size_t)n, (size_t)values, 0.7);
    for (int i = 0; i < n; i++) {
        const int image = i / values;
        const float half = ((float)(i % 255) + 0.5f) / 255.0f * 2.0f - 1.0f; /* between two bytes */
        if (c->n[3] == LISTED) x[i] = (double)listed[i];
        if (c->n[3] == TIES) x[i] = (double)half;
        if (c->n[3] != PICTURES) continue;
        if (i < 255) x[i] = (double)half;
        if (i >= 255 && i < 765) x[i] = (double)nextafterf(half, i < 510 ? -2 : 2);
        if (image == 1) x[i] = i % 2 ? 1 : -1.5;                                              /* a blank image */
        if (image == 2 && i % values == values * 2 / 3) x[i] = (double)wrong[c->index % 4];   /* not finite */
        if (image == 4) x[i] = i % values + 1 < values ? 2 : (double)wrong[3 - c->index % 4]; /* both kinds */
    }
    double *y = ops_output(c, OPS_BYTE, (size_t)n, (size_t)values, 0, 0);
    for (int i = 0; i < n; i++) y[i] = byte_of((float)x[i], how);
    for (int i = 0; i < n && c->n[3] == LISTED; i++) y[i] = how == KERN_BYTES_DOWN ? listed_down[i] : listed_nearest[i];
    for (int i = 0, ties = 0; i < n && c->n[3] == TIES; i++) { /* exact f32 ties round to the even byte */
        if (((float)x[i] + 1.0f) / 2.0f * 255.0f != (float)i + 0.5f) continue;
        y[i] = i % 2 ? i + 1 : i;
        assert_true(++ties > 50 || i < 250);
    }
    double *found = ops_output(c, OPS_INT, (size_t)images, 1, 0, 0);
    for (int i = 0; i < images; i++) {
        int what = 0; /* -1 and 1 do not count as within */
        for (int j = i * values; j < (i + 1) * values; j++)
            what |= (fabs(x[j]) < 1 ? KERN_PIXELS_WITHIN : 0) | (isfinite(x[j]) ? 0 : KERN_PIXELS_NOT_FINITE);
        found[i] = what;
    }
}

static void run_bytes(kern_queue *k, const ops_call *c, void *const *a)
{
    k->conv->to_bytes(k, a[0], c->rows, c->n[1], (kern_bytes)c->n[2], a[1], a[2]);
}

#define NO_CASES(count) NULL, count, 0

static const ops_entry table[] = {
    {"conv", "images height width in out kernel_h kernel_w stride pad_h pad_w flags y_stride at kind pad_end",
     OPS_CASES(convs), OPS_ALONE_ON_CPU, build_conv, run_conv, prepare_conv, release_conv, NULL},
    {"conv, large", "images height width in out kernel_h kernel_w stride pad_h pad_w flags", OPS_CASES(large_convs),
     OPS_ALONE_ON_CPU | OPS_LARGE, build_conv, run_conv, prepare_conv, release_conv, NULL},
    {"conv, PyTorch", "", NO_CASES(GOLDEN_CONVS), OPS_ALONE_ON_CPU | OPS_LARGE, build_golden_conv, run_conv,
     prepare_conv, release_conv, NULL},
    {"pool", "kind window stride pad images height width channels y_stride at nan", OPS_CASES(pools), OPS_ALONE,
     build_pool, run_pool, NULL, NULL, NULL},
    {"pool, PyTorch", "", NO_CASES(GOLDEN_POOLS), OPS_ALONE | OPS_LONG, build_golden_pool, run_pool, NULL, NULL, NULL},
    {"mean_pixels", "images pixels channels", OPS_CASES(means), OPS_ALONE, build_mean, run_mean, NULL, NULL, NULL},
    {"mean_pixels, PyTorch", "", NO_CASES(GOLDEN_MEANS), OPS_ALONE | OPS_LONG, build_golden_mean, run_mean, NULL, NULL,
     NULL},
    {"take_channels", "rows stride channels", OPS_CASES(taken), OPS_ALONE, build_take, run_take, NULL, NULL, NULL},
    {"resize", "images height width side", OPS_CASES(resizes), OPS_ALONE, build_resize, run_resize, NULL, NULL, NULL},
    {"resize, TensorFlow", "", NO_CASES(GOLDEN_RESIZES), OPS_ALONE | OPS_LONG, build_golden_resize, run_resize, NULL,
     NULL, NULL},
    {"to_bytes", "images values how what", OPS_CASES(bytes), OPS_ALONE, build_bytes, run_bytes, NULL, NULL, NULL},
};

/* --- unplanned and impossible calls ------------------------------------------------------------------------------- */

static void expect_unplanned(kern_queue *k, const char *size)
{
    mar_err err = {0};
    assert_int_equal(kern_check(k, &err), MAR_EBACKEND);
    if (!strstr(err.text, size)) fail_msg("\"%s\" does not name %s", err.text, size);
}

static void unplanned_shapes_fail(void **state)
{
    (void)state;
    static const float weight[9 * 64], bias[8];
    kern_queue *k = ops_open(MAR_DTYPE_F32);
    mar_err err = {0};
    kern_conv *conv = NULL;
    kern_conv_spec spec = {8, 8, 3, 3, 1, 1, 1, 0, weight, bias, KERN_OUT_F32, 0};
    float *x = to_device(k, NULL, 20 * 8 * sizeof *x);
    assert_ok(k->conv->create(k, &spec, &conv, &err), &err);
    k->conv->free(k->device, conv); /* never planned */
    assert_ok(k->conv->create(k, &spec, &conv, &err), &err);
    k->conv->conv(k, conv, x, 1, 4, 5, x);
    expect_unplanned(k, "4x5");
    k->core->recover(k);
    if (!ops_on_cuda()) { /* a GPU has one plan for all queues, and no plan for group norms */
        const kern_norm norm = {.groups = 32, .eps = 1e-6f, .weight = x, .bias = x};
        k->conv->group_norm(k, &norm, x, 1, 1, 64, x);
        expect_unplanned(k, "");
        k->core->recover(k);
        assert_ok(k->conv->plan(k, conv, 1, 4, 4, &err), &err);
        kern_queue *other = new_queue(k->device);
        other->conv->conv(other, conv, x, 1, 4, 4, x);
        expect_unplanned(other, "4x4");
        free_queue(other);
    }
    k->conv->free(k->device, conv);
    k->core->free(k->device, x);
    conv = NULL;
    spec.flags = KERN_OUT_F32 | KERN_OUT_ADD | KERN_RELU;
    if (ops_on_cuda()) assert_int_equal(k->conv->create(k, &spec, &conv, &err), MAR_EARG);
    assert_null(conv);
    close_queue(k);
}

/* Checks that images smaller than the kernel have no results on a GPU. */
static void small_images_have_no_results(void **state)
{
    (void)state;
    if (!ops_on_cuda()) skip();
    static const float weight[9 * 64], bias[8];
    const kern_conv_spec spec = {8, 8, 3, 3, 1, 0, 0, 0, weight, bias, KERN_RELU, 0};
    const kern_pool pool = {KERN_POOL_MAX, 3, 2, 0};
    kern_queue *k = open_cuda(MAR_DTYPE_F32);
    mar_err err = {0};
    kern_conv *conv = NULL;
    float y[8] = {77, 77, 77, 77, 77, 77, 77, 77}, *kept = to_device(k, y, sizeof y);
    void *x = to_device(k, NULL, 2 * 2 * 9 * 8 * sizeof *y);
    assert_ok(k->conv->create(k, &spec, &conv, &err), &err);
    assert_ok(k->conv->plan(k, conv, 2, 2, 9, &err), &err);
    k->conv->conv(k, conv, x, 2, 2, 9, kept);
    k->conv->pool(k, &pool, x, 2, 2, 9, 8, kept, 8);
    from_device(k, y, kept, sizeof y);
    for (int i = 0; i < 8; i++) assert_true(y[i] == 77);
    k->conv->free(k->device, conv);
    k->core->free(k->device, x), k->core->free(k->device, kept);
    close_queue(k);
}

int main(void)
{
    const struct CMUnitTest others[] = {cmocka_unit_test(unplanned_shapes_fail),
                                        cmocka_unit_test(small_images_have_no_results)};
    return ops_main_and(table, others);
}
