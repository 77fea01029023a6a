/* Attention over a cache: divides the spans' rows and heads into tasks (cached.h). */
#include "kernels/cpu/cpu.h"

typedef struct {
    cpu_queue *queue;
    const kern_cache_job *job;
} cache_call;

/* Items are pairs of a block of rows and a head: blocks in order, those of a span after those of the span before. */
static int blocks_of(const kern_cache_job *j, int span)
{
    return cpu_divide_up(j->row[span + 1] - j->row[span], CACHED_ROWS);
}

/* Heads first .. first + heads - 1 of a block of rows of a span. */
static void attend(const cache_call *c, int span, int block, int first, int heads, int thread)
{
    const kern_cache_job *j = c->job;
    const kern_device *d = &c->queue->d->base;
    const size_t width = (size_t)j->heads * (size_t)j->head_dim, column = (size_t)first * (size_t)j->head_dim;
    const int row = j->row[span] + block * CACHED_ROWS, slots = j->first[span + 1] - j->first[span];
    const cached_task t = {.rows = cpu_lesser(CACHED_ROWS, j->row[span + 1] - row),
                           .heads = heads,
                           .dim = j->head_dim,
                           .bf16 = c->queue->d->bf16,
                           .q = act_at(d, j->q, (size_t)row * (size_t)j->q_stride + column),
                           .q_stride = (size_t)j->q_stride * d->act_size,
                           .key = act_at(d, j->cache, column),
                           .value = act_at(d, j->cache, width + column),
                           .slot_stride = 2 * width * d->act_size,
                           .slot = j->slot + j->first[span],
                           .common = j->common[span],
                           .own = slots - j->common[span],
                           .mask = j->mask + (size_t)row * (size_t)j->words,
                           .words = j->words,
                           .y = act_at(d, j->y, (size_t)row * width + column),
                           .y_stride = width * d->act_size,
                           .work = c->queue->work[thread]};
    c->queue->d->rows->attend(&t, c->queue->d->rows);
}

static void cache_body(void *arg, int item, int last, int thread)
{
    const cache_call *c = arg;
    const kern_cache_job *j = c->job;
    int span = 0, before = 0; /* items of the spans before */
    while (item < last) {
        while (item - before >= blocks_of(j, span) * j->heads) before += blocks_of(j, span++) * j->heads;
        const int block = (item - before) / j->heads, head = (item - before) % j->heads;
        const int heads = cpu_lesser(cpu_lesser(CACHED_HEADS, j->heads - head), last - item);
        attend(c, span, block, head, heads, thread);
        item += heads;
    }
}

void cpu_attention_cache(kern_queue *k, const kern_cache_job *job)
{
    cpu_queue *q = cpu_of(k);
    if (job->rows <= 0 || !kern_live(k)) return;
    int most = job->most, items = 0;
    double pairs = 0;
    for (int s = 0; s < job->spans; s++) {
        const int slots = job->first[s + 1] - job->first[s];
        if (slots > most) most = slots;
        items += blocks_of(job, s) * job->heads;
        pairs += (double)(job->row[s + 1] - job->row[s]) * slots;
    }
    mar_err err = {0};
    const mar_status status = cpu_grow(q, q->work, &q->work_bytes, cached_bytes(most, job->head_dim), &err);
    if (status != MAR_OK) {
        kern_fail(k, status, &err);
        return;
    }
    cache_call c = {.queue = q, .job = job};
    cpu_for(q, items, 2 * pairs * job->heads * job->head_dim, cache_body, &c);
}
