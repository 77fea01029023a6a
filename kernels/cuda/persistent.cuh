/* The head for a few rows as a device function of a kernel that stays on the GPU: all blocks of the grid evaluate it
 * together, meeting at barriers in global memory, with the weights in shared memory. Kernels around it: the chain
 * (persistent.cu), and speculation inside the head (speculation.cu). Such a kernel is
 *
 *     template <int PAIRS> static __global__ void __launch_bounds__(PERSISTENT_THREADS, 1) k(persistent_args a, my_args
 * m)
 *     {
 *         persistent_block f;
 *         persistent_begin<PAIRS>(a, &f);
 *         for (...) {
 *             ... f.state [states][C] and f.mod [rows] are filled, by every block for itself; __syncthreads();
 *             persistent_evaluate<PAIRS>(a, &f, rows, states);
 *             ... what needs no answer yet
 *             persistent_wait(a, &f);
 *             ... a.out [rows][2C] is the answer, to be read by __ldcg
 *         }
 *         persistent_end();
 *     }
 *
 * launched by persistent_launch. All threads of all blocks call each of these functions, the same number of times.
 *
 * Columns. A product's output columns are dealt to the blocks in tiles of 8, the n of mma.m16n8k16. A block's columns
 * are the same in every product, so that it keeps its columns of the residual stream. The sum over k is split over the
 * 8 warps and put together in a fixed order. No row has an influence on another, nor has their number.
 *
 * Pieces. The 16 values of k of a mma may be taken in any order that both operands share. Two mmas cover 32 channels,
 * of which thread t of a group of four owns 8t to 8t + 7: then the fragments of both operands are 16-byte pieces of
 * bf16 rows. Operands lie in pieces, [tile of 16 rows][32 channels][half of the rows][lane], of which a lane loads its
 * own; the residual stream likewise in two pieces of 4 floats each.
 *
 * Clusters. Where the device has them, the blocks of a wide head come in pairs that write into each other's shared
 * memory: see persistent_exchange. */
#ifndef KERNELS_CUDA_PERSISTENT_CUH
#define KERNELS_CUDA_PERSISTENT_CUH

#include "kernels/cuda/head.h"
#include "kernels/cuda/ptx.h"

enum {
    PERSISTENT_THREADS = 256,
    PERSISTENT_WARPS = PERSISTENT_THREADS / 32,
    PERSISTENT_PAIRS = 6,     /* pairs of mmas of a warp at most, so that a block's input stays in registers */
    PERSISTENT_CHANNELS = 32, /* of a token at most */
    PERSISTENT_TILES = 8,     /* of a block at most */
};

/* All on the device. A product is a block's fc1 or fc2: number 2b or 2b + 1. */
typedef struct {
    int width, depth, channels;
    int tiles;                          /* of a block; of the last one maybe fewer */
    int cluster;                        /* blocks in one: 1, or 2 where persistent_groups is 1 */
    int resident;                       /* products whose weights stay in shared memory, the first ones */
    size_t mod_bytes, mod_final;        /* of a modulation row, and where its final part starts */
    const uint4 *weights;               /* [2*depth][W/8][pairs][32] pieces: row 8*tile + lane/4, k as above */
    const float *bias;                  /* [2*depth][W] */
    const float *ln;                    /* [depth][2][W] weight, bias */
    const float *in, *in_bias;          /* [W][C], [W] */
    const float *out_weight, *out_bias; /* [2C][W], [2C] */
    float4 *x;                          /* [PERSISTENT_ROWS][W] the residual stream */
    uint4 *u, *v;                       /* [PERSISTENT_ROWS][W] operands of fc1 and fc2 */
    float *out;                         /* [PERSISTENT_ROWS][2C] */
    float *history;     /* [blocks][PERSISTENT_ROWS][C] x0 of the solver's step before, each block's own */
    unsigned *arrivals; /* arrivals at barriers since the launch */
} persistent_args;

