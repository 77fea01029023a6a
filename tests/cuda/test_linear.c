/* Linear layers on the device against the CPU's, by cuBLASLt where rows are aligned and by the simple kernel elsewhere.
 */
#include "mar.h"
#include "tests/cuda/support.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static uint64_t seed = 100;

static double tolerance(kern_queue *k, int flags)
{
    if (k->device->act_size == 4 || flags & KERN_IN_F32) return 1e-5;
    return flags & KERN_OUT_F32 ? 3e-3 : 5e-3; /* the weights' rounding, and the result's */
}

typedef struct {
    int rows, in, out;
    kern_activation activation;
    int flags, gap; /* elements between rows of y */
    int no_bias;
    int offset; /* elements from an aligned address to x and to y */
} linear_shape;

static void *device_x(kern_queue *k, const linear_shape *s, const float *x, size_t n)
{
    return s->flags & KERN_IN_F32 ? to_device(k, x, n * sizeof *x) : to_act(k, x, n);
}

/* Runs a layer on y0. Returns y as floats, [rows][out + gap], without the offset. */
static float *run(kern_queue *k, const linear_shape *s, const kern_linear_spec *spec, const float *x, const float *y0)
{
    const size_t x_size = s->flags & KERN_IN_F32 ? sizeof(float) : k->device->act_size;
    const size_t y_size = s->flags & KERN_OUT_F32 ? sizeof(float) : k->device->act_size;
    const size_t nx = (size_t)(s->rows * s->in + s->offset), ny = (size_t)(s->rows * spec->y_stride + s->offset);
    kern_linear *l = NULL;
    mar_err err = {0};
    assert_ok(k->core->linear_create(k, spec, &l, &err), &err);
    if (s->rows % 2) assert_ok(k->core->linear_plan(k, l, s->rows, &err), &err); /* optional */
    char *dx = device_x(k, s, x, nx);
    char *dy = s->flags & KERN_OUT_F32 ? to_device(k, y0, ny * sizeof *y0) : to_act(k, y0, ny);
    k->core->linear(k, l, dx + (size_t)s->offset * x_size, s->rows, dy + (size_t)s->offset * y_size);
    float *got;
    if (s->flags & KERN_OUT_F32) {
        got = malloc((ny + 1) * sizeof *got);
        from_device(k, got, dy, ny * sizeof *got);
    } else {
        got = act_to_floats(k, dy, ny);
    }
    check_kern(k);
    k->core->linear_free(k->device, l);
    k->core->free(k->device, dx);
    k->core->free(k->device, dy);
    return got;
}

static void compare(kern_queue *cpu, kern_queue *k, linear_shape s)
{
    const int stride = s.out + s.gap;
    const size_t nx = (size_t)(s.rows * s.in + s.offset), ny = (size_t)(s.rows * stride + s.offset);
    float *w = random_floats((size_t)(s.out * s.in), 1 / sqrtf((float)s.in), seed++);
    float *b = random_floats((size_t)s.out, 1, seed++);
    float *x = random_floats(nx, 1, seed++), *y0 = random_floats(ny, 1, seed++);
    const kern_linear_spec spec = {.out = s.out,
                                   .in = s.in,
                                   .weight = w,
                                   .bias = s.no_bias ? NULL : b,
                                   .activation = s.activation,
                                   .flags = s.flags,
                                   .y_stride = stride};
    float *want = run(cpu, &s, &spec, x, y0), *got = run(k, &s, &spec, x, y0);
    float *kept = malloc((ny + 1) * sizeof *kept); /* y0 as it was stored */
    void *stored = s.flags & KERN_OUT_F32 ? NULL : to_act(k, y0, ny);
    if (stored) {
        free(kept);
        kept = act_to_floats(k, stored, ny);
        k->core->free(k->device, stored);
    } else {
        memcpy(kept, y0, ny * sizeof *kept);
    }
    for (int i = 0; i < s.offset; i++) assert_float_equal(got[i], kept[i], 0);
    for (int r = 0; r < s.rows; r++) {
        const size_t at = (size_t)(s.offset + r * stride);
        assert_memory_equal(got + at + s.out, kept + at + s.out, (size_t)s.gap * sizeof *got);
        memcpy(got + at + s.out, want + at + s.out, (size_t)s.gap * sizeof *got);
    }
    const double error = relative_error(got + s.offset, want + s.offset, ny - (size_t)s.offset);
    if (s.rows && !(error <= tolerance(k, s.flags)))
        fail_msg("%s: %d x %d to %d, activation %d, flags %d, gap %d, bias %d, offset %d: error %.3g, allowed %.3g",
                 k->device->description, s.rows, s.in, s.out, (int)s.activation, s.flags, s.gap, !s.no_bias, s.offset,
                 error, tolerance(k, s.flags));
    free(w), free(b), free(x), free(y0), free(want), free(got), free(kept);
}

