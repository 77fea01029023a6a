/* The CPU backend: oneDNN for products and convolutions, OpenMP and vectorised row kernels for the rest. */
#include "kernels/cpu/cpu.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Modulation rows are written once and read once. This many bytes of them at a time make the product that computes them
 * large, which reads its weights once a chunk, without storing all steps of a big batch. */
enum { MOD_BUDGET = 64 << 20 };

static mar_status cpu_alloc(kern *k, size_t bytes, void **out, mar_err *err)
{
    (void)k;
    bytes = (bytes + 63) / 64 * 64;
    *out = aligned_alloc(64, bytes ? bytes : 64);
    if (!*out) return err_set(err, MAR_ENOMEM, "out of memory: %zu bytes of working memory", bytes);
    memset(*out, 0, bytes);
    return MAR_OK;
}

static void cpu_free(kern *k, void *p)
{
    (void)k;
    free(p);
}

static void cpu_copy(kern *k, void *dst, const void *src, size_t bytes)
{
    (void)k;
    memcpy(dst, src, bytes);
}

static void cpu_finish(kern *k)
{
    (void)k; /* every operation has ended when its call returns */
}

static void cpu_lap(kern *k, double *seconds)
{
    cpu_kern *c = cpu_of(k);
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    const double now = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    if (seconds) *seconds += now - c->lap;
    c->lap = now;
}

static void cpu_replay(kern *k, kern_recording **recording, void (*body)(void *arg), void *arg)
{
    (void)k, (void)recording;
    body(arg);
}

static void cpu_recording_free(kern *k, kern_recording *recording)
{
    (void)k, (void)recording; /* none is made */
}

static void cpu_layer_norm(kern *k, const float *x, const int *index, int rows, int dim, const float *weight,
                           const float *bias, float eps, void *y, int y_f32)
{
    cpu_kern *c = cpu_of(k);
    const int bf16 = c->bf16 && !y_f32;
    const size_t stride = (size_t)dim * (bf16 ? 2 : 4);
    const int team = cpu_team(c, 16.0 * rows * dim);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int r = 0; r < rows; r++)
        c->rows->layer_norm(x + (size_t)(index ? index[r] : r) * (size_t)dim, dim, weight, bias, eps,
                            (char *)y + (size_t)r * stride, bf16);
}

static void cpu_copy_rows(kern *k, float *dst, const int *dst_index, const float *src, const int *src_index,
                          const float *add, const int *add_index, int rows, int dim)
{
    cpu_kern *c = cpu_of(k);
    const size_t n = (size_t)dim;
    const int team = cpu_team(c, 16.0 * rows * dim);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int r = 0; r < rows; r++)
        c->rows->add(dst + n * (size_t)(dst_index ? dst_index[r] : r), src + n * (size_t)(src_index ? src_index[r] : r),
                     add ? add + n * (size_t)(add_index ? add_index[r] : r) : NULL, n);
}

static void cpu_to_act(kern *k, const float *x, size_t n, act *y)
{
    enum { CHUNK = 16384 };
    cpu_kern *c = cpu_of(k);
#pragma omp parallel for num_threads(c->threads) schedule(static) if (n > CHUNK)
    for (size_t i = 0; i < n; i += CHUNK)
        c->rows->to_act(x + i, n - i < CHUNK ? n - i : CHUNK, act_at(k, y, i), c->bf16);
}

static void cpu_close(kern *k)
{
    cpu_kern *c = cpu_of(k);
    cpu_matmul_free_all(c);
    for (int t = 0; t < c->threads; t++) {
        if (c->scratch) free(c->scratch[t]);
        if (c->work) free(c->work[t]);
        if (c->tile) free(c->tile[t]);
    }
    free(c->scratch);
    free(c->work);
    free(c->tile);
    dnn_close(c->dnn);
    free(c);
}

static const kern_core_ops cpu_core_ops = {
    .close = cpu_close,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .upload = cpu_copy,
    .download = cpu_copy,
    .finish = cpu_finish,
    .lap = cpu_lap,
    .replay = cpu_replay,
    .recording_free = cpu_recording_free,
    .linear_create = cpu_linear_create,
    .linear_free = cpu_linear_free,
    .linear_plan = cpu_linear_plan,
    .linear = cpu_linear,
    .layer_norm = cpu_layer_norm,
    .copy_rows = cpu_copy_rows,
    .similarity = cpu_similarity,
    .subtract = cpu_subtract,
    .to_act = cpu_to_act,
    .attention = cpu_attention,
    .attention_plan = cpu_attention_plan,
};

