/* Products with what stands before and behind them in a transformer, the second form of linear.cu's and rows.cu's on
 * GPUs of compute capability 9.0, chosen when a device is opened (MAR_CUDA_PRODUCTS, docs/gpu.md):
 * y = activation(norm(x) W^T + bias), SwiGLU of both halves of that, or y += norm(x) W^T + bias.
 *
 * A norm is in the weights (weights.cu): they are multiplied by the norm's, its bias times them is in the bias, and
 * with LayerNorm each row of them has the mean 0. Then W x = W (x - mean), and of the norm only 1 / deviation is left,
 * which multiplies the sums. So the operand is x itself, in bf16, which the product before leaves beside its f32 sums,
 * and the deviation comes from operands that are in registers for the product. x - mean loses as many digits as the
 * mean is larger than the deviation; in a residual stream it is smaller.
 *
 * A block has a tile of 128 rows and some columns. One thread starts the copies of x and weights to a ring of stages in
 * shared memory (hopper.h); the first weights are on their way, and the others in the L2, before the kernel before has
 * ended (programmatic dependent launch), so two blocks of consecutive kernels fit in a multiprocessor. Blocks of a
 * cluster that need the same weights or rows of x read a share of them each, for all. Two warpgroups have 64 rows each:
 * a warp loads its 16 rows of x into registers while the other warpgroup multiplies (wgmma).
 *
 * Where tiles are few, blocks of a cluster have parts of the inputs. At the end they send each other sums, so that each
 * has all parts of some rows, and adds them in the order of the parts: bits do not depend on time. Blocks of a cluster
 * start together, so none waits for one that does not run. */
#include "kernels/cuda/hopper.h"
#include "kernels/cuda/linear.h"

extern "C" {
#include "base/printable.h"
}

#include <limits.h>
#include <stdio.h>

enum {
    DEPTH = TILE_WIDTH, /* inputs of a stage */
    ROWS = 128,         /* of a block */
    WARPS = ROWS / 16,  /* in two warpgroups */
    THREADS = 32 * WARPS,
    MOST_BLOCKS = 8, /* of a cluster, that every GPU with clusters accepts */
    FEW_ROWS = 1024, /* with 1: rows up to which these are used */
};

/* A call, on the device. */
typedef struct {
    CUtensorMap x_map, weight_map; /* of x [rows][in] and weights [out][in]: boxes are a block's share of a stage */
    int rows, in, out, y_stride;   /* out: rows of weights, twice y's if gated */
    int gated, y_f32, add;
    int measured, centred; /* measured: sums are divided by the deviation of x; centred: from the mean, not from 0 */
    kern_activation activation;
    float eps;
    int parts, down, across; /* blocks of a cluster: parts of the inputs, tiles of rows, tiles of columns */
    int steps, cluster_rows; /* stages of a part; clusters one below the other */
    const void *bias;        /* of y's type, or NULL */
    void *y;
    bf16 *rounded; /* y [rows][out] as operands, or NULL */
} product_call;

/* The block's share of the copies of a stage: two pieces of weights, for the cluster's blocks above and below it, and
 * rows of x, for those beside it. */
typedef struct {
    int column[2], channel[2]; /* first of a piece: of the tile, and row of weights */
    int first, row;            /* first row of x: of the tile, and of x */
    unsigned above, beside;    /* ranks of the blocks, as bits */
    int input;                 /* first of the part */
} product_share;

template <int OF_A_BLOCK, int COPIES> struct product_form {
    enum {
        COLUMNS = OF_A_BLOCK,
        STAGES = COPIES,
        SUMS = COLUMNS + 8, /* floats from one row of sums to the next: stores have no conflicts */
    };
    /* A block's shared memory. Sums take the place of stages: of each part its rows of this block. */
    union {
        struct {
            bf16 x[ROWS][DEPTH], weight[COLUMNS][DEPTH];
        } stage[STAGES];
        float sum[ROWS][SUMS];
    };
    float2 moment[ROWS]; /* sum and sum of squares, likewise; then 1 / deviation */
    float bias[COLUMNS];
    product_share share;
    uint64_t full[STAGES], empty[STAGES]; /* barriers: a stage has come; all blocks that it goes to have read it */
};

