/* Attention. A task is one head of one sequence, or a block of queries for a single head. oneDNN 2.6 is fast on dense
 * matrices only, so a task copies its head's rows out of the interleaved qkv once. The copies and a block's scores stay
 * in the core's L2. */
#include "kernels/cpu/cpu.h"

#include <math.h>

enum {
    QUERY_BLOCK = 160,
    SPANS = 64, /* sequences of one loop over spans, enough to keep many threads busy */
};

typedef struct {
    const dnn_primitive *scores, *values;
} attention_pair;

/* The shape of a call, and a thread's buffers within cpu_queue.work. */
typedef struct {
    int n_q, n_k, dim, block, blocks;
    attention_pair whole, rest;                        /* products of a full block, and of a smaller last one */
    size_t key, value, scores, weights, result, total; /* offsets; the query is at 0 */
} attention_plan;

static size_t aligned(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static mar_status products(cpu_queue *k, int n_q, int n_k, int dim, attention_pair *out, mar_err *err)
{
    const dnn_matmul_spec scores = {.m = n_q,
                                    .n = n_k,
                                    .k = dim,
                                    .lda = dim,
                                    .ldb = dim,
                                    .ldc = n_k,
                                    .bf16 = k->d->bf16,
                                    .c_f32 = 1,
                                    .b_transposed = 1};
    const dnn_matmul_spec values = {
        .m = n_q, .n = dim, .k = n_k, .lda = n_k, .ldb = dim, .ldc = dim, .bf16 = k->d->bf16};
    mar_status status = cpu_matmul(k, &scores, &out->scores, err);
    return status == MAR_OK ? cpu_matmul(k, &values, &out->values, err) : status;
}

static mar_status make_plan(cpu_queue *k, int n_q, int n_k, int dim, attention_plan *p, mar_err *err)
{
    const size_t act_size = k->d->base.act_size;
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

mar_status cpu_attention_plan(kern_queue *k, int n_q, int n_k, int heads, int head_dim, int q_stride, int kv_stride,
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

/* A sequence of a call: its first rows, and its first task. */
typedef struct {
    const attention_plan *plan;
    size_t q_row, k_row;
    int task;
} attention_span;

/* A call; strides are in bytes. */
typedef struct {
    cpu_queue *queue;
    const char *q, *key, *value;
    size_t q_stride, kv_stride, y_stride;
    int heads;
    char *y;
    const attention_plan *same; /* plan of all sequences, whose rows follow one another; NULL: there are spans */
    const attention_span *spans;
    int count; /* number of spans */
} attention_call;

/* Returns a call without its sequences. */
static attention_call call_of(kern_queue *k, const act *q, int q_stride, const act *key, const act *value,
                              int kv_stride, int heads, int head_dim, act *y)
{
    const size_t size = k->device->act_size;
    return (attention_call){.queue = cpu_of(k),
                            .q = q,
                            .key = key,
                            .value = value,
                            .q_stride = (size_t)q_stride * size,
                            .kv_stride = (size_t)kv_stride * size,
                            .y_stride = (size_t)(heads * head_dim) * size,
                            .heads = heads,
                            .y = y};
}

/* Returns the number of tasks per head of a sequence. */
static int parts_of(const attention_call *c, const attention_plan *p)
{
    return c->heads == 1 ? p->blocks : 1;
}

/* Computes queries first .. last-1 of one head. q, key, value and y point at the head's first row and column. */
static void attend(const attention_call *call, const attention_plan *p, const char *q, const char *key,
                   const char *value, char *y, int first, int last, int thread)
{
    cpu_queue *k = call->queue;
    const kern_device *d = &k->d->base;
    const size_t row = (size_t)p->dim * d->act_size;
    const float scale = 1.0f / sqrtf((float)p->dim);
    char *work = k->work[thread];
    float *scores = (float *)(work + p->scores);
    copy_block(work + p->key, row, key, call->kv_stride, p->n_k, row);
    copy_block(work + p->value, row, value, call->kv_stride, p->n_k, row);
    for (int i = first; i < last; i += p->block) {
        const int count = last - i < p->block ? last - i : p->block;
        const attention_pair *pair = count == p->block ? &p->whole : &p->rest;
        copy_block(work, row, q + (size_t)i * call->q_stride, call->q_stride, count, row);
        if (!cpu_ran(k, dnn_matmul_run(pair->scores, cpu_operands(k, pair->scores, thread), work, NULL, work + p->key,
                                       NULL, scores, k->scratch[thread])))
            return;
        for (int r = 0; r < count; r++)
            k->d->rows->softmax(scores + (size_t)r * (size_t)p->n_k, p->n_k, scale,
                                act_at(d, work + p->weights, (size_t)r * (size_t)p->n_k), k->d->bf16);
        cpu_ran(k, dnn_matmul_run(pair->values, cpu_operands(k, pair->values, thread), work + p->weights, NULL,
                                  work + p->value, NULL, work + p->result, k->scratch[thread]));
        copy_block(y + (size_t)i * call->y_stride, call->y_stride, work + p->result, row, count, row);
    }
}

/* Computes task number `task` of a sequence. */
static void attend_task(const attention_call *c, const attention_span *s, int task, int thread)
{
    const attention_plan *p = s->plan;
    const int parts = parts_of(c, p);
    const size_t column = (size_t)(task / parts) * (size_t)p->dim * c->queue->d->base.act_size;
    const int first = parts == 1 ? 0 : task % parts * p->block;
    const int last = parts == 1 || first + p->block > p->n_q ? p->n_q : first + p->block;
    attend(c, p, c->q + s->q_row * c->q_stride + column, c->key + s->k_row * c->kv_stride + column,
           c->value + s->k_row * c->kv_stride + column, c->y + s->q_row * c->y_stride + column, first, last, thread);
}

static void attention_body(void *arg, int from, int to, int thread)
{
    const attention_call *c = arg;
    const attention_plan *p = c->same;
    const int tasks = c->heads * parts_of(c, p); /* per sequence */
    for (int task = from; task < to; task++) {
        const size_t sequence = (size_t)(task / tasks);
        const attention_span s = {p, sequence * (size_t)p->n_q, sequence * (size_t)p->n_k, 0};
        attend_task(c, &s, task % tasks, thread);
    }
}

static void spans_body(void *arg, int from, int to, int thread)
{
    const attention_call *c = arg;
    int i = c->count - 1;
    while (c->spans[i].task > from) i--;
    for (int task = from; task < to; task++) {
        if (i + 1 < c->count && c->spans[i + 1].task == task) i++;
        attend_task(c, &c->spans[i], task - c->spans[i].task, thread);
    }
}

void cpu_attention(kern_queue *k, const act *q, int q_stride, const act *key, const act *value, int kv_stride,
                   int n_seq, int n_q, int n_k, int heads, int head_dim, act *y)
{
    attention_call c = call_of(k, q, q_stride, key, value, kv_stride, heads, head_dim, y);
    attention_plan plan;
    mar_err err = {0};
    if (n_seq <= 0 || n_q <= 0 || !kern_live(k)) return;
    mar_status status = make_plan(c.queue, n_q, n_k, head_dim, &plan, &err);
    if (status != MAR_OK) {
        kern_fail(k, status, &err);
        return;
    }
    c.same = &plan;
    cpu_for(c.queue, n_seq * heads * parts_of(&c, &plan), 2.0 * n_seq * n_q * n_k * heads * head_dim, attention_body,
            &c);
}

/* Finds the plan of a shape among the first *count of `plans`, or makes it. */
static mar_status plan_of(cpu_queue *k, int n_q, int n_k, int dim, attention_plan *plans, int *count,
                          const attention_plan **out, mar_err *err)
{
    int i = 0;
    while (i < *count && (plans[i].n_q != n_q || plans[i].n_k != n_k)) i++;
    *out = &plans[i];
    if (i < *count) return MAR_OK;
    const mar_status status = make_plan(k, n_q, n_k, dim, &plans[i], err);
    if (status == MAR_OK) ++*count;
    return status;
}

/* Computes the first n sequences, at most SPANS, in one loop, so that many short ones use all threads. */
static mar_status attend_spans(const attention_call *call, const int *q_first, const int *n_q, const int *k_first,
                               const int *n_k, int n, int head_dim, mar_err *err)
{
    attention_plan plans[SPANS];
    attention_span spans[SPANS];
    attention_call c = *call;
    int shapes = 0, tasks = 0;
    double work = 0;
    c.spans = spans, c.count = 0;
    for (int s = 0; s < n; s++) {
        if (n_q[s] <= 0) continue;
        attention_span *span = &spans[c.count++];
        const mar_status status = plan_of(c.queue, n_q[s], n_k[s], head_dim, plans, &shapes, &span->plan, err);
        if (status != MAR_OK) return status;
        span->q_row = (size_t)q_first[s];
        span->k_row = (size_t)k_first[s];
        span->task = tasks;
        tasks += c.heads * parts_of(&c, span->plan);
        work += 2.0 * n_q[s] * n_k[s] * c.heads * head_dim;
    }
    if (tasks) cpu_for(c.queue, tasks, work, spans_body, &c);
    return MAR_OK;
}

void cpu_attention_spans(kern_queue *k, const act *q, int q_stride, const int *q_first, const int *n_q, const act *key,
                         const act *value, int kv_stride, const int *k_first, const int *n_k, int n_seq, int heads,
                         int head_dim, act *y)
{
    const attention_call c = call_of(k, q, q_stride, key, value, kv_stride, heads, head_dim, y);
    for (int s = 0; s < n_seq && kern_live(k); s += SPANS) {
        mar_err err = {0};
        const mar_status status =
            attend_spans(&c, q_first + s, n_q + s, k_first + s, n_k + s, cpu_lesser(n_seq - s, SPANS), head_dim, &err);
        if (status != MAR_OK) kern_fail(k, status, &err);
    }
}
