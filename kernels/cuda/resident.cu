/* The chain of up to 8 rows without clusters, barriers of the grid and fences: the second form of persistent.cu's,
 * chosen at load (MAR_CUDA_HEAD_RESIDENT, docs/gpu.md).
 *
 * The head's shape is known at compile time. A block owns 8 columns of every product, whose weights stay in its shared
 * memory over the whole chain, as do its weights of the final layer. A warp has one of the PERSISTENT_PARTS
 * parts of the channels. It loads, normalises and multiplies them alone; warp 0 adds up the warps' sums and owns the
 * columns. Parts, products and sums are persistent_layers.cuh's, in its order, so the bits are the same.
 *
 * An evaluation has 2*DEPTH + 2 exchanges, all of words (ptx.h): the input layer's x, each fc1's v, each fc2's x, and
 * the outputs. Numbers grow by 1 from one to the next, from 1 in each launch, before which the words are set to 0. A
 * word is overwritten only when no block will read it again:
 *   - x, by fc2: the block has read all of v. Another block wrote v after all of its warps had read x.
 *   - v: the block has read all of x. Another block wrote x after all of its warps had read v.
 *   - x, by the input layer: the block has read all outputs. Another block wrote its outputs after it had read x.
 *   - outputs: the block has read all of x. Another block wrote x after it had read the outputs.
 * So each block reads all outputs, also those that a step does not use. */
#include "kernels/cuda/persistent_layers.cuh"

enum { RESIDENT_ROWS = 8, RESIDENT_OWN = 8 };

/* A block's shared memory, for up to R rows of a head of width W with D residual blocks and C channels. */
template <int W, int D, int C, int R> struct resident_shared {
    enum {
        WIDTH = W,
        DEPTH = D,
        CHANNELS = C,
        ROWS = R,
        OUTPUTS = 2 * C,
        BLOCKS = W / RESIDENT_OWN,
        PAIRS = W <= 32 * PERSISTENT_PARTS ? 1 : 4, /* of the instance that packs the weights */
        LANE_ROWS = 32 / PERSISTENT_LANES,          /* rows that a warp normalises at a time */
        ROUNDS = (R + LANE_ROWS - 1) / LANE_ROWS,   /* of LANE_ROWS rows */
        PIECES = PAIRS * 4,                         /* of a row of v that a warp loads */
        LOADS = (R * PIECES + 31) / 32,             /* of these, by a lane */
        EACH = (R * OUTPUTS + BLOCKS - 1) / BLOCKS  /* outputs of a block */
    };
    static_assert(W % (32 * PAIRS) == 0 && W <= 32 * PERSISTENT_PARTS * PAIRS && OUTPUTS % EACH == 0 && C % 4 == 0,
                  "no form");
    uint4 weight[2 * D][PERSISTENT_PARTS][PAIRS][32];
    uint4 operand[PERSISTENT_PARTS][PAIRS][32]; /* pieces of rows 0 to 7 */
    float2 sum[2][PERSISTENT_PARTS][32];        /* the parts' sums of fc1 and of fc2; the owner's lane */
    float2 moments[R][PERSISTENT_PARTS];
    float bias[2 * D][RESIDENT_OWN];
    float in[RESIDENT_OWN][C + 1]; /* weights, bias */
    float state[R][C];
    float4 out[EACH][W / 4]; /* weights of the block's outputs: resident_unit */
    float scratch[(2 + EACH) * PERSISTENT_WARPS];
};

typedef cuda_floats<4> quad; /* four neighbouring channels of a token */

/* --- words ----------------------------------------------------------------------------------------------------- */

/* Returns where the first two of channels 4 * i.. of a row of x are; the others are 8 behind. Eight neighbouring lanes
 * load 128 bytes at a time. */
template <typename S> static __device__ __forceinline__ uint4 *resident_x_at(const persistent_args &a, int row, int i)
{
    return a.x + row * (S::WIDTH / 2) + (i >> 3) * 16 + (i & 7);
}
/* Returns where channels 8 * i.. of a row of v are; the last four are 4 behind. */
template <typename S> static __device__ __forceinline__ uint4 *resident_v_at(const persistent_args &a, int row, int i)
{
    return a.v + row * (S::WIDTH / 4) + (i >> 2) * 8 + (i & 3);
}

