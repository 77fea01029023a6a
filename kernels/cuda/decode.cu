/* A pass of a causal backbone over up to 8 rows, all layers in one launch: the second form of the passes that skinny.cu
 * and cache.cu compute by five kernels a layer, chosen at load (MAR_CUDA_DECODE, docs/gpu.md).
 *
 * Weights, products and words are ring.cuh's. The norm divides the sums, not the operands, as in skinny.cu. The block
 * that owns a channel keeps its residual sum.
 *
 * All that crosses blocks are words (ptx.h), five exchanges a layer: x times the norm's weight, with the sum of 8
 * squares; queries, keys and values; attention; x; SwiGLU. Numbers of words grow from 1 in each launch, before which
 * they are set to 0. A word is overwritten only when no block will read it again. A block reads a vector only for items
 * of its own, and writes these when all of its warps have read, so:
 *   - x, by the output of attention: the block has read all of attention, made of all queries, keys and values, whose
 *     writers had read x.
 *   - x, by the end of the layer: the block has read all of SwiGLU, whose writers had read x.
 *   - queries, keys and values: the block has read all of x, made of SwiGLU, made of x, made of attention, which was
 *     written after they were read.
 *   - attention, SwiGLU: the block has read words that are made of an x whose every channel was written by a block
 * after it had read all of attention, or all of SwiGLU: the owners of x read both. */
#include "kernels/cuda/cache.cuh"
#include "kernels/cuda/ring.cuh"

#include <stdlib.h>

enum { DECODE_BATCH = 4 }; /* records that a lane polls at a time */
enum { DECODE_QKV, DECODE_WO, DECODE_W13, DECODE_W2, DECODE_PRODUCTS };

/* Weights of a layer, on the device. */
typedef struct {
    const char *weight[DECODE_PRODUCTS];
    const float *scale[DECODE_PRODUCTS]; /* of int8 */
    const void *bias[DECODE_PRODUCTS];   /* bf16, or float of wo and w2; or NULL */
    const float *norm[2];                /* before qkv and w13 */
    kern_head_norm q_norm, k_norm;
} decode_layer;

/* A call, on the device. */
struct decode_args : ring_args<decode_layer, DECODE_PRODUCTS> {
    cache_call attention; /* without norms */
    uint4 *qkv;           /* words, of 2 planes */
    int tasks;            /* of attention, tiles times heads of keys */
    float eps;
    char *cache;
    size_t cache_bytes;           /* of a layer */
    float *x;                     /* [rows][width] */
    int area, sums, squares, own; /* where they begin in shared memory: decode_lay_out */
};

/* A block's shared memory: the ring, then
 *   area: the warps' operands, rows of ring_pitch bytes; in attention, what cache.cuh needs;
 *   sums: float2 [2][halves * items][RING_WARPS][4 * R], of two products in turn;
 *   squares: float [2][RING_WARPS][R];
 *   own: float2 [items of wo][4 * R], the residual sums of the block's channels;
 *   table: decode_layer [layers]. */

/* --- products ----------------------------------------------------------------------------------------------------- */

/* What the sums of two channels are multiplied by and added to; [1]: of the channels that gates multiply. next: weights
 * of the norm behind them. */
typedef struct {
    float2 scale[2], bias[2], next;
} decode_channels;

template <cuda_weights FORM>
static __device__ __forceinline__ decode_channels decode_load_channels(const decode_args &a, int layer, int product,
                                                                       const ring_place &e)
{
    const ring_product &p = a.product[product];
    const decode_layer *table = &ring_layer(a, 0);
    const void *bias = table[layer].bias[product];
    decode_channels c = {{{1, 1}, {1, 1}}, {}, {}};
    if (!e.given) return c;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int channel = 8 * (e.item + half * p.items) + 2 * e.pair;
        if (half >= p.halves) continue;
        if (FORM == CUDA_INT8) c.scale[half] = *(const float2 *)(table[layer].scale[product] + channel);
        if (bias)
            c.bias[half] = product % 2 ? *(const float2 *)((const float *)bias + channel)
                                       : cuda_two<bf16>(((const uint32_t *)bias)[channel / 2]);
    }
    if (product == DECODE_WO || (product == DECODE_W2 && layer + 1 < a.layers)) {
        const float *norm = product == DECODE_WO ? table[layer].norm[1] : table[layer + 1].norm[0];
        c.next = *(const float2 *)(norm + 8 * e.item + 2 * e.pair);
    }
    return c;
}

