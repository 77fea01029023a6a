/* Attention of the CUDA backend against the CPU's in f32, on the same operands. */
#include "tests/support/device.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    int n_seq, n_q, n_k, heads, dim;
    int skew;    /* extra elements of q's and k's rows; an odd number leaves them unaligned */
    float scale; /* of the queries; larger makes the softmax sharper */
} attention_case;

static const attention_case cases[] = {
    {2, 19, 19, 2, 16, 0, 1},  {1, 37, 70, 2, 32, 0, 4},  {1, 320, 320, 1, 64, 0, 2}, {2, 33, 320, 1, 80, 0, 3},
    {1, 1, 1, 1, 64, 0, 1},    {1, 20, 65, 1, 128, 0, 1}, {2, 7, 64, 3, 48, 0, 500},  {1, 16, 129, 1, 112, 8, 1},
    {2, 9, 24, 2, 8, 0, 1},    {1, 21, 130, 2, 20, 0, 2}, {2, 30, 67, 2, 32, 1, 1},   {1, 36, 36, 1, 512, 0, 3},
    {1, 5, 70, 1, 1024, 0, 1},
};
enum { CASES = sizeof cases / sizeof *cases };

/* Operands: q [n_seq*n_q][q_stride], k and v side by side [n_seq*n_k][kv_stride], as floats that are exact in bf16. */
typedef struct {
    size_t n_q, n_kv;
    int q_stride, kv_stride;
    float *q, *kv;
} operands;

/* With as many queries as keys, q and kv are one interleaved array, as the models' qkv is; kv points after q. */
static int interleaved(const attention_case *a)
{
    return a->n_q == a->n_k;
}

static float *rounded(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0xffff0000u;
        memcpy(&x[i], &bits, sizeof bits);
    }
    return x;
}

static operands draw(const attention_case *a, uint64_t seed)
{
    const int width = a->heads * a->dim;
    operands o = {.q_stride = (interleaved(a) ? 3 : 1) * width + a->skew};
    o.kv_stride = interleaved(a) ? o.q_stride : 2 * width + a->skew;
    o.n_q = (size_t)(a->n_seq * a->n_q) * (size_t)o.q_stride;
    o.n_kv = interleaved(a) ? 0 : (size_t)(a->n_seq * a->n_k) * (size_t)o.kv_stride;
    o.q = rounded(random_floats(o.n_q, 1, seed), o.n_q);
    o.kv = rounded(random_floats(o.n_kv, 1, seed + 1), o.n_kv);
    for (size_t i = 0; i < o.n_q; i++)
        if (i % (size_t)o.q_stride < (size_t)width) o.q[i] *= a->scale;
    rounded(o.q, o.n_q);
    return o;
}

static void operands_free(operands *o)
{
    free(o->q), free(o->kv);
}

static size_t result_size(const attention_case *a)
{
    return (size_t)(a->n_seq * a->n_q * a->heads * a->dim);
}

static float *attend(kern_queue *k, const attention_case *a, const operands *o)
{
    mar_err err = {0};
    const size_t width = (size_t)(a->heads * a->dim) * k->device->act_size;
    char *q = to_act(k, o->q, o->n_q), *kv = interleaved(a) ? NULL : to_act(k, o->kv, o->n_kv);
    const char *key = kv ? kv : q + width;
    void *y = to_device(k, NULL, result_size(a) * k->device->act_size);
    assert_ok(k->core->attention_plan(k, a->n_q, a->n_k, a->heads, a->dim, o->q_stride, o->kv_stride, &err), &err);
    k->core->attention(k, q, o->q_stride, key, key + width, o->kv_stride, a->n_seq, a->n_q, a->n_k, a->heads, a->dim,
                       y);
    float *result = act_to_floats(k, y, result_size(a));
    k->core->free(k->device, q), k->core->free(k->device, kv), k->core->free(k->device, y);
    return result;
}

