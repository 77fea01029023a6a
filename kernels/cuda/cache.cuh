/* Attention of a few queries over a long KV cache, as in decoding: plain decoding has one query a sequence, a verified
 * block some tens.
 *
 * Its floor is reading the cache: 4 bytes a slot, channel and sequence in bf16, against 4 flop a query. At 300 slots of
 * 1024 channels that is 1.2 MB a sequence and layer. It stays in L2 between the queries of a span, so tensor cores gain
 * nothing below some tens of queries a span. Bandwidth needs enough reads in flight: a block has one head of keys and
 * values and one tile of up to TILE of a span's queries of it, and its warps divide the slots. Each group of lanes has
 * its own slots and its own online softmax (Milakov and Gimelshein, arXiv:1805.02867). The groups' sums are joined at
 * the end. A slot's key and value are read once for all queries of the tile, 16 bytes a lane.
 *
 * A decoding step has few blocks, and each is short. So where the call has own slots, the first keys and values are on
 * their way before the block waits for the kernel before (programmatic dependent launch): all but those of the rows'
 * own slots. Of few rows a block makes these itself (a.rope), so that no kernel is between it and the product: the
 * blocks of a span's tiles make the same ones. Other slots were written before that kernel and the early ones before it
 * began (kernels/ops.h).
 *
 * Grid and shared memory depend only on rows, spans, heads and head size. So a recording is correct for any slot
 * lists. */
#ifndef KERNELS_CUDA_CACHE_CUH
#define KERNELS_CUDA_CACHE_CUH

#include "kernels/cuda/ptx.h"

enum {
    WARPS = 8,                       /* maximum warps of a block that stores rows */
    MINE = KERN_CACHE_HEAD_MAX / 32, /* numbers of a head per lane */
    TILE = 4,                        /* queries of a block, for spans with several */
    MOST_DIM = KERN_CACHE_HEAD_MAX,
};

/* Sizes of a kernel for Q queries: with one, a layer of LlamaGen-L has all of its 288 slots on their way at once. It
 * has 128 registers, so that a block of the product before fits beside one of its own in a multiprocessor. */
template <typename C, int Q> struct cache_form {
    enum {
        DEEP = Q == 1 && sizeof(C) < sizeof(float),
        WARPS = DEEP ? 12 : 8,         /* maximum of a block */
        AT_ONCE = DEEP ? 6 : 4,        /* slots that a group of lanes reads at a time */
        THREADS = DEEP ? 512 : 32 * 8, /* for which there are registers */
    };
};

/* A call, on the device. */
typedef struct {
    int rows, heads, kv_heads, dim, q_stride, spans, words;
    int group;         /* query heads for each head of keys */
    size_t slot_bytes; /* of the cache */
    const int *row, *first, *common, *slot;
    const unsigned long long *mask;
    int fresh;                 /* rows of a span at most, with rope */
    const float *rope;         /* NULL: q is rotated and the cache is filled */
    const int *position, *own; /* own NULL: all slots are loaded after the wait */
    kern_head_norm q_norm, k_norm;
    int lanes;   /* of a group, a power of two: lanes * MINE >= dim */
    int warps;   /* of a block */
    float scale; /* log2(e) / sqrt(dim) */
} cache_call;

/* Queries first .. first + count - 1 of a head of keys, all of one span. Row r has queries r * group .. */
typedef struct {
    int first, count, span;
} cache_tile;

/* Returns tile number i of `size` queries, counted through the spans; count 0: there is no such tile. */
static __device__ inline cache_tile tile_of(const cache_call &a, int size, int i)
{
    if (a.rope && a.rows == a.spans && a.group <= size)
        return {i * a.group, i < a.spans ? a.group : 0, i}; /* of rows */
    for (int s = 0; s < a.spans; s++) {
        const int queries = (a.row[s + 1] - a.row[s]) * a.group, tiles = (queries + size - 1) / size;
        if (i < tiles) return {a.row[s] * a.group + i * size, min(queries - i * size, size), s};
        i -= tiles;
    }
    return {0, 0, 0};
}

