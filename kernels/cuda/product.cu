/* Products of up to 1024 rows with what stands before and behind them in a transformer, the second form of linear.cu's
 * and rows.cu's, chosen when a device is opened (MAR_CUDA_PRODUCTS, docs/gpu.md): y = activation(norm(x) W^T + bias),
 * SwiGLU of both halves of that, or y += norm(x) W^T + bias.
 *
 * A norm is in the weights (weights.cu): they are multiplied by the norm's, its bias times them is in the bias, and
 * with LayerNorm each row of them has the mean 0. Then W x = W (x - mean), and of the norm only 1 / deviation is left,
 * which multiplies the sums. So the operand is x itself, in bf16, which the product before leaves beside its f32 sums,
 * and the deviation comes from operands that are in registers for the product. x - mean loses as many digits as the
 * mean is larger than the deviation; in a residual stream it is smaller.
 *
 * A block has a tile of rows and columns and, in a cluster, a part of the inputs. It copies weights to shared memory,
 * and the rest of its weights to the L2, before it waits for the kernel before (programmatic dependent launch), so two
 * blocks of consecutive kernels fit in a multiprocessor. A warp has 32 columns and MT tiles of 16 rows; mma.m16n8k16.
 * At the end the blocks of a cluster send each other sums, so that each has all parts of some rows, and adds them in
 * the order of the parts: bits do not depend on time. Blocks of a cluster start together, so none waits for one that
 * does not run. */
#include "kernels/cuda/linear.h"
#include "kernels/cuda/ptx.h"

#include <stdio.h>

enum {
    DEPTH = 64,         /* inputs of a stage: 128 bytes of a row */
    PITCH = DEPTH + 8,  /* from one row of a stage to the next: rows are 4 banks apart */
    PIECES = DEPTH / 8, /* of 16 bytes, of a row of a stage */
    MOST_PARTS = 8,     /* blocks of a cluster that every GPU with clusters accepts */
    MOST_ROWS = 1024,   /* rows from which cuBLASLt computes a product */
};

/* A call, on the device. */
typedef struct {
    int rows, in, out, y_stride; /* out: rows of weights, twice y's if gated */
    int gated, y_f32, add;
    int measured, centred; /* measured: sums are divided by the deviation of x; centred: from the mean, not from 0 */
    kern_activation activation;
    float eps;
    int parts, steps, tiles; /* blocks of a cluster; stages of inputs of each; tiles of rows */
    const bf16 *x, *weight;
    const void *bias; /* of y's type, or NULL */
    void *y;
    bf16 *rounded; /* y [rows][out] as operands, or NULL */
} product_call;

/* A block of DOWN x ACROSS warps. */
template <int TILES, int DOWN_WARPS, int ACROSS_WARPS, int COPIES> struct product_form {
    enum {
        MT = TILES, /* tiles of 16 rows of a warp */
        DOWN = DOWN_WARPS,
        ACROSS = ACROSS_WARPS,
        STAGES = COPIES,
        ROWS = 16 * MT * DOWN,
        COLUMNS = 32 * ACROSS,
        THREADS = 32 * DOWN * ACROSS,
        MEASURED = (MT + ACROSS - 1) / ACROSS, /* tiles whose moments a warp sums up: each ACROSSth */
        SUMS = COLUMNS + 8,                    /* floats from one row of sums to the next: stores have no conflicts */
    };
    /* A block's shared memory. Sums take the place of stages: of each part its rows of this block. */
    union {
        bf16 stage[STAGES][ROWS + COLUMNS][PITCH]; /* rows of x, then of weights */
        float sum[ROWS][SUMS];
    };
    float2 moment[ROWS]; /* sum and sum of squares, likewise; then 1 / deviation */
    float bias[COLUMNS];
};

/* Returns the row of weights of the block's column: the last one beyond it. Of 16 neighbouring columns of a gated
 * product 8 are gates, the others what they multiply, so that one thread adds up both. */
template <typename F> static __device__ inline int product_channel(const product_call &p, int tile, int column)
{
    if (!p.gated) return min(tile * F::COLUMNS + column, p.out - 1);
    return min(tile * (F::COLUMNS / 2) + column / 16 * 8 + column % 8, p.out / 2 - 1) + column / 8 % 2 * (p.out / 2);
}

/* Start to copy inputs k .. k + DEPTH - 1 of the block's weights, or of its rows of x. Beyond the last input x is 0, so
 * any weights of the row will do. */
