/* Measures what exchanges between blocks cost on this GPU: words, barriers of the grid and of clusters, st.async with
 * an mbarrier, fences, loads from the L2 cache, and long straight code. It takes some seconds.
 *
 * Decides how the blocks of the head's kernel should exchange (docs/gpu.md, "The script of a GPU's hour"): whether
 * st.async is cheaper than a cluster's barrier and by how much, whether words among 128 blocks are as cheap as either,
 * how many clusters of each size fit, and from which size on code no longer fits the instruction cache.
 *
 *     nvcc -O3 -std=c++17 -I. -Iinclude -gencode arch=compute_90a,code=sm_90a bench/gpu/exchange.cu -o exchange */
#include "kernels/cuda/ptx.h"

#include <algorithm>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

enum { THREADS = 256, WIDTH = 1024, BLOCKS = WIDTH / 8, TIMES = 2000, SHARED = 200 << 10, MEMORY = 64 << 20 };

static __device__ __forceinline__ void fence()
{
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}
static __device__ __forceinline__ void cluster_barrier()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
static __device__ __forceinline__ unsigned shared_address(const void *p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}
/* Returns the address of a shared one in block `rank` of the cluster. */
static __device__ __forceinline__ unsigned address_in(unsigned shared, unsigned rank)
{
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(rank));
    return there;
}

/* The kernels write the clocks of n repetitions to *clocks. */

/* A word from block 0 to block `other` and back. */
static __global__ void ping(uint2 *words, int other, int n, long long *clocks)
{
    uint2 *back = words + 32;
    if (threadIdx.x) return;
    const long long from = clock64();
    for (unsigned i = 1; i <= (unsigned)n; i++) {
        if (blockIdx.x == 0) {
            fast::store_word(words, i, i);
            while (fast::load_relaxed(&back->y) != i) {
            }
        } else if ((int)blockIdx.x == other) {
            while (fast::load_relaxed(&words->y) != i) {
            }
            fast::store_word(back, i, i);
        }
    }
    if (blockIdx.x == 0) *clocks = clock64() - from;
}

/* Every block writes 8 columns of ROWS rows as words, and reads all columns: what a product without clusters waits for.
 * A word has CHANNELS channels: one float, or two f16. */
template <int ROWS, int CHANNELS>
static __global__ void __launch_bounds__(THREADS, 1) all_to_all(uint4 *words, int n, long long *clocks, unsigned *sink)
{
    enum { PAIRS = ROWS * WIDTH / CHANNELS / 2, EACH = (PAIRS + THREADS - 1) / THREADS, OWN = 8 / CHANNELS / 2 };
    const int thread = (int)threadIdx.x;
    unsigned sum = 0;
    const long long from = clock64();
#pragma unroll 1
    for (unsigned i = 1; i <= (unsigned)n; i++) {
        uint4 *buffer = words + (i & 1) * PAIRS, x[EACH];
        bool late;
        if (thread < ROWS * OWN)
            fast::store_two_words(buffer + thread / OWN * (PAIRS / ROWS) + (int)blockIdx.x * OWN + thread % OWN, sum,
                                  sum, i);
        do {
            late = false;
#pragma unroll
            for (int k = 0; k < EACH; k++)
                if (thread + THREADS * k < PAIRS) x[k] = fast::load_two_words(buffer + thread + THREADS * k);
#pragma unroll
            for (int k = 0; k < EACH; k++)
                if (thread + THREADS * k < PAIRS) late |= x[k].y != i || x[k].w != i;
        } while (late);
#pragma unroll
        for (int k = 0; k < EACH; k++)
            if (thread + THREADS * k < PAIRS) sum += x[k].x;
        __syncthreads();
    }
    if (thread == 0 && blockIdx.x == 0) *clocks = clock64() - from;
    if (sum == 12345) *sink = sum;
}

/* The grid's barrier. */
static __global__ void __launch_bounds__(THREADS, 1) grid_barrier(unsigned *count, int n, long long *clocks)
{
    const long long from = clock64();
    for (int i = 1; i <= n; i++) {
        __syncthreads();
        if (threadIdx.x == 0) {
            fast::grid_arrive(count);
            fast::grid_wait(count, (unsigned)i * gridDim.x);
        }
        __syncthreads();
    }
    if (threadIdx.x == 0 && blockIdx.x == 0) *clocks = clock64() - from;
}

/* A cluster's barrier: with release and acquire; relaxed; with release behind a word, or behind a store to the next
 * block's shared memory. */