/* Returns the first element of a query in rows of `stride` elements. */
static __device__ inline size_t cuda_cache_query(const cache_call &a, int query, int head, int stride)
{
    const int row = query / a.group;
    return (size_t)row * (size_t)stride + (size_t)((head * a.group + query - row * a.group) * a.dim);
}

/* --- keys and values in the cache --------------------------------------------------------------------------------- */

/* N neighbouring int8 as floats. */
template <int N> struct alignas(N) cuda_bytes {
    uint32_t word[N / 4];
};

/* N neighbouring numbers as they are in the cache. */
template <typename C, int N> struct cache_part {
    cuda_pairs<N> x;
    __device__ cuda_floats<N> floats() const
    {
        return cuda_unpack<C>(x);
    }
};
template <int N> struct cache_part<float, N> {
    cuda_floats<N> x;
    __device__ cuda_floats<N> floats() const
    {
        return x;
    }
};
template <int N> struct cache_part<int8_t, N> {
    cuda_bytes<N> x;
    __device__ cuda_floats<N> floats() const
    {
        cuda_floats<N> y;
        for (int j = 0; j < N; j++) y.v[j] = (float)(int8_t)(x.word[j / 4] >> j % 4 * 8 & 0xff);
        return y;
    }
};

/* A head's key and value in a slot. */
template <typename C> struct cache_head {
    const C *key, *value;
    const float *key_scale, *value_scale; /* int8 */
};

template <typename C>
static __device__ inline cache_head<C> head_in_slot(const cache_call &a, const char *cache, int slot, int head)
{
    const size_t width = (size_t)(a.kv_heads * a.dim);
    const C *key = (const C *)(cache + (size_t)slot * a.slot_bytes);
    const float *scale = (const float *)(key + 2 * width) + head;
    key += (size_t)(head * a.dim);
    return {key, key + width, scale, scale + a.kv_heads};
}

static __device__ inline void store_pair(float *to, float x, float y, float)
{
    cuda_store(to, cuda_floats<2>{{x, y}});
}
static __device__ inline void store_pair(bf16 *to, float x, float y, float)
{
    cuda_store(to, cuda_floats<2>{{x, y}});
}
static __device__ inline void store_pair(int8_t *to, float x, float y, float factor)
{
    to[0] = (int8_t)__float2int_rn(x * factor);
    to[1] = (int8_t)__float2int_rn(y * factor);
}

/* Returns the factor of a head's numbers for int8, 0 if all are to be 0. Writes the scale (kernels/ops.h), also to
 * `copy` unless it is NULL. */
static __device__ inline float quantise_head(const float *x, float *scale, float *copy)
{
    unsigned most = 0; /* magnitudes as bits, so that a NaN is the largest */
    for (int j = 0; j < MINE; j++) most = max(most, __float_as_uint(fabsf(x[j])));
    for (int bit = 16; bit > 0; bit /= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, bit));
    const float greatest = __uint_as_float(most);
    const int finite = greatest <= FLT_MAX, any = finite && greatest >= 1e-30f;
    if (threadIdx.x % 32 == 0) *scale = any ? greatest / 127 : finite ? 0 : NAN;
    if (threadIdx.x % 32 == 0 && copy) *copy = *scale;
    return any ? 127 / greatest : 0;
}

/* A lane's numbers of a row of `rope`: those of the pairs lane, lane + 32, .. of a head. */
typedef struct {
    float v[MINE];
} cache_turn;

static __device__ inline cache_turn load_turn(const cache_call &a, int row)
{
    const float *rope = a.rope + (size_t)a.position[row] * (size_t)a.dim;
    cache_turn t;
    for (int j = 0; j < MINE; j += 2) {
        const int at = j * 32 + 2 * ((int)threadIdx.x % 32);
        const cuda_floats<2> pair = at < a.dim ? cuda_load<2>(rope + at) : cuda_floats<2>{};
        t.v[j] = pair.v[0], t.v[j + 1] = pair.v[1];
    }
    return t;
}

