/* The CPU backend's operations against plain loops in double, in f32 and bf16, and the promise that a row's bits do not
 * depend on the rows beside it or on the number of threads. */
#include "kernels/cpu/rows.h"
#include "kernels/ops.h"
#include "kernels/trace.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint32_t draws;

static float *random_floats(size_t n, float scale)
{
    float *x = malloc((n + 1) * sizeof *x);
    for (size_t i = 0; i < n; i++) {
        uint32_t w[4];
        kern_random_words(12, KERN_NOISE_INIT, draws, (uint32_t)(i >> 16), 0, (uint32_t)i & 0xffff, w);
        x[i] = ((float)w[0] / 2147483648.0f - 1) * scale;
    }
    draws++;
    return x;
}

static float bf16_round(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &u, sizeof u);
    return x;
}

/* Host floats as act, and back. */
static void *to_act(kern_queue *k, const float *x, size_t n)
{
    void *p = NULL;
    mar_err err = {0};
    assert_ok(k->core->alloc(k->device, n * k->device->act_size, &p, &err), &err);
    k->core->to_act(k, x, n, p);
    return p;
}

static float *from_act(const kern_queue *k, const void *p, size_t n)
{
    float *x = malloc((n + 1) * sizeof *x);
    for (size_t i = 0; i < n; i++) {
        uint32_t u = k->device->act_size == 2 ? (uint32_t)((const uint16_t *)p)[i] << 16 : ((const uint32_t *)p)[i];
        memcpy(x + i, &u, sizeof u);
    }
    return x;
}

static const mar_dtype dtypes[2] = {MAR_DTYPE_F32, MAR_DTYPE_BF16};
static const double tolerance[2] = {2e-6, 5e-3}; /* relative, of one operation */

static double activate(double x, kern_activation a)
{
    if (a == KERN_GELU) return x * 0.5 * (1 + erf(x / sqrt(2.0)));
    if (a == KERN_SILU) return x / (1 + exp(-x));
    if (a == KERN_GELU_TANH) return x * 0.5 * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    return x;
}

static void linear_case(kern_queue *k, double tol, int rows, int in, int out, kern_activation activation, int flags)
{
    const int f32_in = flags & KERN_IN_F32, f32_out = flags & KERN_OUT_F32;
    float *w = random_floats((size_t)out * (size_t)in, 1 / sqrtf((float)in)), *b = random_floats((size_t)out, 1);
    float *x = random_floats((size_t)rows * (size_t)in, 1), *y0 = random_floats((size_t)rows * (size_t)out, 1);
    float *expected = malloc(sizeof(float) * (size_t)rows * (size_t)out + 1);
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < out; o++) {
            double sum = b[o];
            for (int i = 0; i < in; i++) {
                float u = x[r * in + i], v = w[o * in + i];
                if (k->device->act_size == 2 && !f32_in) u = bf16_round(u), v = bf16_round(v);
                sum += (double)u * v;
            }
            sum = activate(sum, activation);
            expected[r * out + o] = (float)(flags & KERN_OUT_ADD ? sum + y0[r * out + o] : sum);
        }
    kern_linear *l = NULL;
    mar_err err = {0};
    const kern_linear_spec spec = {
        .out = out, .in = in, .weight = w, .bias = b, .activation = activation, .flags = flags};
    assert_ok(k->core->linear_create(k, &spec, &l, &err), &err);
    assert_ok(k->core->linear_plan(k, l, rows, &err), &err);
    void *xa = f32_in ? NULL : to_act(k, x, (size_t)rows * (size_t)in);
    void *y = NULL;
    assert_ok(k->core->alloc(k->device, (size_t)rows * (size_t)out * 4, &y, &err), &err);
    if (flags & KERN_OUT_ADD) memcpy(y, y0, (size_t)rows * (size_t)out * 4);
    k->core->linear(k, l, f32_in ? x : xa, rows, y);
    float *got = f32_out ? NULL : from_act(k, y, (size_t)rows * (size_t)out);
    assert_close(got ? got : (float *)y, expected, (size_t)rows * (size_t)out, f32_in ? tolerance[0] : tol);
    assert_ok(kern_check(k, &err), &err);
    k->core->linear_free(k->device, l);
    if (xa) k->core->free(k->device, xa);
    k->core->free(k->device, y);
    free(w), free(b), free(x), free(y0), free(expected), free(got);
}

