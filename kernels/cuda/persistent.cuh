/* A kernel that stays resident on the GPU and evaluates the head with all blocks of its grid: its launch and the life
 * of a block. The blocks meet at barriers in global memory; shared memory holds as many of the weights as fit.
 * persistent_layout.cuh has the memory layout, persistent_exchange.cuh the communication between blocks,
 * persistent_layers.cuh the evaluation. docs/persistent.md counts its work. Two kernels use it: the chain
 * (persistent.cu), and speculation inside the head (speculation.cu). Such a kernel is
 *
 *     template <int PAIRS, int WIDE, bool WORDS> static __global__ void __launch_bounds__(PERSISTENT_THREADS, 1)
 *         kernel(persistent_args a, my_args m)
 *     {
 *         persistent_block f;
 *         persistent_begin<PAIRS, WIDE>(a, &f);
 *         for (...) {
 *             ... every block fills its own f.state [states][C] and f.mod [rows]; __syncthreads();
 *             persistent_evaluate<PAIRS, WIDE, WORDS>(a, &f, rows, states);
 *             ... work that needs no output yet
 *             persistent_wait(a, &f);
 *             ... a.out [rows][2C] is complete; it must be read by __ldcg
 *         }
 *         persistent_end(a);
 *     }
 *
 * and is launched by persistent_launch; PERSISTENT_TABLE(kernel) has its instances. All threads of all blocks call each
 * of these functions equally often. persistent_evaluate overwrites f.state. */
#ifndef KERNELS_CUDA_PERSISTENT_CUH
#define KERNELS_CUDA_PERSISTENT_CUH

#include "kernels/cuda/persistent_exchange.cuh"

/* PAIRS and WIDE of the kernels' instances. A head gets the first that has room for its channels: the demo model the
 * first, MAR-B, L and H the next three, SphereAR-B, L and H the last three. */
static const struct {
    int pairs, wide;
} persistent_instances[PERSISTENT_INSTANCES] = {{1, 0}, {4, 0}, {5, 0}, {6, 0}, {3, 5}, {4, 6}, {5, 8}};

/* The instances of a kernel, in this order. */
#define PERSISTENT_TABLE(kernel, words)                                                                                \
    {                                                                                                                  \
        kernel<1, 0, words>, kernel<4, 0, words>, kernel<5, 0, words>, kernel<6, 0, words>, kernel<3, 5, words>,       \
            kernel<4, 6, words>, kernel<5, 8, words>                                                                   \
    }

typedef struct resident_head resident_head;

/* Division of the multiprocessors by groups.cuh: blocks of each fc1, of each fc2, and of the turn; shared memory of a
 * block; of a product's block tiles of columns whose weights are there. */
typedef struct {
    int fc1, fc2, turners; /* turners 0: chains do not run in groups */
    int resident1, resident2;
    size_t shared_bytes;
} groups_form;

/* Immutable after creation. */
struct persistent_head {
    persistent_args args;     /* without working memory */
    int word_rows;            /* chains of up to word_rows rows exchange words */
    const resident_head *few; /* form of up to 8 rows (resident.cu); NULL: as with more rows */
    groups_form groups;       /* form of 16 and more rows (groups.cuh) */
    void *weights, *floats;   /* the allocations that args points into */
};

static inline cudaLaunchAttribute persistent_cluster(int blocks)
{
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = (unsigned)blocks;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    return cluster;
}
/* persistent.cu, speculation.cu: starts the kernels without work, on c->stream. f->args has no working memory. */
cudaError_t persistent_try_chain(const cuda_queue *c, const persistent_head *f);
cudaError_t speculate_try(const cuda_queue *c, const persistent_head *f);
/* persistent.cu: returns the number of clusters of `cluster` blocks the device holds at once. Each block takes all of
 * the shared memory, for the kernel's instance. Clusters do not span groups of multiprocessors, so some multiprocessors
 * may stay unused. */
int persistent_clusters(const cuda_queue *c, int instance, int cluster);
/* persistent.cu: writes f->args with this queue's working memory, for a launch that exchanges words or not. Returns 0
 * if memory runs out. */
int persistent_prepare(cuda_queue *c, const persistent_head *f, bool words, persistent_args *args);
/* resident.cu: returns the resident form of a head on this device, or NULL if it has none; starts its kernels without
 * work; runs a job of few rows by f->few. resident_run returns 0 if the job is not its. */
