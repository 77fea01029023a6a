/* Inside the CPU backend. */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include "base/thread_pool.h"
#include "kernels/causal.h"
#include "kernels/cpu/cached.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/rows.h"

#include <string.h>

/* Shared by all queues, and constant after opening. */
typedef struct {
    kern_device base;           /* must be first: a kern_device * points at a cpu_device */
    int bf16;                   /* act is bf16 (uint16_t), else float */
    int threads;                /* threads of the pool */
    thread_pool *pool;          /* workers shared by all queues */
    const kern_rows *rows;      /* row kernels of the best instruction set available */
    cached_attend *attend;      /* attention over a cache */
    const gemm_kernel *gemm[4]; /* products of each gemm_type */
    kern_memory memory;         /* the host's; alloc NULL: the C library's */
} cpu_device;

typedef struct {
    kern_queue base; /* must be first: a kern_queue * points at a cpu_queue */
    cpu_device *d;
    pool_client *client;
    void **work;       /* [threads] buffers of attention, convolutions and group norm */
    size_t work_bytes; /* of each */
    void *operand;     /* operand of a linear layer, if it is made of x */
    size_t operand_bytes;
    void *operand_scale; /* float [rows] scales of an int8 operand */
    size_t scale_bytes;
    double last_mark; /* seconds at the last mark */
} cpu_queue;

static inline cpu_queue *cpu_of(kern_queue *k)
{
    return (cpu_queue *)k;
}

static inline int cpu_lesser(int a, int b)
{
    return a < b ? a : b;
}

/* Returns a / b, rounded up. */
static inline int cpu_divide_up(int a, int b)
{
    return (a + b - 1) / b;
}

static inline int cpu_cancelled(const cpu_queue *q)
{
    return q->base.cancel && __atomic_load_n(q->base.cancel, __ATOMIC_RELAXED);
}

/* queue.c */
mar_status cpu_queue_create(kern_device *device, kern_queue **out, mar_err *err);
void cpu_queue_free(kern_queue *k);
/* Runs body on items 0 .. n-1 (base/thread_pool.h). `work` counts multiply-adds, or elements of a row kernel times 16;
 * a loop with enough work is divided among the threads. A cancel skips the items not yet begun and fails the queue. */
void cpu_for(cpu_queue *q, int n, double work, parallel_body *body, void *arg);

/* Returns p + n elements of act. */
static inline void *act_at(const kern_device *d, const void *p, size_t n)
{
    return (char *)(uintptr_t)p + n * d->act_size;
}

/* For plans: makes room for an operand of `rows` rows, and their scales. */
mar_status cpu_operand_room(cpu_queue *q, int rows, size_t row_bytes, mar_err *err);
/* For plans: grows each thread's buffer to at least `bytes`. */
mar_status cpu_work_room(cpu_queue *q, size_t bytes, mar_err *err);
/* For operations, which allocate nothing: returns 1 if their plan made room. Otherwise fails the queue and returns 0;
 * the call's sizes follow as for printf. */
int cpu_planned(cpu_queue *q, int has_room, const char *call, ...) __attribute__((format(printf, 3, 4)));

/* pages.c: allocates at least `bytes` bytes for `what`, 64-byte aligned; *out is NULL on failure. Takes them from the
 * host's functions if there are any. Else uses huge pages where the system has them. A core then reads a fifth to a
 * third more per second (measured on Zen 5): fewer TLB misses, and prefetching across page ends. */
mar_status cpu_pages(const cpu_device *d, size_t bytes, const char *what, void **out, mar_err *err);
/* Does the same for n floats, and writes zeros: a bias. */
mar_status cpu_zeros(const cpu_device *d, size_t n, float **out, mar_err *err);
void cpu_pages_free(const cpu_device *d, void *p); /* NULL is fine */

/* linear.c: how a product is divided into jobs. */
typedef struct {
    int strips; /* of the rows */
    int parts;  /* of a block's columns: 1 or 2 */
    int unit;   /* rows: strips begin at multiples of it */
} cpu_cut;
/* Returns the cut of `rows` rows and `blocks` blocks of columns whose busiest thread is done first, and the coarsest of
 * equals. It has at least the strips of `coarsest`, 6 rows each if it has more, and at most `parts` parts. A job takes
 * as long as its rows times columns, with two more of both. Up to 12 rows are not cut: they wait for weights, of which
 * half blocks were read 1.6 times as slowly (bench/LAB.md). The inner dimension is whole, so no cut changes bits. */