/* Where a head is stored. */
template <typename C> struct cache_place {
    C *head, *copy;            /* copy: in shared memory, or NULL */
    float *scale, *copy_scale; /* int8's */
};

/* A warp stores a head's query, key or value: normed if norm.weight is not NULL, rotated if turn is not NULL. norm is
 * at the head. A lane has the pairs lane, lane + 32, .. to.head may be `from`. */
template <typename T, typename C>
static __device__ inline void cuda_store_head(int dim, const T *from, kern_head_norm norm, const cache_turn *turn,
                                              const cache_place<C> &to)
{
    const int lane = (int)threadIdx.x % 32;
    float x[MINE], factor = 1;
    for (int j = 0; j < MINE; j += 2) {
        const int at = j * 32 + 2 * lane;
        const cuda_floats<2> pair = at < dim ? cuda_load<2>(from + at) : cuda_floats<2>{};
        x[j] = pair.v[0], x[j + 1] = pair.v[1];
    }
    if (norm.weight) {
        float sum = 0, square = 0;
        for (int j = 0; j < MINE && norm.bias; j++) sum += x[j];
        const float mean = norm.bias ? cuda_warp_sum(sum) / (float)dim : 0;
        for (int j = 0; j < MINE; j++)
            if (j / 2 * 64 + 2 * lane < dim) square += (x[j] - mean) * (x[j] - mean);
        const float deviation = cuda_inverse_deviation(cuda_warp_sum(square) / (float)dim, norm.eps);
        for (int j = 0; j < MINE; j++) {
            const int at = j / 2 * 64 + 2 * lane + j % 2;
            if (at >= dim) continue;
            x[j] = (x[j] - mean) * deviation * norm.weight[at];
            if (norm.bias) x[j] += norm.bias[at];
        }
    }
    for (int j = 0; j < MINE && turn; j += 2) {
        const float first = x[j], second = x[j + 1];
        x[j] = first * turn->v[j] - second * turn->v[j + 1];
        x[j + 1] = second * turn->v[j] + first * turn->v[j + 1];
    }
    if constexpr (sizeof(C) == 1) factor = quantise_head(x, to.scale, to.copy_scale);
    for (int j = 0; j < MINE; j += 2) {
        const int at = j * 32 + 2 * lane;
        if (at >= dim) continue;
        const float first = factor != 0 ? x[j] : 0, second = factor != 0 ? x[j + 1] : 0;
        store_pair(to.head + at, first, second, factor);
        if (to.copy) store_pair(to.copy + at, first, second, factor);
    }
}

/* Returns the norm of a head. */
static __device__ inline kern_head_norm cuda_cache_norm(const kern_head_norm &norm, int head, int dim)
{
    const float *weight = norm.weight ? norm.weight + head * dim : NULL;
    return {weight, norm.bias ? norm.bias + head * dim : NULL, norm.eps};
}

/* What a block makes itself, in shared memory, with a.rope: a tile's queries [Q][dim], then of each row of the span key
 * and value of one head, as in a slot with one head. */
template <typename T, typename C> struct cache_fresh {
    T *query;
    C *key;       /* [rows][2][dim] */
    float *scale; /* [rows][2] */
};

template <typename T, typename C, int Q> static __device__ __host__ inline size_t fresh_bytes(const cache_call &a)
{
    return a.rope
               ? (size_t)(Q * a.dim) * sizeof(T) + (size_t)(2 * a.fresh) * ((size_t)a.dim * sizeof(C) + sizeof(float))
               : 0;
}

template <typename T, typename C, int Q>
static __device__ inline cache_fresh<T, C> fresh_in(const cache_call &a, void *shared)
{
    T *query = (T *)shared;
    C *key = (C *)(query + Q * a.dim);
    return {query, key, (float *)(key + 2 * a.fresh * a.dim)};
}

/* A warp stores head number h of a row, from `from`: its queries in place, then its keys, then its values in the row's
 * slot. Also stores it in `copy`, unless that is NULL; if !slots, keys and values only there. */
