/* Attention. Heads of up to 128 elements have the softmax fused between the two products: online softmax over chunks of
 * keys (Milakov and Gimelshein, arXiv:1805.02867). Their scores never reach global memory; the number of keys is
 * unlimited. One kernel uses tensor cores, for bf16, aligned rows and heads of a multiple of 16, as in the
 * transformers; on request another has heads of 64. The third takes everything else, such as f32, by plain loops in
 * f32, a warp a few queries.
 *
 * A wider head, such as the image decoders' single one, is computed as two products by cuBLASLt with a softmax between.
 * Its scores and weights are in the queue's working memory.
 *
 * Floor of the tensor cores' kernels for a sequence of n tokens and a head of d elements: 4 n^2 d flop, 8 n d bytes. At
 * n = 320 and d = 64 that is 160 flop/byte, below the ridge of an H100 (989 Tflop/s over 3.35 TB/s = 295). But the
 * preceding products' outputs are still in L2. Each block of up to 160 queries, or 320, reads keys and values from
 * there once.
 */
#include "kernels/cuda/hopper.h"
#include "kernels/cuda/linear.h"

/* The shape of a call, for all kernels; rows as in ops.h. */
typedef struct {
    int q_stride, kv_stride, n_q, n_k; /* n_q, n_k: per sequence; with spans n_q is the longest, n_k unused */
    int heads, dim;
    float scale; /* log2(e) / sqrt(dim) */
} attention_shape;

static attention_shape shape_of(int q_stride, int kv_stride, int n_q, int n_k, int heads, int dim)
{
    return {q_stride, kv_stride, n_q, n_k, heads, dim, 1.4426950408889634f / sqrtf((float)dim)};
}

/* The sequences of a call. Without the arrays all have n_q queries and n_k keys, one behind the other. */
typedef struct {
    int count;
    const int *q_first, *n_q, *k_first, *n_k; /* [count], or NULL */
    const float *bias;                        /* [heads][2 * reach + 1], or NULL */
    int reach;
} attention_spans;

/* A head's additive bias. */
typedef struct {
    const float *table; /* [2 * reach + 1], or NULL */
    int reach;
} attention_bias;

static __device__ inline attention_bias bias_of(const attention_spans &s, int head)
{
    return {s.bias ? s.bias + (size_t)head * (size_t)(2 * s.reach + 1) : NULL, s.reach};
}

/* Returns the bias of a key and a query, times log2(e). A masked key gets a low number in place of -infinity: a
 * running maximum of -infinity would make NaNs. Its weight is 0 next to that of any other key. A NaN stays a NaN,
 * unlike with fmaxf. */
static __device__ inline float bias_at(const attention_bias &b, int key, int query)
{
    const int column = min(max(key - query, -b.reach), b.reach) + b.reach;
    const float bias = b.table[column] * 1.4426950408889634f;
    return bias < -1e30f ? -1e30f : bias;
}

/* A block's part of the work: its head, its tile of the head's queries, and its sequence. */
typedef struct {
    int tile, head, n_q, n_k;
    size_t query, key; /* first rows of the sequence */
} attention_place;

/* Finds a block's place. Neighbouring blocks have tiles of one head, which find its keys and values in L2. There may be
 * more tiles than blocks, because a sequence may have grown since the call was recorded. A block then continues with
 * `block` increased by the grid, a later tile of its head, until none is left. */
static __device__ inline attention_place attention_find_place(const attention_shape &a, const attention_spans &s,
                                                              unsigned block)
{
    const unsigned heads = (unsigned)a.heads, tiles = gridDim.x / (heads * (unsigned)s.count);
    const unsigned b = block % gridDim.x, i = b / tiles / heads;
    const int tile = (int)(block / gridDim.x * tiles + b % tiles), head = (int)(b / tiles % heads);
    if (!s.q_first) return {tile, head, a.n_q, a.n_k, (size_t)i * (size_t)a.n_q, (size_t)i * (size_t)a.n_k};
    return {tile, head, s.n_q[i], s.n_k[i], (size_t)s.q_first[i], (size_t)s.k_first[i]};
}

/* --- on tensor cores --------------------------------------------------------------------------------------- */

/* A warp has one or two tiles of TILE queries. Two tiles read keys and values from shared memory once for both; with
 * one, these reads take longer than the products. 6 warps of one tile or 5 of two, and two blocks on a multiprocessor,
 * leave a thread 168 registers. The block passes over the keys in chunks, with STAGES - 1 chunks being copied at any
 * time. The last keys, which do not fill a chunk, are multiplied LAST at a time. */
enum {
    TILE = 16,
    KEYS = 64,
    LAST = 16,
    STAGES = 3,
    WARPS = 6,
    PAIRED_WARPS = 5, /* of two tiles */
    PAIRED_DIM = 64,  /* head size of MAR, the one with two tiles: 32 keys at a time leave them room */
    PAD = 8           /* elements: successive rows are 16 bytes apart in the banks */
};

