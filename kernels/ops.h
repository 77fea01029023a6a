/* The kernel table: every operation a model is built from, one implementation per backend.
 *
 * A device is a backend on one GPU or on the CPU: its properties, its memory, weights, and the primitives prepared so
 * far. It may be used by any number of threads at a time. A queue is where one session's operations run: the CPU's
 * threads or a GPU's stream, scratch memory, recordings, times, and the failure. One thread at a time uses a queue.
 * Weights and memory belong to the device: what one queue has made, all queues can use once `finish` has returned.
 *
 * Models are written once over this table. Two kinds of arrays appear:
 *   float*  residual streams, tokens, statistics: always f32;
 *   act*    operands of matrix products: device->act_size bytes an element, bf16 or f32 by backend.
 * Array arguments live in the device's memory (core->alloc) unless they are marked `host`. Index arguments
 * (`const int *`) and scalars live in host memory and are read before the call returns. Row counts may be 0.
 *
 * Operations on one queue run in order. An operation may still be running when its call returns; `download` and
 * `finish` wait for it. After a failure, and once the queue is cancelled, operations do nothing (kern_check). No row of
 * a result depends on the contents of another row. On a CPU even the bits of a row are the same for any number of rows
 * and threads. On a GPU a product of another number of rows may round differently.
 */
#ifndef KERNELS_OPS_H
#define KERNELS_OPS_H

#include "base/error.h"
#include "kernels/rng.h"

#include <stddef.h>
#include <stdint.h>

typedef struct kern_device kern_device;
typedef struct kern_queue kern_queue;
typedef struct kern_linear kern_linear;           /* packed weights [N][K] and bias of y = act(x W^T + b) */
typedef struct kern_conv kern_conv;               /* packed weights of a 2-D convolution */
typedef struct kern_head kern_head;               /* packed weights of the diffusion head */
typedef struct kern_recording kern_recording;     /* recorded work, for replay */
typedef struct kern_speculation kern_speculation; /* state of speculation inside the head: kernels/speculation.h */
typedef struct kern_speculation_head kern_speculation_head; /* a head to evaluate there: kernels/speculation.h */
typedef struct kern_probs_job kern_probs_job;               /* kernels/discrete.h, and so the next two */
typedef struct kern_draw_job kern_draw_job;
typedef struct kern_block_job kern_block_job;
typedef void act; /* array of operands, see above */

/* GELU: exact, with erf; GELU_TANH: x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) */
typedef enum { KERN_LINEAR, KERN_GELU, KERN_SILU, KERN_GELU_TANH } kern_activation;

enum {
    KERN_IN_F32 = 1,   /* x is float*, multiplied in f32; else act* */
    KERN_OUT_F32 = 2,  /* y is float*; else act* */
    KERN_OUT_ADD = 4,  /* y += result; needs KERN_OUT_F32 */
    KERN_UPSAMPLE = 8, /* Convolutions only: the input is upsampled 2x first, nearest neighbour. Needs kernel 3x3,
                        * padding 1, stride 1 and KERN_OUT_F32; excludes KERN_OUT_ADD, KERN_RELU and y_stride. */
    KERN_INT8 = 32, /* Linear layers only: multiplied in int8 where the device does that (kern_device.int8): x quantised
                     * by row, weights by output channel (kernels/int8.h). */
    KERN_RELU = 16, /* Convolutions only: y = max(result, 0). Excludes KERN_OUT_F32 and KERN_OUT_ADD. */
};

typedef struct {
    int out, in;                /* N, K */
    const float *weight;        /* host [N][K] */
    const float *bias;          /* host [N] or NULL */
    kern_activation activation; /* applied to x W^T + b */
    int flags;                  /* KERN_IN_F32 | ... */
    int y_stride;               /* elements from one row of y to the next; 0 means out */
    const int8_t *quantised;    /* host [N][K] with KERN_INT8: the weights as a file has them, or NULL: `weight` is */
    const float *scale;         /* host [N] of them; quantised. `weight` may be NULL then where the device has int8 */
    kern_linear *before;        /* the layer that is multiplied before this one, as a rule, or NULL: a processor fetches
                                 * the first of these weights meanwhile. It is freed later, or never used again */
} kern_linear_spec;

/* 2-D convolution, activations NHWC. y has (height + 2 pad_h - kernel_h) / stride + 1 rows, rounded down, and columns
 * likewise; an upsampled one has 2 height and 2 width. */
typedef struct {
    int out, in;            /* channels */
    int kernel_h, kernel_w; /* 1 or more */
    int stride;             /* 1 or 2, of rows and columns */
    int pad_h, pad_w;       /* rows of zeros above and below x, columns of zeros on either side; less than the kernel */
    const float *weight;    /* host [out][in][kernel_h][kernel_w] */
    const float *bias;      /* host [out] */
    int flags;              /* KERN_OUT_F32, KERN_OUT_ADD, KERN_UPSAMPLE, KERN_RELU; the input is always act* */
    int y_stride;           /* elements from one pixel of y to the next; 0 means out. So the results of several
                             * convolutions lie side by side in the channels of one array */
} kern_conv_spec;