#if CUDA_HOPPER
/* A block's place: its part, and its tile; the latter in its cluster and in y. */
typedef struct {
    int part, down, across;
    int row_tile, column_tile;
} product_place;

static __device__ inline product_place product_find_place(const product_call &p)
{
    const int blocks = p.parts * p.down * p.across, rank = (int)blockIdx.x % blocks, cluster = (int)blockIdx.x / blocks;
    product_place b;
    b.part = rank % p.parts, b.down = rank / p.parts % p.down, b.across = rank / p.parts / p.down;
    b.row_tile = cluster % p.cluster_rows * p.down + b.down;
    b.column_tile = cluster / p.cluster_rows * p.across + b.across;
    return b;
}

/* Returns a block's rank in the cluster. */
static __device__ inline int product_rank(const product_call &p, int part, int down, int across)
{
    return part + p.parts * (down + p.down * across);
}

/* Returns the row of weights of the block's column. Half of the columns of a gated product are gates, the others what
 * they multiply, so that one thread has both. */
template <typename F> static __device__ inline int product_channel(const product_call &p, int tile, int column)
{
    const int half = F::COLUMNS / 2;
    if (!p.gated) return tile * F::COLUMNS + column;
    return tile * half + column % half + (column < half ? 0 : p.out / 2);
}

template <typename F>
static __device__ inline product_share product_find_share(const product_call &p, const product_place &b)
{
    const int half = F::COLUMNS / 2;
    product_share c = {};
    for (int i = 0; i < 2; i++) {
        c.column[i] = i * half + b.down * (half / p.down);
        c.channel[i] = product_channel<F>(p, b.column_tile, c.column[i]);
    }
    c.first = b.across * (ROWS / p.across), c.row = b.row_tile * ROWS + c.first;
    for (int down = 0; down < p.down; down++) c.above |= 1u << product_rank(p, b.part, down, b.across);
    for (int across = 0; across < p.across; across++) c.beside |= 1u << product_rank(p, b.part, b.down, across);
    c.input = b.part * p.steps * DEPTH;
    return c;
}

/* Start the copies of step i to a stage. What lies outside of the matrices is 0. */
template <typename F>
static __device__ inline void product_copy_weights(const product_call &p, F &s, const product_share &c, int stage,
                                                   int i)
{
    for (int half = 0; half < 2; half++)
        fast::tile_copy(s.stage[stage].weight[c.column[half]], &p.weight_map, c.input + i * DEPTH, c.channel[half],
                        &s.full[stage], c.above);
}
template <typename F>
static __device__ inline void product_copy_rows(const product_call &p, F &s, const product_share &c, int stage, int i)
{
    fast::tile_copy(s.stage[stage].x[c.first], &p.x_map, c.input + i * DEPTH, c.row, &s.full[stage], c.beside);
}

/* Starts the copies of weights of the first stages, and prefetches the others into the L2. */
template <typename F>
static __device__ inline void product_start(const product_call &p, F &s, int steps, int prefetches)
{
    const product_share c = s.share;
#pragma unroll 1
    for (int i = 0; i < min(steps, (int)F::STAGES); i++) {
        fast::barrier_expect(&s.full[i], sizeof s.stage[0]);
        product_copy_weights(p, s, c, i, i);
    }
#pragma unroll 1
    for (int i = F::STAGES; i < steps && prefetches; i++)
        for (int half = 0; half < 2; half++) fast::tile_prefetch(&p.weight_map, c.input + i * DEPTH, c.channel[half]);
}

/* Fills a stage again, with step i, when the phase of a parity has ended: all have read it. */
template <typename F>
static __device__ inline void product_refill(const product_call &p, F &s, int stage, unsigned parity, int i)
{
    const product_share c = s.share;
    fast::barrier_wait(&s.empty[stage], parity);
    fast::barrier_expect(&s.full[stage], sizeof s.stage[0]);
    product_copy_weights(p, s, c, stage, i);
    product_copy_rows(p, s, c, stage, i);
}

