/* The CPU backend: opening, exponentials, gated products and traces of operations. tests/ops tests the operations. */
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/gemm/softmax.h"
#include "kernels/cpu/rows.h"
#include "kernels/causal.h"
#include "kernels/path.h"
#include "kernels/trace.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

TEST_CASE(what_cannot_be_opened)
{
    static const struct {
        mar_dtype dtype;
        int threads;
        mar_status status;
        const char *says;
    } cases[] = {{MAR_DTYPE_F16, 1, MAR_EARG, "f16"}, {MAR_DTYPE_F32, -1, MAR_EARG, "threads -1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kern_device *d = NULL;
        mar_err err = {0};
        assert_int_equal(kern_cpu_open(cases[i].dtype, cases[i].threads, NULL, &d, &err), cases[i].status);
        assert_null(d);
        assert_non_null(strstr(err.text, cases[i].says));
    }
}

/* Checks exp inside silu and softmax: near the exact value everywhere, and NaN for NaN. It must make no undefined
 * conversion; the asan preset would report one. */
TEST_CASE(exponentials)
{
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
        rows[k]->softmax(scores, 20, 1);
        for (int i = 0; i < 20; i++) assert_true(isnan(scores[i]));
        const float one[4] = {1, 1, 1, 1};
        rows[k]->affine_silu(odd, 1, 4, one, zero, 1, y, 0);
        assert_true(isnan(y[0]) && isnan(y[1]));
    }
}

/* Checks the shorter polynomials of results in bf16 by their stated errors, and that attention's weights times their
 * factor are the softmax. */
TEST_CASE(short_polynomials)
{
    for (double x = -126; x <= 1; x += 0.00173) {
        const float y = softmax_power(all((float)x))[0];
        const double expected = exp2((double)(float)x);
        if (!(fabs(y - expected) <= 4e-6 * expected)) fail_msg("2^%g = %g", x, (double)y);
    }
    assert_true(softmax_power(all(-INFINITY))[0] > 0 && isnan(softmax_power(all(NAN))[0]));
    for (double x = -20; x <= 20; x += 0.00173) {
        const float y = gelu_bf16_v(all((float)x))[0];
        const double at = (float)x, expected = at / 2 * (1 + erf(at * 0.70710678118654752));
        if (!(fabs(y - expected) <= 2.3e-5 * fabs(at) / 2 + 1e-7)) fail_msg("gelu(%g) = %g", x, (double)y);
    }
    assert_true(isnan(gelu_bf16_v(all(NAN))[0]) && gelu_bf16_v(all(-1000))[0] == 0);
    enum { N = 77 };
    float scores[N];
    double sum = 0;
    for (int i = 0; i < N; i++) sum += exp(0.5 * (scores[i] = (float)(i * 29 % 83) / 5));
    uint16_t y[N];
    const float factor = gemm_best(GEMM_BF16)->softmax(scores, N, 0.5f, y);
    for (int i = 0; i < N; i++) {
        const uint32_t bits = (uint32_t)y[i] << 16;
        float weight;
        memcpy(&weight, &bits, sizeof weight);
        const double expected = exp(0.5 * (i * 29 % 83) / 5.0) / sum;
        if (!(fabs(weight * factor - expected) <= 0.004 * expected)) fail_msg("weight %d: %g", i, (double)weight);
    }
}

/* Checks that a NaN anywhere makes the whole row of attention's weights NaN. */
TEST_CASE(softmax_keeps_nan)
{
    enum { MOST = 200 };
    static const int lengths[] = {1, 15, 20, 64, 77, MOST};
    for (int t = GEMM_F32; t <= GEMM_BF16; t++)
        for (int l = 0; l < 6; l++)
            for (int at = 0; at < lengths[l]; at++) {
                float scores[MOST], y[MOST] = {0};
                for (int i = 0; i < lengths[l]; i++) scores[i] = (float)(i % 9);
                scores[at] = NAN;
                const float factor = gemm_best((gemm_type)t)->softmax(scores, lengths[l], 0.5f, y);
                for (int i = 0; i < lengths[l]; i++) {
                    uint16_t half;
                    memcpy(&half, (uint16_t *)(void *)y + i, sizeof half);
                    assert_true(isnan(factor) || (t == GEMM_F32 ? isnan(y[i]) : (half & 0x7fff) > 0x7f80));
                }
            }
}

/* Checks that gating by tiles has the bits of a product that is gated afterwards, for any number of threads, and that
 * the products are there if the queue watches. Some shapes have no tiles. */
