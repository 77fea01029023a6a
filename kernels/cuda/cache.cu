/* Attention of a few queries over a long KV cache, as in decoding: plain decoding has one query a sequence, a verified
 * block some tens.
 *
 * Its floor is reading the cache: 4 bytes a slot, channel and sequence in bf16, against 4 flop a query. At 300 slots of
 * 1024 channels that is 1.2 MB a sequence and layer. It stays in L2 between the queries of a span, so tensor cores gain
 * nothing below some tens of queries a span. Bandwidth needs enough reads in flight: a block has one head of one tile
 * of up to TILE queries of a span, and its warps divide the slots. Each group of lanes has its own slots and its own
 * online softmax (Milakov and Gimelshein, arXiv:1805.02867). The groups' sums are joined at the end. A slot's key and
 * value are read once for all queries of the tile, 16 bytes a lane.
 *
 * Grid and shared memory depend only on rows, spans, heads and head size. So a recording is correct for any slot
 * lists. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/rotate.cuh"

enum {
    WARPS = 8,                       /* maximum warps of a block */
    AT_ONCE = 4,                     /* slots that a group of lanes reads at a time */
    MINE = KERN_CACHE_HEAD_MAX / 32, /* numbers of a head per lane */
    TILE = 4,                        /* queries of a block, for spans with several */
    MOST_DIM = KERN_CACHE_HEAD_MAX,
};

/* A call, on the device. */
typedef struct {
    int rows, heads, dim, q_stride, spans, words;
    const int *row, *first, *common, *slot;
    const unsigned long long *mask;
    const float *rope;         /* NULL: q is rotated and the cache is filled */
    const int *position, *own; /* with rope */
    int lanes;                 /* of a group, a power of two: lanes * MINE >= dim */
    int warps;                 /* of a block */
    float scale;               /* log2(e) / sqrt(dim) */
} cache_call;

/* Queries row .. row + count - 1 of the call, all of one span. */
typedef struct {
    int row, count, span;
} cache_tile;

/* Returns tile number i of `size` queries, counted through the spans; count 0: there is no such tile. */
static __device__ inline cache_tile tile_of(const cache_call &a, int size, int i)
{
    for (int s = 0; s < a.spans; s++) {
        const int rows = a.row[s + 1] - a.row[s], tiles = (rows + size - 1) / size;
        if (i < tiles) return {a.row[s] + i * size, min(rows - i * size, size), s};
        i -= tiles;
    }
    return {0, 0, 0};
}

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

/* Processes slots number k, k + step, .. of a span, AT_ONCE of them, for all queries of a tile. `cache` points at a
 * head's column. A slot outside a query's set is ignored, whatever its contents. */
template <typename T, int N, int Q>
static __device__ inline void attend_slots(const cache_call &a, const cache_tile &t, const T *cache, int k, int step,
                                           int lane, const float q[Q][MINE], cache_sums<Q> &s)
{
    const int first = a.first[t.span], count = a.first[t.span + 1] - first, common = a.common[t.span];
    const size_t width = (size_t)(a.heads * a.dim);
    float key[AT_ONCE][MINE], value[AT_ONCE][MINE], score[Q][AT_ONCE];
    unsigned known[Q]; /* bit u: the query attends to slot number k + u * step */
    for (int i = 0; i < Q; i++) known[i] = 0;
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
        const int at = k + u * step, own = at - common;
        const T *row = cache + (size_t)(at < count ? a.slot[first + at] : a.slot[first]) * 2 * width;
        load_mine<N>(row, a.dim, lane, a.lanes, key[u]);
        load_mine<N>(row + width, a.dim, lane, a.lanes, value[u]);
        for (int i = 0; i < Q; i++) {
            if (at >= count || i >= t.count) continue;
            const unsigned long long *mask = a.mask + (size_t)(t.row + i) * (size_t)a.words;
            known[i] |= (own < 0 || mask[own / 64] >> own % 64 & 1 ? 1u : 0u) << u;
        }
    }
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++)
#pragma unroll
        for (int i = 0; i < Q; i++) {
            if (i >= t.count) continue;
            float sum = 0;
            for (int j = 0; j < MINE; j++) sum += q[i][j] * key[u][j];
            for (int bit = a.lanes / 2; bit > 0; bit /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, bit);
            score[i][u] = known[i] >> u & 1 ? sum * a.scale : -INFINITY;
        }