static void layers(void **state)
{
    (void)state;
    const int f32 = KERN_OUT_F32, add = KERN_OUT_F32 | KERN_OUT_ADD, all = KERN_IN_F32 | KERN_OUT_F32;
    const int m = cuda_test_scale();
    const linear_shape shapes[] = {
        {1, 16, 16, KERN_LINEAR, 0, 0, 0, 0},
        {0, 16, 16, KERN_GELU, 0, 0, 0, 0},
        {64 * m, 96, 96, KERN_GELU, 0, 0, 0, 0},
        {33 * m, 128, 64, KERN_GELU, 0, 0, 1, 0},
        {65 * m, 256, 128, KERN_LINEAR, add, 0, 0, 0},
        {64 * m, 64, 72, KERN_LINEAR, add, 0, 1, 0},
        {130 * m, 64, 192, KERN_LINEAR, 0, 0, 0, 0},
        {48 * m, 64, 64, KERN_LINEAR, f32, 0, 0, 0},
        {20, 32, 64, KERN_LINEAR, f32, 64, 0, 0}, /* into wider rows */
        {21, 32, 64, KERN_SILU, 0, 128, 0, 0},
        {9, 16, 24, KERN_SILU, all, 0, 0, 0},
        {8, 48, 40, KERN_GELU, all, 0, 0, 0},
        {40 * m, 16, 64, KERN_LINEAR, all, 0, 0, 0},
        {40, 64, 32, KERN_LINEAR, all | KERN_OUT_ADD, 0, 0, 0},
        {7, 33, 130, KERN_SILU, 0, 0, 0, 0}, /* rows that are not aligned */
        {7, 33, 30, KERN_GELU, 0, 0, 0, 0},
        {50, 40, 3, KERN_LINEAR, f32, 0, 0, 0},
        {17, 31, 18, KERN_LINEAR, add, 5, 1, 0},
        {5, 6, 3, KERN_GELU, all, 2, 0, 0},
        {18, 40, 48, KERN_GELU, 0, 0, 0, 3}, /* addresses that are not */
        {18, 40, 48, KERN_LINEAR, add, 16, 0, 1},
        {18, 40, 48, KERN_SILU, all, 0, 0, 1},
        {12, 40, 24, KERN_GELU_TANH, all, 0, 0, 0},
        {11, 32, 48, KERN_GELU_TANH, 0, 0, 0, 0},
    };
    kern_queue *cpu = open_cpu();
    const mar_dtype dtypes[2] = {MAR_DTYPE_F32, MAR_DTYPE_BF16};
    for (int d = 0; d < 2; d++) {
        kern_queue *k = open_cuda(dtypes[d]);
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) compare(cpu, k, shapes[i]);
        close_queue(k);
    }
    close_queue(cpu);
}

/* The stated error of GELU's tanh form, near 0, where bf16 rounds more finely than that error. */
static void gelu_in_bf16(void **state)
{
    (void)state;
    enum { N = 16 };
    kern_queue *k = open_cuda(MAR_DTYPE_BF16);
    mar_err err = {0};
    float w[N * N] = {0}, x[N * N], *y;
    for (int i = 0; i < N; i++) w[i * N + i] = 1;
    for (int i = 0; i < N * N; i++) x[i] = (float)(i - 128) / 32;
    const kern_linear_spec spec = {.out = N, .in = N, .weight = w, .bias = NULL, .activation = KERN_GELU};
    kern_linear *l = NULL;
    assert_ok(k->core->linear_create(k, &spec, &l, &err), &err);
    void *dx = to_act(k, x, N * N), *dy = to_device(k, NULL, N * N * k->device->act_size);
    k->core->linear(k, l, dx, N, dy);
    y = act_to_floats(k, dy, N * N);
    for (int i = 0; i < N * N; i++) {
        const double exact = x[i] * 0.5 * (1 + erf(x[i] / sqrt(2.0)));
        assert_true(fabs(y[i] - exact) < 5e-4 + fabs(exact) / 256);
    }
    k->core->free(k->device, dx);
    k->core->free(k->device, dy);
    k->core->linear_free(k->device, l);
    close_queue(k);
    free(y);
}

