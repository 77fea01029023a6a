/* Products of up to 8 rows in kernels that stay on the GPU, one block a multiprocessor, for many layers: decode.cu and
 * streamed.cu.
 *
 * The floor is reading the weights once a layer. So they never stop coming: each warp has a ring of RING_STAGES groups
 * in shared memory and, as soon as it has multiplied a group, requests the one that is RING_STAGES later in its stream:
 * of the same product, of the next one, of the next layer, or of the next pass over all layers. Nothing that it waits
 * for stops that. A lane copies the 16 bytes that it multiplies, so no other thread waits for them.
 *
 * A block owns items of each product, of 8 channels; with SwiGLU an item is 8 gates and the 8 channels that they
 * multiply. A warp has an eighth of the inputs: it receives and multiplies them alone, and a barrier of the block is
 * there for the warps' sums. Rows are the operand A of mma.m16n8k16, of whose 16 rows 8 are 0; weights are B.
 *
 * All that crosses blocks are words (ptx.h). A vector is records of 8 channels, [rows][planes][channels / 8] uint4.
 * Planes 0 and 1 have four channels each, in pairs of bf16 or f16; a plane 2 has the sum of the squares and 0. */
#ifndef KERNELS_CUDA_RING_CUH
#define KERNELS_CUDA_RING_CUH

#include "kernels/cuda/low_bit.cuh"
#include "kernels/cuda/persistent_exchange.cuh"

enum {
    RING_ROWS = 8,
    RING_WARPS = 8,
    RING_THREADS = 32 * RING_WARPS,
    RING_GROUP = 4,  /* units of a group, which is requested at a time */
    RING_STAGES = 8, /* groups of a warp's ring */
    RING_UNIT = 64,  /* bytes of a channel's weights that four lanes multiply */
    RING_BYTES = RING_WARPS * RING_STAGES * RING_GROUP * 32 * (int)sizeof(uint4),
};

/* A product, and the words of its input. */
typedef struct {
    int in, items, halves; /* halves: 1, or 2 with SwiGLU */
    int each, rest;        /* items of a block: each, of the first `rest` blocks one more */
    int units;             /* of RING_UNIT bytes of a row of weights */
    unsigned row_bytes;
    uint4 *words;
} ring_product;

/* What all arguments begin with, of layers L of N products each, which have `const char *weight[N]`. */
template <typename L, int N> struct ring_args {
    typedef L of_layer;
    enum { PRODUCTS = N };
    ring_product product[N];
    const L *layer; /* [layers] on the device */
    int rows, layers, passes;
    int table; /* offset of a copy of `layer` in shared memory, which begins with the ring */
    unsigned *arrivals, *gave_up;
};

/* Writes the shape of a product of `blocks` blocks, of the layer's first outputs or of two halves of them. Returns 0 if
 * it has none. */
static inline int ring_shape(const kern_linear *l, int halves, int blocks, ring_product *p)
{
    const int items = l->out / (8 * halves);
    *p = {l->in, items, halves, items / blocks, items % blocks, (int)l->row_bytes / RING_UNIT, (unsigned)l->row_bytes,
          NULL};
    return l->out % (8 * halves) == 0 && l->in * (l->form == CUDA_INT8 ? 1 : 2) % RING_UNIT == 0;
}

/* Raises *units to those of a warp's share of a product, at most, and *tiles to those of a block. */
static inline void ring_most(const ring_product &p, int *units, int *tiles)
{
    const int of_warp = p.units / RING_WARPS + 1, of_block = (p.each + (p.rest > 0)) * p.halves;
    *units = of_warp > *units ? of_warp : *units;
    *tiles = of_block > *tiles ? of_block : *tiles;
}

/* Returns the bytes from one row of a warp's operand to the next, for so many units: eight lanes of two rows then are
 * in 32 banks. */
template <cuda_weights FORM> static __device__ __host__ __forceinline__ int ring_pitch(int units)
{
    return (units * low_bit<FORM>::STEPS | 1) * RING_UNIT;
}

