/* The chain of up to 8 rows without clusters, barriers of the grid and fences: the second form of persistent.cu's,
 * chosen at load (MAR_CUDA_HEAD_RESIDENT, docs/gpu.md).
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
 * Wide words have the low 16 bits of the number. They suffice: who waits for a number has read the word's last one, or
 * its zeros, so a word has that or the next, and these differ by 2 to 2*DEPTH + 2. FIRST makes the numbers of a chain's
 * second step wrap, so that every longer chain tests it; the words of 0 are overwritten by then. */
#include "kernels/cuda/chain.cuh"
#include "kernels/cuda/persistent_layers.cuh"

enum { RESIDENT_ROWS = 8, RESIDENT_OWN = 8 };

typedef enum { RESIDENT_FC1, RESIDENT_FC2 } resident_side;

/* Returns the least power of two that is at least n. */
static constexpr int resident_power(int n)
{
    return n <= 1 ? 1 : 2 * resident_power((n + 1) / 2);
}

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
        WORDS = OUT + R * OUTPUTS / 2,
        FIRST = 0x10000 - (2 * D + 4) /* number before the first */
    };
    static_assert(W % 32 == 0 && ALL1 <= PERSISTENT_PARTS * PAIRS1 && ALL2 <= PERSISTENT_PARTS * PAIRS2, "no form");
    static_assert(H ? 2 * H == 3 * W && H % 32 == 0 : W % (32 * PAIRS1) == 0, "words end within a part or a block");
    static_assert(EACH >= LEAST && OUTPUTS % EACH == 0 && C % 4 == 0, "outputs of a block are of one row");
    uint4 weight[N / 2 * (FC1 + FC2) + N % 2 * FC1]; /* [product][tile][pair][32] */
    uint4 operand[ALL2 > ALL1 ? ALL2 : ALL1][32];    /* pieces of rows 0 to 7 */
    float2 sum1[TILES][PERSISTENT_PARTS][4 * R];     /* the parts' sums of fc1 and of fc2 */
    float2 sum2[1][PERSISTENT_PARTS][4 * R];
    float2 moments[R][PERSISTENT_PARTS];
    float bias[D][TILES + 1][RESIDENT_OWN]; /* of fc1, of fc2 */
    float in[C + 1][RESIDENT_OWN];          /* weights, bias */
    float state[R][C];
    float scratch[(2 + EACH) * PERSISTENT_WARPS];
};

