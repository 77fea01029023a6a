/* The head's layers inside a persistent kernel (persistent.cuh), from the state to eps and the variance fraction.
 *
 * A product has three stages. Every block copies its parts' channels of the rows into f->operand, as pieces. Its warps
 * multiply them with the cluster's columns and send the sums to the columns' owners. The cluster synchronises, and the
 * owners do the rest. A product takes a.chunk tiles of 16 rows at a time.
 *
 * No row depends on another row, nor on the number of rows. */
#ifndef KERNELS_CUDA_PERSISTENT_LAYERS_CUH
#define KERNELS_CUDA_PERSISTENT_LAYERS_CUH

#include "kernels/cuda/persistent.cuh"

#if defined(__CUDACC__) || defined(MAR_CUDAHOST)

/* --- products -------------------------------------------------------------------------------------------------- */

/* A warp's share of a chunk: units begin .. end - 1 of tiles * (tiles of 16 rows), all columns of a tile of rows first.
 * The warps of a part share the units. */
typedef struct {
    int part; /* index in the block */
    int begin, end;
    int m, tile; /* of unit `begin` */
} persistent_units;

template <persistent_side SIDE>
static __device__ __forceinline__ persistent_units persistent_share(const persistent_args &a, const persistent_block *f,
                                                                    int m, int rows)
{
    const int warp = (int)threadIdx.x / 32, member = warp & (a.cluster - 1),
              tiles = persistent_columns_of<SIDE>(f).tiles;
    const int units = tiles * min(a.chunk, (rows + 15) / 16 - m);
    persistent_units n;
    n.part = warp >> f->log;
    n.begin = units * member >> f->log;
    n.end = units * (member + 1) >> f->log;
    n.m = n.begin / tiles;
    n.tile = n.begin - n.m * tiles;
    return n;
}

/* Loads the lane's pieces of a tile's weights. */
template <int PAIRS>
static __device__ __forceinline__ void persistent_load_weights(const persistent_args &a, const persistent_block *f,
                                                               int product, int part, int tile, uint4 (&w)[PAIRS])
{
    const int lane = (int)threadIdx.x % 32;
    const uint4 *from = persistent_slice(a, f, product) + lane + ((tile << (3 - f->log)) + part) * (PAIRS * 32);
#pragma unroll
    for (int p = 0; p < PAIRS; p++) w[p] = from[p * 32];
}

/* Multiplies the chunk that begins with tile m of 16 rows, and sends the sums. */
template <int PAIRS, persistent_side SIDE, bool WORDS>
static __device__ __forceinline__ void persistent_multiply(const persistent_args &a, const persistent_block *f,
                                                           int product, int m, int rows)
{
    persistent_units n = persistent_share<SIDE>(a, f, m, rows);
    const int part = f->part + n.part, used = persistent_used<PAIRS>(persistent_inputs<SIDE>(a), part);
    const int tiles = persistent_columns_of<SIDE>(f).tiles;
    const uint4 *operand = f->operand + n.part * (PAIRS * 64) + (int)threadIdx.x % 32;
    uint4 w[PAIRS], u[2][PAIRS] = {};
    persistent_load_weights<PAIRS>(a, f, product, n.part, n.tile, w);
    float4 *inbox = persistent_inbox<WORDS>(a, f, rows, product);
    bool fresh = true;
#pragma unroll 1
    for (int unit = n.begin; unit < n.end; unit++) {
        if (fresh) {
#pragma unroll
            for (int p = 0; p < PAIRS; p++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    u[half][p] = make_uint4(0, 0, 0, 0); /* weights of missing channels are 0, but 0 times NaN is NaN */
                    if (p < used) u[half][p] = operand[((n.m << (3 - f->log)) * PAIRS + p) * 64 + half * 32];
                }
        }
        float even[4] = {0, 0, 0, 0}, odd[4] = {0, 0, 0, 0}; /* two sums hide the latency of a mma */
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            const uint32_t a0[4] = {u[0][p].x, u[1][p].x, u[0][p].y, u[1][p].y}, b0[2] = {w[p].x, w[p].y};
            const uint32_t a1[4] = {u[0][p].z, u[1][p].z, u[0][p].w, u[1][p].w}, b1[2] = {w[p].z, w[p].w};
            fast::mma<f16>(even, a0, b0);
            fast::mma<f16>(odd, a1, b1);
        }
        const int tile = n.tile, row_tile = n.m;
        fresh = ++n.tile == tiles;
        if (fresh) n.tile = 0, n.m++;
        if (unit + 1 < n.end) persistent_load_weights<PAIRS>(a, f, product, n.part, n.tile, w);
        persistent_send<SIDE>(a, inbox, rows, part, tile, row_tile,
                              make_float4(even[0] + odd[0], even[1] + odd[1], even[2] + odd[2], even[3] + odd[3]));
    }
}

