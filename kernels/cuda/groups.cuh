/* The head at 16 and more rows with every product on multiprocessors of its own: a form beside persistent.cu's and
 * cuBLASLt's, chosen at load (MAR_CUDA_HEAD_GROUPS, docs/persistent.md). Two kernels use it, the chain (groups.cu) and
 * speculation inside the head (groups_speculation.cu). They differ in the turn and in the order of groups.
 *
 * A block has one task for the whole launch. The blocks of a product share its columns and keep their weights in shared
 * memory, as many as fit; the others come from the L2 cache. The last blocks turn rows: final layer, step or walk,
 * input layer, first norm. Rows go in tiles of 16, and one or two are a group. A group passes through all products and
 * the turn in every round, that is a step of the chain or a round of speculation. Meanwhile the other groups are
 * elsewhere. A product's block has two teams of four warps, which take groups in turn: one multiplies while the other
 * waits.
 *
 * Groups do not depend on each other. A group has a count of arrivals: each block that has finished its share of a
 * stage adds 1, and the next stage's blocks wait for the sum. There is no barrier of the grid or of a cluster. Between
 * fc2 and the next fc1 a row's moments go as words (ptx.h) among fc2's blocks, which normalise their own columns.
 * Every block takes its groups in the same order, groups_next: so the first unfinished stage of the first unfinished
 * entry of that order can always go on.
 *
 * x, u and v of a group and the moments of its rows are overwritten only by blocks that have waited, directly or
 * through others, for all that read them.
 *
 * A tile has 16 states, or with guidance 8: rows 0 to 7 are theirs with condition 0, rows 8 to 15 with 1. Rows without
 * a state, and the tile that a chain's last group may lack, are computed and not used.
 *
 * A kernel's blocks with groups_turner(a, g) < 0 call groups_multiplies<MT, SWIGLU>(a, g), with MT tiles a group, the
 * others turn; all end with persistent_report(a). G, the type of g, is a groups_args. It has
 *   groups_at groups_next(a, g, s, entry);       of the order in which products take groups: number `entry`; called by
 *                                                a team, group -1: the end
 *   int groups_mod_row(g, round, row);           the modulation row of row `row` of all tiles; G::LOADED: a load
 *   void groups_prefetch(a, g, s, block, entry); for an fc2's block, before it waits for an entry */
#ifndef KERNELS_CUDA_GROUPS_CUH
#define KERNELS_CUDA_GROUPS_CUH

#include "kernels/cuda/persistent_layers.cuh"

enum {
    GROUPS_LEAST = 16, /* rows, from which on a chain or a call of speculation runs in this form */
    GROUPS_TEAM = 128, /* threads of a team: a warp has half of the channels and half of a pass's columns */
    GROUPS_TEAMS = PERSISTENT_THREADS / GROUPS_TEAM,
    GROUPS_TILES = 7, /* tiles of 8 columns that a warp multiplies at a time */
    GROUPS_PASS = 2 * GROUPS_TILES,
    GROUPS_ENTRIES = 5, /* moments of a row that a thread merges: fc2 has at most 2 * GROUPS_ENTRIES blocks */
    GROUPS_LINE = 32,   /* unsigneds from a count to the next one */
    GROUPS_MOST = 64,   /* groups of speculation; 24 keep all products busy (docs/persistent.md) */
    GROUPS_QUEUE = 4 * GROUPS_MOST,                    /* more than are under way: groups_append */
    GROUPS_FIXED = GROUPS_TEAMS * 2 * GROUPS_PASS * 16 /* uint4s of a product's sums */
};

/* Arguments of a launch beside persistent_args, whose x and v are [rows of all tiles][W], [..][H], as floats and
 * groups_word. */
struct groups_args {
    groups_form form;
    int conditions;
    int tiles, group; /* tiles of rows; tiles of a group */
    const unsigned char *mod;
    unsigned *counts; /* [groups] GROUPS_LINE apart */
    uint4 *queue;     /* [GROUPS_QUEUE] of speculation: two words each, a group and its round; -1: the end */
    uint4 *moments;   /* [rows][form.fc2][2] mean and squared deviations of half of a block's columns, as words */
    uint4 *u;         /* [rows][W] operand of fc1, as v */
};

/* A group in a round. */
typedef struct {
    int group, round;
} groups_at;

/* groups.cu: lays out g's tiles, and the one that the last group may lack, in `scratch`: a->arrivals, x and v, and all
 * arrays of g but mod. Returns the first bytes, which a launch sets to 0. groups_tiles returns the number of tiles that
 * groups_scratch_bytes of `rows` rows has room for. */
