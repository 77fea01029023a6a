/* The resident form's evaluation of the head, for up to 8 rows: without clusters, barriers of the grid and fences. Two
 * kernels of resident.cu use it.
 *
 * The head's shape is known at compile time. A block owns 8 columns of the residual stream, and as large a share of
 * fc1's columns. It keeps its weights in shared memory over the whole chain; those of SwiGLU heads that find no room
 * there come from the L2 cache, and are requested before the wait for the operand that they multiply. A warp has one of
 * the PERSISTENT_PARTS parts of the channels. It loads, normalises and multiplies them alone; the first warps add up
 * the warps' sums and own the columns. Parts, products and sums are persistent_layers.cuh's, in its order, so the bits
 * are the same.
 *
 * An evaluation has 2*DEPTH + 2 exchanges, all of words (ptx.h): the input layer's x, each fc1's v, each fc2's x, and
 * the outputs. Numbers grow by 1 from one to the next in a launch, before which the words are set to 0. A word is
 * overwritten only when no block will read it again:
 *   - x, by fc2: the block has read all of v. Another block wrote v after all of its warps had read x.
 *   - v: the block has read all of x. Another block wrote x after all of its warps had read v.
 *   - x, by the input layer: the block has read all outputs. Another block wrote its outputs after it had read x.
 *   - outputs: the block has read all of x. Another block wrote x after it had read the outputs.
 * So each block reads all outputs, also those that a step does not use.
 *
 * A round of speculation has one exchange more, of states and modulation rows. The block of a slot reads all outputs of
 * its rows, moves its token, and writes them; all blocks read those of all slots before the input layer. So a block
 * that writes x there follows all that have read x, through the slots' blocks. States and modulation rows are
 * overwritten when the slot's block has read x of the input layer, which the others wrote after them.
 *
 * Wide words have the low 16 bits of the number. They suffice: who waits for a number has read the word's last one, or
 * its zeros, so a word has that or the next, and these differ by 2 to 2*DEPTH + 3. FIRST makes the numbers of a second
 * step or round wrap, so that every longer launch tests it; the words of 0 are overwritten by then. */
#ifndef KERNELS_CUDA_RESIDENT_CUH
#define KERNELS_CUDA_RESIDENT_CUH

#include "kernels/cuda/speculation.cuh"

#if defined(__CUDACC__) || defined(MAR_CUDAHOST)

enum { RESIDENT_ROWS = 8, RESIDENT_OWN = 8 };

typedef enum { RESIDENT_FC1, RESIDENT_FC2 } resident_side;

/* Returns the least power of two that is at least n. */
static constexpr int resident_power(int n)
{
    return n <= 1 ? 1 : 2 * resident_power((n + 1) / 2);
}

/* What a token needs in a turn, between evaluations; arrays of N = rows times channels as in kern_speculation. */
template <int N> struct resident_turn {
    speculate_scratch scratch; /* also the filter's */
    int mod_index[RESIDENT_ROWS];
    float mean_p[N], log_std_p[N], tempered_p[N], tempered_q[N];
};

/* A block's shared memory, for more than R/2 and up to R rows of a head of width W with D residual blocks, A adaLN
 * layers and C channels: SwiGLU with H hidden channels, or MLP if H is 0. The first N products stay in it. */