/* Copies rows first .. first + KEYS - 1 of a sequence, whose keys and values begin at element `at`, to a stage. The
 * last LAST of the sequence are filled up by 0; others that are missing are not written. */
template <int D>
static __device__ inline void load_chunk(const bf16 *key, const bf16 *value, size_t at, int stride, int first, int n_k,
                                         bf16 *stage)
{
    const int pieces = D / 8; /* 16-byte pieces of a row */
    const int rows = min((int)KEYS, (n_k - first + LAST - 1) / LAST * LAST);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < rows * pieces; i += (int)blockDim.x) {
        const int row = i / pieces, piece = i % pieces * 8, given = first + row < n_k;
        bf16 *to = stage + row * (D + PAD) + piece;
        const size_t from = at + (size_t)((first + row) * stride + piece);
        fast::copy16_if(given, to, key + from);
        fast::copy16_if(given, to + KEYS * (D + PAD), value + from);
    }
}

/* s = T tiles of queries times N keys of a stage. */
template <int D, int N, int T>
static __device__ inline void scores(const uint32_t q[T][D / 16][4], const bf16 *key, float s[T][N / 8][4])
{
    const int lane = (int)threadIdx.x % 32;
    const bf16 *row = key + (lane / 16 * 8 + lane % 8) * (D + PAD) + lane / 8 % 2 * 8;
#pragma unroll
    for (int n = 0; n < N / 16; n++) {
        for (int t = 0; t < T; t++)
            for (int i = 0; i < 4; i++) s[t][2 * n][i] = s[t][2 * n + 1][i] = 0;
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t b[4];
            fast::load_matrices(b, row + n * 16 * (D + PAD) + d * 16);
#pragma unroll
            for (int t = 0; t < T; t++) {
                fast::mma<bf16>(s[t][2 * n], q[t][d], b);
                fast::mma<bf16>(s[t][2 * n + 1], q[t][d], b + 2);
            }
        }
    }
}

/* o += s, as bf16, times N values of a stage. */
template <int D, int N, int T>
static __device__ inline void multiply_values(const float s[T][N / 8][4], const bf16 *value, float o[T][D / 8][4])
{
    const int lane = (int)threadIdx.x % 32;
    const bf16 *row = value + (lane / 8 % 2 * 8 + lane % 8) * (D + PAD) + lane / 16 * 8;
#pragma unroll
    for (int n = 0; n < N / 16; n++) {
        uint32_t p[T][4];
#pragma unroll
        for (int t = 0; t < T; t++)
            for (int i = 0; i < 4; i++)
                p[t][i] = cuda_pack(s[t][2 * n + i / 2][i % 2 * 2], s[t][2 * n + i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t b[4];
            fast::load_matrices_transposed(b, row + n * 16 * (D + PAD) + d * 16);
#pragma unroll
            for (int t = 0; t < T; t++) {
                fast::mma<bf16>(o[t][2 * d], p[t], b);
                fast::mma<bf16>(o[t][2 * d + 1], p[t], b + 2);
            }
        }
    }
}

/* Returns the maximum over a quad, the four lanes that share a query. */
static __device__ inline float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* Runs one step of the online softmax: s becomes exp2(scale * (s - top)), where top is the running maximum of each of
 * the lane's queries. Rescales sum and o from the old maximum to the new one. Only the first `keys` keys of the chunk
 * count. */
template <int D, int N>
static __device__ inline void online_softmax(float s[N / 8][4], float scale, int keys, float top[2], float sum[2],
                                             float o[D / 8][4])
{
    if (keys < N) {
        const int column = (int)threadIdx.x % 4 * 2;
#pragma unroll
        for (int n = 0; n < N / 8; n++)
            for (int i = 0; i < 4; i++)
                if (n * 8 + column + i % 2 >= keys) s[n][i] = -INFINITY;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int low = 2 * half, high = 2 * half + 1;
        float most = -INFINITY;
#pragma unroll
        for (int n = 0; n < N / 8; n++) most = fmaxf(most, fmaxf(s[n][low], s[n][high]));
        most = fmaxf(top[half], quad_max(most));
        const float rescale = fast::exp2(scale * (top[half] - most)), shift = scale * most;
        top[half] = most;
        sum[half] *= rescale;
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
            s[n][low] = fast::exp2(s[n][low] * scale - shift);
            s[n][high] = fast::exp2(s[n][high] * scale - shift);
            sum[half] += s[n][low] + s[n][high];
        }
#pragma unroll
        for (int d = 0; d < D / 8; d++) {
            o[d][low] *= rescale;
            o[d][high] *= rescale;
        }
    }
}

/* s = scale * s + bias of N keys, from key `first` on, and a tile's queries, from `query` on. */
template <int N>
static __device__ inline void cuda_add_bias(float s[N / 8][4], float scale, const attention_bias &b, int first,
                                            int query)
{
    const int lane = (int)threadIdx.x % 32, key = first + lane % 4 * 2, row = query + lane / 4;
#pragma unroll
    for (int n = 0; n < N / 8; n++)
        for (int i = 0; i < 4; i++) s[n][i] = s[n][i] * scale + bias_at(b, key + n * 8 + i % 2, row + i / 2 * 8);
}

