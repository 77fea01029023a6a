/* Attention. A task is one head of one sequence, or a block of queries where there is a single head. oneDNN 2.6 has
 * fast products for dense matrices only, so a task copies its head's rows out of the interleaved qkv, once. The copies
 * and the scores of a block stay in the core's L2. */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <omp.h>

enum { QUERY_BLOCK = 160 };

typedef struct {
    const dnn_matmul *scores, *values;
} attention_pair;

/* The shape of a call, and a thread's buffers within cpu_kern.work. */
typedef struct {
    int n_q, n_k, dim, block, blocks;
    attention_pair whole, rest;                        /* products of a full block, and of a last, smaller one */
    size_t key, value, scores, weights, result, total; /* offsets; the query is at 0 */
} attention_plan;

static size_t aligned(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static mar_status products(cpu_kern *k, int n_q, int n_k, int dim, attention_pair *out, mar_err *err)
{
    const dnn_matmul_spec scores = {.m = n_q,
                                    .n = n_k,
                                    .k = dim,
                                    .lda = dim,
                                    .ldb = dim,
                                    .ldc = n_k,
                                    .bf16 = k->bf16,
                                    .c_f32 = 1,
                                    .b_transposed = 1};
    const dnn_matmul_spec values = {.m = n_q, .n = dim, .k = n_k, .lda = n_k, .ldb = dim, .ldc = dim, .bf16 = k->bf16};
    mar_status status = cpu_matmul(k, &scores, &out->scores, err);
    return status == MAR_OK ? cpu_matmul(k, &values, &out->values, err) : status;
}

static mar_status make_plan(cpu_kern *k, int n_q, int n_k, int dim, attention_plan *p, mar_err *err)
{
    const size_t act_size = k->base.act_size;
    *p = (attention_plan){.n_q = n_q, .n_k = n_k, .dim = dim, .block = n_q < QUERY_BLOCK ? n_q : QUERY_BLOCK};
    p->blocks = (n_q + p->block - 1) / p->block;
    const size_t rows = (size_t)p->block, keys = (size_t)n_k, width = (size_t)dim;
    p->key = aligned(rows * width * act_size);
    p->value = p->key + aligned(keys * width * act_size);
    p->scores = p->value + aligned(keys * width * act_size);
    p->weights = p->scores + aligned(rows * keys * sizeof(float));
    p->result = p->weights + aligned(rows * keys * act_size);
    p->total = p->result + aligned(rows * width * act_size);
    mar_status status = cpu_grow(k, k->work, &k->work_bytes, p->total, err);
    if (status == MAR_OK) status = products(k, p->block, n_k, dim, &p->whole, err);
    if (status == MAR_OK && n_q % p->block) status = products(k, n_q % p->block, n_k, dim, &p->rest, err);
    return status;
}

mar_status cpu_attention_plan(kern *k, int n_q, int n_k, int heads, int head_dim, int q_stride, int kv_stride,
                              mar_err *err)
{
    (void)heads, (void)q_stride, (void)kv_stride;
    attention_plan plan;
    return make_plan(cpu_of(k), n_q, n_k, head_dim, &plan, err);
}

/* Copies rows of `bytes` bytes from one stride to another. */
static void copy_block(char *dst, size_t dst_stride, const char *src, size_t src_stride, int rows, size_t bytes)
{
    for (int i = 0; i < rows; i++) memcpy(dst + (size_t)i * dst_stride, src + (size_t)i * src_stride, bytes);
}

/* Queries first .. last-1 of one head. q, key, value and y point at the head's first row and column; strides are in
 * bytes. */
static void attend(cpu_kern *k, const attention_plan *p, const char *q, size_t q_stride, const char *key,
                   const char *value, size_t kv_stride, char *y, size_t y_stride, int first, int last)
{
    const int thread = omp_get_thread_num();
    const size_t row = (size_t)p->dim * k->base.act_size;
    const float scale = 1.0f / sqrtf((float)p->dim);
    char *work = k->work[thread];
    float *scores = (float *)(work + p->scores);
    copy_block(work + p->key, row, key, kv_stride, p->n_k, row);
    copy_block(work + p->value, row, value, kv_stride, p->n_k, row);
    for (int i = first; i < last; i += p->block) {
        const int count = last - i < p->block ? last - i : p->block;
        const attention_pair *pair = count == p->block ? &p->whole : &p->rest;
        copy_block(work, row, q + (size_t)i * q_stride, q_stride, count, row);
        dnn_matmul_run(pair->scores, thread, work, NULL, work + p->key, NULL, scores, k->scratch[thread]);
        for (int r = 0; r < count; r++)
            k->rows->softmax(scores + (size_t)r * (size_t)p->n_k, p->n_k, scale,
                             act_at(&k->base, work + p->weights, (size_t)r * (size_t)p->n_k), k->bf16);
        dnn_matmul_run(pair->values, thread, work + p->weights, NULL, work + p->value, NULL, work + p->result,
                       k->scratch[thread]);
        copy_block(y + (size_t)i * y_stride, y_stride, work + p->result, row, count, row);
    }
}

void cpu_attention(kern *k, const act *q, int q_stride, const act *key, const act *value, int kv_stride, int n_seq,
                   int n_q, int n_k, int heads, int head_dim, act *y)
{
    cpu_kern *c = cpu_of(k);
    attention_plan p;
    mar_err err = {0};
    if (n_seq <= 0 || n_q <= 0) return;
    mar_status status = make_plan(c, n_q, n_k, head_dim, &p, &err);
    if (status != MAR_OK) {
        kern_fail(k, status, &err);
        return;
    }
    const int parts = heads == 1 ? p.blocks : 1;
    const size_t size = k->act_size, qs = (size_t)q_stride * size, ks = (size_t)kv_stride * size;
    const size_t ys = (size_t)(heads * head_dim) * size;
    const int team = cpu_team(c, 2.0 * n_seq * n_q * n_k * heads * head_dim);
#pragma omp parallel for num_threads(team) schedule(dynamic, 1)
    for (int task = 0; task < n_seq * heads * parts; task++) {
        const size_t seq = (size_t)(task / (heads * parts)), column = (size_t)(task / parts % heads * head_dim) * size;
        const size_t q_row = seq * (size_t)n_q, k_row = seq * (size_t)n_k;
        const int first = parts == 1 ? 0 : task % parts * p.block;
        const int last = parts == 1 || first + p.block > n_q ? n_q : first + p.block;
        attend(c, &p, (const char *)q + q_row * qs + column, qs, (const char *)key + k_row * ks + column,
               (const char *)value + k_row * ks + column, ks, (char *)y + q_row * ys + column, ys, first, last);
    }
}