static void check_cases(mar_dtype dtype, double tolerance)
{
    kern_queue *cpu = open_cpu(), *cuda = open_cuda(dtype);
    for (int i = 0; i < CASES; i++) {
        attention_case a = cases[i];
        a.n_seq *= cuda_test_scale();
        operands o = draw(&a, 100 + (uint64_t)i);
        float *want = attend(cpu, &a, &o), *got = attend(cuda, &a, &o);
        const double error = relative_error(got, want, result_size(&a));
        if (!(error <= tolerance))
            fail_msg("%d sequences, %d queries, %d keys, %d heads of %d: relative error %.3g, allowed %.3g", a.n_seq,
                     a.n_q, a.n_k, a.heads, a.dim, error, tolerance);
        operands_free(&o);
        free(want), free(got);
    }
    close_queue(cpu);
    close_queue(cuda);
}

static void f32_is_the_cpus(void **unused)
{
    (void)unused;
    check_cases(MAR_DTYPE_F32, 5e-6);
}

/* Weights and result are rounded to 8 bits. */
static void bf16_is_near(void **unused)
{
    (void)unused;
    check_cases(MAR_DTYPE_BF16, 3e-3);
}

/* When sequence 1 of 3 changes, no bit of the others does. */
static void check_independence(mar_dtype dtype, const attention_case *a)
{
    kern_queue *k = open_cuda(dtype);
    operands o = draw(a, 7);
    const size_t n = result_size(a) / 3, q = o.n_q / 3, kv = o.n_kv / 3;
    float *before = attend(k, a, &o);
    for (size_t i = q; i < 2 * q; i++) o.q[i] = -o.q[i];
    for (size_t i = kv; i < 2 * kv; i++) o.kv[i] += 1;
    float *after = attend(k, a, &o);
    assert_memory_equal(before, after, n * sizeof *before);
    assert_memory_equal(before + 2 * n, after + 2 * n, n * sizeof *before);
    assert_true(relative_error(after + n, before + n, n) > 0.1);
    operands_free(&o);
    free(before), free(after);
    close_queue(k);
}

static void sequences_are_independent(void **unused)
{
    (void)unused;
    const attention_case a = {3, 18, 70, 2, 16, 0, 1}, odd = {3, 6, 6, 1, 20, 0, 1};
    check_independence(MAR_DTYPE_BF16, &a);
    check_independence(MAR_DTYPE_BF16, &odd);
    check_independence(MAR_DTYPE_F32, &a);
}

/* --- sequences of different lengths -------------------------------------------------------------------------- */

enum { SPANS = 6, ROWS = 400 /* of each array at most */ };

/* Sequences, in arrays whose rows belong to nobody at the beginning and behind every other sequence. */
typedef struct {
    int n_q[SPANS], n_k[SPANS], q_first[SPANS], k_first[SPANS];
    int count;
} spans;

/* Sequence `count / 2` comes first in the arrays, and after the last one the first. */
static spans place(int count, const int *n_q, const int *n_k)
{
    spans s = {.count = count};
    int row = 3, key = 5;
    for (int i = 0; i < count; i++) {
        const int n = (i + count / 2) % count;
        s.n_q[n] = n_q[n], s.n_k[n] = n_k[n];
        s.q_first[n] = row, s.k_first[n] = key;
        row += n_q[n] + i % 2 * 2, key += n_k[n] + i % 2 * 3;
    }
    assert_true(row <= ROWS && key <= ROWS);
    return s;
}

static spans ragged(void)
{
    const int n_q[SPANS] = {19, 1, 0, 40, 7, 100}, n_k[SPANS] = {19, 70, 5, 64, 130, 33};
    return place(SPANS, n_q, n_k);
}

/* Operands of a backend: q [ROWS][width + skew], k and v side by side [ROWS][2 width + skew], y [ROWS][width]. */
typedef struct {
    kern_queue *k;
    int heads, dim, skew;
    char *q, *kv, *y;
    const spans *s; /* of the next call */
} spans_case;

static size_t spans_result(const spans_case *c)
{
    return (size_t)(ROWS * c->heads * c->dim);
}

/* The numbers that y begins with, exact in bf16. The caller frees them. */
static float *old_rows(const spans_case *c)
{
    return rounded(random_floats(spans_result(c), 1, 77), spans_result(c));
}

