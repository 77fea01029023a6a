/* Attention over a KV cache: its kernels and launches. cache.cuh has what a block does. */
#include "kernels/cuda/cache.cuh"

/* Stores all heads of all rows, a warp each. */
template <typename T, typename C>
__global__ static void __launch_bounds__(32 * WARPS) store_rows(cache_call a, T *q, char *cache)
{
    const int of_row = a.heads + 2 * a.kv_heads, n = (int)(blockIdx.x * WARPS + threadIdx.x / 32), row = n / of_row;
    fast::start_next();
    const cache_turn turn = load_turn(a, min(row, a.rows - 1));
    fast::wait_for_previous();
    const int h = n - row * of_row;
    T *from = q + (size_t)row * (size_t)a.q_stride + (size_t)(h * a.dim);
    if (row < a.rows) store_part<T, C>(a, row, h, turn, from, cache, NULL, NULL, true);
}

template <typename T, typename C> static void store(cuda_queue *c, const cache_call &a, act *q, void *cache)
{
    const size_t heads = (size_t)a.rows * (size_t)(a.heads + 2 * a.kv_heads);
    cuda_large_shared(c, store_rows<T, C>);
    cuda_launch_early(c, store_rows<T, C>, cuda_blocks(heads, WARPS), 32 * WARPS, 0, a, (T *)q, (char *)cache);
}

/* Attends with one block per (tile, head of keys). */
template <typename T, typename C, int N, int Q>
__global__ static void __launch_bounds__(cache_form<C, Q>::THREADS) attend_cache(cache_call a, T *q, char *cache, T *y)
{
    fast::start_next();
    const cache_tile t = tile_of(a, Q, (int)blockIdx.x / a.kv_heads);
    if (t.count == 0 || !a.own) fast::wait_for_previous();
    if (t.count == 0) return;
    const int head = (int)blockIdx.x % a.kv_heads;
    float *sums = (float *)((char *)cuda_shared() + fresh_bytes<T, C, Q>(a));
    attend_tile<T, C, N, Q>(a, t, head, q, cache, fresh_in<T, C, Q>(a, cuda_shared()), sums,
                            [](int) { fast::wait_for_previous(); });
    for (int at = (int)threadIdx.x; at < t.count * a.dim; at += (int)blockDim.x) {
        const int i = at / a.dim, d = at - i * a.dim;
        cuda_store(y + cuda_cache_query(a, t.first + i, head, a.heads * a.dim) + d, joined_sum<C, Q>(a, sums, i, d));
    }
}

template <typename T, typename C, int N, int Q>
static void launch_of(cuda_queue *c, cache_call &a, int max_slots, const void *q, void *cache, act *y)
{
    const int most = cache_form<C, Q>::WARPS, at_once = 32 / a.lanes * cache_form<C, Q>::AT_ONCE; /* slots of a warp */
    const int warps = (max_slots + at_once - 1) / at_once;
    a.warps = warps < 1 ? 1 : warps < most ? warps : most;
    cuda_large_shared(c, attend_cache<T, C, N, Q>);
    cuda_launch_early(c, attend_cache<T, C, N, Q>, most_tiles(a.rows * a.group, a.spans, Q) * (unsigned)a.kv_heads,
                      32 * (unsigned)a.warps, fresh_bytes<T, C, Q>(a) + cache_shared(a.warps, Q, a.dim), a, (T *)q,
                      (char *)cache, (T *)y);
}

/* Stores and attends. The kernel stores by itself where no span can have more rows than a skinny product. */
template <typename T, typename C> static void attention_cache(cuda_queue *c, cache_call &a, const kern_cache_job *job)
{
    a.fresh = a.rows - a.spans + 1;
    if (a.rope && a.fresh > KERN_SKINNY_ROWS) {
        store<T, C>(c, a, (act *)job->q, job->cache);
        a.rope = NULL;
        if (a.rows > KERN_SKINNY_ROWS * a.spans) a.own = NULL; /* looking up each slot among so many takes longer */
    }
    constexpr int VECTOR = 16 / sizeof(T);          /* 4 or 8 */
    const int several = a.rows * a.group > a.spans; /* else one query a tile */
    const auto most = several ? launch_of<T, C, VECTOR, TILE> : launch_of<T, C, VECTOR, 1>;
    const auto fours = several ? launch_of<T, C, 4, TILE> : launch_of<T, C, 4, 1>;
    (a.dim % VECTOR == 0 ? most : fours)(c, a, job->max_slots, job->q, job->cache, job->y);
}

