/* The chain of up to 8 rows of heads whose weights do not fit the shared memories: beside resident.cu the second form
 * of persistent.cu's, chosen at load (MAR_CUDA_HEAD_RESIDENT, docs/gpu.md).
 *
 * The floor of an evaluation is its weights, 4*depth*W^2 bytes (SWIGLU: 6*depth*W*H), over memory's bandwidth. With few
 * rows its exchanges may take longer (docs/persistent.md).
 *
 * Weights, products and words are ring.cuh's; an evaluation is a pass. A block keeps the residual sums of its items of
 * x in f32, and every block that has such items the states. A row's moments are merged from those of the warps' shares.
 * Its bits do not depend on the other rows nor on their number.
 *
 * An evaluation has 2*depth + 2 exchanges, all of words: the input layer's x, each fc1's v, each fc2's x, and the
 * outputs. x has its own words: two neighbouring channels in f32, whose lowest four bits each give way to half of the
 * number's low byte, an error below 2^-19. Numbers of x, of v and of outputs grow by 1 in each launch, before
 * which the words are set to 0. A word is overwritten only when no block will read it again:
 *   - x, by fc2: the block has read all of v. Another block wrote v after all of its warps had read x.
 *   - v: the block has read all of x. Another block wrote x after all of its warps had read v.
 *   - x, by the input layer: the block has read all outputs. Another block wrote its outputs after it had read x.
 *   - outputs: the block has read all of x. Another block wrote x after it had read the outputs.
 * So each of these blocks reads all outputs, also those that a step does not use. A byte is enough for the numbers of
 * x: who waits for one has read another of the depth + 1 before it, or zeros. They begin so that they pass 256 in a
 * chain's second step: every longer chain tests it. */
#include "kernels/cuda/chain.cuh"
#include "kernels/cuda/ring.cuh"

#include <stdlib.h>
#include <string.h>

enum {
    STREAMED_UNITS = 6,                                /* maximum units of a warp's share of x */
    STREAMED_WIDTH = 32 * RING_WARPS * STREAMED_UNITS, /* maximum width */
    STREAMED_FOURS = STREAMED_WIDTH / 4 / 32,          /* float4s of a row that a lane of the final layer has */
    STREAMED_DEPTH = 128,                              /* maximum residual blocks */
};
enum { STREAMED_FC1, STREAMED_FC2, STREAMED_PRODUCTS };

typedef struct {
    const char *weight[STREAMED_PRODUCTS];
    const float *bias[STREAMED_PRODUCTS];
} streamed_layer;

/* A call, on the device. Words of x are [rows][W / 2] uint2. */
struct streamed_args : ring_args<streamed_layer, STREAMED_PRODUCTS> {
    kern_chain_job j;
    int width, channels, group;                       /* group: blocks of an adaLN layer */
    size_t mod_bytes, mod_final;                      /* of a modulation row, and where its final layer begins */
    const float *norms;                               /* as kern_head */
    const float *in, *in_bias;                        /* [W][C], [W] */
    const float *out_weight, *out_bias;               /* [2C][W], [2C] */
    uint4 *out;                                       /* words [rows][2C] uint2 */
    int area, sums, sums_bytes, moments, own, states; /* where they begin in shared memory: streamed_lay_out */
    float inverse_width;                              /* 1 / width */
};

/* A block's shared memory: the ring, then
 *   table: streamed_layer [depth];
 *   area: the warps' operands, rows of ring_pitch bytes;
 *   sums: float2 [2][halves * items][RING_WARPS][4 * R], of two products in turn, `sums_bytes` each;
 *   moments: float4 [R][RING_WARPS], mean, squared deviations and channels of a share;
 *   own: float2 [items of x][4 * R];
 *   states: float [2][RING_ROWS][C], the states and a solver's last x0. */

/* --- x ------------------------------------------------------------------------------------------------------------ */