/* Loads the warp's rows of x into registers. Adds their moments. */
static __device__ inline void product_load(const product_call &p, const bf16 *x, uint32_t a[DEPTH / 16][4],
                                           float2 moment[2])
{
    const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++) fast::load_matrices(a[k], tile_piece(x, row, 2 * k + lane / 16));
    if (!p.measured) return;
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++)
        for (int j = 0; j < 4; j++) {
            const float2 two = cuda_two<bf16>(a[k][j]);
            moment[j % 2].x += two.x + two.y;
            moment[j % 2].y += two.x * two.x + two.y * two.y;
        }
}

/* Adds up the products of all steps. */
template <typename F>
static __device__ inline void product_multiply(const product_call &p, const product_place &b, F &s, int steps,
                                               float (&sum)[F::COLUMNS / 2], float2 moment[2])
{
    /* Lane l tells block number l of those that share x with this one, or weights, that the warp has read a stage. */
    const int lane = (int)threadIdx.x % 32, peer = lane - p.across;
    const int rank = lane < p.across ? product_rank(p, b.part, b.down, lane)
                                     : product_rank(p, b.part, peer + (peer >= b.down), b.across);
    unsigned parity = 0; /* of the stage's phase */
    int stage = 0;
#pragma unroll 1
    for (int i = 0; i < steps; i++) {
        uint32_t a[DEPTH / 16][4];
        fast::barrier_wait(&s.full[stage], parity);
        product_load(p, s.stage[stage].x[0], a, moment);
        fast::warpgroup_begin();
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++)
            fast::warpgroup_mma<F::COLUMNS>(sum, a[k], s.stage[stage].weight[0], 16 * k);
        fast::warpgroup_end();
        if (threadIdx.x == 0 && i > 0 && i - 1 + F::STAGES < steps) /* the stage of the step before */
            product_refill(p, s, stage ? stage - 1 : F::STAGES - 1, stage ? parity : parity ^ 1, i - 1 + F::STAGES);
        __syncwarp();
        fast::warpgroup_wait(sum, a);
        if (i + F::STAGES < steps && peer < p.down - 1) fast::barrier_arrive(&s.empty[stage], (unsigned)rank);
        if (++stage == F::STAGES) stage = 0, parity ^= 1;
    }
}

/* Stores two floats in block `owner` of the cluster. */
static __device__ inline void product_put(const product_call &p, float2 *to, unsigned owner, const float2 &x)
{
    if (p.parts > 1)
        fast::cluster_store(to, owner, x);
    else
        *to = x;
}

/* Sends the warp's sums and moments to the blocks that add them up. `slice`: rows of a block. */
template <typename F>
static __device__ inline void product_send(const product_call &p, F &s, const product_place &b, int slice,
                                           const float (&sum)[F::COLUMNS / 2], const float2 moment[2])
{
    const int lane = (int)threadIdx.x % 32, first = (int)threadIdx.x / 32 * 16; /* row of the tile */
    const unsigned owner = (unsigned)product_rank(p, first / slice, b.down, b.across);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = b.part * slice + first % slice + 8 * half + lane / 4;
        for (int n = 0; n < F::COLUMNS / 8; n++)
            product_put(p, (float2 *)(s.sum[row] + n * 8 + lane % 4 * 2), owner,
                        make_float2(sum[4 * n + 2 * half], sum[4 * n + 2 * half + 1]));
        if (!p.measured) continue;
        float2 all = moment[half];
        for (int i = 1; i < 4; i *= 2) {
            all.x += __shfl_xor_sync(0xffffffffu, all.x, i);
            all.y += __shfl_xor_sync(0xffffffffu, all.y, i);
        }
        if (lane % 4 == 0) product_put(p, s.moment + row, owner, all);
    }
}

/* s.moment = 1 / deviation of the block's rows. */
template <typename F> static __device__ inline void product_measure(const product_call &p, F &s, int slice)
{
    const int row = (int)threadIdx.x;
    float2 all = {};
    if (row < slice) {
#pragma unroll 1
        for (int part = 0; part < p.parts; part++) {
            all.x += s.moment[part * slice + row].x;
            all.y += s.moment[part * slice + row].y;
        }
        const float n = (float)p.in, mean = p.centred ? all.x / n : 0, variance = all.y / n - mean * mean;
        s.moment[row].x = cuda_inverse_deviation(variance < 0 ? 0 : variance, p.eps); /* NaN stays */
    }
    __syncthreads();
}