size_t groups_lay_out(const persistent_head *f, void *scratch, persistent_args *a, groups_args *g);
size_t groups_tiles(int rows);

/* Launches kernels[g.group - 1][SWIGLU]. */
template <typename G>
static inline cudaError_t groups_start(const cuda_queue *c, persistent_args a,
                                       void (*const (&kernels)[2][2])(persistent_args, G), const G &g)
{
    const groups_form &f = g.form;
    a.cluster = 1, a.clusters = a.depth * (f.fc1 + f.fc2) + f.turners, a.shared_bytes = f.shared_bytes;
    return persistent_start(c, a, kernels[g.group - 1][a.norms != NULL], g);
}
/* Clears the first `zeros` bytes of the working memory and launches. */
template <typename G>
static inline void groups_launch(cuda_queue *c, persistent_args a, size_t zeros,
                                 void (*const (&kernels)[2][2])(persistent_args, G), const G &g)
{
    a.gave_up = c->gave_up;
    if (cuda_live(c) && cuda_ok(c, cudaMemsetAsync(a.arrivals, 0, zeros, c->stream), "preparing the head's kernel"))
        cuda_ok(c, groups_start(c, a, kernels, g), "launching the head's kernel");
}

#if defined(__CUDACC__) || defined(MAR_CUDAHOST)

/* A block's share of a product, and its shared memory. */
typedef struct {
    int first, tiles;     /* its tiles of 8 columns */
    int pairs, stride;    /* pieces of a tile's weights: [pairs][32], `stride` apart in global memory */
    int resident;         /* tiles whose weights are in shared memory */
    const uint4 *weights; /* those of tile `first` */
    uint4 *kept;          /* [resident][pairs][32] */
    float2 *sums;         /* the team's [half of the channels][half of a pass][GROUPS_TILES][32] */
    float *bias;          /* [tiles][8] */
} groups_share;

/* --- waiting --------------------------------------------------------------------------------------------------- */

/* Thread 0 of a team or block waits until a group's count has come to `target`. Where blocks are missing it gives up,
 * and returns false. */
static __device__ __forceinline__ bool groups_wait(const persistent_args &a, const unsigned *count, unsigned target)
{
    unsigned polls = 0;
    while (!persistent_polled(a, (int)(fast::load_relaxed(count) - target) < 0, &polls)) {
    }
    return (int)(fast::load_acquire(count) - target) >= 0;
}
static __device__ __forceinline__ void groups_sync()
{
    fast::team_sync(1 + (int)threadIdx.x / GROUPS_TEAM, GROUPS_TEAM);
}
static __device__ __forceinline__ int groups_tiles_of(const groups_args &g, int group)
{
    return min(g.group, g.tiles - g.group * group);
}
/* Returns the arrivals of a group in a round. */
static __device__ __forceinline__ unsigned groups_arrivals(const persistent_args &a, const groups_args &g, int group)
{
    return (unsigned)(groups_tiles_of(g, group) + a.depth * (g.form.fc1 + g.form.fc2));
}

/* --- rows ------------------------------------------------------------------------------------------------------ */

/* Returns the states of a tile. */
static __device__ __forceinline__ int groups_states(const groups_args &g)
{
    return 16 / g.conditions;
}
/* Returns the condition of a row. */
static __device__ __forceinline__ int groups_condition(const groups_args &g, int row)
{
    return g.conditions == 2 ? row >> 3 & 1 : 0;
}
static __device__ __forceinline__ const unsigned char *groups_mod(const persistent_args &a, const groups_args &g,
                                                                  int mod_row)
{
    return g.mod + (size_t)mod_row * a.mod_bytes;
}
/* Returns an adaLN layer's part of a modulation row, from `channel` on: 0 shift, 1 scale, 2 gate. */
static __device__ __forceinline__ const f16 *groups_ada(const persistent_args &a, const unsigned char *mod, int block,
                                                        int part, int channel)
{
    return (const f16 *)mod + (3 * (block / a.group) + part) * a.width + channel;
}

/* Returns the index of two channels of a row in an operand of `channels` channels: [tile][32 channels][mma of a pair]
 * [lane][4], a lane's four registers of an mma. A load of 16 bytes is a fragment, where a piece (persistent_layout.cuh)
 * is a half of two. The order of the channels is that of pieces, so the weights are the same. */
static __device__ __forceinline__ int groups_word(int channels, int row, int channel)
{
    const int mma = ((row >> 4) * (channels / 32) + (channel >> 5)) * 2 + (channel >> 2 & 1);
    return (mma * 32 + (row & 7) * 4 + (channel >> 3 & 3)) * 4 + (channel >> 1 & 1) * 2 + (row >> 3 & 1);
}

