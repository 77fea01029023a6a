#include "tests/support/raster.h"

#include "mar_measure.h"
#include "mar/core/handle.h"
#include "nets/causal_runner.h"
#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

float *backend_floats(kern_queue *k, const float *x, size_t n)
{
    float *host = malloc(n * sizeof *host);
    assert_non_null(host);
    k->core->download(k, host, x, n * sizeof *host);
    return host;
}

/* Uploads a golden array of rows of `width` numbers. */
static float *raster_upload(kern_queue *k, const wt_file *golden, const char *name, int rows, int width)
{
    const size_t n = (size_t)rows * (size_t)width;
    float *host = golden_f32(golden, name, (int64_t)n), *there = backend_memory(k, n * sizeof *host);
    k->core->upload(k, there, host, n * sizeof *host);
    free(host);
    return there;
}

/* Evaluates n rows, each for its own time and condition: every condition is there at every time. */
static float *raster_evaluate(kern_queue *k, const diff_head *h, const float *x, const float *cond, const float *temb,
                              int n)
{
    const int channels = h->shape.channels;
    int *index = malloc((size_t)n * sizeof *index), *at = malloc((size_t)n * sizeof *at);
    float *out = backend_memory(k, (size_t)(n * 2 * channels) * sizeof *out);
    void *mod = backend_memory(k, (size_t)(n * n) * k->head->mod_bytes(h->net));
    void *scratch = backend_memory(k, k->head->scratch_bytes(h->net, n * n));
    assert_true(index && at);
    for (int i = 0; i < n; i++) index[i] = i, at[i] = i * n + i;
    k->head->modulate(k, h->net, temb, index, NULL, n, cond, n, mod, scratch);
    k->head->eval(k, h->net, x, NULL, mod, at, n, out, scratch);
    float *result = backend_floats(k, out, (size_t)(n * 2 * channels));
    void *memory[] = {out, mod, scratch};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) k->core->free(k->device, memory[i]);
    free(index), free(at);
    return result;
}

float *raster_velocities(mar *m, mar_model *model, const wt_file *golden, const char *conditions)
{
    kern_queue *k = queue_of(m);
    const diff_head *h = &mar_raster_model_of(model)->head;
    const int n = (int)wt_find(golden, "head.time")->count, channels = h->shape.channels;
    mar_err err = {0};
    float *time = golden_f32(golden, "head.time", n), *temb;
    float *x = raster_upload(k, golden, "head.x", n, channels),
          *z = raster_upload(k, golden, conditions, n, h->shape.z_dim);
    float *cond = backend_memory(k, (size_t)(n * h->shape.width) * sizeof *cond);
    assert_ok(diff_head_time_embeddings(k, h, time, n, &temb, &err), &err);
    assert_ok(k->core->linear_plan(k, h->cond, n, &err), &err);
    assert_ok(k->head->plan(k, h->net, n * n, &err), &err);
    k->core->linear(k, h->cond, z, n, cond);
    float *velocity = raster_evaluate(k, h, x, cond, temb, n);
    for (int i = 0; i < n; i++) {
        for (int c = 0; c < channels; c++) assert_true(velocity[(2 * i + 1) * channels + c] == 0); /* no variance */
        memmove(velocity + i * channels, velocity + 2 * i * channels, (size_t)channels * sizeof *velocity);
    }
    void *memory[] = {x, z, cond, temb};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) k->core->free(k->device, memory[i]);
    free(time);
    free_queue(k);
    return velocity;
}

