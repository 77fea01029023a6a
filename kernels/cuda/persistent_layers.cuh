/* The head's layers inside a persistent kernel (persistent.cuh), from the state to eps and the variance fraction.
 *
 * Products. The sum over k is divided among the 8 warps, and the partial sums are added in a fixed order. No row
 * depends on another row, nor on the number of rows.
 *
 * Pieces. The 16 values of k of a mma may come in any order that both operands share. Two mmas cover 32 channels, of
 * which thread t of a group of four has 8t to 8t + 7. With this order the fragments of both operands are 16-byte pieces
 * of bf16 rows. Operands lie in memory in pieces, [tile of 16 rows][32 channels][half of the rows][lane], and each lane
 * loads its own. The residual stream lies likewise, in two pieces of 4 floats each.
 *
 * Clusters. Where the device has clusters, the blocks of a wide head come in pairs that write to each other's shared
 * memory: see persistent_exchange. */
#ifndef KERNELS_CUDA_PERSISTENT_LAYERS_CUH
#define KERNELS_CUDA_PERSISTENT_LAYERS_CUH

#include "kernels/cuda/persistent.cuh"

#if defined(__CUDACC__) || defined(MAR_CUDAHOST)

/* --- rows and columns ------------------------------------------------------------------------------------------ */

/* Index of the piece of 8 channels, 32*pair + 8*t.., of a row. */
static __device__ __forceinline__ int persistent_piece(const persistent_args &a, int row, int pair, int t)
{
    return ((row >> 4) * (a.width / 32) + pair) * 64 + (row >> 3 & 1) * 32 + (row & 7) * 4 + t;
}
/* Index of the first of its two pieces of 4 floats; the second is 32 pieces further. */
static __device__ __forceinline__ int persistent_piece4(const persistent_args &a, int row, int pair, int t)
{
    return ((row >> 4) * (a.width / 32) + pair) * 128 + (row >> 3 & 1) * 64 + (row & 7) * 4 + t;
}

/* The thread's row among 8. */
static __device__ __forceinline__ int persistent_group()
{
    return (int)(threadIdx.x % 32 / 4);
}
/* The thread's t. */
static __device__ __forceinline__ int persistent_t()
{
    return (int)(threadIdx.x % 4);
}
/* The warp's first pair of mmas. */
template <int PAIRS> static __device__ __forceinline__ int persistent_pair()
{
    return (int)(threadIdx.x / 32) * PAIRS;
}

/* Two neighbouring columns of a row. A thread adds up the warps' partial sums of an item. Item i belongs to thread
 * i % PERSISTENT_THREADS in all products. The number of tiles of 16 rows is rounded up to a power of two, 1 <<
 * persistent_rows_log. */
typedef struct {
    int row, tile;
    int column; /* in the tile: 0, 2, 4 or 6 */
} persistent_item;

static __device__ __forceinline__ int persistent_rows_log(int rows)
{
    return rows <= 16 ? 0 : rows <= 32 ? 1 : 2;
}
static __device__ __forceinline__ int persistent_items(const persistent_block *f, int rows)
{
    return f->tiles << (6 + persistent_rows_log(rows));
}
static __device__ __forceinline__ persistent_item persistent_item_of(int rows, int i)
{
    const int log = persistent_rows_log(rows), unit = i >> 6;
    persistent_item e;
    e.row = (unit & ((1 << log) - 1)) * 16 + (i & 1) * 8 + (i >> 3 & 7);
    e.tile = unit >> log;
    e.column = i & 6;
    return e;
}

/* Bias plus the partial sums of item i. */
static __device__ __forceinline__ float2 persistent_sum(const persistent_block *f, const persistent_item &e, int i,
                                                        int product)
{
    const float2 *part = (const float2 *)f->sums + (i >> 6) * (PERSISTENT_WARPS * 64) + (i & 63);
    float2 y = *(const float2 *)(f->bias + (product * f->tiles + e.tile) * 8 + e.column);
#pragma unroll
    for (int w = 0; w < PERSISTENT_WARPS; w++) {
        y.x += part[w * 64].x;
        y.y += part[w * 64].y;
    }
    return y;
}