/* Normalises two channels of a row and stores them as operand of block `block`'s fc1; norm is mean and inverse
 * deviation, shift and scale are packed. */
template <bool SWIGLU>
static __device__ __forceinline__ void groups_store_u(const persistent_args &a, const groups_args &g, int block,
                                                      int row, int channel, float2 x, const float2 &norm,
                                                      uint32_t shift, uint32_t scale)
{
    const float2 add = cuda_two<f16>(shift), factor = cuda_two<f16>(scale);
    x = make_float2((x.x - norm.x) * norm.y, (x.y - norm.x) * norm.y);
    if (SWIGLU) {
        const float *at = a.norms + 2 * block * a.width + channel;
        const float2 weight = __ldg((const float2 *)at), bias = __ldg((const float2 *)(at + a.width));
        x = make_float2(x.x * weight.x + bias.x, x.y * weight.y + bias.y);
    }
    ((uint32_t *)g.u)[groups_word(a.width, row, channel)] =
        cuda_pack<f16>(x.x * (1 + factor.x) + add.x, x.y * (1 + factor.y) + add.y);
}

/* --- products -------------------------------------------------------------------------------------------------- */

/* Returns the first tile of block `rank`, of n, that share `columns` columns. */
static __device__ __forceinline__ int groups_begins_at(int columns, int n, int rank)
{
    return columns / 8 * rank / n;
}
/* Returns the tiles of a half of the columns, the first ones rounded up. */
static __device__ __forceinline__ int groups_half(int tiles, int half)
{
    return (tiles + 1 - half) / 2;
}

/* Lays out and loads the block's share. */
template <bool SECOND>
static __device__ __forceinline__ groups_share groups_begin(const persistent_args &a, const groups_args &g, int block,
                                                            int rank)
{
    const int columns = SECOND ? a.width : a.fc1_columns, blocks = SECOND ? g.form.fc2 : g.form.fc1;
    const int team = (int)threadIdx.x / GROUPS_TEAM;
    const float *bias = a.bias + (size_t)block * (size_t)(a.fc1_columns + a.width) + (SECOND ? a.fc1_columns : 0);
    uint4 *shared = (uint4 *)cuda_shared();
    groups_share s;
    s.first = groups_begins_at(columns, blocks, rank), s.tiles = groups_begins_at(columns, blocks, rank + 1) - s.first;
    s.pairs = (SECOND ? a.hidden : a.width) / 32;
    s.stride = (int)((SECOND ? a.block_weights - a.fc2_weights : a.fc2_weights) / (size_t)(columns / 8));
    s.resident = min(s.tiles, SECOND ? g.form.resident2 : g.form.resident1);
    s.weights = a.weights + (size_t)block * a.block_weights + (SECOND ? a.fc2_weights : 0);
    s.weights += (size_t)s.first * (size_t)s.stride;
    s.sums = (float2 *)shared + team * 2 * GROUPS_PASS * 32;
    s.bias = (float *)(shared + GROUPS_FIXED);
    s.kept = shared + GROUPS_FIXED + 2 * s.tiles;
#pragma unroll 1
    for (int tile = 0; tile < s.resident; tile++)
        for (int i = (int)threadIdx.x; i < s.pairs * 32; i += PERSISTENT_THREADS)
            fast::copy16(s.kept + tile * s.pairs * 32 + i, s.weights + (size_t)tile * (size_t)s.stride + i);
    fast::copy_commit();
    for (int i = (int)threadIdx.x; i < s.tiles * 8; i += PERSISTENT_THREADS) s.bias[i] = bias[8 * s.first + i];
    fast::copy_wait<0>();
    __syncthreads();
    return s;
}

/* Loads the lane's fragments for DEPTH pairs of mmas of a group's rows; 0 from pair `end` on. */
template <int MT, int DEPTH>
static __device__ __forceinline__ void groups_load(const uint4 *operand, int pairs, int pair, int end,
                                                   uint4 (&x)[DEPTH][MT][2])
{
#pragma unroll
    for (int i = 0; i < DEPTH; i++)
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int mma = 0; mma < 2; mma++) {
                x[i][m][mma] = make_uint4(0, 0, 0, 0);
                if (pair + i < end) x[i][m][mma] = operand[(m * pairs + pair + i) * 64 + mma * 32];
            }
}

/* d = the warp's half of the sums of `count` tiles of columns, from `tile` of the block's on, at a group's rows. Sums
 * of missing tiles are not used: without branches all loads can go ahead. ALL: all weights are in shared memory. */