/* Stores two channels of x. */
static __device__ __forceinline__ void streamed_put_x(const streamed_args &a, const ring_place &e, const float2 &x,
                                                      unsigned number)
{
    uint2 *to = (uint2 *)a.product[STREAMED_FC1].words + (e.row * a.width + 8 * e.item) / 2 + e.pair;
    fast::store_word(to, (__float_as_uint(x.x) & ~15u) | (number & 15),
                     (__float_as_uint(x.y) & ~15u) | (number >> 4 & 15));
}

/* Returns whether one of two words is not of this number. */
static __device__ __forceinline__ unsigned streamed_late(const uint4 &w, unsigned number)
{
    return ((w.x ^ number) | (w.z ^ number) | (w.y ^ number >> 4) | (w.w ^ number >> 4)) & 15;
}

static __device__ __forceinline__ float4 streamed_floats(const uint4 &w)
{
    return make_float4(__uint_as_float(w.x), __uint_as_float(w.y), __uint_as_float(w.z), __uint_as_float(w.w));
}

/* --- fc1 ---------------------------------------------------------------------------------------------------------- */

/* What four normalised channels are multiplied by and added to. */
typedef struct {
    float4 factor, addend;
} streamed_affine;

/* Returns a row's mean and inverse deviation, merging the shares' moments as in Chan, Golub and LeVeque. */
static __device__ __forceinline__ float2 streamed_merge(const streamed_args &a, const float4 *moments)
{
    float sum = 0, squares = 0;
#pragma unroll
    for (int warp = 0; warp < RING_WARPS; warp++) sum += moments[warp].x * moments[warp].z;
    const float mean = __fmul_rn(sum, a.inverse_width);
#pragma unroll
    for (int warp = 0; warp < RING_WARPS; warp++) {
        const float d = moments[warp].x - mean;
        squares += moments[warp].y + moments[warp].z * (d * d);
    }
    return persistent_norm_of(a.inverse_width, mean, squares);
}

/* A lane's float4s of a row's share of x: numbers lane, lane + LANES, .. of its 32 / R lanes. */
template <int R> struct streamed_lanes {
    enum { LANES = 32 / R, FOURS = STREAMED_UNITS * 8 / LANES, SUMS = 16 / LANES };
};

/* Returns the sum over a row's lanes of what a lane has of each of its float4s, 0 of missing ones. The order is the
 * same for every R: 16 sums of every sixteenth float4, added up by halves. */
template <int R> static __device__ __forceinline__ float streamed_row_sum(const float (&of)[streamed_lanes<R>::FOURS])
{
    typedef streamed_lanes<R> L;
    float sum[L::SUMS] = {};
#pragma unroll
    for (int i = 0; i < L::FOURS; i++) sum[i % L::SUMS] += of[i];
#pragma unroll
    for (int step = L::SUMS / 2; step > 0; step /= 2)
#pragma unroll
        for (int i = 0; i < step; i++) sum[i] += sum[i + step];
#pragma unroll
    for (int bit = L::LANES / 2; bit > 0; bit /= 2) sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], bit);
    return sum[0];
}

/* Returns a share's mean, squared deviations and channels, n float4s. Two passes, because the mean of x can be far from
 * zero. */
template <int R>
static __device__ __forceinline__ float4 streamed_measure(const float4 (&x)[streamed_lanes<R>::FOURS], int n)
{
    typedef streamed_lanes<R> L;
    float of[L::FOURS];
#pragma unroll
    for (int i = 0; i < L::FOURS; i++) of[i] = (x[i].x + x[i].y) + (x[i].z + x[i].w);
    const float sum = streamed_row_sum<R>(of), mean = n > 0 ? __fdividef(sum, (float)(4 * n)) : 0;
#pragma unroll
    for (int i = 0; i < L::FOURS; i++) {
        const float4 d = make_float4(x[i].x - mean, x[i].y - mean, x[i].z - mean, x[i].w - mean);
        of[i] = (int)threadIdx.x % L::LANES + i * L::LANES < n ? cuda_dot(d, d) : 0;
    }
    return make_float4(mean, streamed_row_sum<R>(of), (float)(4 * n), 0);
}

