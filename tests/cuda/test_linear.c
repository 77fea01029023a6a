/* Linear layers on the device against the CPU's, by cuBLASLt where rows are aligned and by the simple kernel elsewhere.
 */
#include "tests/cuda/support.h"
#include "tests/cudahost/control.h"

#include <math.h>
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

/* --- what cuBLASLt cannot compute --------------------------------------------------------------------------------- */

static float *product_of_64(int *status, mar_err *err)
{
    enum { SIDE = 64, ROWS = 40 };
    kern_queue *k = open_cuda(MAR_DTYPE_F32);
    float *w = random_floats(SIDE * SIDE, 0.125f, 5), *x = random_floats(ROWS * SIDE, 1, 7);
    float *y = malloc(ROWS * SIDE * sizeof *y);
    const kern_linear_spec spec = {.out = SIDE, .in = SIDE, .weight = w};
    kern_linear *l = NULL;
    assert_non_null(y);
    assert_ok(k->core->linear_create(k, &spec, &l, err), err);
    void *dx = to_device(k, x, ROWS * SIDE * sizeof *x), *dy = to_device(k, NULL, ROWS * SIDE * sizeof *y);
    assert_ok(k->core->linear_plan(k, l, ROWS, err), err);
    k->core->linear(k, l, dx, ROWS, dy);
    *status = kern_check(k, err);
    from_device(k, y, dy, ROWS * SIDE * sizeof *y);
    k->core->linear_free(k->device, l);
    k->core->free(k->device, dx), k->core->free(k->device, dy);
    close_queue(k);
    free(w), free(x);
    return y;
}

/* Without any algorithm the simple kernel computes. If the algorithm cannot be run, the product says so. */
static void without_an_algorithm(void **state)
{
    int status;
    mar_err err = {0};
    (void)state;
    if (!cudahost_algorithms) return;
    float *expected = product_of_64(&status, &err);
    assert_ok(status, &err);
    cudahost_algorithms(CUDAHOST_NO_ALGORITHM);
    float *y = product_of_64(&status, &err);
    assert_ok(status, &err);
    assert_close(y, expected, 40 * 64, 1e-5);
    cudahost_algorithms(CUDAHOST_BROKEN_ALGORITHM);
    free(y), free(expected), free(product_of_64(&status, &err));
    assert_int_equal(status, MAR_EBACKEND);
    assert_non_null(strstr(err.text, "cuBLASLt: a product of 40 x 64 by 64 x 64"));
    cudahost_algorithms(CUDAHOST_ALGORITHM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers),        cmocka_unit_test(gelu_in_bf16),         cmocka_unit_test(refused),
        cmocka_unit_test(in_recordings), cmocka_unit_test(without_an_algorithm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