template <int MT, bool ALL>
static __device__ __forceinline__ void groups_multiply(const groups_share &s, const uint4 *operand, int tile, int count,
                                                       float (&d)[MT][GROUPS_TILES][4])
{
    enum { DEPTH = MT == 1 ? 2 : 1 }; /* pairs in flight: registers are the limit */
    const int lane = (int)threadIdx.x % 32, part = (int)threadIdx.x / 64 % 2, end = s.pairs * (part + 1) / 2;
    uint4 now[DEPTH][MT][2], next[DEPTH][MT][2];
    int pair = s.pairs * part / 2;
    groups_load<MT>(operand + lane, s.pairs, pair, end, now);
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int t = 0; t < GROUPS_TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) d[m][t][i] = 0;
#pragma unroll 1
    for (; pair < end; pair += DEPTH) {
        groups_load<MT>(operand + lane, s.pairs, pair + DEPTH, end, next);
#pragma unroll
        for (int i = 0; i < DEPTH; i++) {
            const int piece = min(pair + i, end - 1) * 32 + lane;
            const uint4 *kept = s.kept + piece;
#pragma unroll
            for (int t = 0; t < GROUPS_TILES; t++) {
                const int at = tile + min(t, count - 1);
                const uint4 w =
                    ALL || at < s.resident ? kept[at * s.pairs * 32] : __ldcg(s.weights + at * s.stride + piece);
                const uint32_t b0[2] = {w.x, w.y}, b1[2] = {w.z, w.w};
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    const uint4 &x = now[i][m][0], &y = now[i][m][1];
                    const uint32_t a0[4] = {x.x, x.y, x.z, x.w}, a1[4] = {y.x, y.y, y.z, y.w};
                    fast::mma<f16>(d[m][t], a0, b0);
                    fast::mma<f16>(d[m][t], a1, b1);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < DEPTH; i++)
#pragma unroll
            for (int m = 0; m < MT; m++) now[i][m][0] = next[i][m][0], now[i][m][1] = next[i][m][1];
    }
}

/* Adds up both halves of the channels of a tile of rows. A lane gets its pair of columns of a row, in each of the
 * warp's tiles: of row lane / 4 in a warp that has the first half of the channels, of row 8 + lane / 4 in the other. */
static __device__ __forceinline__ void groups_add(const groups_share &s, int tile, int count,
                                                  const float (&d)[GROUPS_TILES][4], float2 (&y)[GROUPS_TILES])
{
    const int lane = (int)threadIdx.x % 32, part = (int)threadIdx.x / 64 % 2, half = (int)threadIdx.x / 32 % 2;
    float2 *mine = s.sums + half * GROUPS_TILES * 32 + lane, *to = mine + part * GROUPS_PASS * 32;
    const float2 *from = mine + (1 - part) * GROUPS_PASS * 32;
    groups_sync(); /* the sums before have been read */
#pragma unroll
    for (int t = 0; t < GROUPS_TILES; t++)
        to[t * 32] = part ? make_float2(d[t][0], d[t][1]) : make_float2(d[t][2], d[t][3]);
    groups_sync();
#pragma unroll
    for (int t = 0; t < GROUPS_TILES; t++) {
        const float2 bias = *(const float2 *)(s.bias + 8 * (tile + min(t, count - 1)) + 2 * (lane % 4)),
                     other = from[t * 32];
        y[t] = part ? make_float2(bias.x + other.x + d[t][2], bias.y + other.y + d[t][3])
                    : make_float2(bias.x + d[t][0] + other.x, bias.y + d[t][1] + other.y);
    }
}

/* Publishes the moments of the warp's columns x of a row, to which the four lanes of the row contribute. */
static __device__ __forceinline__ void groups_publish(uint4 *to, unsigned number, int count,
                                                      const float2 (&x)[GROUPS_TILES])
{
    float sum = 0, squares = 0;
#pragma unroll
    for (int t = 0; t < GROUPS_TILES; t++)
        if (t < count) sum += x[t].x + x[t].y;
    const float mean = __fmul_rn(cuda_quad_sum(sum), __fdividef(1, 8.0f * (float)count));
#pragma unroll
    for (int t = 0; t < GROUPS_TILES; t++) {
        const float2 d = make_float2(x[t].x - mean, x[t].y - mean);
        if (t < count) squares += d.x * d.x + d.y * d.y;
    }
    squares = cuda_quad_sum(squares);
    if (threadIdx.x % 4 == 0 && count > 0)
        fast::store_two_words(to, __float_as_uint(mean), __float_as_uint(squares), number);
}