/* A pool over square windows, activations NHWC. y has (height + 2 pad - window) / stride + 1 rows, rounded down, and
 * columns likewise. Pixels outside x count for nothing: a mean is that of the pixels inside. */
typedef enum { KERN_POOL_MAX, KERN_POOL_MEAN } kern_pool_kind;
typedef struct {
    kern_pool_kind kind;
    int window, stride, pad; /* window <= 8, pad < window */
} kern_pool;

/* One residual block of the diffusion head, all host f32, W = width; official names in diffusion/head.c. */
typedef struct {
    const float *ln_weight, *ln_bias;   /* [W] in_ln */
    const float *fc1_weight, *fc1_bias; /* [W][W], [W] mlp.0 */
    const float *fc2_weight, *fc2_bias; /* [W][W], [W] mlp.2 */
    const float *ada_weight, *ada_bias; /* [3W][W], [3W] shift, scale, gate */
} kern_head_block;

/* The diffusion head, all host f32. */
typedef struct {
    int width, depth, channels;         /* W; residual blocks; C, the channels of a token */
    const float *in_weight, *in_bias;   /* [W][C], [W] input_proj */
    const kern_head_block *blocks;      /* [depth] */
    const float *ada_weight, *ada_bias; /* [2W][W], [2W] final adaLN: shift, scale */
    const float *out_weight, *out_bias; /* [2C][W], [2C] final linear: eps, variance fraction */
    int f32;  /* 1: all products and the modulation are f32, on a device whose operands are bf16, too */
    int int8; /* 1: blocks and their modulation are in int8 where the device has that and `fine` does not say otherwise
               */
} kern_head_spec;

/* One diffusion step of the learned-range Gaussian chain, in f32 (diffusion/schedule.h fills it). */
typedef struct {
    float sqrt_recip_abar, sqrt_recipm1_abar; /* a and b of x0 = a*x_t - b*eps */
    float coef_x0, coef_xt;                   /* posterior mean = coef_x0*x0 + coef_xt*x_t */
    float log_var_min, log_var_max;           /* log variance = frac*max + (1-frac)*min, frac = (v+1)/2 */
    float noise;                              /* temperature, or 0 at the last index */
} kern_chain_coef;

/* One step of a first- or second-order ODE solver that predicts x0 (diffusion/schedule.h fills it). The next state is
 * coef_x*x_t + coef_x0*x0 + coef_previous*(x0 of the step before). */
typedef struct {
    float sqrt_recip_abar, sqrt_recipm1_abar; /* a and b of x0 = a*x_t - b*eps */
    float coef_x, coef_x0, coef_previous;     /* coef_previous is 0 in a step of first order */
} kern_ode_coef;

/* LazyMAR's evaluation of the head: outputs of the blocks' MLPs are kept and used again. Of blocks 1 to 4 the gated
 * output is kept, which is what they add to x. Of the other blocks the MLP's output is kept, and gated anew. */
typedef enum {
    KERN_HEAD_FRESH, /* computes and keeps all blocks */
    KERN_HEAD_WARM,  /* reuses blocks 1 to 4, computes and keeps the others */
    KERN_HEAD_KEPT,  /* reuses all blocks */
} kern_head_reuse;

/* A run of the chain from index `first` down to index `last`. There are rows = tokens * conditions rows of the head:
 * row c * tokens + t is condition c of token t, and condition 0 is the conditional one. All conditions of a token read
 * the token's one state. Either `coef` or `ode` is given: the steps are DDPM's or a solver's. */
typedef struct {
    int tokens, conditions;      /* conditions: 1, or 2 with guidance */
    int first, last;             /* step indices, first >= last */
    const void *mod;             /* modulation rows; that of index i and row r has number (first - i) * rows + r */
    float *x;                    /* [tokens][C] in: the state before index `first`; out: that after `last` */
    float *x0;                   /* [tokens][C] for a solver, as in chain_ode_step; NULL for DDPM */
    const kern_chain_coef *coef; /* host, by index; NULL for a solver */
    const kern_ode_coef *ode;    /* host, by index; NULL for DDPM */
    const int *t;                /* host, by index: the step in the noise address */
    const float *cfg;            /* host [tokens] guidance scale; unused with one condition */
    uint64_t seed;               /* of the noise address */
    const uint64_t *image;       /* host [tokens], of the noise address */
    const int *position;         /* host [tokens], of the noise address */
    float *out;                  /* [rows][2C] working memory */
    void *scratch;               /* k->head->scratch_bytes(rows) of working memory */
} kern_chain_job;

/* A criterion for diagonal Gaussians p and q (specdec/). With log p/q = exponents + normalisers (log |std_q| - log
 * |std_p|) and path = path_q - path_p, a draft x from q is accepted with probability min(1, exp(a)),
 *   a = exponents / temper + normalisers + path_accept * path,
 * and is else replaced by a draw from Norm[p - c q]+, log c = path_scale * path. It is exact with temper 1 and the
 * others 0. */
typedef struct {
    double temper, path_accept, path_scale;
} kern_gaussian_rule;

