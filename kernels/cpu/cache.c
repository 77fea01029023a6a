/* Attention over a cache: stores the rows' keys and values, then divides the spans' rows and heads into tasks
 * (cached.h). */
#include "kernels/cpu/cached.h"
#include "kernels/cpu/cpu.h"

static cached_type cache_type_of(const cpu_device *d, kern_cache_type type)
{
    if (type == KERN_CACHE_INT8) return CACHED_INT8;
    return type == KERN_CACHE_BF16 || d->bf16 ? CACHED_BF16 : CACHED_F32;
}

/* --- storing ------------------------------------------------------------------------------------------------------ */

typedef struct {
    const cpu_device *d;
    const kern_cache_job *job;
} store_loop;

/* Stores a head's query, key or value: normed if norm->weight is not NULL, and rotated if rope is not NULL. Numbers
 * that need neither nor another type are copied. `to` may be `from`. scale: that of CACHED_INT8. */
static void cache_store_head(const cpu_device *d, int dim, const char *from, const kern_head_norm *norm, int head,
                             const float *rope, cached_type type, char *to, char *scale)
{
    const kern_rows *rows = d->rows;
    float x[KERN_CACHE_HEAD_MAX];
    if (!norm->weight && type == cache_type_of(d, KERN_CACHE_ACT)) {
        if (rope)
            rows->apply_rope(from, rope, dim, to, d->bf16);
        else
            memcpy(to, from, (size_t)dim * d->base.act_size);
        return;
    }
    rows->from_act(from, (size_t)dim, x, d->bf16);
    if (norm->weight && norm->bias)
        rows->layer_norm(x, dim, norm->weight + head * dim, norm->bias + head * dim, norm->eps, x, 0);
    else if (norm->weight)
        rows->rms_norm(x, dim, norm->weight + head * dim, norm->eps, x, 0);
    if (rope) rows->apply_rope(x, rope, dim, x, 0);
    if (type == CACHED_INT8)
        rows->quantise(x, 1, dim, 0, 0, to, 0, (float *)scale, 0);
    else
        rows->to_act(x, (size_t)dim, to, type == CACHED_BF16);
}

static void store_body(void *arg, int first, int last, int thread)
{
    static const kern_head_norm none = {0};
    const store_loop *l = arg;
    const kern_cache_job *j = l->job;
    const kern_device *d = &l->d->base;
    const cached_type type = cache_type_of(l->d, j->type), own = cache_type_of(l->d, KERN_CACHE_ACT);
    const int dim = j->head_dim;
    const size_t head = (size_t)dim * d->act_size, stored = (size_t)dim * cached_size(type);
    const size_t slot_bytes = kern_cache_slot_bytes(d, j->type, j->kv_heads, dim);
    (void)thread;
    for (int r = first; r < last; r++) {
        const float *rope = j->rope + (size_t)j->position[r] * (size_t)dim;
        char *q = act_at(d, j->q, (size_t)r * (size_t)j->q_stride), *key = q + (size_t)j->heads * head;
        char *to = (char *)j->cache + (size_t)j->own[r] * slot_bytes;
        char *scale = to + 2 * (size_t)j->kv_heads * stored;
        for (int h = 0; h < j->heads; h++, q += head) cache_store_head(l->d, dim, q, &j->q_norm, h, rope, own, q, NULL);
        for (int h = 0; h < 2 * j->kv_heads; h++, key += head, to += stored, scale += sizeof(float))
            cache_store_head(l->d, dim, key, h < j->kv_heads ? &j->k_norm : &none, h, h < j->kv_heads ? rope : NULL,
                             type, to, scale);
    }
}

static void cache_store(cpu_queue *q, const kern_cache_job *job, parallel_body *body)
{
    store_loop l = {q->d, job};
    cpu_for(q, job->rows, 16.0 * job->rows * (job->heads + 2 * job->kv_heads) * job->head_dim, body, &l);
}