/* What a thread knows of its block's part. */
typedef struct {
    int first, tiles; /* its tiles */
    unsigned target;  /* arrivals at the next barrier */
    uint4 *weights;   /* [slices][tiles][pairs][32] */
    float *sums;      /* [tiles][tiles of 16 rows][PERSISTENT_WARPS][16*8] partial sums, as in the accumulators */
    uint4 *inbox;    /* [pairs][PERSISTENT_THREADS] in a cluster, behind the sums of 16 rows: see persistent_exchange */
    float4 *moments; /* [PERSISTENT_WARPS][16] of a row, of a warp's channels: see persistent_measure */
    float *ln;       /* [2][pairs*32] of the block at hand; zero behind the width */
    float2 *x;       /* [tiles][tiles of 16 rows][64] the block's columns of the residual stream */
    float *bias;     /* [2*depth][8*tiles] */
    float *in;       /* [8*tiles][C + 1] weights, bias */
    float *state;    /* [PERSISTENT_ROWS][C] */
    const unsigned char **mod; /* [PERSISTENT_ROWS] modulation rows */
} persistent_block;

/* Lays the block's shared memory out and tells its size. */
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
    f->inbox = (uint4 *)(p + sums); /* two tiles a block or more, and it fits where more rows have their sums */
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

struct persistent_head {
    persistent_args args;
    int pairs; /* of a warp: which of a kernel's forms to launch */
    unsigned blocks;
    size_t shared_bytes;
    void *streamed; /* the weights that do not stay in shared memory; the last ones, as far as a window of L2 reaches */
    size_t streamed_bytes;
    float kept_in_l2; /* what share of them has a place of its own in the L2 cache */
    void *weights, *floats, *memory;
};

static inline cudaLaunchAttribute persistent_cluster(const persistent_head *f)
{
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = (unsigned)f->args.cluster;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    return cluster;
}
static inline cudaLaunchAttribute persistent_l2_policy(const persistent_head *f)
{
    cudaLaunchAttribute window = {};
    window.id = cudaLaunchAttributeAccessPolicyWindow;
    window.val.accessPolicyWindow.base_ptr = f->streamed;
    window.val.accessPolicyWindow.num_bytes = f->streamed_bytes;
    window.val.accessPolicyWindow.hitRatio = f->kept_in_l2;
    window.val.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
    window.val.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
    return window;
}

/* All blocks of form(args, extra) at once. The kernel's limit of shared memory must have been raised. */
template <typename E>
static inline cudaError_t persistent_start(const cuda_kern *c, const persistent_head *f,
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
    return cudaLaunchKernelEx(&config, form, f->args, extra);
}

/* Launches kernel[pairs - 1](args, extra). */
template <typename E>
static inline void persistent_launch(cuda_kern *c, const persistent_head *f,
                                     void (*const kernel[PERSISTENT_PAIRS])(persistent_args, E), E extra)
{
    if (!cuda_live(c)) return;
    void (*const form)(persistent_args, E) = kernel[f->pairs - 1];
    /* The limit is the function's, that is of all heads and graphs with this form: always the same. */
    if (cuda_ok(c, cudaFuncSetAttribute(form, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)c->shared_bytes),
                "preparing the head's kernel") &&
        cuda_ok(c, cudaMemsetAsync(f->args.arrivals, 0, sizeof *f->args.arrivals, c->stream),
                "preparing the head's kernel"))
        cuda_ok(c, persistent_start(c, f, form, extra), "launching the head's kernel");
}

#if defined(__CUDACC__) || defined(MAR_CUDAHOST)

/* Loops of a number of turns unknown here are not unrolled: the kernel has to stay in the instruction cache. */

/* --- barriers -------------------------------------------------------------------------------------------------- */

/* The block's part before this is done. */
static __device__ __forceinline__ void persistent_arrive(const persistent_args &a, persistent_block *f)
{
    f->target += gridDim.x;
    __syncthreads();
    if (threadIdx.x == 0) fast::grid_arrive(a.arrivals);
}

/* Waits for that of all blocks, and for the weights requested one product ago. */
static __device__ __forceinline__ void persistent_wait(const persistent_args &a, persistent_block *f)
{
    fast::copy_wait<1>();
    if (threadIdx.x == 0) fast::grid_wait(a.arrivals, f->target);
    __syncthreads();
}