/* Loads the fragments of 16 queries; the first `rows` exist. */
template <int D> static __device__ inline void load_queries(const bf16 *q, int stride, int rows, uint32_t a[D / 16][4])
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int d = 0; d < D / 16; d++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = lane / 4 + i % 2 * 8;
            const bf16 *at = q + (size_t)row * (size_t)stride + d * 16 + lane % 4 * 2 + i / 2 * 8;
            a[d][i] = row < rows ? *(const uint32_t *)at : 0;
        }
}

/* y = o / sum. The result passes through the warp's part of shared memory, so that stores have 16 bytes. */
template <int D>
static __device__ inline void attention_store(float o[D / 8][4], const float sum[2], bf16 *mine, bf16 *y, size_t stride,
                                              int rows)
{
    const int lane = (int)threadIdx.x % 32, pieces = D / 8;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float scale = 1 / cuda_quad_sum(sum[half]);
        bf16 *row = mine + (lane / 4 + half * 8) * (D + PAD) + lane % 4 * 2;
#pragma unroll
        for (int d = 0; d < D / 8; d++)
            *(uint32_t *)(row + d * 8) = cuda_pack(o[d][2 * half] * scale, o[d][2 * half + 1] * scale);
    }
    __syncwarp();
    for (int i = lane; i < rows * pieces; i += 32) {
        const int row = i / pieces, piece = i % pieces * 8;
        *(uint4 *)(y + (size_t)row * stride + piece) = *(const uint4 *)(mine + row * (D + PAD) + piece);
    }
}

/* What a warp knows of T tiles: the queries' fragments, and for each query its maximum, sum and result so far. */
template <int D, int T> struct attention_tiles {
    uint32_t q[T][D / 16][4];
    float top[T][2], sum[T][2], o[T][D / 8][4];
};

/* Attends to N keys from key `first` of the sequence on, of which `keys` exist; the tiles begin at `query`. */
template <int D, int N, int T, int BIASED>
static __device__ inline void attend_keys(const attention_shape &a, const attention_bias &bias, const bf16 *key,
                                          int first, int keys, int query, attention_tiles<D, T> &w)
{
    float s[T][N / 8][4];
    scores<D, N, T>(w.q, key, s);
#pragma unroll
    for (int t = 0; t < T; t++) {
        if (BIASED) cuda_add_bias<N>(s[t], a.scale, bias, first, query + t * TILE);
        online_softmax<D, N>(s[t], BIASED ? 1 : a.scale, keys, w.top[t], w.sum[t], w.o[t]);
    }
    multiply_values<D, N, T>(s, key + KEYS * (D + PAD), w.o);
}

/* Computes the queries of a place from `first` on, T tiles a warp. Only with BIASED the scores have the bias. A row has
 * the same bits with any T. */
template <int D, int T, int BIASED>
static __device__ inline void attend_tile(const attention_shape &a, const attention_bias &bias,
                                          const attention_place &p, int first, const bf16 *q, const bf16 *key,
                                          const bf16 *value, bf16 *y)
{
    enum { N = D == PAIRED_DIM ? KEYS / 2 : KEYS };
    const int warp = (int)threadIdx.x / 32, query = first + warp * T * TILE;
    const int chunks = (p.n_k + KEYS - 1) / KEYS, stage_size = 2 * KEYS * (D + PAD);
    const size_t at = p.key * (size_t)a.kv_stride + (size_t)(p.head * D);
    bf16 *stages = (bf16 *)cuda_shared();
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < chunks) load_chunk<D>(key, value, at, a.kv_stride, i * KEYS, p.n_k, stages + i * stage_size);
        fast::copy_commit();
    }
    attention_tiles<D, T> w = {};
#pragma unroll
    for (int t = 0; t < T; t++) {
        const int from = query + t * TILE;
        load_queries<D>(q + (p.query + (size_t)from) * (size_t)a.q_stride + (size_t)(p.head * D), a.q_stride,
                        p.n_q - from, w.q[t]);
        w.top[t][0] = w.top[t][1] = -INFINITY;
    }
#pragma unroll 1
    for (int i = 0; i < chunks; i++) {
        fast::copy_wait<STAGES - 2>();
        __syncthreads(); /* chunk i is loaded; nobody reads the previous one, whose stage is filled next */
        const int next = i + STAGES - 1, keys = min(p.n_k - i * KEYS, (int)KEYS);
        if (next < chunks)
            load_chunk<D>(key, value, at, a.kv_stride, next * KEYS, p.n_k, stages + next % STAGES * stage_size);
        fast::copy_commit();
        const bf16 *stage = stages + i % STAGES * stage_size;
        int k = 0;
#pragma unroll 1
        for (; k + N <= keys; k += N)
            attend_keys<D, N, T, BIASED>(a, bias, stage + k * (D + PAD), i * KEYS + k, N, query, w);
#pragma unroll 1
        for (; k < keys; k += LAST)
            attend_keys<D, LAST, T, BIASED>(a, bias, stage + k * (D + PAD), i * KEYS + k, keys - k, query, w);
    }
    __syncthreads();