/* Stores an item of the residual stream for this block and for the other blocks. */
static __device__ __forceinline__ void persistent_publish(const persistent_args &a, const persistent_block *f,
                                                          const persistent_item &e, int i, float2 x)
{
    f->x[i] = x;
    const int piece_column = f->first + e.tile;
    float4 *piece = a.x + persistent_piece4(a, e.row, piece_column >> 2, piece_column & 3) + (e.column >> 2) * 32;
    ((float2 *)piece)[e.column >> 1 & 1] = x;
}

/* --- products -------------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ float persistent_low(uint32_t two)
{
    return __uint_as_float(two << 16);
}
static __device__ __forceinline__ float persistent_high(uint32_t two)
{
    return __uint_as_float(two & 0xffff0000u);
}
static __device__ __forceinline__ uint32_t persistent_pack(float low, float high)
{
    return __bfloat16_as_ushort(__float2bfloat16(low)) | (uint32_t)__bfloat16_as_ushort(__float2bfloat16(high)) << 16;
}

/* The warp's partial sums of the tile of 16 rows number m with the block's columns. u has rows g and g + 8. */
template <int PAIRS>
static __device__ __forceinline__ void persistent_multiply(const persistent_args &a, const persistent_block *f,
                                                           const uint4 (&u)[2][PAIRS], int product, int rows, int m)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const uint4 *weight = persistent_slice<PAIRS>(a, f, product) + warp * PAIRS * 32 + lane;
    float4 *sums = (float4 *)f->sums + (m * PERSISTENT_WARPS + warp) * 32 + lane;
#pragma unroll 1
    for (int tile = 0; tile < f->tiles; tile++) {
        float even[4] = {0, 0, 0, 0}, odd[4] = {0, 0, 0, 0}; /* two sums hide the latency of a mma */
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            const uint4 w = weight[p * 32];
            const uint32_t a0[4] = {u[0][p].x, u[1][p].x, u[0][p].y, u[1][p].y}, b0[2] = {w.x, w.y};
            const uint32_t a1[4] = {u[0][p].z, u[1][p].z, u[0][p].w, u[1][p].w}, b1[2] = {w.z, w.w};
            fast::mma_bf16(even, a0, b0);
            fast::mma_bf16(odd, a1, b1);
        }
        *sums = make_float4(even[0] + odd[0], even[1] + odd[1], even[2] + odd[2], even[3] + odd[3]);
        weight += PAIRS * PERSISTENT_WARPS * 32;
        sums += (PERSISTENT_WARPS * 32) << persistent_rows_log(rows);
    }
}

/* u = the warp's channels of tile m of 16 rows; zero where there is no row or no channel. */
template <int PAIRS>
static __device__ __forceinline__ void persistent_load_operand(const persistent_args &a, const uint4 *from, int m,
                                                               int rows, uint4 (&u)[2][PAIRS])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = 16 * m + 8 * half + persistent_group();
        const uint4 *piece = from + persistent_piece(a, row, persistent_pair<PAIRS>(), persistent_t());
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            u[half][p] = make_uint4(0, 0, 0, 0);
            if (row < rows && persistent_pair<PAIRS>() + p < a.width / 32) u[half][p] = __ldcg(piece + p * 64);
        }
    }
}

/* The partial sums of a product whose operand is in global memory. */
template <int PAIRS>
static __device__ __forceinline__ void persistent_product(const persistent_args &a, const persistent_block *f,
                                                          const uint4 *from, int rows, int product)
{
    uint4 u[2][PAIRS], next[2][PAIRS];
    persistent_load_operand<PAIRS>(a, from, 0, rows, u);
#pragma unroll 1
    for (int m = 0; 16 * m < rows; m++) {
        persistent_load_operand<PAIRS>(a, from, m + 1, rows, next);
        persistent_multiply<PAIRS>(a, f, u, product, rows, m);
#pragma unroll
        for (int p = 0; p < PAIRS; p++) u[0][p] = next[0][p], u[1][p] = next[1][p];
    }
}

/* --- normalisation --------------------------------------------------------------------------------------------- */