template <int W, int D, int A, int C, int H, int N, int R> struct resident_shared {
    enum {
        WIDTH = W,
        DEPTH = D,
        CHANNELS = C,
        SWIGLU = H > 0,
        HIDDEN = H ? H : W,
        GROUP = D / A, /* blocks of an adaLN layer */
        KEPT = N,
        ROWS = R,
        OUTPUTS = 2 * C,
        BLOCKS = W / RESIDENT_OWN,
        TILES = H ? 3 : 1, /* of 8 columns of fc1; fc2 has 1 */
        /* Pairs of mmas of a part, as the instance that packs the weights has them, and of all parts. */
        MLP_PAIRS = W <= 32 * PERSISTENT_PARTS ? 1 : 4,
        PAIRS1 = H ? 3 : MLP_PAIRS,
        PAIRS2 = H ? 5 : MLP_PAIRS,
        ALL1 = W / 32,
        ALL2 = HIDDEN / 32,
        FC1 = TILES * ALL1 * 32, /* pieces of a product's weights */
        FC2 = ALL2 * 32,
        LANE_ROWS = 32 / PERSISTENT_LANES,        /* rows that a warp normalises at a time */
        ROUNDS = (R + LANE_ROWS - 1) / LANE_ROWS, /* of LANE_ROWS rows */
        EARLY = H && R <= 4, /* fc1's weights are loaded before the wait: registers are the limit */
        LEAST = (R * OUTPUTS + BLOCKS - 1) / BLOCKS,
        EACH = resident_power(LEAST), /* outputs of a block */
        /* Words, in 16 bytes: of x with their tails, of v with theirs, and of outputs. */
        TAILS = (PAIRS1 + 1) / 2, /* of a lane's channels of x in a row */
        V_WORDS = H ? H / 6 : W / 8,
        X_TAIL = R * W / 4,
        V = X_TAIL + R * PERSISTENT_PARTS * 4 * TAILS,
        V_TAIL = V + R * V_WORDS,
        OUT = V_TAIL + (H ? 0 : W / 8 * R / 4),
        ROUND = OUT + R * OUTPUTS / 2, /* [R][C] states, [R] modulation rows */
        WORDS = ROUND + R * (C + 1) / 2,
        FIRST = 0x10000 - (2 * D + 4) /* number before the first */
    };
    static_assert(W % 32 == 0 && ALL1 <= PERSISTENT_PARTS * PAIRS1 && ALL2 <= PERSISTENT_PARTS * PAIRS2, "no form");
    static_assert(H ? 2 * H == 3 * W && H % 32 == 0 : W % (32 * PAIRS1) == 0, "words end within a part or a block");
    static_assert(EACH >= LEAST && OUTPUTS % EACH == 0 && C % 4 == 0, "outputs of a block are of one row");
    static_assert(R * (C + 1) <= PERSISTENT_THREADS, "a thread has a word of a round");
    uint4 weight[N / 2 * (FC1 + FC2) + N % 2 * FC1]; /* [product][tile][pair][32] */
    union {
        uint4 operand[ALL2 > ALL1 ? ALL2 : ALL1][32]; /* pieces of rows 0 to 7 */
        resident_turn<R * C> turn;
    };
    float2 sum1[TILES][PERSISTENT_PARTS][4 * R]; /* the parts' sums of fc1 and of fc2 */
    float2 sum2[1][PERSISTENT_PARTS][4 * R];
    float2 moments[R][PERSISTENT_PARTS];
    float bias[D][TILES + 1][RESIDENT_OWN]; /* of fc1, of fc2 */
    float in[C + 1][RESIDENT_OWN];          /* weights, bias */
    float state[R][C];
    const unsigned char *mod[R]; /* modulation rows */
    float scratch[(2 + EACH) * PERSISTENT_WARPS];
};

/* --- words ----------------------------------------------------------------------------------------------------- */

/* Four neighbouring channels of x are a wide word: three, and the upper half of the fourth. The lower halves of two
 * words are another word, their tail. Neighbouring lanes load neighbouring words, and tails that a lane needs are
 * neighbours. A loop that polls loads all of a thread's words, without branches, before it looks at the first: else it
 * waits for the L2 several times. Threads without a row load another's. */
template <typename S> static __device__ __forceinline__ uint4 *resident_x_at(const persistent_args &a, int row, int i)
{
    return a.x + row * (S::WIDTH / 4) + i;
}
/* Returns where the tails of channels 32*pair + 8*q.. of a part are, for pair 0. */
template <typename S>
static __device__ __forceinline__ uint4 *resident_tail_at(const persistent_args &a, int row, int part, int q)
{
    return a.x + S::X_TAIL + ((row * PERSISTENT_PARTS + part) * 4 + q) * S::TAILS;
}
/* Returns word n of several. */
static __device__ __forceinline__ uint2 resident_word(const uint4 &two, int n)
{
    return n % 2 ? make_uint2(two.z, two.w) : make_uint2(two.x, two.y);
}
/* Returns the channels of a wide word and its tail; half 1 is the second word of the tail. */
static __device__ __forceinline__ float4 resident_floats(const uint4 &w, unsigned tail, int half)
{
    const unsigned last = (w.w & 0xffff0000u) | (tail >> 16 * half & 0xffff);
    return make_float4(__uint_as_float(w.x), __uint_as_float(w.y), __uint_as_float(w.z), __uint_as_float(last));
}

