/* Memory layout of the persistent kernels (persistent.cuh): their arguments, a block's share of the work, its shared
 * memory, and the order of operands in memory.
 *
 * Instances. A kernel's instance is <PAIRS, WIDE>. WIDE is 0 for MLP blocks, whose two products have one shape. With
 * SWIGLU blocks fc1 has 2H columns in the order a0, b0, a1, b1, ..., so a pair of columns makes one operand of fc2.
 * PAIRS then belongs to fc1's channels, WIDE to fc2's. Functions of products have a SIDE: PERSISTENT_MLP is either
 * product of an MLP block, FC1 and FC2 are those of a SWIGLU block.
 *
 * Channels. The sum over k of every product is divided into PERSISTENT_PARTS parts of PAIRS*32 channels; the last parts
 * may have fewer, or none. The parts' sums are always added in the same order. So a result's bits do not depend on the
 * distribution of parts. The blocks of a cluster share the parts equally: 8 blocks have one each, 1 block has all 8. In
 * a block the warps of a part share the products' tiles.
 *
 * Columns. The output columns of a product are distributed over the clusters in tiles of 8, the n of mma.m16n8k16. A
 * cluster has the same columns in every product, or with SWIGLU in every fc1 and in every fc2. Each of its blocks owns
 * an equal share of them, in pairs of neighbouring columns. The owner adds up the parts' sums and does the rest of the
 * layer for its columns.
 *
 * Pieces. The 16 values of k of an mma may come in any order shared by both operands. Two mmas cover 32 channels;
 * thread t of a group of four has 8t to 8t + 7. With this order the fragments of both operands are 16-byte pieces of
 * f16 rows. Operands are stored in pieces, [tile of 16 rows][32 channels][half of the rows][lane], in global and in
 * shared memory. Each lane loads its own. */
#ifndef KERNELS_CUDA_PERSISTENT_LAYOUT_CUH
#define KERNELS_CUDA_PERSISTENT_LAYOUT_CUH

#include "kernels/cuda/head.h"
#include "kernels/cuda/ptx.h"

extern "C" {
#include "kernels/cuda/persistent_form.h"
}

enum {
    PERSISTENT_THREADS = 256,
    PERSISTENT_WARPS = PERSISTENT_THREADS / 32,
    PERSISTENT_PARTS = 8,        /* parts of the channels; at least the number of warps */
    PERSISTENT_PAIRS = 6,        /* maximum pairs of mmas of a part: a warp's operands must stay in registers */
    PERSISTENT_CHANNELS = 32,    /* maximum channels of a token */
    PERSISTENT_OWN = 64,         /* maximum pairs of columns a block owns */
    PERSISTENT_INSTANCES = 7,    /* of each kernel */
    PERSISTENT_DEPTH = 256,      /* maximum residual blocks: sizes in bytes are ints */
    PERSISTENT_LANES = 8,        /* threads that normalise a row's part; each has 4 of any 32 channels */
    PERSISTENT_WORD_ROWS = 32,   /* maximum rows that go as words: one round of persistent_local_norm, clusters of 8 */
    PERSISTENT_ROUNDS = 4,       /* maximum rows' parts a thread normalises: they stay in registers */
    PERSISTENT_CHUNK = 4,        /* maximum tiles of 16 rows a product takes at a time */
    PERSISTENT_SCRATCH = 1 << 14 /* minimum bytes of persistent_block.scratch */
};

typedef enum { PERSISTENT_MLP, PERSISTENT_FC1, PERSISTENT_FC2 } persistent_side;

/* Arguments of a launch; all arrays are on the device. fc1 of residual block b is product 2b, its fc2 is product 2b +
 * 1. The arrays from x on are the queue's working memory, NULL in the head. */