/* Shift and scale of the thread's channels of a row; zero unless `some`. */
template <int PAIRS>
static __device__ __forceinline__ void persistent_load_mod(const persistent_args &a, const persistent_block *f, int row,
                                                           bool some, int block, uint4 (&shift)[PAIRS],
                                                           uint4 (&scale)[PAIRS])
{
    const bf16 *mod = some ? (const bf16 *)f->mod[row] + (size_t)(3 * block) * (size_t)a.width : NULL;
    const uint4 *at = (const uint4 *)mod + persistent_pair<PAIRS>() * 4 + persistent_t();
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        shift[p] = scale[p] = make_uint4(0, 0, 0, 0);
        if (some && persistent_pair<PAIRS>() + p < a.width / 32) {
            shift[p] = __ldcg(at + p * 4);
            scale[p] = __ldcg(at + a.width / 8 + p * 4);
        }
    }
}

/* The thread's channels of a row of the residual stream; zero unless `some`. */
template <int PAIRS>
static __device__ __forceinline__ void persistent_load_x(const persistent_args &a, int row, bool some,
                                                         float4 (&x)[PAIRS][2])
{
    const float4 *piece = a.x + persistent_piece4(a, row, persistent_pair<PAIRS>(), persistent_t());
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        x[p][0] = x[p][1] = make_float4(0, 0, 0, 0);
        if (some && persistent_pair<PAIRS>() + p < a.width / 32) {
            x[p][0] = __ldcg(piece + p * 128);
            x[p][1] = __ldcg(piece + p * 128 + 32);
        }
    }
}

/* f->moments[warp][slot] = sum, squared deviations from the mean, number and mean of the warp's channels of a row. Two
 * passes, because the mean of the residual stream can be far from zero. */
template <int PAIRS>
static __device__ __forceinline__ void persistent_measure(const persistent_args &a, const persistent_block *f,
                                                          const float4 (&x)[PAIRS][2], int slot)
{
    const int used = max(0, min(PAIRS, a.width / 32 - persistent_pair<PAIRS>())); /* pairs with channels */
    float sum = 0, squares = 0;
#pragma unroll
    for (int p = 0; p < PAIRS; p++)
#pragma unroll
        for (int j = 0; j < 2; j++) sum += (x[p][j].x + x[p][j].y) + (x[p][j].z + x[p][j].w);
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const float mean = used > 0 ? __fdividef(sum, 32.0f * (float)used) : 0;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        const float real = p < used ? 1 : 0;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float4 d = make_float4(x[p][j].x - mean, x[p][j].y - mean, x[p][j].z - mean, x[p][j].w - mean);
            squares += real * ((d.x * d.x + d.y * d.y) + (d.z * d.z + d.w * d.w));
        }
    }
    squares += __shfl_xor_sync(0xffffffffu, squares, 1);
    squares += __shfl_xor_sync(0xffffffffu, squares, 2);
    if (persistent_t() == 0)
        f->moments[threadIdx.x / 32 * 16 + (unsigned)slot] = make_float4(sum, squares, 32.0f * (float)used, mean);
}

/* Two channels: layer norm, then * (1 + scale) + shift. */
static __device__ __forceinline__ uint32_t persistent_modulate(float x0, float x1, float mean, float inv, float w0,
                                                               float w1, float b0, float b1, uint32_t shift,
                                                               uint32_t scale)
{
    const float y0 = ((x0 - mean) * inv * w0 + b0) * (1 + persistent_low(scale)) + persistent_low(shift);
    const float y1 = ((x1 - mean) * inv * w1 + b1) * (1 + persistent_high(scale)) + persistent_high(shift);
    return persistent_pack(y0, y1);
}