/* Writes four columns of x, by warp 0: lane 2*row + half has columns 4*half.. of the block. */
template <typename S>
static __device__ __forceinline__ void resident_store_x(const persistent_args &a, const float4 &x, int rows,
                                                        unsigned number)
{
    const int row = (int)threadIdx.x / 2, half = (int)threadIdx.x % 2, pair = (int)blockIdx.x / 4;
    const unsigned last = __float_as_uint(x.w), low = last & 0xffff;
    if (row < rows)
        fast::store_wide_word(resident_x_at<S>(a, row, 2 * (int)blockIdx.x + half),
                              make_uint4(__float_as_uint(x.x), __float_as_uint(x.y), __float_as_uint(x.z),
                                         (last & 0xffff0000u) | (number & 0xffff)));
    const unsigned other = __shfl_xor_sync(0xffffffffu, low, 1);
    uint4 *tail = resident_tail_at<S>(a, row, pair / S::PAIRS1, (int)blockIdx.x % 4);
    if (row < rows && half == 0) fast::store_word((uint2 *)tail + pair % S::PAIRS1, low | other << 16, number);
}

/* --- products -------------------------------------------------------------------------------------------------- */

/* Constants of a product. */
template <typename S, resident_side SIDE> struct resident_product {
    enum {
        PAIRS = SIDE == RESIDENT_FC1 ? S::PAIRS1 : S::PAIRS2,
        ALL = SIDE == RESIDENT_FC1 ? S::ALL1 : S::ALL2,
        TILES = SIDE == RESIDENT_FC1 ? S::TILES : 1,
        PACKED = PERSISTENT_PARTS * PAIRS * 32 /* pieces of a tile in global memory */
    };
};

/* Returns the pairs of mmas of the warp's part that have channels. */
template <typename S, resident_side SIDE> static __device__ __forceinline__ int resident_used()
{
    typedef resident_product<S, SIDE> P;
    if (P::ALL == PERSISTENT_PARTS * P::PAIRS) return P::PAIRS;
    return persistent_used<P::PAIRS>(32 * P::ALL, (int)threadIdx.x / 32);
}

template <typename S, resident_side SIDE>
static __device__ __forceinline__ const uint4 *resident_packed(const persistent_args &a, int block)
{
    typedef resident_product<S, SIDE> P;
    return a.weights + (size_t)block * a.block_weights + (SIDE == RESIDENT_FC1 ? 0 : a.fc2_weights) +
           (size_t)blockIdx.x * (P::TILES * P::PACKED);
}

/* Weights of a block's columns, a warp's part. */
template <typename S, resident_side SIDE> struct resident_weights {
    uint4 k[resident_product<S, SIDE>::TILES][resident_product<S, SIDE>::PAIRS];
};
template <typename S, resident_side SIDE>
static __device__ __forceinline__ void resident_load_weights(const persistent_args &a, const S &s, int block,
                                                             resident_weights<S, SIDE> &w)
{
    typedef resident_product<S, SIDE> P;
    const int used = resident_used<S, SIDE>(), at = (int)threadIdx.x / 32 * P::PAIRS * 32 + (int)threadIdx.x % 32;
    const bool kept = S::KEPT == 2 * S::DEPTH || 2 * block + SIDE < S::KEPT;
    const uint4 *from = s.weight + block * (S::FC1 + S::FC2) + (SIDE == RESIDENT_FC1 ? 0 : S::FC1);
    if (!kept) from = resident_packed<S, SIDE>(a, block);
    const int tile = kept ? P::ALL * 32 : P::PACKED;
#pragma unroll
    for (int t = 0; t < P::TILES; t++)
#pragma unroll
        for (int p = 0; p < P::PAIRS; p++) w.k[t][p] = p < used ? from[t * tile + at + p * 32] : make_uint4(0, 0, 0, 0);
}

