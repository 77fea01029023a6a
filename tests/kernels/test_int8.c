/* int8 products: their sums against sums of integers, bit for bit, and the same bits by every instruction set that is
 * here, for any number of rows and threads. */
#include "kernels/int8.h"
#include "kernels/ops.h"
#include "tests/support/support.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* In the order of what they ask for; NULL ends. avx2 is a processor with AVX-VNNI, whose operands are f32. */
static const char *const isas[] = {"", "avx512", "avx2", NULL};

static kern_queue *open_as(const char *isa, int threads)
{
    setenv("MAR_ISA", isa, 1);
    kern_queue *k = open_queue(MAR_DTYPE_INT8, threads);
    unsetenv("MAR_ISA");
    return k;
}

static float rounded(float x, size_t size)
{
    if (size == sizeof x) return x;
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &u, sizeof u);
    return x;
}

/* Magnitudes of very different sizes, as activations have them, and bf16, so that operands in either type are the same.
 */
static float *random_floats(uint32_t seed, size_t n)
{
    float *x = malloc((n + 1) * sizeof *x);
    for (size_t i = 0; i < n; i++) {
        uint32_t w[4];
        kern_random_words(21, KERN_NOISE_INIT, seed, (uint32_t)(i >> 16), 0, (uint32_t)i & 0xffff, w);
        x[i] = rounded(((float)w[0] / 2147483648.0f - 1) * (w[1] % 64 ? 1.0f : 20.0f), 2);
    }
    return x;
}

typedef struct {
    int rows, in, out, flags, stride;
    kern_activation activation;
    float *w, *bias, *x, *y; /* y: what is there before */
} product;

static product random_product(uint32_t number)
{
    uint32_t w[4], v[4];
    kern_random_words(22, KERN_NOISE_INIT, number, 0, 0, 0, w);
    kern_random_words(22, KERN_NOISE_INIT, number, 0, 0, 1, v);
    product p = {.rows = 1 + (int)(number % 70), .in = 1 + (int)(w[0] % 600), .out = 1 + (int)(w[1] % 400)};
    static const int flags[] = {0, KERN_OUT_F32, KERN_OUT_F32 | KERN_OUT_ADD};
    p.flags = flags[w[2] % 3] | KERN_INT8;
    p.activation = (kern_activation)(w[3] % 4);
    p.stride = p.out + (int)(v[0] % 2) * 16;
    p.w = random_floats(3 * number, (size_t)p.out * (size_t)p.in);
    p.x = random_floats(3 * number + 1, (size_t)p.rows * (size_t)p.in);
    p.bias = random_floats(3 * number + 2, (size_t)p.out);
    p.y = random_floats(3 * number + 2, (size_t)p.rows * (size_t)p.stride);
    return p;
}

static void free_product(product *p)
{
    free(p->w), free(p->bias), free(p->x), free(p->y);
}

static size_t result_bytes(const kern_queue *k, const product *p)
{
    return (size_t)p->rows * (size_t)p->stride * (p->flags & KERN_OUT_F32 ? sizeof(float) : k->device->act_size);
}

/* The layer's result, `by` rows a call, beside whatever its rows have behind them. q, scale: NULL, or int8 weights. */
static void *run(kern_queue *k, const product *p, int by, const int8_t *q, const float *scale)
{
    const size_t size = k->device->act_size, bytes = result_bytes(k, p), row = bytes / (size_t)p->rows;
    const kern_linear_spec spec = {.out = p->out,
                                   .in = p->in,
                                   .weight = q ? NULL : p->w,
                                   .bias = p->bias,
                                   .activation = p->activation,
                                   .flags = p->flags,
                                   .y_stride = p->stride,
                                   .quantised = q,
                                   .scale = scale};
    mar_err err = {0};
    kern_linear *l;
    void *x = NULL;
    char *y = malloc(bytes);
    memcpy(y, p->y, bytes);
    assert_ok(k->core->linear_create(k, &spec, &l, &err), &err);
    assert_ok(k->core->alloc(k->device, (size_t)p->rows * (size_t)p->in * size, &x, &err), &err);
    k->core->to_act(k, p->x, (size_t)p->rows * (size_t)p->in, x);
    for (int r = 0; r < p->rows; r += by)
        k->core->linear(k, l, (char *)x + (size_t)r * (size_t)p->in * size, p->rows - r < by ? p->rows - r : by,
                        y + (size_t)r * row);
    assert_ok(kern_check(k, &err), &err);
    k->core->linear_free(k->device, l);
    k->core->free(k->device, x);
    return y;
}