/* Loads a piece of fc2's operand, 8 channels, from its words. Returns whether some have not come. */
template <persistent_side SIDE>
static __device__ __forceinline__ bool persistent_load_piece(const uint4 *v, int at, unsigned number, uint4 *piece)
{
    if (SIDE == PERSISTENT_MLP) {
        const uint4 x = fast::load_two_words(v + 2 * at), y = fast::load_two_words(v + 2 * at + 1);
        *piece = make_uint4(x.x, x.z, y.x, y.z);
        return persistent_missing(x, number) || persistent_missing(y, number);
    }
    uint4 x[4];
    bool missing = false;
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = fast::load_two_words(v + 4 * at + i);
#pragma unroll
    for (int i = 0; i < 4; i++) missing |= persistent_missing(x[i], number);
    *piece = make_uint4(x[0].x | x[0].z << 16, x[1].x | x[1].z << 16, x[2].x | x[2].z << 16, x[3].x | x[3].z << 16);
    return missing;
}

/* f->operand = the block's channels of the chunk that begins with tile m of 16 rows, from words or pieces. */
template <int PAIRS, persistent_side SIDE, bool WORDS>
static __device__ __forceinline__ void persistent_load_operand(const persistent_args &a, const persistent_block *f,
                                                               const uint4 *from, int m, int rows)
{
    /* pieces in flight; registers are the limit */
    enum { BATCH = WORDS ? (PAIRS <= 4 ? 2 : 1) : PAIRS <= 5 ? 4 : 2 };
    const int log = 3 - f->log, lanes = WORDS ? min(64, 4 * rows) : 64; /* of a tile */
    const int inverse = ((1 << 20) + lanes - 1) / lanes;
    const int count = (min(a.chunk, (rows + 15) / 16 - m) << log) * PAIRS * lanes;
    const int pairs = persistent_inputs<SIDE>(a) / 32;
#pragma unroll 1
    for (int first = (int)threadIdx.x; first < count; first += BATCH * PERSISTENT_THREADS) {
        uint4 piece[BATCH];
        int at[BATCH], to[BATCH];
        bool some[BATCH], missing;
        unsigned polls = 0;
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const int i = first + k * PERSISTENT_THREADS, unit = i * inverse >> 20, lane = i - unit * lanes;
            const int group = unit / PAIRS, tile = m + (group >> log), part = f->part + (group & ((1 << log) - 1));
            const int pair = part * PAIRS + unit - group * PAIRS, row = 16 * tile + lane / 4;
            some[k] = i < count && pair < pairs && row < rows;
            at[k] = (tile * pairs + pair) * 64 + lane;
            to[k] = unit * 64 + lane;
        }
        do {
            missing = false;
#pragma unroll
            for (int k = 0; k < BATCH; k++) {
                if (!some[k]) continue;
                if (WORDS)
                    missing |= persistent_load_piece<SIDE>(from, at[k], f->number, &piece[k]);
                else
                    piece[k] = __ldcg(from + at[k]);
            }
        } while (!persistent_polled(a, missing, &polls));
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (some[k]) f->operand[to[k]] = piece[k];
    }
}

/* --- normalisation --------------------------------------------------------------------------------------------- */

/* Returns the adaLN layer of a block. */
template <persistent_side SIDE>
static __device__ __forceinline__ int persistent_layer_of(const persistent_args &a, int block)
{
    return SIDE == PERSISTENT_MLP ? block : block / a.group;
}