template <typename F>
static __device__ inline void product_copy_weights(const product_call &p, int tile, int k, bf16 *to)
{
#pragma unroll
    for (int i = 0; i < F::COLUMNS * PIECES / F::THREADS; i++) {
        const int at = i * F::THREADS + (int)threadIdx.x, column = at / PIECES, input = k + at % PIECES * 8;
        const bf16 *row = p.weight + (size_t)product_channel<F>(p, tile, column) * (size_t)p.in;
        fast::copy16(to + (F::ROWS + column) * PITCH + at % PIECES * 8, row + min(input, p.in - 8));
    }
}
template <typename F> static __device__ inline void product_copy_rows(const product_call &p, int tile, int k, bf16 *to)
{
#pragma unroll
    for (int i = 0; i < F::ROWS * PIECES / F::THREADS; i++) {
        const int at = i * F::THREADS + (int)threadIdx.x, row = at / PIECES, input = k + at % PIECES * 8;
        const bf16 *from = p.x + (size_t)min(tile * F::ROWS + row, p.rows - 1) * (size_t)p.in;
        fast::copy16_if(input < p.in, to + row * PITCH + at % PIECES * 8, from + min(input, p.in - 8));
    }
}

/* Adds a stage's products to the warp's sums, and moments of its rows. */
template <typename F>
static __device__ inline void product_multiply(const product_call &p, const bf16 *stage, float sum[F::MT][4][4],
                                               float2 moment[F::MEASURED][2])
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int down = warp / F::ACROSS, across = warp % F::ACROSS;
    const bf16 *x = stage + (down * 16 * F::MT + lane % 16) * PITCH + lane / 16 * 8;
    const bf16 *weight = stage + (F::ROWS + across * 32 + lane / 16 * 8 + lane % 8) * PITCH + lane / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
        uint32_t b[2][4];
        for (int n = 0; n < 2; n++) fast::load_matrices(b[n], weight + n * 16 * PITCH + k);
#pragma unroll
        for (int m = 0; m < F::MT; m++) {
            uint32_t a[4];
            fast::load_matrices(a, x + m * 16 * PITCH + k);
            for (int n = 0; n < 4; n++) fast::mma<bf16>(sum[m][n], a, b[n / 2] + n % 2 * 2);
            if (!p.measured || m % F::ACROSS != across) continue;
            for (int i = 0; i < 4; i++) {
                const float2 two = cuda_two<bf16>(a[i]);
                moment[m / F::ACROSS][i % 2].x += two.x + two.y;
                moment[m / F::ACROSS][i % 2].y += two.x * two.x + two.y * two.y;
            }
        }
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
static __device__ inline void product_send(const product_call &p, F &s, int part, int slice, float sum[F::MT][4][4],
                                           const float2 moment[F::MEASURED][2])
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int down = warp / F::ACROSS, across = warp % F::ACROSS;
#pragma unroll
    for (int m = 0; m < F::MT; m++) {
        const int first = (down * F::MT + m) * 16; /* row of the tile */
        const unsigned owner = (unsigned)(first / slice);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = part * slice + first % slice + 8 * half + lane / 4;
            for (int n = 0; n < 4; n++)
                product_put(p, (float2 *)(s.sum[row] + across * 32 + n * 8 + lane % 4 * 2), owner,
                            make_float2(sum[m][n][2 * half], sum[m][n][2 * half + 1]));
            if (!p.measured || m % F::ACROSS != across) continue;
            float2 all = moment[m / F::ACROSS][half];
            for (int i = 1; i < 4; i *= 2) {
                all.x += __shfl_xor_sync(0xffffffffu, all.x, i);
                all.y += __shfl_xor_sync(0xffffffffu, all.y, i);
            }
            if (lane % 4 == 0) product_put(p, s.moment + row, owner, all);
        }
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
    int bits;                /* 1 << bits columns */
} product_part;

/* Returns where four numbers, number i of the part, are in an array of `stride` numbers a row; -1 if outside y. */
static __device__ inline ptrdiff_t product_at(const product_call &p, const product_part &b, int i, int stride)
{
    const int row = b.row + (i >> b.bits), channel = b.channel + (i & ((1 << b.bits) - 1));
    if (i >> b.bits >= b.slice || row >= p.rows || channel >= (p.gated ? p.out / 2 : p.out)) return -1;
    return (ptrdiff_t)row * stride + channel;
}

/* Adds what y has before to the sums of the first part, which the same thread adds up. All of its loads are on their
 * way at a time, or 8 of them. */
template <typename F> static __device__ inline void product_add(const product_call &p, F &s, const product_part &b)
{
    enum { LOADS = 8, STEP = 4 * F::THREADS };
#pragma unroll 1
    for (int first = (int)threadIdx.x * 4; first < b.slice << b.bits; first += LOADS * STEP) {
        cuda_floats<4> x[LOADS] = {};
#pragma unroll
        for (int j = 0; j < LOADS; j++) {
            const ptrdiff_t at = product_at(p, b, first + j * STEP, p.y_stride);
            if (at >= 0) x[j] = cuda_load<4>((const float *)p.y + at);
        }
#pragma unroll
        for (int j = 0; j < LOADS; j++) {
            const int i = first + j * STEP;
            if (i >> b.bits >= b.slice) break;
            for (int k = 0; k < 4; k++) s.sum[i >> b.bits][(i & ((1 << b.bits) - 1)) + k] += x[j].v[k];
        }
    }
}

