/* Attention. A task is one head of one sequence, or some blocks of queries for a single head. It packs the head's keys
 * and values as the weights of two products (gemm/gemm.h): queries times keys, then their softmax times values. The
 * blocks and the scores of a block of queries stay in the core's L2. */
#include "kernels/cpu/cpu.h"

#include <math.h>

enum {
    QUERY_BLOCK = GEMM_ROWS,
    TASK_BLOCKS = 2, /* of a task for a single head: each packs the keys and values */
    SPANS = 64,      /* sequences of one loop over spans, enough to keep many threads busy */
};

_Static_assert((int)QUERY_BLOCK >= (int)KERN_CACHE_GROUP_MAX, "a block has room for a group");

/* The shape of a call, and a thread's buffers within cpu_queue.work. */
typedef struct {
    int n_q, n_k, dim, block, blocks;            /* queries, keys, numbers of each; queries of a block, blocks */
    int key_words, value_words;                  /* words of a column of keys and of values */
    size_t key_bytes, value_bytes;               /* of a block of keys, and of values */
    size_t score_stride, weight_stride;          /* bytes from one row of scores, or of weights, to the next */
    size_t query_bytes;                          /* of a copied query; 0: queries are read where they are */
    size_t value, scores, weights, query, total; /* offsets; the keys are at 0 */
} attention_plan;