static void refused(void **state)
{
    (void)state;
    kern_queue *k = open_cuda(MAR_DTYPE_BF16);
    mar_err err = {0};
    float w[64] = {0};
    kern_linear *l = NULL;
    const kern_linear_spec bad[3] = {
        {.out = 8, .in = 8, .weight = w, .bias = NULL, .activation = KERN_LINEAR, .flags = KERN_IN_F32},
        {.out = 8, .in = 8, .weight = w, .bias = NULL, .activation = KERN_LINEAR, .flags = KERN_OUT_ADD},
        {.out = 8, .in = 8, .weight = w, .bias = NULL, .activation = KERN_GELU, .flags = KERN_OUT_F32 | KERN_OUT_ADD},
    };
    for (int i = 0; i < 3; i++) {
        assert_int_equal(k->core->linear_create(k, bad + i, &l, &err), MAR_EARG);
        assert_null(l);
        assert_non_null(strstr(err.text, "f32 output"));
    }
    k->core->linear_free(k->device, NULL);
    close_queue(k);
}

/* --- in recordings --------------------------------------------------------------------------------------------- */

enum { WIDTH = 64, LAYER_ROWS = 24 };

typedef struct {
    kern_queue *k;
    kern_linear *up, *down;
    void *x, *h;
    float *y;
} block;

static void block_body(void *arg)
{
    const block *b = arg;
    b->k->core->linear(b->k, b->up, b->x, LAYER_ROWS, b->h);
    b->k->core->linear(b->k, b->down, b->h, LAYER_ROWS, b->y);
}

/* A replay computes what the calls do, bit for bit: plans made at recording, activations, sums. */
static void in_recordings(void **state)
{
    (void)state;
    const mar_dtype dtypes[2] = {MAR_DTYPE_F32, MAR_DTYPE_BF16};
    const kern_activation activations[2] = {KERN_GELU, KERN_SILU};
    for (int i = 0; i < 4; i++) {
        const size_t n = LAYER_ROWS * WIDTH, bytes = n * sizeof(float);
        kern_queue *k = open_cuda(dtypes[i % 2]);
        mar_err err = {0};
        float *w = random_floats(WIDTH * WIDTH, 0.125f, seed++), *bias = random_floats(WIDTH, 1, seed++);
        float *x = random_floats(n, 1, seed++), *want = malloc(bytes), *got = malloc(bytes);
        const kern_linear_spec up = {
            .out = WIDTH, .in = WIDTH, .weight = w, .bias = bias, .activation = activations[i / 2]};
        const kern_linear_spec down = {.out = WIDTH,
                                       .in = WIDTH,
                                       .weight = w,
                                       .bias = bias,
                                       .activation = KERN_LINEAR,
                                       .flags = KERN_OUT_F32 | KERN_OUT_ADD};
        block b = {k, NULL, NULL, NULL, NULL, NULL};
        kern_recording *recording = NULL;
        assert_ok(k->core->linear_create(k, &up, &b.up, &err), &err);
        assert_ok(k->core->linear_create(k, &down, &b.down, &err), &err);
        b.x = to_act(k, x, n);
        b.h = to_device(k, NULL, n * k->device->act_size);
        b.y = to_device(k, NULL, bytes);
        for (int times = 0; times < 4; times++) k->core->replay(k, &recording, block_body, &b);
        from_device(k, got, b.y, bytes);
        k->core->subtract(k, b.y, b.y, n, b.y);
        for (int times = 0; times < 4; times++) block_body(&b);
        from_device(k, want, b.y, bytes);
        assert_memory_equal(got, want, bytes);
        assert_true(fabsf(want[0]) > 0);
        k->core->recording_free(k, recording);
        k->core->linear_free(k->device, b.up);
        k->core->linear_free(k->device, b.down);
        k->core->free(k->device, b.x);
        k->core->free(k->device, b.h);
        k->core->free(k->device, b.y);
        close_queue(k);
        free(w), free(bias), free(x), free(want), free(got);
    }
}

/* --- timed algorithms -------------------------------------------------------------------------------------------- */

