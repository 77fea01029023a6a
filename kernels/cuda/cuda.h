/* Private to the CUDA backend. The files are C in CUDA's dialect, with templates over the type of act.
 *
 * They are compiled twice: by nvcc, and by the host's compiler against tests/cudahost, where a block's threads are
 * fibres (MAR_CUDAHOST is defined). Both compilers need three rules:
 *   - kernels are launched by cuda_launch, never by <<<>>>;
 *   - shared memory is dynamic, and comes from cuda_shared;
 *   - PTX is in ptx.h only, each instruction beside a plain twin.
 */
#ifndef KERNELS_CUDA_CUDA_H
#define KERNELS_CUDA_CUDA_H

extern "C" {
#include "kernels/ops.h"
}

#include "kernels/cuda/vectors.h"

#include <cublasLt.h>
#include <cuda.h>
#include <float.h>
#include <math.h>
#include <pthread.h>

struct cuda_matmul; /* linear.cu: the plan of a product */
struct cuda_stage;  /* staging.cu: host arrays in transit to the device */
struct cuda_timer;  /* timer.cu: pending times */
struct cuda_memory; /* persistent.cu: working memory of the persistent kernels */

/* Any thread may use it at any time: the lock guards what changes after opening. */
typedef struct {
    kern_device base;           /* must be first: a kern_device * points at a cuda_device */
    int bf16;                   /* act is bf16, else float */
    int number;                 /* CUDA's number of the GPU */
    CUcontext context;          /* primary context of the GPU, shared with the runtime */
    int multiprocessors;        /* of the GPU */
    int major;                  /* of its compute capability, or of the code that it runs if that is older */
    size_t shared_bytes;        /* maximum shared memory of a block, with opt-in */
    size_t l2_persisting_bytes; /* part of the L2 cache that access policies may reserve */
    cudaStream_t zeroing;       /* stream that clears new memory */
    cublasLtHandle_t lt;        /* without stream or workspace of its own; several threads may use it at a time */
    int lt_scales;              /* 1: cuBLASLt takes a scale for each row and column of FP8 operands */
    pthread_mutex_t lock;       /* guards the table of products; exists if `has_lock` */
    int has_lock;
    struct cuda_matmul *matmuls[64]; /* linear.cu: hash table. Entries never change and stay until the device closes */
    char gpu[128];                   /* name and size of the GPU, and cuBLASLt's version */
    char *tuning; /* linear.cu: file that gets the fastest algorithm of every new product; NULL: none is timed */
} cuda_device;

/* One thread at a time uses it. */
typedef struct {
    kern_queue base; /* must be first: a kern_queue * points at a cuda_queue */
    cuda_device *device;
    cudaStream_t own;    /* the queue's own stream */
    cudaStream_t stream; /* stream of this queue's work: `own` or the caller's; `own` while a graph is captured */
    void *workspace;     /* of cuBLASLt */
    size_t workspace_bytes;
    void *working; /* of an operation, such as sums of a convolution's slices; NULL until a plan needs it */
    size_t working_bytes;
    struct cuda_memory *memory; /* newest and largest; NULL until a plan needs it */
    struct cuda_stage *stage;
    struct cuda_timer *timer;
    unsigned *gave_up; /* pinned: a kernel of the queue sets it where a grid barrier gave up */
    int bound;         /* binds without a matching unbind */
    CUcontext outside; /* the thread's context before the first of them; NULL: none */
} cuda_queue;

static inline cuda_device *cuda_device_of(kern_device *d)
{
    return (cuda_device *)d;
}
static inline cuda_queue *cuda_of(kern_queue *k)
{
    return (cuda_queue *)k;
}

/* cuda.cu: writes the device's description, `tuning` at its end. */
void cuda_describe(cuda_device *d, const char *tuning);
/* Converts the status of a CUDA call. An error is MAR_EBACKEND, or MAR_ENOMEM, with "<what>: <CUDA's
 * text>". */