static spans_case spans_open(kern_queue *k, int heads, int dim, int skew)
{
    spans_case c = {.k = k, .heads = heads, .dim = dim, .skew = skew};
    const size_t width = (size_t)(heads * dim), n_q = ROWS * (width + (size_t)skew), n_kv = n_q + ROWS * width;
    float *q = rounded(random_floats(n_q, 2, 55), n_q), *kv = rounded(random_floats(n_kv, 1, 66), n_kv);
    c.q = to_act(k, q, n_q), c.kv = to_act(k, kv, n_kv), c.y = to_act(k, q, spans_result(&c));
    free(q), free(kv);
    return c;
}

static void spans_close(spans_case *c)
{
    c->k->core->free(c->k->device, c->q), c->k->core->free(c->k->device, c->kv), c->k->core->free(c->k->device, c->y);
}

static void spans_plan(const spans_case *c, const spans *s)
{
    const int width = c->heads * c->dim;
    mar_err err = {0};
    for (int i = 0; i < s->count; i++)
        if (s->n_q[i] > 0)
            assert_ok(c->k->core->attention_plan(c->k, s->n_q[i], s->n_k[i], c->heads, c->dim, width + c->skew,
                                                 2 * width + c->skew, &err),
                      &err);
}

static void spans_body(void *arg)
{
    const spans_case *c = arg;
    const spans *s = c->s;
    const int width = c->heads * c->dim;
    c->k->core->attention_spans(c->k, c->q, width + c->skew, s->q_first, s->n_q, c->kv,
                                c->kv + (size_t)width * c->k->device->act_size, 2 * width + c->skew, s->k_first, s->n_k,
                                s->count, c->heads, c->dim, c->y);
}

/* All of y after a call, in a recording if there is one. The caller frees it. */
static float *attend_spans(spans_case *c, const spans *s, kern_recording **recording)
{
    float *old = old_rows(c);
    char *fresh = to_act(c->k, old, spans_result(c));
    c->k->core->copy_rows(c->k, (float *)c->y, NULL, (const float *)fresh, NULL, NULL, NULL, ROWS,
                          c->heads * c->dim * (int)c->k->device->act_size / 4);
    c->s = s;
    if (recording)
        c->k->core->replay(c->k, recording, spans_body, c);
    else
        spans_body(c);
    float *y = act_to_floats(c->k, c->y, spans_result(c));
    c->k->core->free(c->k->device, fresh);
    free(old);
    return y;
}

/* Fails unless rows of y that nobody asks with are as they were. */
static void check_others(const spans_case *c, const spans *s, const float *y)
{
    const size_t width = (size_t)(c->heads * c->dim);
    float *old = old_rows(c);
    int asked = 0;
    for (int r = 0; r < ROWS; r++) {
        int mine = 0;
        for (int i = 0; i < s->count; i++) mine |= r >= s->q_first[i] && r < s->q_first[i] + s->n_q[i];
        asked += mine;
        if (!mine && memcmp(y + (size_t)r * width, old + (size_t)r * width, width * sizeof *y) != 0)
            fail_msg("row %d, which no sequence asks with, was written", r);
    }
    assert_true(asked > 0 && asked < ROWS);
    free(old);
}