/* Loads two pairs of words, `behind` pairs apart. A loop that polls loads all of a thread's words, without branches,
 * before it looks at the first: else it waits for the L2 several times. Threads without a row load another's. */
typedef struct {
    uint4 first, second;
} resident_words;
static __device__ __forceinline__ resident_words resident_load(const uint4 *at, int behind)
{
    resident_words w;
    w.first = fast::load_two_words(at), w.second = fast::load_two_words(at + behind);
    return w;
}
/* Returns 0 if the words have this number. */
static __device__ __forceinline__ unsigned resident_late(const resident_words &w, unsigned number)
{
    return (w.first.y ^ number) | (w.first.w ^ number) | (w.second.y ^ number) | (w.second.w ^ number);
}
static __device__ __forceinline__ float4 resident_floats(const resident_words &w)
{
    return make_float4(__uint_as_float(w.first.x), __uint_as_float(w.first.z), __uint_as_float(w.second.x),
                       __uint_as_float(w.second.z));
}

/* The thread's columns 2 * (thread % 4).. of the block and its row; threads below 4 * rows have some, all of warp 0. */
template <typename S> static __device__ __forceinline__ int resident_column()
{
    return RESIDENT_OWN * (int)blockIdx.x + 2 * ((int)threadIdx.x % 4);
}

template <typename S>
static __device__ __forceinline__ void resident_store_x(const persistent_args &a, const float2 &x, unsigned number)
{
    const int column = resident_column<S>();
    fast::store_two_words(resident_x_at<S>(a, (int)threadIdx.x / 4, column / 4) + (column & 2) * 4,
                          __float_as_uint(x.x), __float_as_uint(x.y), number);
}

template <typename S>
static __device__ __forceinline__ void resident_store_v(const persistent_args &a, const float2 &y, unsigned number)
{
    const int column = resident_column<S>();
    uint2 *at = (uint2 *)(resident_v_at<S>(a, (int)threadIdx.x / 4, column / 8) + (column & 4));
    fast::store_word(at + (column / 2 & 1), cuda_pack<f16>(persistent_silu(y.x), persistent_silu(y.y)), number);
}

/* --- products -------------------------------------------------------------------------------------------------- */

/* Returns the pairs of mmas of the warp's part that have channels. */
template <typename S> static __device__ __forceinline__ int resident_used()
{
    if (S::WIDTH == 32 * PERSISTENT_PARTS * S::PAIRS) return S::PAIRS;
    return persistent_used<S::PAIRS>(S::WIDTH, (int)threadIdx.x / 32);
}

template <typename S>
static __device__ __forceinline__ void resident_load_weights(const S &s, int product, uint4 (&k)[S::PAIRS])
{
#pragma unroll
    for (int p = 0; p < S::PAIRS; p++) k[p] = s.weight[product][threadIdx.x / 32][p][threadIdx.x % 32];
}

/* Multiplies the warps' operands with weights k. Returns the sums of the thread's columns, with bias; 0 if it has none.
 */
template <typename S>
static __device__ __forceinline__ float2 resident_multiply(S &s, const uint4 (&k)[S::PAIRS], int product, int rows)
{
    const int thread = (int)threadIdx.x, warp = thread / 32, lane = thread % 32;
    float even[4] = {}, odd[4] = {};
    __syncwarp();
#pragma unroll
    for (int p = 0; p < S::PAIRS; p++) { /* rows 8 to 15 of the tile are 0 */
        const uint4 u = s.operand[warp][p][lane];
        const uint32_t a0[4] = {u.x, 0, u.y, 0}, a1[4] = {u.z, 0, u.w, 0};
        const uint32_t b0[2] = {k[p].x, k[p].y}, b1[2] = {k[p].z, k[p].w};
        fast::mma<f16>(even, a0, b0);
        fast::mma<f16>(odd, a1, b1);
    }
    if (lane < 4 * S::ROWS) s.sum[product & 1][warp][lane] = make_float2(even[0] + odd[0], even[1] + odd[1]);
    __syncthreads();
    float2 y = {};
    if (thread >= 4 * rows) return y;
    y = *(const float2 *)(s.bias[product] + 2 * (thread % 4));
#pragma unroll
    for (int part = 0; part < PERSISTENT_PARTS; part++) {
        const float2 d = s.sum[product & 1][part][thread];
        y.x += d.x;
        y.y += d.y;
    }
    return y;
}

