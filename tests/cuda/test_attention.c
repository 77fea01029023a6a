/* Attention of the CUDA backend against the CPU's in f32, on the same operands. */
#include "tests/cuda/support.h"

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

static void nothing_is_no_work(void **unused)
{
    (void)unused;
    kern_queue *k = open_cuda(MAR_DTYPE_BF16);
    k->core->attention(k, NULL, 64, NULL, NULL, 128, 0, 4, 4, 1, 64, NULL);
    k->core->attention(k, NULL, 64, NULL, NULL, 128, 2, 0, 4, 1, 64, NULL);
    k->core->finish(k);
    check_kern(k);
    close_queue(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_is_the_cpus),
        cmocka_unit_test(bf16_is_near),
        cmocka_unit_test(sequences_are_independent),
        cmocka_unit_test(nothing_is_no_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