/* Returns mean and inverse deviation of a row, merged from its four lanes' words as persistent_merge does. */
static __device__ __forceinline__ float2 groups_merge(const persistent_args &a, const float (&columns)[GROUPS_ENTRIES],
                                                      const uint4 (&word)[GROUPS_ENTRIES])
{
    float sum = 0, squares = 0;
#pragma unroll
    for (int e = 0; e < GROUPS_ENTRIES; e++)
        if (columns[e] > 0) sum += columns[e] * __uint_as_float(word[e].x);
    const float mean = __fmul_rn(cuda_quad_sum(sum), a.inverse_width);
#pragma unroll
    for (int e = 0; e < GROUPS_ENTRIES; e++) {
        const float d = __uint_as_float(word[e].x) - mean;
        if (columns[e] > 0) squares += __uint_as_float(word[e].z) + columns[e] * (d * d);
    }
    return persistent_norm_of(a.inverse_width, mean, cuda_quad_sum(squares));
}

/* Normalises the warp's columns x for the next fc1, that of residual block `block`. A lane has columns `column`, + 1,
 * + 8, + 9, ... of rows `row`, + 16, ..., whose modulation rows are `mods`. */
template <int MT, bool SWIGLU>
static __device__ __forceinline__ void groups_norm(const persistent_args &a, const groups_args &g, int rank, int block,
                                                   int round, int row, const int (&mods)[MT], int column, int count,
                                                   const float2 (&x)[MT][GROUPS_TILES])
{
    const int t4 = (int)threadIdx.x % 4, half = (int)threadIdx.x / 32 % 2, entries = 2 * g.form.fc2;
    const unsigned number = (unsigned)(round * a.depth + block);
    uint32_t shift[MT][GROUPS_TILES], scale[MT][GROUPS_TILES];
    uint4 word[MT][GROUPS_ENTRIES];
    float columns[GROUPS_ENTRIES]; /* 0: there is no such entry */
    bool late;
    unsigned polls = 0;
#pragma unroll
    for (int m = 0; m < MT; m++) {
        const unsigned char *mod = groups_mod(a, g, mods[m]);
        const unsigned *add = (const unsigned *)groups_ada(a, mod, block, 0, column), *factor = add + a.width / 2;
        groups_publish(g.moments + (row + 16 * m) * entries + 2 * rank + half, number, count, x[m]);
#pragma unroll
        for (int t = 0; t < GROUPS_TILES; t++)
            shift[m][t] = __ldcg(add + 4 * min(t, count - 1)), scale[m][t] = __ldcg(factor + 4 * min(t, count - 1));
    }
#pragma unroll
    for (int e = 0; e < GROUPS_ENTRIES; e++) {
        const int of = (t4 + 4 * e) / 2, end = groups_begins_at(a.width, g.form.fc2, of + 1);
        const int some = groups_half(end - groups_begins_at(a.width, g.form.fc2, of), t4 % 2);
        columns[e] = of < g.form.fc2 ? 8.0f * (float)some : 0;
    }
    do { /* all loads before the first look: else a thread waits for the L2 several times */
        late = false;
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int e = 0; e < GROUPS_ENTRIES; e++) {
                const int at = (row + 16 * m) * entries + min(t4 + 4 * e, entries - 1);
                word[m][e] = fast::load_two_words(g.moments + at);
            }
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int e = 0; e < GROUPS_ENTRIES; e++) late |= columns[e] > 0 && persistent_missing(word[m][e], number);
    } while (!persistent_polled(a, late, &polls));
    __syncwarp();
#pragma unroll
    for (int m = 0; m < MT; m++) {
        const float2 norm = groups_merge(a, columns, word[m]);
#pragma unroll
        for (int t = 0; t < GROUPS_TILES; t++)
            if (t < count)
                groups_store_u<SWIGLU>(a, g, block, row + 16 * m, column + 8 * t, x[m][t], norm, shift[m][t],
                                       scale[m][t]);
    }
}

/* Ends fc1 of a group: v = the activation of its sums. The lane's rows are `row`, + 16, ...; the warp has `count` of
 * the block's tiles of columns, from `tile` on. */