static size_t aligned(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Returns the bytes between rows: an odd number of cache lines, so that rows map to different cache sets. */
static size_t row_stride(size_t bytes)
{
    return ((bytes + 63) / 64 | 1) * 64;
}

static gemm_type attention_type(const cpu_queue *k)
{
    return k->d->bf16 ? GEMM_BF16 : GEMM_F32;
}

/* Returns the plan of a shape with at least one query. Fewer queries or keys need less memory. */
static attention_plan make_plan(const cpu_queue *k, int n_q, int n_k, int dim)
{
    const gemm_type type = attention_type(k);
    const int step = k->d->gemm[type]->step;
    attention_plan p = {.n_q = n_q, .n_k = n_k, .dim = dim, .block = cpu_lesser(n_q, QUERY_BLOCK)};
    p.blocks = cpu_divide_up(n_q, p.block);
    p.key_words = gemm_words(type, dim, step);
    p.value_words = gemm_words(type, n_k, step);
    p.key_bytes = gemm_block_bytes(type, p.key_words);
    p.value_bytes = gemm_block_bytes(type, p.value_words);
    p.score_stride = row_stride((size_t)n_k * sizeof(float));
    p.weight_stride = row_stride(4 * (size_t)p.value_words);
    p.value = (size_t)cpu_divide_up(n_k, GEMM_COLS) * p.key_bytes;
    p.scores = p.value + (size_t)cpu_divide_up(dim, GEMM_COLS) * p.value_bytes;
    p.weights = p.scores + (size_t)p.block * p.score_stride;
    p.query = p.weights + (size_t)p.block * p.weight_stride;
    p.query_bytes = type == GEMM_BF16 && dim % 2 ? 4 * (size_t)p.key_words : 0; /* padded to whole words */
    p.total = p.query + (size_t)p.block * p.query_bytes;
    return p;
}

/* Returns 1 if a plan made room for this one. Otherwise fails the queue and returns 0. */
static int attention_has_room(cpu_queue *k, const attention_plan *p)
{
    return cpu_planned(k, p->total <= k->work_bytes, "attention of %d queries to %d keys", p->n_q, p->n_k);
}

mar_status cpu_attention_plan(kern_queue *k, int n_q, int n_k, int heads, int head_dim, int q_stride, int kv_stride,
                              mar_err *err)
{
    (void)heads, (void)q_stride, (void)kv_stride;
    cpu_queue *c = cpu_of(k);
    return n_q > 0 ? cpu_work_room(c, make_plan(c, n_q, n_k, head_dim).total, err) : MAR_OK;
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
    int count;         /* number of spans */
    const float *bias; /* [heads][2 * reach + 1], or NULL */
    int reach;
} attention_call;

/* Returns a call without its sequences. */
static attention_call attention_call_of(kern_queue *k, const act *q, int q_stride, const act *key, const act *value,
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
static int attention_parts(const attention_call *c, const attention_plan *p)
{
    return c->heads == 1 ? cpu_divide_up(p->blocks, TASK_BLOCKS) : 1;
}

/* Packs a head's keys. */
static void attention_pack_keys(const attention_call *call, const attention_plan *p, const char *key, char *work)
{
    const gemm_type type = attention_type(call->queue);
    const gemm_kernel *kernel = call->queue->d->gemm[type];
    char *block = work;
    for (int c = 0; c < p->n_k; c += GEMM_COLS, block += p->key_bytes)
        gemm_pack_columns(kernel, type, key + (size_t)c * call->kv_stride, call->kv_stride,
                          cpu_lesser(p->n_k - c, GEMM_COLS), p->dim, p->key_words, block);
}

/* Packs a head's values. */
static void attention_pack_values(const attention_call *call, const attention_plan *p, const char *value, char *work)
{
    const gemm_type type = attention_type(call->queue);
    const gemm_kernel *kernel = call->queue->d->gemm[type];
    char *block = work + p->value;
    for (int c = 0; c < p->dim; c += GEMM_COLS, block += p->value_bytes)
        gemm_pack_rows(kernel, type, act_at(&call->queue->d->base, value, (size_t)c), call->kv_stride,
                       cpu_lesser(p->dim - c, GEMM_COLS), p->n_k, p->value_words, block);
}

/* Multiplies `rows` rows with the packed blocks of `cols` columns. `to` says where the results go. */
static void attention_multiply(const gemm_kernel *kernel, const gemm_rows *x, int rows, const char *blocks,
                               size_t block_bytes, int cols, const gemm_out *to)
{
    gemm_out out = *to;
    out.bias = gemm_no_bias;
    for (int c = 0; c < cols; c += GEMM_COLS, blocks += block_bytes) {
        out.cols = cpu_lesser(cols - c, GEMM_COLS);
        out.y = (char *)to->y + (size_t)c * (to->y_bf16 ? sizeof(uint16_t) : sizeof(float));
        kernel->product(x, rows, blocks, blocks, &out);
    }
}

/* Returns rows first .. first+count-1 of the queries, copied if their words are not whole. */
static gemm_rows queries_of(const attention_call *call, const attention_plan *p, const char *q, int first, int count,
                            char *copy)
{
    const size_t bytes = (size_t)p->dim * call->queue->d->base.act_size;
    gemm_rows rows = {.base = q + (size_t)first * call->q_stride,
                      .stride = call->q_stride,
                      .parts = 1,
                      .words = gemm_words(attention_type(call->queue), p->dim, 1),
                      .w_words = p->key_words};
    if (!p->query_bytes) return rows;
    for (int r = 0; r < count; r++) {
        memcpy(copy + (size_t)r * p->query_bytes, rows.base + (size_t)r * rows.stride, bytes);
        memset(copy + (size_t)r * p->query_bytes + bytes, 0, p->query_bytes - bytes);
    }
    rows.base = copy;
    rows.stride = p->query_bytes;
    return rows;
}

/* s[j] = s[j] * scale + bias of key j and this query, n keys. */
static void attention_add_bias(float *s, int n, float scale, const float *bias, int reach, int query)
{
    const int near = query - reach; /* the first key within reach */
    int j = 0;
    for (; j < n && j < near; j++) s[j] = s[j] * scale + bias[0];
    for (; j < n && j - near < 2 * reach; j++) s[j] = s[j] * scale + bias[j - near];
    for (; j < n; j++) s[j] = s[j] * scale + bias[2 * reach];
}

/* Returns the scores of a block's query number r. */
static float *scores_of(const attention_plan *p, char *work, int r)
{
    return (float *)(void *)(work + p->scores + (size_t)r * p->score_stride);
}

/* Returns the scores of a block as the results of a product. */
static gemm_out score_rows(const attention_plan *p, char *work)
{
    return (gemm_out){.y = scores_of(p, work, 0), .y_stride = p->score_stride / sizeof(float), .raw = 1};
}

/* Computes queries first .. last-1 of one head. q, key, value and y point at the head's first row and column. bias is
 * the head's, or NULL. */
static void attention_tile(const attention_call *call, const attention_plan *p, const char *q, const char *key,
                           const char *value, const float *bias, char *y, int first, int last, int thread)
{
    const cpu_queue *k = call->queue;
    const size_t size = k->d->base.act_size, n_k = (size_t)p->n_k;
    const gemm_kernel *kernel = k->d->gemm[attention_type(k)];
    const float scale = 1.0f / sqrtf((float)p->dim);
    char *work = k->work[thread];
    const gemm_out scores = score_rows(p, work);
    const gemm_rows weights = {.base = work + p->weights,
                               .stride = p->weight_stride,
                               .parts = 1,
                               .words = gemm_words(attention_type(k), p->n_k, 1),
                               .w_words = p->value_words};
    attention_pack_keys(call, p, key, work);
    attention_pack_values(call, p, value, work);
    for (int i = first; i < last; i += p->block) {
        const int count = cpu_lesser(last - i, p->block);
        const gemm_rows queries = queries_of(call, p, q, i, count, work + p->query);
        attention_multiply(kernel, &queries, count, work, p->key_bytes, p->n_k, &scores);
        float factor[QUERY_BLOCK];
        for (int r = 0; r < count; r++) {
            char *row = work + p->weights + (size_t)r * p->weight_stride;
            float *score = scores_of(p, work, r);
            if (bias) attention_add_bias(score, p->n_k, scale, bias, call->reach, i + r);
            factor[r] = kernel->softmax(score, p->n_k, bias ? 1 : scale, row);
            memset(row + n_k * size, 0, p->weight_stride - n_k * size);
        }
        attention_multiply(kernel, &weights, count, work + p->value, p->value_bytes, p->dim,
                           &(gemm_out){.y = y + (size_t)i * call->y_stride,
                                       .y_stride = call->y_stride / size,
                                       .y_bf16 = size == 2,
                                       .x_scale = factor});
    }
    if (kernel->end) kernel->end();
}

/* Computes task number `task` of a sequence. */
static void attend_task(const attention_call *c, const attention_span *s, int task, int thread)
{
    const attention_plan *p = s->plan;
    const int parts = attention_parts(c, p), head = task / parts;
    const size_t column = (size_t)head * (size_t)p->dim * c->queue->d->base.act_size;
    const float *bias = c->bias ? c->bias + (size_t)head * (size_t)(2 * c->reach + 1) : NULL;
    const int first = task % parts * TASK_BLOCKS * p->block;
    const int last = parts == 1 ? p->n_q : cpu_lesser(first + TASK_BLOCKS * p->block, p->n_q);
    attention_tile(c, p, c->q + s->q_row * c->q_stride + column, c->key + s->k_row * c->kv_stride + column,
                   c->value + s->k_row * c->kv_stride + column, bias, c->y + s->q_row * c->y_stride + column, first,
                   last, thread);
}

static void attention_body(void *arg, int from, int to, int thread)
{
    const attention_call *c = arg;
    const attention_plan *p = c->same;
    const int tasks = c->heads * attention_parts(c, p); /* per sequence */
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
    attention_call c = attention_call_of(k, q, q_stride, key, value, kv_stride, heads, head_dim, y);
    if (n_seq <= 0 || n_q <= 0 || !kern_live(k)) return;
    const attention_plan plan = make_plan(c.queue, n_q, n_k, head_dim);
    if (!attention_has_room(c.queue, &plan)) return;
    c.same = &plan;
    cpu_for(c.queue, n_seq * heads * attention_parts(&c, &plan), 2.0 * n_seq * n_q * n_k * heads * head_dim,
            attention_body, &c);
}

/* Finds the plan of a shape among the first *count of `plans`, or makes it. */
static const attention_plan *plan_of(const cpu_queue *k, int n_q, int n_k, int dim, attention_plan *plans, int *count)
{
    int i = 0;
    while (i < *count && (plans[i].n_q != n_q || plans[i].n_k != n_k)) i++;
    if (i == *count) plans[(*count)++] = make_plan(k, n_q, n_k, dim);
    return &plans[i];
}

/* Computes the first n sequences, at most SPANS, in one loop, so that many short ones use all threads. */
static void attend_spans(const attention_call *call, const int *q_first, const int *n_q, const int *k_first,
                         const int *n_k, int n, int head_dim)
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
        span->plan = plan_of(c.queue, n_q[s], n_k[s], head_dim, plans, &shapes);
        if (!attention_has_room(c.queue, span->plan)) return;
        span->q_row = (size_t)q_first[s];
        span->k_row = (size_t)k_first[s];
        span->task = tasks;
        tasks += c.heads * attention_parts(&c, span->plan);
        work += 2.0 * n_q[s] * n_k[s] * c.heads * head_dim;
    }
    if (tasks) cpu_for(c.queue, tasks, work, spans_body, &c);
}