/* Loads shift and scale of an adaLN layer for the thread's channels; 0 for missing channels. */
template <int PAIRS>
static __device__ __forceinline__ void persistent_load_mod(const persistent_args &a, const persistent_block *f, int row,
                                                           int part, bool some, int layer, uint2 (&shift)[PAIRS],
                                                           uint2 (&scale)[PAIRS])
{
    const int used = persistent_used<PAIRS>(a.width, part), lane = (int)threadIdx.x % PERSISTENT_LANES;
    const f16 *mod = some ? (const f16 *)f->mod[row] + (size_t)(3 * layer) * (size_t)a.width : NULL;
    const uint2 *at = (const uint2 *)mod + part * PAIRS * 8 + lane;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        shift[p] = scale[p] = make_uint2(0, 0);
        if (some && p < used) {
            shift[p] = __ldcg(at + p * 8);
            scale[p] = __ldcg(at + a.width / 4 + p * 8);
        }
    }
}

/* Returns where the channels 4 * i.. of a row of the residual stream are; those of i + 1 are persistent_four behind. */
template <bool WORDS> constexpr int persistent_four = WORDS ? 2 : 1;
template <bool WORDS>
static __device__ __forceinline__ const uint4 *persistent_at(const persistent_args &a, int row, int i)
{
    return a.x + (row * a.width / 4 + i) * persistent_four<WORDS>;
}
/* Loads four channels. Returns whether words have not come. */
template <bool WORDS>
static __device__ __forceinline__ bool persistent_load_four(const uint4 *at, unsigned number, float4 *x)
{
    if (!WORDS) {
        *x = __ldcg((const float4 *)at);
        return false;
    }
    const uint4 y = fast::load_two_words(at), z = fast::load_two_words(at + 1);
    *x = make_float4(__uint_as_float(y.x), __uint_as_float(y.z), __uint_as_float(z.x), __uint_as_float(z.z));
    return persistent_missing(y, number) || persistent_missing(z, number);
}

/* Loads the thread's channels of a row of the residual stream, once they have come; 0 for missing channels. */
template <int PAIRS, bool WORDS>
static __device__ __forceinline__ void persistent_load_x(const persistent_args &a, const persistent_block *f, int row,
                                                         int part, bool some, float4 (&x)[PAIRS])
{
    const int used = some ? persistent_used<PAIRS>(a.width, part) : 0, lane = (int)threadIdx.x % PERSISTENT_LANES;
    const uint4 *at = persistent_at<WORDS>(a, row, part * PAIRS * 8 + lane);
    bool missing;
    unsigned polls = 0;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) x[p] = make_float4(0, 0, 0, 0);
    do {
        missing = false;
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            if (p < used) missing |= persistent_load_four<WORDS>(at + p * 8 * persistent_four<WORDS>, f->number, &x[p]);
        }
    } while (!persistent_polled(a, missing, &polls));
}

/* Returns where weights of a SWIGLU block's layer norm begin for the thread's channels; biases are W behind. */
template <int PAIRS>
static __device__ __forceinline__ const float4 *persistent_norm_at(const persistent_args &a, int block, int part)
{
    const int lane = (int)threadIdx.x % PERSISTENT_LANES;
    return (const float4 *)(a.norms + 2 * block * a.width) + part * PAIRS * 8 + lane;
}

/* Weight and bias of a SWIGLU block's layer norm, for the thread's channels, if EARLY. */
template <int PAIRS, bool EARLY> struct persistent_norm_weights {
    float4 weight[EARLY ? PAIRS : 1], bias[EARLY ? PAIRS : 1];
};
/* Loads them if EARLY. Call it before a wait: every barrier empties the L1 cache. */
template <int PAIRS, bool EARLY>
static __device__ __forceinline__ void persistent_load_norm(const persistent_args &a, int block, int part,
                                                            persistent_norm_weights<PAIRS, EARLY> *n)
{
    const float4 *at = persistent_norm_at<PAIRS>(a, block, part);
    *n = {};
#pragma unroll
    for (int p = 0; EARLY && p < PAIRS; p++)
        if (p < persistent_used<PAIRS>(a.width, part))
            n->weight[p] = __ldcg(at + p * 8), n->bias[p] = __ldcg(at + a.width / 4 + p * 8);
}

/* Applies a layer norm that has weight and bias to the thread's channels, for SWIGLU. Returns the mean and the inverse
 * deviation to apply after it: those of `norm`, or 0 and 1. */
