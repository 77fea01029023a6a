/* The CPU backend's device and its table of operations: products and convolutions of gemm/, vectorised row kernels
 * for the rest. All queues of a device share a pool of threads. */
#include "base/cpus.h"
#include "base/memory.h"
#include "kernels/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Modulation rows are written once and read once. This chunk size makes their product large, with one read of the
 * weights per chunk. A big batch does not store the rows of all steps. */
enum { MOD_BUDGET = 64 << 20 };

/* From this size on a block is compared with the available memory: the system overcommits, and kills a process that
 * uses too much. */
enum { LARGE = 64 << 20 };

/* Writes zeros. Pages of a large block of the library's own, which is page-aligned, are made at first use, by calls
 * that can be cancelled. */
static void cpu_clear(char *block, size_t bytes, int own)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t whole = own && bytes >= LARGE ? bytes / page * page : 0;
    if (whole && madvise(block, whole, MADV_DONTNEED) != 0) whole = 0;
    memset(block + whole, 0, bytes - whole);
}

static mar_status cpu_alloc(kern_device *d, size_t bytes, void **out, mar_err *err)
{
    const cpu_device *cpu = (const cpu_device *)d;
    const int own = !cpu->memory.alloc;
    const double left = own && bytes >= LARGE ? memory_available("") : 0;
    *out = NULL;
    if (left > 0 && (double)bytes > left)
        return err_set(err, MAR_ENOMEM, "%.3g GB %s available", left / 1e9, left < 1e9 ? "is" : "are");
    const mar_status status = cpu_pages(cpu, bytes, "working memory", out, err);
    if (status == MAR_OK) cpu_clear(*out, bytes, own);
    return status;
}

static void cpu_free(kern_device *d, void *p)
{
    cpu_pages_free((const cpu_device *)d, p);
}

static void cpu_copy(kern_queue *k, void *dst, const void *src, size_t bytes)
{
    if (kern_live(k)) memcpy(dst, src, bytes);
}

static void cpu_finish(kern_queue *k)
{
    (void)k; /* every operation has finished when its call returns */
}

static void cpu_recover(kern_queue *k)
{
    k->failed = MAR_OK;
}

static void cpu_bind(kern_queue *k)
{
    pool_client_enter(cpu_of(k)->client);
}

static void cpu_unbind(kern_queue *k)
{
    pool_client_leave(cpu_of(k)->client);
}

static void cpu_timer_mark(kern_queue *k, double *seconds)
{
    cpu_queue *q = cpu_of(k);
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    const double now = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    if (seconds) *seconds += now - q->last_mark;
    q->last_mark = now;
}

static void cpu_replay(kern_queue *k, kern_recording **recording, void (*body)(void *arg), void *arg)
{
    (void)k, (void)recording;
    body(arg);
}

static void cpu_recording_free(kern_queue *k, kern_recording *recording)
{
    (void)k, (void)recording; /* there are no recordings */
}

/* A loop over rows of `dim` floats, or over items of some floats; each operation below uses some fields. */
typedef struct {
    const cpu_device *d;
    float *dst;
    const float *x, *add, *weight, *bias;
    const int *dst_index, *index, *add_index;
    int dim;
    float eps;
    void *y;
    int bf16; /* y is bf16 */
    size_t n; /* floats */
} rows_loop;

static void norm_body(void *arg, int first, int last, int thread)
{
    const rows_loop *l = arg;
    const size_t stride = (size_t)l->dim * (l->bf16 ? 2 : 4);
    (void)thread;
    for (int r = first; r < last; r++) {
        const float *x = l->x + (size_t)(l->index ? l->index[r] : r) * (size_t)l->dim;
        void *y = (char *)l->y + (size_t)r * stride;
        if (l->bias)
            l->d->rows->layer_norm(x, l->dim, l->weight, l->bias, l->eps, y, l->bf16);
        else
            l->d->rows->rms_norm(x, l->dim, l->weight, l->eps, y, l->bf16);
    }
}

static void cpu_layer_norm(kern_queue *k, const float *x, const int *index, int rows, int dim, const float *weight,
                           const float *bias, float eps, void *y, int y_f32)
{
    cpu_queue *q = cpu_of(k);
    rows_loop l = {.d = q->d,
                   .x = x,
                   .index = index,
                   .dim = dim,
                   .weight = weight,
                   .bias = bias,
                   .eps = eps,
                   .y = y,
                   .bf16 = q->d->bf16 && !y_f32};
    if (kern_live(k)) cpu_for(q, rows, 16.0 * rows * dim, norm_body, &l);
}