/* Launches one block in each of `blocks` multiprocessors, all at once. */
template <typename A>
static inline cudaError_t ring_start(const cuda_queue *c, void (*form)(A), int blocks, size_t bytes, const A &args)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(RING_THREADS);
    config.dynamicSmemBytes = bytes;
    config.stream = c->stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    const cudaError_t e =
        cudaFuncSetAttribute(form, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)c->device->shared_bytes);
    return e == cudaSuccess ? cudaLaunchKernelEx(&config, form, args) : e;
}

#if defined(__CUDACC__) || defined(MAR_CUDAHOST)

template <typename T> static __device__ __forceinline__ T *ring_at(int offset)
{
    return (T *)((char *)cuda_shared() + offset);
}

/* Returns a layer of the table in shared memory. */
template <typename A> static __device__ __forceinline__ const typename A::of_layer &ring_layer(const A &a, int layer)
{
    return ring_at<typename A::of_layer>(a.table)[layer];
}

/* Returns the block's items of a product. */
static __device__ __forceinline__ int ring_items(const ring_product &p)
{
    return p.each + ((int)blockIdx.x < p.rest);
}

/* A warp's units of a product, first .. end - 1. */
typedef struct {
    int first, end;
} ring_share;

static __device__ __forceinline__ ring_share ring_share_of(const ring_product &p)
{
    const int warp = (int)threadIdx.x / 32;
    return {p.units * warp / RING_WARPS, p.units * (warp + 1) / RING_WARPS};
}

/* --- weights ------------------------------------------------------------------------------------------------------ */

/* What a warp requests next, and where the next group that it multiplies is. */
typedef struct {
    const char *from; /* the lane's bytes of the next group */
    int passes;       /* that are left */
    int layer, product, half;
    int tiles, units;  /* that are left of the half behind this tile, and of the tile */
    int of_tile, jump; /* units of a tile; bytes from the end of its groups to the next tile */
    int stage;
} ring_stream;

template <typename A> static __device__ __forceinline__ void ring_next_half(const A &a, ring_stream &s)
{
    if (++s.half < a.product[s.product].halves) return;
    s.half = 0;
    if (++s.product < A::PRODUCTS) return;
    s.product = 0;
    if (++s.layer < a.layers) return;
    s.layer = 0, s.passes--;
}

/* Begins the half of a product, or the first one behind it of which the warp has something. */
template <typename A> static __device__ __forceinline__ void ring_seek(const A &a, ring_stream &s)
{
    const int lane = (int)threadIdx.x % 32;
    for (int tries = 0; tries < 2 * A::PRODUCTS && s.passes > 0; tries++, ring_next_half(a, s)) {
        const ring_product &p = a.product[s.product];
        const ring_share share = ring_share_of(p);
        const int channel = 8 * ((int)blockIdx.x + s.half * p.items) + lane / 4;
        s.tiles = ring_items(p) - 1, s.of_tile = s.units = share.end - share.first;
        if (s.tiles < 0 || s.units == 0) continue;
        s.from = ring_layer(a, s.layer).weight[s.product] + (size_t)channel * p.row_bytes + share.first * RING_UNIT +
                 lane % 4 * (int)sizeof(uint4);
        s.jump = 8 * (int)(gridDim.x * p.row_bytes) - (s.units + RING_GROUP - 1) / RING_GROUP * RING_GROUP * RING_UNIT;
        return;
    }
    s.passes = 0;
}

/* Requests the next group, to a stage of the ring; behind the last one closes an empty group of copies. Units that a
 * tile lacks stay as they are: weights of before, which ring_multiply multiplies by 0. */