#pragma unroll
    for (int i = 0; i < Q; i++) {
        if (i >= t.count) continue;
        float top = s.top[i];
        for (int u = 0; u < AT_ONCE; u++) top = fmaxf(top, score[i][u]);
        const float base = raise_maximum(s, i, top);
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            if (!(known[i] >> u & 1)) continue;
            const float weight = fast::exp2(score[i][u] - base);
            s.total[i] += weight;
            for (int j = 0; j < MINE; j++) s.o[i][j] += weight * value[u][j];
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
static size_t cache_shared(int warps, int queries, int dim)
{
    return (size_t)(warps * queries * (2 + dim)) * sizeof(float);
}

/* y = sums of all warps over their total. */
template <typename T, int Q>
static __device__ inline void store_sums(const cache_call &a, const float *sums, int rows, T *y)
{
    const int one = 2 + a.dim, warps = (int)blockDim.x / 32;
    for (int at = (int)threadIdx.x; at < rows * a.dim; at += (int)blockDim.x) {
        const int i = at / a.dim, d = at - i * a.dim;
        float top = -INFINITY, total = 0, o = 0;
        for (int w = 0; w < warps; w++) top = fmaxf(top, sums[(w * Q + i) * one]);
        for (int w = 0; w < warps; w++) {
            const float *mine = sums + (w * Q + i) * one;
            const float factor = fast::exp2(mine[0] - (top == -INFINITY ? 0 : top));
            total += mine[1] * factor;
            o += mine[2 + d] * factor;
        }
        cuda_store(y + (size_t)i * (size_t)(a.heads * a.dim) + d, o / total);
    }
}

/* Rotates a row's query and key of one head, numbers column .. column + dim - 1 of the row, and stores key and value in
 * the row's slot. No other block has this row and head, and no other row attends to the slot in these columns. So a
 * block barrier is enough. `query` is the row's. */
template <typename T, int N>
static __device__ inline void rotate_row(const cache_call &a, int row, size_t column, T *query, T *cache)
{
    constexpr int P = N > 1 ? N : 2; /* whole pairs */
    const size_t width = (size_t)(a.heads * a.dim);
    const float *rope = a.rope + (size_t)a.position[row] * (size_t)a.dim;
    T *key = cache + (size_t)a.own[row] * 2 * width + column;
    const int n = a.dim / P;
    for (int i = (int)threadIdx.x; i < 3 * n; i += (int)blockDim.x) {
        const int part = i / n, at = (i - part * n) * P;
        T *from = query + (size_t)part * width + column + at;
        if (part < 2)
            rotate_vector<P>(from, rope + at, part == 0 ? from : key + at);
        else
            cuda_store(key + width + at, cuda_load<P>(from));
    }
}

/* Attends with one block per (tile, head). N divides the head: numbers of a vector. With a.rope Q is 1. */
template <typename T, int N, int Q>
__global__ static void __launch_bounds__(32 * WARPS) attend_cache(cache_call a, T *q, T *cache, T *y)
{
    float *sums = (float *)cuda_shared();
    const cache_tile t = tile_of(a, Q, (int)blockIdx.x / a.heads);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % a.lanes;
    const int group = (int)threadIdx.x / a.lanes, groups = (int)blockDim.x / a.lanes;
    const size_t width = (size_t)(a.heads * a.dim), column = (size_t)((int)blockIdx.x % a.heads * a.dim);
    if (t.count == 0) return;
    const int count = a.first[t.span + 1] - a.first[t.span];
    if (Q == 1 && a.rope) {
        rotate_row<T, N>(a, t.row, column, q + (size_t)t.row * (size_t)a.q_stride, cache);
        __syncthreads();
    }
    float mine[Q][MINE];
    cache_sums<Q> s;
    for (int i = 0; i < Q; i++) {
        s.top[i] = -INFINITY, s.total[i] = 0;
        for (int j = 0; j < MINE; j++) s.o[i][j] = mine[i][j] = 0;
        if (i < t.count)
            load_mine<N>(q + (size_t)(t.row + i) * (size_t)a.q_stride + column, a.dim, lane, a.lanes, mine[i]);
    }
#pragma unroll 1
    for (int k = 0; k < count; k += groups * AT_ONCE) /* all lanes of a warp shuffle together, with slots or not */
        attend_slots<T, N, Q>(a, t, cache + column, k + group, groups, lane, mine, s);
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
    store_sums<T, Q>(a, sums, t.count, y + (size_t)t.row * width + column);
}

/* Returns the maximum number of tiles of spans with `rows` rows in total. */
static unsigned most_tiles(int rows, int spans, int size)
{
    return (unsigned)(rows < spans ? rows : spans + (rows - spans) / size);
}

template <typename T, int N>
static void launch(cuda_queue *c, const cache_call &a, const void *q, const void *cache, act *y)
{
    const int size = a.rows > a.spans ? TILE : 1;
    void (*kernel)(cache_call, T *, T *, T *) = size == 1 ? attend_cache<T, N, 1> : attend_cache<T, N, TILE>;
    cuda_launch(c, kernel, most_tiles(a.rows, a.spans, size) * (unsigned)a.heads, 32 * (unsigned)a.warps,
                cache_shared(a.warps, size, a.dim), a, (T *)q, (T *)cache, (T *)y);
}

/* Returns 1 if rows of `stride` elements from p on can be read in vectors of `numbers` numbers. */
template <typename T> static int in_vectors(const void *p, int stride, int numbers)
{
    const size_t bytes = (size_t)numbers * sizeof(T);
    return (uintptr_t)p % (bytes < 16 ? bytes : 16) == 0 && stride % numbers == 0;
}

template <typename T> static void attention_cache(cuda_queue *c, const cache_call &a, const kern_cache_job *job)
{
    const auto fits = [&](int numbers) {
        return in_vectors<T>(job->q, a.q_stride, numbers) && in_vectors<T>(job->cache, a.dim, numbers) &&
               in_vectors<float>(a.rope, a.dim, numbers);
    };
    if (fits(8))
        launch<T, 8>(c, a, job->q, job->cache, job->y);
    else if (fits(4))
        launch<T, 4>(c, a, job->q, job->cache, job->y);
    else
        launch<T, 1>(c, a, job->q, job->cache, job->y);
}

mar_status cuda_attention_cache_plan(kern_queue *k, int slots, int head_dim, mar_err *err)
{
    (void)k, (void)slots; /* any */
    if (head_dim <= MOST_DIM) return MAR_OK;
    return err_set(err, MAR_EBACKEND, "attention over a cache with heads of %d elements: a GPU takes up to %d",
                   head_dim, MOST_DIM);
}

void cuda_attention_cache(kern_queue *k, const kern_cache_job *job)
{
    cuda_queue *c = cuda_of(k);
    const size_t rows = (size_t)job->rows, spans = (size_t)job->spans;
    if (job->rows <= 0) return;
    mar_err err = {};
    const mar_status status = cuda_attention_cache_plan(k, job->max_slots, job->head_dim, &err);
    if (status != MAR_OK) {
        kern_fail(k, status, &err);
        return;
    }
    const int rotates = job->rope && job->rows == job->spans; /* the kernel for one query a span rotates by itself */
    if (job->rope && !rotates)
        cuda_rotate(k, (act *)job->q, job->rows, job->heads, job->head_dim, job->rope, job->position, (act *)job->cache,
                    job->own);
    cache_call a = {};
    a.rows = job->rows, a.heads = job->heads, a.dim = job->head_dim, a.q_stride = job->q_stride;
    a.spans = job->spans, a.words = job->words, a.lanes = a.warps = 1;
    cuda_stage_hold(c);
    a.row = cuda_stage_list(c, job->row, spans + 1, spans + 1);
    a.first = cuda_stage_list(c, job->first, spans + 1, spans + 1);
    a.common = cuda_stage_list(c, job->common, spans, spans);
    a.slot = cuda_stage_list(c, job->slot, (size_t)job->first[spans], spans * (size_t)job->max_slots);
    const size_t words = rows * (size_t)job->words;
    a.mask = (const unsigned long long *)cuda_stage_list(c, words ? job->mask : NULL, words, words);
    if (rotates) {
        a.rope = job->rope;
        a.position = cuda_stage_list(c, job->position, rows, rows);
        a.own = cuda_stage_list(c, job->own, rows, rows);
    }
    cuda_stage_send(c);
    while (a.lanes * MINE < a.dim) a.lanes *= 2;
    while (a.warps < WARPS && a.warps * 32 / a.lanes * AT_ONCE < job->max_slots) a.warps *= 2;
    a.scale = 1.4426950408889634f / sqrtf((float)a.dim);
    if (c->device->bf16)
        attention_cache<bf16>(c, a, job);
    else
        attention_cache<float>(c, a, job);
}