/* Loads the factors and addends of a lane's float4s of a row: the adaLN layer's shift and scale, behind the layer
 * norm's weight and bias if it has any. All loads are on their way before the first is used. */
template <int R>
static __device__ __forceinline__ void streamed_modulate(const streamed_args &a, const unsigned char *mod, int block,
                                                         int first, int n,
                                                         streamed_affine (&m)[streamed_lanes<R>::FOURS])
{
    typedef streamed_lanes<R> L;
    const int lane = (int)threadIdx.x % L::LANES, row = min((int)threadIdx.x % 32 / L::LANES, a.rows - 1);
    const int vectors = a.width / 4;
    const uint2 *from = (const uint2 *)(mod + row * a.mod_bytes) + 3 * (block / a.group) * vectors + first;
    const float4 *norm = (const float4 *)a.norms + 2 * block * vectors + first;
    uint2 shift[L::FOURS] = {}, scale[L::FOURS] = {};
#pragma unroll
    for (int i = 0; i < L::FOURS; i++) {
        const int at = min(lane + i * L::LANES, n - 1);
        m[i] = {{1, 1, 1, 1}, {0, 0, 0, 0}};
        if (i * L::LANES < n) shift[i] = __ldcg(from + at), scale[i] = __ldcg(from + vectors + at);
        if (i * L::LANES < n && a.norms) m[i] = {__ldcg(norm + at), __ldcg(norm + vectors + at)};
    }
#pragma unroll
    for (int i = 0; i < L::FOURS; i++) {
        const float2 s0 = cuda_two<f16>(scale[i].x), s1 = cuda_two<f16>(scale[i].y);
        const float2 t0 = cuda_two<f16>(shift[i].x), t1 = cuda_two<f16>(shift[i].y);
        float4 &f = m[i].factor, &t = m[i].addend;
        t = make_float4(t.x * (1 + s0.x) + t0.x, t.y * (1 + s0.y) + t0.y, t.z * (1 + s1.x) + t1.x,
                        t.w * (1 + s1.y) + t1.y);
        f = make_float4(f.x * (1 + s0.x), f.y * (1 + s0.y), f.z * (1 + s1.x), f.w * (1 + s1.y));
    }
}

/* Receives the warp's share of x, and writes the operand of fc1. */
template <int R>
static __device__ __forceinline__ void streamed_normalise(const streamed_args &a, const unsigned char *mod, int block,
                                                          char *operand, unsigned number)
{
    typedef streamed_lanes<R> L;
    const ring_share share = ring_share_of(a.product[STREAMED_FC1]);
    const int lane = (int)threadIdx.x % L::LANES, row = (int)threadIdx.x % 32 / L::LANES;
    const int first = 8 * share.first, n = 8 * (share.end - share.first); /* float4s */
    const uint4 *words = a.product[STREAMED_FC1].words + min(row, a.rows - 1) * (a.width / 4) + first;
    float4 *moments = ring_at<float4>(a.moments) + row * RING_WARPS, x[L::FOURS];
    streamed_affine m[L::FOURS];
    uint4 w[L::FOURS] = {};
    unsigned late, polls = 0;
    streamed_modulate<R>(a, mod, block, first, n, m);
    do {
#pragma unroll
        for (int i = 0; i < L::FOURS; i++)
            if (i * L::LANES < n) w[i] = fast::load_two_words(words + min(lane + i * L::LANES, n - 1));
        late = 0;
#pragma unroll
        for (int i = 0; i < L::FOURS; i++)
            if (i * L::LANES < n) late |= streamed_late(w[i], number);
    } while (!persistent_polled(a, late != 0, &polls));
#pragma unroll
    for (int i = 0; i < L::FOURS; i++) x[i] = lane + i * L::LANES < n ? streamed_floats(w[i]) : make_float4(0, 0, 0, 0);
    const float4 measured = streamed_measure<R>(x, n);
    if (lane == 0) moments[threadIdx.x / 32] = measured;
    __syncthreads();
    const float2 norm = streamed_merge(a, moments);
    uint2 *to = (uint2 *)(operand + row * ring_pitch<CUDA_F16>(share.end - share.first)) + lane;
#pragma unroll
    for (int i = 0; i < L::FOURS; i++)
        if (lane + i * L::LANES < n)
            to[i * L::LANES] = make_uint2(cuda_pack<f16>((x[i].x - norm.x) * norm.y * m[i].factor.x + m[i].addend.x,
                                                         (x[i].y - norm.x) * norm.y * m[i].factor.y + m[i].addend.y),
                                          cuda_pack<f16>((x[i].z - norm.x) * norm.y * m[i].factor.z + m[i].addend.z,
                                                         (x[i].w - norm.x) * norm.y * m[i].factor.w + m[i].addend.w));
}