/* Returns SiLU, or GELU by its tanh form, as THEN_GELU: x times the sigmoid of twice tanh's argument. */
static __device__ inline float product_activated(float x, kern_activation activation)
{
    if (activation == KERN_LINEAR) return x;
    const float twice = activation == KERN_SILU ? 1.4426950f * x : 2.3022082f * (x + 0.044715f * x * x * x);
    return __fdividef(x, 1 + fast::exp2(-twice));
}

/* Returns four neighbouring sums of all parts, with bias. */
template <typename F>
static __device__ inline cuda_floats<4> product_add_up(const product_call &p, const F &s, int slice, int row,
                                                       int column)
{
    const float scale = p.measured ? s.moment[row].x : 1;
    cuda_floats<4> y = {};
#pragma unroll 1
    for (int part = 0; part < p.parts; part++) {
        const cuda_floats<4> d = *(const cuda_floats<4> *)(s.sum[part * slice + row] + column);
        for (int i = 0; i < 4; i++) y.v[i] += d.v[i];
    }
    for (int i = 0; i < 4; i++) y.v[i] = y.v[i] * scale + s.bias[column + i];
    return y;
}

/* The block's part of y: rows of the slice, columns of the tile. */
typedef struct {
    int slice, row, channel; /* rows; first row and channel */
    int columns;
} product_part;

/* Returns the part's row of number i, by a division by a constant. */
template <typename F> static __device__ inline int product_row(const product_call &p, int i)
{
    return p.gated ? i / (F::COLUMNS / 2) : i / F::COLUMNS;
}

/* Returns where four numbers, number i of the part, are in an array of `stride` numbers a row; -1 if outside y. */
template <typename F>
static __device__ inline ptrdiff_t product_at(const product_call &p, const product_part &b, int i, int stride)
{
    const int of = product_row<F>(p, i), row = b.row + of, channel = b.channel + i - of * b.columns;
    if (of >= b.slice || row >= p.rows || channel >= (p.gated ? p.out / 2 : p.out)) return -1;
    return (ptrdiff_t)row * stride + channel;
}

/* Adds what y has before to the sums of the first part, which the same thread adds up. All of its loads are on their
 * way at a time, or 8 of them. */
template <typename F> static __device__ inline void product_add(const product_call &p, F &s, const product_part &b)
{
    enum { LOADS = 8, STEP = 4 * THREADS };
#pragma unroll 1
    for (int first = (int)threadIdx.x * 4; first < b.slice * b.columns; first += LOADS * STEP) {
        cuda_floats<4> x[LOADS] = {};
#pragma unroll
        for (int j = 0; j < LOADS; j++) {
            const ptrdiff_t at = product_at<F>(p, b, first + j * STEP, p.y_stride);
            if (at >= 0) x[j] = cuda_load<4>((const float *)p.y + at);
        }
#pragma unroll
        for (int j = 0; j < LOADS; j++) {
            const int i = first + j * STEP;
            const int row = product_row<F>(p, i);
            if (row >= b.slice) break;
            cuda_floats<4> *y = (cuda_floats<4> *)(s.sum[row] + i - row * b.columns), sum = *y;
            for (int k = 0; k < 4; k++) sum.v[k] += x[j].v[k];
            *y = sum;
        }
    }
}

/* Stores four neighbouring numbers of y, number i of the part. */
template <typename F>
static __device__ inline void product_store(const product_call &p, const F &s, const product_part &b, int i)
{
    const int row = product_row<F>(p, i), column = i - row * b.columns;
    const ptrdiff_t at = product_at<F>(p, b, i, p.y_stride);
    if (at < 0) return;
    cuda_floats<4> y = product_add_up(p, s, b.slice, row, column);
    if (p.gated) {
        const cuda_floats<4> up = product_add_up(p, s, b.slice, row, column + F::COLUMNS / 2);
        for (int j = 0; j < 4; j++) y.v[j] = product_activated(y.v[j], KERN_SILU) * up.v[j];
    }
    for (int j = 0; j < 4; j++) y.v[j] = product_activated(y.v[j], p.activation);
    if (p.y_f32)
        cuda_store((float *)p.y + at, y);
    else
        cuda_store((bf16 *)p.y + at, y);
    if (p.rounded) cuda_store(p.rounded + product_at<F>(p, b, i, p.out), y);
}