/* A row of x as the products have it: integers and a scale. A product of two floats is exact in double. */
static float quantised(const product *p, int row, size_t size, int *q)
{
    float most = 0;
    for (int i = 0; i < p->in; i++) most = fmaxf(most, fabsf(rounded(p->x[row * p->in + i], size)));
    const float factor = 127.0f / most;
    for (int i = 0; i < p->in; i++) q[i] = (int)nearbyint((double)rounded(p->x[row * p->in + i], size) * (double)factor);
    return most / 127.0f;
}

static void linear_result(const product *p, size_t size, float *y)
{
    int8_t *w = malloc((size_t)p->out * (size_t)p->in);
    float *scale = malloc((size_t)p->out * sizeof *scale);
    int *x = malloc((size_t)p->in * sizeof *x);
    kern_int8_quantise(p->w, p->out, p->in, w, scale);
    for (int r = 0; r < p->rows; r++) {
        const float x_scale = quantised(p, r, size, x);
        for (int c = 0; c < p->out; c++) {
            long long sum = 0;
            for (int i = 0; i < p->in; i++) sum += x[i] * (long long)w[(size_t)c * (size_t)p->in + (size_t)i];
            volatile float both = x_scale * scale[c], a = (float)sum * both; /* rounded one after the other */
            y[(size_t)r * (size_t)p->stride + (size_t)c] = a + p->bias[c];
        }
    }
    free(w), free(scale), free(x);
}

/* A result's numbers, as bf16 unless they were asked for in f32. */
static float *numbers(const kern_queue *k, const product *p, const void *y)
{
    float *x = malloc((size_t)p->rows * (size_t)p->out * sizeof *x);
    for (int r = 0, n = 0; r < p->rows; r++)
        for (int c = 0; c < p->out; c++, n++) {
            const size_t i = (size_t)r * (size_t)p->stride + (size_t)c;
            if (p->flags & KERN_OUT_F32) {
                x[n] = ((const float *)y)[i];
            } else if (k->device->act_size == sizeof(float)) {
                const float value = ((const float *)y)[i]; /* AVX512-BF16 makes 0 of what is below the normal numbers */
                x[n] = fabsf(value) < FLT_MIN ? copysignf(0, value) : rounded(value, 2);
            } else {
                const uint32_t bits = (uint32_t)((const uint16_t *)y)[i] << 16;
                memcpy(x + n, &bits, sizeof bits);
            }
        }
    return x;
}

static void sums_are_exact(void **state)
{
    (void)state;
    for (int isa = 0; isas[isa]; isa++) {
        kern_queue *k = open_as(isas[isa], 2);
        if (!k) continue;
        print_message("%s\n", k->device->description);
        for (uint32_t number = 0; number < 60; number++) {
            product p = random_product(number);
            p.activation = KERN_LINEAR;
            p.flags = KERN_OUT_F32 | KERN_INT8;
            float *y = run(k, &p, p.rows, NULL, NULL), *expected = malloc(result_bytes(k, &p));
            memcpy(expected, p.y, result_bytes(k, &p));
            linear_result(&p, k->device->act_size, expected);
            assert_memory_equal(y, expected, result_bytes(k, &p));
            free(y), free(expected);
            free_product(&p);
        }
        close_queue(k);
    }
}