#pragma unroll
    for (int t = 0; t < T; t++) {
        const int from = query + t * TILE;
        attention_store<D>(w.o[t], w.sum[t], stages + (warp * T + t) * TILE * (D + PAD),
                           y + (p.query + (size_t)from) * (size_t)(a.heads * D) + (size_t)(p.head * D),
                           (size_t)(a.heads * D), min(p.n_q - from, (int)TILE));
    }
}

/* Computes one part of one head of one sequence at a time. Recomputing its place for each saves registers. */
template <int D, int T, int BIASED>
__global__ static void __launch_bounds__(32 * (T > 1 ? PAIRED_WARPS : WARPS), D <= 80 ? 2 : 1)
    attend(attention_shape a, attention_spans s, const act *q, const act *key, const act *value, act *y)
{
    fast::start_next();
    fast::wait_for_previous();
#pragma unroll 1
    for (unsigned block = blockIdx.x;; block += gridDim.x) {
        const attention_place p = attention_find_place(a, s, block);
        const int first = p.tile * ((int)blockDim.x / 32) * T * TILE;
        if (first >= p.n_q) break;
        attend_tile<D, T, BIASED>(a, bias_of(s, p.head), p, first, (const bf16 *)q, (const bf16 *)key,
                                  (const bf16 *)value, (bf16 *)y);
        __syncthreads(); /* the results have left the stages' memory */
    }
}

typedef void attend_kernel(attention_shape, attention_spans, const act *, const act *, const act *, act *);

/* Index: head_dim / 16 - 1. */
static attend_kernel *const attend_of[] = {attend<16, 1, 0>, attend<32, 1, 0>, attend<48, 1, 0>,  attend<64, 1, 0>,
                                           attend<80, 1, 0>, attend<96, 1, 0>, attend<112, 1, 0>, attend<128, 1, 0>};
enum { MOST_DIM = 16 * sizeof attend_of / sizeof *attend_of };
/* The head size of T5 and of CLIP's text towers: with a bias only this one uses tensor cores. */
enum { BIASED_DIM = 64 };

static size_t attend_shared(int dim)
{
    return (size_t)(STAGES * 2 * KEYS * (dim + PAD)) * sizeof(bf16);
}

/* Returns 1 if rows of `stride` elements from p on can be read 16 bytes at a time. */
static int in_pieces(const void *p, int stride)
{
    return cuda_aligned(p) && stride % 8 == 0;
}

/* Returns the warps of a block, of `each` queries a warp and up to `most`. A head's queries are divided evenly among
 * blocks. Warps of a block share its loaded keys, so there are no more blocks than keep all multiprocessors busy. */
static int attend_warps(const cuda_queue *c, int heads, int n_q, int each, int most)
{
    const int parts = (n_q + each - 1) / each;
    int blocks = (parts + most - 1) / most;
    while (blocks * heads < c->device->multiprocessors && 2 * blocks < parts) blocks++;
    return (parts + blocks - 1) / blocks;
}

/* --- by warpgroups --------------------------------------------------------------------------------------------- */

/* The second form of heads of 64 without a bias on GPUs of compute capability 9.0, chosen when a device is opened
 * (MAR_CUDA_ATTENTION, docs/gpu.md). A warpgroup has 64 queries, a block up to 320, so that MAR's heads are read once.
 * Queries, keys and values are tiles in shared memory (hopper.h), from where wgmma takes them. Other warpgroups
 * multiply while one has its softmax. */
enum {
    WARPGROUP_DIM = TILE_WIDTH,
    WARPGROUP_QUERIES = 64, /* of a warpgroup */
    MOST_WARPGROUPS = 5,
};

struct warpgroup_memory {
    bf16 query[MOST_WARPGROUPS * WARPGROUP_QUERIES][WARPGROUP_DIM];
    struct {
        bf16 key[KEYS][WARPGROUP_DIM], value[KEYS][WARPGROUP_DIM];
    } stage[STAGES];
};
static_assert(offsetof(warpgroup_memory, stage) % TILE_ALIGNMENT == 0, "tiles are aligned");
static_assert(sizeof(warpgroup_memory::stage[0]) == 2 * KEYS * TILE_PITCH, "values are behind their keys");

#if CUDA_HOPPER
/* Starts to copy rows first .. first + rows - 1 of a sequence of n rows, which begins at row `base`, from element
 * `column` on to tiles, and, if not NULL, those of `second` to the KEYS rows of tiles behind these. Rows beyond the
 * sequence are 0. */