/* Normalises and modulates the thread's channels. The warps' moments are merged as in Chan, Golub and LeVeque. */
template <int PAIRS>
static __device__ __forceinline__ void
persistent_normalise(const persistent_args &a, const persistent_block *f, const float4 (&x)[PAIRS][2], int slot,
                     const uint4 (&shift)[PAIRS], const uint4 (&scale)[PAIRS], uint4 (&u)[PAIRS])
{
    float sum = 0, squares = 0;
#pragma unroll
    for (int w = 0; w < PERSISTENT_WARPS; w++) sum += f->moments[w * 16 + slot].x;
    const float mean = __fdividef(sum, (float)a.width); /* fast functions are enough: the result is rounded to bf16 */
#pragma unroll
    for (int w = 0; w < PERSISTENT_WARPS; w++) {
        const float4 part = f->moments[w * 16 + slot];
        squares += part.y + part.z * ((part.w - mean) * (part.w - mean));
    }
    const float variance = __fdividef(squares, (float)a.width);
    const float inv = variance <= FLT_MAX ? rsqrtf(variance + 1e-6f) : NAN; /* as cuda_inverse_deviation */
    const float4 *weight = (const float4 *)f->ln + persistent_pair<PAIRS>() * 8 + persistent_t() * 2;
    const float4 *bias = weight + PAIRS * PERSISTENT_WARPS * 8;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        const float4 x0 = x[p][0], x1 = x[p][1], w0 = weight[8 * p], w1 = weight[8 * p + 1];
        const float4 b0 = bias[8 * p], b1 = bias[8 * p + 1];
        u[p].x = persistent_modulate(x0.x, x0.y, mean, inv, w0.x, w0.y, b0.x, b0.y, shift[p].x, scale[p].x);
        u[p].y = persistent_modulate(x0.z, x0.w, mean, inv, w0.z, w0.w, b0.z, b0.w, shift[p].y, scale[p].y);
        u[p].z = persistent_modulate(x1.x, x1.y, mean, inv, w1.x, w1.y, b1.x, b1.y, shift[p].z, scale[p].z);
        u[p].w = persistent_modulate(x1.z, x1.w, mean, inv, w1.z, w1.w, b1.z, b1.w, shift[p].w, scale[p].w);
    }
}

/* Groups of 8 rows that a block can normalise itself for an fc1; registers are the limit. */
static __host__ __device__ constexpr int persistent_groups(int pairs)
{
    return pairs <= 4 ? 2 : 1;
}

/* The most rows that every block, or every cluster, normalises itself. An fc1 of so many rows needs no barrier of the
 * grid between layer norm and product. */
template <int PAIRS> static __device__ __forceinline__ int persistent_local_rows(const persistent_args &a)
{
    return 8 * persistent_groups(PAIRS) * a.cluster;
}

/* Exchanges normalised rows between the two blocks of a cluster. Of up to 16 rows each block has normalised 8, in u[0].
 * A thread swaps its channels with the thread of the same number in the other block; then u has all 16 rows.
 *
 * A barrier of the grid comes before each exchange: the other block has started and no longer reads its inbox when this
 * block writes there. The cluster's barrier comes after: no block has ended when another block writes to it. */
template <int PAIRS>
static __device__ __forceinline__ void persistent_exchange(const persistent_block *f, uint4 (&u)[2][PAIRS])
{
    const unsigned rank = fast::cluster_rank();
    uint4 *inbox = f->inbox + threadIdx.x;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) fast::cluster_store(inbox + p * PERSISTENT_THREADS, 1 - rank, u[0][p]);
    fast::cluster_sync();
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        const uint4 mine = u[0][p], other = inbox[p * PERSISTENT_THREADS];
        u[0][p] = rank == 0 ? mine : other;
        u[1][p] = rank == 0 ? other : mine;
    }
}

/* The partial sums of fc1 for at most persistent_local_rows rows. */
template <int PAIRS>
static __device__ __forceinline__ void persistent_local_fc1(const persistent_args &a, persistent_block *f, int block,
                                                            int rows)
{
    constexpr int groups = persistent_groups(PAIRS);
    const bool exchange = groups == 1 && rows > 8;
    const int row = persistent_group() + (exchange ? 8 * (int)fast::cluster_rank() : 0);
    uint4 shift[groups][PAIRS], scale[groups][PAIRS], u[2][PAIRS] = {};
    float4 x[groups][PAIRS][2];
#pragma unroll
    for (int g = 0; g < groups; g++)
        persistent_load_mod<PAIRS>(a, f, row + 8 * g, row + 8 * g < rows, block, shift[g], scale[g]);
    persistent_wait(a, f);
#pragma unroll
    for (int g = 0; g < groups; g++) persistent_load_x<PAIRS>(a, row + 8 * g, row + 8 * g < rows, x[g]);
#pragma unroll
    for (int g = 0; g < groups; g++)
        if (8 * g < rows) persistent_measure<PAIRS>(a, f, x[g], row + 8 * g);
    __syncthreads();
#pragma unroll
    for (int g = 0; g < groups; g++)
        if (8 * g < rows) persistent_normalise<PAIRS>(a, f, x[g], row + 8 * g, shift[g], scale[g], u[g]);
    if (exchange) persistent_exchange<PAIRS>(f, u);
    persistent_multiply<PAIRS>(a, f, u, 2 * block, rows, 0);
}