/* Stores the thread's x times the norm's weight, and the sum of its record's squares. All threads of the warp call it.
 */
static __device__ __forceinline__ void decode_put_x(const decode_args &a, const ring_place &e, const float2 &x,
                                                    const float2 &norm, unsigned number)
{
    const ring_product &p = a.product[DECODE_QKV];
    const float square = cuda_quad_sum(x.x * x.x + x.y * x.y);
    if (!e.given) return;
    ring_put<bf16>(p.words, 3, p.in / 8, e.row, e.item, e.pair, x.x * norm.x, x.y * norm.y, number);
    if (e.pair == 0)
        fast::store_two_words(p.words + (e.row * 3 + 2) * (p.in / 8) + e.item, __float_as_uint(square), 0, number);
}

/* Ends thread number i's two channels of a product. number: of the words of x that the layer begins with. */
template <cuda_weights FORM, int R>
static __device__ __forceinline__ void decode_finish(const decode_args &a, int layer, int product, int i, int parity,
                                                     const ring_place &e, const decode_channels &c)
{
    const ring_product &p = a.product[product];
    const unsigned number = (unsigned)(2 * layer + 1);
    const float2 *sums = ring_at<float2>(a.sums + parity * (a.squares - a.sums) / 2);
    float2 y[2] = {}, x = {};
    float scale = 1;
    if (e.given && product % 2 == 0) {
        const float *squares = ring_at<float>(a.squares) + parity * RING_WARPS * R + e.row;
        float sum = 0;
#pragma unroll
        for (int warp = 0; warp < RING_WARPS; warp++) sum += squares[warp * R];
        scale = cuda_inverse_deviation(sum / (float)p.in, a.eps);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (half >= p.halves || !e.given) continue;
        y[half] = ring_sum<R>(sums, half * ring_items(p) + e.of, e);
        y[half].x = y[half].x * scale * c.scale[half].x + c.bias[half].x;
        y[half].y = y[half].y * scale * c.scale[half].y + c.bias[half].y;
    }
    if (product % 2) { /* warps are whole here, for decode_put_x */
        float2 *own = ring_at<float2>(a.own) + i;
        if (e.given) *own = x = make_float2(own->x + y[0].x, own->y + y[0].y);
        if (product == DECODE_WO || layer + 1 < a.layers)
            decode_put_x(a, e, x, c.next, number + (product == DECODE_WO ? 1 : 2));
        else if (e.given)
            *(float2 *)(a.x + (size_t)e.row * (size_t)(8 * p.items) + 8 * e.item + 2 * e.pair) = x;
        return;
    }
    if (product == DECODE_W13) y[0] = make_float2(cuda_silu(y[0].x) * y[1].x, cuda_silu(y[0].y) * y[1].y);
    uint4 *words = product == DECODE_QKV ? a.qkv : a.product[DECODE_W2].words;
    if (e.given) ring_put<bf16>(words, 2, p.items, e.row, e.item, e.pair, y[0].x, y[0].y, (unsigned)layer + 1);
}