template <int PAIRS, persistent_side SIDE, bool EARLY>
static __device__ __forceinline__ float2 persistent_affine(const persistent_args &a, int block, int part,
                                                           const persistent_norm_weights<PAIRS, EARLY> &n,
                                                           const float2 &norm, float4 (&x)[PAIRS])
{
    if (SIDE == PERSISTENT_MLP) return norm;
    const int used = persistent_used<PAIRS>(a.width, part);
    const float4 *at = persistent_norm_at<PAIRS>(a, block, part);
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        if (p >= used) continue;
        const float4 w = EARLY ? n.weight[p] : __ldg(at + p * 8);
        const float4 b = EARLY ? n.bias[p] : __ldg(at + a.width / 4 + p * 8);
        x[p].x = (x[p].x - norm.x) * norm.y * w.x + b.x;
        x[p].y = (x[p].y - norm.x) * norm.y * w.y + b.y;
        x[p].z = (x[p].z - norm.x) * norm.y * w.z + b.z;
        x[p].w = (x[p].w - norm.x) * norm.y * w.w + b.w;
    }
    return make_float2(0, 1);
}

/* Applies layer norm to the thread's channels, then * (1 + scale) + shift. `norm` is mean and inverse deviation. */
template <int PAIRS>
static __device__ __forceinline__ void persistent_normalise(const float4 (&x)[PAIRS], const float2 &norm,
                                                            const uint2 (&shift)[PAIRS], const uint2 (&scale)[PAIRS],
                                                            uint2 (&u)[PAIRS])
{
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        const float2 scale0 = cuda_two<f16>(scale[p].x), shift0 = cuda_two<f16>(shift[p].x);
        const float2 scale1 = cuda_two<f16>(scale[p].y), shift1 = cuda_two<f16>(shift[p].y);
        const float y0 = (x[p].x - norm.x) * norm.y * (1 + scale0.x) + shift0.x;
        const float y1 = (x[p].y - norm.x) * norm.y * (1 + scale0.y) + shift0.y;
        const float y2 = (x[p].z - norm.x) * norm.y * (1 + scale1.x) + shift1.x;
        const float y3 = (x[p].w - norm.x) * norm.y * (1 + scale1.y) + shift1.y;
        u[p] = make_uint2(cuda_pack<f16>(y0, y1), cuda_pack<f16>(y2, y3));
    }
}

/* Returns the rounds whose channels and modulation a thread keeps across a barrier; registers are the limit. With words
 * there are few rows. */
static __host__ __device__ constexpr int persistent_kept(int pairs, persistent_side side, bool words)
{
    return words ? 1 : pairs <= 2 ? PERSISTENT_ROUNDS : pairs <= (side == PERSISTENT_MLP ? 4 : 3) ? 2 : 1;
}

/* Stores the thread's channels of row `at` of the chunk. */
template <int PAIRS>
static __device__ __forceinline__ void persistent_store_operand(const persistent_block *f, int part, int at,
                                                                const uint2 (&u)[PAIRS])
{
    const int group = ((at >> 4) << (3 - f->log)) + part;
    uint2 *piece = (uint2 *)(f->operand + group * (PAIRS * 64) + (at >> 3 & 1) * 32 + (at & 7) * 4);
    piece += threadIdx.x % PERSISTENT_LANES;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) piece[p * 128] = u[p];
}

/* Measures the block's parts of all rows: a thread has a part of rows row + (r << log), in rounds r. f->operand = the
 * first rounds, of the first chunk; persistent_local_operand loads the others again. */