typedef enum { RELEASE, RELAXED, BEHIND_WORD, BEHIND_STORE } barrier_kind;
template <barrier_kind KIND>
static __global__ void __launch_bounds__(THREADS, 1) cluster(uint2 *words, int n, int size, long long *clocks)
{
    __shared__ float4 box[THREADS];
    const unsigned there = address_in(shared_address(box + threadIdx.x), (fast::cluster_rank() + 1) % (unsigned)size);
    cluster_barrier();
    const long long from = clock64();
    for (int i = 1; i <= n; i++) {
        if (KIND == BEHIND_WORD && threadIdx.x < 80) /* 10 rows of 8 columns */
            fast::store_word(words + blockIdx.x * THREADS + threadIdx.x, (unsigned)i, (unsigned)i);
        if (KIND == BEHIND_STORE)
            asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %1, %1, %1};" ::"r"(there), "f"((float)i) : "memory");
        if (KIND == RELAXED)
            asm volatile("barrier.cluster.arrive.relaxed.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
        else
            cluster_barrier();
    }
    if (threadIdx.x == 0 && blockIdx.x == 0) *clocks = clock64() - from;
    cluster_barrier();
}

/* The sums of a product by st.async and an mbarrier, without a fence: each warp sends 512 bytes, spread over the
 * cluster's blocks, and each thread loads 8 floats of what came. */
static __global__ void __launch_bounds__(THREADS, 1) async_sums(int n, int size, long long *clocks, float *sink)
{
    enum { BYTES = THREADS * (int)sizeof(float4) }; /* that a block gets at a time */
    __shared__ __align__(16) float4 box[2][2 * THREADS];
    __shared__ __align__(8) unsigned long long barriers[2];
    const unsigned thread = threadIdx.x, blocks = (unsigned)size, to = thread % blocks, rank = fast::cluster_rank();
    unsigned barrier[2], their_barrier[2], their_box[2];
    float sum = 0;
    for (int k = 0; k < 2; k++) {
        barrier[k] = shared_address(&barriers[k]);
        their_barrier[k] = address_in(barrier[k], to);
        their_box[k] = address_in(shared_address(&box[k][rank * (THREADS / blocks) + thread / blocks]), to);
        if (thread == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier[k]) : "memory");
    }
    if (thread == 0) asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    for (int k = 0; k < 2; k++)
        if (thread == 0)
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier[k]), "r"((int)BYTES)
                         : "memory");
    cluster_barrier();
    const long long from = clock64();
#pragma unroll 1
    for (int i = 0; i < n; i++) {
        const int k = i & 1, phase = i >> 1 & 1;
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %1, %1, %1}, [%2];" ::"r"(
                         their_box[k]),
                     "f"(sum), "r"(their_barrier[k])
                     : "memory");
        asm volatile("{\n\t.reg .pred done;\nagain%=:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
                     "@!done bra again%=;\n\t}" ::"r"(barrier[k]),
                     "r"(phase)
                     : "memory");
        if (thread == 0)
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier[k]), "r"((int)BYTES)
                         : "memory");
        for (int p = 0; p < 8; p++) sum += ((const float *)box[k])[p * 128 + (int)thread % 128];
        __syncthreads();
    }
    if (thread == 0 && blockIdx.x == 0) *clocks = clock64() - from;
    if (sum == 12345) *sink = sum;
    cluster_barrier();
}

/* A fence of the GPU by all warps of the block, alone or behind a word. */
template <bool STORED> static __global__ void fences(uint2 *words, int n, long long *clocks)
{
    const long long from = clock64();
    for (int i = 0; i < n; i++) {
        if (STORED) fast::store_word(words + blockIdx.x * THREADS + threadIdx.x, (unsigned)i, (unsigned)i);
        fence();
    }
    if (threadIdx.x == 0 && blockIdx.x == 0) *clocks = clock64() - from;
}

/* Relaxed loads, each of whose addresses the one before returns. */
static __global__ void chase(const unsigned *next, int n, long long *clocks, unsigned *sink)
{
    unsigned at = 0;
    for (int i = 0; i < 1000; i++) at = fast::load_relaxed(next + at);
    const long long from = clock64();
    for (int i = 0; i < n; i++) at = fast::load_relaxed(next + at);
    *clocks = clock64() - from;
    *sink = at;
}