/* Stores four neighbouring numbers of y, number i of the part. */
template <typename F>
static __device__ inline void product_store(const product_call &p, const F &s, const product_part &b, int i)
{
    const int row = i >> b.bits, column = i & ((1 << b.bits) - 1);
    const int from = p.gated ? column / 8 * 16 + column % 8 : column;
    const ptrdiff_t at = product_at(p, b, i, p.y_stride);
    if (at < 0) return;
    cuda_floats<4> y = product_add_up(p, s, b.slice, row, from);
    if (p.gated) {
        const cuda_floats<4> up = product_add_up(p, s, b.slice, row, from + 8);
        for (int j = 0; j < 4; j++) y.v[j] = product_activated(y.v[j], KERN_SILU) * up.v[j];
    }
    for (int j = 0; j < 4; j++) y.v[j] = product_activated(y.v[j], p.activation);
    if (p.y_f32)
        cuda_store((float *)p.y + at, y);
    else
        cuda_store((bf16 *)p.y + at, y);
    if (p.rounded) cuda_store(p.rounded + product_at(p, b, i, p.out), y);
}

template <typename F> static __global__ void __launch_bounds__(F::THREADS, 2) product_kernel(product_call p)
{
    F &s = *(F *)cuda_shared();
    const int tile = (int)blockIdx.x / p.parts, part = (int)blockIdx.x % p.parts;
    const int down = tile % p.tiles, across = tile / p.tiles; /* neighbours share weights */
    const int first = part * p.steps, steps = min(p.steps, (p.in + DEPTH - 1) / DEPTH - first),
              slice = F::ROWS / p.parts;
    float sum[F::MT][4][4] = {};
    float2 moment[F::MEASURED][2] = {};
    fast::start_next();
    for (int i = 0; i < F::STAGES - 1; i++)
        if (i < steps) product_copy_weights<F>(p, across, (first + i) * DEPTH, s.stage[i][0]);
    for (int i = (int)threadIdx.x; i < F::COLUMNS; i += F::THREADS) {
        const int channel = product_channel<F>(p, across, i);
        s.bias[i] = !p.bias   ? 0
                    : p.y_f32 ? ((const float *)p.bias)[channel]
                              : cuda_float(((const bf16 *)p.bias)[channel]);
        for (int k = F::STAGES - 1; k < steps && down == 0; k++)
            fast::prefetch_l2(p.weight + (size_t)channel * (size_t)p.in + (first + k) * DEPTH);
    }
    fast::wait_for_previous();
    for (int i = 0; i < F::STAGES - 1; i++) {
        if (i < steps) product_copy_rows<F>(p, down, (first + i) * DEPTH, s.stage[i][0]);
        fast::copy_commit();
    }
#pragma unroll 1
    for (int i = 0; i < steps; i++) {
        fast::copy_wait<F::STAGES - 2>();
        __syncthreads(); /* stage i is there; nobody reads the one before, whose place is filled next */
        const int next = i + F::STAGES - 1;
        if (next < steps) {
            product_copy_weights<F>(p, across, (first + next) * DEPTH, s.stage[next % F::STAGES][0]);
            product_copy_rows<F>(p, down, (first + next) * DEPTH, s.stage[next % F::STAGES][0]);
        }
        fast::copy_commit();
        product_multiply<F>(p, s.stage[i % F::STAGES][0], sum, moment);
    }
    fast::copy_wait<0>();
    __syncthreads();
    if (p.parts > 1) fast::cluster_meet(); /* no block reads its stages any more */
    product_send(p, s, part, slice, sum, moment);
    if (p.parts > 1)
        fast::cluster_sync();
    else
        __syncthreads();
    if (p.measured) product_measure(p, s, slice);
    const int bits = (F::COLUMNS == 128 ? 7 : 6) - p.gated;
    const product_part b = {slice, down * F::ROWS + part * slice, across << bits, bits};
    if (p.add) product_add(p, s, b);
#pragma unroll 1
    for (int i = (int)threadIdx.x * 4; i < slice << bits; i += F::THREADS * 4) product_store(p, s, b, i);
}

/* --- launches ----------------------------------------------------------------------------------------------------- */

template <typename F> static void product_launch(cuda_queue *c, const product_call &p)
{
    static_assert(F::COLUMNS == 128 || F::COLUMNS == 64, "the end divides by shifts");
    static_assert(2 * (sizeof(F) + 1024) <= 228 << 10, "two blocks in a multiprocessor of an H200");
    cuda_large_shared(c, product_kernel<F>);
    cuda_launch_as(c, 1, (unsigned)p.parts, product_kernel<F>,
                   (unsigned)(p.parts * p.tiles) * cuda_blocks((size_t)p.out, F::COLUMNS), F::THREADS, sizeof(F), p);
}