template <int MT, bool SWIGLU>
static __device__ __forceinline__ void groups_ends_fc1(const persistent_args &a, const groups_share &s, int row,
                                                       int tile, int count, const float (&d)[MT][GROUPS_TILES][4])
{
    const int column = 8 * (s.first + tile) + 2 * ((int)threadIdx.x % 4);
#pragma unroll
    for (int m = 0; m < MT; m++) {
        float2 y[GROUPS_TILES];
        groups_add(s, tile, count, d[m], y);
#pragma unroll
        for (int t = 0; t < GROUPS_TILES; t++)
            if (t < count && SWIGLU) /* y has one channel's a and b */
                ((f16 *)a.v)[2 * groups_word(a.hidden, row + 16 * m, column / 2 + 4 * t) + (column / 2 & 1)] =
                    __float2half_rn(cuda_fast_silu(y[t].x) * y[t].y);
            else if (t < count)
                ((uint32_t *)a.v)[groups_word(a.hidden, row + 16 * m, column + 8 * t)] =
                    cuda_pack<f16>(cuda_fast_silu(y[t].x), cuda_fast_silu(y[t].y));
    }
}

/* Ends fc2 of a group: x += gate * its sums, and the norm of the next block. Arguments as above. */
template <int MT, bool SWIGLU>
static __device__ __forceinline__ void
groups_ends_fc2(const persistent_args &a, const groups_args &g, const groups_share &s, int rank, int block, int round,
                int row, const int (&mods)[MT], int tile, int count, const float (&d)[MT][GROUPS_TILES][4])
{
    const int column = 8 * (s.first + tile) + 2 * ((int)threadIdx.x % 4);
    float2 x[MT][GROUPS_TILES], *at = (float2 *)a.x + (row * a.width + column) / 2;
    uint32_t gates[MT][GROUPS_TILES];
#pragma unroll
    for (int m = 0; m < MT; m++) {
        const unsigned *gate = (const unsigned *)groups_ada(a, groups_mod(a, g, mods[m]), block, 2, column);
#pragma unroll
        for (int t = 0; t < GROUPS_TILES; t++)
            x[m][t] = __ldcg(at + 8 * m * a.width + 4 * min(t, count - 1)),
            gates[m][t] = __ldcg(gate + 4 * min(t, count - 1));
    }
#pragma unroll
    for (int m = 0; m < MT; m++) {
        float2 y[GROUPS_TILES];
        groups_add(s, tile, count, d[m], y);
#pragma unroll
        for (int t = 0; t < GROUPS_TILES; t++) {
            const float2 gate = cuda_two<f16>(gates[m][t]);
            x[m][t] = make_float2(x[m][t].x + gate.x * y[t].x, x[m][t].y + gate.y * y[t].y);
            if (t < count) at[8 * m * a.width + 4 * t] = x[m][t];
        }
    }
    if (block + 1 < a.depth) groups_norm<MT, SWIGLU>(a, g, rank, block + 1, round, row, mods, column, count, x);
}

/* The life of a product's block. */
template <int MT, bool SWIGLU, bool SECOND, typename G>
static __device__ __forceinline__ void groups_product(const persistent_args &a, const G &g, int block, int rank)
{
    const groups_share s = groups_begin<SECOND>(a, g, block, rank);
    const int thread = (int)threadIdx.x % GROUPS_TEAM, lane = thread % 32, half = thread / 32 % 2;
    const int passes = (s.tiles + GROUPS_PASS - 1) / GROUPS_PASS, each = (s.tiles + passes - 1) / passes;
    const unsigned before = (unsigned)(block * (g.form.fc1 + g.form.fc2) + (SECOND ? g.form.fc1 : 0)); /* in a round */
#pragma unroll 1
    for (unsigned entry = threadIdx.x / GROUPS_TEAM;; entry += GROUPS_TEAMS) {
        const groups_at at = groups_next(a, g, s, entry);
        if (at.group < 0) break;
        const unsigned target = (unsigned)at.round * groups_arrivals(a, g, at.group) + before;
        const int tiles = groups_tiles_of(g, at.group), row = 16 * MT * at.group + thread / 64 * 8 + lane / 4;
        unsigned *count = g.counts + at.group * GROUPS_LINE;
        const uint4 *operand = (SECOND ? a.v : g.u) + (size_t)(MT * at.group) * (size_t)(s.pairs * 64);
        int mods[MT];
        if (SECOND) groups_prefetch(a, g, s, block, entry);
        if (thread == 0) groups_wait(a, count, target + (unsigned)tiles);
        groups_sync();
        const auto find_mods = [&]() {
#pragma unroll
            for (int m = 0; m < MT; m++) mods[m] = groups_mod_row(g, at.round, row + 16 * m);
        };
        if (SECOND && G::LOADED) find_mods(); /* ahead of the products; else registers are the limit */
#pragma unroll 1
        for (int pass = 0; pass < s.tiles; pass += each) {
            const int here = min(each, s.tiles - pass), own = groups_half(here, half);
            const int tile = pass + half * groups_half(here, 0);
            float d[MT][GROUPS_TILES][4];
            if (s.resident == s.tiles)
                groups_multiply<MT, true>(s, operand, min(tile, s.tiles - 1), max(own, 1), d);
            else
                groups_multiply<MT, false>(s, operand, min(tile, s.tiles - 1), max(own, 1), d);
            if (SECOND && !G::LOADED) find_mods();
            if constexpr (SECOND)
                groups_ends_fc2<MT, SWIGLU>(a, g, s, rank, block, at.round, row, mods, tile, own, d);
            else
                groups_ends_fc1<MT, SWIGLU>(a, s, row, tile, own, d);
        }
        groups_sync();
        if (thread == 0) fast::grid_arrive(count);
    }
}