/* Computes a product of the block's items. *parity alternates between its products. */
template <cuda_weights FORM, int R>
static __device__ __forceinline__ void decode_run_product(const decode_args &a, int layer, int product,
                                                          ring_stream &stream, int *parity)
{
    enum { LANES = 32 / R };
    const ring_product &p = a.product[product];
    const int thread = (int)threadIdx.x, warp = thread / 32, lane = thread % 32, items = ring_items(p);
    if (items <= 0) return;
    const ring_place e = ring_place_of<R>(items, a.rows, thread);
    const decode_channels c = decode_load_channels<FORM>(a, layer, product, e);
    char *operand = ring_at<char>(a.area) + warp * R * ring_pitch<FORM>(p.units / RING_WARPS + 1);
    const unsigned number = product % 2 ? (unsigned)layer + 1 : (unsigned)(2 * layer + 1 + product / 2);
    float square = ring_receive<FORM, R, DECODE_BATCH>(a, p, product % 2 ? 2 : 3, operand, number);
    __syncwarp();
    ring_multiply<FORM, R>(a, p, operand, stream,
                           ring_at<float2>(a.sums + *parity * (a.squares - a.sums) / 2) + warp * 4 * R);
#pragma unroll
    for (int bit = 1; bit < LANES; bit *= 2) square += __shfl_xor_sync(0xffffffffu, square, bit);
    if (lane % LANES == 0) ring_at<float>(a.squares)[(*parity * RING_WARPS + warp) * R + lane / LANES] = square;
    __syncthreads();
    decode_finish<FORM, R>(a, layer, product, thread, *parity, e, c);
#pragma unroll 1
    for (int i = thread + RING_THREADS; i - lane < items * 4 * R; i += RING_THREADS) {
        const ring_place other = ring_place_of<R>(items, a.rows, i);
        decode_finish<FORM, R>(a, layer, product, i, *parity, other,
                               decode_load_channels<FORM>(a, layer, product, other));
    }
    *parity ^= 1;
}

/* --- attention ---------------------------------------------------------------------------------------------------- */

/* Prefetches the older keys and values of the block's first task into the L2 cache. */
template <int Q> static __device__ __forceinline__ void decode_prefetch(const decode_args &a, const char *cache)
{
    const cache_call &call = a.attention;
    if ((int)blockIdx.x >= a.tasks) return;
    const cache_tile t = tile_of(call, Q, (int)blockIdx.x / call.kv_heads);
    const int first = t.count ? call.first[t.span] : 0, slots = t.count ? call.first[t.span + 1] - first : 0;
    for (int i = (int)threadIdx.x; i < slots; i += RING_THREADS) {
        const cache_head<bf16> of =
            head_in_slot<bf16>(call, cache, call.slot[first + i], (int)blockIdx.x % call.kv_heads);
        for (int at = 0; at < call.dim; at += 64) fast::prefetch_l2(of.key + at), fast::prefetch_l2(of.value + at);
    }
}

/* Receives the queries, keys and values that a tile needs, as they are to be normed and rotated. */
template <int Q>
static __device__ __forceinline__ void decode_receive_heads(const decode_args &a, const cache_tile &t, int rows,
                                                            int head, const cache_fresh<bf16, bf16> &fresh,
                                                            unsigned number)
{
    const cache_call &call = a.attention;
    const int of_head = call.dim / 8, records = a.product[DECODE_QKV].items;
#pragma unroll 1
    for (int j = (int)threadIdx.x; j < (t.count + 2 * rows) * of_head; j += RING_THREADS) {
        const int i = j / of_head, at = j - i * of_head;
        const cache_made made = made_at(call, t, head, i);
        const uint4 *words = a.qkv + made.row * 2 * records + made.head * of_head + at;
        bf16 *to = i < t.count ? fresh.query + i * call.dim : fresh.key + (i - t.count) * call.dim;
        uint4 w[2];
        unsigned polls = 0;
        do w[0] = fast::load_two_words(words), w[1] = fast::load_two_words(words + records);
        while (!persistent_polled(a, (ring_late(w[0], number) | ring_late(w[1], number)) != 0, &polls));
        *(uint4 *)(to + 8 * at) = ring_record(w[0], w[1]);
    }
}

/* Attends with one tile of queries of one head of keys. */
template <int Q>
static __device__ __forceinline__ void decode_attend(const decode_args &a, const decode_layer &layer, int task,
                                                     char *cache, unsigned number)
{
    cache_call call = a.attention;
    const cache_tile t = tile_of(call, Q, task / call.kv_heads);
    const int head = task % call.kv_heads, width = call.heads * call.dim;
    if (t.count == 0) return;
    const cache_fresh<bf16, bf16> fresh = fresh_in<bf16, bf16, Q>(call, ring_at<void>(a.area));
    float *sums = (float *)(ring_at<char>(a.area) + fresh_bytes<bf16, bf16, Q>(call));
    call.q_norm = layer.q_norm, call.k_norm = layer.k_norm;
    attend_tile<bf16, bf16, 8, Q>(call, t, head, NULL, cache, fresh, sums, [&](int rows) {
        decode_receive_heads<Q>(a, t, rows, head, fresh, number);
        __syncthreads();
    });
    for (int at = 2 * (int)threadIdx.x; at < t.count * call.dim; at += 2 * RING_THREADS) {
        const int i = at / call.dim, d = at - i * call.dim, query = t.first + i, row = query / call.group;
        const int channel = (head * call.group + query - row * call.group) * call.dim + d;
        ring_put<bf16>(a.product[DECODE_WO].words, 2, width / 8, row, channel / 8, channel % 8 / 2,
                       joined_sum<bf16, Q>(call, sums, i, d), joined_sum<bf16, Q>(call, sums, i, d + 1), number);
    }
    __syncthreads(); /* nobody reads the area any more */
}

