/* A kernel that stays resident on the GPU and evaluates the head with all blocks of its grid together: its memory, its
 * launch, its barriers and its weights. The blocks meet at barriers in global memory; the weights are in shared memory.
 * persistent_layers.cuh has the evaluation itself. Two kernels are built around it: the chain (persistent.cu), and
 * speculation inside the head (speculation.cu). Such a kernel is
 *
 *     template <int PAIRS> static __global__ void __launch_bounds__(PERSISTENT_THREADS, 1)
 *         kernel(persistent_args a, my_args m)
 *     {
 *         persistent_block f;
 *         persistent_begin<PAIRS>(a, &f);
 *         for (...) {
 *             ... every block fills its own f.state [states][C] and f.mod [rows]; __syncthreads();
 *             persistent_evaluate<PAIRS>(a, &f, rows, states);
 *             ... work that needs no output yet
 *             persistent_wait(a, &f);
 *             ... a.out [rows][2C] is complete; it must be read by __ldcg
 *         }
 *         persistent_end();
 *     }
 *
 * and is launched by persistent_launch. All threads of all blocks call each of these functions, the same number of
 * times.
 *
 * Columns. The output columns of a product are distributed over the blocks in tiles of 8, the n of mma.m16n8k16. A
 * block has the same columns in every product, so it keeps its columns of the residual stream. */
#ifndef KERNELS_CUDA_PERSISTENT_CUH
#define KERNELS_CUDA_PERSISTENT_CUH

#include "kernels/cuda/head.h"
#include "kernels/cuda/ptx.h"

enum {
    PERSISTENT_THREADS = 256,
    PERSISTENT_WARPS = PERSISTENT_THREADS / 32,
    PERSISTENT_PAIRS = 6,     /* the most pairs of mmas of a warp: a block's input must stay in registers */
    PERSISTENT_CHANNELS = 32, /* the most channels of a token */
    PERSISTENT_TILES = 8,     /* the most tiles of a block */
};

/* What a launch gets; all arrays are on the device. The products are numbered: fc1 of residual block b is product 2b,
 * its fc2 is product 2b + 1. The arrays from x on are the queue's working memory, NULL in the head. */
typedef struct {
    int width, depth, channels;
    int tiles;                 /* tiles of a block; the last block may have fewer */
    int cluster;               /* blocks of a cluster: 1, or 2 where persistent_groups is 1 */
    int resident;              /* the first `resident` products keep their weights in shared memory */
    size_t mod_bytes;          /* of a modulation row */
    size_t mod_final;          /* offset of the final layer's part in a modulation row */
    const uint4 *weights;      /* [2*depth][W/8][pairs][32] pieces (persistent_layers.cuh); row 8*tile + lane/4 */
    const float *bias;         /* [2*depth][W] */
    const float *ln;           /* [depth][2][W] weight, bias */
    const float *in, *in_bias; /* [W][C], [W] */
    const float *out_weight, *out_bias; /* [2C][W], [2C] */
    float4 *x;                          /* [PERSISTENT_ROWS][W] the residual stream */
    uint4 *u;                           /* [PERSISTENT_ROWS][W] operand of fc1 */
    uint4 *v;                           /* [PERSISTENT_ROWS][W] operand of fc2 */
    float *out;                         /* [PERSISTENT_ROWS][2C] eps, variance fraction */
    float *history;                     /* [blocks][PERSISTENT_ROWS][C] a solver's last x0; each block has a copy */
    unsigned *arrivals;                 /* arrivals at barriers since the launch */
} persistent_args;

/* A block's part of the work, and its shared memory. Every thread has this struct; the pointers are to shared memory.
 * [tiles16] is the number of tiles of 16 rows. */
typedef struct {
    int first, tiles; /* the block's tiles are first .. first + tiles - 1 */
    unsigned target;  /* the count of arrivals that completes the next barrier */
    uint4 *weights;   /* [slices][tiles][pairs][32] */
    float *sums;      /* [tiles][tiles16][PERSISTENT_WARPS][16*8] partial sums, as in the accumulators */
    uint4 *inbox;     /* [pairs][PERSISTENT_THREADS] what the cluster's other block writes: persistent_exchange */
    float4 *moments;  /* [PERSISTENT_WARPS][16] of a row, of a warp's channels: persistent_measure */
    float *ln;        /* [2][pairs*32] weight and bias of this residual block; zero past the width */
    float2 *x;        /* [tiles][tiles16][64] the block's columns of the residual stream */
    float *bias;      /* [2*depth][8*tiles] */
    float *in;        /* [8*tiles][C + 1] weights, bias */
    float *state;     /* [PERSISTENT_ROWS][C] */
    const unsigned char **mod; /* [PERSISTENT_ROWS] modulation rows */
} persistent_block;