template <typename T, typename C>
static __device__ inline void store_part(const cache_call &a, int row, int h, const cache_turn &turn, T *from,
                                         char *cache, void *copy, float *copy_scale, bool slots)
{
    if (h < a.heads) {
        cuda_store_head<T, T>(a.dim, from, cuda_cache_norm(a.q_norm, h, a.dim), &turn, {from, (T *)copy, NULL, NULL});
        return;
    }
    const int kv = h - a.heads, is_value = kv >= a.kv_heads; /* its place among keys, then values */
    C *slot = (C *)(cache + (size_t)a.own[row] * a.slot_bytes);
    cache_place<C> to = {slot + (size_t)(kv * a.dim), (C *)copy,
                         (float *)(slot + (size_t)(2 * a.kv_heads * a.dim)) + kv, copy_scale};
    if (!slots) to = {to.copy, NULL, to.copy_scale, NULL};
    if (is_value)
        cuda_store_head<T, C>(a.dim, from, {}, NULL, to);
    else
        cuda_store_head<T, C>(a.dim, from, cuda_cache_norm(a.k_norm, kv, a.dim), &turn, to);
}

/* --- attention ---------------------------------------------------------------------------------------------------- */

/* Loads a lane's MINE numbers of a head: vectors lane, lane + lanes, .. of N; 0 beyond the head. */
template <int N, typename T>
static __device__ inline void load_mine(const T *head, int dim, int lane, int lanes, float *x)
{
    for (int v = 0; v < MINE / N; v++) {
        const int at = (v * lanes + lane) * N;
        const cuda_floats<N> part = at < dim ? cuda_load<N>(head + at) : cuda_floats<N>{};
        for (int j = 0; j < N; j++) x[v * N + j] = part.v[j];
    }
}

/* Sums of a group of lanes for Q queries. */
template <int Q> struct cache_sums {
    float top[Q], total[Q]; /* running maximum and sum of the softmax */
    float o[Q][MINE];
};

/* Rescales the sums of query i to a new maximum; returns the base of the new terms' exponents. As long as a group has
 * no slot, the maximum is -infinity and the sums are 0. */
template <int Q> static __device__ inline float raise_maximum(cache_sums<Q> &s, int i, float top)
{
    const float base = top == -INFINITY ? 0 : top, rescale = fast::exp2(s.top[i] - base);
    s.top[i] = top;
    s.total[i] *= rescale;
    for (int j = 0; j < MINE; j++) s.o[i][j] *= rescale;
    return base;
}

/* Adds the sums over other slots. */
template <int Q> static __device__ inline void join(cache_sums<Q> &s, int i, float top, float total, const float *o)
{
    const float base = raise_maximum(s, i, fmaxf(s.top[i], top)), factor = fast::exp2(top - base);
    s.total[i] += total * factor;
    for (int j = 0; j < MINE; j++) s.o[i][j] += o[j] * factor;
}

/* AT_ONCE slots of a span, for a tile: a lane's numbers as they are in the cache. */
template <typename C, int N, int Q> struct cache_slots {
    static constexpr int AT_ONCE = cache_form<C, Q>::AT_ONCE;
    cache_part<C, N> key[AT_ONCE][MINE / N], value[AT_ONCE][MINE / N];
    float key_scale[AT_ONCE], value_scale[AT_ONCE]; /* int8's */
    unsigned own;                                   /* bit u: slot number u is a row's own, and not loaded yet */
    unsigned known[Q];                              /* bit u: the query attends to slot number u */
};

template <typename C, int N, int Q>
static __device__ inline void load_slot(const cache_call &a, const cache_head<C> &from, int lane, int u,
                                        cache_slots<C, N, Q> &s)
{
    for (int v = 0; v < MINE / N; v++) {
        const int at = (v * a.lanes + lane) * N;
        if (at >= a.dim) continue;
        s.key[u][v] = *(const cache_part<C, N> *)(from.key + at);
        s.value[u][v] = *(const cache_part<C, N> *)(from.value + at);
    }
    if constexpr (sizeof(C) == 1) s.key_scale[u] = *from.key_scale, s.value_scale[u] = *from.value_scale;
}

