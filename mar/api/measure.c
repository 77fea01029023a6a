#include "mar/api/measure.h"

#include "diffusion/speculate.h"
#include "kernels/head_work.h"
#include "kernels/time.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the list ----------------------------------------------------------------------------------------------------- */

void mar_measurements_add(mar_measurements *all, const mar_measured *row)
{
    if (all->count == all->capacity) {
        const int capacity = 2 * all->capacity + 64;
        mar_measured *rows = realloc(all->row, (size_t)capacity * sizeof *rows);
        if (!rows) {
            all->out_of_memory = 1;
            return;
        }
        all->row = rows;
        all->capacity = capacity;
    }
    all->row[all->count++] = *row;
}

void mar_measurements_free(mar_measurements *all)
{
    free(all->row);
    *all = (mar_measurements){0};
}

void mar_measurements_add_trace(mar_measurements *all, const char *group, const kern_trace *t)
{
    int n;
    const kern_traced *rows = kern_trace_rows(t, &n);
    for (int i = 0; i < n; i++) {
        mar_measured m = {.group = group,
                          .rows = rows[i].rows,
                          .count = rows[i].calls,
                          .seconds = rows[i].seconds,
                          .bytes = rows[i].bytes,
                          .flop = rows[i].flop};
        memcpy(m.name, rows[i].name, sizeof m.name);
        mar_measurements_add(all, &m);
    }
}

static void add(mar_measurements *all, const char *group, const char *name, int rows, double seconds, double bytes,
                double flop)
{
    mar_measured m = {.group = group, .rows = rows, .count = 1, .seconds = seconds, .bytes = bytes, .flop = flop};
    snprintf(m.name, sizeof m.name, "%s", name);
    mar_measurements_add(all, &m);
}

static void add_count(mar_measurements *all, const char *group, const char *name, double number)
{
    mar_measured m = {.group = group, .count = number};
    snprintf(m.name, sizeof m.name, "%s", name);
    if (number > 0) mar_measurements_add(all, &m);
}

/* --- the machine -------------------------------------------------------------------------------------------------- */

typedef struct {
    kern_queue *k;
    float *from, *to;
    int rows, width;
} copy;

static void copy_body(void *arg)
{
    const copy *c = arg;
    c->k->core->copy_rows(c->k, c->to, NULL, c->from, NULL, NULL, NULL, c->rows, c->width);
}

/* The rate at which rows are copied in memory: arrays of four times what the last cache holds. */
static mar_status measure_copy(kern_queue *k, double cache_bytes, mar_measurements *all, mar_err *err)
{
    enum { WIDTH = 1024, LEAST = 4 << 20, MOST = 256 << 20 };
    const double wanted = 4 * cache_bytes;
    const size_t bytes = wanted < LEAST ? LEAST : wanted > MOST ? MOST : (size_t)wanted;
    copy c = {k, NULL, NULL, (int)(bytes / (WIDTH * sizeof(float))), WIDTH};
    mar_status status = k->core->alloc(k->device, bytes, (void **)&c.from, err);
    if (status == MAR_OK) status = k->core->alloc(k->device, bytes, (void **)&c.to, err);
    if (status == MAR_OK) {
        enum { TAKES = 3 }; /* kern_time runs what takes long once, and other programs take their share of memory */
        double seconds = INFINITY;
        for (int i = 0; i < TAKES; i++) seconds = fmin(seconds, kern_time(k, copy_body, &c, 1));
        status = kern_check(k, err);
        if (status == MAR_OK) add(all, "machine", "memory copy", c.rows, seconds, 8.0 * c.rows * WIDTH, 0);
    }
    k->core->finish(k);
    k->device->core->free(k->device, c.from);
    k->device->core->free(k->device, c.to);
    return status;
}

/* What an operation takes that has nothing to do: a launch inside a recording, its start and its end. */
static mar_status measure_least(kern_queue *k, mar_measurements *all, mar_err *err)
{
    copy c = {k, NULL, NULL, 1, 4};
    mar_status status = k->core->alloc(k->device, 2 * 4 * sizeof *c.from, (void **)&c.from, err);
    if (status != MAR_OK) return status;
    c.to = c.from + 4;
    const double seconds = kern_time(k, copy_body, &c, 1);
    status = kern_check(k, err);
    if (status == MAR_OK) add(all, "machine", "least operation", 1, seconds, 0, 0);
    k->core->finish(k);
    k->device->core->free(k->device, c.from);
    return status;
}