cache_call cuda_cache_call(cuda_queue *c, const kern_cache_job *job)
{
    const size_t rows = (size_t)job->rows, spans = (size_t)job->spans, words = rows * (size_t)job->words;
    cache_call a = {};
    a.rows = job->rows, a.heads = job->heads, a.kv_heads = job->kv_heads, a.group = job->heads / job->kv_heads;
    a.dim = job->head_dim, a.q_stride = job->q_stride;
    a.slot_bytes = kern_cache_slot_bytes(&c->device->base, job->type, job->kv_heads, job->head_dim);
    a.rope = job->rope, a.q_norm = job->q_norm, a.k_norm = job->k_norm;
    if (job->rope) {
        a.position = cuda_stage_list(c, job->position, rows, rows);
        a.own = cuda_stage_list(c, job->own, rows, rows);
    }
    if (!job->spans) return a;
    a.spans = job->spans, a.words = job->words, a.lanes = 1;
    a.row = cuda_stage_list(c, job->row, spans + 1, spans + 1);
    a.first = cuda_stage_list(c, job->first, spans + 1, spans + 1);
    a.common = cuda_stage_list(c, job->common, spans, spans);
    a.slot = cuda_stage_list(c, job->slot, (size_t)job->first[spans], spans * (size_t)job->max_slots);
    a.mask = (const unsigned long long *)cuda_stage_list(c, words ? job->mask : NULL, words, words);
    while (a.lanes * MINE < a.dim) a.lanes *= 2;
    a.scale = 1.4426950408889634f / sqrtf((float)a.dim);
    return a;
}

/* Turns queries and keys by two angles a pair, and stores keys and values. A thread takes a pair. */
template <typename T> static __global__ void turn_each(cache_call a, T *qkv, T *cache)
{
    const int width = a.heads * a.dim, of_row = 3 * width / 2;
    const size_t n = (size_t)blockIdx.x * blockDim.x + threadIdx.x, row = n / (size_t)of_row;
    if (row >= (size_t)a.rows) return;
    const int at = 2 * (int)(n % (size_t)of_row), number = at % a.dim;
    T *from = qkv + row * (size_t)(3 * width) + at;
    const cuda_floats<2> x = cuda_load<2>(from);
    const cuda_floats<4> turn = cuda_load<4>(a.rope + 2 * ((size_t)a.position[row] * (size_t)a.dim + (size_t)number));
    const cuda_floats<2> turned = {{x.v[0] * turn.v[0] - x.v[1] * turn.v[1], x.v[1] * turn.v[2] + x.v[0] * turn.v[3]}};
    T *slot = cache + 2 * (size_t)a.own[row] * (size_t)width + at - width;
    cuda_store(at < width ? from : slot, at < 2 * width ? turned : x);
}

void cuda_rotate(kern_queue *k, act *qkv, int rows, int heads, int head_dim, int angles, const float *rope,
                 const int *position, act *cache, const int *slot)
{
    cuda_queue *c = cuda_of(k);
    if (rows <= 0) return;
    kern_cache_job job = {};
    job.rows = rows, job.heads = job.kv_heads = heads, job.head_dim = head_dim, job.q_stride = 3 * heads * head_dim;
    job.rope = rope, job.position = position, job.own = slot;
    const cache_call a = cuda_cache_call(c, &job);
    const unsigned blocks = cuda_blocks((size_t)rows * (size_t)(3 * heads * head_dim / 2), 256);
    if (angles == 2 && c->device->bf16)
        cuda_launch(c, turn_each<bf16>, blocks, 256, 0, a, (bf16 *)qkv, (bf16 *)cache);
    else if (angles == 2)
        cuda_launch(c, turn_each<float>, blocks, 256, 0, a, (float *)qkv, (float *)cache);
    else if (c->device->bf16)
        store<bf16, bf16>(c, a, qkv, cache);
    else
        store<float, float>(c, a, qkv, cache);
}

mar_status cuda_attention_cache_plan(kern_queue *k, int slots, int head_dim, int causal, mar_err *err)
{
    (void)k, (void)slots, (void)causal; /* any */
    if (head_dim <= MOST_DIM && head_dim % 4 == 0) return MAR_OK;
    return err_set(err, MAR_EBACKEND,
                   "attention over a cache with heads of %d elements: a GPU takes multiples of 4 up to %d", head_dim,
                   MOST_DIM);
}

void cuda_attention_cache(kern_queue *k, const kern_cache_job *job)
{
    cuda_queue *c = cuda_of(k);
    if (job->rows <= 0) return;
    mar_err err = {};
    const mar_status status = cuda_attention_cache_plan(k, job->max_slots, job->head_dim, job->causal, &err);
    if (status != MAR_OK) {
        kern_fail(k, status, &err);
        return;
    }
    cache_call a = cuda_cache_call(c, job);
    const auto of_bf16 = job->type == KERN_CACHE_INT8 ? attention_cache<bf16, int8_t> : attention_cache<bf16, bf16>;
    const auto of_f32 = job->type == KERN_CACHE_INT8   ? attention_cache<float, int8_t>
                        : job->type == KERN_CACHE_BF16 ? attention_cache<float, bf16>
                                                       : attention_cache<float, float>;
    (c->device->bf16 ? of_bf16 : of_f32)(c, a, job);
}