TEST_CASE(gated_products)
{
    enum { IN = 96, MOST = 200, WIDEST = 512 };
    static const int shapes[][2] = {{64, 256}, {65, 256}, {200, 512}, {137, 384}, {140, 200}, {128, 128}, {192, 128}};
    static float weight[WIDEST * IN], bias[WIDEST], numbers[MOST * IN];
    for (int i = 0; i < WIDEST * IN; i++) weight[i] = (float)(i * 37 % 101 - 50) / 100;
    for (int i = 0; i < WIDEST; i++) bias[i] = (float)(i % 7 - 3);
    for (int i = 0; i < MOST * IN; i++) numbers[i] = (float)(i * 53 % 97 - 48) / 30;
    for (int i = 0; i < 7 * 3 * 4; i++) {
        const int *shape = shapes[i % 7], rows = shape[0], out = shape[1], threads = 1 + i / 7 % 3;
        const mar_dtype dtypes[] = {MAR_DTYPE_F32, MAR_DTYPE_BF16, MAR_DTYPE_INT8, MAR_DTYPE_INT4};
        const kern_activation activation = i % 2 ? KERN_SILU : KERN_GELU_TANH;
        const kern_linear_spec spec = {.out = out, .in = IN, .weight = weight, .bias = bias, .flags = KERN_LOW};
        kern_queue *k = open_queue(dtypes[i / 21], threads);
        const size_t size = k->device->act_size, n = (size_t)rows * (size_t)out;
        char *x = backend_memory(k, MOST * IN * size), *hidden = backend_memory(k, n * size),
             *again = backend_memory(k, n * size), *want = backend_memory(k, n * size),
             *y = backend_memory(k, n * size);
        kern_linear *l;
        mar_err err = {0};
        assert_ok(k->core->linear_create(k, &spec, &l, &err), &err);
        assert_ok(k->core->linear_plan(k, l, rows, &err), &err);
        k->core->to_act(k, numbers, (size_t)rows * IN, x);
        k->core->linear(k, l, x, rows, hidden);
        k->core->gated(k, hidden, rows, out / 2, activation, want);
        for (int watch = 0; watch <= 1; watch++) {
            memset(y, 0, n * size);
            memset(again, 0, n * size);
            k->watch.on = watch;
            k->fused->linear_gated(k, l, x, rows, activation, again, y);
            assert_ok(kern_check(k, &err), &err);
            assert_memory_equal(y, want, n / 2 * size);
            for (size_t b = n / 2 * size; b < n * size; b++) assert_int_equal(y[b], 0);
            const int tiles = !watch && out % 128 == 0 && rows > 64 && rows >= 64 * k->device->threads;
            if (!tiles) assert_memory_equal(again, hidden, n * size);
            if (tiles && out > 128) assert_memory_not_equal(again, hidden, n * size); /* else the same rows may stand */
        }
        k->core->linear_free(k->device, l);
        char *arrays[] = {x, hidden, again, want, y};
        for (int a = 0; a < 5; a++) k->core->free(k->device, arrays[a]);
        close_queue(k);
    }
}

static void assert_unplanned(kern_queue *k, const char *says)
{
    mar_err err = {0};
    assert_int_equal(kern_check(k, &err), MAR_EBACKEND);
    assert_string_equal(err.text, says);
    k->core->recover(k);
}

/* Checks that operations fail without a plan, as they allocate nothing, and that a plan covers smaller calls. The other
 * operations with plans are in tests/ops/test_conv.c. */
