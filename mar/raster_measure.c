/* Measures passes over chains of drafts, with the bytes and flop they need. */
#include "mar/raster_measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DRAFTS_MOST = 64, REPEATS = 5 };

/* A runner of its own and its request, the same for every image. */
typedef struct {
    kern_queue *k;
    const causal_model *model;
    causal_runner *runner;
    void *memory;     /* backend: the runner's memory, then the distributions */
    float *log_probs; /* backend [images][1 + DRAFTS_MOST][vocabulary] */
    int images;
    causal_request *request; /* [images] */
    int *prefix;             /* [seq_len] */
    int draft[DRAFTS_MOST], parent[DRAFTS_MOST];
} passes;

static void measure_destroy(passes *p)
{
    p->k->core->finish(p->k); /* a timer mark adds to the runner's statistics */
    causal_runner_free(p->runner);
    p->k->device->core->free(p->k->device, p->memory);
    free(p->request);
    free(p->prefix);
}

mar_status raster_begin_any(causal_runner *r, const causal_shape *c, int images, mar_err *err)
{
    const size_t positions = (size_t)images * (size_t)c->prefix;
    int *label = calloc((size_t)images, sizeof *label);
    float *features = calloc(positions * (size_t)c->caption_dim + 1, sizeof *features);
    uint8_t *mask = malloc(positions);
    const mar_status status = label && features && mask ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
    if (mask) memset(mask, 1, positions);
    for (size_t i = 0; mask && c->prompt && i < positions; i++) /* a prompt of usual length */
        mask[i] = (int)(i % (size_t)c->prefix) >= c->prefix - RASTER_USUAL_PROMPT;
    if (status == MAR_OK && c->caption_dim)
        causal_runner_begin_captions(r, images, features, mask);
    else if (status == MAR_OK)
        causal_runner_begin(r, images, label);
    free(label);
    free(features);
    free(mask);
    return status;
}

static mar_status measure_create(passes *p, const causal_sampling *sampling, kern_cache_type cache, mar_err *err)
{
    const causal_shape *c = &p->model->shape;
    const size_t probs_bytes = (size_t)p->images * (1 + DRAFTS_MOST) * (size_t)c->vocabulary * sizeof(float);
    p->request = calloc((size_t)p->images, sizeof *p->request);
    p->prefix = calloc((size_t)c->seq_len, sizeof *p->prefix);
    mar_status status = p->request && p->prefix ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
    if (status == MAR_OK)
        status = causal_runner_create(p->k, p->model, sampling, p->images, DRAFTS_MOST, 0, &p->runner, err);
    if (status == MAR_OK) causal_runner_set_cache(p->runner, cache);
    const size_t bytes = status == MAR_OK ? causal_runner_lay_out(p->runner, NULL) : 0;
    if (status == MAR_OK) status = p->k->device->core->alloc(p->k->device, bytes + probs_bytes, &p->memory, err);
    if (status == MAR_OK) {
        causal_runner_lay_out(p->runner, p->memory);
        p->log_probs = (float *)((char *)p->memory + bytes);
        status = causal_runner_plan(p->runner, p->images, err);
    }
    return status == MAR_OK ? raster_begin_any(p->runner, c, p->images, err) : status;
}

raster_timer raster_time(kern_queue *k, const causal_runner_stats *stats)
{
    k->core->finish(k);
    k->core->timer_mark(k, NULL);
    return (raster_timer){k, stats, *stats};
}

void raster_timed(const raster_timer *t, mar_measured *m)
{
    double seconds = 0;
    t->k->core->timer_mark(t->k, &seconds);
    t->k->core->finish(t->k);
    if (m->seconds == 0 || seconds < m->seconds) m->seconds = seconds;
    m->rows = (int)(t->stats->rows - t->before.rows);
    m->flop = t->stats->flop - t->before.flop;
    m->bytes = t->stats->bytes - t->before.bytes;
}

/* Runs one pass over `drafts` drafts behind half an image. `number` makes the drafts of each pass differ, so that none
 * is cached. */
static mar_status measure_run(passes *p, int drafts, int number, mar_err *err)
{
    const causal_shape *c = &p->model->shape;
    const int half = causal_half(c);
    for (int i = 0; i < drafts; i++) {
        p->draft[i] = (number * 31 + i * 7 + 1) % c->vocabulary;
        p->parent[i] = i - 1;
    }
    for (int i = 0; i < half; i++) p->prefix[i] = (i * 5 + (i == half - 1 ? number : 0)) % c->vocabulary;
    for (int i = 0; i < p->images; i++)
        p->request[i] = (causal_request){.sequence = i,
                                         .prefix = p->prefix,
                                         .length = half,
                                         .draft = p->draft,
                                         .parent = p->parent,
                                         .count = drafts,
                                         .row = i * (1 + DRAFTS_MOST)};
    const mar_status status = causal_runner_log_probs(p->runner, p->request, p->images, p->log_probs, err);
    return status == MAR_OK ? kern_check(p->k, err) : status;
}

/* Measures the fastest pass among those of about half a second, REPEATS at least. mar_measure_bandwidth, shown beside,
 * has the same chances of a quiet moment. The first pass also allocates, and does not count. */
static mar_status raster_measure_passes(passes *p, int drafts, const char *role, mar_measurements *all, mar_err *err)
{
    mar_measured m = {.count = 1};
    mar_status status = MAR_OK;
    double begun = 0;
    for (int i = 0; status == MAR_OK && (i <= REPEATS || mar_now() - begun < 0.5); i++) {
        const raster_timer timer = raster_time(p->k, causal_runner_get_stats(p->runner));
        if (i == 1) begun = mar_now();
        if (i == 1) m.seconds = 0;
        status = measure_run(p, drafts, i, err);
        raster_timed(&timer, &m);
    }
    snprintf(m.name, sizeof m.name, "%s, %d drafts", role, drafts);
    if (status == MAR_OK) mar_measurements_add(all, "pass", &m);
    return status;
}

mar_status raster_measure_net(kern_queue *k, const causal_model *model, const causal_sampling *sampling,
                              kern_cache_type cache, int images, const char *role, mar_measurements *all, mar_err *err)
{
    static const int drafts[] = {0, 1, 4, 16, 64};
    passes p = {.k = k, .model = model, .images = images};
    mar_status status = measure_create(&p, sampling, cache, err);
    for (size_t i = 0; status == MAR_OK && i < sizeof drafts / sizeof *drafts; i++)
        if (drafts[i] < causal_half(&model->shape)) status = raster_measure_passes(&p, drafts[i], role, all, err);
    measure_destroy(&p);
    return status;
}