/* Verifies rows of continuous drafts, each by itself. */
typedef struct {
    int rows, channels;
    const float *draft;              /* [rows][C] */
    const float *mean_p, *log_std_p; /* [rows][C] the target's laws */
    const float *mean_q, *log_std_q; /* [rows][C] the laws the drafts were drawn from */
    const double *path_p, *path_q;   /* [rows]; NULL counts as 0 */
    kern_gaussian_rule rule;
    uint64_t seed;         /* of the noise addresses, purposes VERIFY and RESIDUAL */
    uint32_t step;         /* of the noise addresses */
    const uint64_t *image; /* host [rows], of the noise addresses */
    const int *position;   /* host [rows], of the noise addresses */
    const int *group;      /* host [rows] a row's group, 0..groups-1 */
    const int *order;      /* host [rows] a row's place in its group; first_replaced is in these numbers */
    int groups;
    float *x;            /* [rows][C] the drafts, or what replaces them; may be `draft` */
    int *replaced;       /* [rows] 0 or 1 */
    int *tries;          /* [rows] candidates drawn for the residual; 0 for an accepted draft */
    int *first_replaced; /* [groups] the least `order` of the group's replaced rows; INT_MAX if there are none */
} kern_verify_job;

/* Compares whole paths of the chain under two laws. A path is all states x_{steps-1} .. x_0 that a token's chain had,
 * by step index, and what the head said at each: the law it was drawn from. The head's output under other conditions,
 * or another head's, at the same states is the other law. */
typedef struct {
    int paths, channels, conditions;
    int steps;                   /* of the chain, 2 or more */
    int stride;                  /* floats from one path to the next */
    const float *path;           /* [paths][stride]: by index 0..steps-1, KERN_EVALUATED rows of C floats
                                  * (kernels/speculation.h): the state before that index, x0 and variance fraction there */
    const float *out;            /* [conditions][paths][steps][2C] the other law's outputs of the head, by index */
    const kern_chain_coef *coef; /* host [steps] */
    const float *cfg;            /* host [paths] guidance scale; unused with one condition */
    float log_temperature;       /* -INFINITY at temperature 0: laws are points */
    double
        *log_ratio; /* [paths] the sum over the noisy indices steps-1..1 of the log of (the other law's density / that
                     * of the law the path was drawn from) of the state after the index. Index 0 adds no noise */
    float *last;    /* [paths][C] the other law's mean after index 0: the token it would make of the last state */
} kern_path_job;

/* Decides on whole paths by their log ratios. A draft, drawn from Q, is replaced unless u < P/Q. A candidate for the
 * residual, drawn from P, is kept if u < 1 - Q/P. A NaN replaces a draft and keeps a candidate: there is no law to draw
 * from, and the token shows it. */
typedef struct {
    int rows;
    int candidates;          /* 0: the rows are drafts, log_ratio is log P/Q; 1: candidates, log_ratio is log Q/P */
    const double *log_ratio; /* [rows] */
    uint64_t seed;           /* of u's address, purpose VERIFY */
    uint32_t step;           /* of u's address */
    const uint64_t *image;   /* host [rows], of u's address */
    const int *position;     /* host [rows], of u's address */
    const int *group;        /* host [rows] 0..groups-1 */
    const int *order;        /* host [rows] */
    int groups;
    int *marked; /* [rows] 1: a draft is replaced, a candidate is kept; else 0 */
    int *first;  /* [groups] the least `order` of the group's marked rows; INT_MAX if there are none */
} kern_path_verdict;

enum { KERN_CACHE_HEAD_MAX = 256 }; /* numbers of a head in a cache, at most */

/* Queries over a cache of keys and values, which has a row for each slot. A span is a run of queries that know the same
 * slots but for its last ones: a sequence's new tokens, of which each knows those it follows. */
typedef struct {
    int rows, heads, head_dim; /* head_dim: KERN_CACHE_HEAD_MAX or less */
    const act *q;              /* row r's queries at q + r * q_stride elements, heads side by side */
    int q_stride;
    const act *cache;  /* [slots][2 * heads * head_dim] key, then value */
    int spans;         /* 1 or more */
    const int *row;    /* host [spans + 1] span s has rows row[s] .. row[s + 1] - 1 */
    const int *first;  /* host [spans + 1] its slots are slot[first[s]] .. slot[first[s + 1] - 1] */
    const int *common; /* host [spans] all its rows know the first `common` of them; 0 or more */
    const int *slot;   /* host: rows of the cache */
    /* host [rows][words], bit j of a row (word j / 64): it knows slot number common + j of its span. Each row knows at
     * least one slot. */
    const uint64_t *mask;
    int words;
    int most; /* slots that a span may have, at most: the same at each call of a recording */
    /* With `rope` the operation does what `rotate` does first: row r of q is a query, a key and a value side by side,
     * so q_stride is 3 * heads * head_dim; row position[r] of rope turns them, and key and value go to row own[r] of
     * the cache, which is in the list of the row's span and in no other. Every span has a row then. q is turned in
     * place. NULL: queries are turned and the cache is filled. */
    const float *rope;
    const int *position, *own; /* host [rows] */
    act *y;                    /* [rows][heads * head_dim] */
} kern_cache_job;