mar_status mar_measure_machine(kern_queue *k, const diff_head *h, mar_measurements *all, mar_err *err)
{
    const double n = 1024;
    kern_machine m;
    double rate;
    k->device->measure->machine(k->device, h ? h->net : NULL, &m);
    add_count(all, "machine", "processors", m.processors);
    add_count(all, "machine", "clock", m.clock);
    add_count(all, "machine", "cache bytes", m.cache_bytes);
    add_count(all, "machine", "blocks of the head's grid", m.blocks);
    add_count(all, "machine", "blocks of a cluster", m.cluster);
    add_count(all, "machine", "clusters at once", m.clusters);
    add_count(all, "machine", "products on chip", m.resident);
    mar_status status = mar_peak(k, &rate, err);
    if (status != MAR_OK) return status;
    add(all, "machine", "matrix product", (int)n, 2 * n * n * n / rate, 3 * n * n * (double)k->device->act_size,
        2 * n * n * n);
    status = measure_copy(k, m.cache_bytes, all, err);
    return status == MAR_OK ? measure_least(k, all, err) : status;
}

/* --- phases of the head ---------------------------------------------------------------------------------------------
 */

enum { STEPS = 8, CHAIN = 2 * STEPS, MOST_ROWS = 64, WINDOW = 8 };
static const int row_counts[] = {2, 8, 16, 32, 64};
enum { ROW_COUNTS = sizeof row_counts / sizeof *row_counts };

/* What the measurements of the head work on. The arrays are backend memory. */
typedef struct {
    kern_queue *k;
    const diff_head *h;
    int conditions;
    mar_measurements *all;
    diff_schedule schedule; /* of CHAIN steps */
    float *temb;            /* [CHAIN][W] */
    float *cond;            /* [MOST_ROWS][most of W and z_dim] embedded conditions, or z */
    float *x;               /* [MOST_ROWS][C] */
    float *out;             /* [MOST_ROWS][2C] */
    void *mod;              /* [CHAIN * MOST_ROWS] modulation rows */
    void *scratch;
    float cfg[MOST_ROWS];
    uint64_t image[MOST_ROWS];
    int position[MOST_ROWS], list[CHAIN], x_index[MOST_ROWS];
} head_bench;

static double head_flop(const diff_head *h, int rows)
{
    return 2 * diff_head_macs(h, 0, rows);
}

/* Bytes that an evaluation must at least read and write. */
static double head_bytes(const head_bench *b, int rows)
{
    return kern_head_bytes(diff_head_sequential_bytes(b->h), (double)b->k->head->mod_bytes(b->h->net), b->h->channels,
                           rows);
}

static mar_status create(head_bench *b, mar_err *err)
{
    kern_queue *k = b->k;
    const kern_head *net = b->h->net;
    const int widest = b->h->width > b->h->z_dim ? b->h->width : b->h->z_dim;
    const size_t mod = k->head->mod_bytes(net), width = (size_t)widest, channels = (size_t)b->h->channels;
    for (int i = 0; i < MOST_ROWS; i++) {
        b->cfg[i] = 2;
        b->position[i] = i;
        b->x_index[i] = i;
    }
    for (int i = 0; i < CHAIN; i++) b->list[i] = i;
    mar_status status = diff_schedule_create(CHAIN, 1, &b->schedule, err);
    if (status == MAR_OK) status = diff_head_time_embeddings(k, b->h, b->schedule.t, CHAIN, &b->temb, err);
    if (status == MAR_OK) status = k->core->alloc(k->device, MOST_ROWS * width * 4, (void **)&b->cond, err);
    if (status == MAR_OK) status = k->core->alloc(k->device, MOST_ROWS * channels * 4, (void **)&b->x, err);
    if (status == MAR_OK) status = k->core->alloc(k->device, MOST_ROWS * channels * 8, (void **)&b->out, err);
    if (status == MAR_OK) status = k->core->alloc(k->device, CHAIN * MOST_ROWS * mod, &b->mod, err);
    if (status == MAR_OK)
        status = k->core->alloc(k->device, k->head->scratch_bytes(net, CHAIN * MOST_ROWS), &b->scratch, err);
    if (status == MAR_OK) status = k->head->plan(k, net, CHAIN * MOST_ROWS, err);
    for (int i = 0; status == MAR_OK && i < ROW_COUNTS; i++) status = k->head->plan(k, net, row_counts[i], err);
    if (status != MAR_OK) return status;
    k->head->normal(k, b->cond, MOST_ROWS, widest, 1, KERN_NOISE_INIT, b->image, b->position, 0);
    return kern_check(k, err);
}