/* Straight code of KB kilobytes, of 16 bytes an instruction, in four independent chains. */
template <int KB>
static __global__ void __launch_bounds__(THREADS, 1) straight(int n, float a, float b, long long *clocks, float *sink)
{
    float x[4] = {a, b, a, b};
    const long long from = clock64();
#pragma unroll 1
    for (int i = 0; i < n; i++) {
#pragma unroll
        for (int k = 0; k < KB * 64; k++) asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(x[k % 4]) : "f"(a), "f"(b));
    }
    if (threadIdx.x == 0 && blockIdx.x == 0) *clocks = clock64() - from;
    if (x[0] + x[1] + x[2] + x[3] == 12345) *sink = x[0];
}

/* --- the host ---------------------------------------------------------------------------------------------------- */

typedef struct {
    cudaDeviceProp properties;
    double hz;
    long long *clocks; /* in memory of the host that the device writes */
    void *memory;
} machine;

static void check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return;
    printf("%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

/* Returns the clocks of a repetition, the least of three launches. */
template <typename... P, typename... A>
static double run(const machine *m, void (*kernel)(P...), int blocks, int threads, int cluster_size, int n, A... args)
{
    double best = 1e30;
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks), config.blockDim = dim3((unsigned)threads);
    config.attrs = attributes, config.numAttrs = cluster_size > 1 ? 2 : 1;
    attributes[0].id = cudaLaunchAttributeCooperative, attributes[0].val.cooperative = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = (unsigned)cluster_size;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    for (int i = 0; i < 3; i++) {
        check(cudaMemset(m->memory, 0, 1 << 20), "clearing");
        check(cudaLaunchKernelEx(&config, kernel, P(args)...), "launching");
        check(cudaDeviceSynchronize(), "running");
        best = std::min(best, (double)*m->clocks / n);
    }
    return best;
}

static void say(const machine *m, const char *what, double clocks)
{
    printf("%-64s %8.0f cycles %8.3f us\n", what, clocks, clocks / m->hz * 1e6);
    fflush(stdout);
}

/* Returns how many clusters of blocks that take a multiprocessor each fit on the GPU; -1 if it refuses the size. */
static int clusters_at_once(int size)
{
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};
    int most = 0;
    check(cudaFuncSetAttribute(grid_barrier, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED), "shared memory");
    (void)cudaFuncSetAttribute(grid_barrier, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = (unsigned)size;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.gridDim = dim3((unsigned)size), config.blockDim = dim3(THREADS), config.dynamicSmemBytes = SHARED;
    config.attrs = &attribute, config.numAttrs = 1;
    if (cudaOccupancyMaxActiveClusters(&most, grid_barrier, &config) == cudaSuccess) return most;
    (void)cudaGetLastError();
    return -1;
}

static void measure_pings(const machine *m)
{
    enum { PINGS = 500 };
    std::vector<double> clocks;
    const int blocks = m->properties.multiProcessorCount;
    for (int other = 1; other < blocks; other++)
        clocks.push_back(run(m, ping, blocks, 32, 1, PINGS, (uint2 *)m->memory, other, (int)PINGS, m->clocks) / 2);
    std::sort(clocks.begin(), clocks.end());
    say(m, "word from block to block, least", clocks.front());
    say(m, "word from block to block, median", clocks[clocks.size() / 2]);
    say(m, "word from block to block, most", clocks.back());
}

template <int ROWS, int CHANNELS> static void measure_all_to_all(const machine *m, unsigned *sink)
{
    char text[96];
    snprintf(text, sizeof text, "all to all, %d rows of %d, %s, %d blocks", ROWS, (int)WIDTH,
             CHANNELS == 2 ? "two f16 a word" : "a float a word", (int)BLOCKS);
    say(m, text,
        run(m, all_to_all<ROWS, CHANNELS>, BLOCKS, THREADS, 1, TIMES, (uint4 *)m->memory, (int)TIMES, m->clocks, sink));
}

template <barrier_kind KIND> static void measure_cluster(const machine *m, int size, const char *what)
{
    char text[96];
    const int blocks = clusters_at_once(size) * size;
    snprintf(text, sizeof text, "clusters of %d: barrier, %s", size, what);
    say(m, text, run(m, cluster<KIND>, blocks, THREADS, size, TIMES, (uint2 *)m->memory, (int)TIMES, size, m->clocks));
}

static void measure_clusters(const machine *m, float *sink)
{
    char text[96];
    for (int size = 2; size <= 8; size *= 2) {
        measure_cluster<RELEASE>(m, size, "release and acquire");
        measure_cluster<RELAXED>(m, size, "relaxed");
        measure_cluster<BEHIND_WORD>(m, size, "release behind a word");
        measure_cluster<BEHIND_STORE>(m, size, "release behind a remote store");
        snprintf(text, sizeof text, "clusters of %d: st.async, mbarrier, 8 loads, __syncthreads", size);
        const int blocks = clusters_at_once(size) * size;
        say(m, text, run(m, async_sums, blocks, THREADS, size, TIMES, (int)TIMES, size, m->clocks, sink));
    }
}