/* --- products ----------------------------------------------------------------------------------------------------- */

/* What two channels of a product are added to, [1]: those that gates multiply; and their gates in fc2. */
typedef struct {
    float2 bias[2], gate;
} streamed_channels;

template <int PRODUCT>
static __device__ __forceinline__ streamed_channels streamed_load_channels(const streamed_args &a,
                                                                           const unsigned char *mod, int block,
                                                                           const ring_place &e)
{
    const ring_product &p = a.product[PRODUCT];
    const int channel = 8 * e.item + 2 * e.pair;
    const float *bias = ring_layer(a, block).bias[PRODUCT] + channel;
    streamed_channels c = {};
    if (!e.given) return c;
    c.bias[0] = __ldg((const float2 *)bias);
    if (PRODUCT == STREAMED_FC1 && p.halves == 2) c.bias[1] = __ldg((const float2 *)(bias + 8 * p.items));
    const f16 *gates = (const f16 *)(mod + e.row * a.mod_bytes) + (3 * (block / a.group) + 2) * a.width + channel;
    if (PRODUCT == STREAMED_FC2) c.gate = cuda_two<f16>(__ldcg((const unsigned *)gates));
    return c;
}

/* Ends a product of two channels. number: of the words that it writes. */
template <int PRODUCT, int R>
static __device__ __forceinline__ void streamed_finish(const streamed_args &a, const float2 *sums, const ring_place &e,
                                                       const streamed_channels &c, unsigned number)
{
    const ring_product &p = a.product[PRODUCT];
    if (!e.given) return;
    float2 y = ring_sum<R>(sums, e.of, e);
    y.x += c.bias[0].x, y.y += c.bias[0].y;
    if (PRODUCT == STREAMED_FC2) {
        float2 *own = ring_at<float2>(a.own) + 4 * (e.of * R + e.row) + e.pair;
        *own = make_float2(own->x + c.gate.x * y.x, own->y + c.gate.y * y.y);
        streamed_put_x(a, e, *own, number);
        return;
    }
    y.x = cuda_fast_silu(y.x), y.y = cuda_fast_silu(y.y);
    if (p.halves == 2) {
        const float2 z = ring_sum<R>(sums, ring_items(p) + e.of, e);
        y.x *= z.x + c.bias[1].x, y.y *= z.y + c.bias[1].y;
    }
    ring_put<f16>(a.product[STREAMED_FC2].words, 2, p.items, e.row, e.item, e.pair, y.x, y.y, number);
}