static void destroy(head_bench *b)
{
    kern_device *d = b->k->device;
    b->k->core->finish(b->k);
    d->core->free(d, b->temb);
    d->core->free(d, b->cond);
    d->core->free(d, b->x);
    d->core->free(d, b->out);
    d->core->free(d, b->mod);
    d->core->free(d, b->scratch);
    diff_schedule_free(&b->schedule);
}

typedef struct {
    const head_bench *b;
    kern_phase phase;
    int cluster, rows, repeats;
    int there; /* the backend has the phase */
} phase_run;

static void phase_body(void *arg)
{
    phase_run *r = arg;
    const head_bench *b = r->b;
    r->there =
        b->k->device->measure->phase(b->k, b->h->net, r->phase, r->cluster, r->rows, r->repeats, b->mod, b->scratch);
}

/* Seconds of one of the phase's repeats, by twice as many less so many; 0: the backend has no such phase. */
static double time_phase(const head_bench *b, kern_phase phase, int cluster, int rows)
{
    enum { MOST = 4096 };
    phase_run r = {b, phase, cluster, rows, 1, 0};
    double one = kern_time(b->k, phase_body, &r, 0);
    if (!r.there) return 0;
    while (one < 1e-3 && r.repeats < MOST && kern_check(b->k, NULL) == MAR_OK) {
        r.repeats *= 2;
        one = kern_time(b->k, phase_body, &r, 0);
    }
    const int n = r.repeats;
    r.repeats = 2 * n;
    const double two = kern_time(b->k, phase_body, &r, 0);
    return two > one ? (two - one) / n : two / (2 * n); /* other work came between: at least a bound */
}

static void add_phase(const head_bench *b, kern_phase phase, const char *name, int rows, double bytes, double flop)
{
    const double seconds = time_phase(b, phase, 0, rows);
    if (seconds > 0) add(b->all, "phase", name, rows, seconds, bytes, flop);
}

static void measure_phases(const head_bench *b)
{
    const diff_head *h = b->h;
    const double w = h->width, size = (double)diff_head_act_size(h), weights = w * w * diff_head_weight_size(h);
    kern_machine m;
    b->k->device->measure->machine(b->k->device, h->net, &m);
    add_phase(b, KERN_PHASE_BARRIER, "barrier", 0, 0, 0);
    add_phase(b, KERN_PHASE_CLUSTER_BARRIER, "cluster barrier", 0, 0, 0);
    for (int i = 0; i < ROW_COUNTS; i++) {
        const int rows = row_counts[i];
        const double flop = 2 * w * w * rows;
        add_phase(b, KERN_PHASE_FC1, "fc1", rows, weights + rows * w * (4 + 3 * size), flop);
        add_phase(b, KERN_PHASE_FC2, "fc2", rows, weights + rows * w * (8 + 2 * size), flop);
        add_phase(b, KERN_PHASE_EVALUATION, "evaluation", rows, head_bytes(b, rows), head_flop(h, rows));
    }
    /* The same in clusters of every size that the device takes: whether the largest is the fastest is to be seen here.
     */
    for (int cluster = 8; cluster > 0 && m.cluster > 0; cluster /= 2)
        for (int i = 1; i < ROW_COUNTS; i += ROW_COUNTS - 2) { /* 8 and 64 rows */
            char name[64];
            const double seconds = time_phase(b, KERN_PHASE_EVALUATION, cluster, row_counts[i]);
            snprintf(name, sizeof name, "evaluation, clusters of %d", cluster);
            if (seconds > 0)
                add(b->all, "phase", name, row_counts[i], seconds, head_bytes(b, row_counts[i]),
                    head_flop(h, row_counts[i]));
        }
    /* The operand that every block reads: what a product of so many rows loads from the L2 cache. */
    add_phase(b, KERN_PHASE_READ, "operand read", MOST_ROWS, m.blocks * (double)MOST_ROWS * w * size, 0);
}

/* --- steps of the chain ---------------------------------------------------------------------------------------------
 */

typedef struct {
    const head_bench *b;
    int rows, steps;
} chain_run;