/* Returns the number of a block among those that turn; negative if it has a product. */
static __device__ __forceinline__ int groups_turner(const persistent_args &a, const groups_args &g)
{
    return (int)blockIdx.x - a.depth * (g.form.fc1 + g.form.fc2);
}
/* The life of a block that has a product. */
template <int MT, bool SWIGLU, typename G>
static __device__ __forceinline__ void groups_multiplies(const persistent_args &a, const G &g)
{
    const int each = g.form.fc1 + g.form.fc2, block = (int)blockIdx.x / each, rank = (int)blockIdx.x % each;
    if (rank < g.form.fc1)
        groups_product<MT, SWIGLU, false>(a, g, block, rank);
    else
        groups_product<MT, SWIGLU, true>(a, g, block, rank - g.form.fc1);
}

/* --- the turn -------------------------------------------------------------------------------------------------- */

/* Shared memory of a block that turns tiles. */
typedef struct {
    float4 *rows; /* [16][W/4] */
    float *out;   /* [16][2C] */
    float *state; /* [16][C] */
} groups_turning;

static __device__ __forceinline__ groups_turning groups_begin_turn(const persistent_args &a)
{
    groups_turning t;
    t.rows = (float4 *)cuda_shared(), t.out = (float *)(t.rows + 4 * a.width);
    t.state = t.out + 16 * 2 * a.channels;
    return t;
}

/* Returns the mean and the squared deviations of a row of the turn. */
static __device__ __forceinline__ float2 groups_moments(const float4 *y, int vectors)
{
    const int lane = (int)threadIdx.x % 32;
    float sum = 0, squares = 0;
#pragma unroll 4
    for (int i = lane; i < vectors; i += 32) sum += (y[i].x + y[i].y) + (y[i].z + y[i].w);
    const float mean = cuda_warp_sum(sum) / (float)(4 * vectors);
#pragma unroll 4
    for (int i = lane; i < vectors; i += 32) {
        const float4 d = make_float4(y[i].x - mean, y[i].y - mean, y[i].z - mean, y[i].w - mean);
        squares += cuda_dot(d, d);
    }
    return make_float2(mean, cuda_warp_sum(squares));
}

/* Returns sums of x over the warp, lane l those of x[2 * l] and x[2 * l + 1]: in each round a lane gives half of its
 * values away. Overwrites x. */
static __device__ __forceinline__ float2 groups_warp_sums(float (&x)[64])
{
#pragma unroll
    for (int round = 0; round < 5; round++) {
        const int n = 32 >> round;
        const bool upper = (threadIdx.x & (unsigned)(n / 2)) != 0;
#pragma unroll
        for (int i = 0; i < 32; i++) {
            if (i >= n) continue;
            const float given = upper ? x[i] : x[i + n];
            x[i] = (upper ? x[i + n] : x[i]) + __shfl_xor_sync(0xffffffffu, given, n / 2);
        }
    }
    return make_float2(x[0], x[1]);
}

/* t.out = the final layer of a tile, in f32 (persistent_out). A warp normalises two rows, then has four outputs of all
 * rows at a time. */
template <typename G>
static __device__ __forceinline__ void groups_out(const persistent_args &a, const G &g, const groups_turning &t,
                                                  int round, int tile)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, vectors = a.width / 4,
              outputs = 2 * a.channels;