template <int PAIRS, persistent_side SIDE, bool WORDS>
static __device__ __forceinline__ void persistent_local_norm(const persistent_args &a, persistent_block *f, int block,
                                                             int rows)
{
    constexpr int kept = persistent_kept(PAIRS, SIDE, WORDS);
    const int unit = (int)threadIdx.x / PERSISTENT_LANES, log = f->log + 2, row = unit & ((1 << log) - 1);
    const int part = f->part + (unit >> log), used = persistent_used<PAIRS>(a.width, part);
    const int layer = persistent_layer_of<SIDE>(a, block);
    uint2 shift[kept][PAIRS], scale[kept][PAIRS];
    float4 x[kept][PAIRS];
    constexpr bool early = SIDE != PERSISTENT_MLP && PAIRS < 5; /* registers are the limit */
    persistent_norm_weights<PAIRS, early> affine;
    persistent_load_norm<PAIRS, early>(a, block, part, &affine);
#pragma unroll
    for (int r = 0; r < kept; r++)
        persistent_load_mod<PAIRS>(a, f, row + (r << log), part, row + (r << log) < rows, layer, shift[r], scale[r]);
    persistent_turn<WORDS>(a, f);
    /* `kept` rounds at a time, the first ones last: they stay. */
#pragma unroll 1
    for (int first = (((rows - 1) >> log) / kept) * kept; first >= 0; first -= kept) {
        const int from = row + (first << log);
#pragma unroll
        for (int r = 0; r < kept; r++)
            persistent_load_x<PAIRS, WORDS>(a, f, from + (r << log), part, from + (r << log) < rows, x[r]);
#pragma unroll
        for (int r = 0; r < kept; r++) {
            if ((first + r) << log >= rows) continue;
            const float2 moments = persistent_measure<PAIRS>(x[r], used);
            if (from + (r << log) < rows) persistent_send_moments(a, f, from + (r << log), part, moments);
        }
    }
    persistent_cluster_sync(a);
    if ((int)threadIdx.x < rows) f->norm[threadIdx.x] = persistent_merge<PAIRS>(a, f, (int)threadIdx.x);
    __syncthreads(); /* from here on the operand overwrites the moments */
#pragma unroll
    for (int r = 0; r < kept; r++) {
        if (row + (r << log) >= min(rows, 16 * a.chunk)) continue;
        uint2 u[PAIRS];
        const float2 norm = persistent_affine<PAIRS, SIDE>(a, block, part, affine, f->norm[row + (r << log)], x[r]);
        persistent_normalise<PAIRS>(x[r], norm, shift[r], scale[r], u);
        persistent_store_operand<PAIRS>(f, unit >> log, row + (r << log), u);
    }
}

/* f->operand = the block's parts of the chunk that begins with tile m of 16 rows, but for those that
 * persistent_local_norm has stored. */
template <int PAIRS, persistent_side SIDE, bool WORDS>
static __device__ __forceinline__ void persistent_local_operand(const persistent_args &a, const persistent_block *f,
                                                                int block, int m, int rows)
{
    constexpr int kept = persistent_kept(PAIRS, SIDE, WORDS);
    const int unit = (int)threadIdx.x / PERSISTENT_LANES, log = f->log + 2, first = unit & ((1 << log) - 1);
    const int end = min(rows, 16 * (m + a.chunk)), part = f->part + (unit >> log);
#pragma unroll 1
    for (int row = first + (m == 0 ? kept << log : 0); row < end; row += 1 << log) {
        uint2 shift[PAIRS], scale[PAIRS], u[PAIRS];
        float4 x[PAIRS];
        if (row < 16 * m) continue;
        persistent_load_mod<PAIRS>(a, f, row, part, true, persistent_layer_of<SIDE>(a, block), shift, scale);
        persistent_load_x<PAIRS, WORDS>(a, f, row, part, true, x);
        const persistent_norm_weights<PAIRS, false> none = {};
        const float2 norm = persistent_affine<PAIRS, SIDE>(a, block, part, none, f->norm[row], x);
        persistent_normalise<PAIRS>(x, norm, shift, scale, u);
        persistent_store_operand<PAIRS>(f, unit >> log, row - 16 * m, u);
    }
}

/* --- the layers ------------------------------------------------------------------------------------------------ */

/* Writes two columns of the residual stream. */
template <bool WORDS>
static __device__ __forceinline__ void persistent_store_x(const persistent_args &a, unsigned number,
                                                          const persistent_item &e, const float2 &x)
{
    const int at = (e.row * a.width + e.column) / 2;
    if (WORDS)
        fast::store_two_words(a.x + at, __float_as_uint(x.x), __float_as_uint(x.y), number);
    else
        ((float2 *)a.x)[at] = x;
}