#endif

template <typename F>
static __global__ void __launch_bounds__(THREADS, 2) product_kernel(const __grid_constant__ product_call p)
{
#if CUDA_HOPPER
    F &s = *(F *)cuda_shared();
    const int slice = ROWS / p.parts;
    const product_place b = product_find_place(p);
    const int steps = min(p.steps, (p.in + DEPTH - 1) / DEPTH - b.part * p.steps);
    float sum[F::COLUMNS / 2] = {};
    float2 moment[2] = {};
    fast::start_next();
    if (threadIdx.x == 0) {
        for (int i = 0; i < F::STAGES; i++) {
            fast::barrier_create(&s.full[i], 1);
            fast::barrier_create(&s.empty[i], (unsigned)(WARPS * (p.down + p.across - 1)));
        }
        fast::barriers_created();
        s.share = product_find_share<F>(p, b);
    }
    for (int i = (int)threadIdx.x; i < F::COLUMNS; i += THREADS) {
        const int channel = min(product_channel<F>(p, b.column_tile, i), p.out - 1);
        s.bias[i] = !p.bias   ? 0
                    : p.y_f32 ? ((const float *)p.bias)[channel]
                              : cuda_float(((const bf16 *)p.bias)[channel]);
    }
    if (p.parts * p.down * p.across > 1)
        fast::cluster_meet();
    else
        __syncthreads();
    if (threadIdx.x == 0) product_start(p, s, steps, b.row_tile == b.down);
    fast::wait_for_previous();
    for (int i = 0; threadIdx.x == 0 && i < min(steps, (int)F::STAGES); i++) product_copy_rows(p, s, s.share, i, i);
    __syncwarp();
    product_multiply(p, b, s, steps, sum, moment);
    __syncthreads();
    if (p.parts * p.down * p.across > 1) fast::cluster_meet(); /* all copies have come, and no block reads stages */
    product_send(p, s, b, slice, sum, moment);
    if (p.parts > 1)
        fast::cluster_sync();
    else
        __syncthreads();
    if (p.measured) product_measure(p, s, slice);
    const int columns = p.gated ? F::COLUMNS / 2 : F::COLUMNS;
    const product_part y = {slice, b.row_tile * ROWS + b.part * slice, b.column_tile * columns, columns};
    if (p.add) product_add(p, s, y);
#pragma unroll 1
    for (int i = (int)threadIdx.x * 4; i < slice * columns; i += THREADS * 4) product_store(p, s, y, i);
#else
    (void)p;
#endif
}

/* --- launches ----------------------------------------------------------------------------------------------------- */

template <typename F> static void product_launch(cuda_queue *c, const product_call &p)
{
    static_assert(2 * (sizeof(F) + 1024) <= 228 << 10, "two blocks in a multiprocessor of an H200");
    static_assert(sizeof(F::stage[0]) % TILE_ALIGNMENT == 0, "tiles are aligned");
    const unsigned blocks = (unsigned)(p.parts * p.down * p.across);
    cuda_large_shared(c, product_kernel<F>);
    cuda_launch_as(c, 1, blocks, product_kernel<F>,
                   blocks * (unsigned)p.cluster_rows * cuda_blocks((size_t)p.out, (size_t)(F::COLUMNS * p.across)),
                   THREADS, sizeof(F), p);
}

static const struct product_size {
    int columns; /* of a block */
    void (*launch)(cuda_queue *c, const product_call &p);
} product_sizes[] = {
#define PRODUCT_SIZE(...)                                                                                              \
    {                                                                                                                  \
        product_form<__VA_ARGS__>::COLUMNS, product_launch<product_form<__VA_ARGS__>>                                  \
    }
    PRODUCT_SIZE(128, 3), PRODUCT_SIZE(96, 3), PRODUCT_SIZE(64, 4)
#undef PRODUCT_SIZE
};