static __device__ inline void attention_copy_tiles(const bf16 *from, const bf16 *second, size_t base, int column,
                                                   int stride, int first, int rows, int n, bf16 *to)
{
    const int mine = (int)threadIdx.x / 8, piece = (int)threadIdx.x % 8, step = (int)blockDim.x / 8; /* step: of 16 */
    size_t at = (base + (size_t)(first + mine)) * (size_t)stride + (size_t)(column + piece * 8);
    char *place = (char *)tile_piece(to, mine, piece);
#pragma unroll 1
    for (int i = mine; i < rows; i += step, at += (size_t)(step * stride), place += step * TILE_PITCH) {
        fast::copy16_if(first + i < n, place, from + at);
        if (second) fast::copy16_if(first + i < n, place + KEYS * TILE_PITCH, second + at);
    }
}

/* Computes the queries of a place from `first` on, up to 64 a warpgroup. */
static __device__ inline void attend_warpgroup(const attention_shape &a, const attention_place &p, int first,
                                               const bf16 *q, const bf16 *key, const bf16 *value, bf16 *y)
{
    warpgroup_memory &m = *(warpgroup_memory *)cuda_shared();
    const int warp = (int)threadIdx.x / 32, chunks = (p.n_k + KEYS - 1) / KEYS, column = p.head * WARPGROUP_DIM;
    const bf16 *mine = m.query[warp / 4 * WARPGROUP_QUERIES];
    attention_copy_tiles(q, NULL, p.query, column, a.q_stride, first, (int)blockDim.x / 2, p.n_q, m.query[0]);
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < chunks)
            attention_copy_tiles(key, value, p.key, column, a.kv_stride, i * KEYS, KEYS, p.n_k, m.stage[i].key[0]);
        fast::copy_commit();
    }
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {}, o[WARPGROUP_DIM / 2] = {};
#pragma unroll 1
    for (int i = 0; i < chunks; i++) {
        const int next = i + STAGES - 1, keys = min(p.n_k - i * KEYS, (int)KEYS);
        float s[KEYS / 2];
        fast::copy_wait<STAGES - 2>();
        fast::tiles_written();
        __syncthreads(); /* chunk i is loaded; nobody reads the previous one, whose stage is filled next */
        if (next < chunks)
            attention_copy_tiles(key, value, p.key, column, a.kv_stride, next * KEYS, KEYS, p.n_k,
                                 m.stage[next % STAGES].key[0]);
        fast::copy_commit();
        const auto &stage = m.stage[i % STAGES];
        fast::warpgroup_begin();
#pragma unroll
        for (int d = 0; d < WARPGROUP_DIM; d += 16) fast::warpgroup_mma_tiles<KEYS>(s, mine, stage.key[0], d, d > 0);
        fast::warpgroup_end();
        fast::warpgroup_wait(s);
        online_softmax<WARPGROUP_DIM, KEYS>((float(*)[4])s, a.scale, keys, top, sum, (float(*)[4])o);
        uint32_t weight[KEYS / 16][4];
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++)
            for (int j = 0; j < 4; j++)
                weight[k][j] = cuda_pack(s[8 * k + j / 2 * 4 + j % 2 * 2], s[8 * k + j / 2 * 4 + j % 2 * 2 + 1]);
        fast::warpgroup_begin();
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) fast::warpgroup_mma_rows(o, weight[k], stage.value[0], 16 * k);
        fast::warpgroup_end();
        fast::warpgroup_wait(o, weight);
    }
    fast::copy_wait<0>();
    __syncthreads();
    const int from = first + warp * TILE;
    attention_store<WARPGROUP_DIM>((float(*)[4])o, sum, m.query[0] + warp * TILE * (WARPGROUP_DIM + PAD),
                                   y + (p.query + (size_t)from) * (size_t)(a.heads * WARPGROUP_DIM) + (size_t)column,
                                   (size_t)(a.heads * WARPGROUP_DIM), min(p.n_q - from, (int)TILE));
}
#endif

__global__ static void __launch_bounds__(128 * MOST_WARPGROUPS, 1)
    attend_warpgroups(attention_shape a, attention_spans s, const act *q, const act *key, const act *value, act *y)
{
#if CUDA_HOPPER
    fast::start_next();
    fast::wait_for_previous();
#pragma unroll 1
    for (unsigned block = blockIdx.x;; block += gridDim.x) {
        const attention_place p = attention_find_place(a, s, block);
        const int first = p.tile * (int)blockDim.x / 2;
        if (first >= p.n_q) break;
        attend_warpgroup(a, p, first, (const bf16 *)q, (const bf16 *)key, (const bf16 *)value, (bf16 *)y);
        __syncthreads(); /* the results have left the tiles' memory */
    }
#else
    (void)a, (void)s, (void)q, (void)key, (void)value, (void)y;
#endif
}

mar_status cuda_choose_attention(cuda_device *d, mar_err *err)
{
    const mar_status status = cuda_read_wish("MAR_CUDA_ATTENTION", "01", "0 or 1", &d->warpgroup_attention, err);
    if (status != MAR_OK || !d->warpgroup_attention || (d->bf16 && cuda_runs_hopper(d))) return status;
    return err_set(err, MAR_EBACKEND, "the environment variable MAR_CUDA_ATTENTION is 1: %s",
                   d->bf16 ? CUDA_NEEDS_HOPPER : "it computes in bf16 only, not in f32");
}