/* s.operand = the warp's channels of the modulated layer norm of x; k = fc1's weights, loaded behind the wait, before
 * which registers are the limit. */
template <typename S>
static __device__ __forceinline__ void resident_normalise(const persistent_args &a, S &s, const unsigned char *mod,
                                                          int block, int rows, unsigned number, uint4 (&k)[S::PAIRS])
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % PERSISTENT_LANES, used = resident_used<S>();
    const int first = (int)threadIdx.x % 32 / PERSISTENT_LANES, four = warp * S::PAIRS * 8 + lane;
    uint2 shift[S::ROUNDS][S::PAIRS], scale[S::ROUNDS][S::PAIRS];
    resident_words w[S::ROUNDS][S::PAIRS];
    unsigned late, polls = 0;
#pragma unroll
    for (int r = 0; r < S::ROUNDS; r++) {
        const int row = min(first + r * S::LANE_ROWS, rows - 1);
        const uint2 *at = (const uint2 *)(mod + row * a.mod_bytes) + 3 * block * (S::WIDTH / 4) + four;
#pragma unroll
        for (int p = 0; p < S::PAIRS; p++) {
            shift[r][p] = scale[r][p] = make_uint2(0, 0);
            if (p < used) shift[r][p] = __ldcg(at + p * 8), scale[r][p] = __ldcg(at + S::WIDTH / 4 + p * 8);
        }
    }
    do {
        late = 0;
#pragma unroll
        for (int r = 0; r < S::ROUNDS; r++) {
            const uint4 *at = resident_x_at<S>(a, min(first + r * S::LANE_ROWS, rows - 1), four);
#pragma unroll
            for (int p = 0; p < S::PAIRS; p++)
                if (p < used) w[r][p] = resident_load(at + p * 16, 8);
        }
#pragma unroll
        for (int r = 0; r < S::ROUNDS; r++)
#pragma unroll
            for (int p = 0; p < S::PAIRS; p++)
                if (p < used) late |= resident_late(w[r][p], number);
    } while (!persistent_polled(a, late != 0, &polls));
    float4 x[S::ROUNDS][S::PAIRS];
#pragma unroll
    for (int r = 0; r < S::ROUNDS; r++)
#pragma unroll
        for (int p = 0; p < S::PAIRS; p++) x[r][p] = p < used ? resident_floats(w[r][p]) : make_float4(0, 0, 0, 0);
    resident_load_weights(s, 2 * block, k);
#pragma unroll
    for (int r = 0; r < S::ROUNDS; r++) {
        const int row = first + r * S::LANE_ROWS;
        const float2 moments = persistent_measure<S::PAIRS>(x[r], used);
        if (lane == 0 && row < rows) s.moments[row][warp] = moments;
    }
    __syncthreads();
    persistent_block f;
    f.moments = s.moments[0];
#pragma unroll
    for (int r = 0; r < S::ROUNDS; r++) {
        const int row = first + r * S::LANE_ROWS;
        uint2 u[S::PAIRS];
        if (row >= rows) continue;
        persistent_normalise<S::PAIRS>(x[r], persistent_merge<S::PAIRS>(a, &f, row), shift[r], scale[r], u);
#pragma unroll
        for (int p = 0; p < S::PAIRS; p++) ((uint2 *)&s.operand[warp][p][4 * row])[lane] = u[p];
    }
}

/* s.operand = the warp's channels of v. */
template <typename S>
static __device__ __forceinline__ void resident_load_v(const persistent_args &a, S &s, int rows, unsigned number)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int used = resident_used<S>();
    resident_words w[S::LOADS];
    unsigned late, polls = 0;
    do {
        late = 0;
#pragma unroll
        for (int i = 0; i < S::LOADS; i++) {
            const int row = min((lane + 32 * i) / S::PIECES, rows - 1), at = (lane + 32 * i) % S::PIECES;
            w[i] = resident_load(resident_v_at<S>(a, row, used ? S::PIECES * warp + at : at), 4);
        }
#pragma unroll
        for (int i = 0; i < S::LOADS; i++) late |= resident_late(w[i], number);
    } while (!persistent_polled(a, late != 0, &polls));