struct persistent_args : persistent_form {
    int width, depth, channels;
    int hidden;                        /* H, fc2's channels; MLP: W */
    int group;                         /* blocks of an adaLN layer; MLP: 1 */
    int fc1_columns;                   /* H; SWIGLU: 2H */
    int block_slice, fc2_slice;        /* a block's weights in shared memory and where fc2's begin, in pieces */
    size_t block_weights, fc2_weights; /* the same in `weights` */
    size_t mod_bytes;                  /* of a modulation row */
    size_t mod_final;                  /* offset of the final layer's part in a modulation row */
    const uint4 *weights;      /* products' [columns/8][PARTS*pairs][32] pieces; lane's row is 8*tile + lane/4 */
    const float *bias;         /* [depth][fc1_columns + W] */
    const float *norms;        /* SWIGLU: [depth][2][W] weight and bias of the layer norms; else NULL */
    const float *in, *in_bias; /* [W][C], [W] */
    const float *out_weight, *out_bias; /* [2C][W], [2C] */
    /* Of PERSISTENT_ROWS rows or, as words, of PERSISTENT_WORD_ROWS. */
    uint4 *x;            /* [rows][W] the residual stream: floats, or their words */
    uint4 *v;            /* [rows][H] operand of fc2: pieces, or words of two channels (SWIGLU: of one) */
    float *out;          /* [PERSISTENT_ROWS][2C] eps, variance fraction */
    float *states;       /* [blocks][2][PERSISTENT_ROWS][C] a chain's states, a solver's last x0 */
    unsigned *arrivals;  /* arrivals at barriers since the launch */
    unsigned *gave_up;   /* the queue's: 1 where a barrier gave up */
    float inverse_width; /* 1 / width */
};

/* A block's share of a layer's columns. */
typedef struct {
    int first, tiles; /* the cluster's tiles are first .. first + tiles - 1 */
    int column, own;  /* the block owns `own` pairs of columns, from `column` on */
} persistent_columns;

/* A block's share of the work, and its shared memory. Every thread has this struct; the pointers are to shared
 * memory. */
typedef struct {
    persistent_columns cut;    /* of the residual stream */
    persistent_columns wide;   /* of fc1's columns */
    int part;                  /* first of the block's PARTS/cluster parts */
    int log;                   /* the cluster has 1 << log blocks */
    unsigned target;           /* arrivals that complete the next barrier */
    unsigned number;           /* of the words written last */
    uint4 *weights;            /* slices [tiles][parts][pairs][32] */
    float *bias;               /* [depth][2*wide.own + 2*cut.own] */
    float *in;                 /* [2*cut.own][C + 1] weights, bias */
    const unsigned char **mod; /* [PERSISTENT_ROWS] modulation rows */
    float2 *norm;              /* [PERSISTENT_ROWS] mean and inverse deviation of rows */
    /* Two alternating uses: the state is read before, and written after, the cluster sends sums. */
    float4 *inbox; /* [PARTS][own][tiles of 16 rows][8] the parts' sums of rows g, g + 8; written by the cluster */
    float *state;  /* [PERSISTENT_ROWS][C] input of an evaluation; free once that has returned */
    /* Two alternating uses: the cluster sends moments after its product, and the operand is written after their use. */
    uint4 *operand;  /* [chunk][parts][pairs][64] pieces of the current operand rows */
    float2 *moments; /* [rows][PARTS] mean and squared deviations of a row's part; written by the cluster */
    /* At least PERSISTENT_SCRATCH bytes for other work of the kernel, overlaid on the inbox and the operand. The kernel
     * may use them from persistent_begin on, or from persistent_wait after persistent_evaluate, until it fills
     * f->state. */
    void *scratch;
} persistent_block;

/* Reserves room for n elements at base + *at. */
template <typename T>
static __host__ __device__ inline void persistent_reserve(unsigned char *base, int *at, T **field, int n)
{
    *field = (T *)(base + *at);
    *at += (n * (int)sizeof(T) + 15) & ~15;
}

/* Returns where the weights of a product that is always in shared memory begin, in pieces. */
static __host__ __device__ inline int persistent_slice_offset(const persistent_args &a, int product)
{
    return (product >> 1) * a.block_slice + (product & 1) * a.fc2_slice;
}

/* Lays out a block's shared memory at `base` and returns its size in bytes. pairs is the larger of PAIRS and WIDE.
 * Kernels compute some of the addresses again at their uses: hence int. */