/* tests/cudahost/cublasLt.h and cuda_runtime.h; a GPU has nothing like them. */
enum { REVERSED = 1, FAR, BIAS_FIRST };
typedef struct {
    double ms;
    int fails, differs;
} cudahost_algorithm;
__attribute__((weak)) void cudahost_algorithms(const cudahost_algorithm *list, int n);
__attribute__((weak)) int cudahost_last_algorithm(long *products);
__attribute__((weak)) void cudahost_fail_after(long calls);
__attribute__((weak)) long cudahost_objects(void);
__attribute__((weak)) long cudahost_hasty_frees(void);

static long products(void)
{
    long n;
    (void)cudahost_last_algorithm(&n);
    return n;
}

/* A layer of 64 to 64 numbers on a new device that times algorithms, or not. */
typedef struct {
    kern_queue *k;
    kern_linear *l;
    void *x, *y;
    size_t n; /* numbers of y */
} timed_layer;

enum { TIMED = 64, TIMED_ROWS = 40 };

static timed_layer open_layer(mar_dtype dtype, int flags, kern_activation activation, int tune)
{
    timed_layer t = {.k = open_cuda(dtype), .n = (size_t)TIMED_ROWS * TIMED};
    mar_err err = {0};
    float *w = random_floats(TIMED * TIMED, 0.125f, 5), *b = random_floats(TIMED, 1, 6), *x = random_floats(t.n, 1, 7);
    const kern_linear_spec spec = {
        .out = TIMED, .in = TIMED, .weight = w, .bias = b, .activation = activation, .flags = flags};
    t.k->device->tune = tune;
    assert_ok(t.k->core->linear_create(t.k, &spec, &t.l, &err), &err);
    t.x = flags & KERN_IN_F32 ? to_device(t.k, x, t.n * sizeof *x) : to_act(t.k, x, t.n);
    t.y = to_device(t.k, NULL, t.n * sizeof(float));
    free(w), free(b), free(x);
    return t;
}

/* Plans and computes; the bits of y as they are go to `y`. Returns the number of the algorithm. */
static int run_layer(const timed_layer *t, void *y)
{
    mar_err err = {0};
    long count;
    assert_ok(t->k->core->linear_plan(t->k, t->l, TIMED_ROWS, &err), &err);
    t->k->core->linear(t->k, t->l, t->x, TIMED_ROWS, t->y);
    from_device(t->k, y, t->y, t->n * sizeof(float));
    return cudahost_last_algorithm(&count);
}

static void close_layer(timed_layer *t)
{
    t->k->core->linear_free(t->k->device, t->l);
    t->k->core->free(t->k->device, t->x), t->k->core->free(t->k->device, t->y);
    close_queue(t->k);
}

/* The fastest of those that can be run and give the first one's bits; without timing the first. */
static void the_fastest_with_the_same_bits(void **state)
{
    static const struct {
        int expected, timed, n;
        cudahost_algorithm list[9];
    } cases[] = {
        {2, 1, 5, {{3, 0, 0}, {4, 0, 0}, {2, 0, 0}, {0.5, 1, 0}, {1, 0, REVERSED}}},
        {0, 1, 2, {{3, 0, 0}, {3, 0, 0}}},
        {0, 0, 3, {{3, 0, 0}, {1, 0, REVERSED}, {2, 1, 0}}},
        {0, 0, 2, {{3, 0, 0}, {1, 0, FAR}}},
        {0, 0, 2, {{3, 0, 0}, {1, 0, BIAS_FIRST}}},
        {3, 1, 4, {{1, 1, 0}, {3, 0, REVERSED}, {2, 0, 0}, {2, 0, REVERSED}}}, /* the first that can be run counts */
        {1, 0, 2, {{1, 1, 0}, {2, 0, 0}}},
        {7, 1, 9, {{9, 0, 0}, {8, 0, 0}, {7, 0, 0}, {6, 0, 0}, {5, 0, 0}, {4, 0, 0}, {3, 0, 0}, {2, 0, 0}, {1, 0, 0}}},
    };
    static const int flags[] = {0, KERN_OUT_F32, KERN_OUT_F32 | KERN_OUT_ADD, KERN_IN_F32 | KERN_OUT_F32};
    (void)state;
    if (!cudahost_algorithms) return;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int d = 0; d < 2; d++)
            for (int f = 0; f < 4; f++) {
                static float y[TIMED_ROWS * TIMED], untimed[TIMED_ROWS * TIMED];
                const kern_activation activation = f ? KERN_LINEAR : KERN_GELU;
                const mar_dtype dtype = d ? MAR_DTYPE_BF16 : MAR_DTYPE_F32;
                cudahost_algorithms(cases[i].list, cases[i].n);
                timed_layer t = open_layer(dtype, flags[f], activation, 1);
                assert_int_equal(run_layer(&t, y), cases[i].expected);
                assert_int_equal(t.k->device->tuned, cases[i].timed);
                assert_int_equal(t.k->device->tuned_otherwise, cases[i].timed && cases[i].expected != 0);
                assert_int_equal(run_layer(&t, untimed), cases[i].expected); /* and again */
                close_layer(&t);
                if (cases[i].list[0].fails) continue;
                t = open_layer(dtype, flags[f], activation, 0);
                const long before = products();
                assert_int_equal(run_layer(&t, untimed), 0);
                assert_int_equal(products(), before + 1);
                assert_int_equal(t.k->device->tuned, 0);
                assert_memory_equal(y, untimed, sizeof y);
                close_layer(&t);
            }
    cudahost_algorithms(NULL, 0);
}