void cpu_attention_spans(kern_queue *k, const act *q, int q_stride, const int *q_first, const int *n_q, const act *key,
                         const act *value, int kv_stride, const int *k_first, const int *n_k, int n_seq, int heads,
                         int head_dim, const float *bias, int reach, act *y)
{
    attention_call c = attention_call_of(k, q, q_stride, key, value, kv_stride, heads, head_dim, y);
    c.bias = bias;
    c.reach = reach;
    for (int s = 0; s < n_seq && kern_live(k); s += SPANS)
        attend_spans(&c, q_first + s, n_q + s, k_first + s, n_k + s, cpu_lesser(n_seq - s, SPANS), head_dim);
}

/* --- causal spans of a cache -------------------------------------------------------------------------------------- */

/* A call. An item is a head of keys of one span, or some of its blocks of rows. */
typedef struct {
    cpu_queue *queue;
    const kern_cache_job *job;
    int parts; /* items of a head */
} causal_call;

/* Returns the rows of a block: those whose queries of one head of keys fill it. */
static int causal_rows(const kern_cache_job *j)
{
    const int rows = QUERY_BLOCK / (j->heads / j->kv_heads);
    return rows > 1 ? rows : 1;
}

/* Returns the plan of a span, whose copied queries are followed by room for copies of the keys or values. */
static attention_plan causal_plan(const cpu_queue *k, int slots, int dim)
{
    attention_plan p = make_plan(k, QUERY_BLOCK, slots, dim);
    p.query_bytes = aligned(4 * (size_t)p.key_words);
    p.total = p.query + (size_t)p.block * p.query_bytes + (size_t)slots * (size_t)dim * k->d->base.act_size;
    return p;
}