#pragma unroll
    for (int i = 0; i < S::LOADS; i++) {
        const int row = (lane + 32 * i) / S::PIECES, at = (lane + 32 * i) % S::PIECES;
        const uint4 piece = make_uint4(w[i].first.x, w[i].first.z, w[i].second.x, w[i].second.z);
        if (row < rows && at / 4 < used) s.operand[warp][at / 4][4 * row + at % 4] = piece;
    }
}

/* Computes a residual block. x is the thread's two columns. Returns the number of the last words. */
template <typename S>
static __device__ __forceinline__ unsigned resident_layer(const persistent_args &a, S &s, const unsigned char *mod,
                                                          int block, int rows, unsigned number, float2 *x)
{
    const bool owner = (int)threadIdx.x < 4 * rows;
    const size_t row = threadIdx.x / 4 * a.mod_bytes;
    const f16 *gates = (const f16 *)(mod + row) + (3 * block + 2) * S::WIDTH + resident_column<S>();
    const uint32_t packed = owner ? __ldcg((const unsigned *)gates) : 0;
    uint4 k[S::PAIRS];
    resident_normalise(a, s, mod, block, rows, number, k);
    const float2 v = resident_multiply(s, k, 2 * block, rows);
    if (owner) resident_store_v<S>(a, v, number + 1);
    resident_load_weights(s, 2 * block + 1, k);
    resident_load_v(a, s, rows, number + 1);
    const float2 y = resident_multiply(s, k, 2 * block + 1, rows), gate = cuda_two<f16>(packed);
    *x = make_float2(x->x + gate.x * y.x, x->y + gate.y * y.y);
    if (owner) resident_store_x<S>(a, *x, number + 2);
    return number + 2;
}

/* Returns the thread's columns of the input layer, in f32 (persistent_in). */
template <typename S> static __device__ __forceinline__ float2 resident_in(const S &s, int tokens, int rows)
{
    const int row = (int)threadIdx.x / 4, pair = (int)threadIdx.x % 4;
    float2 x = {};
    if (row >= rows) return x;
    const float *w0 = s.in[2 * pair], *w1 = s.in[2 * pair + 1], *state = s.state[row < tokens ? row : row - tokens];
    x = make_float2(w0[S::CHANNELS], w1[S::CHANNELS]);
#pragma unroll
    for (int c = 0; c < S::CHANNELS; c += 4) {
        const float4 z = *(const float4 *)(state + c);
        x.x = x.x + z.x * w0[c] + z.y * w0[c + 1] + z.z * w0[c + 2] + z.w * w0[c + 3];
        x.y = x.y + z.x * w1[c] + z.y * w1[c + 1] + z.z * w1[c + 2] + z.w * w1[c + 3];
    }
    return x;
}

/* --- the final layer and the step ------------------------------------------------------------------------------ */

/* Returns the first of the block's EACH outputs of a row, a number in [ROWS][OUTPUTS]. */
template <typename S> static __device__ __forceinline__ int resident_unit()
{
    return (int)blockIdx.x * S::EACH;
}