/* The same for more rows. They are distributed over the blocks and normalised once: the barrier that takes costs less
 * than for each block to read all rows. */
template <int PAIRS>
static __device__ __forceinline__ void persistent_divided_fc1(const persistent_args &a, persistent_block *f, int block,
                                                              int rows)
{
    const int each = (rows + (int)gridDim.x - 1) / (int)gridDim.x, first = (int)blockIdx.x * each;
    const int end = min(rows, first + each);
    int from = first;
    do {
        const int row = from + persistent_group();
        uint4 shift[PAIRS], scale[PAIRS], u[PAIRS];
        float4 x[PAIRS][2];
        persistent_load_mod<PAIRS>(a, f, row, row < end, block, shift, scale);
        if (from == first) persistent_wait(a, f);
        if (from >= end) break;
        persistent_load_x<PAIRS>(a, row, row < end, x);
        persistent_measure<PAIRS>(a, f, x, persistent_group());
        __syncthreads();
        persistent_normalise<PAIRS>(a, f, x, persistent_group(), shift, scale, u);
        uint4 *piece = a.u + persistent_piece(a, row, persistent_pair<PAIRS>(), persistent_t());
#pragma unroll
        for (int p = 0; p < PAIRS; p++)
            if (row < end && persistent_pair<PAIRS>() + p < a.width / 32) piece[p * 64] = u[p];
        __syncthreads();
        from += 8;
    } while (from < end);
    persistent_arrive(a, f);
    persistent_wait(a, f);
    persistent_product<PAIRS>(a, f, a.u, rows, 2 * block);
}

/* --- the layers ------------------------------------------------------------------------------------------------ */

/* x = the input projection of the state, in f32: the state must not be rounded (kernels/cpu/head.c). */
static __device__ __forceinline__ void persistent_in(const persistent_args &a, persistent_block *f, int rows,
                                                     int states)
{
    const int n = persistent_items(f, rows);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < n; i += PERSISTENT_THREADS) {
        const persistent_item e = persistent_item_of(rows, i);
        if (e.row >= rows) continue;
        const float *state = f->state + (e.row < states ? e.row : e.row - states) * a.channels;
        const float *w0 = f->in + (8 * e.tile + e.column) * (a.channels + 1), *w1 = w0 + a.channels + 1;
        float2 x = make_float2(w0[a.channels], w1[a.channels]);
#pragma unroll 4
        for (int c = 0; c < a.channels; c++) {
            x.x += state[c] * w0[c];
            x.y += state[c] * w1[c];
        }
        persistent_publish(a, f, e, i, x);
    }
}

static __device__ __forceinline__ float persistent_silu(float x)
{
    return __fdividef(x, 1 + __expf(-x));
}

/* v = silu(fc1) */
template <int PAIRS>
static __device__ __forceinline__ void persistent_fc1(const persistent_args &a, persistent_block *f, int block,
                                                      int rows)
{
    if (rows <= persistent_local_rows<PAIRS>(a))
        persistent_local_fc1<PAIRS>(a, f, block, rows);
    else
        persistent_divided_fc1<PAIRS>(a, f, block, rows);
    __syncthreads();
    const int n = persistent_items(f, rows);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < n; i += PERSISTENT_THREADS) {
        const persistent_item e = persistent_item_of(rows, i);
        if (e.row >= rows) continue;
        const float2 y = persistent_sum(f, e, i, 2 * block);
        const int piece_column = f->first + e.tile;
        uint32_t *piece = (uint32_t *)(a.v + persistent_piece(a, e.row, piece_column >> 2, piece_column & 3));
        piece[e.column >> 1] = persistent_pack(persistent_silu(y.x), persistent_silu(y.y));
    }
}

/* The gates of the two columns of item i, packed. */
static __device__ __forceinline__ uint32_t persistent_gate(const persistent_args &a, const persistent_block *f,
                                                           int block, int rows, int i)
{
    if (i >= persistent_items(f, rows)) return 0;
    const persistent_item e = persistent_item_of(rows, i);
    if (e.row >= rows) return 0;
    const bf16 *gate = (const bf16 *)f->mod[e.row] + (size_t)(3 * block + 2) * (size_t)a.width;
    return __ldcg((const unsigned *)(gate + 8 * (f->first + e.tile) + e.column));
}