mar_status cuda_status(cudaError_t error, const char *what, mar_err *err);
/* The same for an operation without a status: reports an error to kern_fail. Returns 1 if there is none. */
int cuda_ok(cuda_queue *c, cudaError_t error, const char *what);
/* Makes a device's context, and so its GPU, current for the thread. Returns the previous one for a later call to
 * restore; NULL if there was none, and the device's own if the driver does not tell. cudaSetDevice is unsuitable:
 * restoring a thread without a context would create one, hundreds of megabytes on an unused GPU. */
CUcontext cuda_switch(CUcontext context);
/* Entries alloc and free of the table. They keep the thread's current GPU. */
mar_status cuda_alloc(kern_device *d, size_t bytes, void **out, mar_err *err);
void cuda_free(kern_device *d, void *p);
/* Allocates and fills from host memory, at load. */
mar_status cuda_alloc_copy(cuda_queue *c, const void *host, size_t bytes, void **out, mar_err *err);
/* Allocates c->working if it is missing; queue_free frees it. */
mar_status cuda_working_memory(cuda_queue *c, mar_err *err);
/* Fills n numbers of the type, F32, BF16 or F16, from host floats, at load. Overwrites the workspace. The queue is idle
 * then. */
mar_status cuda_upload_floats(cuda_queue *c, const float *host, size_t n, mar_dtype type, void *to, mar_err *err);
/* Allocates n numbers of the type and fills them, likewise. */
mar_status cuda_alloc_floats(cuda_queue *c, const float *host, size_t n, mar_dtype type, void **out, mar_err *err);

/* staging.cu: returns a device copy of `bytes` of host memory, 128-byte aligned and valid for the current operation;
 * NULL for NULL. An operation calls it once for each of its host arrays, always in the same order. */
const void *cuda_stage_bytes(cuda_queue *c, const void *host, size_t bytes);
template <typename T> static inline const T *cuda_stage(cuda_queue *c, const T *host, size_t n)
{
    return (const T *)cuda_stage_bytes(c, host, n * sizeof(T));
}
/* The same for a list with another length at each use of a recording: `bytes` now, `room` at most; `room` never
 * changes. A recording copies a list once for all operations that use it. It must not change from its first use to the
 * end of the body's run. */
const void *cuda_stage_list_bytes(cuda_queue *c, const void *host, size_t bytes, size_t room);
template <typename T> static inline const T *cuda_stage_list(cuda_queue *c, const T *host, size_t n, size_t most)
{
    return (const T *)cuda_stage_list_bytes(c, host, n * sizeof(T), most * sizeof(T));
}
/* Bracket the staging of an operation with several host arrays: outside a recording one copy takes them all. */
void cuda_stage_hold(cuda_queue *c);
void cuda_stage_send(cuda_queue *c);
/* Returns 1 if operations should start work now, and makes the device current for the thread. Returns 0 while a
 * recording only collects host arrays, and after a failure or a cancel. Operations call it after their staging and once
 * a step in loops; cuda_launch calls it itself. */
int cuda_live(cuda_queue *c);
/* Bracket calls that may wait for the whole GPU: cuBLASLt's and the L2 cache's own. No thread may make one while
 * another records. Waits until no thread of the process records. */
void cuda_exclusive_begin(void);
void cuda_exclusive_end(void);
/* Returns 1 if a recording's body is running without doing its work at once. */
int cuda_in_recording(const cuda_queue *c);
/* Returns 1 if no recording's body is running. Otherwise fails with "internal error: <what> inside a recording". */
int cuda_outside_recording(cuda_queue *c, const char *what);

template <typename... P, typename... A>
static inline void cuda_launch_as(cuda_queue *c, int early, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                                  A... args)
{
    if (!cuda_live(c) || grid.x * (size_t)grid.y * grid.z == 0) return;
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = c->stream;
    config.attrs = &attribute;
    config.numAttrs = early && c->device->major >= 9;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cuda_ok(c, cudaLaunchKernelEx(&config, kernel, P(args)...), "launching a kernel");
}

/* Launches kernel<<<grid, block, shared>>>(args...) on the queue's stream if the queue is live; an error goes to
 * kern_fail. */
template <typename... P, typename... A>
static inline void cuda_launch(cuda_queue *c, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, A... args)
{
    cuda_launch_as(c, 0, kernel, grid, block, shared, args...);
}