/* Lays out a block's shared memory at `base` and returns its size in bytes. */
static __host__ __device__ inline size_t persistent_carve(const persistent_args &a, int pairs, int slices,
                                                          unsigned char *base, persistent_block *f)
{
    const size_t tiles = (size_t)a.tiles, channels = (size_t)a.channels;
    const size_t sums = tiles * PERSISTENT_WARPS * 512,
                 inbox = a.cluster > 1 ? (size_t)pairs * PERSISTENT_THREADS * 16 : 0;
    unsigned char *p = base;
    f->weights = (uint4 *)p;
    p += (size_t)slices * tiles * (size_t)(pairs * PERSISTENT_WARPS) * 512;
    f->sums = (float *)p;
    f->inbox = (uint4 *)(p + sums); /* after the sums of 16 rows; clusters exchange at 16 rows or fewer */
    p += sums + inbox > PERSISTENT_ROWS / 16 * sums ? sums + inbox : PERSISTENT_ROWS / 16 * sums;
    f->moments = (float4 *)p;
    p += PERSISTENT_WARPS * 16 * sizeof(float4);
    f->ln = (float *)p;
    p += 2 * (size_t)(pairs * PERSISTENT_WARPS) * 32 * sizeof(float);
    f->x = (float2 *)p;
    p += PERSISTENT_ROWS / 16 * tiles * 512;
    f->bias = (float *)p;
    p += 2 * (size_t)a.depth * 8 * tiles * sizeof(float);
    f->in = (float *)p;
    p += 8 * tiles * (channels + 1) * sizeof(float);
    f->state = (float *)p;
    p += PERSISTENT_ROWS * channels * sizeof(float);
    f->mod = (const unsigned char **)p;
    p += PERSISTENT_ROWS * sizeof *f->mod;
    return (size_t)(p - base);
}

/* Nothing of it changes after its creation. */
struct persistent_head {
    persistent_args args;    /* without working memory */
    int pairs;               /* pairs of mmas of a warp; selects the instance of a kernel */
    unsigned blocks;         /* of the grid */
    size_t shared_bytes;     /* of a block */
    void *streamed;          /* the weights that do not stay in shared memory, the last ones */
    size_t streamed_bytes;   /* of these, at most what an L2 access policy can cover */
    float kept_in_l2;        /* fraction of them that is set aside in the L2 cache; 0: no policy */
    void *weights, *floats;  /* the allocations that args points into */
    char form[ERR_TEXT_MAX]; /* how it runs and what was refused, for kern_head_ops.describe */
};

static inline cudaLaunchAttribute persistent_cluster(const persistent_head *f)
{
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = (unsigned)f->args.cluster;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    return cluster;
}
/* The L2 access policy: part of the streamed weights persists in the L2 cache. */
static inline cudaLaunchAttribute persistent_l2_policy(const persistent_head *f)
{
    cudaLaunchAttribute policy = {};
    policy.id = cudaLaunchAttributeAccessPolicyWindow;
    policy.val.accessPolicyWindow.base_ptr = f->streamed;
    policy.val.accessPolicyWindow.num_bytes = f->streamed_bytes;
    policy.val.accessPolicyWindow.hitRatio = f->kept_in_l2;
    policy.val.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
    policy.val.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
    return policy;
}

/* persistent.cu, speculation.cu: starts the kernel with nothing to do, on c->stream, if all blocks can be on the device
 * at once. f->args lacks its working memory. */
cudaError_t persistent_try_chain(const cuda_queue *c, const persistent_head *f);
cudaError_t speculate_try(const cuda_queue *c, const persistent_head *f);
/* persistent.cu: f->args with this queue's working memory. Returns 0 if there is none to be had. */
int persistent_prepare(cuda_queue *c, const persistent_head *f, persistent_args *args);

