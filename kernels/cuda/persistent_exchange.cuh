/* Communication between the blocks of a persistent kernel (persistent.cuh): words that carry their number, grid
 * barriers, and stores into the shared memory of a cluster's other blocks.
 *
 * The residual stream x and fc2's operand v go from block to block behind barriers or, in instances with WORDS, as
 * words (ptx.h), which their readers poll: then a product waits for its own operand only, without a fence and without a
 * load after the wait. Numbers grow by 1 from one of x to one of v and back, from 1 in each launch, before which they
 * are set to 0. A word is overwritten only when no block will read it again: who writes x has read all of v with its
 * cluster, and a block writes v after its cluster has read x; rows of different chunks do not meet.
 *
 * A store into another block's shared memory must meet three conditions.
 *   - That block has begun, and has not ended: persistent_begin ends with persistent_cluster_sync, and one follows the
 *     last store.
 *   - It no longer reads the overwritten data. Between moments and moments, or state and sums, lies a
 *     persistent_cluster_sync. Sums of two products in turn have a half each of the inbox where it has room
 *     (persistent_halves), else a barrier or, with WORDS, persistent_cluster_sync separates them, as it does chunks of
 *     one product.
 *   - It reads only after persistent_cluster_sync. */
#ifndef KERNELS_CUDA_PERSISTENT_EXCHANGE_CUH
#define KERNELS_CUDA_PERSISTENT_EXCHANGE_CUH

#include "kernels/cuda/persistent_layout.cuh"

#if defined(__CUDACC__) || defined(MAR_CUDAHOST)

/* Announces this block's arrival; does not wait. */
static __device__ __forceinline__ void persistent_arrive(const persistent_args &a, persistent_block *f)
{
    f->target += gridDim.x;
    __syncthreads();
    if (threadIdx.x == 0) fast::grid_arrive(a.arrivals);
}

/* Waits until all blocks have arrived, and until the weights requested one product ago are loaded. Where blocks are
 * missing it gives up; what the kernel writes is then undefined. */
static __device__ __forceinline__ void persistent_wait(const persistent_args &a, persistent_block *f)
{
    fast::copy_wait<1>();
    if (threadIdx.x == 0) fast::grid_wait(a.arrivals, f->target);
    __syncthreads();
}

/* Ends a layer's stores of x or v, and begins the next layer's loads of them: in between, without WORDS, is a barrier.
 */
template <bool WORDS>
static __device__ __forceinline__ void persistent_written(const persistent_args &a, persistent_block *f)
{
    f->number++;
    if (!WORDS) persistent_arrive(a, f);
}
template <bool WORDS>
static __device__ __forceinline__ void persistent_turn(const persistent_args &a, persistent_block *f)
{
    if (WORDS)
        fast::copy_wait<1>();
    else
        persistent_wait(a, f);
}

/* Returns whether a barrier of this launch gave up: a loop that waits for the work of all blocks must end. A: arguments
 * with `arrivals`. */
template <typename A> static __device__ __forceinline__ bool persistent_gave_up(const A &a)
{
    return fast::load_relaxed(a.arrivals) >= GRID_GAVE_UP;
}
/* Tells the host whether a wait gave up. Must come last. */
template <typename A> static __device__ __forceinline__ void persistent_report(const A &a)
{
    if (threadIdx.x == 0 && persistent_gave_up(a)) *a.gave_up = 1;
}
/* The same where copies may be on their way. */
template <typename A> static __device__ __forceinline__ void persistent_end(const A &a)
{
    fast::copy_wait<0>();
    persistent_report(a);
}

/* Returns whether all words of a thread have come: `missing` says that some have not; *polls is 0 at first. Where a
 * block is missing it gives up as a barrier does; what the kernel writes is then undefined. */
template <typename A>
static __device__ __forceinline__ bool persistent_polled(const A &a, bool missing, unsigned *polls)
{
    if (!missing) return true;
    fast::poll_again();
    if (++*polls % 256 != 0) return false;
    if (*polls >= GRID_PATIENCE) atomicOr(a.arrivals, GRID_GAVE_UP);
    return persistent_gave_up(a);
}
static __device__ __forceinline__ bool persistent_missing(const uint4 &words, unsigned number)
{
    return words.y != number || words.w != number;
}

/* Synchronises the cluster's threads. Earlier stores into its shared memory are visible afterwards. */
static __device__ __forceinline__ void persistent_cluster_sync(const persistent_args &a)
{
    if (a.cluster > 1)
        fast::cluster_sync();
    else
        __syncthreads();
}

/* --- sums of products ------------------------------------------------------------------------------------------ */

/* Returns whether the inbox has room for the sums of two products. */
static __device__ __forceinline__ bool persistent_halves(const persistent_args &a, int rows)
{
    return 2 << persistent_rows_log(a, rows) <= a.chunk;
}
/* Returns the inbox of a product. */
template <bool WORDS>
static __device__ __forceinline__ float4 *persistent_inbox(const persistent_args &a, const persistent_block *f,
                                                           int rows, int product)
{
    const int half = WORDS && product % 2 && persistent_halves(a, rows) ? 4 * a.chunk * max(a.cut.own, a.wide.own) : 0;
    return f->inbox + PERSISTENT_PARTS * half;
}