TEST_CASE(unplanned_calls_fail)
{
    enum { QUERIES = 2, KEYS = 3000, IN = 33, ROWS = 200 };
    static const float weight[IN], zeros[KEYS * IN];
    static float y[QUERIES * KEYS], cache_zeros[KEYS * 2 * 8];
    static int slot[KEYS];
    const int zero = 0, queries = QUERIES, keys = KEYS, row[2] = {0, 1}, first[2] = {0, KEYS}, common = KEYS;
    const kern_linear_spec spec = {.out = 1, .in = IN, .weight = weight, .flags = KERN_OUT_F32 | KERN_LOW};
    const kern_cache_job cache = {.rows = 1,
                                  .heads = 1,
                                  .head_dim = 8,
                                  .kv_heads = 1,
                                  .q = zeros,
                                  .q_stride = 8,
                                  .cache = cache_zeros,
                                  .spans = 1,
                                  .row = row,
                                  .first = first,
                                  .common = &common,
                                  .slot = slot,
                                  .max_slots = KEYS,
                                  .y = y};
    mar_err err = {0};
    for (int dtype = MAR_DTYPE_F32; dtype <= MAR_DTYPE_INT8; dtype++) {
        kern_queue *k = open_queue((mar_dtype)dtype, 1);
        if (!k) continue;
        k->core->attention(k, zeros, 8, zeros, zeros, 8, 1, QUERIES, KEYS, 1, 8, y);
        assert_unplanned(k, "attention of 2 queries to 3000 keys without a plan");
        k->core->attention_spans(k, zeros, 8, &zero, &queries, zeros, zeros, 8, &zero, &keys, 1, 1, 8, NULL, 0, y);
        assert_unplanned(k, "attention of 2 queries to 3000 keys without a plan");
        k->core->attention_cache(k, &cache);
        assert_unplanned(k, "attention over 3000 slots of a cache without a plan");
        assert_ok(k->core->attention_plan(k, 0, KEYS, 1, 8, 8, 8, &err), &err); /* no queries need no memory */
        assert_ok(k->core->attention_plan(k, QUERIES + 1, KEYS + 1, 1, 8, 8, 8, &err), &err);
        k->core->attention(k, zeros, 8, zeros, zeros, 8, 1, QUERIES, KEYS, 1, 8, y);
        assert_ok(k->core->attention_cache_plan(k, KEYS + 1, 8, 0, &err), &err);
        k->core->attention_cache(k, &cache);
        assert_ok(kern_check(k, &err), &err);
        kern_linear *l;
        assert_ok(k->core->linear_create(k, &spec, &l, &err), &err);
        k->core->linear(k, l, zeros, ROWS, y);
        if (dtype != MAR_DTYPE_F32) assert_unplanned(k, "product of 200 rows with 1 x 33 weights without a plan");
        assert_ok(k->core->linear_plan(k, l, ROWS, &err), &err);
        k->core->linear(k, l, zeros, ROWS, y);
        k->core->linear(k, l, zeros, ROWS - 1, y);
        assert_ok(kern_check(k, &err), &err);
        k->core->linear_free(k->device, l);
        close_queue(k);
    }
}

/* Checks the trace behind mar_session_measure: one row for all calls of the same sizes. */
TEST_CASE(traced_spans)
{
    enum { ROWS = 12, DIM = 4, WIDTH = 2 * DIM };
    static const int n_q[] = {5, 0, 2}, n_k[] = {3, 100, 4}, q_first[] = {0, 5, 6}, k_first[] = {0, 3, 3};
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    static const float x[ROWS * WIDTH];
    float y[ROWS * WIDTH];
    kern_trace *trace;
    mar_err err = {0};
    int count;
    assert_ok(k->core->attention_plan(k, 5, 4, 2, DIM, WIDTH, WIDTH, &err), &err);
    assert_ok(kern_trace_begin(k, &trace, &err), &err);
    for (int i = 0; i < 2; i++)
        k->core->attention_spans(k, x, WIDTH, q_first, n_q, x, x, WIDTH, k_first, n_k, 3, 2, DIM, NULL, 0, y);
    k->core->attention_spans(k, x, WIDTH, q_first, n_q, x, x, WIDTH, k_first, n_k, 0, 2, DIM, NULL, 0, y);
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
    close_queue(k);
}

/* Checks the traced bytes: state, x0 and fraction of every path at every index; eps and v of both conditions. */
TEST_CASE(traced_paths)
{
    enum { PATHS = 2, CHANNELS = 4, STEPS = 30, STRIDE = STEPS * KERN_EVALUATED * CHANNELS };
    static float path[PATHS * STRIDE], out[2 * PATHS * STEPS * 2 * CHANNELS], cfg[PATHS], last[PATHS * CHANNELS];
    static const kern_chain_coef coef[STEPS];
    double log_ratio[PATHS];
    const uint64_t seed[PATHS] = {1, 3}, image[PATHS] = {1, 2};
    const int zero[PATHS] = {0, 0};
    int marked[PATHS], first, count;
    kern_queue *k = open_queue(MAR_DTYPE_F32, 1);
    kern_trace *trace;
    mar_err err = {0};
    const kern_path_job job = {PATHS, CHANNELS, 2, STEPS, STRIDE, path, out, coef, cfg, 0, log_ratio, last};
    const kern_path_verdict verdict = {PATHS, 0, log_ratio, 2, seed, image, zero, zero, zero, 1, marked, &first};
    assert_ok(kern_trace_begin(k, &trace, &err), &err);
    k->head->path_ratio(k, &job);
    k->head->path_ratio(k, &job);
    k->head->path_decide(k, &verdict);
    kern_trace_end(trace);
    const kern_traced *rows = kern_trace_rows(trace, &count);
    assert_int_equal(count, 2);
    assert_string_equal(rows[0].name, "path ratio, 30 steps");
    assert_int_equal(rows[0].rows, PATHS);
    assert_int_equal(rows[0].calls, 2);
    assert_true(rows[0].bytes == 2 * 4.0 * PATHS * STEPS * CHANNELS * (3 + 2 * 2));
    assert_string_equal(rows[1].name, "path verdict");
    assert_int_equal(rows[1].rows, PATHS);
    kern_trace_free(trace);
    close_queue(k);
}