/* Launches all blocks of form(args, extra) at once. The kernel's limit of shared memory must have been raised before.
 *
 * Two such grids of two queues cannot wait for one another: a cooperative launch starts when all of its blocks can be
 * on the device, never with some of them. That is so with clusters, too: these only say which blocks share a group of
 * multiprocessors. persistent_room has made sure that there is room for all on a device that runs nothing else. */
template <typename E>
static inline cudaError_t persistent_start(const cuda_queue *c, const persistent_head *f, const persistent_args &args,
                                           void (*form)(persistent_args, E), E extra)
{
    cudaLaunchAttribute attributes[3] = {};
    attributes[0].id = cudaLaunchAttributeCooperative;
    attributes[0].val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(f->blocks);
    config.blockDim = dim3(PERSISTENT_THREADS);
    config.dynamicSmemBytes = f->shared_bytes;
    config.stream = c->stream;
    config.attrs = attributes;
    config.numAttrs = 1;
    if (f->args.cluster > 1) attributes[config.numAttrs++] = persistent_cluster(f);
    if (f->kept_in_l2 > 0) attributes[config.numAttrs++] = persistent_l2_policy(f);
    return cudaLaunchKernelEx(&config, form, args, extra);
}

/* The limit belongs to the function in the device's context, so all heads, queues and graphs share it: it must always
 * be the same. */
template <typename E> static inline cudaError_t persistent_limit(const cuda_queue *c, void (*form)(persistent_args, E))
{
    return cudaFuncSetAttribute(form, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)c->device->shared_bytes);
}

/* Whether all blocks of a form can be on the device at once. */
template <typename E>
static inline cudaError_t persistent_room(const cuda_queue *c, const persistent_head *f,
                                          void (*form)(persistent_args, E))
{
    int n = 0;
    cudaLaunchAttribute cluster = persistent_cluster(f);
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(f->blocks);
    config.blockDim = dim3(PERSISTENT_THREADS);
    config.dynamicSmemBytes = f->shared_bytes;
    config.attrs = &cluster;
    config.numAttrs = 1;
    const cudaError_t e =
        f->args.cluster > 1
            ? cudaOccupancyMaxActiveClusters(&n, form, &config)
            : cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, form, PERSISTENT_THREADS, f->shared_bytes);
    if (e != cudaSuccess) return e;
    const int most = n * (f->args.cluster > 1 ? f->args.cluster : c->device->multiprocessors);
    return most >= (int)f->blocks ? cudaSuccess : cudaErrorCooperativeLaunchTooLarge;
}

/* Starts kernel[pairs - 1] with zeros for E, with which it must return at once. */
template <typename E>
static inline cudaError_t persistent_try(const cuda_queue *c, const persistent_head *f,
                                         void (*const kernel[PERSISTENT_PAIRS])(persistent_args, E))
{
    void (*const form)(persistent_args, E) = kernel[f->pairs - 1];
    cudaError_t e = persistent_limit(c, form);
    if (e == cudaSuccess) e = persistent_room(c, f, form);
    return e == cudaSuccess ? persistent_start(c, f, f->args, form, E()) : e;
}

/* Launches kernel[pairs - 1](args, extra). */
template <typename E>
static inline void persistent_launch(cuda_queue *c, const persistent_head *f,
                                     void (*const kernel[PERSISTENT_PAIRS])(persistent_args, E), E extra)
{
    persistent_args args;
    if (!cuda_live(c) || !persistent_prepare(c, f, &args)) return;
    void (*const form)(persistent_args, E) = kernel[f->pairs - 1];
    if (cuda_ok(c, persistent_limit(c, form), "preparing the head's kernel") &&
        cuda_ok(c, cudaMemsetAsync(args.arrivals, 0, sizeof *args.arrivals, c->stream), "preparing the head's kernel"))
        cuda_ok(c, persistent_start(c, f, args, form, extra), "launching the head's kernel");
}

#if defined(__CUDACC__) || defined(MAR_CUDAHOST)

/* Loops without a constant trip count are not unrolled: the kernel has to stay in the instruction cache. */

/* --- barriers -------------------------------------------------------------------------------------------------- */

