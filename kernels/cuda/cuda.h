/* Private to the CUDA backend. The files are C in CUDA's dialect, with templates over the type of act.
 *
 * They are compiled twice: by nvcc, and by the host's compiler against tests/cudahost, where a block's threads are
 * fibres (MAR_CUDAHOST is defined). Both compilers need three rules:
 *   - kernels are launched by cuda_launch, never by <<<>>>;
 *   - shared memory is dynamic, and comes from cuda_shared;
 *   - PTX is in ptx.h and hopper.h only, beside a plain twin where CUDA C can say the same.
 */
#ifndef KERNELS_CUDA_CUDA_H
#define KERNELS_CUDA_CUDA_H

extern "C" {
#include "kernels/causal.h"
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

/* Any thread may use it at any time: the lock guards what changes after opening. */
typedef struct {
    kern_device base;        /* must be first: a kern_device * points at a cuda_device */
    int bf16;                /* act is bf16, else float */
    int number;              /* CUDA's number of the GPU */
    CUcontext context;       /* primary context of the GPU, shared with the runtime */
    int multiprocessors;     /* of the GPU */
    int major;               /* of its compute capability, or of the code that it runs if that is older */
    size_t shared_bytes;     /* maximum shared memory of a block, with opt-in */
    int warpgroup_attention; /* attention.cu: 1: heads of 64 by warpgroups */
    struct {
        char text[16]; /* of MAR_CUDA_PRODUCTS; "": no products of product.cu */
        int columns;   /* of a block, 0: by estimate; the others only with columns */
        int parts, down, across;
    } products;
    cudaStream_t zeroing;            /* stream that clears new memory */
    cublasLtHandle_t lt;             /* without stream or workspace of its own; several threads may use it at a time */
    pthread_mutex_t lock;            /* guards the table of products */
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
    struct cuda_stage *stage;
    struct cuda_timer *timer;
    unsigned *gave_up; /* pinned: a kernel of the queue sets it where a grid barrier gave up */
    int bound;         /* binds without a matching unbind */
    CUcontext outside; /* the thread's context before the first of them; NULL: none */
} cuda_queue;

/* Declares the function of a table's entry, whose arguments and comment are in ops.h. */
template <typename F> using cuda_entry = std::remove_pointer_t<F>;

static inline cuda_device *cuda_device_of(kern_device *d)
{
    return (cuda_device *)d;
}
static inline cuda_queue *cuda_of(kern_queue *k)
{
    return (cuda_queue *)k;
}

/* cuda.cu: writes the device's description, with the form of its products and `tuning` at the end. */
void cuda_describe(cuda_device *d, const char *tuning);
/* Writes the number that an environment variable has, a digit of `digits`; without the variable *value stays. */
mar_status cuda_read_wish(const char *name, const char *digits, const char *expected, int *value, mar_err *err);
/* Converts the status of a CUDA call. An error is MAR_EBACKEND, or MAR_ENOMEM, with "<what>: <CUDA's
 * text>". */
mar_status cuda_status(cudaError_t error, const char *what, mar_err *err);
/* The same for an operation without a status: reports an error to kern_fail. Returns 1 if there is none. */
int cuda_ok(cuda_queue *c, cudaError_t error, const char *what);
/* Reports an error to kern_fail, with a message as err_set's. */
void cuda_fail(cuda_queue *c, mar_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Makes a device's context, and so its GPU, current for the thread. Returns the previous one for a later call to
 * restore; NULL if there was none, and the device's own if the driver does not tell. cudaSetDevice is unsuitable:
 * restoring a thread without a context would create one, hundreds of megabytes on an unused GPU. */
CUcontext cuda_switch(CUcontext context);
/* Allocates and fills from host memory, at load. bytes: a multiple of 4. */
mar_status cuda_alloc_copy(cuda_queue *c, const void *host, size_t bytes, void **out, mar_err *err);
/* Allocates c->working if it is missing; queue_free frees it. */
mar_status cuda_working_memory(cuda_queue *c, mar_err *err);
/* The same for an operation without a status: reports an error to kern_fail. Returns 1 if there is none. */
int cuda_has_working(cuda_queue *c);
/* Fills n numbers of the type, F32, BF16 or F16, from host floats, at load. Overwrites the workspace. The queue is idle
 * then. */
mar_status cuda_upload_floats(cuda_queue *c, const float *host, size_t n, mar_dtype type, void *to, mar_err *err);
/* Allocates n numbers of the type and fills them, likewise. */
mar_status cuda_alloc_floats(cuda_queue *c, const float *host, size_t n, mar_dtype type, void **out, mar_err *err);

/* staging.cu: returns a device copy of `bytes` of host memory, 128-byte aligned and valid for the current operation;
 * NULL for NULL. An operation calls it once for each of its host arrays, always in the same order. The copy starts at
 * the next cuda_live. */
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
/* Returns 1 if operations should start work now, and makes the device current for the thread. Outside a recording it
 * starts one copy of all arrays staged since the last call. Returns 0 while a recording only collects host arrays, and
 * after a failure or a cancel. Operations call it after their staging and once a step in loops; cuda_launch calls it
 * itself. */
int cuda_live(cuda_queue *c);
/* Bracket calls that may wait for the whole GPU: cuBLASLt's own. No thread may make one while
 * another records. Waits until no thread of the process records. */
void cuda_exclusive_begin(void);
void cuda_exclusive_end(void);
/* Returns 1 if a recording's body is running without doing its work at once. */
int cuda_in_recording(const cuda_queue *c);
/* Returns 1 if no recording's body is running. Otherwise fails with "internal error: <what> inside a recording". */
int cuda_outside_recording(cuda_queue *c, const char *what);

template <typename... P, typename... A>
static inline void cuda_launch_as(cuda_queue *c, int early, unsigned cluster, void (*kernel)(P...), dim3 grid,
                                  dim3 block, size_t shared, A... args)
{
    if (!cuda_live(c) || grid.x * (size_t)grid.y * grid.z == 0) return;
    cudaLaunchAttribute attribute[2] = {};
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = c->stream;
    config.attrs = attribute;
    if (early && c->device->major >= 9) {
        attribute[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        attribute[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attribute[config.numAttrs++].val.clusterDim = {cluster, 1, 1};
    }
    cuda_ok(c, cudaLaunchKernelEx(&config, kernel, P(args)...), "launching a kernel");
}

/* Launches kernel<<<grid, block, shared>>>(args...) on the queue's stream if the queue is live; an error goes to
 * kern_fail. */
template <typename... P, typename... A>
static inline void cuda_launch(cuda_queue *c, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, A... args)
{
    cuda_launch_as(c, 0, 1, kernel, grid, block, shared, args...);
}

/* The same for a kernel that begins while the one before it runs, and waits for its end (fast::wait_for_previous). */
template <typename... P, typename... A>
static inline void cuda_launch_early(cuda_queue *c, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                                     A... args)
{
    cuda_launch_as(c, 1, 1, kernel, grid, block, shared, args...);
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

/* Returns 1 if 16 bytes can be loaded from p at a time; NULL is fine. */
static inline int cuda_aligned(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

static inline unsigned cuda_blocks(size_t n, size_t per_block)
{
    return (unsigned)((n + per_block - 1) / per_block);
}

/* cuda.cu: waits for kernels that were started without work; e: what the last start returned. Returns the first error,
 * which is no failure of the queue. */
cudaError_t cuda_tried(const cuda_queue *c, cudaError_t e);

/* Returns the positions of a window along an axis of `size` pixels with `pad` more on either side; 0 if it does not
 * fit. */
static inline int cuda_results(int size, int pad, int window, int stride)
{
    const int room = size + 2 * pad - window;
    return room < 0 ? 0 : room / stride + 1;
}

#if defined(__CUDACC__) || defined(MAR_CUDAHOST)
/* cuda.cu: describes x [rows][columns] for copies of tiles of 64 columns (hopper.h), where cuda_can_describe_tiles, on
 * a live queue. x and its rows are 16-byte aligned. */
int cuda_can_describe_tiles(void);
void cuda_describe_tiles(cuda_queue *c, CUtensorMap *map, const bf16 *x, int rows, int columns, int tile_rows);

/* Returns the block's dynamic shared memory. */
#ifdef MAR_CUDAHOST
#define cuda_shared() cudahost_shared()
#else
static __device__ inline void *cuda_shared()
{
    extern __shared__ __align__(1024) unsigned char cuda_shared_memory[];
    return cuda_shared_memory;
}
#endif

/* Returns 1/sqrt(variance + eps); NaN if the variance has overflowed, as in kernels/cpu/rows.c. */
static __device__ inline float cuda_inverse_deviation(float variance, float eps)
{
    return variance <= FLT_MAX ? 1 / sqrtf(variance + eps) : NAN;
}
#endif

/* --- entries of the tables ------------------------------------------------------------------------------------ */

/* Both keep the thread's current GPU. */
cuda_entry<decltype(kern_core_ops::alloc)> cuda_alloc;
cuda_entry<decltype(kern_core_ops::free)> cuda_free;

/* X(table, entry, function) in the order of ops.h, which has arguments and comments. Of the core table these are the
 * entries from timer_mark on. The flags of a convolution's product may include KERN_RELU. */
#define CUDA_CORE_OPS(X)                                                                                               \
    X(core, timer_mark, cuda_timer_mark)                                                                               \
    X(core, replay, cuda_replay)                                                                                       \
    X(core, recording_free, cuda_recording_free)                                                                       \
    X(core, linear_create, cuda_linear_create)                                                                         \
    X(core, linear_free, cuda_linear_free)                                                                             \
    X(core, linear_plan, cuda_linear_plan)                                                                             \
    X(core, linear, cuda_linear)                                                                                       \
    X(core, layer_norm, cuda_layer_norm)                                                                               \
    X(core, copy_rows, cuda_copy_rows)                                                                                 \
    X(core, similarity, cuda_similarity)                                                                               \
    X(core, first_nonfinite, cuda_first_nonfinite)                                                                     \
    X(core, distances, cuda_distances)                                                                                 \
    X(core, subtract, cuda_subtract)                                                                                   \
    X(core, to_act, cuda_to_act)                                                                                       \
    X(core, attention, cuda_attention)                                                                                 \
    X(core, attention_plan, cuda_attention_plan)                                                                       \
    X(core, attention_spans, cuda_attention_spans)                                                                     \
    X(core, rms_norm, cuda_rms_norm)                                                                                   \
    X(core, gated, cuda_gated)                                                                                         \
    X(core, rotate, cuda_rotate)                                                                                       \
    X(core, attention_cache, cuda_attention_cache)                                                                     \
    X(core, attention_cache_plan, cuda_attention_cache_plan)                                                           \
    X(core, look_up, cuda_look_up)                                                                                     \
    X(core, embed, cuda_embed)
#define CUDA_FUSED_OPS(X)                                                                                              \
    X(fused, chain_run, cuda_chain_run)                                                                                \
    X(fused, speculate_run, cuda_speculate_run)                                                                        \
    X(fused, skinny, cuda_skinny)                                                                                      \
    X(fused, decoder_create, cuda_decoder_create)                                                                      \
    X(fused, decoder_free, cuda_decoder_free)                                                                          \
    X(fused, decode, cuda_decode)
#define CUDA_MEASURE_OPS(X)                                                                                            \
    X(measure, linear_spec, cuda_linear_spec)                                                                          \
    X(measure, conv_spec, cuda_conv_spec)                                                                              \
    X(measure, head_spec, cuda_head_spec)                                                                              \
    X(measure, machine, cuda_machine)                                                                                  \
    X(measure, read, cuda_read)
#define CUDA_DISCRETE_OPS(X)                                                                                           \
    X(discrete, probs, cuda_probs)                                                                                     \
    X(discrete, draw, cuda_draw)                                                                                       \
    X(discrete, verify, cuda_verify_blocks)                                                                            \
    X(discrete, top, cuda_top)
#define CUDA_HEAD_OPS(X)                                                                                               \
    X(head, create, cuda_head_create)                                                                                  \
    X(head, free, cuda_head_free)                                                                                      \
    X(head, describe, cuda_head_describe)                                                                              \
    X(head, mod_bytes, cuda_head_mod_bytes)                                                                            \
    X(head, scratch_bytes, cuda_head_scratch_bytes)                                                                    \
    X(head, plan, cuda_head_plan)                                                                                      \
    X(head, modulate, cuda_head_modulate)                                                                              \
    X(head, eval, cuda_head_eval)                                                                                      \
    X(head, eval_reusing, cuda_head_eval_reusing)                                                                      \
    X(head, chain_step, cuda_chain_step)                                                                               \
    X(head, chain_ode_step, cuda_chain_ode_step)                                                                       \
    X(head, chain_gaussian, cuda_chain_gaussian)                                                                       \
    X(head, add_log_std, cuda_add_log_std)                                                                             \
    X(head, verify, cuda_verify)                                                                                       \
    X(head, path_ratio, cuda_path_ratio)                                                                               \
    X(head, path_decide, cuda_path_decide)                                                                             \
    X(head, normal, cuda_normal)                                                                                       \
    X(head, speculate_plan, cuda_speculate_plan)                                                                       \
    X(head, speculate_start, cuda_speculate_start)                                                                     \
    X(head, speculate_propose, cuda_speculate_propose)                                                                 \
    X(head, speculate_walk, cuda_speculate_walk)
#define CUDA_CONV_OPS(X)                                                                                               \
    X(conv, create, cuda_conv_create)                                                                                  \
    X(conv, free, cuda_conv_free)                                                                                      \
    X(conv, plan, cuda_conv_plan)                                                                                      \
    X(conv, conv, cuda_conv)                                                                                           \
    X(conv, group_norm_plan, cuda_group_norm_plan)                                                                     \
    X(conv, group_norm, cuda_group_norm)                                                                               \
    X(conv, group_sums, cuda_group_sums)                                                                               \
    X(conv, to_bytes, cuda_to_bytes)                                                                                   \
    X(conv, pool, cuda_pool)                                                                                           \
    X(conv, mean_pixels, cuda_mean_pixels)                                                                             \
    X(conv, take_channels, cuda_take_channels)                                                                         \
    X(conv, resize, cuda_resize)

#define DECLARE(table, entry, function) cuda_entry<decltype(kern_##table##_ops::entry)> function;
CUDA_CORE_OPS(DECLARE)
CUDA_FUSED_OPS(DECLARE)
CUDA_MEASURE_OPS(DECLARE)
CUDA_DISCRETE_OPS(DECLARE)
CUDA_HEAD_OPS(DECLARE)
CUDA_CONV_OPS(DECLARE)
#undef DECLARE

/* --- calls between files -------------------------------------------------------------------------------------- */

/* staging.cu */
mar_status cuda_stage_open(cuda_queue *c, mar_err *err); /* creates c->stage */
void cuda_stage_close(cuda_queue *c);
void cuda_stage_free_old(cuda_queue *c); /* call when the stream is idle: frees old rings */

/* timer.cu */
mar_status cuda_timer_open(cuda_queue *c, mar_err *err); /* creates c->timer */
void cuda_timer_close(cuda_queue *c);
void cuda_timer_read(cuda_queue *c);   /* call when the stream is idle: adds up pending times */
void cuda_timer_forget(cuda_queue *c); /* drops pending times; the next mark starts the clock */

/* linear.cu */
/* y = SiLU(x), rows of n f32 sums of a product, so that they are rounded once. y is f16 if f16_y, else float. */
void cuda_silu_rows(cuda_queue *c, const float *x, size_t rows, int n, int f16_y, void *y);
void cuda_matmuls_free(cuda_device *d);

/* product.cu */
/* Reads MAR_CUDA_PRODUCTS (docs/gpu.md), and sets products and product_rows. It is an error if the device has no such
 * products, because only who asks for them gets them. */
mar_status cuda_choose_products(cuda_device *d, mar_err *err);

/* attention.cu: the same for MAR_CUDA_ATTENTION. */
mar_status cuda_choose_attention(cuda_device *d, mar_err *err);

/* skinny.cu */
/* Sets *major to that of the code which the GPU runs: PTX of an older one has neither clusters nor early launches. */
cudaError_t cuda_code_major(int *major);

/* rows.cu */
/* y = x [n] as numbers of the type, BF16 or F16. */
void cuda_to_halves(cuda_queue *c, const float *x, size_t n, mar_dtype type, void *y);

/* causal.cu */
/* y [rows][hidden] = SiLU(a) * b of f32 sums x = [rows][a, b], so that they are rounded once. y is f16 if f16_y, else
 * float. */
void cuda_swiglu_rows(cuda_queue *c, const float *x, int rows, int hidden, int f16_y, void *y);

#endif