cpu_cut cpu_cut_product(int threads, int blocks, int rows, cpu_cut coarsest, int parts);
/* Returns the first row of a strip. */
int cpu_cut_row(const cpu_cut *c, int rows, int strip);
/* Returns 1 if a call is planned. Otherwise fails the queue and returns 0. */
int cpu_linear_ready(cpu_queue *q, const kern_linear *l, int rows);
/* Runs a planned call, tile by tile. */
void cpu_linear_run(cpu_queue *q, const kern_linear *l, const void *x, int rows, void *y);
/* Runs a planned call, one block of columns after the other with all rows, or finer where threads would rest. A thread
 * has the same columns at every call, so its weights can stay in a core's cache. With a gate: y += gate * result.
 * `next` is the layer that follows, or NULL; its weights are prefetched. */
void cpu_linear_columns(cpu_queue *q, const kern_linear *l, const void *x, int rows, void *y, const gemm_gate *gate,
                        const kern_linear *next);
/* Layers that a thread runs one after the other for its own rows. */
typedef struct {
    size_t operand_bytes; /* of a row: the most, so that threads at different layers keep apart */
    size_t weight_bytes;  /* of all layers */
    int in_tiles;         /* 1: products of AMX, of some rows at a time */
} cpu_layers;
void cpu_linear_join(const kern_linear *l, cpu_layers *layers);
/* Runs rows first .. last-1 of a planned call of one of the layers, in the calling thread of a loop. */
void cpu_linear_rows(const cpu_queue *q, const kern_linear *l, const cpu_layers *layers, const void *x, int first,
                     int last, void *y, const gemm_gate *gate, const kern_linear *next);

/* kernels/cpu/<file>.c: entries of the tables. */
mar_status cpu_linear_create(kern_queue *k, const kern_linear_spec *spec, kern_linear **out, mar_err *err);
/* Creates a layer of spec->out columns, all of a before those of b: y [rows][out/2] = silu(a) * b, rounded once. The
 * spec has no activation, KERN_OUT_ADD or `quantised`. The layer has no gate in cpu_linear_columns. */
mar_status cpu_linear_create_swiglu(kern_queue *k, const kern_linear_spec *spec, kern_linear **out, mar_err *err);
void cpu_linear_free(kern_device *d, kern_linear *l);
mar_status cpu_linear_plan(kern_queue *k, const kern_linear *l, int rows, mar_err *err);
void cpu_linear(kern_queue *k, const kern_linear *l, const void *x, int rows, void *y);

void cpu_linear_gated(kern_queue *k, const kern_linear *l, const act *x, int rows, kern_activation activation,
                      act *hidden, act *y);

void cpu_attention(kern_queue *k, const act *q, int q_stride, const act *key, const act *value, int kv_stride,
                   int n_seq, int n_q, int n_k, int heads, int head_dim, act *y);
mar_status cpu_attention_plan(kern_queue *k, int n_q, int n_k, int heads, int head_dim, int q_stride, int kv_stride,
                              mar_err *err);
void cpu_attention_spans(kern_queue *k, const act *q, int q_stride, const int *q_first, const int *n_q, const act *key,
                         const act *value, int kv_stride, const int *k_first, const int *n_k, int n_seq, int heads,
                         int head_dim, const float *bias, int reach, act *y);

/* Attends for the rows of a causal job whose cache has operands, after they are stored; `work` as in cpu_for. Returns
 * the working memory of spans of up to so many slots. */
void cpu_attention_causal(cpu_queue *k, const kern_cache_job *job, double work);
size_t cpu_causal_bytes(const cpu_queue *k, int slots, int head_dim);

void cpu_gated(kern_queue *k, const act *x, int rows, int hidden, kern_activation activation, act *y);
void cpu_rotate(kern_queue *k, act *qkv, int rows, int heads, int head_dim, int angles, const float *rope,
                const int *position, act *cache, const int *slot);
void cpu_attention_cache(kern_queue *k, const kern_cache_job *job);
mar_status cpu_attention_cache_plan(kern_queue *k, int slots, int head_dim, int causal, mar_err *err);
void cpu_look_up(kern_queue *k, const float *table, int size, int dim, const float *x, int rows, float *y);
void cpu_embed(kern_queue *k, const float *table, int size, int dim, const int *token, const int *place, int rows,
               float *y);