/* Multiplies the warps' operands with weights w: sum = the parts' sums. */
template <typename S, resident_side SIDE>
static __device__ __forceinline__ void resident_multiply(S &s, const resident_weights<S, SIDE> &w,
                                                         float2 (*sum)[PERSISTENT_PARTS][4 * S::ROWS])
{
    typedef resident_product<S, SIDE> P;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, used = resident_used<S, SIDE>();
    float even[P::TILES][4] = {}, odd[P::TILES][4] = {};
    __syncwarp();
#pragma unroll
    for (int p = 0; p < P::PAIRS; p++) { /* rows 8 to 15 of the tile are 0 */
        if (p >= used) continue;
        const uint4 u = s.operand[warp * P::PAIRS + p][lane];
        const uint32_t a0[4] = {u.x, 0, u.y, 0}, a1[4] = {u.z, 0, u.w, 0};
#pragma unroll
        for (int t = 0; t < P::TILES; t++) {
            const uint4 &k = w.k[t][p];
            const uint32_t b0[2] = {k.x, k.y}, b1[2] = {k.z, k.w};
            fast::mma<f16>(even[t], a0, b0);
            fast::mma<f16>(odd[t], a1, b1);
        }
    }
#pragma unroll
    for (int t = 0; t < P::TILES; t++)
        if (lane < 4 * S::ROWS) sum[t][warp][lane] = make_float2(even[t][0] + odd[t][0], even[t][1] + odd[t][1]);
    __syncthreads();
}

/* Returns the sums of columns 4*half.. of a tile, with bias. */
template <int R>
static __device__ __forceinline__ float4 resident_sum(const float2 (&sum)[PERSISTENT_PARTS][4 * R], const float *bias,
                                                      int row, int half)
{
    float4 y = *(const float4 *)(bias + 4 * half);
#pragma unroll
    for (int part = 0; part < PERSISTENT_PARTS; part++) {
        const float4 d = *(const float4 *)(sum[part] + 4 * row + 2 * half);
        y.x += d.x;
        y.y += d.y;
        y.z += d.z;
        y.w += d.w;
    }
    return y;
}

/* --- fc1 ------------------------------------------------------------------------------------------------------- */

/* s.operand = the warp's channels of the modulated layer norm of x; k = fc1's weights. */
template <typename S>
static __device__ __forceinline__ void resident_normalise(const persistent_args &a, S &s, int block, int rows,
                                                          unsigned number, resident_weights<S, RESIDENT_FC1> &k)
{
    constexpr int PAIRS = S::PAIRS1, ROUNDS = S::ROUNDS;
    constexpr bool GATED = S::SWIGLU != 0;
    constexpr persistent_side SIDE = GATED ? PERSISTENT_FC1 : PERSISTENT_MLP;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % PERSISTENT_LANES;
    const int first = (int)threadIdx.x % 32 / PERSISTENT_LANES, four = warp * PAIRS * 8 + lane;
    const int used = resident_used<S, RESIDENT_FC1>();
    uint2 shift[ROUNDS][PAIRS], scale[ROUNDS][PAIRS];
    persistent_norm_weights<PAIRS, GATED> affine;
    uint4 w[ROUNDS][PAIRS], tails[ROUNDS][S::TAILS];
    unsigned late, polls = 0;
    persistent_load_norm<PAIRS, GATED>(a, block, warp, &affine);
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        const int row = min(first + r * S::LANE_ROWS, rows - 1);
        const uint2 *at = (const uint2 *)s.mod[row] + 3 * (block / S::GROUP) * (S::WIDTH / 4) + four;
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            shift[r][p] = scale[r][p] = make_uint2(0, 0);
            if (p < used) shift[r][p] = __ldcg(at + p * 8), scale[r][p] = __ldcg(at + S::WIDTH / 4 + p * 8);
        }
    }
    if (S::EARLY) resident_load_weights(a, s, block, k);
    do {
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) {
            const int row = min(first + r * S::LANE_ROWS, rows - 1);
#pragma unroll
            for (int p = 0; p < PAIRS; p++)
                if (p < used) w[r][p] = fast::load_wide_word(resident_x_at<S>(a, row, four + p * 8));
#pragma unroll
            for (int p = 0; p < PAIRS; p += 2)
                if (p < used)
                    tails[r][p / 2] = fast::load_two_words(resident_tail_at<S>(a, row, warp, lane / 2) + p / 2);
        }
        late = 0;