static void measure_loads(const machine *m, unsigned *sink)
{
    enum { LOADS = 1 << 15, LINE = 32 /* words */ };
    char text[96];
    for (int mb = 1; mb <= 32; mb *= 8) {
        std::vector<unsigned> next((size_t)mb << 18);
        const unsigned lines = (unsigned)mb << 13;
        for (unsigned line = 0, i = 0; i < lines; i++) {
            const unsigned to = (line + 4099) % lines; /* a prime: all lines once */
            next[line * LINE] = to * LINE;
            line = to;
        }
        check(cudaMemcpy(m->memory, next.data(), next.size() * sizeof(unsigned), cudaMemcpyHostToDevice), "uploading");
        for (int i = 0; i < 3; i++) { /* the third time they are in the L2 cache */
            chase<<<1, 1>>>((const unsigned *)m->memory, LOADS, m->clocks, sink);
            check(cudaDeviceSynchronize(), "running");
        }
        snprintf(text, sizeof text, "relaxed load, %d MB", mb);
        say(m, text, (double)*m->clocks / LOADS);
    }
}

template <int KB> static void measure_straight(const machine *m, float *sink)
{
    enum { LOOPS = 200 };
    for (int threads = 32; threads <= THREADS; threads *= 8) {
        char text[96];
        snprintf(text, sizeof text, "an instruction of %d KB of straight code, %d warps", KB, threads / 32);
        const double clocks = run(m, straight<KB>, m->properties.multiProcessorCount, threads, 1, LOOPS, (int)LOOPS,
                                  1.0f, 0.5f, m->clocks, sink);
        printf("%-64s %8.2f cycles\n", text, clocks / (KB * 64));
        fflush(stdout);
    }
}

int main()
{
    machine m = {};
    int khz = 0;
    check(cudaGetDeviceProperties(&m.properties, 0), "no GPU");
    check(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0), "clock");
    check(cudaMallocHost((void **)&m.clocks, 64), "allocating");
    check(cudaMalloc(&m.memory, MEMORY), "allocating");
    m.hz = 1e3 * khz;
    unsigned *sink = (unsigned *)m.memory + MEMORY / sizeof(unsigned) - 64;
    const int all = m.properties.multiProcessorCount;
    printf("%s, %d multiprocessors, %d MB of L2, %.2f GHz\n", m.properties.name, all, m.properties.l2CacheSize >> 20,
           m.hz / 1e9);
    for (int size = 1; size <= 16; size *= 2) printf("clusters of %2d: %d at once\n", size, clusters_at_once(size));
    measure_pings(&m);
    measure_all_to_all<2, 1>(&m, sink), measure_all_to_all<2, 2>(&m, sink);
    measure_all_to_all<4, 1>(&m, sink), measure_all_to_all<4, 2>(&m, sink);
    measure_all_to_all<8, 1>(&m, sink), measure_all_to_all<8, 2>(&m, sink);
    measure_all_to_all<16, 2>(&m, sink);
    say(&m, "barrier of the grid, all multiprocessors",
        run(&m, grid_barrier, all, THREADS, 1, TIMES, (unsigned *)m.memory, (int)TIMES, m.clocks));
    measure_clusters(&m, (float *)sink);
    uint2 *words = (uint2 *)m.memory;
    say(&m, "fence of the GPU, one warp", run(&m, fences<false>, all, 32, 1, TIMES, words, (int)TIMES, m.clocks));
    say(&m, "fence of the GPU, 8 warps", run(&m, fences<false>, all, THREADS, 1, TIMES, words, (int)TIMES, m.clocks));
    say(&m, "fence behind a word, one warp", run(&m, fences<true>, all, 32, 1, TIMES, words, (int)TIMES, m.clocks));
    say(&m, "fence behind a word, 8 warps", run(&m, fences<true>, all, THREADS, 1, TIMES, words, (int)TIMES, m.clocks));
    measure_loads(&m, sink);
    measure_straight<8>(&m, (float *)sink), measure_straight<32>(&m, (float *)sink);
    measure_straight<64>(&m, (float *)sink), measure_straight<96>(&m, (float *)sink);
    measure_straight<160>(&m, (float *)sink);
    return 0;
}