static void check_spans(mar_dtype dtype, double tolerance, int heads, int dim, int skew)
{
    const spans all = ragged();
    kern_queue *cpu = open_cpu(), *cuda = open_cuda(dtype);
    spans_case a = spans_open(cpu, heads, dim, skew), b = spans_open(cuda, heads, dim, skew);
    spans_plan(&a, &all), spans_plan(&b, &all);
    float *want = attend_spans(&a, &all, NULL), *got = attend_spans(&b, &all, NULL);
    const size_t width = (size_t)(heads * dim);
    for (int i = 0; i < SPANS; i++) { /* each by itself, so that a short one counts */
        const size_t at = (size_t)all.q_first[i] * width, n = (size_t)all.n_q[i] * width;
        const double error = n ? relative_error(got + at, want + at, n) : 0;
        if (!(error <= tolerance))
            fail_msg("%d queries, %d keys, %d heads of %d: relative error %.3g, allowed %.3g", all.n_q[i], all.n_k[i],
                     heads, dim, error, tolerance);
    }
    check_others(&b, &all, got);
    for (int i = 0; i < SPANS; i++) { /* no bit depends on the sequences beside it */
        spans one = {.count = 1};
        one.n_q[0] = all.n_q[i], one.n_k[0] = all.n_k[i], one.q_first[0] = all.q_first[i];
        one.k_first[0] = all.k_first[i];
        float *alone = attend_spans(&b, &one, NULL);
        assert_memory_equal(alone + (size_t)one.q_first[0] * width, got + (size_t)one.q_first[0] * width,
                            (size_t)one.n_q[0] * width * sizeof *got);
        free(alone);
    }
    spans_close(&a), spans_close(&b);
    free(want), free(got);
    close_queue(cpu);
    close_queue(cuda);
}

static void spans_are_the_cpus(void **unused)
{
    (void)unused;
    check_spans(MAR_DTYPE_F32, 5e-6, 2, 16, 0);
    check_spans(MAR_DTYPE_F32, 5e-6, 1, 80, 1);
    check_spans(MAR_DTYPE_BF16, 4e-3, 2, 16, 0);
    check_spans(MAR_DTYPE_BF16, 4e-3, 2, 64, 0);
    check_spans(MAR_DTYPE_BF16, 4e-3, 1, 80, 8);
    check_spans(MAR_DTYPE_BF16, 4e-3, 1, 128, 0);
    check_spans(MAR_DTYPE_BF16, 4e-3, 2, 16, 2); /* rows that are not aligned */
    check_spans(MAR_DTYPE_BF16, 4e-3, 1, 20, 0);
}

/* A recording is made with short sequences, for which a block has two warps, and replayed with longer ones and with
 * none. */
static void recorded_spans_may_change(void **unused)
{
    (void)unused;
    const int short_q[SPANS] = {3, 0, 2, 20, 1, 1}, short_k[SPANS] = {3, 9, 64, 16, 1, 65}, none[SPANS] = {0};
    const spans first = place(SPANS, short_q, short_k), longer = ragged(), nobody = place(SPANS, none, short_k);
    const spans *const uses[] = {&first, &first, &longer, &nobody, &first, &longer};
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int empty = 0; empty < 2; empty++) { /* recorded while all counts are 0 */
            kern_queue *k = open_cuda(bf16 ? MAR_DTYPE_BF16 : MAR_DTYPE_F32);
            kern_recording *recording = NULL;
            spans_case c = spans_open(k, 2, 32, 0);
            spans_plan(&c, &longer);
            for (int i = 0; i < 6; i++) {
                const spans *s = empty && i < 2 ? &nobody : uses[i];
                float *want = attend_spans(&c, s, NULL), *got = attend_spans(&c, s, &recording);
                assert_memory_equal(got, want, spans_result(&c) * sizeof *got);
                free(want), free(got);
            }
            assert_int_equal(k->recordings, 1);
            k->core->recording_free(k, recording);
            spans_close(&c);
            close_queue(k);
        }
}

static void nothing_is_no_work(void **unused)
{
    (void)unused;
    kern_queue *k = open_cuda(MAR_DTYPE_BF16);
    k->core->attention(k, NULL, 64, NULL, NULL, 128, 0, 4, 4, 1, 64, NULL);
    k->core->attention(k, NULL, 64, NULL, NULL, 128, 2, 0, 4, 1, 64, NULL);
    k->core->attention_spans(k, NULL, 64, NULL, NULL, NULL, NULL, 128, NULL, NULL, 0, 1, 64, NULL);
    k->core->finish(k);
    check_kern(k);
    close_queue(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_is_the_cpus),           cmocka_unit_test(bf16_is_near),
        cmocka_unit_test(sequences_are_independent), cmocka_unit_test(spans_are_the_cpus),
        cmocka_unit_test(recorded_spans_may_change), cmocka_unit_test(nothing_is_no_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