/* --- weights --------------------------------------------------------------------------------------------------- */

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

/* Requests what the product needs, in the places of the one two before: to be called when that is done with. */
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

/* First of all: the weights that stay, and the first requests. */
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

/* Last of all. */
static __device__ __forceinline__ void persistent_end()
{
    fast::copy_wait<0>();
}

/* --- rows and columns ------------------------------------------------------------------------------------------ */

/* Where the channels 32*pair + 8*t.. of a row stand: in pieces of 8, and the first of the two pieces of 4, that are 32
 * apart. */
static __device__ __forceinline__ int persistent_piece(const persistent_args &a, int row, int pair, int t)
{
    return ((row >> 4) * (a.width / 32) + pair) * 64 + (row >> 3 & 1) * 32 + (row & 7) * 4 + t;
}
static __device__ __forceinline__ int persistent_piece4(const persistent_args &a, int row, int pair, int t)
{
    return ((row >> 4) * (a.width / 32) + pair) * 128 + (row >> 3 & 1) * 64 + (row & 7) * 4 + t;
}

/* The thread's row of 8, its t, and its warp's first pair of mmas. */
static __device__ __forceinline__ int persistent_group()
{
    return (int)(threadIdx.x % 32 / 4);
}
static __device__ __forceinline__ int persistent_t()
{
    return (int)(threadIdx.x % 4);
}
template <int PAIRS> static __device__ __forceinline__ int persistent_pair()
{
    return (int)(threadIdx.x / 32) * PAIRS;
}

/* Two neighbouring columns of a row of the block: what a thread puts together from the warps' sums. Item i is of the
 * thread i % PERSISTENT_THREADS in all products. Tiles of 16 rows are counted in powers of two, 1 <<
 * persistent_rows_log. */