const resident_head *resident_find(const cuda_queue *c, const kern_head_spec *spec);
cudaError_t resident_try(const cuda_queue *c, const persistent_head *f, const resident_head *of);
int resident_run(cuda_queue *c, const persistent_head *f, const kern_chain_job *job);
/* groups.cu: writes the form in groups of a head with these arguments, without working memory. Returns 0 if this device
 * has none. groups_try starts its kernels without work; groups_try_speculation those of groups_speculation.cu. */
int groups_find(const cuda_queue *c, const persistent_args *args, groups_form *form);
cudaError_t groups_try(const cuda_queue *c, const persistent_head *f, const groups_form *form);
cudaError_t groups_try_speculation(const cuda_queue *c, const persistent_head *f, const groups_form *form);

/* Sets the limit of shared memory. It belongs to the function in the device's context. All heads, queues and graphs
 * share it, so it must always be the same. */
template <typename E> static inline cudaError_t persistent_limit(const cuda_queue *c, void (*form)(persistent_args, E))
{
    return cudaFuncSetAttribute(form, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)c->device->shared_bytes);
}

/* Launches all blocks of form(args, extra) at once.
 *
 * Two such grids of two queues cannot deadlock: a cooperative launch starts only when all of its blocks fit on the
 * device. Clusters keep that rule: they only say which blocks share a group of multiprocessors. An otherwise idle
 * device has room for all: a head has no more clusters than persistent_clusters. */
template <typename E>
static inline cudaError_t persistent_start(const cuda_queue *c, const persistent_args &args,
                                           void (*form)(persistent_args, E), E extra)
{
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeCooperative;
    attributes[0].val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(args.clusters * args.cluster));
    config.blockDim = dim3(PERSISTENT_THREADS);
    config.dynamicSmemBytes = args.shared_bytes;
    config.stream = c->stream;
    config.attrs = attributes;
    config.numAttrs = 1;
    if (args.cluster > 1) attributes[config.numAttrs++] = persistent_cluster(args.cluster);
    const cudaError_t e = persistent_limit(c, form);
    return e == cudaSuccess ? cudaLaunchKernelEx(&config, form, args, extra) : e;
}

/* Launches kernel[instance](args, extra), whose instance has WORDS. */
template <typename E>
static inline void persistent_launch(cuda_queue *c, const persistent_head *f,
                                     void (*const kernel[PERSISTENT_INSTANCES])(persistent_args, E), bool words,
                                     E extra)
{
    persistent_args args;
    if (!cuda_live(c) || !persistent_prepare(c, f, words, &args)) return;
    /* the words lie behind the word of arrivals */
    const size_t zeros = words ? (size_t)((char *)args.out - (char *)args.arrivals) : sizeof *args.arrivals;
    if (cuda_ok(c, cudaMemsetAsync(args.arrivals, 0, zeros, c->stream), "preparing the head's kernel"))
        cuda_ok(c, persistent_start(c, args, kernel[args.instance], extra), "launching the head's kernel");
}

#if defined(__CUDACC__) || defined(MAR_CUDAHOST)

/* Loops without a constant trip count are not unrolled: the kernel must stay in the instruction cache. */

/* --- weights --------------------------------------------------------------------------------------------------- */

/* Returns true if a product's weights are copied to shared memory for each of its uses. */
static __device__ __forceinline__ bool persistent_copied(const persistent_args &a, int product)
{
    return product >= a.resident;
}

/* Returns the product's weight pieces for the cluster's first tile and the block's first part, in global memory. */
template <int PAIRS, persistent_side SIDE>
static __device__ __forceinline__ const uint4 *persistent_global_weights(const persistent_args &a,
                                                                         const persistent_block *f, int product)
{
    const size_t tile = (size_t)persistent_columns_of<SIDE>(f).first * PERSISTENT_PARTS;
    const size_t fc2 = persistent_is_fc1<SIDE>(product) ? 0 : a.fc2_weights;
    return a.weights + (size_t)(product >> 1) * a.block_weights + fc2 + (tile + (size_t)f->part) * (PAIRS * 32);
}

/* Returns a product's weights in shared memory. Non-resident products have two places, one of fc1s and one of fc2s. */
static __device__ __forceinline__ uint4 *persistent_slice(const persistent_args &a, const persistent_block *f,
                                                          int product)
{
    const int places = persistent_slice_offset(a, a.resident) + (product & 1) * a.fc2_slice;
    return f->weights + (product < a.resident ? persistent_slice_offset(a, product) : places);
}