/* Memory, time, recordings, products, rows and attention: what every model is built from. */
typedef struct {
    void (*close)(kern_device *d); /* after all queues, weights and memory of it */

    mar_status (*queue_create)(kern_device *d, kern_queue **out, mar_err *err);
    void (*queue_free)(kern_queue *k); /* waits for its work; NULL is fine */
    /* Brackets what a thread does with a queue before it returns to its caller. Between bind and unbind the CPU's
     * threads are divided among the queues at work, and the GPU is the thread's current one; unbind gives the thread
     * back the one it had. Operations outside the brackets work, too, on a CPU maybe with one thread only. */
    void (*bind)(kern_queue *k);
    void (*unbind)(kern_queue *k);
    /* Waits for the work begun, and forgets the failure, so that operations work again. A failure that the device
     * cannot recover from stays: kern_check. */
    void (*recover)(kern_queue *k);
    /* Waits for the work begun, and goes on on the caller's stream (CUDA: a cudaStream_t), which must outlive the queue
     * or its next set_stream; NULL: on its own again. NULL in a backend without streams. */
    mar_status (*set_stream)(kern_queue *k, void *stream, mar_err *err);

    mar_status (*alloc)(kern_device *d, size_t bytes, void **out, mar_err *err); /* 64-byte aligned, zeroed */
    void (*free)(kern_device *d, void *p); /* no work begun may use it. NULL is fine */
    /* Copies host -> backend; the caller may change src when the call returns. */
    void (*upload)(kern_queue *k, void *dst, const void *src, size_t bytes);
    /* Copies backend -> host, and waits for it. */
    void (*download)(kern_queue *k, void *dst, const void *src, size_t bytes);
    /* Waits for all work. */
    void (*finish)(kern_queue *k);

    /* Adds the time since the last lap to *seconds; NULL only starts the clock. The sum is complete when `download` or
     * `finish` next returns. At most some thousand laps fit between two waits. */
    void (*timer_mark)(kern_queue *k, double *seconds);
    /* Runs body(arg), a sequence of operations. A backend that can, records it at the second call with the same
     * recording (*recording is NULL at the first) and replays it from then on; then body's calls only hand over their
     * host arrays. Work that the device refuses to record is run at each call.
     *   - At each call with the same recording the operations, their order, scalars and backend addresses are the same;
     *     contents of host arrays may differ. Host arrays that rotate and attention_cache are given do not change
     *     between the first of these calls that is given one and the end of body.
     *   - body calls no alloc, free, create, plan, download, finish, lap, similarity, first_nonfinite or speculate_*.
     *   - body may be called more than once for one recording, so it changes nothing on the host that the next call
     *     does not set again. */
    void (*replay)(kern_queue *k, kern_recording **recording, void (*body)(void *arg), void *arg);
    void (*recording_free)(kern_queue *k, kern_recording *recording); /* NULL is fine */

    /* y[rows][N] = activation(x[rows][K] W^T + bias). Weights are copied, converted and packed here, once. */
    mar_status (*linear_create)(kern_queue *k, const kern_linear_spec *spec, kern_linear **out, mar_err *err);
    void (*linear_free)(kern_device *d, kern_linear *l); /* NULL is fine */
    /* Prepares for calls on this queue with this row count, so that `linear` allocates nothing. Optional. */
    mar_status (*linear_plan)(kern_queue *k, const kern_linear *l, int rows, mar_err *err);
    void (*linear)(kern_queue *k, const kern_linear *l, const void *x, int rows, void *y);

    /* y[r] = (x[i] - mean) / sqrt(var + eps) * weight + bias, i = index ? index[r] : r. x float [..][dim],
     * weight and bias float [dim]; y act [rows][dim], or float if y_f32. */
    void (*layer_norm)(kern_queue *k, const float *x, const int *index, int rows, int dim, const float *weight,
                       const float *bias, float eps, void *y, int y_f32);
    /* dst[dst_index[r]] = src[src_index[r]] + add[add_index[r]], rows of dim floats. A NULL index is the identity. add
     * may be NULL: then bits are copied, so rows of operands can be copied too, their length counted in floats. */
    void (*copy_rows)(kern_queue *k, float *dst, const int *dst_index, const float *src, const int *src_index,
                      const float *add, const int *add_index, int rows, int dim);
    /* y[r] = the cosine between the head_dim parts of row r of a and of b, averaged over the heads. It says how much a
     * row has changed. Rows are `stride` elements apart; y is host float [rows]. Two zero parts have cosine 0. */
    void (*similarity)(kern_queue *k, const act *a, const act *b, int stride, int rows, int heads, int head_dim,
                       float *y);
    /* The first row of x that has a NaN or an infinity, or -1 if there is none. Rows are `width` numbers, `stride` of
     * them apart: float* if f32, else act*. Waits as `download` does. After a failure it is -1. */
    int (*first_nonfinite)(kern_queue *k, const void *x, int f32, int rows, int width, int stride);
    /* y[i][j] = |a[i] - b[j]|^2, a float [rows][dim], b float [columns][dim], y float [rows][columns]. Differences are
     * squared and added up in f32, so nothing cancels: the relative error is at most dim * 2^-23, some 1e-6 as a rule,
     * and equal rows have distance 0. On either backend a distance's bits depend on its two rows only, not on their
     * order. */
    void (*distances)(kern_queue *k, const float *a, int rows, const float *b, int columns, int dim, float *y);
    /* y[i] = a[i] - b[i] */
    void (*subtract)(kern_queue *k, const float *a, const float *b, size_t n, float *y);
    /* y[i] = x[i] as act. */
    void (*to_act)(kern_queue *k, const float *x, size_t n, act *y);

    /* Multi-head attention of n_seq independent sequences. Row i of sequence s of q starts at
     * q + (s*n_q + i)*q_stride elements, and that of key and value at (s*n_k + i)*kv_stride. Heads lie side by side,
     * head_dim elements each. y act [n_seq*n_q][heads*head_dim]. Scores are scaled by 1/sqrt(head_dim); the softmax is
     * in f32. */
    void (*attention)(kern_queue *k, const act *q, int q_stride, const act *key, const act *value, int kv_stride,
                      int n_seq, int n_q, int n_k, int heads, int head_dim, act *y);
    /* Prepares for calls of this shape, so that `attention` allocates nothing. */
    mar_status (*attention_plan)(kern_queue *k, int n_q, int n_k, int heads, int head_dim, int q_stride, int kv_stride,
                                 mar_err *err);
    /* The same of sequences of different lengths: sequence s asks with rows q_first[s] .. q_first[s] + n_q[s] - 1 of q,
     * and rows k_first[s] .. k_first[s] + n_k[s] - 1 of key and value answer; all host [n_seq]. The result of row r of
     * q is row r of y. Rows of y that no sequence asks with are left as they are. n_q[s] may be 0; n_k[s] is 1 or more.
     * Each (n_q, n_k) has been planned. On a CPU a row has the bits that `attention` gives for its sequence alone. */
    void (*attention_spans)(kern_queue *k, const act *q, int q_stride, const int *q_first, const int *n_q,
                            const act *key, const act *value, int kv_stride, const int *k_first, const int *n_k,
                            int n_seq, int heads, int head_dim, act *y);

    /* y[r] = x[i] / sqrt(mean of x[i]^2 + eps) * weight, i = index ? index[r] : r. x float [..][dim], weight float
     * [dim]; y act [rows][dim], or float if y_f32. */
    void (*rms_norm)(kern_queue *k, const float *x, const int *index, int rows, int dim, const float *weight, float eps,
                     void *y, int y_f32);
    /* y[r][i] = silu(x[r][i]) * x[r][hidden + i]: SwiGLU. x act [rows][2 * hidden], y act [rows][hidden]. */
    void (*swiglu)(kern_queue *k, const act *x, int rows, int hidden, act *y);
    /* Turns queries and keys, and puts keys and values into a cache. qkv act [rows][3 * heads * head_dim]: q, k, v.
     * Pair i of a head, numbers 2i and 2i + 1, becomes (a cos - b sin, b cos + a sin), where cos and sin are numbers 2i
     * and 2i + 1 of row position[r] of rope, float [positions][head_dim]. q is turned in place; key and value go to row
     * slot[r] of cache, act [slots][2 * heads * head_dim]. position and slot host [rows]. */
    void (*rotate)(kern_queue *k, act *qkv, int rows, int heads, int head_dim, const float *rope, const int *position,
                   act *cache, const int *slot);
    /* Multi-head attention over a cache, scores scaled by 1/sqrt(head_dim), softmax in f32. On a CPU a row's bits
     * depend on its own queries and on the slots that it knows, in their order, only. */
    void (*attention_cache)(kern_queue *k, const kern_cache_job *job);
    /* y[r] = row x[r] of table, float [size][dim]; x float [rows] has whole numbers of 0..size-1, of others the row is
     * kern_token_row (kernels/discrete.h); y float [rows][dim]. */
    void (*look_up)(kern_queue *k, const float *table, int size, int dim, const float *x, int rows, float *y);
    /* y[r] = row token[place[r]] of table, float [size][dim]: the embeddings of tokens that the host does not know.
     * token backend int, those below 0 count as 0 and those of size or more as size - 1; place host [rows]; y float
     * [rows][dim]. */
    void (*embed)(kern_queue *k, const float *table, int size, int dim, const int *token, const int *place, int rows,
                  float *y);
} kern_core_ops;