typedef cuda_floats<4> quad; /* four neighbouring channels of a token */

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
static __device__ __forceinline__ void resident_normalise(const persistent_args &a, S &s, const unsigned char *mod,
                                                          int block, int rows, unsigned number,
                                                          resident_weights<S, RESIDENT_FC1> &k)
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
        const uint2 *at = (const uint2 *)(mod + row * a.mod_bytes) + 3 * (block / S::GROUP) * (S::WIDTH / 4) + four;
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
        const float2 moments = persistent_measure<PAIRS>(x[r], used);
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
    const unsigned first = cuda_pack<f16>(persistent_silu(y.x), persistent_silu(y.y));
    const unsigned second = cuda_pack<f16>(persistent_silu(y.z), persistent_silu(y.w));
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
    const unsigned v = cuda_pack<f16>(persistent_silu(y.x) * y.y, persistent_silu(y.z) * y.w);
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
static __device__ __forceinline__ unsigned resident_layer(const persistent_args &a, S &s, const unsigned char *mod,
                                                          int block, int rows, unsigned number, float4 *x)
{
    const int thread = (int)threadIdx.x, row = thread / 2, half = thread % 2;
    const int column = RESIDENT_OWN * (int)blockIdx.x + 4 * half;
    const f16 *gates = (const f16 *)(mod + row * a.mod_bytes) + (3 * (block / S::GROUP) + 2) * S::WIDTH + column;
    const uint2 packed = row < rows ? __ldcg((const uint2 *)gates) : make_uint2(0, 0);
    resident_weights<S, RESIDENT_FC1> k1;
    resident_weights<S, RESIDENT_FC2> k2;
    resident_normalise(a, s, mod, block, rows, number, k1);
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

/* --- the final layer and the step ------------------------------------------------------------------------------ */

/* Writes the block's outputs, in f32 (persistent_out): EACH of a row, from number unit in [ROWS][OUTPUTS] on. */
template <typename S>
static __device__ __forceinline__ void resident_out(const persistent_args &a, S &s, const unsigned char *mod, int rows,
                                                    unsigned number)
{
    const int thread = (int)threadIdx.x, vectors = S::WIDTH / 4;
    const int unit = (int)blockIdx.x * S::EACH, row = unit / S::OUTPUTS, pair = thread / 8;
    if (row >= rows) return;
    const float4 *last = (const float4 *)(mod + row * a.mod_bytes + a.mod_final) + thread;
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
    const float squares = cuda_block_sum<PERSISTENT_WARPS>(persistent_dot(x, x), s.scratch + PERSISTENT_WARPS);
    const float inv = cuda_inverse_deviation(squares / (float)S::WIDTH, 1e-6f);
    x.x = x.x * inv * (1 + scale.x) + shift.x;
    x.y = x.y * inv * (1 + scale.y) + shift.y;
    x.z = x.z * inv * (1 + scale.z) + shift.z;
    x.w = x.w * inv * (1 + scale.w) + shift.w;
    float *part = s.scratch + 2 * PERSISTENT_WARPS;
#pragma unroll
    for (int i = 0; i < S::EACH; i++) {
        const float y = cuda_warp_sum(persistent_dot(x, weight[i]));
        if (thread % 32 == 0) part[i * PERSISTENT_WARPS + thread / 32] = y;
    }
    __syncthreads();
    if (thread >= S::EACH) return;
    float y = __ldg(a.out_bias + unit % S::OUTPUTS + thread);
#pragma unroll
    for (int w = 0; w < PERSISTENT_WARPS; w++) y += part[thread * PERSISTENT_WARPS + w];
    fast::store_word((uint2 *)(a.x + S::OUT) + unit + thread, __float_as_uint(y), number + 1);
}

/* Takes a step of the thread's quad of the states, in every block. *x0 is a solver's last x0. */
template <typename S>
static __device__ __forceinline__ void resident_step(const persistent_args &a, S &s, const kern_chain_job &j, int step,
                                                     unsigned number, quad *x0)
{
    const int token = (int)threadIdx.x / (S::CHANNELS / 4), channel = (int)threadIdx.x % (S::CHANNELS / 4) * 4;
    if (token < j.tokens)
        chain_step(a, j, step, S::CHANNELS, token, channel, a.x + S::OUT, number, s.state[token] + channel, x0->v);
}

/* --- the chain ------------------------------------------------------------------------------------------------- */

/* Copies a product's weights of the block's columns. */
template <typename S, resident_side SIDE>
static __device__ __forceinline__ void resident_copy(const persistent_args &a, S &s, int block)
{
    typedef resident_product<S, SIDE> P;
    const uint4 *from = resident_packed<S, SIDE>(a, block);
    uint4 *to = s.weight + block * (S::FC1 + S::FC2) + (SIDE == RESIDENT_FC1 ? 0 : S::FC1);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < P::TILES * P::ALL * 32; i += PERSISTENT_THREADS)
        fast::copy16(to + i, from + i / (P::ALL * 32) * P::PACKED + i % (P::ALL * 32));
}