template <typename A> static __device__ __forceinline__ void ring_request(const A &a, ring_stream &s, uint4 *stage)
{
    if (s.passes > 0) {
#pragma unroll
        for (int i = 0; i < RING_GROUP; i++)
            if (i < s.units) fast::copy16(stage + 32 * i, s.from + RING_UNIT * i);
        s.from += RING_GROUP * RING_UNIT, s.units -= RING_GROUP;
        if (s.units <= 0 && s.tiles > 0)
            s.from += s.jump, s.units = s.of_tile, s.tiles--;
        else if (s.units <= 0)
            ring_next_half(a, s), ring_seek(a, s);
    }
    fast::copy_commit();
}

/* Returns the warp's stage of the ring, the lane's piece. */
static __device__ __forceinline__ uint4 *ring_stage(int stage)
{
    const int thread = (int)threadIdx.x;
    return (uint4 *)cuda_shared() + (thread / 32 * RING_STAGES + stage) * RING_GROUP * 32 + thread % 32;
}

/* Copies the table to shared memory, and fills the ring. */
template <typename A> static __device__ __forceinline__ ring_stream ring_begin(const A &a)
{
    ring_stream s = {};
    const int words = a.layers * (int)(sizeof *a.layer / sizeof(uint64_t));
    for (int i = (int)threadIdx.x; i < words; i += RING_THREADS)
        ring_at<uint64_t>(a.table)[i] = ((const uint64_t *)a.layer)[i];
    __syncthreads();
    s.passes = a.passes;
    ring_seek(a, s);
    for (int stage = 0; stage < RING_STAGES; stage++) {
        for (int i = 0; i < RING_GROUP; i++)
            if (i >= s.units) ring_stage(stage)[32 * i] = make_uint4(0, 0, 0, 0);
        ring_request(a, s, ring_stage(stage));
    }
    return s;
}

/* --- exchanges ---------------------------------------------------------------------------------------------------- */

/* Stores two neighbouring channels of a record: pair 0 .. 3 of record `at` of a row of `planes` planes. */
template <typename T>
static __device__ __forceinline__ void ring_put(uint4 *words, int planes, int records, int row, int at, int pair,
                                                float x, float y, unsigned number)
{
    uint2 *to = (uint2 *)(words + (row * planes + pair / 2) * records + at);
    fast::store_word(to + pair % 2, cuda_pack<T>(x, y), number);
}

static __device__ __forceinline__ unsigned ring_late(const uint4 &w, unsigned number)
{
    return (w.y ^ number) | (w.w ^ number);
}

static __device__ __forceinline__ uint4 ring_record(const uint4 &first, const uint4 &second)
{
    return make_uint4(first.x, first.z, second.x, second.z);
}

/* Receives the warp's share of a product's input, as operand. Neighbouring lanes load neighbouring words, and a lane
 * has those of BATCH records in flight before it looks at the first. Rows that are missing get the last one's. Returns
 * the lane's sum of squares of row lane / (32 / R). */
template <cuda_weights FORM, int R, int BATCH, typename A>
static __device__ __forceinline__ float ring_receive(const A &a, const ring_product &p, int planes, char *operand,
                                                     unsigned number)
{
    enum { LANES = 32 / R, OF_UNIT = 4 * low_bit<FORM>::STEPS };
    const ring_share share = ring_share_of(p);
    const int records = p.in / 8, n = (share.end - share.first) * OF_UNIT;
    const int lane = (int)threadIdx.x % LANES, row = (int)threadIdx.x % 32 / LANES;
    const uint4 *words = p.words + min(row, a.rows - 1) * planes * records + share.first * OF_UNIT;
    char *to = operand + row * ring_pitch<FORM>(share.end - share.first);
    float square = 0;
#pragma unroll 1
    for (int at = lane; at - lane < n; at += BATCH * LANES) {
        uint4 w[BATCH][3] = {};
        unsigned late, polls = 0;
        do {
#pragma unroll
            for (int i = 0; i < BATCH; i++)
#pragma unroll
                for (int plane = 0; plane < 3; plane++)
                    if (plane < planes)
                        w[i][plane] = fast::load_two_words(words + plane * records + min(at + i * LANES, n - 1));
            late = 0;
#pragma unroll
            for (int i = 0; i < BATCH; i++)
#pragma unroll
                for (int plane = 0; plane < 3; plane++)
                    if (plane < planes) late |= ring_late(w[i][plane], number);
        } while (!persistent_polled(a, late != 0, &polls));
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int record = at + i * LANES;
            if (record >= n) continue;
            *(uint4 *)(to + record * 16) = ring_record(w[i][0], w[i][1]);
            square += __uint_as_float(w[i][2].x);
        }
    }
    return square;
}