/* Computes a product of the block's items, from words of number `from` to words of number `to`. */
template <int PRODUCT, int R>
static __device__ __forceinline__ void streamed_product(const streamed_args &a, const unsigned char *mod, int block,
                                                        ring_stream &stream, unsigned from, unsigned to)
{
    const ring_product &p = a.product[PRODUCT];
    const int thread = (int)threadIdx.x, warp = thread / 32, items = ring_items(p);
    if (items <= 0) return;
    const ring_place e = ring_place_of<R>(items, a.rows, thread);
    const streamed_channels c = streamed_load_channels<PRODUCT>(a, mod, block, e);
    float2 *sums = ring_at<float2>(a.sums + (block + PRODUCT) % 2 * a.sums_bytes);
    char *operand = ring_at<char>(a.area) + warp * R * ring_pitch<CUDA_F16>(p.units / RING_WARPS + 1);
    if (PRODUCT == STREAMED_FC1)
        streamed_normalise<R>(a, mod, block, operand, from);
    else
        ring_receive<CUDA_F16, R, R>(a, p, 2, operand, from);
    __syncwarp();
    ring_multiply<CUDA_F16, R>(a, p, operand, stream, sums + warp * 4 * R);
    __syncthreads();
    streamed_finish<PRODUCT, R>(a, sums, e, c, to);
#pragma unroll 1
    for (int i = thread + RING_THREADS; i < items * 4 * R; i += RING_THREADS) {
        const ring_place other = ring_place_of<R>(items, a.rows, i);
        streamed_finish<PRODUCT, R>(a, sums, other, streamed_load_channels<PRODUCT>(a, mod, block, other), to);
    }
}

/* Computes the input layer of the block's channels, in f32. */
template <int R> static __device__ __forceinline__ void streamed_in(const streamed_args &a, unsigned number)
{
    const int items = ring_items(a.product[STREAMED_FC2]), fours = a.channels / 4;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < items * 4 * R; i += RING_THREADS) {
        const ring_place e = ring_place_of<R>(items, a.rows, i);
        if (!e.given) continue;
        const float4 *state = ring_at<float4>(a.states) + (e.row < a.j.tokens ? e.row : e.row - a.j.tokens) * fours;
        const int channel = 8 * e.item + 2 * e.pair;
        const float4 *in = (const float4 *)a.in + channel * fours;
        float2 x = __ldg((const float2 *)(a.in_bias + channel));
#pragma unroll 4
        for (int c = 0; c < fours; c++) {
            x.x += cuda_dot(state[c], __ldg(in + c));
            x.y += cuda_dot(state[c], __ldg(in + fours + c));
        }
        ring_at<float2>(a.own)[i] = x;
        streamed_put_x(a, e, x, number);
    }
}

/* --- the final layer and the step --------------------------------------------------------------------------------- */

/* Computes outputs of rows in f32, a warp one at a time: with d = x - mean and f = weight * (1 + scale) it is
 * sum(d * f) / deviation + sum(weight * shift) + bias. x_number: of the words of x; number: of the outputs'. */
