/* int8 weights, and the smoothing of layers behind a norm. tests/ops/test_linear.c tests the products. */
#include "kernels/int8.h"
#include "kernels/ops.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Returns floats of very different magnitudes, like activations. */
static float *random_floats(uint32_t seed, size_t n)
{
    float *x = malloc((n + 1) * sizeof *x);
    for (size_t i = 0; i < n; i++) {
        uint32_t w[4];
        kern_random_words(21, KERN_NOISE_INIT, seed, (uint32_t)(i >> 16), 0, (uint32_t)i & 0xffff, w);
        x[i] = ((float)w[0] / 2147483648.0f - 1) * (w[1] % 64 ? 1.0f : 20.0f);
    }
    return x;
}

/* Checks that weights round-trip within half a step of their channel's scale, and int8 weights exactly. */
TEST_CASE(weights_round_trip)
{
    enum { OUT = 40, IN = 333 };
    float *w = random_floats(7, OUT * IN), *back = malloc(OUT * IN * sizeof *back), scale[OUT], again[OUT];
    int8_t *q = malloc(OUT * IN), *second = malloc(OUT * IN);
    kern_int8_quantise(w, OUT, IN, q, scale);
    kern_int8_restore(q, scale, OUT, IN, back);
    for (int i = 0; i < OUT * IN; i++) {
        assert_true(fabsf(back[i] - w[i]) <= 0.5001f * scale[i / IN]);
        assert_true(q[i] >= -127);
    }
    kern_int8_quantise(back, OUT, IN, second, again);
    assert_memory_equal(q, second, OUT * IN);
    free(w), free(back), free(q), free(second);
}

/* --- smoothing ---------------------------------------------------------------------------------------------------- */

/* A layer behind a norm with f32 results, and its operands. */
typedef struct {
    int rows, in, out, flags;
    float *w, *bias, *x;
} product;

static float *run(kern_queue *k, const product *p)
{
    const kern_linear_spec spec = {.out = p->out, .in = p->in, .weight = p->w, .bias = p->bias, .flags = p->flags};
    const size_t n = (size_t)p->rows * (size_t)p->in;
    mar_err err = {0};
    kern_linear *l;
    float *y = malloc((size_t)(p->rows * p->out) * sizeof *y);
    void *x = backend_memory(k, n * k->device->act_size);
    assert_non_null(y);
    assert_ok(k->core->linear_create(k, &spec, &l, &err), &err);
    assert_ok(k->core->linear_plan(k, l, p->rows, &err), &err);
    k->core->to_act(k, p->x, n, x);
    k->core->linear(k, l, x, p->rows, y);
    assert_ok(kern_check(k, &err), &err);
    k->core->linear_free(k->device, l);
    k->core->free(k->device, x);
    return y;
}

static void free_product(product *p)
{
    free(p->w), free(p->bias), free(p->x);
}

enum { OUTLIERS = 8 };

/* Makes a layer behind a norm: p.x = gain * n. Its first OUTLIERS channels have gains multiplied by `large` and columns
 * divided by `compensated`. */
static product behind_a_norm(float large, float compensated, float *gain)
{
    product p = {.rows = 32, .in = 320, .out = 96, .flags = KERN_OUT_F32 | KERN_LOW};
    p.w = random_floats(31, (size_t)p.out * (size_t)p.in);
    p.x = random_floats(32, (size_t)p.rows * (size_t)p.in);
    p.bias = random_floats(33, (size_t)p.out);
    for (int i = 0; i < p.in; i++) gain[i] = (i % 3 ? 1 : -1.25f) * (i < OUTLIERS ? large : 1);
    for (int i = 0; i < p.rows * p.in; i++) p.x[i] = fmodf(p.x[i], 1.0f) * gain[i % p.in];
    for (int i = 0; i < p.out * p.in; i++) p.w[i] = fmodf(p.w[i], 1.0f) / (i % p.in < OUTLIERS ? compensated : 1);
    return p;
}

/* Computes the smoothing factors and applies them to operands and weights. */
static void smooth(product *p, const float *gain, float *factor)
{
    kern_int8_smooth(gain, p->w, p->out, p->in, factor);
    for (int i = 0; i < p->rows * p->in; i++) p->x[i] /= factor[i % p->in];
    for (int i = 0; i < p->out * p->in; i++) p->w[i] *= factor[i % p->in];
}

/* Returns ||y - product in double|| / ||product in double||. */
static double product_error(const product *p, const float *y)
{
    double square = 0, error = 0;
    for (int r = 0; r < p->rows; r++)
        for (int o = 0; o < p->out; o++) {
            double sum = (double)p->bias[o];
            for (int i = 0; i < p->in; i++) sum += (double)p->x[r * p->in + i] * (double)p->w[o * p->in + i];
            const double gap = (double)y[r * p->out + o] - sum;
            error += gap * gap;
            square += sum * sum;
        }
    return sqrt(error / square);
}