/* --- the pass ----------------------------------------------------------------------------------------------------- */

/* Publishes x. */
template <int R> static __device__ __forceinline__ void decode_begin(const decode_args &a)
{
    const int thread = (int)threadIdx.x, lane = thread % 32, items = ring_items(a.product[DECODE_WO]);
    const int width = a.product[DECODE_QKV].in;
    for (int i = thread; i - lane < items * 4 * R; i += RING_THREADS) {
        const ring_place e = ring_place_of<R>(items, a.rows, i);
        const int channel = 8 * e.item + 2 * e.pair;
        float2 x = {}, norm = {};
        if (e.given) {
            x = *(const float2 *)(a.x + (size_t)e.row * (size_t)width + channel);
            norm = *(const float2 *)(ring_layer(a, 0).norm[0] + channel);
            ring_at<float2>(a.own)[i] = x;
        }
        decode_put_x(a, e, x, norm, 1);
    }
}

template <cuda_weights FORM, int R, int Q>
static __global__ void __launch_bounds__(RING_THREADS, 1) decode_kernel(const __grid_constant__ decode_args a)
{
    char *cache = a.cache;
    int parity = 0;
    if (a.rows == 0) return; /* decode_starts only tests whether the kernel starts */
    ring_stream stream = ring_begin(a);
    decode_begin<R>(a);
#pragma unroll 1
    for (int layer = 0; layer < a.layers; layer++, cache += a.cache_bytes) {
        decode_prefetch<Q>(a, cache);
#pragma unroll 1
        for (int product = 0; product < DECODE_PRODUCTS; product++) {
#pragma unroll 1
            for (int task = (int)blockIdx.x; product == DECODE_WO && task < a.tasks; task += (int)gridDim.x)
                decode_attend<Q>(a, ring_layer(a, layer), task, cache, (unsigned)layer + 1);
            decode_run_product<FORM, R>(a, layer, product, stream, &parity);
        }
    }
    persistent_end(a);
}

/* --- the host ----------------------------------------------------------------------------------------------------- */

typedef void (*decode_form)(decode_args);

/* Immutable after creation. */
struct kern_decoder {
    decode_args args; /* without lists, words and x */
    cuda_weights form;
    int rows;    /* up to 8, or 2 if the shared memory has no room for more */
    void *table; /* the allocation of args.layer */
};

/* Returns the kernel for up to 2 rows, or 8, with one query a tile, or `several`. */
static decode_form decode_kernel_of(cuda_weights form, int rows, int several)
{
#define DECODE_FORMS(FORM)                                                                                             \
    {                                                                                                                  \
        {decode_kernel<FORM, 2, 1>, decode_kernel<FORM, 2, TILE>},                                                     \
            {decode_kernel<FORM, 8, 1>, decode_kernel<FORM, 8, TILE>},                                                 \
    }
    static const decode_form forms[2][2][2] = {DECODE_FORMS(CUDA_BF16), DECODE_FORMS(CUDA_INT8)};
#undef DECODE_FORMS
    return forms[form == CUDA_INT8][rows > 2][several];
}

static int decode_more(int x, int y)
{
    return x > y ? x : y;
}