static __device__ __forceinline__ void streamed_out(const streamed_args &a, const unsigned char *mod, unsigned x_number,
                                                    unsigned number)
{
    const int lane = (int)threadIdx.x % 32, vectors = a.width / 4, outputs = 2 * a.channels;
#pragma unroll 1
    for (int unit = (int)(blockIdx.x + gridDim.x * (threadIdx.x / 32)); unit < a.rows * outputs;
         unit += (int)gridDim.x * RING_WARPS) {
        const int row = unit / outputs, output = unit - row * outputs;
        const float4 *shift = (const float4 *)(mod + row * a.mod_bytes + a.mod_final) + lane;
        const float4 *weight = (const float4 *)a.out_weight + output * vectors + lane;
        const uint4 *words = a.product[STREAMED_FC1].words + row * vectors + lane;
        float4 f[STREAMED_FOURS] = {}, s[STREAMED_FOURS] = {}, t[STREAMED_FOURS] = {};
        uint4 w[STREAMED_FOURS] = {};
        float y = 0, sum = 0, squares = 0, product = 0;
        unsigned late, polls = 0;
#pragma unroll
        for (int i = 0; i < STREAMED_FOURS; i++)
            if (lane + 32 * i < vectors)
                f[i] = __ldg(weight + 32 * i), t[i] = __ldcg(shift + 32 * i), s[i] = __ldcg(shift + vectors + 32 * i);
#pragma unroll
        for (int i = 0; i < STREAMED_FOURS; i++) {
            y += cuda_dot(f[i], t[i]);
            f[i] =
                make_float4(f[i].x * (1 + s[i].x), f[i].y * (1 + s[i].y), f[i].z * (1 + s[i].z), f[i].w * (1 + s[i].w));
        }
        y = cuda_warp_sum(y) + __ldg(a.out_bias + output);
        do {
#pragma unroll
            for (int i = 0; i < STREAMED_FOURS; i++)
                if (lane + 32 * i < vectors) w[i] = fast::load_two_words(words + 32 * i);
            late = 0;
#pragma unroll
            for (int i = 0; i < STREAMED_FOURS; i++)
                if (lane + 32 * i < vectors) late |= streamed_late(w[i], x_number);
        } while (!persistent_polled(a, late != 0, &polls));
#pragma unroll
        for (int i = 0; i < STREAMED_FOURS; i++) {
            const float4 x = streamed_floats(w[i]); /* 0 of missing ones */
            sum += (x.x + x.y) + (x.z + x.w);
        }
        const float mean = cuda_warp_sum(sum) / (float)a.width;
#pragma unroll
        for (int i = 0; i < STREAMED_FOURS; i++) {
            if (lane + 32 * i >= vectors) continue;
            const float4 x = streamed_floats(w[i]), d = make_float4(x.x - mean, x.y - mean, x.z - mean, x.w - mean);
            squares += cuda_dot(d, d);
            product += cuda_dot(d, f[i]);
        }
        const float inv = cuda_inverse_deviation(cuda_warp_sum(squares) / (float)a.width, 1e-6f);
        y += cuda_warp_sum(product) * inv;
        if (lane == 0) fast::store_word((uint2 *)a.out + unit, __float_as_uint(y), number);
    }
}

/* Takes a step of the block's copy of the states. */
static __device__ __forceinline__ void streamed_step(const streamed_args &a, int step, unsigned number)
{
    const int fours = a.channels / 4;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < a.j.tokens * fours; i += RING_THREADS) {
        float *x = ring_at<float>(a.states) + 4 * i;
        chain_step(a, a.j, step, a.channels, i / fours, i % fours * 4, a.out, number, x, x + RING_ROWS * a.channels);
    }
}

/* --- the chain ---------------------------------------------------------------------------------------------------- */

/* Prefetches the next step's modulation rows into the L2 cache. They were made for many steps at once. */
static __device__ __forceinline__ void streamed_prefetch(const streamed_args &a, const unsigned char *mod)
{
    const size_t line = 128, bytes = a.rows * a.mod_bytes;
    for (size_t i = (blockIdx.x * RING_THREADS + threadIdx.x) * line; i < bytes; i += gridDim.x * RING_THREADS * line)
        fast::prefetch_l2(mod + bytes + i);
}

template <int R>
static __global__ void __launch_bounds__(RING_THREADS, 1) streamed_chain(const __grid_constant__ streamed_args a)
{
    const unsigned char *mod = (const unsigned char *)a.j.mod;              /* rows of the step */
    unsigned x_number = 254 - (unsigned)a.layers, v_number = 0, number = 0; /* of the words written last */
    if (a.rows == 0) return; /* streamed_starts only tests whether the kernel starts */
    const bool owns = ring_items(a.product[STREAMED_FC2]) > 0;
    ring_stream stream = ring_begin(a);
    float *states = ring_at<float>(a.states), *last = states + RING_ROWS * a.channels;
    for (int i = (int)threadIdx.x; i < a.j.tokens * a.channels; i += RING_THREADS)
        states[i] = a.j.x[i], last[i] = a.j.ode ? a.j.x0[i] : 0;
    __syncthreads();
#pragma unroll 1
    for (int step = a.j.first; step >= 0; step--, mod += a.rows * a.mod_bytes) {
        if (step > 0) streamed_prefetch(a, mod);
        streamed_in<R>(a, ++x_number);
#pragma unroll 1
        for (int block = 0; block < a.layers; block++, x_number++, v_number++) {
            streamed_product<STREAMED_FC1, R>(a, mod, block, stream, x_number, v_number + 1);
            streamed_product<STREAMED_FC2, R>(a, mod, block, stream, v_number + 1, x_number + 1);
        }
        streamed_out(a, mod, x_number, ++number);
        if (owns) streamed_step(a, step, number);
        __syncthreads();
    }
    for (int i = (int)threadIdx.x; blockIdx.x == 0 && i < a.j.tokens * a.channels; i += RING_THREADS) {
        a.j.x[i] = states[i];
        if (a.j.ode) a.j.x0[i] = last[i];
    }
    persistent_end(a);
}