/* The same for a kernel that begins while the one before it runs, and waits for its end (fast::wait_for_previous). */
template <typename... P, typename... A>
static inline void cuda_launch_early(cuda_queue *c, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                                     A... args)
{
    cuda_launch_as(c, 1, kernel, grid, block, shared, args...);
}

/* Lets a kernel use all shared memory, and asks for the largest part of the L1 cache as such: kernels that differ in it
 * do not run in one multiprocessor at a time. For kernels that are launched early. */
template <typename... P> static inline void cuda_large_shared(cuda_queue *c, void (*kernel)(P...))
{
    if (!cuda_live(c)) return;
    cuda_ok(c, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)c->device->shared_bytes),
            "permitting shared memory");
    cuda_ok(
        c, cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
        "choosing shared memory");
}

static inline unsigned cuda_blocks(size_t n, size_t per_block)
{
    return (unsigned)((n + per_block - 1) / per_block);
}

/* Returns the positions of a window along an axis of `size` pixels with `pad` more on either side; 0 if it does not
 * fit. */
static inline int cuda_results(int size, int pad, int window, int stride)
{
    const int room = size + 2 * pad - window;
    return room < 0 ? 0 : room / stride + 1;
}

#if defined(__CUDACC__) || defined(MAR_CUDAHOST)
/* Returns the block's dynamic shared memory. */
#ifdef MAR_CUDAHOST
#define cuda_shared() cudahost_shared()
#else
static __device__ inline void *cuda_shared()
{
    extern __shared__ __align__(128) unsigned char cuda_shared_memory[];
    return cuda_shared_memory;
}
#endif

/* Returns 1/sqrt(variance + eps); NaN if the variance has overflowed, as in kernels/cpu/rows.c. */
static __device__ inline float cuda_inverse_deviation(float variance, float eps)
{
    return variance <= FLT_MAX ? 1 / sqrtf(variance + eps) : NAN;
}
#endif

/* --- entries of the table, by file ------------------------------------------------------------------------- */

/* staging.cu */
mar_status cuda_stage_open(cuda_queue *c, mar_err *err); /* creates c->stage */
void cuda_stage_close(cuda_queue *c);
void cuda_stage_free_old(cuda_queue *c); /* call when the stream is idle: frees old rings */

/* timer.cu */
mar_status cuda_timer_open(cuda_queue *c, mar_err *err); /* creates c->timer */
void cuda_timer_close(cuda_queue *c);
void cuda_timer_read(cuda_queue *c);   /* call when the stream is idle: adds up pending times */
void cuda_timer_forget(cuda_queue *c); /* drops pending times; the next mark starts the clock */
void cuda_timer_mark(kern_queue *k, double *seconds);

/* recording.cu */
void cuda_replay(kern_queue *k, kern_recording **recording, void (*body)(void *arg), void *arg);
void cuda_recording_free(kern_queue *k, kern_recording *recording);
/* Captures the work of body(c, arg) on c->stream, and instantiates the graph. A failure is retried once, body included,
 * unless the queue was cancelled or the body broke its rules. On failure *graph is NULL and err says which step
 * failed. */
mar_status cuda_capture(cuda_queue *c, void (*body)(cuda_queue *c, void *arg), void *arg, cudaGraphExec_t *graph,
                        mar_err *err);

/* linear.cu */
/* The flags of a convolution's product may include KERN_RELU. */
mar_status cuda_linear_create(kern_queue *k, const kern_linear_spec *spec, kern_linear **out, mar_err *err);
void cuda_linear_free(kern_device *d, kern_linear *l);
mar_status cuda_linear_plan(kern_queue *k, const kern_linear *l, int rows, mar_err *err);
void cuda_linear(kern_queue *k, const kern_linear *l, const void *x, int rows, void *y);
/* y = SiLU(x), rows of n f32 sums of a product, so that they are rounded once. y is f16 if f16_y, else float. */
void cuda_silu_rows(cuda_queue *c, const float *x, size_t rows, int n, int f16_y, void *y);
void cuda_matmuls_free(cuda_device *d);