static void instruction_sets_agree(void **state)
{
    (void)state;
    kern_queue *best = open_as("", 2);
    if (!best) skip();
    for (int isa = 0; isas[isa]; isa++) {
        kern_queue *k = open_as(isas[isa], 1);
        if (!k) continue;
        for (uint32_t number = 100; number < 240; number++) {
            product p = random_product(number);
            void *y = run(best, &p, p.rows, NULL, NULL), *other = run(k, &p, 1 + (int)(number % 9), NULL, NULL);
            float *a = numbers(best, &p, y), *b = numbers(k, &p, other);
            assert_memory_equal(a, b, (size_t)p.rows * (size_t)p.out * sizeof *a);
            free(y), free(other), free(a), free(b);
            free_product(&p);
        }
        close_queue(k);
    }
    close_queue(best);
}

/* A file's int8 weights are multiplied as they are. */
static void given_weights(void **state)
{
    (void)state;
    kern_queue *k = open_as("", 2);
    if (!k) skip();
    product p = random_product(300);
    int8_t *q = malloc((size_t)p.out * (size_t)p.in);
    float *scale = malloc((size_t)p.out * sizeof *scale);
    kern_int8_quantise(p.w, p.out, p.in, q, scale);
    void *own = run(k, &p, p.rows, NULL, NULL), *given = run(k, &p, p.rows, q, scale);
    assert_memory_equal(own, given, result_bytes(k, &p));
    free(own), free(given), free(q), free(scale);
    free_product(&p);
    close_queue(k);
}

/* What is not finite is seen in its row, or its column, and only there; rows and columns of zeros give the bias. */
static void extremes(void **state)
{
    (void)state;
    for (int isa = 0; isas[isa]; isa++) {
        kern_queue *k = open_as(isas[isa], 2);
        if (!k) continue;
        product p = random_product(401);
        p.flags = KERN_OUT_F32 | KERN_INT8;
        p.activation = KERN_LINEAR;
        assert_true(p.rows >= 4 && p.out >= 4 && p.in >= 4);
        const size_t in = (size_t)p.in;
        p.x[1] = NAN;
        p.x[in + 2] = -INFINITY;
        memset(p.x + 2 * in, 0, in * sizeof *p.x);
        p.w[3 * in] = INFINITY;
        memset(p.w + 2 * in, 0, in * sizeof *p.w);
        float *y = run(k, &p, p.rows, NULL, NULL);
        for (int r = 0; r < p.rows; r++)
            for (int c = 0; c < p.out; c++) {
                const float value = y[r * p.stride + c];
                if (r < 2 || c == 3)
                    assert_true(isnan(value));
                else if (r == 2 || c == 2)
                    assert_float_equal(value, p.bias[c], 0);
                else
                    assert_true(isfinite(value));
            }
        free(y);
        free_product(&p);
        close_queue(k);
    }
}