/* --- wide heads ---------------------------------------------------------------------------------------------- */

/* PART: most queries at a time, with all keys. */
enum { PART = 1024, SOFTMAX_WARPS = 4 };

/* weights = softmax(scale * scores) of rows of n, `stride` elements apart; scale includes log2(e). A warp has a row. */
template <typename T>
__global__ static void softmax_rows(const float *scores, int rows, int n, int stride, float scale, void *weights)
{
    const int row = (int)blockIdx.x * SOFTMAX_WARPS + (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    if (row >= rows) return;
    const float *score = scores + (size_t)row * (size_t)stride;
    T *weight = (T *)weights + (size_t)row * (size_t)stride;
    float most = -INFINITY, sum = 0;
    for (int i = lane; i < n; i += 32) most = fmaxf(most, score[i]);
    most = cuda_warp_max(most);
    for (int i = lane; i < n; i += 32) sum += fast::exp2(scale * (score[i] - most));
    sum = cuda_warp_sum(sum);
    for (int i = lane; i < n; i += 32) cuda_store(weight + i, fast::exp2(scale * (score[i] - most)) / sum);
}

/* The products of a head, for `rows` queries: scores = q key^T and y = weights value. The queries are divided into as
 * few equal parts as fit in the working memory; rows is 0 where not even one query does. */
typedef struct {
    cuda_product scores, values;
} wide_products;

static wide_products products_of(const cuda_queue *c, const attention_shape &a)
{
    const int stride = (a.n_k + 7) / 8 * 8; /* of scores and weights */
    const size_t fit = c->working_bytes / ((size_t)stride * (sizeof(float) + c->device->base.act_size));
    const int most = (int)min(fit, (size_t)PART), parts = most > 0 ? (a.n_q + most - 1) / most : 0;
    wide_products p = {};
    p.scores.type = p.values.type = p.values.y_type = c->device->bf16 ? MAR_DTYPE_BF16 : MAR_DTYPE_F32;
    p.scores.y_type = MAR_DTYPE_F32;
    p.scores.rows = p.values.rows = parts > 0 ? (a.n_q + parts - 1) / parts : 0;
    p.scores.in = p.values.out = a.dim, p.scores.out = p.values.in = a.n_k;
    p.scores.x_stride = a.q_stride, p.scores.y_stride = p.values.x_stride = stride;
    p.scores.weight_stride = p.values.weight_stride = a.kv_stride;
    p.values.y_stride = a.heads * a.dim, p.values.transposed = 1;
    return p;
}

static mar_status plan_wide(cuda_queue *c, const attention_shape &a, mar_err *err)
{
    mar_status status = cuda_working_memory(c, err);
    const wide_products p = products_of(c, a);
    if (status == MAR_OK && p.scores.rows == 0)
        return err_set(err, MAR_EBACKEND, "attention over %d keys: a GPU's working memory of %zu bytes takes fewer",
                       a.n_k, c->working_bytes);
    if (status == MAR_OK) status = cuda_product_plan(c, &p.scores, err);
    return status == MAR_OK ? cuda_product_plan(c, &p.values, err) : status;
}

/* Pointers as in kern_core_ops.attention, of act. */
static void attend_wide(cuda_queue *c, const attention_shape &a, int n_seq, const char *q, const char *key,
                        const char *value, char *y)
{
    const size_t size = c->device->base.act_size;
    const auto softmax = c->device->bf16 ? softmax_rows<bf16> : softmax_rows<float>;
    mar_err err = {};
    if (!cuda_live(c)) return;
    const mar_status status = plan_wide(c, a, &err); /* exists, but for a shape without a plan */
    if (status != MAR_OK) {
        kern_fail(&c->base, status, &err);
        return;
    }
    wide_products p = products_of(c, a);
    const int part = p.scores.rows, stride = p.scores.y_stride;
    float *scores = (float *)c->working;
    void *weights = scores + (size_t)part * (size_t)stride;
    for (int head = 0; head < n_seq * a.heads; head++) {
        const size_t sequence = (size_t)(head / a.heads), column = (size_t)(head % a.heads * a.dim);
        const size_t at = (sequence * (size_t)a.n_k * (size_t)a.kv_stride + column) * size;
        for (int first = 0; first < a.n_q; first += part) {
            const size_t query = sequence * (size_t)a.n_q + (size_t)first;
            const int rows = p.scores.rows = p.values.rows = min(part, a.n_q - first);
            cuda_multiply(c, &p.scores, q + (query * (size_t)a.q_stride + column) * size, key + at, NULL, scores);
            cuda_launch(c, softmax, cuda_blocks((size_t)rows, SOFTMAX_WARPS), 32 * SOFTMAX_WARPS, 0, scores, rows,
                        a.n_k, stride, a.scale, weights);
            cuda_multiply(c, &p.values, weights, value + at, NULL,
                          y + (query * (size_t)p.values.y_stride + column) * size);
        }
    }
}

/* --- everything else --------------------------------------------------------------------------------------- */

enum { GENERIC_WARPS = 4, MINE = MOST_DIM / 32, QUERIES = 4 /* of a warp */ };

/* A warp computes QUERIES queries, from query `first` on, of which `rows` exist; q and y point at the first. A lane has
 * numbers lane, lane + 32, .. of a head. Query and sums stay in registers. */
template <typename T>
static __device__ inline void attend_plainly(const attention_shape &a, const attention_bias &bias, int first, int rows,
                                             int n_k, const T *q, const T *key, const T *value, T *y)
{
    const int lane = (int)threadIdx.x % 32;
    float query[QUERIES][MINE], sum[QUERIES][MINE] = {}, top[QUERIES], total[QUERIES] = {};
    for (int i = 0; i < QUERIES; i++) {
        top[i] = -FLT_MAX;
        for (int j = 0; j < MINE; j++) {
            const int d = lane + 32 * j;
            query[i][j] = i < rows && d < a.dim ? cuda_float(q[(size_t)i * (size_t)a.q_stride + (size_t)d]) : 0;
        }
    }
#pragma unroll 4
    for (int k = 0; k < n_k; k++, key += a.kv_stride, value += a.kv_stride) {
        float weight[QUERIES] = {};
        for (int j = 0; j < MINE; j++) {
            const float x = lane + 32 * j < a.dim ? cuda_float(key[lane + 32 * j]) : 0;
            for (int i = 0; i < QUERIES; i++) weight[i] += x * query[i][j];
        }
        for (int i = 0; i < QUERIES; i++) {
            float score = cuda_warp_sum(weight[i]) * a.scale;
            if (bias.table) score += bias_at(bias, k, first + i);
            const float most = fmaxf(top[i], score), rescale = fast::exp2(top[i] - most);
            top[i] = most;
            weight[i] = fast::exp2(score - most);
            total[i] = total[i] * rescale + weight[i];
            for (int j = 0; j < MINE; j++) sum[i][j] *= rescale;
        }
        for (int j = 0; j < MINE; j++) {
            const float x = lane + 32 * j < a.dim ? cuda_float(value[lane + 32 * j]) : 0;
            for (int i = 0; i < QUERIES; i++) sum[i][j] += weight[i] * x;
        }
    }
#pragma unroll
    for (int i = 0; i < QUERIES; i++)
        for (int j = 0; j < MINE; j++)
            if (i < rows && lane + 32 * j < a.dim)
                cuda_store(y + (size_t)i * (size_t)(a.heads * a.dim) + (size_t)(lane + 32 * j), sum[i][j] / total[i]);
}

template <typename T>
__global__ static void __launch_bounds__(32 * GENERIC_WARPS)
    attend_generic(attention_shape a, attention_spans s, const act *q, const act *key, const act *value, act *y)
{
#pragma unroll 1
    for (unsigned block = blockIdx.x;; block += gridDim.x) {
        const attention_place p = attention_find_place(a, s, block);
        const int first = (p.tile * GENERIC_WARPS + (int)threadIdx.x / 32) * QUERIES;
        if (first >= p.n_q) break;
        const size_t column = (size_t)p.head * (size_t)a.dim, query = p.query + (size_t)first;
        const size_t row = p.key * (size_t)a.kv_stride + column;
        attend_plainly<T>(a, bias_of(s, p.head), first, min(p.n_q - first, (int)QUERIES), p.n_k,
                          (const T *)q + query * (size_t)a.q_stride + column, (const T *)key + row,
                          (const T *)value + row, (T *)y + query * (size_t)(a.heads * a.dim) + column);
    }
}

/* --- the table --------------------------------------------------------------------------------------------- */

static int on_tensor_cores(const cuda_queue *c, int dim)
{
    return c->device->bf16 && dim % 16 == 0 && dim <= MOST_DIM && attend_shared(dim) <= c->device->shared_bytes;
}

/* Raises a kernel's limit of dynamic shared memory. */
template <typename K> static void allow(K *kernel, size_t bytes, cudaError_t *error)
{
    if (*error == cudaSuccess)
        *error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

mar_status cuda_attention_plan(kern_queue *k, int n_q, int n_k, int heads, int head_dim, int q_stride, int kv_stride,
                               mar_err *err)
{
    cuda_queue *c = cuda_of(k);
    cudaError_t error = cudaSuccess;
    if (head_dim > MOST_DIM)
        return n_q > 0 ? plan_wide(c, shape_of(q_stride, kv_stride, n_q, n_k, heads, head_dim), err) : MAR_OK;
    if (!on_tensor_cores(c, head_dim)) return MAR_OK;
    const CUcontext before = cuda_switch(c->device->context);
    allow(attend_of[head_dim / 16 - 1], attend_shared(head_dim), &error);
    if (head_dim == BIASED_DIM) allow(attend<BIASED_DIM, 1, 1>, attend_shared(head_dim), &error);
    if (head_dim == PAIRED_DIM) allow(attend<PAIRED_DIM, 2, 0>, attend_shared(head_dim), &error);
    if (c->device->warpgroup_attention) allow(attend_warpgroups, sizeof(warpgroup_memory), &error);
    (void)cuda_switch(before);
    return cuda_status(error, "shared memory for attention", err);
}

/* Launches a kernel, with blocks for a.n_q queries of each sequence. */
static void attention_launch(cuda_queue *c, const attention_shape &a, const attention_spans &spans, const act *q,
                             const act *key, const act *value, act *y)
{
    const int dim = a.dim, heads = spans.count * a.heads;
    const int pieces =
        in_pieces(q, a.q_stride) && in_pieces(key, a.kv_stride) && in_pieces(value, a.kv_stride) && in_pieces(y, 0);
    attend_kernel *kernel = c->device->bf16 ? attend_generic<bf16> : attend_generic<float>;
    int warps = GENERIC_WARPS, queries = GENERIC_WARPS * QUERIES, early = 0;
    size_t shared = 0;
    if (pieces && on_tensor_cores(c, dim) && (!spans.bias || dim == BIASED_DIM)) {
        const size_t blocks = (size_t)heads * cuda_blocks((size_t)a.n_q, 2 * TILE * PAIRED_WARPS);
        const int paired =
            dim == PAIRED_DIM && !spans.bias && a.n_q > TILE && blocks >= 2 * (size_t)c->device->multiprocessors;
        const int each = paired ? 2 * TILE : TILE;
        kernel = spans.bias ? attend<BIASED_DIM, 1, 1> : paired ? attend<PAIRED_DIM, 2, 0> : attend_of[dim / 16 - 1];
        warps = attend_warps(c, heads, a.n_q, each, paired ? PAIRED_WARPS : WARPS);
        queries = each * warps, shared = attend_shared(dim), early = 1;
        if (c->device->warpgroup_attention && dim == WARPGROUP_DIM && !spans.bias) {
            kernel = attend_warpgroups;
            warps = 4 * attend_warps(c, heads, a.n_q, WARPGROUP_QUERIES, MOST_WARPGROUPS);
            queries = WARPGROUP_QUERIES / 4 * warps, shared = sizeof(warpgroup_memory);
        }
        if (c->device->base.product_rows)
            cuda_large_shared(c, kernel); /* so that it shares a multiprocessor with them, if small enough */
    }
    cuda_launch_as(c, early, 1, kernel, (unsigned)heads * cuda_blocks((size_t)a.n_q, (size_t)queries),
                   32 * (unsigned)warps, shared, a, spans, q, key, value, y);
}

void cuda_attention(kern_queue *k, const act *q, int q_stride, const act *key, const act *value, int kv_stride,
                    int n_seq, int n_q, int n_k, int heads, int head_dim, act *y)
{
    cuda_queue *c = cuda_of(k);
    const attention_shape a = shape_of(q_stride, kv_stride, n_q, n_k, heads, head_dim);
    attention_spans all = {};
    all.count = n_seq;
    if (n_seq <= 0 || n_q <= 0) return;
    if (head_dim > MOST_DIM)
        attend_wide(c, a, n_seq, (const char *)q, (const char *)key, (const char *)value, (char *)y);
    else
        attention_launch(c, a, all, q, key, value, y);
}

/* A recording keeps the grid of its second use. That grid is correct for other counts too. A row's bits do not depend
 * on it, because a warp's queries are independent of other warps. */
void cuda_attention_spans(kern_queue *k, const act *q, int q_stride, const int *q_first, const int *n_q, const act *key,
                          const act *value, int kv_stride, const int *k_first, const int *n_k, int n_seq, int heads,
                          int head_dim, const float *bias, int reach, act *y)
{
    cuda_queue *c = cuda_of(k);
    attention_shape a = shape_of(q_stride, kv_stride, 1, 0, heads, head_dim);
    if (head_dim > MOST_DIM)
        cuda_fail(c, MAR_EBACKEND, "spans with heads of %d elements: a GPU takes up to %d", head_dim, (int)MOST_DIM);
    if (n_seq <= 0 || head_dim > MOST_DIM) return;
    for (int s = 0; s < n_seq; s++) a.n_q = max(a.n_q, n_q[s]);
    attention_spans spans;
    spans.count = n_seq;
    spans.bias = bias;
    spans.reach = reach;
    spans.q_first = cuda_stage(c, q_first, (size_t)n_seq);
    spans.n_q = cuda_stage(c, n_q, (size_t)n_seq);
    spans.k_first = cuda_stage(c, k_first, (size_t)n_seq);
    spans.n_k = cuda_stage(c, n_k, (size_t)n_seq);
    attention_launch(c, a, spans, q, key, value, y);
}