/* skinny.cu */
/* Sets *major to that of the code which the GPU runs: PTX of an older one has neither clusters nor early launches. */
cudaError_t cuda_code_major(int *major);
int cuda_skinny(kern_queue *k, const kern_linear *l, const kern_skinny_job *job);

/* rows.cu */
void cuda_layer_norm(kern_queue *k, const float *x, const int *index, int rows, int dim, const float *weight,
                     const float *bias, float eps, void *y, int y_f32);
void cuda_copy_rows(kern_queue *k, float *dst, const int *dst_index, const float *src, const int *src_index,
                    const float *add, const int *add_index, int rows, int dim);
void cuda_similarity(kern_queue *k, const act *a, const act *b, int stride, int rows, int heads, int head_dim,
                     float *y);
void cuda_read(kern_queue *k, const float *x, size_t n);
int cuda_first_nonfinite(kern_queue *k, const void *x, mar_dtype type, int rows, int width, int stride);
void cuda_subtract(kern_queue *k, const float *a, const float *b, size_t n, float *y);
void cuda_to_act(kern_queue *k, const float *x, size_t n, act *y);
/* The same as numbers of the type, BF16 or F16. */
void cuda_to_halves(cuda_queue *c, const float *x, size_t n, mar_dtype type, void *y);

/* causal.cu */
void cuda_rms_norm(kern_queue *k, const float *x, const int *index, int rows, int dim, const float *weight, float eps,
                   void *y, int y_f32);
void cuda_gated(kern_queue *k, const act *x, int rows, int hidden, kern_activation activation, act *y);
/* y [rows][hidden] = SiLU(a) * b of f32 sums x = [rows][a, b], so that they are rounded once. y is f16 if f16_y, else
 * float. */
void cuda_swiglu_rows(cuda_queue *c, const float *x, int rows, int hidden, int f16_y, void *y);
void cuda_look_up(kern_queue *k, const float *table, int size, int dim, const float *x, int rows, float *y);
void cuda_embed(kern_queue *k, const float *table, int size, int dim, const int *token, const int *place, int rows,
                float *y);

/* cache.cu */
void cuda_rotate(kern_queue *k, act *qkv, int rows, int heads, int head_dim, const float *rope, const int *position,
                 act *cache, const int *slot);
void cuda_attention_cache(kern_queue *k, const kern_cache_job *job);
mar_status cuda_attention_cache_plan(kern_queue *k, int slots, int head_dim, mar_err *err);

/* probs.cu */
void cuda_probs(kern_queue *k, const kern_probs_job *job);
void cuda_draw(kern_queue *k, const kern_draw_job *job);
void cuda_top(kern_queue *k, const float *log_probs, const int *source, int rows, int size, int count, int *id,
              float *log_p);

/* blocks.cu */
void cuda_verify_blocks(kern_queue *k, const kern_block_job *job);

/* distances.cu */
void cuda_distances(kern_queue *k, const float *a, int rows, const float *b, int columns, int dim, float *y);

/* attention.cu */
void cuda_attention(kern_queue *k, const act *q, int q_stride, const act *key, const act *value, int kv_stride,
                    int n_seq, int n_q, int n_k, int heads, int head_dim, act *y);
mar_status cuda_attention_plan(kern_queue *k, int n_q, int n_k, int heads, int head_dim, int q_stride, int kv_stride,
                               mar_err *err);
void cuda_attention_spans(kern_queue *k, const act *q, int q_stride, const int *q_first, const int *n_q, const act *key,
                          const act *value, int kv_stride, const int *k_first, const int *n_k, int n_seq, int heads,
                          int head_dim, const float *bias, int reach, act *y);

/* head.cu */
mar_status cuda_head_create(kern_queue *k, const kern_head_spec *spec, kern_head **out, mar_err *err);
void cuda_head_free(kern_device *d, kern_head *h);
const char *cuda_head_describe(const kern_head *h);
size_t cuda_head_mod_bytes(const kern_head *h);
size_t cuda_head_scratch_bytes(const kern_head *h, int rows);
mar_status cuda_head_plan(kern_queue *k, const kern_head *h, int rows, mar_err *err);
void cuda_head_modulate(kern_queue *k, const kern_head *h, const float *temb, const int *temb_index,
                        const uint8_t *fine, int steps, const float *cond, int rows, void *mod, void *scratch);