/* x = input projection of the state, in f32: the state must not be rounded (kernels/cpu/head.c). */
template <bool WORDS>
static __device__ __forceinline__ void persistent_in(const persistent_args &a, persistent_block *f, int rows,
                                                     int states)
{
    const int n = persistent_items(a, f->cut, rows);
#pragma unroll 1
    for (int m = 0; 16 * m < rows; m += a.chunk)
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < n; i += PERSISTENT_THREADS) {
            const persistent_item e = persistent_item_of(a, f->cut, m, rows, i);
            if (e.row >= rows) continue;
            const float4 *state = (const float4 *)(f->state + (e.row < states ? e.row : e.row - states) * a.channels);
            const float *w0 = f->in + 2 * e.pair * (a.channels + 1), *w1 = w0 + a.channels + 1;
            float2 x = make_float2(w0[a.channels], w1[a.channels]);
#pragma unroll 1
            for (int c = 0; c < a.channels; c += 4) {
                const float4 s = state[c / 4];
                x.x = x.x + s.x * w0[c] + s.y * w0[c + 1] + s.z * w0[c + 2] + s.w * w0[c + 3];
                x.y = x.y + s.x * w1[c] + s.y * w1[c + 1] + s.z * w1[c + 2] + s.w * w1[c + 3];
            }
            persistent_store_x<WORDS>(a, f->number + 1, e, x);
        }
    persistent_written<WORDS>(a, f);
}

/* Addend and factor of fc2, loaded ahead. The thread itself wrote these columns of x. */
typedef struct {
    float2 x;      /* the residual stream's two columns */
    uint32_t gate; /* their gates, packed */
} persistent_gated;

template <persistent_side SIDE, bool WORDS>
static __device__ __forceinline__ persistent_gated persistent_load_gated(const persistent_args &a,
                                                                         const persistent_block *f, int product, int m,
                                                                         int rows, int i)
{
    persistent_gated g = {make_float2(0, 0), 0};
    if (persistent_is_fc1<SIDE>(product) || i >= persistent_items(a, f->cut, rows)) return g;
    const persistent_item e = persistent_item_of(a, f->cut, m, rows, i);
    if (e.row >= rows) return g;
    const int layer = persistent_layer_of<SIDE>(a, product / 2);
    const f16 *gate = (const f16 *)f->mod[e.row] + (size_t)(3 * layer + 2) * (size_t)a.width;
    const int at = (e.row * a.width + e.column) / 2;
    if (WORDS) {
        const uint4 x = fast::load_two_words(a.x + at);
        g.x = make_float2(__uint_as_float(x.x), __uint_as_float(x.z));
    } else {
        g.x = __ldcg((const float2 *)a.x + at);
    }
    g.gate = __ldcg((const unsigned *)(gate + e.column));
    return g;
}

/* Stores an item of fc1's columns y as operand of fc2: silu(y), or with SWIGLU silu(a) * b of y = (a, b). */
template <persistent_side SIDE, bool WORDS>
static __device__ __forceinline__ void persistent_store_v(const persistent_args &a, unsigned number,
                                                          const persistent_item &e, const float2 &y)
{
    const int channel = SIDE == PERSISTENT_FC1 ? e.column / 2 : e.column;
    const int piece = persistent_piece(a.hidden, e.row, channel >> 5, channel >> 3 & 3);
    if (SIDE == PERSISTENT_FC1) {
        const float v = cuda_fast_silu(y.x) * y.y;
        const int at = piece * 8 + (channel & 7);
        if (WORDS)
            fast::store_word((uint2 *)a.v + at, cuda_pack<f16>(v, 0), number);
        else
            ((f16 *)a.v)[at] = __float2half_rn(v);
    } else {
        const uint32_t v = cuda_pack<f16>(cuda_fast_silu(y.x), cuda_fast_silu(y.y));
        const int at = piece * 4 + (channel >> 1 & 3);
        if (WORDS)
            fast::store_word((uint2 *)a.v + at, v, number);
        else
            ((uint32_t *)a.v)[at] = v;
    }
}