/* Sends the part's sums to the owner of the lane's pair of columns; d as an mma leaves them: rows g and g + 8 of the
 * m-th tile of 16 rows of the chunk. */
template <persistent_side SIDE>
static __device__ __forceinline__ void persistent_send(const persistent_args &a, float4 *inbox, int rows, int part,
                                                       int tile, int m, const float4 &d)
{
    const persistent_cut &cut = persistent_cut_of<SIDE>(a);
    const int lane = (int)threadIdx.x % 32, pair = 4 * tile + lane % 4, owner = pair * cut.inverse >> 16;
    const int at = ((part * cut.own + pair - owner * cut.own) << persistent_rows_log(a, rows)) + m;
    fast::cluster_store(inbox + at * 8 + lane / 4, (unsigned)owner, d);
}

/* Returns bias plus the parts' sums of item i. */
template <persistent_side SIDE, bool WORDS>
static __device__ __forceinline__ float2 persistent_sum(const persistent_args &a, const persistent_block *f, int rows,
                                                        const persistent_item &e, int i, int product)
{
    const int stride = persistent_cut_of<SIDE>(a).own << (4 + persistent_rows_log(a, rows));
    const int fc2 = persistent_is_fc1<SIDE>(product) ? 0 : a.wide.own;
    const float2 *sum = (const float2 *)persistent_inbox<WORDS>(a, f, rows, product) + i;
    float2 y = *(const float2 *)(f->bias + 2 * ((product >> 1) * (a.wide.own + a.cut.own) + fc2 + e.pair));
#pragma unroll
    for (int part = 0; part < PERSISTENT_PARTS; part++) {
        const float2 d = sum[part * stride];
        y.x += d.x;
        y.y += d.y;
    }
    return y;
}

/* --- moments of rows ------------------------------------------------------------------------------------------- */

/* Measures the thread's channels of a row's part: 4*(thread % PERSISTENT_LANES).. of each 32. Returns the part's mean
 * and squared deviations to each of its threads. Two passes, because the mean of the residual stream can be far from
 * zero. */
template <int PAIRS> static __device__ __forceinline__ float2 persistent_measure(const float4 (&x)[PAIRS], int used)
{
    float sum = 0, squares = 0;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) sum += (x[p].x + x[p].y) + (x[p].z + x[p].w);
#pragma unroll
    for (int i = 1; i < PERSISTENT_LANES; i *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
    const float mean = used > 0 ? __fdividef(sum, 32.0f * (float)used) : 0;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        const float of = p < used ? mean : 0; /* missing channels are 0 */
        const float4 d = make_float4(x[p].x - of, x[p].y - of, x[p].z - of, x[p].w - of);
        squares += cuda_dot(d, d);
    }
#pragma unroll
    for (int i = 1; i < PERSISTENT_LANES; i *= 2) squares += __shfl_xor_sync(0xffffffffu, squares, i);
    return make_float2(mean, squares);
}

/* Sends a part's moments of a row to all blocks of the cluster, one by each thread of the part. */
static __device__ __forceinline__ void persistent_send_moments(const persistent_args &a, const persistent_block *f,
                                                               int row, int part, const float2 &moments)
{
    const unsigned rank = threadIdx.x % PERSISTENT_LANES;
    if (rank < (unsigned)a.cluster) fast::cluster_store(f->moments + row * PERSISTENT_PARTS + part, rank, moments);
}

/* Returns a row's mean and inverse deviation. Fast functions suffice, because the result is rounded to f16. But
 * products are rounded, here and where parts are merged: ptxas would fuse one with the subtraction of the mean in some
 * kernels. The mean of one part is a choice (`used > 0 ?`), which it does not fuse. */
static __device__ __forceinline__ float2 persistent_norm_of(float inverse_width, float mean, float squares)
{
    const float variance = __fmul_rn(squares, inverse_width);
    return make_float2(mean, variance <= FLT_MAX ? rsqrtf(variance + 1e-6f) : NAN); /* as cuda_inverse_deviation */
}

/* The same, merging its parts' moments as in Chan, Golub and LeVeque. */
template <int PAIRS>
static __device__ __forceinline__ float2 persistent_merge(const persistent_args &a, const persistent_block *f, int slot)
{
    const float2 *of = f->moments + slot * PERSISTENT_PARTS;
    float sum = 0, squares = 0;
#pragma unroll
    for (int part = 0; part < PERSISTENT_PARTS; part++)
        sum += of[part].x * (32.0f * (float)persistent_used<PAIRS>(a.width, part));
    const float mean = __fmul_rn(sum, a.inverse_width);
#pragma unroll
    for (int part = 0; part < PERSISTENT_PARTS; part++) {
        const float d = of[part].x - mean;
        squares += of[part].y + 32.0f * (float)persistent_used<PAIRS>(a.width, part) * (d * d);
    }
    return persistent_norm_of(a.inverse_width, mean, squares);
}

#endif

#endif