float *raster_conditions(const harmon *h, const float *tokens, int n, int most, kern_cache_type type)
{
    enum { BRANCHES = 2 };
    kern_queue *k = queue_of(h->m);
    const mar_raster_model *model = mar_raster_model_of(h->model);
    const size_t bytes = (size_t)(n * model->head.shape.channels) * sizeof *tokens;
    const size_t all = (size_t)(BRANCHES * (1 + n) * model->facts.net.width);
    causal_runner *r;
    mar_err err = {0};
    const causal_sampling sampling = {.cfg = 7.5f};
    assert_ok(causal_runner_create(k, model->net, &sampling, 1, most - 1, 0, &r, &err), &err);
    causal_runner_set_cache(r, type);
    void *memory = backend_memory(k, causal_runner_lay_out(r, NULL));
    causal_runner_lay_out(r, memory);
    assert_ok(causal_runner_plan(r, 1, &err), &err);
    float *x = backend_memory(k, bytes), *z = backend_memory(k, all * sizeof *z);
    int *source = malloc((size_t)n * sizeof *source), *to = malloc((size_t)n * sizeof *to);
    assert_true(source && to);
    k->core->upload(k, x, tokens, bytes);
    causal_runner_set_negative(r, harmon_ids(h, h->prompts), harmon_mask(h, h->prompts));
    causal_runner_begin_captions(r, 1, harmon_ids(h, 0), harmon_mask(h, 0));
    causal_vectors_begin(r, NULL);
    for (int b = 0; b < BRANCHES; b++) causal_vectors_want_first(r, 0, b, b * (1 + n));
    causal_vectors_run(r, z);
    for (int first = 0; first < n; first += most) {
        for (int j = 0; j < most; j++) source[j] = first + j, to[j] = first + 1 + j;
        causal_vectors_begin(r, x);
        for (int b = 0; b < BRANCHES; b++) causal_vectors_add(r, 0, b, first, most, source, most, to, b * (1 + n));
        causal_vectors_run(r, z);
    }
    float *host = backend_floats(k, z, all);
    assert_ok(kern_check(k, &err), &err);
    causal_runner_free(r);
    free(source), free(to);
    void *arrays[] = {memory, x, z};
    for (int i = 0; i < 3; i++) k->core->free(k->device, arrays[i]);
    free_queue(k);
    return host;
}

void raster_check_cache_error(float *bf16, float *int8, const float *expected, size_t n)
{
    const double near = relative_error(bf16, expected, n), farther = relative_error(int8, expected, n);
    print_message("keys and values in bf16: %.2g, in int8: %.2g\n", near, farther);
    assert_true(near > 1e-5 && near < 5e-3);
    assert_true(farther > near && farther < 2e-2);
    free(bf16), free(int8);
}

static double session_bytes(mar *m, mar_model *model, mar_cache cache)
{
    mar_params p = params_with("num_iter 0, cfg 3");
    mar_session *s;
    mar_stats stats;
    p.cache_dtype = cache;
    assert_library(m, mar_session_create(model, NULL, &p, 2, &s));
    mar_stats_init(&stats, sizeof stats);
    mar_session_get_stats(s, &stats);
    mar_session_free(s);
    return (double)stats.arena_bytes;
}

void raster_check_cache_memory(mar *m, mar_model *model, int layers, int slots)
{
    const causal_shape *c = &mar_raster_model_of(model)->facts.net;
    const double f32 = (double)kern_cache_slot_bytes(m->device, KERN_CACHE_ACT, c->kv_heads, c->head_dim),
                 int8 = (double)kern_cache_slot_bytes(m->device, KERN_CACHE_INT8, c->kv_heads, c->head_dim);
    const double all = session_bytes(m, model, MAR_CACHE_AUTO), half = all - session_bytes(m, model, MAR_CACHE_BF16),
                 most = all - session_bytes(m, model, MAR_CACHE_INT8);
    assert_true(f32 == 2.0 * c->kv_heads * c->head_dim * 4 && int8 == 2.0 * c->kv_heads * (c->head_dim + 4));
    assert_true(2 * half >= 2 * 2 * f32 * layers * slots);      /* images, branches */
    assert_float_equal(most, 2 * half * (1 - int8 / f32), 512); /* the arena's parts are rounded up */
}