#pragma unroll
        for (int r = 0; r < ROUNDS; r++)
#pragma unroll
            for (int p = 0; p < PAIRS; p++)
                if (p < used) late |= ((w[r][p].w ^ number) & 0xffff) | (resident_word(tails[r][p / 2], p).y ^ number);
    } while (!persistent_polled(a, late != 0, &polls));
    float4 x[ROUNDS][PAIRS];
#pragma unroll
    for (int r = 0; r < ROUNDS; r++)
#pragma unroll
        for (int p = 0; p < PAIRS; p++)
            x[r][p] = p < used ? resident_floats(w[r][p], resident_word(tails[r][p / 2], p).x, lane % 2)
                               : make_float4(0, 0, 0, 0);
    if (!S::EARLY) resident_load_weights(a, s, block, k);
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        const int row = first + r * S::LANE_ROWS;
        /* not `used`, which may be a constant: ptxas makes another reciprocal of one */
        const float2 moments = persistent_measure<PAIRS>(x[r], persistent_used<PAIRS>(S::WIDTH, warp));
        if (lane == 0 && row < rows) s.moments[row][warp] = moments;
    }
    __syncthreads();
    persistent_block f;
    f.moments = s.moments[0];
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        const int row = first + r * S::LANE_ROWS;
        uint2 u[PAIRS];
        if (row >= rows) continue;
        const float2 norm =
            persistent_affine<PAIRS, SIDE>(a, block, warp, affine, persistent_merge<PAIRS>(a, &f, row), x[r]);
        persistent_normalise<PAIRS>(x[r], norm, shift[r], scale[r], u);
#pragma unroll
        for (int p = 0; p < PAIRS; p++)
            if (p < used) ((uint2 *)&s.operand[warp * PAIRS + p][4 * row])[lane] = u[p];
    }
}

/* Returns where the tails of two rows' v of a block are, 2*m and 2*m + 1. */
template <typename S>
static __device__ __forceinline__ uint2 *resident_v_tail(const persistent_args &a, int owner, int m)
{
    return (uint2 *)(a.x + S::V_TAIL) + owner * (S::ROWS / 2) + m;
}

/* Writes v of a row's 8 channels as a wide word of 7; the last ones of two rows are another word. By warp 0. */
template <typename S>
static __device__ __forceinline__ void resident_store_v(const persistent_args &a, const S &s, int block, int rows,
                                                        unsigned number)
{
    const int row = (int)threadIdx.x / 2, half = (int)threadIdx.x % 2, owner = (int)blockIdx.x;
    float4 y = {};
    if (row < rows) y = resident_sum<S::ROWS>(s.sum1[0], s.bias[block][0], row, half);
    const unsigned first = cuda_pack<f16>(cuda_fast_silu(y.x), cuda_fast_silu(y.y));
    const unsigned second = cuda_pack<f16>(cuda_fast_silu(y.z), cuda_fast_silu(y.w));
    const unsigned third = __shfl_xor_sync(0xffffffffu, first, 1), last = __shfl_xor_sync(0xffffffffu, second, 1);
    if (row < rows && half == 0)
        fast::store_wide_word(a.x + S::V + row * S::V_WORDS + owner,
                              make_uint4(first, second, third, last << 16 | (number & 0xffff)));
    const unsigned below = __shfl_xor_sync(0xffffffffu, last, 2);
    if (row < rows && row % 2 == 0 && half == 0)
        fast::store_word(resident_v_tail<S>(a, owner, row / 2), last >> 16 | (below & 0xffff0000u), number);
}