/* --- the host ----------------------------------------------------------------------------------------------------- */

/* Immutable after creation. */
struct streamed_head {
    streamed_args args; /* without words and job */
    int blocks;
    int rows;    /* 8, or as many of 4 and 2 as the shared memory has room for */
    void *table; /* the allocation of args.layer and the final layer */
};

/* Lays out the shared memory for a kernel of up to `rows` rows. Returns its bytes. */
static size_t streamed_lay_out(int rows, streamed_args *a)
{
    int units = 0, tiles = 0;
    for (const ring_product &p : a->product) ring_most(p, &units, &tiles);
    const ring_product &x = a->product[STREAMED_FC2];
    a->table = RING_BYTES;
    a->area = a->table + a->layers * (int)sizeof *a->layer;
    a->sums = a->area + RING_WARPS * rows * ring_pitch<CUDA_F16>(units);
    a->sums_bytes = tiles * RING_WARPS * 4 * rows * (int)sizeof(float2);
    a->moments = a->sums + 2 * a->sums_bytes;
    a->own = a->moments + rows * RING_WARPS * (int)sizeof(float4);
    a->states = a->own + (x.each + 1) * 4 * rows * (int)sizeof(float2);
    return (size_t)a->states + 2 * RING_ROWS * (size_t)a->channels * sizeof(float);
}

static cudaError_t streamed_start(const cuda_queue *c, const streamed_head *f, int rows, streamed_args a)
{
    void (*const form)(streamed_args) = rows <= 2   ? streamed_chain<2>
                                        : rows <= 4 ? streamed_chain<4>
                                                    : streamed_chain<8>;
    return ring_start(c, form, f->blocks, streamed_lay_out(rows <= 2 ? 2 : rows <= 4 ? 4 : 8, &a), a);
}

/* Writes the head's shape. Returns 0 if the kernel does not compute it. */
static int streamed_shape(const cuda_queue *c, const kern_head *h, streamed_head *f)
{
    streamed_args *a = &f->args;
    const int halves = h->form == KERN_HEAD_SWIGLU ? 2 : 1, items = h->hidden > h->width ? h->hidden / 8 : h->width / 8;
    if (!h->f16 || h->width > STREAMED_WIDTH || h->channels % 4 || h->depth < 1 || h->depth > STREAMED_DEPTH) return 0;
    f->blocks = items < c->device->multiprocessors ? items : c->device->multiprocessors;
    if (f->blocks < 1 || !ring_shape(h->block[0].fc1, halves, f->blocks, &a->product[STREAMED_FC1]) ||
        !ring_shape(h->block[0].fc2, 1, f->blocks, &a->product[STREAMED_FC2]))
        return 0;
    a->layers = h->depth, a->width = h->width, a->inverse_width = 1 / (float)h->width, a->channels = h->channels,
    a->group = h->depth / h->ada_layers;
    a->mod_final = cuda_mod_final_offset(h), a->mod_bytes = a->mod_final + 2u * (size_t)h->width * sizeof(float);
    a->norms = h->norms, a->in = (const float *)h->in->weight, a->in_bias = (const float *)h->in->bias;
    return 1;
}