mar_status cpu_head_create(kern_queue *k, const kern_head_spec *spec, kern_head **out, mar_err *err);
void cpu_head_free(kern_device *d, kern_head *h);
const char *cpu_head_describe(const kern_head *h);
size_t cpu_head_mod_bytes(const kern_head *h);
size_t cpu_head_scratch_bytes(const kern_head *h, int rows);
mar_status cpu_head_plan(kern_queue *k, const kern_head *h, int rows, mar_err *err);
void cpu_head_modulate(kern_queue *k, const kern_head *h, const float *temb, const int *temb_index, const uint8_t *fine,
                       int steps, const float *cond, int rows, void *mod, void *scratch);
void cpu_head_eval(kern_queue *k, const kern_head *h, const float *x, const int *x_index, const void *mod,
                   const int *mod_index, int rows, float *out, void *scratch);
void cpu_head_eval_reusing(kern_queue *k, const kern_head *h, const float *x, const int *x_index, const void *mod,
                           const int *mod_index, int rows, kern_head_reuse reuse, float *kept, int kept_rows,
                           float *out, void *scratch);
void cpu_chain_step(kern_queue *k, float *x, const float *out, int rows, int channels, const float *cfg,
                    const kern_chain_coef *coef, const uint64_t *seed, const uint64_t *image, const int *position,
                    int step);
void cpu_chain_ode_step(kern_queue *k, float *x, float *x0, const float *out, int rows, int channels, const float *cfg,
                        const kern_ode_coef *coef);
void cpu_similarity(kern_queue *k, const act *a, const act *b, int stride, int rows, int heads, int head_dim, float *y);
int cpu_first_nonfinite(kern_queue *k, const void *x, mar_dtype type, int rows, int width, int stride);
void cpu_distances(kern_queue *k, const float *a, int rows, const float *b, int columns, int dim, float *y);
void cpu_subtract(kern_queue *k, const float *a, const float *b, size_t n, float *y);
void cpu_chain_gaussian(kern_queue *k, const float *x, const float *out, int rows, int channels, const float *cfg,
                        const kern_chain_coef *const *coef, float temperature, float *mean, float *log_std);
void cpu_add_log_std(kern_queue *k, double *path, const float *log_std, int rows, int channels);
void cpu_verify(kern_queue *k, const kern_verify_job *job);
void cpu_path_ratio(kern_queue *k, const kern_path_job *job);
void cpu_path_decide(kern_queue *k, const kern_path_verdict *job);
void cpu_normal(kern_queue *k, float *x, int rows, int channels, const uint64_t *seed, kern_noise purpose,
                const uint64_t *image, const int *position, int step);

mar_status cpu_speculate_plan(kern_queue *k, const kern_head *h, const kern_speculation *w, mar_err *err);
void cpu_speculate_start(kern_queue *k, kern_speculation *w);
int cpu_speculate_propose(kern_queue *k, kern_speculation *w, const kern_speculation_head *draft);
void cpu_speculate_walk(kern_queue *k, kern_speculation *w, const kern_speculation_head *target);

mar_status cpu_conv_create(kern_queue *k, const kern_conv_spec *spec, kern_conv **out, mar_err *err);
void cpu_conv_free(kern_device *d, kern_conv *c);
mar_status cpu_conv_plan(kern_queue *k, const kern_conv *c, int images, int height, int width, mar_err *err);
void cpu_conv(kern_queue *k, const kern_conv *c, const act *x, int images, int height, int width, void *y);
mar_status cpu_group_norm_plan(kern_queue *k, int images, int pixels, int channels, mar_err *err);
void cpu_group_norm(kern_queue *k, const kern_norm *norm, const float *x, int images, int pixels, int channels, act *y);
void cpu_group_sums(kern_queue *k, const float *x, int pixels, int channels, int first, int count, double *sums);
void cpu_to_bytes(kern_queue *k, const float *x, int images, int values, kern_bytes how, uint8_t *y, int *found);
void cpu_pool(kern_queue *k, const kern_pool *p, const act *x, int images, int height, int width, int channels, act *y,
              int y_stride);
void cpu_mean_pixels(kern_queue *k, const act *x, int images, int pixels, int channels, float *y);
void cpu_take_channels(kern_queue *k, const act *x, int rows, int stride, int channels, float *y);
void cpu_resize(kern_queue *k, const uint8_t *rgb, int images, int height, int width, int side, act *y);

/* discrete.c */
extern const kern_discrete_ops cpu_discrete_ops;

/* measure.c */
extern const kern_measure_ops cpu_measure_ops;
void cpu_linear_spec(const kern_linear *l, kern_linear_spec *spec);
void cpu_conv_spec(const kern_conv *c, kern_conv_spec *spec);
void cpu_head_spec(const kern_head *h, kern_head_spec *spec);

#endif