void cuda_head_eval(kern_queue *k, const kern_head *h, const float *x, const int *x_index, const void *mod,
                    const int *mod_index, int rows, float *out, void *scratch);
void cuda_head_eval_reusing(kern_queue *k, const kern_head *h, const float *x, const int *x_index, const void *mod,
                            const int *mod_index, int rows, kern_head_reuse reuse, float *kept, int kept_rows,
                            float *out, void *scratch);
void cuda_chain_run(kern_queue *k, const kern_head *h, const kern_chain_job *job);

/* chain.cu */
void cuda_chain_step(kern_queue *k, float *x, const float *out, int rows, int channels, const float *cfg,
                     const kern_chain_coef *coef, const uint64_t *seed, const uint64_t *image, const int *position,
                     int step);
void cuda_chain_ode_step(kern_queue *k, float *x, float *x0, const float *out, int rows, int channels, const float *cfg,
                         const kern_ode_coef *coef);
void cuda_chain_gaussian(kern_queue *k, const float *x, const float *out, int rows, int channels, const float *cfg,
                         const kern_chain_coef *const *coef, float temperature, float *mean, float *log_std);
void cuda_normal(kern_queue *k, float *x, int rows, int channels, const uint64_t *seed, kern_noise purpose,
                 const uint64_t *image, const int *position, int step);
void cuda_add_log_std(kern_queue *k, double *path, const float *log_std, int rows, int channels);

/* persistent.cu */
void cuda_memory_free(cuda_queue *c);

/* verify.cu */
void cuda_verify(kern_queue *k, const kern_verify_job *job);

/* path.cu */
void cuda_path_ratio(kern_queue *k, const kern_path_job *job);
void cuda_path_decide(kern_queue *k, const kern_path_verdict *job);

/* speculation.cu */
mar_status cuda_speculate_plan(kern_queue *k, const kern_head *h, const kern_speculation *w, mar_err *err);
void cuda_speculate_start(kern_queue *k, kern_speculation *w);
int cuda_speculate_propose(kern_queue *k, kern_speculation *w, const kern_speculation_head *draft);
void cuda_speculate_walk(kern_queue *k, kern_speculation *w, const kern_speculation_head *target);
int cuda_speculate_run(kern_queue *k, kern_speculation *w, const kern_speculation_head *target);

/* conv.cu, group_norm.cu */
mar_status cuda_conv_create(kern_queue *k, const kern_conv_spec *spec, kern_conv **out, mar_err *err);
void cuda_conv_free(kern_device *d, kern_conv *conv);
mar_status cuda_conv_plan(kern_queue *k, const kern_conv *conv, int images, int height, int width, mar_err *err);
void cuda_conv(kern_queue *k, const kern_conv *conv, const act *x, int images, int height, int width, void *y);
mar_status cuda_group_norm_plan(kern_queue *k, int images, int pixels, int channels, mar_err *err);
void cuda_group_norm(kern_queue *k, const kern_norm *norm, const float *x, int images, int pixels, int channels,
                     act *y);
void cuda_group_sums(kern_queue *k, const float *x, int pixels, int channels, int first, int count, double *sums);

/* pool.cu */
void cuda_pool(kern_queue *k, const kern_pool *p, const act *x, int images, int height, int width, int channels, act *y,
               int y_stride);
void cuda_mean_pixels(kern_queue *k, const act *x, int images, int pixels, int channels, float *y);
void cuda_take_channels(kern_queue *k, const act *x, int rows, int stride, int channels, float *y);
void cuda_resize(kern_queue *k, const uint8_t *rgb, int images, int height, int width, int side, act *y);

/* pixels.cu */
void cuda_to_bytes(kern_queue *k, const float *x, int images, int values, kern_bytes how, uint8_t *y, int *found);

/* linear.cu, conv.cu, head.cu: kern_measure_ops */
void cuda_linear_spec(const kern_linear *l, kern_linear_spec *spec);
void cuda_conv_spec(const kern_conv *conv, kern_conv_spec *spec);
void cuda_head_spec(const kern_head *h, kern_head_spec *spec);

#endif