/* Makes the layers' table on the device, and the final layer in f32 behind it. */
static mar_status streamed_make_table(cuda_queue *c, const kern_head_spec *spec, const kern_head *h, streamed_head *f,
                                      mar_err *err)
{
    const size_t weights = 2 * (size_t)h->channels * (size_t)h->width, outputs = 2 * (size_t)h->channels;
    const size_t layers = (size_t)h->depth * sizeof(streamed_layer),
                 bytes = layers + (weights + outputs) * sizeof(float);
    streamed_layer *table = (streamed_layer *)malloc(bytes);
    if (!table) return err_set(err, MAR_ENOMEM, "out of memory");
    for (int b = 0; b < h->depth; b++) {
        const kern_linear *products[] = {h->block[b].fc1, h->block[b].fc2};
        for (int i = 0; i < STREAMED_PRODUCTS; i++) {
            table[b].weight[i] = (const char *)products[i]->weight;
            table[b].bias[i] = (const float *)products[i]->bias;
        }
    }
    memcpy(table + h->depth, spec->out_weight, weights * sizeof(float));
    memcpy((float *)(table + h->depth) + weights, spec->out_bias, outputs * sizeof(float));
    const mar_status status = cuda_alloc_copy(c, table, bytes, &f->table, err);
    f->args.layer = (const streamed_layer *)f->table;
    f->args.out_weight = (const float *)(f->args.layer + h->depth), f->args.out_bias = f->args.out_weight + weights;
    free(table);
    return status;
}

/* Sets the rows that the shared memory has room for, and starts the kernels without work. Returns 0 if the device does
 * not accept them. */
static int streamed_starts(const cuda_queue *c, streamed_head *f)
{
    streamed_args a = f->args;
    cudaError_t e = cudaSuccess;
    for (f->rows = RING_ROWS; streamed_lay_out(f->rows, &a) > c->device->shared_bytes; f->rows /= 2)
        if (f->rows == 2) return 0;
    for (int rows = f->rows; rows >= 2 && e == cudaSuccess; rows /= 2) e = streamed_start(c, f, rows, a);
    return cuda_tried(c, e) == cudaSuccess;
}

mar_status streamed_create(cuda_queue *c, const kern_head_spec *spec, const kern_head *h, streamed_head **out,
                           mar_err *err)
{
    streamed_head *f = (streamed_head *)calloc(1, sizeof *f);
    *out = NULL;
    if (!f) return err_set(err, MAR_ENOMEM, "out of memory");
    const int has = streamed_shape(c, h, f);
    const mar_status status = has ? streamed_make_table(c, spec, h, f, err) : MAR_OK;
    if (status == MAR_OK && has && streamed_starts(c, f))
        *out = f;
    else
        streamed_free(&c->device->base, f);
    return status;
}

void streamed_free(kern_device *d, streamed_head *f)
{
    if (!f) return;
    cuda_free(d, f->table);
    free(f);
}

/* Lays out arrivals and words at `memory`. Returns their bytes, which a launch clears. */
static size_t streamed_lay_out_words(streamed_args *a, void *memory)
{
    uint4 *at = (uint4 *)memory + 8; /* blocks poll the arrivals: they have 128 bytes to themselves */
    a->arrivals = (unsigned *)memory;
    for (ring_product &p : a->product) p.words = at, at += a->rows * p.in / 4;
    a->out = at;
    return (size_t)((char *)(at + a->rows * a->channels) - (char *)memory);
}

int streamed_run(cuda_queue *c, const streamed_head *f, const kern_chain_job *job)
{
    const int rows = job->tokens * job->conditions;
    if (!f || rows > f->rows) return 0;
    if (!cuda_live(c) || !cuda_has_working(c)) return 1;
    streamed_args a = f->args;
    a.rows = rows, a.passes = job->first + 1, a.j = *job, a.gave_up = c->gave_up;
    const size_t zeros = streamed_lay_out_words(&a, c->working);
    if (cuda_ok(c, cudaMemsetAsync(a.arrivals, 0, zeros, c->stream), "preparing the head's kernel"))
        cuda_ok(c, streamed_start(c, f, rows, a), "launching the head's kernel");
    return 1;
}