typedef product_form<4, 2, 4, 3> largest_product; /* by its shared memory */

static const struct product_size {
    int rows, columns; /* of a block */
    void (*launch)(cuda_queue *c, const product_call &p);
} product_sizes[] = {
#define PRODUCT_SIZE(...)                                                                                              \
    {                                                                                                                  \
        product_form<__VA_ARGS__>::ROWS, product_form<__VA_ARGS__>::COLUMNS, product_launch<product_form<__VA_ARGS__>> \
    }
    PRODUCT_SIZE(4, 2, 4, 3), PRODUCT_SIZE(4, 2, 2, 4), PRODUCT_SIZE(2, 2, 2, 6)
#undef PRODUCT_SIZE
};

/* Returns the estimated nanoseconds of a size of blocks and a number of parts: operands from the L2 at 5.5 TB/s, or
 * products at 62 % of an H200's rate, and with parts a cluster's barrier and sums between multiprocessors at 20 bytes a
 * ns. All four are guesses (docs/gpu.md). */
static double product_estimate(const cuda_queue *c, const product_call &p, const product_size &size, int parts)
{
    const double tile = (double)size.rows * size.columns, multiprocessors = c->device->multiprocessors;
    const double blocks = parts * ceil((double)p.rows / size.rows) * ceil((double)p.out / size.columns);
    const double steps = ceil(ceil((double)p.in / DEPTH) / parts);
    const double load = blocks * steps * (size.rows + size.columns) * DEPTH * sizeof(bf16) / 5500;
    const double multiply = ceil(blocks / multiprocessors) * steps * tile * DEPTH / 2230;
    return fmax(load, multiply) + (parts > 1 ? 1000 + tile * sizeof(float) * (parts - 1) / parts / 20 : 0);
}

/* Launches with the size and parts that take least by estimate. */
static void product_run(cuda_queue *c, product_call &p)
{
    const int stages = (p.in + DEPTH - 1) / DEPTH, most = c->device->major >= 9 ? MOST_PARTS : 1;
    const product_size *best = NULL;
    double least = INFINITY;
    for (const product_size &size : product_sizes) {
        if (c->device->products > 1 && &size != &product_sizes[c->device->products - 2]) continue;
        for (int parts = 1; parts <= most && (parts == 1 || 2 * parts <= stages) && 16 * parts <= size.rows;
             parts *= 2) {
            const double time = product_estimate(c, p, size, parts);
            if (time < least) least = time, best = &size, p.parts = parts;
        }
    }
    p.steps = (stages + p.parts - 1) / p.parts;
    p.tiles = (p.rows + best->rows - 1) / best->rows;
    best->launch(c, p);
}

/* Returns 1 if a product of the layer has this kernel. */
static int product_fits(const cuda_queue *c, const kern_linear *l, const kern_skinny_job *job)
{
    return job->rows <= c->device->base.product_rows && l->form == CUDA_BF16 && !(l->flags & KERN_RELU) &&
           l->in % 8 == 0 && l->out % (job->gated ? 8 : 4) == 0 && l->y_stride % 4 == 0 && cuda_aligned(job->x) &&
           cuda_aligned(job->x_act) && cuda_aligned(job->normed) && cuda_aligned(job->y) && cuda_aligned(job->y_act);
}

mar_status cuda_choose_products(cuda_device *d, mar_err *err)
{
    const char *low = kern_low_name(&d->base);
    char why[96] = "";
    const mar_status status = cuda_read_wish("MAR_CUDA_PRODUCTS", "01234", "0 to 4", &d->products, err);
    if (status != MAR_OK || !d->products) return status;
    if (low || !d->bf16)
        snprintf(why, sizeof why, "they compute in bf16 only, not in %s", low ? low : "f32");
    else if (d->shared_bytes < sizeof(largest_product))
        snprintf(why, sizeof why, "they need %zu bytes of shared memory, and this GPU has %zu", sizeof(largest_product),
                 d->shared_bytes);
    d->base.product_rows = MOST_ROWS;
    return !*why ? MAR_OK
                 : err_set(err, MAR_EBACKEND, "the environment variable MAR_CUDA_PRODUCTS is %d: %s", d->products, why);
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
    p.x = (const bf16 *)x, p.weight = (const bf16 *)l->weight, p.bias = l->bias;
    p.y = job->y, p.rounded = (bf16 *)job->y_act;
    product_run(c, p);
    return job->y_act ? KERN_SKINNY_ROUNDED : KERN_SKINNY_DONE;
}