static void linear(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        kern_queue *k = open_queue(dtypes[d], 2);
        if (!k) continue;
        linear_case(k, tolerance[d], 1, 16, 16, KERN_LINEAR, 0);
        linear_case(k, tolerance[d], 7, 33, 130, KERN_SILU, 0);
        linear_case(k, tolerance[d], 64, 96, 96, KERN_GELU, 0);
        linear_case(k, tolerance[d], 130, 768, 700, KERN_LINEAR, KERN_OUT_F32);
        linear_case(k, tolerance[d], 65, 1024, 520, KERN_LINEAR, KERN_OUT_F32 | KERN_OUT_ADD);
        linear_case(k, tolerance[d], 300, 96, 200, KERN_GELU, 0); /* strips of two and three tiles with two threads */
        linear_case(k, tolerance[d], 17, 70, 100, KERN_LINEAR, KERN_OUT_F32 | KERN_OUT_ADD); /* groups of AMX overlap */
        linear_case(k, tolerance[d], 35, 70, 100, KERN_LINEAR, KERN_OUT_F32 | KERN_OUT_ADD);
        linear_case(k, tolerance[d], 9, 6, 12, KERN_SILU, KERN_IN_F32 | KERN_OUT_F32);
        linear_case(k, tolerance[d], 3, 100, 2, KERN_LINEAR, KERN_IN_F32 | KERN_OUT_F32);
        linear_case(k, tolerance[d], 20, 34, 77, KERN_GELU, KERN_OUT_F32 | KERN_OUT_ADD);
        linear_case(k, tolerance[d], 13, 512, 200, KERN_SILU, KERN_OUT_F32);
        linear_case(k, tolerance[d], 5, 34, 50, KERN_GELU_TANH, 0);
        linear_case(k, tolerance[d], 6, 40, 33, KERN_GELU_TANH, KERN_IN_F32 | KERN_OUT_F32);
        close_queue(k);
    }
}

/* Computes rows 0..n-1 for every n and thread count; row r must have the same bits as when computed in a batch of
 * `most` rows by one thread. */
static void row_invariance(void **state)
{
    (void)state;
    enum { MOST = 200, IN = 768, OUT = 648 };
    const int counts[] = {1, 2, 3, 5, 8, 17, 31, 63, 64, 65, 100, 128, 199, MOST};
    float *w = random_floats(OUT * IN, 0.03f), *b = random_floats(OUT, 1), *x = random_floats(MOST * IN, 1);
    for (int d = 0; d < 2; d++)
        for (int activation = KERN_LINEAR; activation <= KERN_GELU_TANH; activation++) {
            char *reference = NULL;
            for (int threads = 1; threads <= 4; threads++) {
                kern_queue *k = open_queue(dtypes[d], threads);
                if (!k) continue;
                kern_linear *l = NULL;
                mar_err err = {0};
                const kern_linear_spec spec = {
                    .out = OUT, .in = IN, .weight = w, .bias = b, .activation = (kern_activation)activation};
                assert_ok(k->core->linear_create(k, &spec, &l, &err), &err);
                void *xa = to_act(k, x, MOST * IN), *y = NULL;
                const size_t row = OUT * k->device->act_size;
                assert_ok(k->core->alloc(k->device, MOST * row, &y, &err), &err);
                if (!reference) {
                    k->core->linear(k, l, xa, MOST, y);
                    reference = malloc(MOST * row);
                    memcpy(reference, y, MOST * row);
                }
                for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                    memset(y, 0, MOST * row);
                    k->core->linear(k, l, xa, counts[c], y);
                    assert_memory_equal(y, reference, (size_t)counts[c] * row);
                }
                k->core->linear_free(k->device, l);
                k->core->free(k->device, xa);
                k->core->free(k->device, y);
                close_queue(k);
            }
            free(reference);
        }
    free(w), free(b), free(x);
}