/* Computes a product: fc1, v = its activation at the normalised rows; or fc2, x += gate * fc2 of v. */
template <int PAIRS, persistent_side SIDE, bool WORDS>
static __device__ __forceinline__ void persistent_product(const persistent_args &a, persistent_block *f, int product,
                                                          int rows)
{
    const bool fc1 = persistent_is_fc1<SIDE>(product);
    const persistent_columns &columns = persistent_columns_of<SIDE>(f);
    persistent_gated gated = persistent_load_gated<SIDE, WORDS>(a, f, product, 0, rows, (int)threadIdx.x);
    if (fc1)
        persistent_local_norm<PAIRS, SIDE, WORDS>(a, f, product / 2, rows);
    else
        persistent_turn<WORDS>(a, f);
#pragma unroll 1
    for (int m = 0; 16 * m < rows; m += a.chunk) {
        if (fc1)
            persistent_local_operand<PAIRS, SIDE, WORDS>(a, f, product / 2, m, rows);
        else
            persistent_load_operand<PAIRS, SIDE, WORDS>(a, f, a.v, m, rows);
        __syncthreads();
        persistent_multiply<PAIRS, SIDE, WORDS>(a, f, product, m, rows);
        persistent_cluster_sync(a);
        const int items = persistent_items(a, columns, rows);
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < items; i += PERSISTENT_THREADS) {
            const persistent_item e = persistent_item_of(a, columns, m, rows, i);
            if (e.row < rows) {
                const float2 y = persistent_sum<SIDE, WORDS>(a, f, rows, e, i, product);
                const float2 gate = cuda_two<f16>(gated.gate);
                if (fc1)
                    persistent_store_v<SIDE, WORDS>(a, f->number + 1, e, y);
                else
                    persistent_store_x<WORDS>(a, f->number + 1, e,
                                              make_float2(gated.x.x + gate.x * y.x, gated.x.y + gate.y * y.y));
            }
            const bool last = i + PERSISTENT_THREADS >= items; /* the next one is in the next chunk */
            gated = persistent_load_gated<SIDE, WORDS>(a, f, product, last ? m + a.chunk : m, rows,
                                                       last ? (int)threadIdx.x : i + PERSISTENT_THREADS);
        }
        if (16 * (m + a.chunk) < rows || (WORDS && !persistent_halves(a, rows))) persistent_cluster_sync(a);
    }
    persistent_written<WORDS>(a, f);
}

enum { PERSISTENT_BATCH = 4 }; /* outputs at a time */

/* Returns the float4s of a row that a thread has. */
static __host__ __device__ constexpr int persistent_vectors(int pairs)
{
    return (pairs * PERSISTENT_PARTS * 32 / 4 + PERSISTENT_THREADS - 1) / PERSISTENT_THREADS;
}

/* Loads the thread's vectors of rows from, from + 1, ... of out_weight; 0 from row `end` on. */
template <int VECTORS>
static __device__ __forceinline__ void persistent_load_outputs(const persistent_args &a, int from, int end,
                                                               float4 (&weight)[PERSISTENT_BATCH][VECTORS])
{
#pragma unroll
    for (int o = 0; o < PERSISTENT_BATCH; o++)
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            const int vector = (int)threadIdx.x + i * PERSISTENT_THREADS;
            weight[o][i] = make_float4(0, 0, 0, 0);
            if (from + o < end && vector < a.width / 4)
                weight[o][i] = __ldg((const float4 *)(a.out_weight + (size_t)(from + o) * (size_t)a.width) + vector);
        }
}

/* Computes outputs from .. end - 1 of a row with normalised input u. bias is that of the thread's output, from +
 * threadIdx.x. */