typedef struct {
    int row, tile, column; /* column of the tile: 0, 2, 4, 6 */
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

/* Keeps an item's residual stream and shows it to the other blocks. */
static __device__ __forceinline__ void persistent_publish(const persistent_args &a, const persistent_block *f,
                                                          const persistent_item &e, int i, float2 x)
{
    f->x[i] = x;
    const int octet = f->first + e.tile;
    float4 *piece = a.x + persistent_piece4(a, e.row, octet >> 2, octet & 3) + (e.column >> 2) * 32;
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

/* The warp's part of the product of 16 rows, number m, with the block's columns: u holds rows g and g + 8. */
template <int PAIRS>
static __device__ __forceinline__ void persistent_multiply(const persistent_args &a, const persistent_block *f,
                                                           const uint4 (&u)[2][PAIRS], int product, int rows, int m)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const uint4 *weight = persistent_slice<PAIRS>(a, f, product) + warp * PAIRS * 32 + lane;
    float4 *sums = (float4 *)f->sums + (m * PERSISTENT_WARPS + warp) * 32 + lane;
#pragma unroll 1
    for (int tile = 0; tile < f->tiles; tile++) {
        float even[4] = {0, 0, 0, 0}, odd[4] = {0, 0, 0, 0}; /* two sums: a mma waits long for the one before */
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

/* The product of an operand in global memory. */
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

/* Shift and scale of a row for the thread's channels; zero if not `some`. */
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

/* The thread's channels of a row of the residual stream; zero if not `some`. */
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

/* Sum, squared deviations from the mean, number and mean of the warp's channels of a row, to f->moments[warp][slot].
 * Two passes, as the residual stream can have a mean far from zero. */
template <int PAIRS>
static __device__ __forceinline__ void persistent_measure(const persistent_args &a, const persistent_block *f,
                                                          const float4 (&x)[PAIRS][2], int slot)
{
    const int share = max(0, min(PAIRS, a.width / 32 - persistent_pair<PAIRS>())); /* pairs with channels */
    float sum = 0, squares = 0;
#pragma unroll
    for (int p = 0; p < PAIRS; p++)
#pragma unroll
        for (int j = 0; j < 2; j++) sum += (x[p][j].x + x[p][j].y) + (x[p][j].z + x[p][j].w);
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const float mean = share > 0 ? __fdividef(sum, 32.0f * (float)share) : 0;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        const float real = p < share ? 1 : 0;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float4 d = make_float4(x[p][j].x - mean, x[p][j].y - mean, x[p][j].z - mean, x[p][j].w - mean);
            squares += real * ((d.x * d.x + d.y * d.y) + (d.z * d.z + d.w * d.w));
        }
    }
    squares += __shfl_xor_sync(0xffffffffu, squares, 1);
    squares += __shfl_xor_sync(0xffffffffu, squares, 2);
    if (persistent_t() == 0)
        f->moments[threadIdx.x / 32 * 16 + (unsigned)slot] = make_float4(sum, squares, 32.0f * (float)share, mean);
}

static __device__ __forceinline__ uint32_t persistent_modulate(float x0, float x1, float mean, float inv, float w0,
                                                               float w1, float b0, float b1, uint32_t shift,
                                                               uint32_t scale)
{
    const float y0 = ((x0 - mean) * inv * w0 + b0) * (1 + persistent_low(scale)) + persistent_low(shift);
    const float y1 = ((x1 - mean) * inv * w1 + b1) * (1 + persistent_high(scale)) + persistent_high(shift);
    return persistent_pack(y0, y1);
}

/* Normalises and modulates the thread's channels, from the warps' moments (merged as in Chan, Golub and LeVeque). */
template <int PAIRS>
static __device__ __forceinline__ void
persistent_normalise(const persistent_args &a, const persistent_block *f, const float4 (&x)[PAIRS][2], int slot,
                     const uint4 (&shift)[PAIRS], const uint4 (&scale)[PAIRS], uint4 (&u)[PAIRS])
{
    float sum = 0, squares = 0;
#pragma unroll
    for (int w = 0; w < PERSISTENT_WARPS; w++) sum += f->moments[w * 16 + slot].x;
    const float mean = __fdividef(sum, (float)a.width); /* fast functions where a bf16 is what comes of it */
#pragma unroll
    for (int w = 0; w < PERSISTENT_WARPS; w++) {
        const float4 part = f->moments[w * 16 + slot];
        squares += part.y + part.z * ((part.w - mean) * (part.w - mean));
    }
    const float inv = rsqrtf(__fdividef(squares, (float)a.width) + 1e-6f);
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

/* Groups of 8 rows that a block normalises for a fc1, as many as registers allow. */
static __host__ __device__ constexpr int persistent_groups(int pairs)
{
    return pairs <= 4 ? 2 : 1;
}

/* Rows up to which that is enough, in each block or in each cluster: no barrier of the grid inside a fc1. */
template <int PAIRS> static __device__ __forceinline__ int persistent_local_rows(const persistent_args &a)
{
    return 8 * persistent_groups(PAIRS) * a.cluster;
}

/* Of up to 16 rows a block has normalised 8, and its cluster's other block the other 8, whose channels of this thread
 * are with the thread of the same number there: they trade. u[0] holds the block's 8; in the end u holds all.
 *
 * A barrier of the grid lies before each turn: the other block has begun, and is done with its inbox, whatever it kept
 * there last, when this one writes. The cluster's own lies behind: no block has ended when another writes to it. */
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

/* fc1 of so few rows. */
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

/* More rows are dealt to the blocks and normalised once: a barrier costs less than reading all of them in each. */
template <int PAIRS>
static __device__ __forceinline__ void persistent_divided_fc1(const persistent_args &a, persistent_block *f, int block,
                                                              int rows)
{
    const int share = (rows + (int)gridDim.x - 1) / (int)gridDim.x, first = (int)blockIdx.x * share;
    const int end = min(rows, first + share);
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

/* x = in-projection, f32: the state enters exactly (kernels/cpu/head.c). */
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
        const int octet = f->first + e.tile;
        uint32_t *piece = (uint32_t *)(a.v + persistent_piece(a, e.row, octet >> 2, octet & 3));
        piece[e.column >> 1] = persistent_pack(persistent_silu(y.x), persistent_silu(y.y));
    }
}

/* The two gates of item i. */
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

/* Sum over the block of each thread's x; `part` [PERSISTENT_WARPS] is used once between two barriers. */
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
        PERSISTENT_PAIRS * PERSISTENT_WARPS * 32 / 4 / PERSISTENT_THREADS + 1, /* of a row, of a thread */
    PERSISTENT_BATCH = 4,                                                      /* outputs at a time */
};