/* Loads what stays in shared memory. */
template <typename S>
static __device__ __forceinline__ void resident_begin(const persistent_args &a, S &s, const kern_chain_job &j)
{
    enum { WIDE = RESIDENT_OWN * S::TILES, BOTH = WIDE + RESIDENT_OWN }; /* columns of fc1, of fc1 and fc2 */
    const int thread = (int)threadIdx.x, column = RESIDENT_OWN * (int)blockIdx.x;
#pragma unroll 1
    for (int block = 0; 2 * block < S::KEPT; block++) {
        resident_copy<S, RESIDENT_FC1>(a, s, block);
        if (2 * block + 1 < S::KEPT) resident_copy<S, RESIDENT_FC2>(a, s, block);
    }
    fast::copy_commit();
    for (int i = thread; i < S::DEPTH * BOTH; i += PERSISTENT_THREADS) {
        const float *from = a.bias + i / BOTH * (S::TILES + 1) * S::WIDTH; /* fc1 has TILES * W columns */
        const int n = i % BOTH;
        s.bias[i / BOTH][n / RESIDENT_OWN][n % RESIDENT_OWN] =
            n < WIDE ? from[S::TILES * column + n] : from[S::TILES * S::WIDTH + column + n - WIDE];
    }
    for (int i = thread; i < (int)(sizeof s.operand / sizeof(uint4)); i += PERSISTENT_THREADS)
        s.operand[i / 32][i % 32] = make_uint4(0, 0, 0, 0);
    for (int i = thread; i < RESIDENT_OWN * (S::CHANNELS + 1); i += PERSISTENT_THREADS) {
        const int c = i / RESIDENT_OWN, n = column + i % RESIDENT_OWN;
        s.in[c][i % RESIDENT_OWN] = c < S::CHANNELS ? a.in[n * S::CHANNELS + c] : a.in_bias[n];
    }
    for (int i = thread; i < j.tokens * S::CHANNELS; i += PERSISTENT_THREADS)
        s.state[i / S::CHANNELS][i % S::CHANNELS] = j.x[i];
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
    unsigned number = S::FIRST; /* of the words written last */
    if (j.tokens == 0) return;  /* resident_starts only tests whether the kernel starts */
    a.width = S::WIDTH;         /* constants at compile time */
    a.mod_final = 6 * (S::DEPTH / S::GROUP) * S::WIDTH, a.mod_bytes = a.mod_final + 8 * S::WIDTH;
    resident_begin(a, s, j);
    if (j.ode && quads) x0 = ((const quad *)j.x0)[thread];
#pragma unroll 1
    for (int step = j.first; step >= 0; step--, mod += rows * a.mod_bytes) {
        if (step > 0 && line < rows * a.mod_bytes)
            fast::prefetch_l2(mod + rows * a.mod_bytes + line); /* as persistent_prefetch_mod */
        float4 x = resident_in(s, j.tokens, rows);
        if (thread < 32) resident_store_x<S>(a, x, rows, number + 1);
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

/* A kernel, its shared memory, and its words in 16 bytes. */
typedef struct {
    resident_kernel kernel;
    size_t bytes, words;
} resident_size;
template <typename S> constexpr resident_size resident_of = {resident_chain<S>, sizeof(S), S::WORDS};

/* The heads with a resident form: the demo models' of MAR and Harmon, of NextStep-1 and of SphereAR, MAR-B's (also
 * Harmon 0.5B's), SphereAR-B's; on the host, where the blocks of these are too many, two of
 * tests/cuda/test_persistent.c. */
static const struct resident_head {
    int width, depth, ada_layers, channels, hidden; /* hidden 0: MLP */
    resident_size sizes[RESIDENT_SIZES];
} resident_heads[] = {
#define RESIDENT_HEAD(W, D, A, C, H, N)                                                                                \
    {                                                                                                                  \
        W, D, A, C, H,                                                                                                 \
        {                                                                                                              \
            resident_of<resident_shared<W, D, A, C, H, N, 2>>, resident_of<resident_shared<W, D, A, C, H, N, 4>>,      \
                resident_of<resident_shared<W, D, A, C, H, N, 8>>                                                      \
        }                                                                                                              \
    }
    RESIDENT_HEAD(128, 2, 2, 8, 0, 4), RESIDENT_HEAD(128, 3, 3, 16, 0, 6),  RESIDENT_HEAD(128, 4, 2, 16, 192, 8),
#ifdef MAR_CUDAHOST
    RESIDENT_HEAD(512, 1, 1, 8, 0, 2), RESIDENT_HEAD(256, 2, 1, 4, 384, 1),
#else
    RESIDENT_HEAD(1024, 6, 6, 16, 0, 12), RESIDENT_HEAD(768, 6, 2, 16, 1152, 7),
#endif
#undef RESIDENT_HEAD
};

/* Returns the arguments of a launch of kernel `size`; *args has the queue's working memory, or none. */
static persistent_args resident_args(const resident_head *of, int size, const persistent_args *args)
{
    persistent_args a = *args;
    a.cluster = 1, a.clusters = of->width / RESIDENT_OWN, a.shared_bytes = of->sizes[size].bytes;
    return a;
}

const resident_head *resident_find(const cuda_queue *c, const kern_head_spec *spec)
{
    for (const resident_head &of : resident_heads)
        if (spec->width == of.width && spec->depth == of.depth && spec->channels == of.channels &&
            spec->ada_layers == of.ada_layers && (spec->form == KERN_HEAD_SWIGLU ? spec->hidden : 0) == of.hidden &&
            of.width / RESIDENT_OWN <= c->device->multiprocessors &&
            of.sizes[RESIDENT_SIZES - 1].bytes <= c->device->shared_bytes)
            return &of;
    return NULL;
}

cudaError_t resident_try(const cuda_queue *c, const persistent_head *f, const resident_head *of)
{
    cudaError_t e = cudaSuccess;
    for (int size = 0; size < RESIDENT_SIZES && e == cudaSuccess; size++)
        e = persistent_start(c, resident_args(of, size, &f->args), of->sizes[size].kernel, kern_chain_job());
    return e;
}

int resident_run(cuda_queue *c, const persistent_head *f, const kern_chain_job *job)
{
    const int rows = job->tokens * job->conditions, size = rows <= 2 ? 0 : rows <= 4 ? 1 : 2;
    persistent_args args;
    if (!f->few || rows > RESIDENT_ROWS) return 0;
    if (!cuda_live(c) || !persistent_prepare(c, f, true, &args)) return 1;
    args = resident_args(f->few, size, &args);
    const size_t zeros = (size_t)((char *)(args.x + f->few->sizes[size].words) - (char *)args.arrivals);
    if (cuda_ok(c, cudaMemsetAsync(args.arrivals, 0, zeros, c->stream), "preparing the head's kernel"))
        cuda_ok(c, persistent_start(c, args, f->few->sizes[size].kernel, *job), "launching the head's kernel");
    return 1;
}