/* Slots that are not loaded early: of a block's only row, or the first of `count` at `of`. */
typedef struct {
    int first, count; /* first: -1 if there is none */
    const int *of;
} cache_owns;

/* Loads slots number k, k + step, .. of a span, AT_ONCE of them, but none of `owns`. Query i is of row row[i]. */
template <typename C, int N, int Q>
static __device__ inline cache_slots<C, N, Q> load_slots(const cache_call &a, const cache_tile &t, const int *row,
                                                         const char *cache, int head, int k, int step, int lane,
                                                         const cache_owns &owns)
{
    const int first = a.first[t.span], count = a.first[t.span + 1] - first, common = a.common[t.span];
    constexpr int AT_ONCE = cache_form<C, Q>::AT_ONCE;
    cache_slots<C, N, Q> s = {};
    int slot[AT_ONCE]; /* all are loaded at a time; -1: there is none */
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) slot[u] = k + u * step < count ? a.slot[first + k + u * step] : -1;
    for (int i = 1; Q > 1 && i < owns.count; i++) {
        const int own = owns.of[i];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) s.own |= (slot[u] == own ? 1u : 0u) << u;
    }
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++)
        if (slot[u] >= 0 && slot[u] == owns.first)
            s.own |= 1u << u;
        else if (slot[u] >= 0 && !(Q > 1 && s.own >> u & 1))
            load_slot<C, N, Q>(a, head_in_slot<C>(a, cache, slot[u], head), lane, u, s);
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++)
        for (int i = 0; i < Q; i++) {
            const int behind = k + u * step - common;
            if (slot[u] < 0 || i >= t.count) continue;
            const unsigned long long *mask = a.mask + (size_t)row[i] * (size_t)a.words;
            s.known[i] |= (behind < 0 || mask[behind / 64] >> behind % 64 & 1 ? 1u : 0u) << u;
        }
    return s;
}

template <typename C, int N> static __device__ inline void floats_of(const cache_part<C, N> *part, float *x)
{
    for (int v = 0; v < MINE / N; v++) {
        const cuda_floats<N> some = part[v].floats();
        for (int j = 0; j < N; j++) x[v * N + j] = some.v[j];
    }
}

/* Attends to loaded slots with all queries of a tile. A slot outside a query's set is ignored, whatever its contents.
 */
template <typename C, int N, int Q>
static __device__ inline void attend_slots(const cache_call &a, const cache_tile &t, const cache_slots<C, N, Q> &slots,
                                           const float q[Q][MINE], cache_sums<Q> &s)
{
    constexpr int AT_ONCE = cache_form<C, Q>::AT_ONCE;
    float score[Q][AT_ONCE];
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
        float key[MINE];
        floats_of<C, N>(slots.key[u], key);
#pragma unroll
        for (int i = 0; i < Q; i++) {
            if (i >= t.count) continue;
            float sum = 0;
            for (int j = 0; j < MINE; j++) sum += q[i][j] * key[j];
            for (int bit = a.lanes / 2; bit > 0; bit /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, bit);
            if (sizeof(C) == 1) sum *= slots.key_scale[u];
            score[i][u] = slots.known[i] >> u & 1 ? sum * a.scale : -INFINITY;
        }
    }
#pragma unroll
    for (int i = 0; i < Q; i++) {
        if (i >= t.count) continue;
        float top = s.top[i];
        for (int u = 0; u < AT_ONCE; u++) top = fmaxf(top, score[i][u]);
        const float base = raise_maximum(s, i, top);
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            if (!(slots.known[i] >> u & 1)) continue;
            const float weight = fast::exp2(score[i][u] - base);
            const float scaled = sizeof(C) == 1 ? weight * slots.value_scale[u] : weight;
            float value[MINE];
            floats_of<C, N>(slots.value[u], value);
            s.total[i] += weight;
            for (int j = 0; j < MINE; j++) s.o[i][j] += scaled * value[j];
        }
    }
}

