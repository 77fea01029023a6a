/* What measuring asks of the CUDA backend (kern_measure_ops): a persistent kernel, of the head's own grid, that repeats
 * one phase of an evaluation. Its time is that of 2N repeats less that of N, over N, so that the launch and the loading
 * of the weights do not count. What a phase is, is micro_repeat; all else is as in the kernels that are measured. */
#include "kernels/cuda/persistent_layers.cuh"

typedef struct {
    kern_phase phase;
    int rows, repeats;
    const unsigned char *mod; /* the modulation row of all rows */
} micro_job;

/* Reads an operand of so many rows, as every block does for a product. */
static __device__ __forceinline__ void micro_read(const persistent_args &a, int rows)
{
    unsigned any = 0;
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < rows * a.width / 8; i += PERSISTENT_THREADS) {
        const uint4 piece = __ldcg(a.v + i);
        any |= (piece.x ^ piece.w) | (piece.y ^ piece.z);
    }
    if (any == 0x9e3779b9u) a.out[0] = 1; /* never so: the operand is zeros. It keeps the loads */
}

/* Fills the block's copy of the state. */
static __device__ __forceinline__ void micro_fill_state(const persistent_args &a, const persistent_block *f, int rows)
{
    for (int i = (int)threadIdx.x; i < rows * a.channels; i += PERSISTENT_THREADS) f->state[i] = 0;
    __syncthreads();
}

/* The same product of the next block. */
static __device__ __forceinline__ int micro_next(const persistent_args &a, int product)
{
    return product + 2 < 2 * a.depth ? product + 2 : product + 2 - 2 * a.depth;
}

/* One phase; `product` is that of the phases of products, which takes each of the head's blocks in turn. These begin
 * with the wait for what was in front of them, and end with their arrival and the request of the next repeat's weights.
 *
 * In an evaluation the weights that stream have the time of a whole product to arrive in; here the next repeat needs
 * them, and they are requested only when the place that they share with this one's is free. The empty group after
 * them makes the next persistent_wait wait for them all. So the time of such a product includes that of its copy, as
 * far as it takes longer than a barrier, and is more than its part of an evaluation; over a head of which some blocks'
 * weights stay it is the mean. */
template <int PAIRS>
static __device__ __forceinline__ void micro_repeat(const persistent_args &a, persistent_block *f, const micro_job &j,
                                                    int product)
{
    switch (j.phase) {
    case KERN_PHASE_BARRIER:
        persistent_arrive(a, f);
        persistent_wait(a, f);
        break;
    case KERN_PHASE_CLUSTER_BARRIER:
        fast::cluster_sync();
        break;
    case KERN_PHASE_FC1:
    case KERN_PHASE_FC2:
        persistent_product<PAIRS>(a, f, product, j.rows);
        persistent_arrive(a, f);
        persistent_request<PAIRS>(a, f, micro_next(a, product));
        fast::copy_commit();
        break;
    case KERN_PHASE_EVALUATION:
        micro_fill_state(a, f, j.rows);
        persistent_evaluate<PAIRS>(a, f, j.rows, j.rows);
        persistent_wait(a, f);
        break;
    case KERN_PHASE_READ:
        micro_read(a, j.rows);
        break;
    }
}

template <int PAIRS>
static __global__ void __launch_bounds__(PERSISTENT_THREADS, 1) micro_kernel(persistent_args a, micro_job j)
{
    const bool of_product = j.phase == KERN_PHASE_FC1 || j.phase == KERN_PHASE_FC2;
    persistent_block f;
    persistent_begin<PAIRS>(a, &f);
    for (int r = (int)threadIdx.x; r < j.rows; r += PERSISTENT_THREADS) f.mod[r] = j.mod;
    /* The operands that the phases read, of the block's own columns. */
    for (int i = (int)(blockIdx.x * PERSISTENT_THREADS + threadIdx.x); i < PERSISTENT_ROWS * a.width / 8;
         i += (int)(gridDim.x * PERSISTENT_THREADS))
        a.v[i] = make_uint4(0, 0, 0, 0);
    micro_fill_state(a, &f, j.rows);
    persistent_in(a, &f, j.rows, j.rows);
    persistent_arrive(a, &f);
    fast::copy_commit(); /* the next wait is for the weights of both first products */
    if (!of_product) persistent_wait(a, &f);
    int product = j.phase == KERN_PHASE_FC2;
#pragma unroll 1
    for (int i = 0; i < j.repeats; i++) {
        micro_repeat<PAIRS>(a, &f, j, product);
        product = micro_next(a, product);
    }
    if (of_product) persistent_wait(a, &f);
    persistent_end();
}

static void (*const micro_kernels[PERSISTENT_PAIRS])(persistent_args, micro_job) = {
    micro_kernel<1>, micro_kernel<2>, micro_kernel<3>, micro_kernel<4>, micro_kernel<5>, micro_kernel<6>};

static int phase(kern_queue *k, const kern_head *h, kern_phase what, int cluster, int rows, int repeats,
                 const void *mod, void *)
{
    persistent_head other;
    const persistent_head *f = h->persistent;
    if (f && cluster > 0 && cluster != f->args.cluster)
        f = persistent_recut(cuda_of(k), f, cluster, &other) ? &other : NULL;
    if (!f || rows < 0 || rows > PERSISTENT_ROWS) return 0;
    if (what == KERN_PHASE_CLUSTER_BARRIER && f->args.cluster < 2) return 0;
    const micro_job j = {what, rows, repeats, (const unsigned char *)mod};
    persistent_launch(cuda_of(k), f, micro_kernels, j);
    return 1;
}

static double attribute(const kern_device *d, cudaDeviceAttr which)
{
    int value = 0;
    if (cudaDeviceGetAttribute(&value, which, ((const cuda_device *)d)->number) == cudaSuccess) return value;
    (void)cudaGetLastError();
    return 0;
}

static void machine(const kern_device *d, const kern_head *h, kern_machine *out)
{
    *out = {};
    out->clock = 1000 * attribute(d, cudaDevAttrClockRate);
    out->cache_bytes = attribute(d, cudaDevAttrL2CacheSize);
    out->processors = ((const cuda_device *)d)->multiprocessors;
    if (!h || !h->persistent) return;
    out->blocks = (int)h->persistent->blocks;
    out->cluster = h->persistent->args.cluster;
    out->clusters = h->persistent->clusters;
    out->resident = h->persistent->args.resident;
}

static void head_spec(const kern_head *h, kern_head_spec *spec)
{
    *spec = {};
    spec->width = h->width, spec->depth = h->depth, spec->channels = h->channels, spec->f32 = h->f32;
}

kern_measure_ops cuda_make_measure_table(void)
{
    kern_measure_ops t = {};
    t.linear_spec = cuda_linear_spec;
    t.conv_spec = cuda_conv_spec;
    t.head_spec = head_spec;
    t.machine = machine;
    t.phase = phase;
    return t;
}