size_t cpu_causal_bytes(const cpu_queue *k, int slots, int head_dim)
{
    return causal_plan(k, slots, head_dim).total;
}

/* Copies n slots' keys or values of a head, at `base` in slot 0. Returns the copies. */
static const char *causal_gather(const kern_device *d, const kern_cache_job *j, const char *base, const int *slot,
                                 int n, char *to)
{
    const size_t head = (size_t)j->head_dim * d->act_size;
    const size_t stride = kern_cache_slot_bytes(d, KERN_CACHE_ACT, j->kv_heads, j->head_dim);
    for (int i = 0; i < n; i++) memcpy(to + (size_t)i * head, base + (size_t)slot[i] * stride, head);
    return to;
}

/* Packs the first n_k slots' keys and values of head h. */
static void causal_pack(const causal_call *c, const attention_plan *p, const int *slot, int h, char *work)
{
    const kern_cache_job *j = c->job;
    const kern_device *d = &c->queue->d->base;
    const size_t head = (size_t)j->head_dim * d->act_size;
    const attention_call rows = {.queue = c->queue, .kv_stride = head};
    const char *key = (const char *)j->cache + (size_t)h * head, *value = key + (size_t)j->kv_heads * head;
    char *copy = work + p->query + (size_t)p->block * p->query_bytes;
    attention_pack_keys(&rows, p, causal_gather(d, j, key, slot, p->n_k, copy), work);
    attention_pack_values(&rows, p, causal_gather(d, j, value, slot, p->n_k, copy), work);
}