/* Joins the sums of a warp's groups; each lane then has those of its numbers. */
template <int Q> static __device__ inline void join_groups(const cache_call &a, const cache_tile &t, cache_sums<Q> &s)
{
    for (int bit = a.lanes; bit < 32; bit *= 2)
#pragma unroll
        for (int i = 0; i < Q; i++) {
            if (i >= t.count) continue;
            float o[MINE];
            for (int j = 0; j < MINE; j++) o[j] = __shfl_xor_sync(0xffffffffu, s.o[i][j], bit);
            const float top = __shfl_xor_sync(0xffffffffu, s.top[i], bit);
            join(s, i, top, __shfl_xor_sync(0xffffffffu, s.total[i], bit), o);
        }
}

/* Returns the bytes of shared memory for the sums of a block's warps, [warps][Q][2 + dim]: maximum, total, o. */
static inline size_t cache_shared(int warps, int queries, int dim)
{
    return (size_t)(warps * queries * (2 + dim)) * sizeof(float);
}

/* Returns number d of query i of a tile: the sums of all warps over their total. */
template <typename C, int Q>
static __device__ inline float joined_sum(const cache_call &a, const float *sums, int i, int d)
{
    const int one = 2 + a.dim, warps = (int)blockDim.x / 32, most = cache_form<C, Q>::WARPS;
    float top = -INFINITY, total = 0, o = 0;
#pragma unroll
    for (int w = 0; w < most; w++)
        if (w < warps) top = fmaxf(top, sums[(w * Q + i) * one]);
#pragma unroll
    for (int w = 0; w < most; w++) {
        if (w >= warps) continue;
        const float *mine = sums + (w * Q + i) * one;
        const float factor = fast::exp2(mine[0] - (top == -INFINITY ? 0 : top));
        total += mine[1] * factor;
        o += mine[2 + d] * factor;
    }
    return o / total;
}

/* One of the heads that a block makes: a tile's queries, then keys and values of the span's rows. */
typedef struct {
    int row, head; /* head: its number in the row */
} cache_made;

static __device__ inline cache_made made_at(const cache_call &a, const cache_tile &t, int head, int i)
{
    const int query = t.first + i, of = (i - t.count) / 2, row = query / a.group;
    if (i < t.count) return {row, head * a.group + query - row * a.group};
    return {a.row[t.span] + of, a.heads + (i - t.count) % 2 * a.kv_heads + head};
}

/* Makes a tile's queries, and the span's keys and values, of one head of keys, a warp each. turn: of the warp's first.
 * The span's first tile stores keys and values in the cache, where no other block reads them. */
template <typename T, typename C>
static __device__ inline void store_group(const cache_call &a, const cache_tile &t, int rows, int head, cache_turn turn,
                                          T *q, char *cache, const cache_fresh<T, C> &fresh)
{
    const bool slots = t.first == a.row[t.span] * a.group;
#pragma unroll 1
    for (int i = (int)threadIdx.x / 32; i < t.count + 2 * rows; i += (int)blockDim.x / 32) {
        const cache_made made = made_at(a, t, head, i);
        const int at = i - t.count; /* among keys and values */
        void *copy = at < 0 ? (void *)(fresh.query + i * a.dim) : (void *)(fresh.key + at * a.dim);
        T *from = q ? q + (size_t)made.row * (size_t)a.q_stride + (size_t)(made.head * a.dim) : (T *)copy;
        if (i >= (int)blockDim.x / 32) turn = load_turn(a, made.row);
        store_part<T, C>(a, made.row, made.head, turn, from, cache, copy, fresh.scale + at, slots);
    }
}

/* Attends with a tile of queries of one head of keys. N divides the head: numbers of a vector. The older slots are
 * loaded before wait(rows of the span), behind which queries, keys and values are there: in q, or where q is NULL in
 * `fresh`, as made_at lists them. Ends with the warps' sums in `sums`, for joined_sum. */
