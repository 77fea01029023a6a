/* A kernel that stays resident on the GPU and evaluates the head with all blocks of its grid: its launch and the life
 * of a block. The blocks meet at barriers in global memory; shared memory holds as many of the weights as fit.
 * persistent_layout.cuh has the memory layout, persistent_exchange.cuh the communication between blocks,
 * persistent_layers.cuh the evaluation. docs/persistent.md counts its work. Two kernels use it: the chain
 * (persistent.cu), and speculation inside the head (speculation.cu). Such a kernel is
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
 * and is launched by persistent_launch. All threads of all blocks call each of these functions equally often.
 * persistent_evaluate overwrites f.state. */
#ifndef KERNELS_CUDA_PERSISTENT_CUH
#define KERNELS_CUDA_PERSISTENT_CUH

#include "kernels/cuda/persistent_exchange.cuh"

/* Immutable after creation. */
struct persistent_head {
    persistent_args args;           /* without working memory */
    int pairs;                      /* pairs of mmas per warp; selects the kernel's instance */
    unsigned blocks;                /* of the grid */
    size_t shared_bytes;            /* of a block */
    void *streamed;                 /* weights that are not resident in shared memory, the last ones */
    size_t streamed_bytes;          /* size of these, up to the limit of an L2 access policy */
    float kept_in_l2;               /* fraction of them reserved in the L2 cache; 0: no policy */
    void *weights, *floats;         /* the allocations that args points into */
    char description[ERR_TEXT_MAX]; /* how it runs and what the device refused, for kern_head_ops.describe */
};

static inline cudaLaunchAttribute persistent_cluster(const persistent_head *f)
{
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = (unsigned)f->args.cluster;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    return cluster;
}
/* Returns the L2 access policy: part of the streamed weights persists in the L2 cache. */
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

/* persistent.cu, speculation.cu: starts the kernel without work, on c->stream, if all blocks fit on the device at once.
 * f->args has no working memory. */
cudaError_t persistent_try_chain(const cuda_queue *c, const persistent_head *f);
cudaError_t speculate_try(const cuda_queue *c, const persistent_head *f);
/* persistent.cu: returns the number of clusters of `cluster` blocks the device holds at once. Each block takes all of
 * the shared memory, for a head of this width. Clusters do not span groups of multiprocessors, so some multiprocessors
 * may stay unused. */
int persistent_clusters(const cuda_queue *c, int width, int cluster);
/* persistent.cu: writes f->args with this queue's working memory. Returns 0 if memory runs out. */
int persistent_prepare(cuda_queue *c, const persistent_head *f, persistent_args *args);

/* Launches all blocks of form(args, extra) at once. The kernel's limit of shared memory must have been raised before.
 *
 * Two such grids of two queues cannot deadlock: a cooperative launch starts only when all of its blocks fit on the
 * device. Clusters keep that rule: they only say which blocks share a group of multiprocessors. persistent_room has
 * checked that an otherwise idle device has room for all. */
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

/* Sets the limit of shared memory. It belongs to the function in the device's context. All heads, queues and graphs
 * share it, so it must always be the same. */
template <typename E> static inline cudaError_t persistent_limit(const cuda_queue *c, void (*form)(persistent_args, E))
{
    return cudaFuncSetAttribute(form, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)c->device->shared_bytes);
}

/* Tests whether all blocks of a form fit on the device at once. */
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

/* Starts kernel[pairs - 1] with zeros for E; it must then return at once. */
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

/* Loops without a constant trip count are not unrolled: the kernel must stay in the instruction cache. */

/* --- weights --------------------------------------------------------------------------------------------------- */

/* Returns true if a product's weights are read from global memory at their use. */
static __device__ __forceinline__ bool persistent_direct(const persistent_args &a, int product)
{
    return persistent_is_direct(a.resident, a.slices, product);
}