/* Without any algorithm the simple kernel computes. If none can be run, the product says so. */
static void without_an_algorithm(void **state)
{
    static const cudahost_algorithm bad[2] = {{1, 1, 0}, {1, 1, 0}};
    static float y[TIMED_ROWS * TIMED], expected[TIMED_ROWS * TIMED];
    mar_err err = {0};
    (void)state;
    if (!cudahost_algorithms) return;
    timed_layer t = open_layer(MAR_DTYPE_F32, 0, KERN_LINEAR, 1);
    run_layer(&t, expected);
    close_layer(&t);
    cudahost_algorithms(NULL, -1);
    const long before = products();
    t = open_layer(MAR_DTYPE_F32, 0, KERN_LINEAR, 1);
    run_layer(&t, y);
    assert_int_equal(products(), before);
    assert_close(y, expected, TIMED_ROWS * TIMED, 1e-5);
    close_layer(&t);
    cudahost_algorithms(bad, 2);
    t = open_layer(MAR_DTYPE_F32, 0, KERN_LINEAR, 1);
    assert_ok(t.k->core->linear_plan(t.k, t.l, TIMED_ROWS, &err), &err);
    t.k->core->linear(t.k, t.l, t.x, TIMED_ROWS, t.y);
    assert_int_equal(kern_check(t.k, &err), MAR_EBACKEND);
    assert_non_null(strstr(err.text, "cuBLASLt: a product of 40 x 64 by 64 x 64"));
    assert_int_equal(t.k->device->tuned, 0);
    close_layer(&t);
    cudahost_algorithms(NULL, 0);
}

static void plan_rows(const timed_layer *t, int rows)
{
    mar_err err = {0};
    assert_ok(t->k->core->linear_plan(t->k, t->l, rows, &err), &err);
}

/* A product is computed twice for its bits and timed three times, long ones once; and so many that all take two
 * seconds. */
static void timing_is_bounded(void **state)
{
    static const cudahost_algorithm quick[2] = {{1, 0, 0}, {2, 0, 0}}, slow[2] = {{400, 0, 0}, {300, 0, 0}};
    (void)state;
    if (!cudahost_algorithms) return;
    cudahost_algorithms(quick, 2);
    timed_layer t = open_layer(MAR_DTYPE_BF16, 0, KERN_LINEAR, 1);
    long before = products();
    plan_rows(&t, 16);
    assert_int_equal(products() - before, 2 * 2 + 3 * 2);
    assert_int_equal(t.k->device->tuning_ns, 9000000);
    plan_rows(&t, 16);
    assert_int_equal(products() - before, 2 * 2 + 3 * 2);
    cudahost_algorithms(slow, 2);
    for (int i = 1; i <= 5; i++) { /* 0.7 s each */
        before = products();
        plan_rows(&t, 16 + i);
        assert_int_equal(products() - before, i <= 3 ? 2 * 2 + 2 : 0);
    }
    assert_int_equal(t.k->device->tuned, 4);
    close_layer(&t);
    cudahost_algorithms(NULL, 0);
}

static void layer_body(void *arg)
{
    const timed_layer *t = arg;
    t->k->core->linear(t->k, t->l, t->x, TIMED_ROWS, t->y);
}

typedef struct {
    const timed_layer *layer;
    int rows;
} some_rows;