/* Turns a head by two angles a pair. `to` may be `from`. */
static void cache_turn_each(const cpu_device *d, int dim, const char *from, const float *rope, char *to)
{
    float x[KERN_CACHE_HEAD_MAX];
    d->rows->from_act(from, (size_t)dim, x, d->bf16);
    for (int i = 0; i < dim; i += 2, rope += 4) {
        const float a = x[i], b = x[i + 1];
        x[i] = a * rope[0] - b * rope[1];
        x[i + 1] = b * rope[2] + a * rope[3];
    }
    d->rows->to_act(x, (size_t)dim, to, d->bf16);
}

/* Does the work of store_body with two angles a pair. */
static void turn_body(void *arg, int first, int last, int thread)
{
    const store_loop *l = arg;
    const kern_cache_job *j = l->job;
    const kern_device *d = &l->d->base;
    const int dim = j->head_dim, heads = j->heads;
    const size_t head = (size_t)dim * d->act_size;
    (void)thread;
    for (int r = first; r < last; r++) {
        const float *rope = j->rope + 2 * (size_t)j->position[r] * (size_t)dim;
        char *q = act_at(d, j->q, (size_t)r * (size_t)j->q_stride), *key = q + (size_t)heads * head;
        char *to = (char *)j->cache + 2 * (size_t)j->own[r] * (size_t)heads * head;
        for (int h = 0; h < heads; h++, q += head) cache_turn_each(l->d, dim, q, rope, q);
        for (int h = 0; h < heads; h++, key += head, to += head) cache_turn_each(l->d, dim, key, rope, to);
        memcpy(to, key, (size_t)heads * head);
    }
}

void cpu_rotate(kern_queue *k, act *qkv, int rows, int heads, int head_dim, int angles, const float *rope,
                const int *position, act *cache, const int *slot)
{
    const kern_cache_job job = {.rows = rows,
                                .heads = heads,
                                .head_dim = head_dim,
                                .kv_heads = heads,
                                .q = qkv,
                                .q_stride = 3 * heads * head_dim,
                                .cache = cache,
                                .rope = rope,
                                .position = position,
                                .own = slot};
    if (kern_live(k)) cache_store(cpu_of(k), &job, angles == 2 ? turn_body : store_body);
}

/* --- attention ---------------------------------------------------------------------------------------------------- */

typedef struct {
    cpu_queue *queue;
    const kern_cache_job *job;
    int heads; /* heads of keys of a part */
} cache_call;

/* Returns the number of query heads that read one head of keys. */
static int group_of(const kern_cache_job *j)
{
    return j->heads / j->kv_heads;
}

/* Returns a span's number of row blocks. Items are pairs of a block of rows and a part of the heads: blocks in order,
 * span after span. Parts are as large as leaves enough items for all threads: a task's reads of a slot are then
 * contiguous. */
static int blocks_of(const kern_cache_job *j, int span)
{
    return cpu_divide_up(j->row[span + 1] - j->row[span], cached_rows(group_of(j)));
}

static int cache_parts(const cache_call *c)
{
    return cpu_divide_up(c->job->kv_heads, c->heads);
}

/* Returns the maximum queries of a task. With many threads each has less working memory: of 4096 slots and heads of 128
 * numbers 1.2 MB, else 5.7 MB. */
static int pairs_of(const cpu_device *d)
{
    return d->threads > 16 ? (int)KERN_CACHE_GROUP_MAX : (int)CACHED_PAIRS;
}