/* Computes rows first .. last-1 of a span, at most a block, for head h. `common` slots are all rows'. */
static void causal_block(const causal_call *c, const attention_plan *p, int row, int first, int last, int common, int h,
                         char *work)
{
    const kern_cache_job *j = c->job;
    const cpu_device *d = c->queue->d;
    const gemm_type type = attention_type(c->queue);
    const int group = j->heads / j->kv_heads, n = common + last, count = (last - first) * group;
    const size_t size = d->base.act_size, head = (size_t)p->dim * size;
    ptrdiff_t y_at[QUERY_BLOCK];
    float factor[QUERY_BLOCK];
    for (int i = 0; i < count; i++) {
        const size_t r = (size_t)(row + first + i / group), column = (size_t)((h * group + i % group) * p->dim);
        char *to = work + p->query + (size_t)i * p->query_bytes;
        memcpy(to, act_at(&d->base, j->q, r * (size_t)j->q_stride + column), head);
        memset(to + head, 0, p->query_bytes - head);
        y_at[i] = (ptrdiff_t)(r * (size_t)(j->heads * p->dim) + column);
    }
    const gemm_rows queries = {.base = work + p->query,
                               .stride = p->query_bytes,
                               .parts = 1,
                               .words = gemm_words(type, p->dim, 1),
                               .w_words = p->key_words};
    const gemm_out scores = score_rows(p, work);
    attention_multiply(d->gemm[type], &queries, count, work, p->key_bytes, n, &scores);
    for (int i = 0; i < count; i++) {
        char *weights = work + p->weights + (size_t)i * p->weight_stride;
        const int known = common + first + i / group + 1;
        factor[i] = d->gemm[type]->softmax(scores_of(p, work, i), known, 1.0f / sqrtf((float)p->dim), weights);
        memset(weights + (size_t)known * size, 0, p->weight_stride - (size_t)known * size);
    }
    const gemm_rows weights = {.base = work + p->weights,
                               .stride = p->weight_stride,
                               .parts = 1,
                               .words = gemm_words(type, n, 1),
                               .w_words = p->value_words};
    attention_multiply(d->gemm[type], &weights, count, work + p->value, p->value_bytes, p->dim,
                       &(gemm_out){.y = j->y, .y_at = y_at, .y_bf16 = size == 2, .x_scale = factor});
}

static void causal_body(void *arg, int from, int to, int thread)
{
    const causal_call *c = arg;
    const kern_cache_job *j = c->job;
    const int across = j->kv_heads * c->parts, step = causal_rows(j);
    char *work = c->queue->work[thread];
    for (int item = from; item < to; item++) {
        const int span = item / across, h = item % across / c->parts, part = item % c->parts;
        const int rows = j->row[span + 1] - j->row[span], blocks = cpu_divide_up(rows, step);
        const int last = (blocks - 1 - part) / c->parts * c->parts + part; /* the item's last block */
        if (part >= blocks) continue;
        const int end = cpu_lesser(rows, (last + 1) * step);
        const attention_plan p = causal_plan(c->queue, j->common[span] + end, j->head_dim);
        causal_pack(c, &p, j->slot + j->first[span], h, work);
        for (int b = part; b < blocks; b += c->parts)
            causal_block(c, &p, j->row[span], b * step, cpu_lesser(rows, (b + 1) * step), j->common[span], h, work);
    }
    const gemm_kernel *kernel = c->queue->d->gemm[attention_type(c->queue)];
    if (kernel->end) kernel->end();
}

void cpu_attention_causal(cpu_queue *k, const kern_cache_job *job, double work)
{
    causal_call c = {.queue = k, .job = job, .parts = cpu_divide_up(2 * k->d->threads, job->spans * job->kv_heads)};
    cpu_for(k, job->spans * job->kv_heads * c.parts, work, causal_body, &c);
}