/* Writes v of a row's 12 channels of a SwiGLU head as two wide words of 6. By the first warps, 8 lanes a row. */
template <typename S>
static __device__ __forceinline__ void resident_store_gated(const persistent_args &a, const S &s, int block, int rows,
                                                            unsigned number)
{
    const int row = (int)threadIdx.x / 8, i = (int)threadIdx.x % 8;
    float4 y = {};
    if (row < rows && i < 2 * S::TILES) y = resident_sum<S::ROWS>(s.sum1[i / 2], s.bias[block][i / 2], row, i % 2);
    const unsigned v = cuda_pack<f16>(cuda_fast_silu(y.x) * y.y, cuda_fast_silu(y.z) * y.w);
    const unsigned second = __shfl_down_sync(0xffffffffu, v, 1), third = __shfl_down_sync(0xffffffffu, v, 2);
    if (row < rows && i % 3 == 0 && i < 2 * S::TILES)
        fast::store_wide_word(a.x + S::V + row * S::V_WORDS + (int)blockIdx.x * (2 * S::TILES / 3) + i / 3,
                              make_uint4(v, second, third, number));
}

/* --- fc2 ------------------------------------------------------------------------------------------------------- */

/* s.operand = the warp's channels of v. */
template <typename S>
static __device__ __forceinline__ void resident_load_v(const persistent_args &a, S &s, int rows, unsigned number)
{
    enum { PIECES = S::PAIRS2 * 4, LOADS = (S::ROWS * PIECES + 31) / 32 }; /* of a row of the warp; of a lane */
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, used = resident_used<S, RESIDENT_FC2>();
    const int owner = (used ? PIECES * warp : 0) + lane % PIECES;
    uint4 w[LOADS], tails[(LOADS + 1) / 2];
    uint2 tail[LOADS];
    unsigned late, polls = 0;
    do {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int row = min((lane + 32 * i) / PIECES, rows - 1);
            w[i] = fast::load_wide_word(a.x + S::V + row * S::V_WORDS + owner);
            const size_t at = (size_t)resident_v_tail<S>(a, owner, row / 2);
            if (i % 2 == 0) tails[i / 2] = fast::load_two_words((const uint4 *)(at & ~(size_t)15));
        }
        late = 0;
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int row = min((lane + 32 * i) / PIECES, rows - 1);
            tail[i] = resident_word(tails[i / 2], owner * (S::ROWS / 2) + row / 2);
            late |= ((w[i].w ^ number) & 0xffff) | (tail[i].y ^ number);
        }
    } while (!persistent_polled(a, late != 0, &polls));
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        const int row = (lane + 32 * i) / PIECES, at = lane % PIECES;
        const unsigned last = w[i].w >> 16 | tail[i].x >> 16 * (row % 2) << 16;
        if (row < rows && at / 4 < used)
            s.operand[warp * S::PAIRS2 + at / 4][4 * row + at % 4] = make_uint4(w[i].x, w[i].y, w[i].z, last);
    }
}

/* The same of a SwiGLU head. Words of 6 channels may reach over the ends of a part. */
template <typename S>
static __device__ __forceinline__ void resident_load_gated(const persistent_args &a, S &s, int rows, unsigned number)
{
    enum { PART = 32 * S::PAIRS2, PIECES = (PART + 4) / 6 + 1, LOADS = (S::ROWS * PIECES + 31) / 32 };
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, begin = warp * PART, from = begin / 6;
    const unsigned end = 32 * (unsigned)resident_used<S, RESIDENT_FC2>();
    uint4 w[LOADS];
    unsigned late, polls = 0;
    do {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int row = min((lane + 32 * i) / PIECES, rows - 1), at = from + (lane + 32 * i) % PIECES;
            w[i] = fast::load_wide_word(a.x + S::V + row * S::V_WORDS + min(at, S::V_WORDS - 1));
        }
        late = 0;
#pragma unroll
        for (int i = 0; i < LOADS; i++) late |= w[i].w ^ number;
    } while (!persistent_polled(a, late != 0, &polls));
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        const int row = (lane + 32 * i) / PIECES;
        const unsigned at = (unsigned)(6 * (from + (lane + 32 * i) % PIECES) - begin);
        const unsigned two[3] = {w[i].x, w[i].y, w[i].z};
        char *to = (char *)((uint4 *)s.operand + 32 * warp * S::PAIRS2 + 4 * row);