/* x += gate * fc2 */
template <int PAIRS>
static __device__ __forceinline__ void persistent_fc2(const persistent_args &a, persistent_block *f, int block,
                                                      int rows)
{
    uint32_t gate = persistent_gate(a, f, block, rows, (int)threadIdx.x);
    persistent_wait(a, f);
    persistent_product<PAIRS>(a, f, a.v, rows, 2 * block + 1);
    __syncthreads();
    const int n = persistent_items(f, rows);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < n; i += PERSISTENT_THREADS) {
        const persistent_item e = persistent_item_of(rows, i);
        if (e.row < rows) {
            const float2 y = persistent_sum(f, e, i, 2 * block + 1), x = f->x[i];
            persistent_publish(a, f, e, i,
                               make_float2(x.x + persistent_low(gate) * y.x, x.y + persistent_high(gate) * y.y));
        }
        gate = persistent_gate(a, f, block, rows, i + PERSISTENT_THREADS);
    }
}

/* Sum of x over the block's threads. `part` [PERSISTENT_WARPS] may be used once between two barriers. */
static __device__ __forceinline__ float persistent_block_sum(float x, float *part)
{
    x = cuda_warp_sum(x);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int w = 0; w < PERSISTENT_WARPS; w++) sum += part[w];
    return sum;
}

static __device__ __forceinline__ float persistent_dot(const float4 &x, const float4 &y)
{
    return (x.x * y.x + x.y * y.y) + (x.z * y.z + x.w * y.w);
}

enum {
    PERSISTENT_VECTORS =
        PERSISTENT_PAIRS * PERSISTENT_WARPS * 32 / 4 / PERSISTENT_THREADS + 1, /* float4s of a row that a thread has */
    PERSISTENT_BATCH = 4,                                                      /* outputs at a time */
};

/* The thread's vectors of rows from, from + 1, ... of out_weight; zero from row `end` on. */
static __device__ __forceinline__ void persistent_load_outputs(const persistent_args &a, int from, int end,
                                                               float4 (&weight)[PERSISTENT_BATCH][PERSISTENT_VECTORS])
{
#pragma unroll
    for (int o = 0; o < PERSISTENT_BATCH; o++)
#pragma unroll
        for (int i = 0; i < PERSISTENT_VECTORS; i++) {
            const int vector = (int)threadIdx.x + i * PERSISTENT_THREADS;
            weight[o][i] = make_float4(0, 0, 0, 0);
            if (from + o < end && vector < a.width / 4)
                weight[o][i] = __ldg((const float4 *)(a.out_weight + (size_t)(from + o) * (size_t)a.width) + vector);
        }
}

/* Outputs from .. end - 1 of a row whose normalised input is u. bias is that of the thread's output, from +
 * threadIdx.x.
 */
static __device__ __forceinline__ void persistent_outputs(const persistent_args &a, const persistent_block *f, int row,
                                                          int from, int end, float bias,
                                                          const float4 (&u)[PERSISTENT_VECTORS],
                                                          float4 (&weight)[PERSISTENT_BATCH][PERSISTENT_VECTORS])
{
    float *part = f->sums + 2 * PERSISTENT_WARPS;
#pragma unroll 1
    for (int first = from; first < end; first += PERSISTENT_BATCH) {
#pragma unroll
        for (int o = 0; o < PERSISTENT_BATCH; o++) {
            float sum = 0;
#pragma unroll
            for (int i = 0; i < PERSISTENT_VECTORS; i++) sum += persistent_dot(u[i], weight[o][i]);
            sum = cuda_warp_sum(sum);
            if (threadIdx.x % 32 == 0 && first + o < end)
                part[(first + o - from) * PERSISTENT_WARPS + (int)threadIdx.x / 32] = sum;
        }
        persistent_load_outputs(a, first + PERSISTENT_BATCH, end, weight);
    }
    __syncthreads();
    const int o = (int)threadIdx.x;
    if (o >= end - from) return;
#pragma unroll
    for (int w = 0; w < PERSISTENT_WARPS; w++) bias += part[o * PERSISTENT_WARPS + w];
    a.out[row * 2 * a.channels + from + o] = bias;
}

/* The final layer, in f32. A unit of work is a part of a row's outputs; a row has as many parts as keep all blocks
 * busy. Each block normalises the row of its unit. */