/* Discrete tokens: their laws, draws from them, and the verification of drafts. The jobs are in kernels/discrete.h. */
typedef struct {
    void (*probs)(kern_queue *k, const kern_probs_job *job);
    void (*draw)(kern_queue *k, const kern_draw_job *job);
    void (*verify)(kern_queue *k, const kern_block_job *job);
    /* The `count` most likely tokens of each law, the likeliest first, equal ones by their numbers: id [rows][count],
     * and their log probabilities log_p [rows][count]. Where a law has no more tokens, id is -1 and log_p -INFINITY.
     * law host [rows]: rows of log_probs, float [..][size]. */
    void (*top)(kern_queue *k, const float *log_probs, const int *source, int rows, int size, int count, int *id,
                float *log_p);
} kern_discrete_ops;

/* The diffusion head and its chain.
 *
 * A modulation row is all that depends on (condition, t) only: adaLN(SiLU(temb[t] + c)) of every block and of the final
 * layer. Modulation rows of many steps are computed ahead of the chain, in one large product. A row has mod_bytes(h)
 * bytes; its layout is the backend's own. Both backends fold the blocks' layer norms into it (kernels/adaln.h). */
typedef struct {
    mar_status (*create)(kern_queue *k, const kern_head_spec *spec, kern_head **out, mar_err *err);
    void (*free)(kern_device *d, kern_head *h); /* NULL is fine */
    /* How the backend computes this head on this device, and why not in a faster way: one line without newline, valid
     * as long as the head. */
    const char *(*describe)(const kern_head *h);
    size_t (*mod_bytes)(const kern_head *h);               /* of one modulation row */
    size_t (*scratch_bytes)(const kern_head *h, int rows); /* working memory of `modulate` and `eval` */
    /* Prepares for calls on this queue with this row count, so that the operations below allocate nothing. */
    mar_status (*plan)(kern_queue *k, const kern_head *h, int rows, mar_err *err);
    /* mod[s*rows + r] = the modulation row of (temb[temb_index[s]], cond[r]); temb float [..][W], cond float [rows][W].
     * fine: host [steps], or NULL for all 0. A row with 1 is made, and evaluations with it are, without int8. It is of
     * no meaning to a head without int8. */
    void (*modulate)(kern_queue *k, const kern_head *h, const float *temb, const int *temb_index, const uint8_t *fine,
                     int steps, const float *cond, int rows, void *mod, void *scratch);
    /* out[r][2C] = net(x[x_index ? x_index[r] : r][C]; modulation row mod_index ? mod_index[r] : r). */
    void (*eval)(kern_queue *k, const kern_head *h, const float *x, const int *x_index, const void *mod,
                 const int *mod_index, int rows, float *out, void *scratch);
    /* As eval, by `reuse`. kept is float [depth][kept_rows][W], of which the first `rows` rows of each block are used:
     * as many as in the FRESH call before, or fewer. */
    void (*eval_reusing)(kern_queue *k, const kern_head *h, const float *x, const int *x_index, const void *mod,
                         const int *mod_index, int rows, kern_head_reuse reuse, float *kept, int kept_rows, float *out,
                         void *scratch);

    /* All steps of a job: at each index eval, then chain_step or chain_ode_step. */
    void (*chain_run)(kern_queue *k, const kern_head *h, const kern_chain_job *job);
    /* x[r][c] <- p_sample(x, out) with the noise at address (KERN_NOISE_STEP, image[r], position[r], step, c). A row of
     * out is eps [C], then the variance fraction v [C]. cfg host [rows], or NULL without guidance. With guidance out
     * has 2*rows rows, and row rows+r is the unconditional one of row r. Guidance acts on eps only; v is the
     * conditional row's. */
    void (*chain_step)(kern_queue *k, float *x, const float *out, int rows, int channels, const float *cfg,
                       const kern_chain_coef *coef, uint64_t seed, const uint64_t *image, const int *position,
                       int step);
    /* x <- the solver's next state. x0 [rows][C] is the x0 of the step before on entry, and this step's on return; it
     * is not read where coef_previous is 0. out and cfg as in chain_step; v is not used. */
    void (*chain_ode_step)(kern_queue *k, float *x, float *x0, const float *out, int rows, int channels,
                           const float *cfg, const kern_ode_coef *coef);
    /* The law chain_step draws from: mean[r][c], and log_std[r][c] = log(temperature * sigma), which is -inf at
     * temperature 0. coef host [rows] is each row's own step. At index 0 log_std is that of the clipped variance at
     * `temperature`, though chain_step adds no noise there. */
    void (*chain_gaussian)(kern_queue *k, const float *x, const float *out, int rows, int channels, const float *cfg,
                           const kern_chain_coef *const *coef, float temperature, float *mean, float *log_std);
    /* path[r] += log_std[r][0] + ... + log_std[r][channels - 1] */
    void (*add_log_std)(kern_queue *k, double *path, const float *log_std, int rows, int channels);
    /* Verifies draft tokens against the target's laws. */
    void (*verify)(kern_queue *k, const kern_verify_job *job);
    /* Compares whole paths under two laws. */
    void (*path_ratio)(kern_queue *k, const kern_path_job *job);
    /* Decides on them. */
    void (*path_decide)(kern_queue *k, const kern_path_verdict *job);
    /* x[r][c] = the standard normal at address (purpose, image[r], position[r], step, c). */
    void (*normal)(kern_queue *k, float *x, int rows, int channels, uint64_t seed, kern_noise purpose,
                   const uint64_t *image, const int *position, int step);

    /* Speculation inside the head, for w->tokens tokens (diffusion/speculate.h). Prepares for that many. */
    mar_status (*speculate_plan)(kern_queue *k, const kern_head *h, const kern_speculation *w, mar_err *err);
    /* Sets every token to the top of the chain: draws x_T and all noise, forgets all evaluations, clears the counts. */
    void (*speculate_start)(kern_queue *k, kern_speculation *w);
    /* Begins a round: lists the states of the unfinished tokens and the proposals after them. The filter proposes, or
     * the draft's head if `draft` is not NULL. Returns 0 if all tokens are finished; it may notice that some rounds
     * late. */
    int (*speculate_propose)(kern_queue *k, kern_speculation *w, const kern_speculation_head *draft);
    /* Ends a round: evaluates the target's head at all rows, verifies the proposals, and moves each token down to the
     * end of its round. */
    void (*speculate_walk)(kern_queue *k, kern_speculation *w, const kern_speculation_head *target);
    /* All rounds in one operation; the filter proposes. Returns 0 without having done anything if this head or number
     * of rows does not suit it. NULL in a backend that has no such operation. */
    int (*speculate_run)(kern_queue *k, kern_speculation *w, const kern_speculation_head *target);
} kern_head_ops;