/* The thread's quads of rows of out_weight from `from` on; zero behind `end`. */
static __device__ __forceinline__ void persistent_load_outputs(const persistent_args &a, int from, int end,
                                                               float4 (&weight)[PERSISTENT_BATCH][PERSISTENT_VECTORS])
{
#pragma unroll
    for (int o = 0; o < PERSISTENT_BATCH; o++)
#pragma unroll
        for (int i = 0; i < PERSISTENT_VECTORS; i++) {
            const int quad = (int)threadIdx.x + i * PERSISTENT_THREADS;
            weight[o][i] = make_float4(0, 0, 0, 0);
            if (from + o < end && quad < a.width / 4)
                weight[o][i] = __ldg((const float4 *)(a.out_weight + (size_t)(from + o) * (size_t)a.width) + quad);
        }
}

/* Outputs from..end of a row whose normalised input is u; bias: that of the thread's output, from + threadIdx.x. */
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

/* The final layer, f32. Dealt out in units, a row's outputs in as many parts as make use of all blocks; each block
 * normalises the row of its unit. */
static __device__ __forceinline__ void persistent_out(const persistent_args &a, persistent_block *f, int rows)
{
    const int outputs = 2 * a.channels, quads = a.width / 4;
    const int most = max(1, min(outputs, (int)gridDim.x / rows)), share = (outputs + most - 1) / most;
    const int parts = (outputs + share - 1) / share, units = rows * parts;
    int unit = (int)blockIdx.x;
    do {
        const bool some = unit < units;
        const int row = unit / parts, from = unit % parts * share, end = some ? min(outputs, from + share) : 0;
        float4 shift[PERSISTENT_VECTORS], scale[PERSISTENT_VECTORS], weight[PERSISTENT_BATCH][PERSISTENT_VECTORS],
            x[PERSISTENT_VECTORS];
        persistent_load_outputs(a, from, end, weight);
        const float bias = (int)threadIdx.x < end - from ? __ldg(a.out_bias + from + threadIdx.x) : 0;
#pragma unroll
        for (int i = 0; i < PERSISTENT_VECTORS; i++) {
            const int quad = (int)threadIdx.x + i * PERSISTENT_THREADS;
            shift[i] = scale[i] = x[i] = make_float4(0, 0, 0, 0);
            if (!some || quad >= quads) continue;
            const float4 *mod = (const float4 *)(f->mod[row] + a.mod_final);
            shift[i] = __ldcg(mod + quad);
            scale[i] = __ldcg(mod + quads + quad);
        }
        if (unit == (int)blockIdx.x) persistent_wait(a, f);
        if (some) {
            float sum = 0, squares = 0;
#pragma unroll
            for (int i = 0; i < PERSISTENT_VECTORS; i++) {
                const int quad = (int)threadIdx.x + i * PERSISTENT_THREADS;
                if (quad < quads)
                    x[i] = __ldcg(a.x + persistent_piece4(a, row, quad >> 3, quad >> 1 & 3) + (quad & 1) * 32);
                sum += (x[i].x + x[i].y) + (x[i].z + x[i].w);
            }
            const float mean = persistent_block_sum(sum, f->sums) / (float)a.width;
#pragma unroll
            for (int i = 0; i < PERSISTENT_VECTORS; i++) {
                if ((int)threadIdx.x + i * PERSISTENT_THREADS >= quads) continue;
                x[i] = make_float4(x[i].x - mean, x[i].y - mean, x[i].z - mean, x[i].w - mean);
                squares += persistent_dot(x[i], x[i]);
            }
            const float inv =
                1 / sqrtf(persistent_block_sum(squares, f->sums + PERSISTENT_WARPS) / (float)a.width + 1e-6f);
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

/* a.out[r] = net(f->state[r < states ? r : r - states]; f->mod[r]), once persistent_wait has returned. 2*depth + 2
 * barriers with that one, and `depth` more above persistent_local_rows rows. */
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