static __device__ __forceinline__ void persistent_out(const persistent_args &a, persistent_block *f, int rows)
{
    const int outputs = 2 * a.channels, vectors = a.width / 4;
    const int most = max(1, min(outputs, (int)gridDim.x / rows)), each = (outputs + most - 1) / most;
    const int parts = (outputs + each - 1) / each, units = rows * parts;
    int unit = (int)blockIdx.x;
    do {
        const bool some = unit < units;
        const int row = unit / parts, from = unit % parts * each, end = some ? min(outputs, from + each) : 0;
        float4 shift[PERSISTENT_VECTORS], scale[PERSISTENT_VECTORS], weight[PERSISTENT_BATCH][PERSISTENT_VECTORS],
            x[PERSISTENT_VECTORS];
        persistent_load_outputs(a, from, end, weight);
        const float bias = (int)threadIdx.x < end - from ? __ldg(a.out_bias + from + threadIdx.x) : 0;
#pragma unroll
        for (int i = 0; i < PERSISTENT_VECTORS; i++) {
            const int vector = (int)threadIdx.x + i * PERSISTENT_THREADS;
            shift[i] = scale[i] = x[i] = make_float4(0, 0, 0, 0);
            if (!some || vector >= vectors) continue;
            const float4 *mod = (const float4 *)(f->mod[row] + a.mod_final);
            shift[i] = __ldcg(mod + vector);
            scale[i] = __ldcg(mod + vectors + vector);
        }
        if (unit == (int)blockIdx.x) persistent_wait(a, f);
        if (some) {
            float sum = 0, squares = 0;
#pragma unroll
            for (int i = 0; i < PERSISTENT_VECTORS; i++) {
                const int vector = (int)threadIdx.x + i * PERSISTENT_THREADS;
                if (vector < vectors)
                    x[i] = __ldcg(a.x + persistent_piece4(a, row, vector >> 3, vector >> 1 & 3) + (vector & 1) * 32);
                sum += (x[i].x + x[i].y) + (x[i].z + x[i].w);
            }
            const float mean = persistent_block_sum(sum, f->sums) / (float)a.width;
#pragma unroll
            for (int i = 0; i < PERSISTENT_VECTORS; i++) {
                if ((int)threadIdx.x + i * PERSISTENT_THREADS >= vectors) continue;
                x[i] = make_float4(x[i].x - mean, x[i].y - mean, x[i].z - mean, x[i].w - mean);
                squares += persistent_dot(x[i], x[i]);
            }
            const float inv = cuda_inverse_deviation(
                persistent_block_sum(squares, f->sums + PERSISTENT_WARPS) / (float)a.width, 1e-6f);
#pragma unroll
            for (int i = 0; i < PERSISTENT_VECTORS; i++) {
                x[i].x = x[i].x * inv * (1 + scale[i].x) + shift[i].x;
                x[i].y = x[i].y * inv * (1 + scale[i].y) + shift[i].y;
                x[i].z = x[i].z * inv * (1 + scale[i].z) + shift[i].z;
                x[i].w = x[i].w * inv * (1 + scale[i].w) + shift[i].w;
            }
            persistent_outputs(a, f, row, from, end, bias, x, weight);
            __syncthreads();
        }
        unit += (int)gridDim.x;
    } while (unit < units);
}

/* a.out[r] = net(f->state[r < states ? r : r - states]; f->mod[r]), complete when the next persistent_wait returns. It
 * takes 2*depth + 2 barriers including that one, and `depth` more with more than persistent_local_rows rows. */
template <int PAIRS>
static __device__ __forceinline__ void persistent_evaluate(const persistent_args &a, persistent_block *f, int rows,
                                                           int states)
{
    persistent_in(a, f, rows, states);
    persistent_arrive(a, f);
    for (int b = 0; b < a.depth; b++) {
        persistent_fc1<PAIRS>(a, f, b, rows);
        persistent_arrive(a, f);
        persistent_request<PAIRS>(a, f, b + 1 < a.depth ? 2 * b + 2 : 0);
        persistent_fc2<PAIRS>(a, f, b, rows);
        persistent_arrive(a, f);
        persistent_request<PAIRS>(a, f, b + 1 < a.depth ? 2 * b + 3 : 1);
    }
    persistent_out(a, f, rows);
    persistent_arrive(a, f);
}

#endif

#endif