/* Returns the estimated nanoseconds of a size of blocks and their cluster, the larger of two: operands from the L2 at
 * 5.5 TB/s; and the stages of a multiprocessor, each the larger of products at the tensor cores' rate, 2048 a clock,
 * shared memory at 128 bytes a clock, and operands coming in at 64. With parts it adds a cluster's barrier and sums
 * between multiprocessors at 20 bytes a ns. Clusters of 8 have room on 10 of 11 multiprocessors of an H200. The rates
 * of the L2 and between multiprocessors are guesses (docs/gpu.md). */
static double product_estimate(const cuda_queue *c, const product_call &p, int columns)
{
    const double in_cluster = p.parts * p.down * p.across, tile = (double)ROWS * columns;
    const double blocks =
        in_cluster * ceil(ceil((double)p.rows / ROWS) / p.down) * ceil(ceil((double)p.out / columns) / p.across);
    const double steps = ceil(ceil((double)p.in / DEPTH) / p.parts);
    const double load = blocks * steps * ((double)ROWS / p.across + (double)columns / p.down) * TILE_PITCH / 5500;
    const double copied = (ROWS + columns) * TILE_PITCH, read = (ROWS + 2 * columns) * TILE_PITCH;
    const double clocks = fmax(tile * DEPTH / 2048, fmax((copied + read) / 128, copied / 64));
    const double multiprocessors = floor(c->device->multiprocessors * (in_cluster > 4 ? 10.0 / 11 : 1));
    const double compute = ceil(blocks / multiprocessors) * steps * clocks / 1.755; /* GHz, an H200's */
    return fmax(load, compute) + (p.parts > 1 ? 1000 + tile * sizeof(float) * (p.parts - 1) / p.parts / 20 : 0);
}

/* Returns 1 if a block of so many columns can be cut so: a share of weights has 8 rows or more, as a tile. */
static int product_cuts(int columns, int parts, int down, int across)
{
    return parts * down * across <= MOST_BLOCKS && columns / 2 / down % 8 == 0;
}

/* Launches with the size and the cluster that take least by estimate, or are asked for. */
static void product_run(cuda_queue *c, product_call &p, const bf16 *x, const bf16 *weight)
{
    const auto &asked = c->device->products;
    const int stages = (p.in + DEPTH - 1) / DEPTH;
    int most = MOST_BLOCKS; /* parts: a part has two stages or more */
    while (most > 1 && 2 * most > stages) most /= 2;
    const product_size *best = NULL;
    double least = INFINITY;
    product_call chosen = p;
    if (!cuda_live(c)) return;
    for (const product_size &size : product_sizes)
        for (int cut = 0; cut < 64; cut++) {
            p.parts = 1 << cut % 4, p.down = 1 << cut / 4 % 4, p.across = 1 << cut / 16;
            if (p.parts > most || !product_cuts(size.columns, p.parts, p.down, p.across)) continue;
            if (asked.columns && (size.columns != asked.columns || p.parts != min(asked.parts, most) ||
                                  p.down != asked.down || p.across != asked.across))
                continue;
            const double time = product_estimate(c, p, size.columns);
            if (time < least) least = time, best = &size, chosen = p;
        }
    p = chosen;
    p.steps = (stages + p.parts - 1) / p.parts;
    p.cluster_rows = (int)cuda_blocks((size_t)p.rows, (size_t)(ROWS * p.down));
    cuda_describe_tiles(c, &p.x_map, x, p.rows, p.in, ROWS / p.across);
    cuda_describe_tiles(c, &p.weight_map, weight, p.out, p.in, best->columns / 2 / p.down);
    best->launch(c, p);
}

/* Returns 1 if a product of the layer has this kernel. */
static int product_fits(const cuda_queue *c, const kern_linear *l, const kern_skinny_job *job)
{
    return job->rows <= c->device->base.product_rows && l->form == CUDA_BF16 && !(l->flags & KERN_RELU) &&
           l->in % 8 == 0 && l->out % (job->gated ? 8 : 4) == 0 && l->y_stride % 4 == 0 && cuda_aligned(job->x) &&
           cuda_aligned(job->x_act) && cuda_aligned(job->normed) && cuda_aligned(job->y) && cuda_aligned(job->y_act);
}