/* --- products ----------------------------------------------------------------------------------------------------- */

template <cuda_weights FORM> using ring_operand = std::conditional_t<FORM == CUDA_F16, f16, bf16>;

/* Multiplies the warp's operand by its share of all tiles of the block's items. sums: the warp's, of
 * [tiles][RING_WARPS][4 * R]. */
template <cuda_weights FORM, int R, typename A>
static __device__ __forceinline__ void ring_multiply(const A &a, const ring_product &p, const char *operand,
                                                     ring_stream &stream, float2 *sums)
{
    enum { STEPS = low_bit<FORM>::STEPS };
    const ring_share share = ring_share_of(p);
    const int units = share.end - share.first, lane = (int)threadIdx.x % 32;
    const char *x = operand + lane / 4 % R * ring_pitch<FORM>(units) + lane % 4 * 16;
#pragma unroll 1
    for (int tile = ring_items(p) * p.halves; tile > 0; tile--, sums += RING_WARPS * 4 * R) {
        float even[2][4] = {}, odd[2][4] = {}; /* four sums hide the latency of a mma */
#pragma unroll 1
        for (int unit = 0; unit < units; unit += RING_GROUP) {
            uint4 *at = ring_stage(stream.stage);
            fast::copy_wait<RING_STAGES - 1>();
#pragma unroll
            for (int i = 0; i < RING_GROUP; i++)
#pragma unroll
                for (int step = 0; step < STEPS; step++) {
                    uint32_t k[4];
                    uint4 u = {};
                    low_bit_integers<FORM>(at[32 * i], step, k);
                    if (unit + i < units) u = *(const uint4 *)(x + ((unit + i) * STEPS + step) * RING_UNIT);
                    const uint32_t a0[4] = {u.x, 0, u.y, 0}, a1[4] = {u.z, 0, u.w, 0};
                    fast::mma<ring_operand<FORM>>(even[i % 2], a0, k);
                    fast::mma<ring_operand<FORM>>(odd[i % 2], a1, k + 2);
                }
            ring_request(a, stream, at);
            stream.stage = stream.stage + 1 == RING_STAGES ? 0 : stream.stage + 1;
        }
        if (lane < 4 * R)
            sums[lane] = make_float2((even[0][0] + even[1][0]) + (odd[0][0] + odd[1][0]),
                                     (even[0][1] + even[1][1]) + (odd[0][1] + odd[1][1]));
    }
}

/* Two channels of a block's item in a row, the work of a thread. */
typedef struct {
    int of, item; /* the block's item number `of` */
    int row, pair;
    bool given;
} ring_place;

template <int R> static __device__ __forceinline__ ring_place ring_place_of(int items, int rows, int i)
{
    const int of = i / (4 * R), row = i / 4 % R;
    return {of, (int)blockIdx.x + of * (int)gridDim.x, row, i % 4, of < items && row < rows};
}

/* Returns the warps' sums of a place in a tile. */
template <int R> static __device__ __forceinline__ float2 ring_sum(const float2 *sums, int tile, const ring_place &e)
{
    float2 y = {};
    sums += tile * RING_WARPS * 4 * R + 4 * e.row + e.pair;
#pragma unroll
    for (int warp = 0; warp < RING_WARPS; warp++) y.x += sums[warp * 4 * R].x, y.y += sums[warp * 4 * R].y;
    return y;
}

#endif

#endif