#pragma unroll
        for (int n = 0; n < 3; n++) {
            const unsigned c = at + 2 * (unsigned)n; /* channel of the part; wraps before it */
            if (row < rows && c < end) *(unsigned *)(to + c / 32 * sizeof s.operand[0] + c % 32 * 2) = two[n];
        }
    }
}

/* Computes a residual block. x is columns 4*(thread % 2).. of the block and of row thread / 2. Returns the number of
 * the last words. */
template <typename S>
static __device__ __forceinline__ unsigned resident_layer(const persistent_args &a, S &s, int block, int rows,
                                                          unsigned number, float4 *x)
{
    const int thread = (int)threadIdx.x, row = thread / 2, half = thread % 2;
    const int column = RESIDENT_OWN * (int)blockIdx.x + 4 * half;
    const int gate = (3 * (block / S::GROUP) + 2) * S::WIDTH + column;
    uint2 packed = make_uint2(0, 0);
    if (row < rows) packed = __ldcg((const uint2 *)((const f16 *)s.mod[row] + gate));
    resident_weights<S, RESIDENT_FC1> k1;
    resident_weights<S, RESIDENT_FC2> k2;
    resident_normalise(a, s, block, rows, number, k1);
    resident_multiply<S, RESIDENT_FC1>(s, k1, s.sum1);
    if (!S::SWIGLU && thread < 32) resident_store_v(a, s, block, rows, number + 1);
    if (S::SWIGLU && thread < (8 * S::ROWS + 31) / 32 * 32) resident_store_gated(a, s, block, rows, number + 1);
    resident_load_weights(a, s, block, k2);
    if (S::SWIGLU)
        resident_load_gated(a, s, rows, number + 1);
    else
        resident_load_v(a, s, rows, number + 1);
    resident_multiply<S, RESIDENT_FC2>(s, k2, s.sum2);
    if (thread >= 32) return number + 2;
    if (row < rows) {
        const float4 y = resident_sum<S::ROWS>(s.sum2[0], s.bias[block][S::TILES], row, half);
        const float2 gate0 = cuda_two<f16>(packed.x), gate1 = cuda_two<f16>(packed.y);
        *x = make_float4(x->x + gate0.x * y.x, x->y + gate0.y * y.y, x->z + gate1.x * y.z, x->w + gate1.y * y.w);
    }
    resident_store_x<S>(a, *x, rows, number + 2);
    return number + 2;
}

/* Returns the thread's columns of the input layer, in f32 (persistent_in). */
template <typename S> static __device__ __forceinline__ float4 resident_in(const S &s, int tokens, int rows)
{
    const int row = (int)threadIdx.x / 2, half = (int)threadIdx.x % 2;
    float4 x = {};
    if (row >= rows) return x;
    const float *state = s.state[row < tokens ? row : row - tokens];
    x = *(const float4 *)(s.in[S::CHANNELS] + 4 * half);
#pragma unroll
    for (int c = 0; c < S::CHANNELS; c += 4) {
        const float4 z = *(const float4 *)(state + c);
        float4 w[4];
#pragma unroll
        for (int i = 0; i < 4; i++) w[i] = *(const float4 *)(s.in[c + i] + 4 * half);
        x.x = x.x + z.x * w[0].x + z.y * w[1].x + z.z * w[2].x + z.w * w[3].x;
        x.y = x.y + z.x * w[0].y + z.y * w[1].y + z.z * w[2].y + z.w * w[3].y;
        x.z = x.z + z.x * w[0].z + z.y * w[1].z + z.z * w[2].z + z.w * w[3].z;
        x.w = x.w + z.x * w[0].w + z.y * w[1].w + z.z * w[2].w + z.w * w[3].w;
    }
    return x;
}