/* Writes the block's outputs, in f32 (persistent_out). */
template <typename S>
static __device__ __forceinline__ void resident_out(const persistent_args &a, S &s, const unsigned char *mod, int rows,
                                                    unsigned number)
{
    const int thread = (int)threadIdx.x, vectors = S::WIDTH / 4, unit = resident_unit<S>(), row = unit / S::OUTPUTS;
    if (row >= rows) return;
    const float4 *last = (const float4 *)(mod + row * a.mod_bytes + a.mod_final) + thread;
    float4 shift = {}, scale = {}, x = {};
    resident_words w = {};
    unsigned late = 0, polls = 0;
    if (thread < vectors) shift = __ldcg(last), scale = __ldcg(last + vectors);
    do {
        if (thread < vectors) w = resident_load(resident_x_at<S>(a, row, thread), 8), late = resident_late(w, number);
    } while (!persistent_polled(a, late != 0, &polls));
    if (thread < vectors) x = resident_floats(w);
    const float sum = (x.x + x.y) + (x.z + x.w);
    const float mean = cuda_block_sum<PERSISTENT_WARPS>(sum, s.scratch) / (float)S::WIDTH;
    if (thread < vectors) x = make_float4(x.x - mean, x.y - mean, x.z - mean, x.w - mean);
    const float squares = cuda_block_sum<PERSISTENT_WARPS>(persistent_dot(x, x), s.scratch + PERSISTENT_WARPS);
    const float inv = cuda_inverse_deviation(squares / (float)S::WIDTH, 1e-6f);
    x.x = x.x * inv * (1 + scale.x) + shift.x;
    x.y = x.y * inv * (1 + scale.y) + shift.y;
    x.z = x.z * inv * (1 + scale.z) + shift.z;
    x.w = x.w * inv * (1 + scale.w) + shift.w;
    float *part = s.scratch + 2 * PERSISTENT_WARPS;
#pragma unroll
    for (int i = 0; i < S::EACH; i++) {
        const float y = cuda_warp_sum(thread < vectors ? persistent_dot(x, s.out[i][thread]) : 0);
        if (thread % 32 == 0) part[i * PERSISTENT_WARPS + thread / 32] = y;
    }
    __syncthreads();
    if (thread >= S::EACH) return;
    float y = __ldg(a.out_bias + unit % S::OUTPUTS + thread);
#pragma unroll
    for (int w = 0; w < PERSISTENT_WARPS; w++) y += part[thread * PERSISTENT_WARPS + w];
    fast::store_word((uint2 *)a.out + unit + thread, __float_as_uint(y), number + 1);
}

/* Takes a step of the thread's quad of the states, in every block. *x0 is a solver's last x0. */
template <typename S>
static __device__ __forceinline__ void resident_step(const persistent_args &a, S &s, const kern_chain_job &j, int step,
                                                     unsigned number, quad *x0)
{
    const int token = (int)threadIdx.x / (S::CHANNELS / 4), channel = (int)threadIdx.x % (S::CHANNELS / 4) * 4;
    if (token >= j.tokens) return;
    quad noise = {};
    uint32_t words[4];
    const kern_chain_coef coef = j.coef ? j.coef[step] : kern_chain_coef{};
    const kern_ode_coef ode = j.ode ? j.ode[step] : kern_ode_coef{};
    if (coef.noise != 0) {
        kern_random_words(j.seed[token], KERN_NOISE_STEP, j.image[token], (uint32_t)j.position[token],
                          (uint32_t)j.t[step], (uint32_t)channel / 4, words);
        kern_normal4(words, noise.v);
    }
    const uint4 *at = (const uint4 *)a.out + (token * S::OUTPUTS + channel) / 2;
    const uint4 *uncond = at + (j.conditions - 1) * j.tokens * S::OUTPUTS / 2;
    resident_words w[4];
    unsigned late, polls = 0;
    do {
        w[0] = resident_load(at, 1), w[1] = resident_load(at + S::CHANNELS / 2, 1);
        w[2] = resident_load(uncond, 1), w[3] = resident_load(uncond + S::CHANNELS / 2, 1);
        late = resident_late(w[0], number) | resident_late(w[1], number);
        late |= resident_late(w[2], number) | resident_late(w[3], number);
    } while (!persistent_polled(a, late != 0, &polls));
    const float4 e = resident_floats(w[0]), v = resident_floats(w[1]), u = resident_floats(w[2]);
    const float eps[4] = {e.x, e.y, e.z, e.w}, other[4] = {u.x, u.y, u.z, u.w}, fraction[4] = {v.x, v.y, v.z, v.w};
    const float cfg = j.conditions == 2 ? j.cfg[token] : 0;
    float *x = s.state[token] + channel;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const float guided = j.conditions == 2 ? kern_chain_eps(eps[n], other[n], cfg) : eps[n];
        x[n] = j.ode ? kern_chain_ode_next(&ode, x[n], guided, &x0->v[n])
                     : kern_chain_next(&coef, x[n], guided, fraction[n], noise.v[n]);
    }
}

