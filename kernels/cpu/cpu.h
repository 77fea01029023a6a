/* Inside the CPU backend. */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include "kernels/ops.h"
#include "kernels/cpu/dot.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/rows.h"

#include <string.h>

typedef struct {
    kern base;                        /* must be first: a kern * points at a cpu_kern */
    int bf16;                         /* act is bf16 (uint16_t), else float */
    int threads;                      /* the most threads of a parallel region */
    dnn *dnn;                         /* oneDNN engine and stream */
    const kern_rows *rows;            /* row kernels of the best instruction set present */
    const bf16_dot *dot;              /* our own products of bf16 layers; NULL: oneDNN makes them */
    struct cpu_matmul_entry *matmuls; /* primitives made so far, shared by all layers of a shape */
    void **scratch;                   /* [threads] oneDNN scratch, large enough for every primitive */
    size_t scratch_bytes;             /* of each */
    void **work;                      /* [threads] buffers of attention, convolutions and group norm */
    size_t work_bytes;                /* of each */
    void **tile;                      /* [threads] results of a linear layer's tile */
    size_t tile_bytes;                /* of each */
    double lap;                       /* seconds at the last lap */
} cpu_kern;

static inline cpu_kern *cpu_of(kern *k)
{
    return (cpu_kern *)k;
}

/* How many threads `work` operations get (multiply-adds, or elements of a row kernel times 16). Little work gets one
 * thread: a fork and its barrier take some microseconds, and far more on a busy machine. */
static inline int cpu_team(const cpu_kern *k, double work)
{
    return work < 1e6 ? 1 : k->threads;
}

/* p + n elements of act. */
static inline void *act_at(const kern *k, const void *p, size_t n)
{
    return (char *)(uintptr_t)p + n * k->act_size;
}

/* matmul.c: the primitive for this shape. It is made at its first use and owned by the backend. Call it outside
 * parallel regions only. */
mar_status cpu_matmul(cpu_kern *k, const dnn_matmul_spec *spec, const dnn_matmul **out, mar_err *err);
void cpu_matmul_free_all(cpu_kern *k);
/* Grows each thread's buffer to at least `bytes`. */
mar_status cpu_grow(cpu_kern *k, void **buffers, size_t *size, size_t bytes, mar_err *err);

const char *cpu_bf16_unit(void); /* isa.c: the name of the unit that multiplies bf16, or NULL */

/* linear.c: a layer call is divided into tiles of at most CPU_TILE_ROWS rows by some columns. One thread computes a
 * tile. head.c runs the tiles inside its own parallel region. */
enum { CPU_TILE_ROWS = 64 };
/* Prepares a call; to be called before the parallel region. Returns 0 if it fails, after kern_fail. */
int cpu_linear_ready(cpu_kern *k, const kern_linear *l, int rows);
int cpu_linear_tiles(const cpu_kern *k, const kern_linear *l, int rows);
void cpu_linear_tile(cpu_kern *k, const kern_linear *l, const void *x, int rows, void *y, int tile, int thread);
/* Whether cpu_linear_columns can run the layer, which needs k->dot. */
int cpu_linear_by_columns(const kern_linear *l);
/* Computes all rows of column range `part` of `parts`. A range is always the same columns, so its weights can stay in a
 * core's cache. At the end the same range of layer `next` is prefetched, unless next is NULL. With a gate:
 * y += gate * result. */
void cpu_linear_columns(const kern_linear *l, const void *x, int rows, void *y, const dot_gate *gate, int part,
                        int parts, const kern_linear *next);

/* kernels/cpu/<file>.c: the entries of the tables. */
mar_status cpu_linear_create(kern *k, const kern_linear_spec *spec, kern_linear **out, mar_err *err);
void cpu_linear_free(kern *k, kern_linear *l);
mar_status cpu_linear_plan(kern *k, kern_linear *l, int rows, mar_err *err);
void cpu_linear(kern *k, const kern_linear *l, const void *x, int rows, void *y);

void cpu_attention(kern *k, const act *q, int q_stride, const act *key, const act *value, int kv_stride, int n_seq,
                   int n_q, int n_k, int heads, int head_dim, act *y);
mar_status cpu_attention_plan(kern *k, int n_q, int n_k, int heads, int head_dim, int q_stride, int kv_stride,
                              mar_err *err);

mar_status cpu_head_create(kern *k, const kern_head_spec *spec, kern_head **out, mar_err *err);
void cpu_head_free(kern *k, kern_head *h);
size_t cpu_head_mod_bytes(const kern_head *h);
size_t cpu_head_scratch_bytes(const kern_head *h, int rows);
mar_status cpu_head_plan(kern *k, kern_head *h, int rows, mar_err *err);
void cpu_head_modulate(kern *k, const kern_head *h, const float *temb, const int *temb_index, int steps,
                       const float *cond, int rows, void *mod, void *scratch);
void cpu_head_eval(kern *k, const kern_head *h, const float *x, const int *x_index, const void *mod,
                   const int *mod_index, int rows, float *out, void *scratch);
void cpu_head_eval_reusing(kern *k, const kern_head *h, const float *x, const int *x_index, const void *mod,
                           const int *mod_index, int rows, kern_head_reuse reuse, float *kept, int kept_rows,
                           float *out, void *scratch);
void cpu_chain_run(kern *k, const kern_head *h, const kern_chain_job *job);
void cpu_chain_step(kern *k, float *x, const float *out, int rows, int channels, const float *cfg,
                    const kern_chain_coef *coef, uint64_t seed, const uint64_t *image, const int *position, int step);
void cpu_chain_ode_step(kern *k, float *x, float *x0, const float *out, int rows, int channels, const float *cfg,
                        const kern_ode_coef *coef);
void cpu_similarity(kern *k, const act *a, const act *b, int stride, int rows, int heads, int head_dim, float *y);
void cpu_subtract(kern *k, const float *a, const float *b, size_t n, float *y);
void cpu_chain_law(kern *k, const float *x, const float *out, int rows, int channels, const float *cfg,
                   const kern_chain_coef *const *coef, float temperature, float *mean, float *log_std);
void cpu_add_log_std(kern *k, double *path, const float *log_std, int rows, int channels);
void cpu_verify(kern *k, const kern_verify_job *job);
void cpu_normal(kern *k, float *x, int rows, int channels, uint64_t seed, kern_noise purpose, const uint64_t *image,
                const int *position, int step);

mar_status cpu_speculate_plan(kern *k, kern_head *h, const kern_speculation *w, mar_err *err);
void cpu_speculate_start(kern *k, kern_speculation *w);
int cpu_speculate_propose(kern *k, kern_speculation *w, const kern_speculation_head *draft);
void cpu_speculate_walk(kern *k, kern_speculation *w, const kern_speculation_head *target);

mar_status cpu_conv_create(kern *k, const kern_conv_spec *spec, kern_conv **out, mar_err *err);
void cpu_conv_free(kern *k, kern_conv *c);
mar_status cpu_conv_plan(kern *k, kern_conv *c, int height, int width, mar_err *err);
void cpu_conv(kern *k, const kern_conv *c, const act *x, int height, int width, void *y);
mar_status cpu_group_norm_plan(kern *k, int pixels, int channels, mar_err *err);
void cpu_group_norm(kern *k, const float *x, int pixels, int channels, int groups, const float *weight,
                    const float *bias, float eps, int silu, act *y);

#endif