/* Lays out the shared memory for a kernel of up to `rows` rows. Returns its bytes. */
static size_t decode_lay_out(const cuda_queue *c, cuda_weights form, int rows, int several, decode_args *a)
{
    const int blocks = c->device->multiprocessors;
    int units = 0, tiles = 0;
    for (const ring_product &p : a->product) ring_most(p, &units, &tiles);
    const int pitch = form == CUDA_INT8 ? ring_pitch<CUDA_INT8>(units) : ring_pitch<CUDA_BF16>(units);
    const size_t heads =
        several ? fresh_bytes<bf16, bf16, TILE>(a->attention) + cache_shared(RING_WARPS, TILE, a->attention.dim)
                : fresh_bytes<bf16, bf16, 1>(a->attention) + cache_shared(RING_WARPS, 1, a->attention.dim);
    const int own = (int)cuda_blocks((size_t)a->product[DECODE_WO].items, (size_t)blocks) * 4 * rows;
    a->area = RING_BYTES;
    a->sums = a->area + (decode_more(RING_WARPS * rows * pitch, (int)heads) + 15) / 16 * 16;
    a->squares = a->sums + 2 * tiles * RING_WARPS * 4 * rows * (int)sizeof(float2);
    a->own = a->squares + 2 * RING_WARPS * rows * (int)sizeof(float);
    a->table = a->own + own * (int)sizeof(float2);
    return (size_t)a->table + (size_t)a->layers * sizeof(decode_layer);
}

/* Starts a kernel with a block in each multiprocessor, all at once. */
static cudaError_t decode_start(const cuda_queue *c, const kern_decoder *d, int rows, int several, decode_args args)
{
    const size_t bytes = decode_lay_out(c, d->form, rows > 2 ? RING_ROWS : 2, several, &args);
    return ring_start(c, decode_kernel_of(d->form, rows, several), c->device->multiprocessors, bytes, args);
}

/* Writes the products' shapes, of the first layer. Returns 0 if the kernel does not compute them or another layer. */
static int decode_shapes(const cuda_queue *c, const kern_decoder_spec *spec, kern_decoder *d)
{
    decode_args *a = &d->args;
    for (int i = 0; i < spec->depth; i++) {
        const kern_decoder_layer *l = &spec->layers[i];
        const kern_linear *products[] = {l->qkv, l->wo, l->w13, l->w2};
        if (!l->attention_norm || !c->device->bf16) return 0;
        if (i == 0) d->form = l->qkv->form;
        for (int j = 0; j < DECODE_PRODUCTS; j++) {
            const kern_linear *p = products[j];
            if (p->form != d->form || (p->form != CUDA_BF16 && p->form != CUDA_INT8) ||
                !ring_shape(p, j == DECODE_W13 ? 2 : 1, c->device->multiprocessors, &a->product[j]))
                return 0;
        }
    }
    a->layers = spec->depth, a->passes = 1, a->eps = spec->eps;
    a->attention.heads = spec->heads, a->attention.kv_heads = spec->kv_heads, a->attention.dim = spec->head_dim;
    a->attention.group = spec->heads / spec->kv_heads;
    return spec->head_dim % 8 == 0 && spec->head_dim <= MOST_DIM;
}

/* Makes the layers' table on the device. */
static mar_status decode_make_table(cuda_queue *c, const kern_decoder_spec *spec, kern_decoder *d, mar_err *err)
{
    decode_layer *table = (decode_layer *)calloc((size_t)spec->depth, sizeof *table);
    if (!table) return err_set(err, MAR_ENOMEM, "out of memory");
    for (int i = 0; i < spec->depth; i++) {
        const kern_decoder_layer *l = &spec->layers[i];
        const kern_linear *products[] = {l->qkv, l->wo, l->w13, l->w2};
        for (int j = 0; j < DECODE_PRODUCTS; j++) {
            table[i].weight[j] = (const char *)products[j]->weight;
            table[i].scale[j] = (const float *)products[j]->scale;
            table[i].bias[j] = products[j]->bias;
        }
        table[i].norm[0] = l->qkv->unit ? l->qkv->unit : l->attention_norm; /* which product.cu has in the weights */
        table[i].norm[1] = l->w13->unit ? l->w13->unit : l->ffn_norm;
        table[i].q_norm = {l->q_norm, l->q_norm_bias, spec->head_eps};
        table[i].k_norm = {l->k_norm, l->k_norm_bias, spec->head_eps};
    }
    const mar_status status = cuda_alloc_copy(c, table, (size_t)spec->depth * sizeof *table, &d->table, err);
    d->args.layer = (const decode_layer *)d->table;
    free(table);
    return status;
}