/* Weights come back within half a step of their channel's scale, and int8 weights as they were. */
static void weights_round_trip(void **state)
{
    (void)state;
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

enum { OUTLIERS = 8 };

/* A layer behind a norm: p.x = gain * n. Its first OUTLIERS channels have a gain `large` times as large, and columns
 * divided by `compensated`. */
static product behind_a_norm(float large, float compensated, float *gain)
{
    product p = {.rows = 32, .in = 320, .out = 96, .flags = KERN_OUT_F32 | KERN_INT8, .stride = 96};
    p.w = random_floats(31, (size_t)p.out * (size_t)p.in);
    p.x = random_floats(32, (size_t)p.rows * (size_t)p.in);
    p.bias = random_floats(33, (size_t)p.out);
    p.y = calloc((size_t)p.rows * (size_t)p.stride, sizeof *p.y);
    for (int i = 0; i < p.in; i++) gain[i] = (i % 3 ? 1 : -1.25f) * (i < OUTLIERS ? large : 1);
    for (int i = 0; i < p.rows * p.in; i++) p.x[i] = fmodf(p.x[i], 1.0f) * gain[i % p.in];
    for (int i = 0; i < p.out * p.in; i++) p.w[i] = fmodf(p.w[i], 1.0f) / (i % p.in < OUTLIERS ? compensated : 1);
    return p;
}

/* The factors go to operands and weights. */
static void smooth(product *p, const float *gain, float *factor)
{
    kern_int8_smooth(gain, p->w, p->out, p->in, factor);
    for (int i = 0; i < p->rows * p->in; i++) p->x[i] /= factor[i % p->in];
    for (int i = 0; i < p->out * p->in; i++) p->w[i] *= factor[i % p->in];
}

/* ||y - product in double|| / ||product in double|| */
static double product_error(const product *p, const float *y)
{
    double square = 0, error = 0;
    for (int r = 0; r < p->rows; r++)
        for (int o = 0; o < p->out; o++) {
            double sum = (double)p->bias[o];
            for (int i = 0; i < p->in; i++) sum += (double)p->x[r * p->in + i] * (double)p->w[o * p->in + i];
            const double gap = (double)y[r * p->stride + o] - sum;
            error += gap * gap;
            square += sum * sum;
        }
    return sqrt(error / square);
}

static void smoothing_keeps_digits_beside_outliers(void **state)
{
    (void)state;
    static const float large[] = {1, 20, 100};
    float gain[320], factor[320];
    kern_queue *k = open_as("", 2);
    if (!k) skip();
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        product p = behind_a_norm(large[i], large[i], gain);
        float *y = run(k, &p, p.rows, NULL, NULL);
        const double plain = product_error(&p, y);
        smooth(&p, gain, factor);
        float *smoothed_y = run(k, &p, p.rows, NULL, NULL);
        const double smoothed = product_error(&p, smoothed_y);
        print_message("outliers of %.0f: relative error %.4f, smoothed %.4f\n", large[i], plain, smoothed);
        assert_true(smoothed < 0.015);
        if (large[i] > 1) assert_true(plain > 4 * smoothed);
        free(y), free(smoothed_y);
        free_product(&p);
    }
    close_queue(k);
}

/* Powers of two leave products in other arithmetic as they are, to the bit. */
static void smoothing_changes_no_other_product(void **state)
{
    (void)state;
    float gain[320], factor[320];
    for (int dtype = MAR_DTYPE_F32; dtype <= MAR_DTYPE_BF16; dtype++) {
        kern_queue *k = open_queue((mar_dtype)dtype, 2);
        if (!k) continue;
        product p = behind_a_norm(60, 3, gain);
        p.flags = KERN_OUT_F32;
        void *y = run(k, &p, p.rows, NULL, NULL);
        smooth(&p, gain, factor);
        void *smoothed = run(k, &p, p.rows, NULL, NULL);
        assert_memory_equal(smoothed, y, result_bytes(k, &p));
        free(y), free(smoothed);
        free_product(&p);
        close_queue(k);
    }
}

static void factors_are_of_outliers_alone(void **state)
{
    (void)state;
    float gain[320], factor[320];
    product p = behind_a_norm(64, 1, gain);
    gain[0] = 0, gain[1] = NAN, gain[2] = INFINITY;
    for (int o = 0; o < p.out; o++) p.w[o * p.in + 3] = 0;
    p.w[5 * p.in + 4] = NAN, p.w[5] = -INFINITY;
    gain[6] = 1e30f;             /* at most 128 */
    gain[200] = gain[201] / 100; /* never below 1 */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_exact),
        cmocka_unit_test(instruction_sets_agree),
        cmocka_unit_test(given_weights),
        cmocka_unit_test(extremes),
        cmocka_unit_test(weights_round_trip),
        cmocka_unit_test(smoothing_keeps_digits_beside_outliers),
        cmocka_unit_test(smoothing_changes_no_other_product),
        cmocka_unit_test(factors_are_of_outliers_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