/* The products of bf16 layers as f32, of `rows` rows by one call, or of row by row. */
static float *products(kern_queue *k, const kern_linear_spec *spec, const float *x, int rows, int by)
{
    const size_t n = (size_t)rows * (size_t)spec->out, in = (size_t)spec->in;
    kern_linear *l = NULL;
    mar_err err = {0};
    float *y = calloc(n, sizeof *y);
    assert_ok(k->core->linear_create(k, spec, &l, &err), &err);
    char *xa = to_act(k, x, (size_t)rows * in);
    for (int r = 0; r < rows; r += by)
        k->core->linear(k, l, xa + (size_t)r * in * k->device->act_size, rows - r < by ? rows - r : by,
                        y + (size_t)r * (size_t)spec->out);
    assert_ok(kern_check(k, &err), &err);
    k->core->linear_free(k->device, l);
    k->core->free(k->device, xa);
    return y;
}

/* Where bf16 products are our own: every number of rows by one call and split otherwise has the same bits, and they
 * are oneDNN's to f32 rounding. */
static void own_products_of(const char *isa)
{
    setenv("MAR_ISA", isa, 1);
    kern_queue *own = open_queue(MAR_DTYPE_BF16, 2), *dnn = NULL;
    if (!own) unsetenv("MAR_ISA");
    if (!own) skip();
    print_message("%s\n", own->device->description);
    setenv("MAR_ISA", "avx2", 1);
    dnn = open_queue(MAR_DTYPE_BF16, 2);
    unsetenv("MAR_ISA");
    size_t numbers = 0, differ = 0;
    for (int rows = 1; rows <= 40; rows++) {
        uint32_t w4[4];
        kern_random_words(13, KERN_NOISE_INIT, 0, 0, 0, (uint32_t)rows, w4);
        /* every fourth shape is one of whole blocks */
        const int in = rows % 4 ? 2 * (int)(1 + w4[0] % 768) : 1024, out = rows % 4 ? 1 + (int)(w4[1] % 1536) : 1024;
        float *w = random_floats((size_t)out * (size_t)in, 1), *x = random_floats((size_t)rows * (size_t)in, 1);
        const kern_linear_spec spec = {
            .out = out, .in = in, .weight = w, .bias = NULL, .activation = KERN_LINEAR, .flags = KERN_OUT_F32};
        const size_t n = (size_t)rows * (size_t)out;
        float *together = products(own, &spec, x, rows, rows), *single = products(own, &spec, x, rows, 1);
        float *some = products(own, &spec, x, rows, 1 + (int)(w4[2] % 16));
        float *other = products(dnn, &spec, x, rows, rows);
        assert_memory_equal(together, single, n * sizeof *single);
        assert_memory_equal(together, some, n * sizeof *some);
        assert_close(together, other, n, 1e-5);
        for (size_t i = 0; i < n; i++) differ += memcmp(together + i, other + i, sizeof *other) != 0;
        numbers += n;
        free(w), free(x), free(together), free(single), free(some), free(other);
    }
    print_message("%zu of %zu results differ from oneDNN's in some bit\n", differ, numbers);
    close_queue(own);
    close_queue(dnn);
}

/* By AMX where it is there. */
static void own_products(void **state)
{
    (void)state;
    own_products_of("");
}

static void own_products_avx512(void **state)
{
    (void)state;
    own_products_of("avx512");
}