/* Announces that this block has done its part; does not wait. */
static __device__ __forceinline__ void persistent_arrive(const persistent_args &a, persistent_block *f)
{
    f->target += gridDim.x;
    __syncthreads();
    if (threadIdx.x == 0) fast::grid_arrive(a.arrivals);
}

/* Waits until all blocks have arrived, and until the weights requested one product ago are there. */
static __device__ __forceinline__ void persistent_wait(const persistent_args &a, persistent_block *f)
{
    fast::copy_wait<1>();
    if (threadIdx.x == 0) fast::grid_wait(a.arrivals, f->target);
    __syncthreads();
}

/* --- weights --------------------------------------------------------------------------------------------------- */

/* Where the weights of a product lie in shared memory. Products that do not stay take turns in two places. */
template <int PAIRS>
static __device__ __forceinline__ uint4 *persistent_slice(const persistent_args &a, const persistent_block *f,
                                                          int product)
{
    const int slot = product < a.resident ? product : a.resident + product % 2;
    return f->weights + (size_t)slot * (size_t)a.tiles * (PAIRS * PERSISTENT_WARPS * 32);
}

template <int PAIRS>
static __device__ __forceinline__ void persistent_copy_slice(const persistent_args &a, const persistent_block *f,
                                                             int product)
{
    const size_t tile = PAIRS * PERSISTENT_WARPS * 32;
    const uint4 *from = a.weights + ((size_t)product * (size_t)(a.width / 8) + (size_t)f->first) * tile;
    uint4 *to = persistent_slice<PAIRS>(a, f, product);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < f->tiles * (int)tile; i += PERSISTENT_THREADS) fast::copy16(to + i, from + i);
}

/* Requests the weights of a product, and at an fc1 its layer norm. They overwrite those of two products before, so call
 * it when these are no longer needed. */
template <int PAIRS>
static __device__ __forceinline__ void persistent_request(const persistent_args &a, const persistent_block *f,
                                                          int product)
{
    if (product >= a.resident) persistent_copy_slice<PAIRS>(a, f, product);
    if (product % 2 == 0) {
        const float *from = a.ln + (size_t)product * (size_t)a.width;
#pragma unroll 1
        for (int i = 4 * (int)threadIdx.x; i < a.width; i += 4 * PERSISTENT_THREADS) {
            fast::copy16(f->ln + i, from + i);
            fast::copy16(f->ln + PAIRS * PERSISTENT_WARPS * 32 + i, from + a.width + i);
        }
    }
    fast::copy_commit();
}

/* Must come first: sets f up, loads the weights that stay, and requests those of the first products. */
template <int PAIRS>
static __device__ __forceinline__ void persistent_begin(const persistent_args &a, persistent_block *f)
{
    const int slices = a.resident < 2 * a.depth ? a.resident + 2 : a.resident;
    persistent_carve(a, PAIRS, slices, (unsigned char *)cuda_shared(), f);
    f->first = (int)blockIdx.x * a.tiles;
    f->tiles = min(a.tiles, a.width / 8 - f->first);
    f->target = 0;
    for (int i = a.width + (int)threadIdx.x; i < PAIRS * PERSISTENT_WARPS * 32; i += PERSISTENT_THREADS)
        f->ln[i] = f->ln[PAIRS * PERSISTENT_WARPS * 32 + i] = 0;
    for (int i = 0; i < a.resident; i++) persistent_copy_slice<PAIRS>(a, f, i);
    persistent_request<PAIRS>(a, f, 0);
    persistent_request<PAIRS>(a, f, 1);
    const int columns = 8 * f->tiles, from = 8 * f->first;
    for (int i = (int)threadIdx.x; i < 2 * a.depth * columns; i += PERSISTENT_THREADS)
        f->bias[i] = a.bias[(size_t)(i / columns) * (size_t)a.width + (size_t)(from + i % columns)];
    for (int i = (int)threadIdx.x; i < columns * (a.channels + 1); i += PERSISTENT_THREADS) {
        const int n = i / (a.channels + 1), c = i % (a.channels + 1);
        f->in[i] = c < a.channels ? a.in[(from + n) * a.channels + c] : a.in_bias[from + n];
    }
    __syncthreads();
}

/* Must come last. */
static __device__ __forceinline__ void persistent_end()
{
    fast::copy_wait<0>();
}

#endif

#endif