/* How to_bytes makes a byte of a value, which is from -1 to 1 (kernels/pixels.h). */
typedef enum {
    KERN_BYTES_NEAREST, /* round(clip((x + 1) / 2 * 255, 0, 255)), half to even: MAR, as numpy does it */
    KERN_BYTES_DOWN,    /* trunc(clip(127.5 x + 128, 0, 255)): LlamaGen, as torch does it. Of 2^27 values evenly spread
                         * over -1 .. 1 it makes another byte of 987, which lie at halves */
} kern_bytes;

/* What to_bytes finds in an image. */
enum {
    KERN_PIXELS_WITHIN = 1,    /* a value is between -1 and 1 */
    KERN_PIXELS_NOT_FINITE = 2 /* a value is NaN or infinite */
};

/* Convolutional networks: the image decoder and Inception. Activations are NHWC, those of `images` images one after
 * another. On a CPU an image's bits do not depend on their number, nor on the images beside it. */
typedef struct {
    /* Weights are copied by `create` and packed by the first `plan` of any queue. */
    mar_status (*create)(kern_queue *k, const kern_conv_spec *spec, kern_conv **out, mar_err *err);
    void (*free)(kern_device *d, kern_conv *c); /* NULL is fine */
    /* Must precede calls on this queue with this number of images, height and width of x, so that `conv` allocates
     * nothing and cannot fail. */
    mar_status (*plan)(kern_queue *k, const kern_conv *c, int images, int height, int width, mar_err *err);
    /* y[images][H][W][out] (upsampling: [images][2H][2W][out]) from x[images][H][W][in]. */
    void (*conv)(kern_queue *k, const kern_conv *c, const act *x, int images, int height, int width, void *y);
    /* Must precede calls of group_norm with this shape, as `plan` does of `conv`. */
    mar_status (*group_norm_plan)(kern_queue *k, int images, int pixels, int channels, mar_err *err);
    /* y = GroupNorm(x) * weight + bias, then y*sigmoid(y) if silu, each image by its own mean and variance. x float
     * [images][pixels][channels], y act. */
    void (*group_norm)(kern_queue *k, const float *x, int images, int pixels, int channels, int groups,
                       const float *weight, const float *bias, float eps, int silu, act *y);
    /* y[i] = kern_pixel_byte(x[i], how) (kernels/pixels.h). x float [images][values], y [images][values]. found int
     * [images] becomes the KERN_PIXELS_* that hold of an image. */
    void (*to_bytes)(kern_queue *k, const float *x, int images, int values, kern_bytes how, uint8_t *y, int *found);
    /* y = pool(x), x act [images][height][width][channels]; y act, its pixels y_stride elements apart. */
    void (*pool)(kern_queue *k, const kern_pool *p, const act *x, int images, int height, int width, int channels,
                 act *y, int y_stride);
    /* y[i][c] = the mean of channel c over the pixels of image i. x act [images][pixels][channels], y float. */
    void (*mean_pixels)(kern_queue *k, const act *x, int images, int pixels, int channels, float *y);
    /* y[r][c] = x[r*stride + c] as float: c < channels, x act, y float [rows][channels]. */
    void (*take_channels)(kern_queue *k, const act *x, int rows, int stride, int channels, float *y);
    /* y = (bilinear(rgb) - 128) / 128, as TensorFlow 1 resizes without aligned corners and without half-pixel centres:
     * row r of y comes from row r * (height/side) of rgb. rgb uint8_t [images][height][width][3], y act
     * [images][side][side][3]. */
    void (*resize)(kern_queue *k, const uint8_t *rgb, int images, int height, int width, int side, act *y);
} kern_conv_ops;