static void layer_norm(void **state)
{
    (void)state;
    enum { ROWS = 5 };
    const int dims[] = {1, 15, 16, 96, 1280};
    const int index[ROWS] = {4, 0, 2, 2, 1};
    for (int d = 0; d < 2; d++) {
        kern_queue *k = open_queue(dtypes[d], 2);
        if (!k) continue;
        for (size_t c = 0; c < sizeof dims / sizeof *dims; c++) {
            const int dim = dims[c];
            const size_t n = ROWS * (size_t)dim;
            float *x = random_floats(n, 3), *w = random_floats((size_t)dim, 1), *b = random_floats((size_t)dim, 1);
            float *expected = malloc(n * sizeof *expected), *f32 = malloc(n * sizeof *f32);
            for (size_t i = 0; i < n; i++) x[i] += 10; /* a mean well away from zero */
            for (int r = 0; r < ROWS; r++) {
                const float *row = x + index[r] * dim;
                double mean = 0, var = 0;
                for (int i = 0; i < dim; i++) mean += row[i] / (double)dim;
                for (int i = 0; i < dim; i++) var += (row[i] - mean) * (row[i] - mean) / dim;
                for (int i = 0; i < dim; i++)
                    expected[r * dim + i] = (float)((row[i] - mean) / sqrt(var + 1e-6) * w[i] + b[i]);
            }
            void *y = to_act(k, x, n);
            k->core->layer_norm(k, x, index, ROWS, dim, w, b, 1e-6f, y, 0);
            float *got = from_act(k, y, n);
            assert_close(got, expected, n, d ? 5e-3 : 1e-5);
            k->core->layer_norm(k, x, index, ROWS, dim, w, b, 1e-6f, f32, 1);
            assert_close(f32, expected, n, 1e-5);
            k->core->free(k->device, y);
            free(x), free(w), free(b), free(expected), free(f32), free(got);
        }
        close_queue(k);
    }
}

static void attention_case(kern_queue *k, double tol, int n_seq, int n_q, int n_k, int heads, int dim)
{
    const int width = heads * dim, q_stride = width + 16, kv_stride = 2 * width;
    const size_t nq = (size_t)(n_seq * n_q) * (size_t)q_stride, nk = (size_t)(n_seq * n_k) * (size_t)kv_stride;
    float *q = random_floats(nq, 2), *kv = random_floats(nk, 2);
    void *qa = to_act(k, q, nq), *kva = to_act(k, kv, nk), *y = NULL;
    mar_err err = {0};
    const size_t n = (size_t)(n_seq * n_q * width);
    assert_ok(k->core->alloc(k->device, n * k->device->act_size, &y, &err), &err);
    assert_ok(k->core->attention_plan(k, n_q, n_k, heads, dim, q_stride, kv_stride, &err), &err);
    k->core->attention(k, qa, q_stride, kva, (char *)kva + (size_t)width * k->device->act_size, kv_stride, n_seq, n_q,
                       n_k, heads, dim, y);
    float *qr = from_act(k, qa, nq), *kvr = from_act(k, kva, nk), *expected = malloc(n * sizeof *expected);
    double *score = malloc((size_t)n_k * sizeof *score);
    for (int s = 0; s < n_seq; s++)
        for (int h = 0; h < heads; h++)
            for (int i = 0; i < n_q; i++) {
                double top = -INFINITY, sum = 0;
                for (int j = 0; j < n_k; j++) {
                    score[j] = 0;
                    for (int c = 0; c < dim; c++)
                        score[j] += (double)qr[(s * n_q + i) * q_stride + h * dim + c] *
                                    kvr[(s * n_k + j) * kv_stride + h * dim + c] / sqrt(dim);
                    top = fmax(top, score[j]);
                }
                for (int j = 0; j < n_k; j++) sum += score[j] = exp(score[j] - top);
                for (int c = 0; c < dim; c++) {
                    double v = 0;
                    for (int j = 0; j < n_k; j++)
                        v += score[j] / sum * kvr[(s * n_k + j) * kv_stride + width + h * dim + c];
                    expected[(s * n_q + i) * width + h * dim + c] = (float)v;
                }
            }
    float *got = from_act(k, y, n);
    assert_ok(kern_check(k, &err), &err);
    assert_close(got, expected, n, tol);
    k->core->free(k->device, qa), k->core->free(k->device, kva), k->core->free(k->device, y);
    free(q), free(kv), free(qr), free(kvr), free(expected), free(score), free(got);
}