static void chain_body(void *arg)
{
    const chain_run *r = arg;
    const head_bench *b = r->b;
    const kern_chain_job job = {
        .tokens = r->rows / b->conditions,
        .conditions = b->conditions,
        .first = r->steps - 1,
        .mod = b->mod,
        .x = b->x,
        .coef = b->schedule.coef,
        .t = b->schedule.t,
        .cfg = b->cfg,
        .seed = 1,
        .image = b->image,
        .position = b->position,
        .out = b->out,
        .scratch = b->scratch,
    };
    b->k->head->chain_run(b->k, b->h->net, &job);
}

static void product_body(void *arg)
{
    const chain_run *r = arg;
    const head_bench *b = r->b;
    b->k->head->eval(b->k, b->h->net, b->x, b->x_index, b->mod, NULL, r->rows, b->out, b->scratch);
}

/* The states of a fresh chain. */
static void draw_states(const head_bench *b)
{
    b->k->head->normal(b->k, b->x, MOST_ROWS, b->h->channels, 1, KERN_NOISE_INIT, b->image, b->position, 0);
}

/* A step of the chain as it is run, and an evaluation by products alone: up to some number of rows a backend may have a
 * faster way, and where that ends is to be chosen by these two. */
static void measure_steps(const head_bench *b)
{
    kern_queue *k = b->k;
    for (int i = 0; i < ROW_COUNTS; i++) {
        const int rows = row_counts[i] - row_counts[i] % b->conditions;
        k->head->modulate(k, b->h->net, b->temb, b->list, NULL, CHAIN, b->cond, rows, b->mod, b->scratch);
        chain_run r = {b, rows, STEPS};
        draw_states(b);
        const double one = kern_time(k, chain_body, &r, 1);
        r.steps = CHAIN;
        const double two = kern_time(k, chain_body, &r, 1);
        const double bytes = head_bytes(b, rows), flop = head_flop(b->h, rows);
        draw_states(b);
        add(b->all, "step", "chain step", rows, two > one ? (two - one) / STEPS : two / CHAIN, bytes, flop);
        add(b->all, "step", "evaluation by products", rows, kern_time(k, product_body, &r, 1), bytes, flop);
    }
}

/* --- rejections and rounds of speculation
 * ----------------------------------------------------------------------------- */

typedef struct {
    kern_queue *k;
    kern_verify_job job;
} verify_run;

static void verify_body(void *arg)
{
    const verify_run *r = arg;
    r->k->head->verify(r->k, &r->job);
}

/* Two unit Gaussians whose means are a hundredth of a standard deviation apart: 800 deviations from the mean of p on
 * q's side the draft is rejected but for exp(-8), on the other side it is accepted. A rejection is what the first takes
 * longer. Of the candidates without a tilt one in 250 would be kept, so that the tilt is chosen and used. It is the job
 * of verify, on a GPU by one warp (verify_kernel), not by the crew of a block's warps (speculate_kernel). */
static mar_status measure_rejection(const head_bench *b, mar_err *err)
{
    kern_queue *k = b->k;
    const int channels = b->h->channels;
    const size_t row = (size_t)channels * sizeof(float);
    const float apart = 0.01f / sqrtf((float)channels), far = 800 / sqrtf((float)channels) + apart / 2;
    enum { DRAFT, ZERO, MEAN_Q, OTHER, X, ARRAYS };
    float *memory = NULL, *host = calloc(ARRAYS, row);
    if (!host) return err_set(err, MAR_ENOMEM, "out of memory");
    mar_status status = k->core->alloc(k->device, ARRAYS * row + 256, (void **)&memory, err);
    if (status == MAR_OK) {
        for (int c = 0; c < channels; c++) {
            host[DRAFT * channels + c] = far;
            host[MEAN_Q * channels + c] = apart;
            host[OTHER * channels + c] = -far;
        }
        k->core->upload(k, memory, host, ARRAYS * row);
        const float *at = memory;
        int *counts = (int *)(memory + ARRAYS * channels); /* 64 of them: the allocation has 256 bytes more */
        const int zero[1] = {0};
        verify_run r = {.k = k,
                        .job = {.rows = 1,
                                .channels = channels,
                                .draft = at + DRAFT * channels,
                                .mean_p = at + ZERO * channels,
                                .log_std_p = at + ZERO * channels,
                                .mean_q = at + MEAN_Q * channels,
                                .log_std_q = at + ZERO * channels,
                                .rule = {.temper = 1},
                                .seed = 1,
                                .image = b->image,
                                .position = b->position,
                                .group = zero,
                                .order = zero,
                                .groups = 1,
                                .x = memory + X * channels,
                                .replaced = counts,
                                .tries = counts + 1,
                                .first_replaced = counts + 2}};
        const double rejected = kern_time(k, verify_body, &r, 1);
        int tries = 0;
        k->core->download(k, &tries, counts + 1, sizeof tries);
        r.job.draft = at + OTHER * channels;
        const double accepted = kern_time(k, verify_body, &r, 1);
        status = kern_check(k, err);
        if (status == MAR_OK) {
            add(b->all, "speculation", "rejection", 1, rejected > accepted ? rejected - accepted : rejected, 0, 0);
            add_count(b->all, "speculation", "candidates of that rejection", tries);
        }
    }
    k->core->finish(k);
    k->device->core->free(k->device, memory);
    free(host);
    return status;
}