/* Returns the product's weight pieces for the cluster's first tile and the block's first part, in global memory. */
template <int PAIRS>
static __device__ __forceinline__ const uint4 *persistent_global_weights(const persistent_args &a,
                                                                         const persistent_block *f, int product)
{
    const size_t tile = (size_t)product * (size_t)(a.width / 8) + (size_t)f->first;
    return a.weights + (tile * PERSISTENT_PARTS + (size_t)f->part) * (PAIRS * 32);
}

/* Returns a product's weights in shared memory. Non-resident products alternate between two places. */
template <int PAIRS>
static __device__ __forceinline__ uint4 *persistent_slice(const persistent_args &a, const persistent_block *f,
                                                          int product)
{
    const int slot = product < a.resident ? product : a.resident + product % 2;
    return f->weights + (((size_t)slot * (size_t)a.tiles * PERSISTENT_PARTS) >> f->log) * (PAIRS * 32);
}

template <int PAIRS>
static __device__ __forceinline__ void persistent_copy_slice(const persistent_args &a, const persistent_block *f,
                                                             int product)
{
    const int log = 3 - f->log, parts = 1 << log, n = (f->tiles << log) * (PAIRS * 32);
    const uint4 *from = persistent_global_weights<PAIRS>(a, f, product);
    uint4 *to = persistent_slice<PAIRS>(a, f, product);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < n; i += PERSISTENT_THREADS) {
        const int part = i / (PAIRS * 32), rest = i % (PAIRS * 32);
        fast::copy16(to + i, from + ((part >> log) * PERSISTENT_PARTS + (part & (parts - 1))) * (PAIRS * 32) + rest);
    }
}

/* Requests the weights of a product. They overwrite those of two products before, so call it when these are no longer
 * needed. */
template <int PAIRS>
static __device__ __forceinline__ void persistent_request(const persistent_args &a, const persistent_block *f,
                                                          int product)
{
    if (product >= a.resident && !persistent_direct(a, product)) persistent_copy_slice<PAIRS>(a, f, product);
    fast::copy_commit();
}

/* Initialises f, loads the resident weights, and requests those of the first products. Must come first. */
template <int PAIRS>
static __device__ __forceinline__ void persistent_begin(const persistent_args &a, persistent_block *f)
{
    persistent_carve(a, PAIRS, (unsigned char *)cuda_shared(), f);
    const int rank = a.cluster > 1 ? (int)fast::cluster_rank() : 0, pieces = a.chunk * (PERSISTENT_PARTS / a.cluster);
    f->log = __ffs(a.cluster) - 1;
    f->first = ((int)blockIdx.x >> f->log) * a.tiles;
    f->tiles = min(a.tiles, a.width / 8 - f->first);
    f->part = rank * PERSISTENT_PARTS >> f->log;
    f->column = 8 * f->first + 2 * rank * a.own;
    f->own = max(0, min(a.own, 4 * f->tiles - rank * a.own));
    f->target = 0;
#pragma unroll 1
    for (int i = 0; i < a.resident; i++) persistent_copy_slice<PAIRS>(a, f, i);
    persistent_request<PAIRS>(a, f, 0);
    persistent_request<PAIRS>(a, f, 1);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < 2 * a.depth * 2 * f->own; i += PERSISTENT_THREADS) {
        const int product = i / (2 * f->own), n = i % (2 * f->own);
        f->bias[2 * product * a.own + n] = a.bias[(size_t)product * (size_t)a.width + (size_t)(f->column + n)];
    }
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < 2 * f->own * (a.channels + 1); i += PERSISTENT_THREADS) {
        const int n = f->column + i / (a.channels + 1), c = i % (a.channels + 1);
        f->in[i] = c < a.channels ? a.in[n * a.channels + c] : a.in_bias[n];
    }
    /* A product reads 16 rows at a time; results of missing rows are never used. */
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < pieces * PAIRS * 64; i += PERSISTENT_THREADS)
        f->operand[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
}

/* Must come last. */
static __device__ __forceinline__ void persistent_end()
{
    fast::copy_wait<0>();
}

#endif

#endif