static void cpu_rms_norm(kern_queue *k, const float *x, const int *index, int rows, int dim, const float *weight,
                         float eps, void *y, int y_f32)
{
    cpu_layer_norm(k, x, index, rows, dim, weight, NULL, eps, y, y_f32);
}

static void copy_rows_body(void *arg, int first, int last, int thread)
{
    const rows_loop *l = arg;
    const size_t n = (size_t)l->dim;
    (void)thread;
    for (int r = first; r < last; r++)
        l->d->rows->add(l->dst + n * (size_t)(l->dst_index ? l->dst_index[r] : r),
                        l->x + n * (size_t)(l->index ? l->index[r] : r),
                        l->add ? l->add + n * (size_t)(l->add_index ? l->add_index[r] : r) : NULL, n);
}

static void cpu_copy_rows(kern_queue *k, float *dst, const int *dst_index, const float *src, const int *src_index,
                          const float *add, const int *add_index, int rows, int dim)
{
    cpu_queue *q = cpu_of(k);
    rows_loop l = {.d = q->d,
                   .dst = dst,
                   .dst_index = dst_index,
                   .x = src,
                   .index = src_index,
                   .add = add,
                   .add_index = add_index,
                   .dim = dim};
    if (kern_live(k)) cpu_for(q, rows, 16.0 * rows * dim, copy_rows_body, &l);
}

enum { CONVERTED = 4096 }; /* elements of an item */

static void to_act_body(void *arg, int first, int last, int thread)
{
    const rows_loop *l = arg;
    const size_t from = (size_t)first * CONVERTED,
                 end = (size_t)last * CONVERTED < l->n ? (size_t)last * CONVERTED : l->n;
    (void)thread;
    l->d->rows->to_act(l->x + from, end - from, act_at(&l->d->base, l->y, from), l->bf16);
}

static void cpu_to_act(kern_queue *k, const float *x, size_t n, act *y)
{
    cpu_queue *q = cpu_of(k);
    rows_loop l = {.d = q->d, .x = x, .n = n, .y = y, .bf16 = q->d->bf16};
    if (kern_live(k)) cpu_for(q, (int)((n + CONVERTED - 1) / CONVERTED), 16.0 * (double)n, to_act_body, &l);
}

/* --- the device --------------------------------------------------------------------------------------------------- */

static void cpu_close(kern_device *device)
{
    cpu_device *d = (cpu_device *)device;
    thread_pool_free(d->pool);
    free(d);
}

static const kern_core_ops cpu_core_ops = {
    .close = cpu_close,
    .queue_create = cpu_queue_create,
    .queue_free = cpu_queue_free,
    .bind = cpu_bind,
    .unbind = cpu_unbind,
    .recover = cpu_recover,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .upload = cpu_copy,
    .download = cpu_copy,
    .finish = cpu_finish,
    .timer_mark = cpu_timer_mark,
    .replay = cpu_replay,
    .recording_free = cpu_recording_free,
    .linear_create = cpu_linear_create,
    .linear_free = cpu_linear_free,
    .linear_plan = cpu_linear_plan,
    .linear = cpu_linear,
    .layer_norm = cpu_layer_norm,
    .copy_rows = cpu_copy_rows,
    .similarity = cpu_similarity,
    .first_nonfinite = cpu_first_nonfinite,
    .distances = cpu_distances,
    .subtract = cpu_subtract,
    .to_act = cpu_to_act,
    .attention = cpu_attention,
    .attention_plan = cpu_attention_plan,
    .attention_spans = cpu_attention_spans,
    .rms_norm = cpu_rms_norm,
    .gated = cpu_gated,
    .rotate = cpu_rotate,
    .attention_cache = cpu_attention_cache,
    .attention_cache_plan = cpu_attention_cache_plan,
    .look_up = cpu_look_up,
    .embed = cpu_embed,
};

