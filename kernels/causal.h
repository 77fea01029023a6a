/* What causal transformers need of a backend besides the products and rows of kernels/ops.h: attention over a cache,
 * products of few rows, and passes through all layers in one launch. */
#ifndef KERNELS_CAUSAL_H
#define KERNELS_CAUSAL_H

#include "kernels/ops.h"

enum {
    KERN_CACHE_HEAD_MAX = 256, /* largest head_dim of a cache */
    KERN_CACHE_GROUP_MAX = 64  /* largest number of query heads for a head of keys and values */
};

/* Numbers of a cache of keys and values. INT8 has a scale for the key and one for the value of each head: number =
 * int8 * scale, scale = largest magnitude / 127. A key or value with a NaN or an infinity is all NaN. */
typedef enum { KERN_CACHE_ACT, KERN_CACHE_BF16, KERN_CACHE_INT8 } kern_cache_type;

/* Returns the bytes of a cache's slot, a multiple of 4. The slot has the numbers [2][kv_heads][head_dim], keys, then
 * values. INT8: the scales float [2][kv_heads] follow. */
size_t kern_cache_slot_bytes(const kern_device *d, kern_cache_type type, int kv_heads, int head_dim);

/* A norm of each head's numbers: RMSNorm, or LayerNorm if there is a bias. */
typedef struct {
    const float *weight, *bias; /* [heads][head_dim]; weight NULL: no norm; bias NULL: RMSNorm */
    float eps;
} kern_head_norm;

/* Queries over a cache of keys and values with one row per slot. A span is a run of queries that attend to the same
 * slots except for the last ones. Example: a sequence's new tokens, each attending to its ancestors. */
struct kern_cache_job {
    int rows, heads, head_dim; /* head_dim: KERN_CACHE_HEAD_MAX or less, even; on a GPU a multiple of 4 */
    int kv_heads;         /* heads of keys and values; divides heads. Query head h reads head h / (heads / kv_heads). At
                           * most KERN_CACHE_GROUP_MAX query heads read one */
    kern_cache_type type; /* of the cache */
    const act *q;         /* row r's queries at q + r * q_stride elements, heads side by side */
    int q_stride;
    void *cache;       /* slots of kern_cache_slot_bytes; written only with rope */
    int spans;         /* 1 or more */
    const int *row;    /* host [spans + 1] span s has rows row[s] .. row[s + 1] - 1 */
    const int *first;  /* host [spans + 1] span s has slots slot[first[s]] .. slot[first[s + 1] - 1] */
    const int *common; /* host [spans] slots that all rows of the span attend to, the first of its list; 0 or more */
    const int *slot;   /* host: rows of the cache */
    /* host [rows][words] bit j (word j / 64): the row attends to slot number common + j of its span. Each row attends
     * to at least one slot. */
    const uint64_t *mask;
    int words;
    int causal; /* 1: type is KERN_CACHE_ACT, and the masks say that row i of a span attends to the first i + 1 of its
                 * own slots. A CPU then multiplies blocks of rows. Bits are others than with 0, and a value that is
                 * not finite reaches earlier rows of its span, too */
    int max_slots; /* upper bound on a span's slots: the same at each call of a recording */
    /* rope tables, or NULL: queries are rotated and the cache is filled. No pending work may write the tables. With
     * `rope` the operation first does the work of `rotate`. Row r of q is then query, key and value side by side, so
     * q_stride is (heads + 2 * kv_heads) * head_dim. Row position[r] of `rope` rotates them, q in place. Key and value
     * go to row own[r] of the cache. own[r] is in the slot list of the row's span and of no other span. Every span then
     * has a row. A GPU reads the other slots early: they must have been written before the last `embed`, `copy_rows` or
     * `to_act`. */
    const float *rope;
    const int *position, *own;     /* host [rows] */
    kern_head_norm q_norm, k_norm; /* with rope: applied before the rotation */
    act *y;                        /* [rows][heads * head_dim] */
};

enum { KERN_SKINNY_ROWS = 16 }; /* most rows of a skinny product */

/* A product of few rows with what stands before and behind it in a transformer: y = linear(norm(x)), or SiLU of the
 * product's first half times its second. */
struct kern_skinny_job {
    int rows;               /* of y */
    const void *x;          /* act [..][K], or float with a norm */
    const int *index;       /* host [rows]: y[r] is made of x[index[r]]; NULL: of x[r] */
    const float *norm;      /* [K] weight of the norm, or NULL */
    const float *norm_bias; /* [K] of a LayerNorm; NULL: RMSNorm. The next three only where kern_device.product_rows */
    const act *x_act;       /* with a norm: x [rows][K] as operands, or NULL */
    act *normed;            /* with a norm: working memory [rows][K]; may be x_act */
    act *y_act;             /* gets the new y [rows][N] as operands, with KERN_SKINNY_ROUNDED; or NULL */
    float eps;              /* of the norm */
    int gated;              /* 1: y is act [rows][N / 2] */
    void *y;                /* else as in `linear`, added to if the layer has KERN_OUT_ADD */
};

/* What fused.skinny has done. */
enum {
    KERN_SKINNY_NOT,     /* nothing: the caller uses the norm, linear and gated */
    KERN_SKINNY_DONE,    /* all but y_act */
    KERN_SKINNY_ROUNDED, /* all */
    KERN_SKINNY_NORMED,  /* only the norm, to `normed`: the caller uses linear and gated */
};

/* A layer of a causal transformer: x += wo(attention(rope(qkv(RMSNorm(x))))), with norms of q and k in front of rope,
 * then x += w2(SiLU(w1(RMSNorm(x))) * w3(RMSNorm(x))). */
typedef struct {
    float *attention_norm; /* backend [D]; NULL: attention reads x itself (an EAGLE drafter's layer) */
    float *ffn_norm;       /* backend [D] */
    /* Norms of q and k: backend [heads or kv_heads][head_dim], or NULL. */
    float *q_norm, *q_norm_bias, *k_norm, *k_norm_bias;
    kern_linear *qkv; /* [(heads + 2 * kv_heads) * head_dim][D] act -> act; RoPE rotates neighbours */
    kern_linear *wo;  /* [D][heads * head_dim] adds to x */
    kern_linear *w13; /* [2 * hidden][D] w1, then w3 */
    kern_linear *w2;  /* [D][hidden] adds to x */
} kern_decoder_layer;

struct kern_decoder_spec {
    const kern_decoder_layer *layers; /* [depth]; their arrays and products outlive the decoder */
    int depth, heads, kv_heads, head_dim;
    float eps, head_eps; /* of the RMS norms; of the norms of q and k */
};

/* A pass of few rows through all layers of a decoder. */
struct kern_decode_job {
    kern_cache_job attention; /* of the first layer, with rope; q, q_stride, y and the norms are unused */
    size_t cache_bytes;       /* from the cache of a layer to that of the next */
    float *x;                 /* [rows][D] residual stream, in place */
};

#endif