/* --- the chain ------------------------------------------------------------------------------------------------- */

/* Loads what stays in shared memory. */
template <typename S>
static __device__ __forceinline__ void resident_begin(const persistent_args &a, S &s, const kern_chain_job &j)
{
    enum { PIECES = PERSISTENT_PARTS * S::PAIRS * 32 };
    const int thread = (int)threadIdx.x, column = RESIDENT_OWN * (int)blockIdx.x;
#pragma unroll 1
    for (int product = 0; product < 2 * S::DEPTH; product++) {
        const uint4 *from = a.weights + (size_t)(product / 2) * a.block_weights + (product % 2 ? a.fc2_weights : 0);
        uint4 *to = s.weight[product][0][0];
        for (int i = thread; i < PIECES; i += PERSISTENT_THREADS)
            fast::copy16(to + i, from + (size_t)blockIdx.x * PIECES + i);
        if (thread < RESIDENT_OWN) s.bias[product][thread] = a.bias[product * S::WIDTH + column + thread];
    }
    fast::copy_commit();
    for (int i = thread; i < PIECES; i += PERSISTENT_THREADS) s.operand[0][0][i] = make_uint4(0, 0, 0, 0);
    for (int i = thread; i < RESIDENT_OWN * (S::CHANNELS + 1); i += PERSISTENT_THREADS) {
        const int n = i / (S::CHANNELS + 1), c = i % (S::CHANNELS + 1);
        s.in[n][c] = c < S::CHANNELS ? a.in[(column + n) * S::CHANNELS + c] : a.in_bias[column + n];
    }
    const float4 *out = (const float4 *)a.out_weight + resident_unit<S>() % S::OUTPUTS * (S::WIDTH / 4);
    for (int i = thread; i < S::EACH * S::WIDTH / 4; i += PERSISTENT_THREADS) s.out[0][i] = out[i];
    for (int i = thread; i < j.tokens * S::CHANNELS; i += PERSISTENT_THREADS) s.state[0][i] = j.x[i];
    fast::copy_wait<0>();
    __syncthreads();
}

template <typename S>
static __global__ void __launch_bounds__(PERSISTENT_THREADS, 1) resident_chain(persistent_args a, kern_chain_job j)
{
    S &s = *(S *)cuda_shared();
    const int thread = (int)threadIdx.x, rows = j.tokens * j.conditions;
    const bool quads = thread < j.tokens * S::CHANNELS / 4;
    const size_t line = (blockIdx.x * PERSISTENT_THREADS + threadIdx.x) * (size_t)128;
    const unsigned char *mod = (const unsigned char *)j.mod; /* rows of the step */
    quad x0 = {};
    unsigned number = 0;       /* of the words written last */
    if (j.tokens == 0) return; /* resident_starts only tests whether the kernel starts */
    a.width = S::WIDTH;        /* constants at compile time */
    a.mod_final = 6 * S::DEPTH * S::WIDTH, a.mod_bytes = a.mod_final + 8 * S::WIDTH;
    resident_begin(a, s, j);
    if (j.ode && quads) x0 = ((const quad *)j.x0)[thread];
#pragma unroll 1
    for (int step = j.first; step >= 0; step--, mod += rows * a.mod_bytes) {
        if (step > 0 && line < rows * a.mod_bytes)
            fast::prefetch_l2(mod + rows * a.mod_bytes + line); /* as persistent_prefetch_mod */
        float2 x = resident_in(s, j.tokens, rows);
        if (thread < 4 * rows) resident_store_x<S>(a, x, number + 1);
        number++;
#pragma unroll 1
        for (int block = 0; block < S::DEPTH; block++) number = resident_layer(a, s, mod, block, rows, number, &x);
        resident_out(a, s, mod, rows, number);
        number++;
        resident_step(a, s, j, step, number, &x0);
        __syncthreads();
    }
    if (blockIdx.x == 0 && quads) {
        ((quad *)j.x)[thread] = ((const quad *)s.state)[thread];
        if (j.ode) ((quad *)j.x0)[thread] = x0;
    }
    if (thread == 0 && persistent_gave_up(a)) *a.gave_up = 1;
}