/* --- the final layer ---------------------------------------------------------------------------------------------- */

/* Writes the block's outputs, in f32 (persistent_out): EACH of a row, from number unit in [ROWS][OUTPUTS] on. */
template <typename S>
static __device__ __forceinline__ void resident_out(const persistent_args &a, S &s, int rows, unsigned number)
{
    const int thread = (int)threadIdx.x, vectors = S::WIDTH / 4;
    const int unit = (int)blockIdx.x * S::EACH, row = unit / S::OUTPUTS, pair = thread / 8;
    if (row >= rows) return;
    const float4 *last = (const float4 *)(s.mod[row] + a.mod_final) + thread;
    const float4 *from = (const float4 *)a.out_weight + unit % S::OUTPUTS * vectors + thread;
    float4 shift = {}, scale = {}, x = {}, weight[S::EACH] = {};
    if (thread < vectors) {
        uint4 w;
        uint2 tail;
        unsigned polls = 0;
        shift = __ldcg(last), scale = __ldcg(last + vectors);
#pragma unroll
        for (int i = 0; i < S::EACH; i++) weight[i] = __ldg(from + i * vectors);
        const uint4 *tails = resident_tail_at<S>(a, row, pair / S::PAIRS1, thread / 2 % 4) + pair % S::PAIRS1 / 2;
        do {
            w = fast::load_wide_word(resident_x_at<S>(a, row, thread));
            tail = resident_word(fast::load_two_words(tails), pair % S::PAIRS1);
        } while (!persistent_polled(a, (((w.w ^ number) & 0xffff) | (tail.y ^ number)) != 0, &polls));
        x = resident_floats(w, tail.x, thread % 2);
    }
    const float sum = (x.x + x.y) + (x.z + x.w);
    const float mean = cuda_block_sum<PERSISTENT_WARPS>(sum, s.scratch) / (float)S::WIDTH;
    if (thread < vectors) x = make_float4(x.x - mean, x.y - mean, x.z - mean, x.w - mean);
    const float squares = cuda_block_sum<PERSISTENT_WARPS>(cuda_dot(x, x), s.scratch + PERSISTENT_WARPS);
    const float inv = cuda_inverse_deviation(squares / (float)S::WIDTH, 1e-6f);
    x.x = x.x * inv * (1 + scale.x) + shift.x;
    x.y = x.y * inv * (1 + scale.y) + shift.y;
    x.z = x.z * inv * (1 + scale.z) + shift.z;
    x.w = x.w * inv * (1 + scale.w) + shift.w;
    float *part = s.scratch + 2 * PERSISTENT_WARPS;
#pragma unroll
    for (int i = 0; i < S::EACH; i++) {
        const float y = cuda_warp_sum(cuda_dot(x, weight[i]));
        if (thread % 32 == 0) part[i * PERSISTENT_WARPS + thread / 32] = y;
    }
    __syncthreads();
    if (thread >= S::EACH) return;
    float y = __ldg(a.out_bias + unit % S::OUTPUTS + thread);
#pragma unroll
    for (int w = 0; w < PERSISTENT_WARPS; w++) y += part[thread * PERSISTENT_WARPS + w];
    fast::store_word((uint2 *)(a.x + S::OUT) + unit + thread, __float_as_uint(y), number + 1);
}

/* Evaluates the head at s.state and s.mod. Returns the number of the outputs. */
template <typename S>
static __device__ __forceinline__ unsigned resident_evaluate(const persistent_args &a, S &s, int states, int rows,
                                                             unsigned number)
{
    float4 x = resident_in(s, states, rows);
    if (threadIdx.x < 32) resident_store_x<S>(a, x, rows, number + 1);
    number++;
#pragma unroll 1
    for (int block = 0; block < S::DEPTH; block++) number = resident_layer(a, s, block, rows, number, &x);
    resident_out(a, s, rows, number);
    return number + 1;
}

#endif

#endif