template <int PAIRS, persistent_side SIDE>
static __device__ __forceinline__ void persistent_copy_slice(const persistent_args &a, const persistent_block *f,
                                                             int product)
{
    const int log = 3 - f->log, parts = 1 << log, n = (persistent_columns_of<SIDE>(f).tiles << log) * (PAIRS * 32);
    const uint4 *from = persistent_global_weights<PAIRS, SIDE>(a, f, product);
    uint4 *to = persistent_slice(a, f, product);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < n; i += PERSISTENT_THREADS) {
        const int part = i / (PAIRS * 32), rest = i % (PAIRS * 32);
        fast::copy16(to + i, from + ((part >> log) * PERSISTENT_PARTS + (part & (parts - 1))) * (PAIRS * 32) + rest);
    }
}

template <int PAIRS, int WIDE>
static __device__ __forceinline__ void persistent_copy_weights(const persistent_args &a, const persistent_block *f,
                                                               int product)
{
    if constexpr (WIDE == 0)
        persistent_copy_slice<PAIRS, PERSISTENT_MLP>(a, f, product);
    else if (product % 2 == 0)
        persistent_copy_slice<PAIRS, PERSISTENT_FC1>(a, f, product);
    else
        persistent_copy_slice<WIDE, PERSISTENT_FC2>(a, f, product);
}

/* Requests the weights of a product. They overwrite those of two products before, so call it when these are no longer
 * needed. */
template <int PAIRS, int WIDE>
static __device__ __forceinline__ void persistent_request(const persistent_args &a, const persistent_block *f,
                                                          int product)
{
    if (persistent_copied(a, product)) persistent_copy_weights<PAIRS, WIDE>(a, f, product);
    fast::copy_commit();
}

/* Returns the block's share of `columns` columns. */
static __device__ __forceinline__ persistent_columns persistent_columns_from(const persistent_cut &cut, int columns,
                                                                             int log, int rank)
{
    const int clusters = (int)gridDim.x >> log, cluster = (int)blockIdx.x >> log;
    const int less = cluster - (columns / 8 - clusters * (cut.tiles - 1)); /* from 0 on the cluster has a tile less */
    persistent_columns n;
    n.first = cluster * cut.tiles - max(0, less);
    n.tiles = less < 0 ? cut.tiles : cut.tiles - 1;
    n.column = 8 * n.first + 2 * rank * cut.own;
    n.own = max(0, min(cut.own, 4 * n.tiles - rank * cut.own));
    return n;
}

/* Loads the block's biases of a product's columns. */
static __device__ __forceinline__ void persistent_load_bias(const persistent_columns &n, const float *from, float *to)
{
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < 2 * n.own; i += PERSISTENT_THREADS) to[i] = from[n.column + i];
}

/* Initialises f, loads the resident weights, and requests those of the first products. Must come first. */
template <int PAIRS, int WIDE>
static __device__ __forceinline__ void persistent_begin(const persistent_args &a, persistent_block *f)
{
    constexpr int most = PAIRS > WIDE ? PAIRS : WIDE;
    persistent_carve(a, most, (unsigned char *)cuda_shared(), f);
    const int rank = a.cluster > 1 ? (int)fast::cluster_rank() : 0, pieces = a.chunk * (PERSISTENT_PARTS / a.cluster);
    f->log = __ffs(a.cluster) - 1;
    f->cut = persistent_columns_from(a.cut, a.width, f->log, rank);
    f->wide = persistent_columns_from(a.wide, a.fc1_columns, f->log, rank);
    f->part = rank * PERSISTENT_PARTS >> f->log;
    f->target = f->number = 0;
#pragma unroll 1
    for (int i = 0; i < a.resident + 2; i++) {
        const int product = i < a.resident ? i : i - a.resident;
        if (i < a.resident || persistent_copied(a, product)) persistent_copy_weights<PAIRS, WIDE>(a, f, product);
        fast::copy_commit();
    }
#pragma unroll 1
    for (int b = 0; b < a.depth; b++) {
        const float *from = a.bias + (size_t)b * (size_t)(a.fc1_columns + a.width);
        float *to = f->bias + 2 * b * (a.wide.own + a.cut.own);
        persistent_load_bias(f->wide, from, to);
        persistent_load_bias(f->cut, from + a.fc1_columns, to + 2 * a.wide.own);
    }
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < 2 * f->cut.own * (a.channels + 1); i += PERSISTENT_THREADS) {
        const int n = f->cut.column + i / (a.channels + 1), c = i % (a.channels + 1);
        f->in[i] = c < a.channels ? a.in[n * a.channels + c] : a.in_bias[n];
    }
    /* A product reads 16 rows at a time; results of missing rows are never used. */
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < pieces * most * 64; i += PERSISTENT_THREADS)
        f->operand[i] = make_uint4(0, 0, 0, 0);
    persistent_cluster_sync(a);
}

#endif

#endif