#pragma unroll
    for (int row = warp; row < 16; row += PERSISTENT_WARPS) {
        const float4 *x = (const float4 *)a.x + (size_t)(16 * tile + row) * (size_t)vectors;
        const int mod_row = groups_mod_row(g, round, 16 * tile + row);
        const float4 *last = (const float4 *)(groups_mod(a, g, mod_row) + a.mod_final);
        float4 *y = t.rows + row * vectors;
#pragma unroll 4
        for (int i = lane; i < vectors; i += 32) y[i] = __ldcg(x + i);
        const float2 moments = groups_moments(y, vectors);
        const float inv = cuda_inverse_deviation(moments.y / (float)a.width, 1e-6f);
#pragma unroll 4
        for (int i = lane; i < vectors; i += 32) {
            const float4 shift = __ldcg(last + i), scale = __ldcg(last + vectors + i), z = y[i];
            const float4 d = make_float4(z.x - moments.x, z.y - moments.x, z.z - moments.x, z.w - moments.x);
            y[i] = make_float4(d.x * inv * (1 + scale.x) + shift.x, d.y * inv * (1 + scale.y) + shift.y,
                               d.z * inv * (1 + scale.z) + shift.z, d.w * inv * (1 + scale.w) + shift.w);
        }
    }
    __syncthreads();
#pragma unroll 1
    for (int first = 4 * warp; first < outputs; first += 4 * PERSISTENT_WARPS) {
        const float4 *weight = (const float4 *)a.out_weight + first * vectors;
        float sum[64] = {}; /* [row][output] */
#pragma unroll 1
        for (int i = lane; i < vectors; i += 32) {
            float4 w[4];
#pragma unroll
            for (int o = 0; o < 4; o++) w[o] = __ldg(weight + o * vectors + i);
#pragma unroll
            for (int row = 0; row < 16; row++) {
                const float4 y = t.rows[row * vectors + i];
#pragma unroll
                for (int o = 0; o < 4; o++) sum[4 * row + o] += cuda_dot(y, w[o]);
            }
        }
        const float2 y = groups_warp_sums(sum), bias = *(const float2 *)(a.out_bias + first + lane % 2 * 2);
        *(float2 *)(t.out + lane / 2 * outputs + first + lane % 2 * 2) = make_float2(y.x + bias.x, y.y + bias.y);
    }
    __syncthreads();
}

/* Begins a round: x = the input layer of t.state, in f32 (persistent_in), and its norm for the first fc1. */
template <bool SWIGLU, typename G>
static __device__ __forceinline__ void groups_enter(const persistent_args &a, const G &g, const groups_turning &t,
                                                    int round, int tile)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, vectors = a.width / 4;
    float4 *x = (float4 *)a.x + (size_t)(16 * tile) * (size_t)vectors;
    __syncthreads();
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < 2 * vectors; i += PERSISTENT_THREADS) {
        const int first = i >= vectors ? 8 : 0, four = i - (first ? vectors : 0); /* eight rows, four columns */
        const float4 *in = (const float4 *)(a.in + 4 * four * a.channels), bias = ((const float4 *)a.in_bias)[four];
        const float *state = t.state + (g.conditions == 2 ? 0 : first) * a.channels;
        float4 y[8] = {bias, bias, bias, bias, bias, bias, bias, bias};
#pragma unroll 1
        for (int c = 0; c < a.channels / 4; c++) {
            const float4 w0 = __ldg(in + c), w1 = __ldg(in + a.channels / 4 + c);
            const float4 w2 = __ldg(in + a.channels / 2 + c), w3 = __ldg(in + 3 * a.channels / 4 + c);
#pragma unroll
            for (int r = 0; r < 8; r++) {
                const float4 z = *(const float4 *)(state + r * a.channels + 4 * c);
                y[r].x += cuda_dot(z, w0), y[r].y += cuda_dot(z, w1);
                y[r].z += cuda_dot(z, w2), y[r].w += cuda_dot(z, w3);
            }
        }
#pragma unroll
        for (int r = 0; r < 8; r++) x[(first + r) * vectors + four] = t.rows[(first + r) * vectors + four] = y[r];
    }
    __syncthreads();
#pragma unroll
    for (int row = warp; row < 16; row += PERSISTENT_WARPS) {
        const unsigned char *mod = groups_mod(a, g, groups_mod_row(g, round, 16 * tile + row));
        const float4 *y = t.rows + row * vectors;
        const float2 moments = groups_moments(y, vectors),
                     norm = persistent_norm_of(a.inverse_width, moments.x, moments.y);
#pragma unroll 4
        for (int i = lane; i < 2 * vectors; i += 32)
            groups_store_u<SWIGLU>(a, g, 0, 16 * tile + row, 2 * i, ((const float2 *)y)[i], norm,
                                   __ldcg((const unsigned *)groups_ada(a, mod, 0, 0, 2 * i)),
                                   __ldcg((const unsigned *)groups_ada(a, mod, 0, 1, 2 * i)));
    }
    __syncthreads();
    if (threadIdx.x == 0) fast::grid_arrive(g.counts + tile / g.group * GROUPS_LINE);
}

#endif

#endif