static void attention(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        kern_queue *k = open_queue(dtypes[d], 2);
        if (!k) continue;
        const double tol = d ? 1e-2 : 5e-6;
        attention_case(k, tol, 2, 65, 65, 3, 64);
        attention_case(k, tol, 1, 7, 320, 2, 80);
        attention_case(k, tol, 3, 1, 1, 2, 32);
        attention_case(k, tol, 1, 100, 100, 1, 96); /* the single head of an image decoder: blocks of queries */
        close_queue(k);
    }
}

/* Sequences of several lengths in any order, with rows between them that nobody asks with: each row has the bits that
 * `attention` gives for its sequence alone, and the other rows of y keep theirs. */
static void attention_spans_case(kern_queue *k, int heads, int dim, const int *n_q, const int *n_k, int n_seq)
{
    enum { MOST = 200 };
    const int width = heads * dim, q_stride = width + 16, kv_stride = 2 * width + 16;
    const size_t size = k->device->act_size;
    int q_first[MOST], k_first[MOST], rows = 3, keys = 2;
    for (int i = 0; i < n_seq; i++) { /* the second half comes first, and every third pair has a gap between it */
        const int s = (i + n_seq / 2) % n_seq;
        q_first[s] = rows, k_first[s] = keys;
        rows += n_q[s] + 2 * (s % 3 == 0), keys += n_k[s] + (s % 3 == 1);
    }
    const size_t n = (size_t)rows * (size_t)width;
    float *q = random_floats((size_t)rows * (size_t)q_stride, 2), *got, *expected;
    float *kv = random_floats((size_t)keys * (size_t)kv_stride, 2), *before = random_floats(n, 1);
    char *qa = to_act(k, q, (size_t)rows * (size_t)q_stride), *ya = to_act(k, before, n), *yb = to_act(k, before, n);
    char *key = to_act(k, kv, (size_t)keys * (size_t)kv_stride), *value = key + (size_t)width * size;
    mar_err err = {0};
    for (int s = 0; s < n_seq; s++) {
        if (n_q[s] == 0) continue;
        const size_t q_row = (size_t)q_first[s], k_row = (size_t)k_first[s] * (size_t)kv_stride * size;
        assert_ok(k->core->attention_plan(k, n_q[s], n_k[s], heads, dim, q_stride, kv_stride, &err), &err);
        k->core->attention(k, qa + q_row * (size_t)q_stride * size, q_stride, key + k_row, value + k_row, kv_stride, 1,
                           n_q[s], n_k[s], heads, dim, ya + q_row * (size_t)width * size);
    }
    k->core->attention_spans(k, qa, q_stride, q_first, n_q, key, value, kv_stride, k_first, n_k, n_seq, heads, dim, yb);
    expected = from_act(k, ya, n), got = from_act(k, yb, n);
    assert_ok(kern_check(k, &err), &err);
    assert_memory_equal(got, expected, n * sizeof *got);
    k->core->free(k->device, qa), k->core->free(k->device, key);
    k->core->free(k->device, ya), k->core->free(k->device, yb);
    free(q), free(kv), free(before), free(got), free(expected);
}