template <typename T, typename C, int N, int Q, typename W>
static __device__ __forceinline__ void attend_tile(const cache_call &a, const cache_tile &t, int head, T *q,
                                                   char *cache, const cache_fresh<T, C> &fresh, float *sums, W wait)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % a.lanes;
    const int group = (int)threadIdx.x / a.lanes, groups = (int)blockDim.x / a.lanes;
    const int count = a.first[t.span + 1] - a.first[t.span];
    cache_owns owns = {-1, 0, NULL};
    if (Q == 1 && a.own) owns.first = a.own[t.span];
    if (Q > 1 && a.own)
        owns.of = a.own + a.row[t.span], owns.first = *owns.of, owns.count = a.row[t.span + 1] - a.row[t.span];
    int row[Q];
    for (int i = 0; i < Q; i++) row[i] = (t.first + i) / a.group;
    cache_slots<C, N, Q> slots = load_slots<C, N, Q>(a, t, row, cache, head, group, groups, lane, owns);
    if (a.rope) {
        const int rows = Q > 1 ? owns.count : 1, last = t.count + 2 * rows - 1;
        const cache_turn turn = load_turn(a, made_at(a, t, head, min(warp, last)).row);
        wait(rows);
        store_group<T, C>(a, t, rows, head, turn, q, cache, fresh);
        __syncthreads();
    } else if (a.own) {
        wait(0);
        owns = {-1, 0, NULL}; /* the kernel before has stored them */
    }
    float mine[Q][MINE];
    cache_sums<Q> s;
    for (int i = 0; i < Q; i++) {
        s.top[i] = -INFINITY, s.total[i] = 0;
        for (int j = 0; j < MINE; j++) s.o[i][j] = mine[i][j] = 0;
        const T *from = a.rope ? fresh.query + i * a.dim : q + cuda_cache_query(a, t.first + i, head, a.q_stride);
        if (i < t.count) load_mine<N>(from, a.dim, lane, a.lanes, mine[i]);
    }
#pragma unroll 1
    for (int k = 0;;) { /* all lanes of a warp shuffle together, with slots or not */
#pragma unroll
        for (int u = 0; u < slots.AT_ONCE; u++)
            if (slots.own >> u & 1) {
                const int slot = a.slot[a.first[t.span] + k + group + u * groups];
                int own = 0;
                for (int i = 1; Q > 1 && i < owns.count; i++)
                    if (owns.of[i] == slot) own = i;
                const C *key = fresh.key + 2 * own * a.dim;
                const float *scale = fresh.scale + 2 * own;
                const cache_head<C> made = {key, key + a.dim, scale, scale + 1};
                load_slot<C, N, Q>(a, a.rope ? made : head_in_slot<C>(a, cache, slot, head), lane, u, slots);
            }
        attend_slots<C, N, Q>(a, t, slots, mine, s);
        k += groups * slots.AT_ONCE;
        if (k >= count) break;
        slots = load_slots<C, N, Q>(a, t, row, cache, head, k + group, groups, lane, owns);
    }
    join_groups(a, t, s);
    if ((int)threadIdx.x % 32 < a.lanes)
        for (int i = 0; i < Q; i++) {
            float *to = sums + (warp * Q + i) * (2 + a.dim);
            if (lane == 0) to[0] = s.top[i], to[1] = s.total[i];
            for (int v = 0; v < MINE / N; v++)
                for (int j = 0; j < N; j++) {
                    const int d = (v * a.lanes + lane) * N + j;
                    if (d < a.dim) to[2 + d] = s.o[i][v * N + j];
                }
        }
    __syncthreads();
}

/* Returns the maximum number of tiles of spans with `queries` queries in total. */
static inline unsigned most_tiles(int queries, int spans, int size)
{
    return (unsigned)(queries < spans ? queries : spans + (queries - spans) / size);
}

/* cache.cu: returns a job's call; its lists are staged. */
cache_call cuda_cache_call(cuda_queue *c, const kern_cache_job *job);

#endif