/* Reads "0", "1", "2", or a cut: numbers with colons between. Returns 0 for anything else. */
static int product_read_wish(cuda_device *d, const char *text)
{
    auto &p = d->products;
    int end = 0, found = 0;
    if (strlen(text) >= sizeof p.text || strspn(text, "0123456789:") != strlen(text)) return 0;
    if (strcmp(text, "0") != 0) strcpy(p.text, text);
    if (strlen(text) == 1 && strchr("012", *text)) return 1;
    if (sscanf(text, "%d:%d:%d:%d%n", &p.columns, &p.parts, &p.down, &p.across, &end) != 4 || text[end]) return 0;
    for (const product_size &size : product_sizes) found |= size.columns == p.columns;
    const int cluster[] = {p.parts, p.down, p.across};
    for (int n : cluster) found &= n > 0 && n <= MOST_BLOCKS && (n & (n - 1)) == 0;
    return found && product_cuts(p.columns, p.parts, p.down, p.across);
}

mar_status cuda_choose_products(cuda_device *d, mar_err *err)
{
    const char *low = kern_low_name(&d->base), *text = getenv("MAR_CUDA_PRODUCTS");
    char why[96] = "", shown[64];
    if (text && !product_read_wish(d, text))
        return err_set(err, MAR_EARG,
                       "the environment variable MAR_CUDA_PRODUCTS is '%s', expected 0, 1, 2, or a block's columns, "
                       "128, 96 or 64, then its cluster's parts, tiles down and across, such as 128:1:2:4",
                       printable(text, shown, sizeof shown));
    if (!*d->products.text) return MAR_OK;
    if (low || !d->bf16)
        snprintf(why, sizeof why, "it computes in bf16 only, not in %s", low ? low : "f32");
    else if (!cuda_runs_hopper(d))
        snprintf(why, sizeof why, CUDA_NEEDS_HOPPER);
    else if (!cuda_can_describe_tiles())
        snprintf(why, sizeof why, "the driver does not describe tiles (cuTensorMapEncodeTiled)");
    d->base.product_rows = strcmp(text, "1") == 0 ? FEW_ROWS : INT_MAX;
    return !*why ? MAR_OK
                 : err_set(err, MAR_EBACKEND, "the environment variable MAR_CUDA_PRODUCTS is %s: %s", d->products.text,
                           why);
}

int cuda_fused_product(cuda_queue *c, const kern_linear *l, const kern_skinny_job *job)
{
    const int fits = product_fits(c, l, job), adds = (l->flags & KERN_OUT_ADD) != 0;
    const int measured = fits && job->norm && job->x_act && !job->index && !adds; /* the deviation would divide y */
    const void *x = job->norm ? job->x_act : job->x;
    if (job->norm ? !l->unit : job->index || !fits) return KERN_SKINNY_NOT;
    if (job->rows <= 0) return KERN_SKINNY_DONE;
    if (job->norm && !measured) {
        cuda_layer_norm(&c->base, (const float *)job->x, job->index, job->rows, l->in, l->unit,
                        job->norm_bias ? l->unit + l->in : NULL, job->eps, job->normed, 0);
        x = job->normed;
    }
    if (!fits) return KERN_SKINNY_NORMED;
    product_call p = {};
    p.rows = job->rows, p.in = l->in, p.out = l->out, p.gated = job->gated;
    p.y_stride = job->gated ? l->out / 2 : l->y_stride, p.y_f32 = l->y_type == MAR_DTYPE_F32;
    p.add = adds, p.activation = l->activation;
    p.measured = measured, p.centred = job->norm_bias != NULL, p.eps = job->eps;
    p.bias = l->bias, p.y = job->y, p.rounded = (bf16 *)job->y_act;
    product_run(c, p, (const bf16 *)x, (const bf16 *)l->weight);
    return job->y_act ? KERN_SKINNY_ROUNDED : KERN_SKINNY_DONE;
}