/* --- the host -------------------------------------------------------------------------------------------------- */

typedef void (*resident_kernel)(persistent_args, kern_chain_job);
enum { RESIDENT_SIZES = 3 }; /* kernels for up to 2, 4 and 8 rows */

template <int W, int D, int C> struct resident_table {
    static constexpr resident_kernel kernels[RESIDENT_SIZES] = {resident_chain<resident_shared<W, D, C, 2>>,
                                                                resident_chain<resident_shared<W, D, C, 4>>,
                                                                resident_chain<resident_shared<W, D, C, 8>>};
    static constexpr size_t bytes[RESIDENT_SIZES] = {
        sizeof(resident_shared<W, D, C, 2>), sizeof(resident_shared<W, D, C, 4>), sizeof(resident_shared<W, D, C, 8>)};
};

/* The heads with a resident form: the demo model's and MAR-B's; on the host, where the blocks of MAR-B are too many,
 * two of tests/cuda/test_persistent.c. */
static const struct resident_head {
    int width, depth, channels;
    const resident_kernel *kernels;
    const size_t *bytes;
} resident_heads[] = {
#define RESIDENT_HEAD(W, D, C)                                                                                         \
    {                                                                                                                  \
        W, D, C, resident_table<W, D, C>::kernels, resident_table<W, D, C>::bytes                                      \
    }
    RESIDENT_HEAD(64, 3, 16),
#ifdef MAR_CUDAHOST
    RESIDENT_HEAD(256, 6, 16),
    RESIDENT_HEAD(512, 1, 8),
#else
    RESIDENT_HEAD(1024, 6, 16),
#endif
#undef RESIDENT_HEAD
};

/* Returns the arguments of a launch of kernel `size`; *args has the queue's working memory, or none. */
static persistent_args resident_args(const resident_head *of, int size, const persistent_args *args)
{
    persistent_args a = *args;
    a.cluster = 1, a.clusters = of->width / RESIDENT_OWN, a.shared_bytes = of->bytes[size];
    a.v = a.x + RESIDENT_ROWS * of->width / 2; /* as words, 8 and 4 bytes a channel */
    a.out = (float *)(a.v + RESIDENT_ROWS * of->width / 4);
    return a;
}

const resident_head *resident_find(const cuda_queue *c, const kern_head_spec *spec)
{
    for (const resident_head &of : resident_heads)
        if (spec->form == KERN_HEAD_MLP && spec->width == of.width && spec->depth == of.depth &&
            spec->channels == of.channels && of.width / RESIDENT_OWN <= c->device->multiprocessors &&
            of.bytes[RESIDENT_SIZES - 1] <= c->device->shared_bytes)
            return &of;
    return NULL;
}

cudaError_t resident_try(const cuda_queue *c, const persistent_head *f, const resident_head *of)
{
    cudaError_t e = cudaSuccess;
    for (int size = 0; size < RESIDENT_SIZES && e == cudaSuccess; size++)
        e = persistent_start(c, resident_args(of, size, &f->args), of->kernels[size], kern_chain_job());
    return e;
}

int resident_run(cuda_queue *c, const persistent_head *f, const kern_chain_job *job)
{
    const int rows = job->tokens * job->conditions, size = rows <= 2 ? 0 : rows <= 4 ? 1 : 2;
    persistent_args args;
    if (!f->few || rows > RESIDENT_ROWS) return 0;
    if (!cuda_live(c) || !persistent_prepare(c, f, true, &args)) return 1;
    args = resident_args(f->few, size, &args);
    const size_t words = (size_t)RESIDENT_ROWS * 2 * (size_t)args.channels * sizeof(uint2);
    const size_t zeros = (size_t)((char *)args.out - (char *)args.arrivals) + words;
    if (cuda_ok(c, cudaMemsetAsync(args.arrivals, 0, zeros, c->stream), "preparing the head's kernel"))
        cuda_ok(c, persistent_start(c, args, f->few->kernels[size], *job), "launching the head's kernel");
    return 1;
}