static const kern_head_ops cpu_head_ops = {
    .create = cpu_head_create,
    .free = cpu_head_free,
    .mod_bytes = cpu_head_mod_bytes,
    .scratch_bytes = cpu_head_scratch_bytes,
    .plan = cpu_head_plan,
    .modulate = cpu_head_modulate,
    .eval = cpu_head_eval,
    .eval_reusing = cpu_head_eval_reusing,
    .chain_run = cpu_chain_run,
    .chain_step = cpu_chain_step,
    .chain_ode_step = cpu_chain_ode_step,
    .chain_law = cpu_chain_law,
    .add_log_std = cpu_add_log_std,
    .verify = cpu_verify,
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
};

/* Whether oneDNN multiplies bf16 here. ONEDNN_MAX_CPU_ISA can make it use less than the processor has. */
static int bf16_works(dnn *d)
{
    enum { N = 64 };
    static const float zeros[N * N];
    dnn_packed *weight = NULL;
    dnn_matmul *product = NULL;
    mar_status status = dnn_pack(d, zeros, N, N, 1, &weight, NULL);
    const dnn_matmul_spec spec = {.m = N, .n = N, .k = N, .lda = N, .ldc = N, .bf16 = 1, .packed = weight};
    if (status == MAR_OK) status = dnn_matmul_create(d, &spec, &product, NULL);
    dnn_matmul_free(product);
    dnn_packed_free(weight);
    return status == MAR_OK;
}

mar_status kern_cpu_open(mar_dtype dtype, int threads, kern **out, mar_err *err)
{
    *out = NULL;
    const char *unit = cpu_bf16_unit();
    if ((int)dtype < MAR_DTYPE_AUTO || (int)dtype > MAR_DTYPE_F16)
        return err_set(err, MAR_EARG, "dtype %d: expected auto, f32 or bf16", (int)dtype);
    if (dtype == MAR_DTYPE_F16) return err_set(err, MAR_EARG, "dtype f16: the CPU backend computes in f32 or bf16");
    if (dtype == MAR_DTYPE_BF16 && !unit)
        return err_set(err, MAR_EBACKEND, "dtype bf16: this processor has neither AVX512-BF16 nor AMX; use f32");
    if (threads < 0 || threads > 1024)
        return err_set(err, MAR_EARG, "threads %d: expected 1..1024, or 0 for one per core", threads);
    cpu_kern *c = calloc(1, sizeof *c);
    if (!c) return err_set(err, MAR_ENOMEM, "out of memory");
    c->base.core = &cpu_core_ops;
    c->base.head = &cpu_head_ops;
    c->base.conv = &cpu_conv_ops;
    c->base.mod_budget = (size_t)MOD_BUDGET;
    c->threads = threads ? threads : omp_get_num_procs();
    c->rows = kern_rows_best();
    c->scratch = calloc((size_t)c->threads, sizeof *c->scratch);
    c->work = calloc((size_t)c->threads, sizeof *c->work);
    c->tile = calloc((size_t)c->threads, sizeof *c->tile);
    mar_status status = c->scratch && c->work && c->tile ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
    if (status == MAR_OK) status = dnn_open(c->threads, &c->dnn, err);
    if (status == MAR_OK && dtype != MAR_DTYPE_F32 && unit) c->bf16 = bf16_works(c->dnn);
    c->base.act_size = c->bf16 ? 2 : 4;
    if (c->bf16) c->dot = bf16_dot_best();
    if (status == MAR_OK && dtype == MAR_DTYPE_BF16 && !c->bf16)
        status = err_set(err, MAR_EBACKEND, "dtype bf16: %s has no bf16 products here; use f32", dnn_version_text());
    if (status != MAR_OK) {
        cpu_close(&c->base);
        return status;
    }
    snprintf(c->base.description, sizeof c->base.description, "cpu %s (%s, %s), %d thread%s", c->bf16 ? "bf16" : "f32",
             c->bf16 ? unit : c->rows->isa, dnn_version_text(), c->threads, c->threads == 1 ? "" : "s");
    *out = &c->base;
    return MAR_OK;
}