TEST_CASE(smoothing_keeps_digits_beside_outliers)
{
    static const float large[] = {1, 20, 100};
    float gain[320], factor[320];
    kern_queue *k = open_queue(MAR_DTYPE_INT8, 2);
    if (!k) skip();
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        product p = behind_a_norm(large[i], large[i], gain);
        float *y = run(k, &p);
        const double plain = product_error(&p, y);
        smooth(&p, gain, factor);
        float *smoothed_y = run(k, &p);
        const double smoothed = product_error(&p, smoothed_y);
        print_message("outliers of %.0f: relative error %.4f, smoothed %.4f\n", large[i], plain, smoothed);
        assert_true(smoothed < 0.015);
        if (large[i] > 1) assert_true(plain > 4 * smoothed);
        free(y), free(smoothed_y);
        free_product(&p);
    }
    close_queue(k);
}

/* Checks that power-of-two factors keep the bits of products in other arithmetic. */
TEST_CASE(smoothing_changes_no_other_product)
{
    float gain[320], factor[320];
    for (int dtype = MAR_DTYPE_F32; dtype <= MAR_DTYPE_BF16; dtype++) {
        kern_queue *k = open_queue((mar_dtype)dtype, 2);
        if (!k) continue;
        product p = behind_a_norm(60, 3, gain);
        p.flags = KERN_OUT_F32;
        void *y = run(k, &p);
        smooth(&p, gain, factor);
        void *smoothed = run(k, &p);
        assert_memory_equal(smoothed, y, (size_t)(p.rows * p.out) * sizeof(float));
        free(y), free(smoothed);
        free_product(&p);
        close_queue(k);
    }
}

TEST_CASE(factors_are_of_outliers_alone)
{
    float gain[320], factor[320];
    product p = behind_a_norm(64, 1, gain);
    gain[0] = 0, gain[1] = NAN, gain[2] = INFINITY;
    for (int o = 0; o < p.out; o++) p.w[o * p.in + 3] = 0;
    p.w[5 * p.in + 4] = NAN, p.w[5] = -INFINITY;
    gain[6] = 1e30f;             /* factor is at most 128 */
    gain[200] = gain[201] / 100; /* factor is never below 1 */
    kern_int8_smooth(gain, p.w, p.out, p.in, factor);
    for (int i = 0; i < p.in; i++) {
        if (i == 6)
            assert_float_equal(factor[i], 128, 0);
        else if (i == 7)
            assert_float_equal(factor[i], 8, 0); /* the root of 64, relative to the others */
        else
            assert_float_equal(factor[i], 1, 0);
    }
    for (int i = 0; i < p.in; i++) gain[i] = 0;
    kern_int8_smooth(gain, p.w, p.out, p.in, factor);
    for (int i = 0; i < p.in; i++) assert_float_equal(factor[i], 1, 0);
    free_product(&p);
}

/* Checks sums at the limit of 32 bits: 255 * 127 times the most inputs; and that more inputs are refused. */
TEST_CASE(sums_do_not_wrap)
{
    enum { MOST = 66311 };
    static const char *const isas[] = {"", "avx512_vnni", "avx512", "avx_vnni", "avx2", "dotprod", "generic"};
    product p = {.rows = 2, .in = MOST, .out = 1, .flags = KERN_OUT_F32 | KERN_LOW};
    p.w = malloc((MOST + 1) * sizeof *p.w);
    p.x = malloc(2 * MOST * sizeof *p.x);
    p.bias = calloc(1, sizeof *p.bias);
    for (int i = 0; i <= MOST; i++) p.w[i] = 1;
    for (int i = 0; i < 2 * MOST; i++) p.x[i] = i < MOST ? 1 : -1;
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        setenv("MAR_ISA", isas[i], 1);
        kern_queue *k = open_queue(MAR_DTYPE_INT8, 1);
        unsetenv("MAR_ISA");
        float *y = run(k, &p);
        assert_float_equal(y[0], MOST, 1);
        assert_float_equal(y[1], -MOST, 1);
        free(y);
        close_queue(k);
    }
    kern_queue *k = open_queue(MAR_DTYPE_INT8, 1);
    const kern_linear_spec spec = {.out = 1, .in = MOST + 1, .weight = p.w, .flags = p.flags};
    mar_err err = {0};
    kern_linear *l;
    assert_int_equal(k->core->linear_create(k, &spec, &l, &err), MAR_EARG);
    assert_null(l);
    assert_string_equal(err.text, "int8 layer of 66312 inputs: expected at most 66311");
    free_product(&p);
    close_queue(k);
}