/* What a device is; 0: unknown, or it has none. */
typedef struct {
    double clock;       /* Hz, of a GPU's multiprocessors */
    double cache_bytes; /* of the last cache in front of the memory */
    int processors;     /* multiprocessors, or threads */
} kern_machine;

/* What measuring needs to know of weights, and what only a backend can do. */
typedef struct {
    /* out, in, activation and flags of what it was made of; the rest is 0. */
    void (*linear_spec)(const kern_linear *l, kern_linear_spec *spec);
    /* out, in, kernel, stride, padding and flags of what it was made of; the rest is 0. */
    void (*conv_spec)(const kern_conv *c, kern_conv_spec *spec);
    /* width, depth, channels and f32 of what it was made of, and whether it has int8; the rest is 0. */
    void (*head_spec)(const kern_head *h, kern_head_spec *spec);
    void (*machine)(const kern_device *d, kern_machine *out);
    /* Reads n floats of backend memory, once and as fast as the device can, and keeps nothing of them. NULL in a
     * backend that has no such operation. */
    void (*read)(kern_queue *k, const float *x, size_t n);
} kern_measure_ops;

struct kern_device {
    const kern_core_ops *core;
    const kern_head_ops *head;
    const kern_conv_ops *conv;
    const kern_discrete_ops *discrete;
    const kern_measure_ops *measure;
    size_t act_size;       /* bytes of an act element: 2 (bf16) or 4 (f32) */
    int int8;              /* layers with KERN_INT8 are multiplied in int8 */
    size_t mod_budget;     /* bytes of modulation rows that a model should make at a time */
    size_t image_budget;   /* bytes of activations that an image decoder should have: as many images are decoded at a
                            * time as fit, but at least one */
    int asynchronous;      /* operations go on when their call has returned */
    char description[128]; /* "cpu bf16 (avx512_bf16), 2 threads", "cpu int8, bf16 (avx512_vnni, ..." */
};