/* Sets the rows that the shared memory has room for, and starts those kernels without work. Returns 0 if the device
 * does not accept them. */
static int decode_starts(const cuda_queue *c, kern_decoder *d)
{
    decode_args a = d->args;
    cudaError_t e = cudaSuccess;
    a.attention.rope = (const float *)d->table; /* so that heads have room */
    a.attention.fresh = RING_ROWS;
    for (d->rows = RING_ROWS; decode_lay_out(c, d->form, d->rows, 1, &a) > c->device->shared_bytes; d->rows = 2)
        if (d->rows == 2) return 0;
    a.rows = 0;
    for (int i = 0; i < (d->rows > 2 ? 4 : 2) && e == cudaSuccess; i++) e = decode_start(c, d, i / 2 * 6 + 2, i % 2, a);
    return cuda_tried(c, e) == cudaSuccess;
}

/* It is an error if the model or the GPU has no such form, because only who asks for it gets it. */
mar_status cuda_decoder_create(kern_queue *k, const kern_decoder_spec *spec, kern_decoder **out, mar_err *err)
{
    cuda_queue *c = cuda_of(k);
    int wanted = 0;
    mar_status status = cuda_read_wish("MAR_CUDA_DECODE", "01", "0 or 1", &wanted, err);
    *out = NULL;
    if (status != MAR_OK || !wanted) return status;
    kern_decoder *d = (kern_decoder *)calloc(1, sizeof *d);
    if (!d) return err_set(err, MAR_ENOMEM, "out of memory");
    const int has = decode_shapes(c, spec, d);
    if (has) status = decode_make_table(c, spec, d, err);
    if (status == MAR_OK && has && decode_starts(c, d)) {
        *out = d;
        return MAR_OK;
    }
    cuda_decoder_free(&c->device->base, d);
    return status != MAR_OK ? status
                            : err_set(err, MAR_EBACKEND,
                                      "the environment variable MAR_CUDA_DECODE is 1: this model has no pass in one "
                                      "launch on this GPU");
}

void cuda_decoder_free(kern_device *device, kern_decoder *d)
{
    if (!d) return;
    cuda_free(device, d->table);
    free(d);
}

/* Lays out arrivals and words at `memory`. Returns their bytes, which a launch clears. */
static size_t decode_lay_out_words(decode_args *a, void *memory)
{
    uint4 *at = (uint4 *)memory + 8; /* blocks poll the arrivals: they have 128 bytes to themselves */
    a->arrivals = (unsigned *)memory;
    for (int j = 0; j < DECODE_PRODUCTS; j++) {
        ring_product *p = &a->product[j];
        p->words = j == DECODE_W13 ? a->product[DECODE_QKV].words : at;
        if (j != DECODE_W13) at += a->rows * (j == DECODE_QKV ? 3 : 2) * (p->in / 8);
    }
    a->qkv = at;
    at += a->rows * 2 * a->product[DECODE_QKV].items;
    return (size_t)((char *)at - (char *)memory);
}

int cuda_decode(kern_queue *k, const kern_decoder *d, const kern_decode_job *job)
{
    cuda_queue *c = cuda_of(k);
    const kern_cache_job *of = &job->attention;
    if (of->rows > d->rows || of->type == KERN_CACHE_INT8) return 0;
    if (of->rows <= 0) return 1;
    decode_args a = d->args;
    a.attention = cuda_cache_call(c, of);
    a.attention.fresh = of->rows - of->spans + 1;
    a.rows = of->rows, a.x = job->x, a.cache = (char *)of->cache, a.cache_bytes = job->cache_bytes;
    a.gave_up = c->gave_up;
    const int several = of->rows * a.attention.group > of->spans;
    a.tasks = (int)most_tiles(of->rows * a.attention.group, of->spans, several ? TILE : 1) * of->kv_heads;
    if (!cuda_live(c) || !cuda_has_working(c)) return 1;
    const size_t zeros = decode_lay_out_words(&a, c->working);
    if (cuda_ok(c, cudaMemsetAsync(a.arrivals, 0, zeros, c->stream), "preparing the decoder's kernel"))
        cuda_ok(c, decode_start(c, d, of->rows, several, a), "launching the decoder's kernel");
    return 1;
}