static const kern_head_ops cpu_head_ops = {
    .create = cpu_head_create,
    .free = cpu_head_free,
    .describe = cpu_head_describe,
    .mod_bytes = cpu_head_mod_bytes,
    .scratch_bytes = cpu_head_scratch_bytes,
    .plan = cpu_head_plan,
    .modulate = cpu_head_modulate,
    .eval = cpu_head_eval,
    .eval_reusing = cpu_head_eval_reusing,
    .chain_step = cpu_chain_step,
    .chain_ode_step = cpu_chain_ode_step,
    .chain_gaussian = cpu_chain_gaussian,
    .add_log_std = cpu_add_log_std,
    .verify = cpu_verify,
    .path_ratio = cpu_path_ratio,
    .path_decide = cpu_path_decide,
    .normal = cpu_normal,
    .speculate_plan = cpu_speculate_plan,
    .speculate_start = cpu_speculate_start,
    .speculate_propose = cpu_speculate_propose,
    .speculate_walk = cpu_speculate_walk,
};

static const kern_conv_ops cpu_conv_ops = {
    .create = cpu_conv_create,
    .free = cpu_conv_free,
    .plan = cpu_conv_plan,
    .conv = cpu_conv,
    .group_norm_plan = cpu_group_norm_plan,
    .group_norm = cpu_group_norm,
    .group_sums = cpu_group_sums,
    .to_bytes = cpu_to_bytes,
    .pool = cpu_pool,
    .mean_pixels = cpu_mean_pixels,
    .take_channels = cpu_take_channels,
    .resize = cpu_resize,
};

mar_status kern_cpu_open(mar_dtype dtype, int threads, const kern_memory *memory, kern_device **out, mar_err *err)
{
    *out = NULL;
    if ((int)dtype < MAR_DTYPE_AUTO || (int)dtype > MAR_DTYPE_INT4)
        return err_set(err, MAR_EARG, "--dtype %d: expected auto, f32, bf16, int8 or int4", (int)dtype);
    if (dtype == MAR_DTYPE_F16)
        return err_set(err, MAR_EARG, "--dtype f16: the CPU backend computes in f32, bf16, int8 or int4");
    if (threads < 0 || threads > 1024)
        return err_set(err, MAR_EARG, "--threads %d: expected 1..1024, or 0 for one per core", threads);
    cpu_device *d = calloc(1, sizeof *d);
    if (!d) return err_set(err, MAR_ENOMEM, "out of memory");
    d->base.core = &cpu_core_ops;
    d->base.head = &cpu_head_ops;
    d->base.conv = &cpu_conv_ops;
    d->base.discrete = &cpu_discrete_ops;
    d->base.measure = &cpu_measure_ops;
    d->base.fused.linear_gated = cpu_linear_gated;
    kern_fused_complete(&d->base);
    d->base.mod_budget = (size_t)MOD_BUDGET;
    if (memory) d->memory = *memory;
    d->rows = kern_rows_best();
    for (int type = GEMM_F32; type <= GEMM_INT4; type++) d->gemm[type] = gemm_best((gemm_type)type);
    d->bf16 = dtype == MAR_DTYPE_BF16 || (dtype != MAR_DTYPE_F32 && d->gemm[GEMM_BF16]->native);
    d->base.int8 = d->base.int8_head = dtype == MAR_DTYPE_INT8;
    d->base.int4 = dtype == MAR_DTYPE_INT4;
    d->base.act_size = d->bf16 ? 2 : 4;
    d->base.draft_budget = 16; /* SJD's; a pass over 64 takes more than twice as long */
    d->attend = d->bf16 ? cached_attend_best(d->rows) : d->rows->attend;
    const int asked = threads ? threads : cpus_available();
    const int wanted = cpu_lesser(asked, cpus_affinity()); /* more would share cores */
    const mar_status status = thread_pool_create(wanted, &d->pool, err);
    if (status != MAR_OK) {
        cpu_close(&d->base);
        return status;
    }
    d->threads = d->base.threads = thread_pool_size(d->pool);
    d->base.threads_missing = wanted - d->threads;
    const int low = d->base.int8 || d->base.int4;
    snprintf(d->base.unit, sizeof d->base.unit, "%s%s%s",
             low ? d->gemm[d->base.int8 ? GEMM_INT8 : GEMM_INT4]->unit : "", low ? ", " : "",
             d->gemm[d->bf16 ? GEMM_BF16 : GEMM_F32]->unit);
    *out = &d->base;
    return MAR_OK;
}