template <int VECTORS>
static __device__ __forceinline__ void persistent_outputs(const persistent_args &a, const persistent_block *f, int row,
                                                          int from, int end, float bias, const float4 (&u)[VECTORS],
                                                          float4 (&weight)[PERSISTENT_BATCH][VECTORS])
{
    float *part = (float *)f->scratch + 2 * PERSISTENT_WARPS;
#pragma unroll 1
    for (int first = from; first < end; first += PERSISTENT_BATCH) {
#pragma unroll
        for (int o = 0; o < PERSISTENT_BATCH; o++) {
            float sum = 0;
#pragma unroll
            for (int i = 0; i < VECTORS; i++) sum += cuda_dot(u[i], weight[o][i]);
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

/* Computes the final layer, in f32. A work unit is a part of a row's outputs; a row has as many parts as keep all
 * blocks busy. Each block normalises its unit's row. */
template <int PAIRS, bool WORDS>
static __device__ __forceinline__ void persistent_out(const persistent_args &a, persistent_block *f, int rows)
{
    constexpr int VECTORS = persistent_vectors(PAIRS);
    const int outputs = 2 * a.channels, vectors = a.width / 4;
    const int most = max(1, min(outputs, (int)gridDim.x / rows)), each = (outputs + most - 1) / most;
    const int parts = (outputs + each - 1) / each, units = rows * parts;
    int unit = (int)blockIdx.x;
    do {
        const bool some = unit < units;
        const int row = unit / parts, from = unit % parts * each, end = some ? min(outputs, from + each) : 0;
        float4 shift[VECTORS], scale[VECTORS], weight[PERSISTENT_BATCH][VECTORS], x[VECTORS];
        persistent_load_outputs(a, from, end, weight);
        const float bias = (int)threadIdx.x < end - from ? __ldg(a.out_bias + from + threadIdx.x) : 0;
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            const int vector = (int)threadIdx.x + i * PERSISTENT_THREADS;
            shift[i] = scale[i] = x[i] = make_float4(0, 0, 0, 0);
            if (!some || vector >= vectors) continue;
            const float4 *mod = (const float4 *)(f->mod[row] + a.mod_final);
            shift[i] = __ldcg(mod + vector);
            scale[i] = __ldcg(mod + vectors + vector);
        }
        if (!WORDS && unit == (int)blockIdx.x) persistent_wait(a, f);
        if (some) {
            float sum = 0, squares = 0;
            bool missing;
            unsigned polls = 0;
            do {
                missing = false;
#pragma unroll
                for (int i = 0; i < VECTORS; i++) {
                    const int vector = (int)threadIdx.x + i * PERSISTENT_THREADS;
                    if (vector < vectors)
                        missing |= persistent_load_four<WORDS>(persistent_at<WORDS>(a, row, vector), f->number, &x[i]);
                }
            } while (!persistent_polled(a, missing, &polls));
#pragma unroll
            for (int i = 0; i < VECTORS; i++) sum += (x[i].x + x[i].y) + (x[i].z + x[i].w);
            if (WORDS) __syncthreads(); /* the scratch memory lies over the inbox */
            const float mean = cuda_block_sum<PERSISTENT_WARPS>(sum, (float *)f->scratch) / (float)a.width;
#pragma unroll
            for (int i = 0; i < VECTORS; i++) {
                if ((int)threadIdx.x + i * PERSISTENT_THREADS >= vectors) continue;
                x[i] = make_float4(x[i].x - mean, x[i].y - mean, x[i].z - mean, x[i].w - mean);
                squares += cuda_dot(x[i], x[i]);
            }
            const float inv = cuda_inverse_deviation(
                cuda_block_sum<PERSISTENT_WARPS>(squares, (float *)f->scratch + PERSISTENT_WARPS) / (float)a.width,
                1e-6f);
#pragma unroll
            for (int i = 0; i < VECTORS; i++) {
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

/* a.out[r] = net(f->state[r < states ? r : r - states]; f->mod[r]), complete when the next persistent_wait returns.
 * Takes that barrier, and 2*depth + 1 more without WORDS. */
template <int PAIRS, int WIDE, bool WORDS>
static __device__ __forceinline__ void persistent_evaluate(const persistent_args &a, persistent_block *f, int rows,
                                                           int states)
{
    persistent_in<WORDS>(a, f, rows, states);
#pragma unroll 1
    for (int product = 0; product < 2 * a.depth; product++) {
        if constexpr (WIDE == 0)
            persistent_product<PAIRS, PERSISTENT_MLP, WORDS>(a, f, product, rows);
        else if (product % 2 == 0)
            persistent_product<PAIRS, PERSISTENT_FC1, WORDS>(a, f, product, rows);
        else
            persistent_product<WIDE, PERSISTENT_FC2, WORDS>(a, f, product, rows);
        persistent_request<PAIRS, WIDE>(a, f, product + 2 < 2 * a.depth ? product + 2 : product + 2 - 2 * a.depth);
    }
    persistent_out<PAIRS, WORDS>(a, f, rows);
    persistent_arrive(a, f);
}

#endif

#endif