static void rows_body(void *arg)
{
    const some_rows *r = arg;
    const timed_layer *t = r->layer;
    t->k->core->linear(t->k, t->l, t->x, r->rows, t->y);
}

/* A product that was not planned is timed where the body runs at once, as it does the first time, but not in a
 * recording, which would hold what was timed; nor later. */
static void not_in_a_recording(void **state)
{
    static const cudahost_algorithm list[2] = {{2, 0, 0}, {1, 0, 0}};
    static float y[TIMED_ROWS * TIMED];
    (void)state;
    if (!cudahost_algorithms) return;
    cudahost_algorithms(list, 2);
    timed_layer t = open_layer(MAR_DTYPE_BF16, 0, KERN_LINEAR, 1);
    some_rows r = {&t, 8};
    kern_recording *recording = NULL;
    for (int i = 0; i < 3; i++) {
        t.k->core->replay(t.k, &recording, rows_body, &r);
        r.rows = TIMED_ROWS;
    }
    t.k->core->finish(t.k);
    check_kern(t.k);
    assert_int_equal(t.k->recordings, 1);
    assert_int_equal(t.k->device->tuned, 1);
    assert_int_equal(run_layer(&t, y), 0);
    assert_int_equal(t.k->device->tuned, 1);
    t.k->core->recording_free(t.k, recording);
    close_layer(&t);
    cudahost_algorithms(NULL, 0);
}

typedef struct {
    timed_layer mine, other;
    int planned; /* by the other */
} two_queues;

static void body_beside_plans(void *arg)
{
    two_queues *t = arg;
    layer_body(&t->mine);
    plan_rows(&t->other, 16 + t->planned++);
}

/* Timing waits for its own stream only: another queue may be recording. */
static void timing_disturbs_no_recording(void **state)
{
    static const cudahost_algorithm list[2] = {{2, 0, 0}, {1, 0, 0}};
    static float want[TIMED_ROWS * TIMED], got[TIMED_ROWS * TIMED];
    (void)state;
    if (!cudahost_algorithms) return;
    cudahost_algorithms(list, 2);
    two_queues t = {.mine = open_layer(MAR_DTYPE_F32, 0, KERN_LINEAR, 1)};
    assert_int_equal(run_layer(&t.mine, want), 1);
    t.other = t.mine;
    t.other.k = new_queue(t.mine.k->device);
    kern_recording *recording = NULL;
    for (int i = 0; i < 3; i++) t.mine.k->core->replay(t.mine.k, &recording, body_beside_plans, &t);
    from_device(t.mine.k, got, t.mine.y, sizeof got);
    assert_memory_equal(got, want, sizeof got);
    assert_int_equal(t.mine.k->device->tuned, 1 + t.planned);
    assert_true(t.planned > 1);
    check_kern(t.other.k);
    t.mine.k->core->recording_free(t.mine.k, recording);
    t.other.k->core->leave(t.other.k);
    t.other.k->core->queue_free(t.other.k);
    close_layer(&t.mine);
    cudahost_algorithms(NULL, 0);
}

enum { SHAPES = 6, PLANNERS = 3 };

static void *plan_shapes(void *arg)
{
    const timed_layer *t = arg;
    timed_layer own = *t;
    own.k = new_queue(t->k->device);
    for (int i = 0; i < SHAPES; i++) plan_rows(&own, 8 + i);
    own.k->core->leave(own.k);
    own.k->core->queue_free(own.k);
    return NULL;
}