/* Computes a part of the heads for one block of a span's rows. A span's blocks have about as many rows each. */
static void cache_attend(const cache_call *c, int span, int block, int part, int thread)
{
    const kern_cache_job *j = c->job;
    const kern_device *d = &c->queue->d->base;
    const cached_type type = cache_type_of(c->queue->d, j->type);
    const int blocks = blocks_of(j, span), rows = j->row[span + 1] - j->row[span], head = part * c->heads;
    const int row = j->row[span] + parallel_part(rows, blocks, block), slots = j->first[span + 1] - j->first[span];
    const size_t dim = (size_t)j->head_dim, width = (size_t)j->heads * dim, kv_heads = (size_t)j->kv_heads;
    const size_t column = (size_t)(head * group_of(j)) * dim, stored = dim * cached_size(type);
    const char *key = (const char *)j->cache + (size_t)head * stored, *value = key + kv_heads * stored;
    const char *scale = (const char *)j->cache + 2 * kv_heads * stored + (size_t)head * sizeof(float);
    const cached_task t = {.rows = j->row[span] + parallel_part(rows, blocks, block + 1) - row,
                           .heads = cpu_lesser(c->heads, j->kv_heads - head),
                           .group = group_of(j),
                           .dim = j->head_dim,
                           .bf16 = c->queue->d->bf16,
                           .type = type,
                           .q = act_at(d, j->q, (size_t)row * (size_t)j->q_stride + column),
                           .q_stride = (size_t)j->q_stride * d->act_size,
                           .key = key,
                           .value = value,
                           .key_scale = scale,
                           .value_scale = scale + kv_heads * sizeof(float),
                           .slot_stride = kern_cache_slot_bytes(d, j->type, j->kv_heads, j->head_dim),
                           .slot = j->slot + j->first[span],
                           .common = j->common[span],
                           .own = slots - j->common[span],
                           .mask = j->mask + (size_t)row * (size_t)j->words,
                           .words = j->words,
                           .y = act_at(d, j->y, (size_t)row * width + column),
                           .y_stride = width * d->act_size,
                           .work = c->queue->work[thread]};
    c->queue->d->attend(&t, c->queue->d->rows);
}

static void cache_body(void *arg, int first, int last, int thread)
{
    const cache_call *c = arg;
    const kern_cache_job *j = c->job;
    const int parts = cache_parts(c);
    int span = 0, before = 0; /* items of the previous spans */
    for (int item = first; item < last; item++) {
        while (item - before >= blocks_of(j, span) * parts) before += blocks_of(j, span++) * parts;
        cache_attend(c, span, (item - before) / parts, (item - before) % parts, thread);
    }
}

mar_status cpu_attention_cache_plan(kern_queue *k, int slots, int head_dim, int causal, mar_err *err)
{
    cpu_queue *q = cpu_of(k);
    if (causal) return cpu_work_room(q, cpu_causal_bytes(q, slots, head_dim), err);
    return cpu_work_room(q, cached_bytes(pairs_of(q->d), slots, head_dim), err);
}

void cpu_attention_cache(kern_queue *k, const kern_cache_job *job)
{
    cpu_queue *q = cpu_of(k);
    if (job->rows <= 0 || !kern_live(k)) return;
    int most = 0, blocks = 0, tallest = 0;
    double pairs = 0;
    for (int s = 0; s < job->spans; s++) {
        const int slots = job->first[s + 1] - job->first[s];
        if (slots > most) most = slots;
        const int rows = job->row[s + 1] - job->row[s];
        blocks += blocks_of(job, s);
        if (rows > tallest) tallest = rows;
        pairs += (double)rows * slots;
    }
    const size_t bytes =
        job->causal ? cpu_causal_bytes(q, most, job->head_dim) : cached_bytes(pairs_of(q->d), most, job->head_dim);
    if (!cpu_planned(q, bytes <= q->work_bytes, "attention over %d slots of a cache", most)) return;
    if (job->rope) cache_store(q, job, store_body);
    if (job->causal) {
        cpu_attention_causal(q, job, 2 * pairs * job->heads * job->head_dim);
        return;
    }
    const int group = group_of(job), queries = cpu_lesser(tallest, cached_rows(group)) * group;
    const int fit = pairs_of(q->d) / queries, fair = blocks * job->kv_heads / (2 * q->d->threads);
    cache_call c = {.queue = q, .job = job, .heads = cpu_lesser(cpu_lesser(fit, fair > 1 ? fair : 1), job->kv_heads)};
    cpu_for(q, blocks * cache_parts(&c), 2 * pairs * job->heads * job->head_dim, cache_body, &c);
}