/* The search for the first layer whose output is not finite (mar_params.check). */
typedef struct {
    int on;           /* 1: kern_watch tests what it is shown */
    const char *part; /* what the names of layers begin with: "", or "draft: " */
    int index;        /* the diffusion step at hand, by its index in the chain; -1: none, or several at a time */
    char layer[128];  /* the first layer with a NaN or an infinity in its output since kern_watch_begin; "": none */
} kern_watching;

struct kern_queue {
    kern_device *device;
    const kern_core_ops *core; /* the device's tables */
    const kern_head_ops *head;
    const kern_conv_ops *conv;
    const kern_discrete_ops *discrete;
    size_t recorded_bytes;  /* memory of its recordings, without what the driver takes for them */
    int recordings;         /* recordings that are replayed */
    int unrecorded;         /* recordings that the device has refused, so that their bodies do the work at every use */
    mar_err why_unrecorded; /* why the first of these was refused; it stays when that is freed */
    const int *cancel;      /* the user's, or NULL. Any thread may set it to 1 (__atomic_store_n), which fails the queue
                             * with MAR_ECANCELLED at its next operation */
    mar_status failed;      /* the first failure of an operation that returns nothing; it stays until recover */
    mar_err failure;        /* the message of that failure */
    kern_watching watch;
};

/* For backends: sets up what all queues of a device have in common. */
void kern_queue_init(kern_queue *k, kern_device *d);
/* For backends: remembers the first failure. */
void kern_fail(kern_queue *k, mar_status status, const mar_err *err);
/* For backends: whether operations should do their work, which they should not after a failure or a cancel. */
int kern_live(kern_queue *k);
/* For models: MAR_OK, or the first failure with its message. */
mar_status kern_check(kern_queue *k, mar_err *err);
/* Begins a search: no layer has been found yet. */
void kern_watch_begin(kern_queue *k);
/* For models and backends: the output of a layer, whose name follows as for printf; x as in first_nonfinite. Does
 * nothing unless k->watch.on. It waits, so it must not be in a recording. */
void kern_watch(kern_queue *k, const void *x, int f32, int rows, int width, int stride, const char *name, ...)
    __attribute__((format(printf, 7, 8)));
#define kern_watch(k, ...) ((k)->watch.on ? kern_watch(k, __VA_ARGS__) : (void)0) /* no call where it is off */
/* For backends: the layers of the head by their names in a checkpoint, for kern_watch. */
#define KERN_HEAD_INPUT "diffloss.net.input_proj"
#define KERN_HEAD_BLOCK "diffloss.net.res_blocks.%d"
#define KERN_HEAD_FINAL "diffloss.net.final_layer"
/* For backends: modulation rows of mod_bytes each: [depth][3W], act or, with f32, float, then float [2W]. */
void kern_watch_modulation(kern_queue *k, const void *mod, int f32, int rows, int depth, int width, size_t mod_bytes);

/* Opens the CPU backend. dtype F32, BF16 or AUTO; threads 0 = one per available core. */
mar_status kern_cpu_open(mar_dtype dtype, int threads, kern_device **out, mar_err *err);

/* Opens the CUDA backend on GPU number `device`. dtype F32, BF16 or AUTO, which is bf16. In a library built without the
 * CUDA toolkit this function's address is NULL. */
__attribute__((weak)) mar_status kern_cuda_open(mar_dtype dtype, int device, kern_device **out, mar_err *err);
/* Number of GPUs that the CUDA backend can use; 0 without driver or device. *why, which may be NULL, says why there are
 * no more. */
__attribute__((weak)) int kern_cuda_devices(mar_err *why);

#endif