static __host__ __device__ inline int persistent_carve(const persistent_args &a, int pairs, unsigned char *base,
                                                       persistent_block *f)
{
    const int both = a.cut.own + a.wide.own, most = a.cut.own > a.wide.own ? a.cut.own : a.wide.own;
    const int places = a.resident < 2 * a.depth ? a.block_slice : 0;
    const int operand = a.chunk * (PERSISTENT_PARTS / a.cluster) * pairs * 64; /* pieces */
    int at = 0;
    persistent_reserve(base, &at, &f->weights, persistent_slice_offset(a, a.resident) + places);
    persistent_reserve(base, &at, &f->bias, a.depth * 2 * both);
    persistent_reserve(base, &at, &f->in, 2 * a.cut.own * (a.channels + 1));
    persistent_reserve(base, &at, &f->mod, PERSISTENT_ROWS);
    persistent_reserve(base, &at, &f->norm, PERSISTENT_ROWS);
    const int scratch_end = at + PERSISTENT_SCRATCH;
    f->scratch = base + at;
    int first = at, second = at;
    persistent_reserve(base, &first, &f->inbox, PERSISTENT_PARTS * most * a.chunk * 8);
    persistent_reserve(base, &second, &f->state, PERSISTENT_ROWS * a.channels);
    first = second = first > second ? first : second;
    persistent_reserve(base, &first, &f->operand, operand);
    persistent_reserve(base, &second, &f->moments, PERSISTENT_ROWS * PERSISTENT_PARTS);
    at = first > second ? first : second;
    return at > scratch_end ? at : scratch_end;
}

#if defined(__CUDACC__) || defined(MAR_CUDAHOST)

/* Returns the index of the piece of 8 channels, 32*pair + 8*t.., of a row of `channels` channels. */
static __device__ __forceinline__ int persistent_piece(int channels, int row, int pair, int t)
{
    return ((row >> 4) * (channels / 32) + pair) * 64 + (row >> 3 & 1) * 32 + (row & 7) * 4 + t;
}

/* Returns the pairs of mmas of a part that have channels, of `channels` in all. */
template <int PAIRS> static __device__ __forceinline__ int persistent_used(int channels, int part)
{
    return max(0, min(PAIRS, channels / 32 - part * PAIRS));
}

/* Returns true if the product is an fc1. */
template <persistent_side SIDE> static __device__ __forceinline__ bool persistent_is_fc1(int product)
{
    return SIDE == PERSISTENT_MLP ? product % 2 == 0 : SIDE == PERSISTENT_FC1;
}
/* Returns the channels of the product's operand. */
template <persistent_side SIDE> static __device__ __forceinline__ int persistent_inputs(const persistent_args &a)
{
    return SIDE == PERSISTENT_FC2 ? a.hidden : a.width;
}
/* Returns the division of the product's columns, and the block's share. */
template <persistent_side SIDE>
static __device__ __forceinline__ const persistent_cut &persistent_cut_of(const persistent_args &a)
{
    return SIDE == PERSISTENT_FC1 ? a.wide : a.cut;
}
template <persistent_side SIDE>
static __device__ __forceinline__ const persistent_columns &persistent_columns_of(const persistent_block *f)
{
    return SIDE == PERSISTENT_FC1 ? f->wide : f->cut;
}

/* Returns the logarithm of the number of tiles of 16 rows in the inbox, a power of two. */
static __device__ __forceinline__ int persistent_rows_log(const persistent_args &a, int rows)
{
    return rows <= 16 || a.chunk == 1 ? 0 : rows <= 32 || a.chunk == 2 ? 1 : 2;
}

/* Two neighbouring columns of a row, the work of one thread of the owner. */
typedef struct {
    int row, column;
    int pair; /* index in the block */
} persistent_item;

/* Returns the number of items of a chunk's rows. */
static __device__ __forceinline__ int persistent_items(const persistent_args &a, const persistent_columns &n, int rows)
{
    return n.own << (4 + persistent_rows_log(a, rows));
}
/* Returns item i of the chunk that begins with tile m of 16 rows. Its sums are float2 number i of every part in the
 * inbox. */
static __device__ __forceinline__ persistent_item persistent_item_of(const persistent_args &a,
                                                                     const persistent_columns &n, int m, int rows,
                                                                     int i)
{
    const int log = persistent_rows_log(a, rows);
    persistent_item e;
    e.row = 16 * (m + (i >> 4 & ((1 << log) - 1))) + (i & 1) * 8 + (i >> 1 & 7);
    e.pair = i >> (4 + log);
    e.column = n.column + 2 * e.pair;
    return e;
}

#endif

#endif