static void attention_spans(void **state)
{
    (void)state;
    static const int n_q[] = {65, 7, 65, 0, 1, 170, 65, 33}, n_k[] = {65, 320, 65, 9, 1, 170, 66, 100};
    int many_q[150], many_k[150];
    for (int i = 0; i < 150; i++) many_q[i] = 1 + i * 7 % 23, many_k[i] = 1 + i * 5 % 31;
    for (int d = 0; d < 2; d++)
        for (int threads = 1; threads < 3; threads++) {
            kern_queue *k = open_queue(dtypes[d], threads);
            if (!k) continue;
            attention_spans_case(k, 3, 64, n_q, n_k, 8);
            attention_spans_case(k, 1, 96, n_q, n_k, 8); /* a single head: blocks of queries */
            attention_spans_case(k, 2, 32, many_q, many_k, 150);
            attention_spans_case(k, 2, 32, n_q, n_k, 1);
            close_queue(k);
        }
}

/* What mar_session_measure says of a call: one row for all calls of the same sizes. */
static void traced_spans(void **state)
{
    (void)state;
    enum { ROWS = 12, DIM = 4, WIDTH = 2 * DIM };
    static const int n_q[] = {5, 0, 2}, n_k[] = {3, 100, 4}, q_first[] = {0, 5, 6}, k_first[] = {0, 3, 3};
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    float *x = random_floats(ROWS * WIDTH, 1);
    float y[ROWS * WIDTH];
    kern_trace *trace;
    mar_err err = {0};
    int count;
    assert_ok(kern_trace_begin(k, &trace, &err), &err);
    for (int i = 0; i < 2; i++)
        k->core->attention_spans(k, x, WIDTH, q_first, n_q, x, x, WIDTH, k_first, n_k, 3, 2, DIM, y);
    k->core->attention_spans(k, x, WIDTH, q_first, n_q, x, x, WIDTH, k_first, n_k, 0, 2, DIM, y);
    kern_trace_end(trace);
    const kern_traced *rows = kern_trace_rows(trace, &count);
    assert_int_equal(count, 1);
    assert_string_equal(rows->name, "attention 2 x 4, 3 spans, 7 keys");
    assert_int_equal(rows->rows, 7);
    assert_int_equal(rows->calls, 2);
    assert_true(rows->flop == 2 * 4.0 * WIDTH * (5 * 3 + 2 * 4));
    assert_true(rows->bytes == 2 * 4.0 * WIDTH * (7 + 7 + 7 + 7)); /* q, key, value, y */
    assert_true(rows->seconds > 0);
    kern_trace_free(trace);
    free(x);
    close_queue(k);
}

static void empty_and_refused(void **state)
{
    (void)state;
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    mar_err err = {0};
    float y[4] = {7, 7, 7, 7};
    k->core->attention(k, y, 4, y, y, 4, 0, 0, 1, 1, 4, y); /* no rows: nothing happens */
    k->core->attention_spans(k, y, 4, NULL, NULL, y, y, 4, NULL, NULL, 0, 1, 4, y);
    assert_float_equal(y[0], 7, 0);
    assert_ok(kern_check(k, &err), &err);
    close_queue(k);
    kern_device *d;
    assert_int_equal(kern_cpu_open(MAR_DTYPE_F16, 1, &d, &err), MAR_EARG);
    assert_non_null(strstr(err.text, "f16"));
    assert_int_equal(kern_cpu_open(MAR_DTYPE_F32, -1, &d, &err), MAR_EARG);
    assert_non_null(strstr(err.text, "threads -1"));
}

static void copy_rows(void **state)
{
    (void)state;
    kern_queue *k = open_queue(MAR_DTYPE_F32, 2);
    enum { DIM = 3 };
    const float src[] = {1, 2, 3, 4, 5, 6}, add[] = {10, 20, 30, 100, 200, 300};
    float dst[9] = {0};
    const int to[] = {2, 0}, from[] = {0, 1}, plus[] = {1, 0};
    k->core->copy_rows(k, dst, to, src, from, add, plus, 2, DIM);
    const float expected[9] = {14, 25, 36, 0, 0, 0, 101, 202, 303};
    assert_memory_equal(dst, expected, sizeof dst);
    k->core->copy_rows(k, dst, NULL, src, NULL, NULL, NULL, 2, DIM);
    assert_memory_equal(dst, src, sizeof src);
    close_queue(k);
}