typedef struct {
    kern_queue *k;
    diff_speculation *s;
} rounds_run;

static void rounds_body(void *arg)
{
    const rounds_run *r = arg;
    kern_queue *k = r->k;
    kern_speculation *w = &r->s->w;
    k->head->speculate_start(k, w);
    if (k->head->speculate_run && k->head->speculate_run(k, w, &r->s->target.at)) return;
    while (kern_check(k, NULL) == MAR_OK && k->head->speculate_propose(k, w, NULL))
        k->head->speculate_walk(k, w, &r->s->target.at);
}

/* Rounds of as many tokens as give MOST_ROWS rows: all of a chain, over their number. */
static mar_status time_rounds(const head_bench *b, diff_speculation *s, int tokens, mar_err *err)
{
    kern_queue *k = b->k;
    diff_speculation_stats stats = {0};
    rounds_run r = {k, s};
    kern_speculation_count count = {0};
    mar_status status = diff_speculate_plan(s, tokens, tokens, err);
    if (status != MAR_OK) return status;
    const diff_tokens drawn = {tokens, tokens, NULL, b->cond, NULL, b->cfg, 1, b->image, b->position};
    diff_speculate_sample(s, &drawn, b->x, NULL, &stats);
    const double seconds = kern_time(k, rounds_body, &r, 0);
    k->core->download(k, &count, s->w.count, sizeof count);
    status = kern_check(k, err);
    if (status != MAR_OK || count.rounds == 0) return status;
    mar_measured m = {.group = "speculation",
                      .rows = tokens * b->conditions * WINDOW,
                      .count = (double)count.rounds,
                      .seconds = seconds / (double)count.rounds,
                      .bytes = head_bytes(b, tokens * b->conditions * WINDOW),
                      .flop = head_flop(b->h, 1) * b->conditions * (double)count.evaluations / (double)count.rounds};
    snprintf(m.name, sizeof m.name, "round, window %d", WINDOW);
    mar_measurements_add(b->all, &m);
    return MAR_OK;
}

static mar_status measure_rounds(const head_bench *b, int steps, mar_err *err)
{
    const int tokens = MOST_ROWS / WINDOW / b->conditions;
    diff_chain chain = {0};
    diff_speculation s = {0};
    void *memory = NULL;
    mar_status status = diff_chain_create(b->k, b->h, steps, 1, tokens, b->conditions == 2, &chain, err);
    if (status != MAR_OK) return status;
    status = diff_speculate_create(&chain, NULL, WINDOW, 0, &s, err);
    if (status == MAR_OK) {
        const size_t bytes = diff_chain_lay_out(&chain, NULL) + diff_speculate_lay_out(&s, NULL);
        status = b->k->core->alloc(b->k->device, bytes, &memory, err);
    }
    if (status == MAR_OK) {
        const size_t used = diff_chain_lay_out(&chain, memory);
        diff_speculate_lay_out(&s, (char *)memory + used);
        status = time_rounds(b, &s, tokens, err);
    }
    b->k->core->finish(b->k);
    diff_speculate_free(&s);
    diff_chain_free(&chain);
    b->k->device->core->free(b->k->device, memory);
    return status;
}

mar_status mar_measure_head(kern_queue *k, const diff_head *h, int conditions, int steps, mar_measurements *all,
                            mar_err *err)
{
    head_bench b = {.k = k, .h = h, .conditions = conditions, .all = all};
    mar_status status = create(&b, err);
    if (status == MAR_OK) {
        measure_steps(&b); /* leaves modulation rows for the phases */
        measure_phases(&b);
        status = kern_check(k, err);
    }
    if (status == MAR_OK) status = measure_rejection(&b, err);
    if (status == MAR_OK) status = measure_rounds(&b, steps, err);
    destroy(&b);
    return status;
}
