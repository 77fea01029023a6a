/* Attention over a cache: divides the spans' rows and heads into tasks (cached.h). */
#include "kernels/cpu/cached.h"
#include "kernels/cpu/cpu.h"

typedef struct {
    cpu_queue *queue;
    const kern_cache_job *job;
    int heads; /* heads of a group */
} cache_call;

/* Returns a span's number of row blocks. Items are pairs of a block of rows and a group of heads: blocks in order, span
 * after span. Groups are as large as leaves enough items for all threads: a task's reads of a slot are then
 * contiguous. */
static int blocks_of(const kern_cache_job *j, int span)
{
    return cpu_divide_up(j->row[span + 1] - j->row[span], CACHED_ROWS);
}

static int groups_of(const cache_call *c)
{
    return cpu_divide_up(c->job->heads, c->heads);
}

/* Computes a group of heads for one block of a span's rows. A span's blocks have about as many rows each. */
static void attend(const cache_call *c, int span, int block, int group, int thread)
{
    const kern_cache_job *j = c->job;
    const kern_device *d = &c->queue->d->base;
    const int blocks = blocks_of(j, span), rows = j->row[span + 1] - j->row[span], head = group * c->heads;
    const int row = j->row[span] + parallel_part(rows, blocks, block), slots = j->first[span + 1] - j->first[span];
    const size_t width = (size_t)j->heads * (size_t)j->head_dim, column = (size_t)head * (size_t)j->head_dim;
    const cached_task t = {.rows = j->row[span] + parallel_part(rows, blocks, block + 1) - row,
                           .heads = cpu_lesser(c->heads, j->heads - head),
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
    c->queue->d->attend(&t, c->queue->d->rows);
}

static void cache_body(void *arg, int first, int last, int thread)
{
    const cache_call *c = arg;
    const kern_cache_job *j = c->job;
    const int groups = groups_of(c);
    int span = 0, before = 0; /* items of the previous spans */
    for (int item = first; item < last; item++) {
        while (item - before >= blocks_of(j, span) * groups) before += blocks_of(j, span++) * groups;
        attend(c, span, (item - before) / groups, (item - before) % groups, thread);
    }
}

mar_status cpu_attention_cache_plan(kern_queue *k, int slots, int head_dim, mar_err *err)
{
    return cpu_work_room(cpu_of(k), cached_bytes(slots, head_dim), err);
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
    if (!cpu_planned(q, cached_bytes(most, job->head_dim) <= q->work_bytes, "attention over %d slots of a cache", most))
        return;
    if (job->rope)
        cpu_rotate(k, (act *)job->q, job->rows, job->heads, job->head_dim, job->rope, job->position, job->cache,
                   job->own);
    const int fit = CACHED_PAIRS / cpu_lesser(tallest, CACHED_ROWS), fair = blocks * job->heads / (2 * q->d->threads);
    cache_call c = {.queue = q, .job = job, .heads = cpu_lesser(cpu_lesser(fit, fair > 1 ? fair : 1), job->heads)};
    cpu_for(q, blocks * groups_of(&c), 2 * pairs * job->heads * job->head_dim, cache_body, &c);
}