/* Whatever lies behind the rows. */
static void first_nonfinite(void **state)
{
    (void)state;
    enum { ROWS = 9, WIDTH = 21, STRIDE = 25 };
    const float values[4] = {NAN, -NAN, INFINITY, -INFINITY};
    for (int bf16 = 0; bf16 < 2; bf16++) {
        kern_queue *k = open_queue(bf16 ? MAR_DTYPE_BF16 : MAR_DTYPE_F32, 2);
        if (!k) continue; /* no bf16 on this processor */
        float *x = random_floats(ROWS * STRIDE, 3e38f);
        for (int r = 0; r < ROWS; r++) x[r * STRIDE + WIDTH] = NAN;
        for (int i = -1; i < 4; i++) {
            if (i >= 0) x[(8 - 2 * i) * STRIDE + 6 * i + 2] = values[i];
            const int expected = i < 0 ? -1 : 8 - 2 * i;
            void *operands = to_act(k, x, ROWS * STRIDE);
            assert_int_equal(k->core->first_nonfinite(k, x, 1, ROWS, WIDTH, STRIDE), expected);
            assert_int_equal(k->core->first_nonfinite(k, operands, 0, ROWS, WIDTH, STRIDE), expected);
            assert_int_equal(k->core->first_nonfinite(k, x, 1, 0, WIDTH, STRIDE), -1);
            free(operands);
        }
        mar_err err;
        kern_fail(k, err_set(&err, MAR_EBACKEND, "injected"), &err);
        assert_int_equal(k->core->first_nonfinite(k, x, 1, ROWS, WIDTH, STRIDE), -1);
        free(x);
        close_queue(k);
    }
}

/* exp inside silu and softmax: near the exact value everywhere, NaN for NaN, and no conversion that C leaves undefined
 * (which the asan preset would report). */
static void exponentials(void **state)
{
    (void)state;
    enum { N = 4001 };
    extern const kern_rows kern_rows_generic;
    const kern_rows *rows[2] = {&kern_rows_generic, kern_rows_best()};
    static float x[N], zero[N], y[N];
    for (int i = 0; i < N; i++) x[i] = ((float)i - N / 2) * 0.05f; /* -100 .. 100 */
    for (int k = 0; k < 2; k++) {
        rows[k]->silu_add(x, zero, N, y, 0);
        for (int i = 0; i < N; i++) {
            const double expected = x[i] / (1 + exp(-fmax(x[i], -88)));
            if (!(fabs(y[i] - expected) <= 1e-6 * fabs(expected))) fail_msg("silu(%g) = %g", x[i], y[i]);
        }
        const float odd[5] = {NAN, -NAN, INFINITY, -INFINITY, 1};
        rows[k]->silu_add(odd, zero, 5, y, 0);
        assert_true(isnan(y[0]) && isnan(y[1]) && y[2] == INFINITY && isinf(y[3]) && isfinite(y[4]));
        float scores[20] = {1, 2, NAN, 3};
        rows[k]->softmax(scores, 20, 1, y, 0);
        for (int i = 0; i < 20; i++) assert_true(isnan(y[i]));
        const float one[4] = {1, 1, 1, 1};
        rows[k]->affine_silu(odd, 1, 4, one, zero, 1, y, 0);
        assert_true(isnan(y[0]) && isnan(y[1]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear),          cmocka_unit_test(row_invariance),
        cmocka_unit_test(own_products),    cmocka_unit_test(own_products_avx512),
        cmocka_unit_test(layer_norm),      cmocka_unit_test(attention),
        cmocka_unit_test(attention_spans), cmocka_unit_test(traced_spans),
        cmocka_unit_test(copy_rows),       cmocka_unit_test(empty_and_refused),
        cmocka_unit_test(first_nonfinite), cmocka_unit_test(exponentials),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