/* Queues that plan the same shapes at the same time share what one of them has timed. */
static void a_shape_is_timed_once(void **state)
{
    static const cudahost_algorithm list[2] = {{2, 0, 0}, {1, 0, 0}};
    pthread_t threads[PLANNERS];
    (void)state;
    if (!cudahost_algorithms) return;
    cudahost_algorithms(list, 2);
    timed_layer t = open_layer(MAR_DTYPE_BF16, 0, KERN_LINEAR, 1);
    const long before = products();
    for (int i = 0; i < PLANNERS; i++) assert_int_equal(pthread_create(&threads[i], NULL, plan_shapes, &t), 0);
    for (int i = 0; i < PLANNERS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(t.k->device->tuned, SHAPES);
    assert_int_equal(t.k->device->tuned_otherwise, SHAPES);
    assert_int_equal(products() - before, SHAPES * (2 * 2 + 3 * 2));
    close_layer(&t);
    cudahost_algorithms(NULL, 0);
}

/* mar_options.tuning: on by default; the tokens are the same, and the statistics say what it did. */
static void sessions_time_unless_told_not_to(void **state)
{
    static const cudahost_algorithm list[2] = {{2, 0, 0}, {1, 0, 0}};
    static float tokens[2][64 * 8]; /* the demo's */
    (void)state;
    if (!cudahost_algorithms) return;
    cudahost_algorithms(list, 2);
    for (int off = 0; off < 2; off++) {
        const mar_options options = {.backend = MAR_BACKEND_CUDA, .tuning = off ? MAR_TUNING_OFF : MAR_TUNING_ON};
        const mar_params p = params_with("num_iter 1, num_sampling_steps 2, cfg 1");
        mar *m;
        mar_model *model;
        mar_session *s;
        mar_stats stats;
        assert_int_equal(mar_open(&options, &m), MAR_OK);
        assert_library(m, mar_model_load(m, "demo", 0, &model));
        assert_library(m, mar_session_create(model, NULL, &p, 1, &s));
        assert_session(s, mar_session_begin(s, 0, (int[]){3}, 1));
        while (!mar_session_done(s)) assert_session(s, mar_session_step(s));
        assert_session(s, mar_session_tokens(s, tokens[off]));
        mar_session_get_stats(s, &stats);
        assert_true(off ? stats.products_tuned == 0 : stats.products_tuned > 5);
        assert_int_equal(stats.products_otherwise, stats.products_tuned);
        assert_true(fabs(stats.tuning_s - 0.009 * stats.products_tuned) < 1e-6);
        mar_session_free(s);
        mar_model_free(model);
        mar_close(m);
    }
    assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
    cudahost_algorithms(NULL, 0);
}

/* Whatever fails while algorithms are timed, only their heuristic fails a plan: the product is right, nothing is lost,
 * and another queue can time a larger product at once, whose memory replaces that of the first, unused by then. */
static void failures_while_timing(void **state)
{
    static const cudahost_algorithm list[3] = {{3, 0, 0}, {2, 0, 0}, {1, 0, 0}};
    static float y[TIMED_ROWS * TIMED], expected[TIMED_ROWS * TIMED];
    (void)state;
    if (!cudahost_algorithms) return;
    cudahost_algorithms(list, 3);
    timed_layer t = open_layer(MAR_DTYPE_F32, 0, KERN_LINEAR, 1);
    run_layer(&t, expected);
    close_layer(&t);
    for (int n = 0, done = 0; !done; n++) {
        mar_err err = {0};
        const long before = cudahost_objects();
        t = open_layer(MAR_DTYPE_F32, 0, KERN_LINEAR, 1);
        cudahost_fail_after(n);
        const mar_status status = t.k->core->linear_plan(t.k, t.l, TIMED_ROWS, &err);
        cudahost_fail_after(-1);
        assert_int_equal(status, n == 0 ? MAR_EBACKEND : MAR_OK);
        check_kern(t.k);
        done = t.k->device->tuned;
        if (!done) {
            timed_layer other = t;
            const long hasty = cudahost_hasty_frees();
            other.k = new_queue(t.k->device);
            plan_rows(&other, 2 * TIMED_ROWS);
            assert_int_equal(cudahost_hasty_frees(), hasty);
            assert_int_equal(t.k->device->tuned, 1);
            other.k->core->leave(other.k);
            other.k->core->queue_free(other.k);
        }
        if (n > 0) assert_int_equal(run_layer(&t, y), done ? 2 : 0);
        if (n > 0) assert_memory_equal(y, expected, sizeof y);
        close_layer(&t);
        assert_int_equal(cudahost_objects(), before);
        assert_true(n < 200);
    }
    cudahost_algorithms(NULL, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers),
        cmocka_unit_test(gelu_in_bf16),
        cmocka_unit_test(refused),
        cmocka_unit_test(in_recordings),
        cmocka_unit_test(the_fastest_with_the_same_bits),
        cmocka_unit_test(without_an_algorithm),
        cmocka_unit_test(timing_is_bounded),
        cmocka_unit_test(not_in_a_recording),
        cmocka_unit_test(timing_disturbs_no_recording),
        cmocka_unit_test(a_shape_is_timed_once),
        cmocka_unit_test(sessions_time_unless_told_not_to),
        cmocka_unit_test(failures_while_timing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
