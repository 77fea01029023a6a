/* The kernel table: every operation a model is built from, one implementation per backend.
 *
 * A device is a backend on one GPU or on the CPU. It holds properties, memory, weights and prepared primitives. Any
 * number of threads may use a device. A queue runs one session's operations: on the CPU's threads or a GPU's stream. It
 * holds scratch memory, recordings, times and the failure. One thread at a time uses a queue. Weights and memory belong
 * to the device. All queues can use what one queue has made once `finish` has returned.
 *
 * Models are written once over this table. Two kinds of arrays appear:
 *   float*  residual streams, tokens, statistics: always f32;
 *   act*    operands of matrix products: device->act_size bytes an element, bf16 or f32 by backend.
 *
 * Arrays live in the device's memory (core->alloc) unless they are marked `host`. Index arguments (`const int *`) and
 * scalars live in host memory and are read before the call returns. Row counts may be 0.
 *
 * Operations on one queue run in order. An operation may still be running when its call returns; `download` and
 * `finish` wait for it. After a failure or a cancel, operations do nothing (kern_check). No row of a result depends on
 * another row. On a CPU the bits of a row are the same for any number of rows and threads. On a GPU a product of
 * another row count may round differently. */
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
typedef struct kern_decoder kern_decoder;         /* layers of a causal transformer, in one launch */
typedef struct kern_head kern_head;               /* packed weights of the diffusion head */
typedef struct kern_recording kern_recording;     /* recorded work, for replay */
typedef struct kern_speculation kern_speculation; /* state of speculation inside the head: kernels/speculation.h */
typedef struct kern_speculation_head kern_speculation_head; /* a head to evaluate there: kernels/speculation.h */
typedef struct kern_probs_job kern_probs_job;               /* the next three: kernels/discrete.h */
typedef struct kern_draw_job kern_draw_job;
typedef struct kern_block_job kern_block_job;
typedef struct kern_cache_job kern_cache_job; /* the next four: kernels/causal.h */
typedef struct kern_skinny_job kern_skinny_job;
typedef struct kern_decoder_spec kern_decoder_spec;
typedef struct kern_decode_job kern_decode_job;
typedef void act; /* array of operands, see above */

/* GELU is exact, with erf. GELU_TANH is x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))). */
typedef enum { KERN_LINEAR, KERN_GELU, KERN_SILU, KERN_GELU_TANH } kern_activation;

enum {
    KERN_IN_F32 = 1,   /* x is float*, multiplied in f32; else act* */
    KERN_OUT_F32 = 2,  /* y is float*; else act* */
    KERN_OUT_ADD = 4,  /* y += result; needs KERN_OUT_F32 */
    KERN_UPSAMPLE = 8, /* Convolutions only: upsamples the input 2x by nearest neighbour. Needs kernel 3x3, padding one,
                        * stride one and KERN_OUT_F32; excludes KERN_OUT_ADD, KERN_RELU and y_stride. */
    KERN_LOW = 32, /* Linear layers only: int8 or int4 if kern_device.int8 or int4. int8 weights are quantised by output
                    * channel (kernels/int8.h), int4 in groups along the input (kernels/int4.h). A CPU quantises x to
                    * int8, too, by row or group; CUDA does not. A layer whose input is not a multiple of a group, on
                    * CUDA in int8 of 8, ignores the flag. */
    KERN_RELU = 16, /* Convolutions only: y = max(result, 0). Excludes KERN_OUT_F32 and KERN_OUT_ADD. */
    KERN_F16 = 512, /* CUDA's linear layers only: x, weights, and y without KERN_OUT_F32, are FP16 in place of act;
                     * without an activation but KERN_GELU */
    KERN_TRANSPOSED = 64, /* Convolutions only: PyTorch's ConvTranspose2d of stride two. Needs kernel 4x4 and padding
                           * one, or 2x2 and zero, and what KERN_UPSAMPLE needs of the other flags. */
};

/* Source of a layer's weights, read some rows at a time, in order. So the layer needs no second copy of them. An error
 * ends the creation, which returns it. */
typedef struct {
    /* Writes rows first .. first+n-1 to weight [n][K]. */
    mar_status (*read)(void *user, int first, int n, float *weight, mar_err *err);
    /* Writes these rows as int8 to q [n][K], with their scales [n]: called in place of `read` if the layer is
     * multiplied in int8. NULL: the rows are quantised. */
    mar_status (*read_int8)(void *user, int first, int n, int8_t *q, float *scale, mar_err *err);
    /* Writes them as int4 to q [n][K/2], with scales [n][K/32] (kernels/int4.h): likewise, in int4. */
    mar_status (*read_int4)(void *user, int first, int n, uint8_t *q, uint16_t *scale, mar_err *err);
    void *user;
} kern_linear_rows;

typedef struct {
    int out, in;                  /* N, K */
    const float *weight;          /* host [N][K] */
    const float *bias;            /* host [N] or NULL */
    kern_activation activation;   /* applied to x W^T + b */
    int flags;                    /* KERN_IN_F32 | ... */
    int y_stride;                 /* elements from one row of y to the next; 0 means out */
    const kern_linear_rows *rows; /* in place of `weight`, or NULL */
    kern_linear *previous; /* layer usually run before this one, or NULL; it prefetches these weights. It is freed
                            * later, or never used again */
    /* Host [K], or NULL: weight and bias of the norm in front of the layer, norm_bias NULL for RMSNorm. Then every call
     * is one of fused.skinny with that norm, or follows one that has returned KERN_SKINNY_NORMED. */
    const float *norm, *norm_bias;
} kern_linear_spec;

/* 2-D convolution, activations NHWC. y has (height + 2 pad_h + pad_end - kernel_h) / stride + 1 rows, rounded down, and
 * columns likewise. With KERN_UPSAMPLE or KERN_TRANSPOSED y has 2 height rows and 2 width columns. */
typedef struct {
    int out, in;            /* channels */
    int kernel_h, kernel_w; /* 1 or more */
    int stride;             /* 1 or 2, for rows and columns; 2 with KERN_TRANSPOSED */
    int pad_h, pad_w;       /* rows of zeros above and below x, columns on either side; less than the kernel's size */
    int pad_end;            /* more rows of zeros below, columns on the right; together less than the kernel's size */
    const float *weight;    /* host [out][in][kernel_h][kernel_w]; KERN_TRANSPOSED: [in][out][kernel_h][kernel_w] */
    const float *bias;      /* host [out] or NULL */
    int flags;    /* KERN_OUT_F32, KERN_OUT_ADD, KERN_UPSAMPLE, KERN_TRANSPOSED, KERN_RELU; the input is always act* */
    int y_stride; /* elements from one pixel of y to the next; 0 means out. Lets several convolutions write side by side
                   * into the channels of one array */
} kern_conv_spec;

/* Group normalisation. Scales and shifts are those of a channel, or of a channel in a square cell of pixels. */
enum { KERN_NORM_CHUNKS = 64 };
typedef struct {
    int groups;
    float eps;
    int silu;
    const float *weight, *bias; /* [channels] scales and shifts; unused with cells */
    /* NULL, or [images][cell rows][cell columns][2][channels] scales and shifts of cells of side x side pixels. x has
     * rows of `width` pixels, a multiple of side. Its first row is row `top` of the first cells. */
    const float *cells;
    int width, side, top;
    /* NULL: mean and variance are those of x. Else those of group_sums over an image of `total` pixels, of which x, one
     * image, is a part. */
    const double *sums;
    int total;
} kern_norm;

/* Pooling over square windows, activations NHWC. y has (height + 2 pad - window) / stride + 1 rows, rounded down, and
 * columns likewise. Pixels outside x are ignored: a mean is over the pixels inside. */
typedef enum { KERN_POOL_MAX, KERN_POOL_MEAN } kern_pool_kind;
typedef struct {
    kern_pool_kind kind;
    int window, stride, pad; /* window <= 8, pad < window */
} kern_pool;

/* The two forms of the head's blocks, with u = LN(x) * (1 + scale) + shift:
 *   MLP:    x += gate * fc2(silu(fc1(u))), an adaLN layer for each block (MAR);
 *   SWIGLU: x += gate * fc2(silu(a) * b), a and b the halves of fc1(u). Consecutive blocks share an adaLN layer
 *           (SphereAR). */
typedef enum { KERN_HEAD_MLP, KERN_HEAD_SWIGLU } kern_head_form;

/* One residual block of the diffusion head, all host f32, W = width, H = hidden. Official names are in
 * diffusion/head.c. */
typedef struct {
    const float *ln_weight, *ln_bias;   /* [W] */
    const float *fc1_weight, *fc1_bias; /* [H][W], [H]; SWIGLU: [2H][W], [2H], a before b */
    const float *fc2_weight, *fc2_bias; /* [W][H], [W] */
    const float *ada_weight, *ada_bias; /* [3W][W], [3W] shift, scale, gate; NULL in a block that does not begin a
                                         * group of blocks with one adaLN layer */
} kern_head_block;

/* The diffusion head, all host f32. */
typedef struct {
    int width, depth, channels; /* W; residual blocks; C, channels of a token */
    kern_head_form form;
    const char *prefix;                 /* of its layers' names in a checkpoint, "diffloss.net."; a constant */
    int hidden;                         /* H; MLP: W */
    int ada_layers;                     /* adaLN layers of the blocks; divides depth. MLP: depth */
    const float *in_weight, *in_bias;   /* [W][C], [W] input_proj */
    const kern_head_block *blocks;      /* [depth] */
    const float *ada_weight, *ada_bias; /* [2W][W], [2W] final adaLN: shift, scale */
    const float *out_weight, *out_bias; /* [2C][W], [2C] final linear: prediction, variance fraction */
    /* Operands of the blocks' products and of adaLN's, and shift, scale and gate: F32; F16; AUTO: those of the device,
     * with CUDA F16 in place of bf16. Input and final layer, sums and norms are f32. A CPU rounds f32 to F16. */
    mar_dtype dtype;
    int int8; /* 1: blocks and modulation are int8 where the device has it, except for rows marked `fine` */
} kern_head_spec;

/* One step of a Gaussian chain, in f32: the transition of a diffusion process (diffusion/schedule.h fills it). The
 * head's prediction is eps (DDPM) or the velocity (flow). A process without learned variance has log_var_min =
 * log_var_max. */
typedef struct {
    float x0_x, x0_prediction;      /* a and b of x0 = a*x_t - b*prediction, the clean token */
    float coef_x0, coef_xt;         /* mean = coef_x0*x0 + coef_xt*x_t */
    float log_var_min, log_var_max; /* log variance = frac*max + (1-frac)*min, frac = (v+1)/2 */
    float noise;                    /* temperature, or 0 at the last index */
} kern_chain_coef;

/* One step of a first- or second-order ODE solver that predicts x0 (diffusion/schedule.h fills it). The next state is
 * coef_x*x_t + coef_x0*x0 + coef_previous*(x0 of the previous step). */
typedef struct {
    float x0_x, x0_prediction;            /* a and b of x0 = a*x_t - b*prediction */
    float coef_x, coef_x0, coef_previous; /* coef_previous is 0 in a first-order step */
} kern_ode_coef;

/* LazyMAR's evaluation of the head: outputs of the blocks' MLPs are cached and reused. Blocks 1 to 4 cache the gated
 * output, the addend of x. The other blocks cache the MLP's output and gate it again. */
typedef enum {
    KERN_HEAD_FRESH, /* computes and caches all blocks */
    KERN_HEAD_WARM,  /* reuses blocks 1 to 4, computes and caches the others */
    KERN_HEAD_KEPT,  /* reuses all blocks */
} kern_head_reuse;

/* Returns whether a block caches the gated output. */
KERN_FN int kern_head_caches_gated(int block)
{
    return block >= 1 && block <= 4;
}
/* Returns whether an evaluation computes a block's MLP. */
KERN_FN int kern_head_computes(kern_head_reuse reuse, int block)
{
    return reuse == KERN_HEAD_FRESH || (reuse == KERN_HEAD_WARM && !kern_head_caches_gated(block));
}

/* A run of the chain from index `first` down to index `last`. The head has rows = tokens * conditions rows. Row c *
 * tokens + t is condition c of token t; condition 0 is the conditional one. All conditions of a token read its one
 * state. Either `coef` or `ode` is given: DDPM steps or solver steps. */
typedef struct {
    int tokens, conditions;      /* conditions: 1, or 2 with guidance */
    int first, last;             /* step indices, first >= last */
    const void *mod;             /* modulation rows; index i and row r use row (first - i) * rows + r */
    float *x;                    /* [tokens][C] in: state before index `first`; out: state after `last` */
    float *x0;                   /* [tokens][C] for a solver, as in chain_ode_step; NULL for DDPM */
    const kern_chain_coef *coef; /* host, by index; NULL for a solver */
    const kern_ode_coef *ode;    /* host, by index; NULL for DDPM */
    const int *t;                /* host, by index: step in the noise address */
    const int *x_index;          /* host [rows] r % tokens, row r's state; unused with one condition */
    const float *cfg;            /* host [tokens] guidance scale; unused with one condition */
    const uint64_t *seed;        /* host [tokens], seed of the noise address */
    const uint64_t *image;       /* host [tokens], image of the noise address */
    const int *position;         /* host [tokens], position of the noise address */
    float *out;                  /* [rows][2C] working memory */
    void *scratch;               /* k->head->scratch_bytes(rows) of working memory */
} kern_chain_job;

/* A criterion for diagonal Gaussians p and q (specdec/). log p/q = exponents + normalisers (log |std_q| - log |std_p|),
 * and path = path_q - path_p. A draft x from q is accepted with probability min(1, exp(a)),
 *   a = exponents / temper + normalisers + path_accept * path.
 *
 * A rejected draft is replaced by a draw from Norm[p - c q]+, log c = path_scale * path. The rule is exact to p with
 * temper 1 and path_accept = path_scale = 0. */
typedef struct {
    double temper, path_accept, path_scale;
} kern_gaussian_rule;

/* Verifies rows of continuous drafts, each independently. */
typedef struct {
    int rows, channels;
    const float *draft;              /* [rows][C] */
    const float *mean_p, *log_std_p; /* [rows][C] target distributions */
    const float *mean_q, *log_std_q; /* [rows][C] draft distributions */
    const double *path_p, *path_q;   /* [rows]; NULL means 0 */
    kern_gaussian_rule rule;
    uint32_t step;         /* step of the noise addresses, purposes VERIFY and RESIDUAL */
    const uint64_t *seed;  /* host [rows], seed of the noise addresses */
    const uint64_t *image; /* host [rows], image of the noise addresses */
    const int *position;   /* host [rows], position of the noise addresses */
    const int *group;      /* host [rows] a row's group, 0..groups-1 */
    const int *order;      /* host [rows] a row's rank in its group; unit of first_replaced */
    int groups;
    float *x;            /* [rows][C] accepted drafts or their replacements; may be `draft` */
    int *replaced;       /* [rows] 0 or 1 */
    int *tries;          /* [rows] candidates for the replacement; 0 for an accepted draft */
    int *first_replaced; /* [groups] smallest `order` of the group's replaced rows; INT_MAX if none is replaced */
} kern_verify_job;

/* Compares whole chain paths under two distributions. A path is the sequence of states x_{steps-1} .. x_0 of a token's
 * chain, by step index. Its record includes the head's output at each state: the distribution the next state was drawn
 * from. The other distribution is the head's output at the same states under other conditions, or another head's. */
typedef struct {
    int paths, channels, conditions;
    int steps;         /* steps of the chain, 2 or more */
    int stride;        /* floats from one path to the next */
    const float *path; /* [paths][stride]: by index 0..steps-1, KERN_EVALUATED rows of C floats (kernels/speculation.h):
                        * state before that index, its x0 and variance fraction */
    const float *out;  /* [conditions][paths][steps][2C] head outputs of the other distribution, by index */
    const kern_chain_coef *coef; /* host [steps] */
    const float *cfg;            /* host [paths] guidance scale; unused with one condition */
    float log_temperature;       /* -INFINITY at temperature 0: distributions are points */
    double *log_ratio; /* [paths] sum over the noisy indices steps-1..1 of log(other density / own density) of the state
                        * after the index. Index 0 adds no noise */
    float *last; /* [paths][C] the other distribution's mean after index 0: the token it makes from the last state */
} kern_path_job;

/* Accepts or rejects whole paths by their log ratios. A draft from Q is replaced unless u < P/Q. A residual candidate
 * from P is kept if u < 1 - Q/P. A NaN replaces a draft and keeps a candidate: no distribution is left to draw from,
 * and the token shows the NaN. */
typedef struct {
    int rows;
    int candidates;          /* 0: rows are drafts, log_ratio is log P/Q; 1: candidates, log_ratio is log Q/P */
    const double *log_ratio; /* [rows] */
    uint32_t step;           /* step of u's address, purpose VERIFY */
    const uint64_t *seed;    /* host [rows], seed of u's address */
    const uint64_t *image;   /* host [rows], image of u's address */
    const int *position;     /* host [rows], position of u's address */
    const int *group;        /* host [rows] 0..groups-1 */
    const int *order;        /* host [rows] */
    int groups;
    int *marked; /* [rows] 1: draft replaced, or candidate kept; else 0 */
    int *first;  /* [groups] smallest `order` of the group's marked rows; INT_MAX if none is marked */
} kern_path_verdict;

/* Memory, time, recordings, products, rows and attention: what every model is built from. */
typedef struct {
    void (*close)(kern_device *d); /* called after all its queues, weights and memory are freed */

    mar_status (*queue_create)(kern_device *d, kern_queue **out, mar_err *err);
    void (*queue_free)(kern_queue *k); /* waits for its work; NULL is fine */
    /* Brackets a thread's use of a queue before it returns to its caller. Between bind and unbind the CPU's threads are
     * divided among the active queues. The GPU is the thread's current one; unbind restores the previous one.
     * Operations outside the brackets also work, on a CPU perhaps with a single thread. */
    void (*bind)(kern_queue *k);
    void (*unbind)(kern_queue *k);
    /* Waits for pending work and clears the failure, so that operations work again. A failure the device cannot recover
     * from stays: see kern_check. */
    void (*recover)(kern_queue *k);
    /* Waits for pending work, then continues on the caller's stream (CUDA: a cudaStream_t). The stream must outlive the
     * queue or its next set_stream. A NULL stream selects the queue's own stream. The entry is NULL in a backend
     * without streams. */
    mar_status (*set_stream)(kern_queue *k, void *stream, mar_err *err);

    mar_status (*alloc)(kern_device *d, size_t bytes, void **out, mar_err *err); /* 64-byte aligned, zeroed */
    void (*free)(kern_device *d, void *p); /* no pending work may use it. NULL is fine */
    /* Copies host -> backend. The caller may change src when the call returns. */
    void (*upload)(kern_queue *k, void *dst, const void *src, size_t bytes);
    /* Copies backend -> host and waits for the copy. */
    void (*download)(kern_queue *k, void *dst, const void *src, size_t bytes);
    /* Waits for all work. */
    void (*finish)(kern_queue *k);

    /* Adds the time since the last mark to *seconds; NULL only starts the clock. The sum is complete when `download` or
     * `finish` next returns. At most some thousand marks fit between two waits. */
    void (*timer_mark)(kern_queue *k, double *seconds);
    /* Runs body(arg), a sequence of operations. A backend that can record it does so at the second call with the same
     * recording. It replays the recording from then on. *recording is NULL at the first call. During replay body's
     * calls only pass their host arrays. Work that the device refuses to record runs at each call.
     *   - At each call with the same recording the operations, their order, scalars and backend addresses are the same;
     *     contents of host arrays may differ. Host arrays passed to rotate and attention_cache stay unchanged from the
     *     first of these calls that uses them to the end of body.
     *   - body calls no alloc, free, create, plan, download, finish, timer_mark, similarity, first_nonfinite or
     *   speculate_*.
     *   - body may be called more than once for one recording. It changes nothing on the host that the next call does
     *   not
     *     set again. */
    void (*replay)(kern_queue *k, kern_recording **recording, void (*body)(void *arg), void *arg);
    void (*recording_free)(kern_queue *k, kern_recording *recording); /* NULL is fine */

    /* Creates a layer y[rows][N] = activation(x[rows][K] W^T + bias). Copies, converts and packs the weights, once. */
    mar_status (*linear_create)(kern_queue *k, const kern_linear_spec *spec, kern_linear **out, mar_err *err);
    void (*linear_free)(kern_device *d, kern_linear *l); /* NULL is fine */
    /* Prepares for calls on this queue with this row count. On a CPU a plan also covers fewer rows. `linear` then
     * allocates nothing; it fails without a plan. A GPU prepares other row counts at their first use. */
    mar_status (*linear_plan)(kern_queue *k, const kern_linear *l, int rows, mar_err *err);
    void (*linear)(kern_queue *k, const kern_linear *l, const void *x, int rows, void *y);

    /* y[r] = (x[i] - mean) / sqrt(var + eps) * weight + bias, i = index ? index[r] : r. x float [..][dim],
     * weight and bias float [dim]; y act [rows][dim], or float if y_f32. A GPU takes dim up to 5120. */
    void (*layer_norm)(kern_queue *k, const float *x, const int *index, int rows, int dim, const float *weight,
                       const float *bias, float eps, void *y, int y_f32);
    /* dst[dst_index[r]] = src[src_index[r]] + add[add_index[r]], rows of dim floats. A NULL index is the identity. add
     * may be NULL: then bits are copied. Rows of operands can be copied that way, their length counted in floats. */
    void (*copy_rows)(kern_queue *k, float *dst, const int *dst_index, const float *src, const int *src_index,
                      const float *add, const int *add_index, int rows, int dim);
    /* y[r] = cosine between row r of a and of b, per head, averaged over the heads: a measure of a row's change. Rows
     * are `stride` elements apart; y is host float [rows]. Two zero heads have cosine 0. */
    void (*similarity)(kern_queue *k, const act *a, const act *b, int stride, int rows, int heads, int head_dim,
                       float *y);
    /* Returns the first row of x with a NaN or an infinity, or -1 if there is none. Rows are `width` numbers, `stride`
     * numbers apart: F32, AUTO: act, or with CUDA F16. Waits as `download` does. Returns -1 after a failure. */
    int (*first_nonfinite)(kern_queue *k, const void *x, mar_dtype type, int rows, int width, int stride);
    /* y[i][j] = |a[i] - b[j]|^2, a float [rows][dim], b float [columns][dim], y float [rows][columns]. Differences are
     * squared and summed in f32, so nothing cancels. The relative error is at most dim * 2^-23, usually about 1e-6.
     * Equal rows have distance 0. A distance's bits depend on its two rows only, not on their order, on either
     * backend. */
    void (*distances)(kern_queue *k, const float *a, int rows, const float *b, int columns, int dim, float *y);
    /* y[i] = a[i] - b[i] */
    void (*subtract)(kern_queue *k, const float *a, const float *b, size_t n, float *y);
    /* y[i] = x[i] as act. */
    void (*to_act)(kern_queue *k, const float *x, size_t n, act *y);

    /* Runs multi-head attention of n_seq independent sequences. Row i of sequence s of q starts at q + (s*n_q +
     * i)*q_stride elements, and that of key and value at (s*n_k + i)*kv_stride. Heads lie side by side, head_dim
     * elements each. y act [n_seq*n_q][heads*head_dim]. Scores are scaled by 1/sqrt(head_dim); the softmax is in
     * f32. */
    void (*attention)(kern_queue *k, const act *q, int q_stride, const act *key, const act *value, int kv_stride,
                      int n_seq, int n_q, int n_k, int heads, int head_dim, act *y);
    /* Prepares for calls of this shape, as linear_plan does; fewer queries and keys are covered, too. */
    mar_status (*attention_plan)(kern_queue *k, int n_q, int n_k, int heads, int head_dim, int q_stride, int kv_stride,
                                 mar_err *err);
    /* Runs attention on sequences of different lengths. Sequence s has query rows q_first[s] .. q_first[s] + n_q[s] -
     * 1, and key and value rows k_first[s] .. k_first[s] + n_k[s] - 1; all four host [n_seq]. Row r of q gives row r of
     * y. Rows of y outside all sequences stay unchanged. n_q[s] may be 0; n_k[s] is 1 or more. Each (n_q, n_k) must be
     * planned. On a CPU a row without bias has the bits `attention` gives for its sequence alone. On a GPU head_dim is
     * up to 128.
     *
     * bias float [heads][2 * reach + 1], or NULL. It adds bias[h][clamp(j - i, -reach, reach) + reach] to the scaled
     * score of query i and key j of a sequence, both counted from 0. -INFINITY masks a key, so a table of (0, 0,
     * -INFINITY) with reach 1 makes the attention causal. Each row has a key that is not masked. reach is 0 or more. */
    void (*attention_spans)(kern_queue *k, const act *q, int q_stride, const int *q_first, const int *n_q,
                            const act *key, const act *value, int kv_stride, const int *k_first, const int *n_k,
                            int n_seq, int heads, int head_dim, const float *bias, int reach, act *y);

    /* y[r] = x[i] / sqrt(mean of x[i]^2 + eps) * weight, i = index ? index[r] : r. x float [..][dim], weight float
     * [dim]; y act [rows][dim], or float if y_f32. A GPU takes dim up to 5120. */
    void (*rms_norm)(kern_queue *k, const float *x, const int *index, int rows, int dim, const float *weight, float eps,
                     void *y, int y_f32);
    /* y[r][i] = activation(x[r][i]) * x[r][hidden + i]: SwiGLU with KERN_SILU, gated GELU with KERN_GELU_TANH; no other
     * activation. x act [rows][2 * hidden], y act [rows][hidden]. */
    void (*gated)(kern_queue *k, const act *x, int rows, int hidden, kern_activation activation, act *y);
    /* Applies rotary position embeddings (RoPE) to queries and keys, and stores keys and values in a cache. qkv act
     * [rows][3 * heads * head_dim]: q, k, v. Pair i of a head, numbers 2i and 2i + 1, becomes (a cos - b sin, b cos + a
     * sin). cos and sin are numbers 2i and 2i + 1 of row position[r] of rope, float [positions][head_dim]. q is rotated
     * in place. Key and value go to row slot[r] of cache, act [slots][2 * heads * head_dim]. position and slot host
     * [rows]. With angles 2 the numbers of a pair have an angle each (l-DeTok): rope is float [positions][2 *
     * head_dim], and the cos c and sin s of number 2i, then those d and t of number 2i + 1, make the pair (a c - b s, b
     * d + a t). angles is 1 or 2. */
    void (*rotate)(kern_queue *k, act *qkv, int rows, int heads, int head_dim, int angles, const float *rope,
                   const int *position, act *cache, const int *slot);
    /* Runs multi-head attention over a cache, scores scaled by 1/sqrt(head_dim), softmax in f32. On a CPU a row's bits
     * depend only on its queries and on the slots it attends to, in order. */
    void (*attention_cache)(kern_queue *k, const kern_cache_job *job);
    /* Prepares for calls with spans of up to this many slots, or for calls with `causal`, as linear_plan does. */
    mar_status (*attention_cache_plan)(kern_queue *k, int slots, int head_dim, int causal, mar_err *err);
    /* y[r] = row x[r] of table, float [size][dim]. x float [rows] holds token ids 0..size-1; kern_token_row
     * (kernels/discrete.h) maps other values. y float [rows][dim]. */
    void (*look_up)(kern_queue *k, const float *table, int size, int dim, const float *x, int rows, float *y);
    /* y[r] = row token[place[r]] of table, float [size][dim]: embeddings of tokens that only the device has. token
     * backend int, clamped to 0..size-1; place host [rows]; y float [rows][dim]. place[r] < 0 means row -1 - place[r]
     * of the table. */
    void (*embed)(kern_queue *k, const float *table, int size, int dim, const int *token, const int *place, int rows,
                  float *y);
} kern_core_ops;

/* Discrete tokens: probabilities, sampling, and verification of drafts. The jobs are in kernels/discrete.h. */
typedef struct {
    void (*probs)(kern_queue *k, const kern_probs_job *job);
    void (*draw)(kern_queue *k, const kern_draw_job *job);
    void (*verify)(kern_queue *k, const kern_block_job *job);
    /* Finds the `count` most likely tokens of each distribution, most likely first, ties by token id. Writes id
     * [rows][count] and log_p [rows][count]. Missing tokens have id -1 and log_p -INFINITY. source host [rows]: rows of
     * log_probs, float [..][size]. */
    void (*top)(kern_queue *k, const float *log_probs, const int *source, int rows, int size, int count, int *id,
                float *log_p);
} kern_discrete_ops;

/* The diffusion head and its chain.
 *
 * A modulation row is the part of the head that depends on (condition, t) only. It is adaLN(SiLU(temb[t] + c)) of every
 * block and of the final layer. Modulation rows of many steps are computed ahead of the chain, in one large product. A
 * row has mod_bytes(h) bytes in the backend's own layout. Both backends fold the layer norms of MLP blocks into it
 * (kernels/adaln.h). */
typedef struct {
    mar_status (*create)(kern_queue *k, const kern_head_spec *spec, kern_head **out, mar_err *err);
    void (*free)(kern_device *d, kern_head *h); /* NULL is fine */
    /* Returns one line without newline, valid as long as the head: how the backend computes this head on this device,
     * and why not in a faster way. */
    const char *(*describe)(const kern_head *h);
    size_t (*mod_bytes)(const kern_head *h);               /* bytes of one modulation row */
    size_t (*scratch_bytes)(const kern_head *h, int rows); /* working memory of `modulate` and `eval` */
    /* Prepares for calls of the operations below on this queue with this row count, as linear_plan does. */
    mar_status (*plan)(kern_queue *k, const kern_head *h, int rows, mar_err *err);
    /* mod[s*rows + r] = modulation row of (temb[temb_index[s]], cond[r]); temb float [..][W], cond float [rows][W].
     * fine host [steps], or NULL for all 0. A row with fine 1 is computed and evaluated without int8. A head without
     * int8 ignores it. */
    void (*modulate)(kern_queue *k, const kern_head *h, const float *temb, const int *temb_index, const uint8_t *fine,
                     int steps, const float *cond, int rows, void *mod, void *scratch);
    /* out[r][2C] = net(x[x_index ? x_index[r] : r][C]; modulation row mod_index ? mod_index[r] : r). */
    void (*eval)(kern_queue *k, const kern_head *h, const float *x, const int *x_index, const void *mod,
                 const int *mod_index, int rows, float *out, void *scratch);
    /* As eval, with the given reuse. kept float [depth][kept_rows][W]; the first `rows` rows of each block are used.
     * rows is at most that of the last FRESH call. */
    void (*eval_reusing)(kern_queue *k, const kern_head *h, const float *x, const int *x_index, const void *mod,
                         const int *mod_index, int rows, kern_head_reuse reuse, float *kept, int kept_rows, float *out,
                         void *scratch);

    /* x[r][c] <- p_sample(x, out) with the noise at address (seed[r], KERN_NOISE_STEP, image[r], position[r], step, c).
     * A row of out is eps [C], then the variance fraction v [C]. cfg host [rows], or NULL without guidance. With
     * guidance out has 2*rows rows; row rows+r is the unconditional one of row r. Guidance acts on eps only; v is the
     * conditional row's. */
    void (*chain_step)(kern_queue *k, float *x, const float *out, int rows, int channels, const float *cfg,
                       const kern_chain_coef *coef, const uint64_t *seed, const uint64_t *image, const int *position,
                       int step);
    /* x <- the solver's next state. x0 [rows][C] is the previous step's x0 on entry, and this step's on return. It is
     * not read where coef_previous is 0. out and cfg as in chain_step; v is not used. */
    void (*chain_ode_step)(kern_queue *k, float *x, float *x0, const float *out, int rows, int channels,
                           const float *cfg, const kern_ode_coef *coef);
    /* Computes the Gaussian chain_step draws from: mean[r][c], and log_std[r][c] = log(temperature * sigma), -inf at
     * temperature 0. coef host [rows] is each row's own step. At index 0 log_std is that of the clipped variance at
     * `temperature`, though chain_step adds no noise there. */
    void (*chain_gaussian)(kern_queue *k, const float *x, const float *out, int rows, int channels, const float *cfg,
                           const kern_chain_coef *const *coef, float temperature, float *mean, float *log_std);
    /* path[r] += log_std[r][0] + ... + log_std[r][channels - 1] */
    void (*add_log_std)(kern_queue *k, double *path, const float *log_std, int rows, int channels);
    /* Verifies draft tokens against the target's distributions. */
    void (*verify)(kern_queue *k, const kern_verify_job *job);
    /* Compares whole paths under two distributions. */
    void (*path_ratio)(kern_queue *k, const kern_path_job *job);
    /* Accepts or rejects whole paths. */
    void (*path_decide)(kern_queue *k, const kern_path_verdict *job);
    /* x[r][c] = standard normal at address (seed[r], purpose, image[r], position[r], step, c). */
    void (*normal)(kern_queue *k, float *x, int rows, int channels, const uint64_t *seed, kern_noise purpose,
                   const uint64_t *image, const int *position, int step);

    /* Prepares for speculation inside the head, for w->tokens tokens (diffusion/speculate.h). */
    mar_status (*speculate_plan)(kern_queue *k, const kern_head *h, const kern_speculation *w, mar_err *err);
    /* Sets every token to the top of the chain: draws x_T and all noise, forgets all evaluations, clears the counts. */
    void (*speculate_start)(kern_queue *k, kern_speculation *w);
    /* Begins a round: lists the states of the unfinished tokens and the proposals after them. The filter proposes, or
     * the draft's head if `draft` is not NULL. Returns 0 if all tokens are finished, possibly some rounds late. */
    int (*speculate_propose)(kern_queue *k, kern_speculation *w, const kern_speculation_head *draft);
    /* Ends a round: evaluates the target's head at all rows, verifies the proposals, and moves each token to the end of
     * its round. */
    void (*speculate_walk)(kern_queue *k, kern_speculation *w, const kern_speculation_head *target);
} kern_head_ops;

/* Fused operations: each does the work of several of the required operations above and below. A backend has those that
 * it has a kernel for. kern_fused_complete puts kernels/fused.c in place of the others: a new backend needs none. */
typedef struct {
    /* Runs all steps of a job: at each index eval, then chain_step or chain_ode_step. */
    void (*chain_run)(kern_queue *k, const kern_head *h, const kern_chain_job *job);
    /* Runs all rounds after speculate_start: speculate_propose, then speculate_walk, until all tokens are finished. A
     * backend that runs them in one launch may not show their layers to kern_watch. */
    void (*speculate_run)(kern_queue *k, kern_speculation *w, const kern_speculation_head *draft,
                          const kern_speculation_head *target);
    /* Computes a product of up to KERN_SKINNY_ROWS or product_rows rows in one kernel. Its operands are rounded before
     * the norm divides them. Returns KERN_SKINNY_*; KERN_SKINNY_NOT for other layers and more rows, unless the layer
     * has the norm (kern_linear_spec), and always without such a kernel. */
    int (*skinny)(kern_queue *k, const kern_linear *l, const kern_skinny_job *job);
    /* Makes a decoder, once. *out is NULL where the backend has none, or nobody asks for it (docs/gpu.md). Only with
     * one are the next two called. */
    mar_status (*decoder_create)(kern_queue *k, const kern_decoder_spec *spec, kern_decoder **out, mar_err *err);
    void (*decoder_free)(kern_device *d, kern_decoder *decoder); /* no pending work may use it */
    /* Computes a pass in one launch, which does not show its layers to kern_watch. Returns 0 and does nothing for more
     * rows than it takes, and for caches in int8: the caller then computes layer by layer. */
    int (*decode)(kern_queue *k, const kern_decoder *decoder, const kern_decode_job *job);
    /* Runs linear to `hidden`, act [rows][out], then gated to y, act [rows][out / 2]; same bits. The call is planned by
     * linear_plan. `hidden` is working memory, and has the products only while the queue watches (k->watch.on). */
    void (*linear_gated)(kern_queue *k, const kern_linear *l, const act *x, int rows, kern_activation activation,
                         act *hidden, act *y);
} kern_fused_ops;

/* Rounding of to_bytes for a value in -1 .. 1 (kernels/pixels.h). */
typedef enum {
    KERN_BYTES_NEAREST, /* round(clip((x + 1) / 2 * 255, 0, 255)), half to even: MAR, as in numpy, and NextStep-1 */
    KERN_BYTES_DOWN, /* trunc(clip(127.5 x + 128, 0, 255)): LlamaGen, as in torch. Of 2^27 values evenly spread over -1
                      * .. 1, 987 differ from torch's byte; they lie at halves */
    KERN_BYTES_CUT,  /* trunc((clip(x, -1, 1) + 1) / 2 * 255): Chameleon, Emu3, as in numpy */
} kern_bytes;

/* Flags to_bytes reports per image. */
enum {
    KERN_PIXELS_WITHIN = 1,    /* some value is between -1 and 1 */
    KERN_PIXELS_NOT_FINITE = 2 /* some value is NaN or infinite */
};

/* Convolutional networks: the image decoder and Inception. Activations are NHWC, `images` images one after another. On
 * a CPU an image's bits depend neither on the batch size nor on the other images. */
typedef struct {
    /* Copies the weights; the first `plan` of any queue packs them. */
    mar_status (*create)(kern_queue *k, const kern_conv_spec *spec, kern_conv **out, mar_err *err);
    void (*free)(kern_device *d, kern_conv *c); /* NULL is fine */
    /* Must precede calls on this queue with this number of images, height and width of x. Then `conv` allocates nothing
     * and cannot fail. */
    mar_status (*plan)(kern_queue *k, const kern_conv *c, int images, int height, int width, mar_err *err);
    /* y[images][H][W][out] (upsampling or transposed: [images][2H][2W][out]) from x[images][H][W][in]. */
    void (*conv)(kern_queue *k, const kern_conv *c, const act *x, int images, int height, int width, void *y);
    /* Must precede calls of group_norm and group_sums with this shape, as `plan` does for `conv`. */
    mar_status (*group_norm_plan)(kern_queue *k, int images, int pixels, int channels, mar_err *err);
    /* y = GroupNorm(x) * scale + shift, then y*sigmoid(y) if silu, each image by its own mean and variance. x float
     * [images][pixels][channels], y act. */
    void (*group_norm)(kern_queue *k, const kern_norm *norm, const float *x, int images, int pixels, int channels,
                       act *y);
    /* Adds `count` pixels of an image of `pixels`, from pixel `first` on, to its sums for group_norm. x is pixel
     * `first`, float [count][channels]. Calls for an image go on where the last one ended; the first has first 0.
     * sums: double [KERN_NORM_CHUNKS][2][channels]. On a CPU group_norm by these sums has the bits of one without. */
    void (*group_sums)(kern_queue *k, const float *x, int pixels, int channels, int first, int count, double *sums);
    /* y[i] = kern_pixel_byte(x[i], how) (kernels/pixels.h). x float [images][values], y [images][values]. found int
     * [images] gets each image's KERN_PIXELS_* flags. */
    void (*to_bytes)(kern_queue *k, const float *x, int images, int values, kern_bytes how, uint8_t *y, int *found);
    /* y = pool(x), x act [images][height][width][channels]; y act, its pixels y_stride elements apart. */
    void (*pool)(kern_queue *k, const kern_pool *p, const act *x, int images, int height, int width, int channels,
                 act *y, int y_stride);
    /* y[i][c] = mean of channel c over the pixels of image i. x act [images][pixels][channels], y float. */
    void (*mean_pixels)(kern_queue *k, const act *x, int images, int pixels, int channels, float *y);
    /* y[r][c] = x[r*stride + c] as float: c < channels, x act, y float [rows][channels]. */
    void (*take_channels)(kern_queue *k, const act *x, int rows, int stride, int channels, float *y);
    /* y = (bilinear(rgb) - 128) / 128, resized as in TensorFlow 1 without aligned corners and without half-pixel
     * centres. Row r of y comes from row r * (height/side) of rgb. rgb uint8_t [images][height][width][3], y act
     * [images][side][side][3]. */
    void (*resize)(kern_queue *k, const uint8_t *rgb, int images, int height, int width, int side, act *y);
} kern_conv_ops;

/* Properties of the machine; 0: unknown or absent. */
typedef struct {
    double clock;       /* Hz, of a GPU's multiprocessors */
    double cache_bytes; /* size of the last-level cache */
    int processors;     /* multiprocessors, or threads */
} kern_machine;

/* Operations for measuring: the specs of weights, and a read of memory. */
typedef struct {
    /* Writes out, in, activation and flags of the layer; the rest is 0. */
    void (*linear_spec)(const kern_linear *l, kern_linear_spec *spec);
    /* Writes out, in, kernel, stride, padding and flags of the convolution; the rest is 0. */
    void (*conv_spec)(const kern_conv *c, kern_conv_spec *spec);
    /* Writes the shape, form and dtype of the head, and whether it has int8; the rest is 0. */
    void (*head_spec)(const kern_head *h, kern_head_spec *spec);
    void (*machine)(const kern_device *d, kern_machine *out);
    /* Reads n floats of backend memory once, as fast as the device can. */
    void (*read)(kern_queue *k, const float *x, size_t n);
} kern_measure_ops;

struct kern_device {
    const kern_core_ops *core;
    const kern_head_ops *head;
    const kern_conv_ops *conv;
    const kern_discrete_ops *discrete;
    const kern_measure_ops *measure;
    kern_fused_ops fused; /* complete: kern_fused_complete */
    size_t act_size;      /* bytes of an act element: 2 (bf16) or 4 (f32) */
    int int8;             /* 1: layers with KERN_LOW have int8 weights */
    int int4;             /* 1: layers with KERN_LOW have int4 weights */
    int int8_head;        /* 1: heads can be in int8 */
    size_t mod_budget;    /* bytes of modulation rows a model may compute at a time */
    size_t image_budget;  /* bytes of activations for an image decoder: it decodes as many images at a time as fit, at
                           * least one */
    int skinny_rows;      /* rows up to which fused.skinny computes the products of a decoder; 0: none */
    int product_rows;     /* rows up to which it also computes those of a transformer: LayerNorm, activations, y_act;
                           * INT_MAX: any; 0: none */
    int draft_budget;     /* drafts that a round of Jacobi decoding verifies by default: a pass over more of them takes
                           * much longer */
    int asynchronous;     /* 1: operations may still run when their call has returned */
    char unit[192];       /* CPU: instruction sets, "avx512_vnni, avx512_bf16"; CUDA: the GPU, and its tuning */
    int threads;          /* CPU: worker threads */
    int threads_missing;  /* CPU: those that the system did not start */
};

/* Returns the name of the arithmetic of layers with KERN_LOW, or NULL where they are as others. */
static inline const char *kern_low_name(const kern_device *d)
{
    return d->int8 ? "int8" : d->int4 ? "int4" : NULL;
}

/* Search for the first layer with a non-finite output (mar_params.check). */
typedef struct {
    int on;           /* 1: kern_watch tests the outputs it gets */
    const char *part; /* prefix of layer names: "", or "draft: " */
    int index;        /* current diffusion step, by its index in the chain; -1: none or several */
    char layer[128];  /* first layer with a NaN or an infinity in its output since kern_watch_begin; "": none found */
} kern_watching;

struct kern_queue {
    kern_device *device;
    const kern_core_ops *core; /* the device's tables */
    const kern_head_ops *head;
    const kern_conv_ops *conv;
    const kern_discrete_ops *discrete;
    const kern_fused_ops *fused;
    size_t recorded_bytes;  /* memory of its recordings, without the driver's own */
    int recordings;         /* recordings that are replayed */
    int unrecorded;         /* recordings the device refused: their bodies run at every use */
    mar_err why_unrecorded; /* reason of the first refusal; stays when that recording is freed */
    const int *cancel; /* the user's flag, or NULL. Any thread may set it to 1 (__atomic_store_n); the next operation
                        * then fails the queue with MAR_ECANCELLED */
    mar_status failed; /* first failure of an operation without a status; stays until recover */
    mar_err failure;   /* message of that failure */
    kern_watching watch;
};

/* For backends: initialises the part that all queues of a device share. */
void kern_queue_init(kern_queue *k, kern_device *d);
/* For backends: puts operations made of required ones in place of the fused ones that are NULL (kernels/fused.c). */
void kern_fused_complete(kern_device *d);
/* These operations: fused.chain_run step by step, fused.speculate_run round by round, fused.linear_gated by its parts.
 */
void kern_chain_steps(kern_queue *k, const kern_head *h, const kern_chain_job *job);
void kern_speculate_rounds(kern_queue *k, kern_speculation *w, const kern_speculation_head *draft,
                           const kern_speculation_head *target);
void kern_linear_then_gated(kern_queue *k, const kern_linear *l, const act *x, int rows, kern_activation activation,
                            act *hidden, act *y);
/* For backends: records the first failure. */
void kern_fail(kern_queue *k, mar_status status, const mar_err *err);
/* For backends: returns 1 if operations should run, 0 after a failure or a cancel. */
int kern_live(kern_queue *k);
/* For models: returns MAR_OK, or the first failure with its message. */
mar_status kern_check(kern_queue *k, mar_err *err);
/* Copies host floats [n] to new memory of the device. *out is NULL after MAR_ENOMEM. */
mar_status kern_new_array(kern_queue *k, const float *host, size_t n, float **out, mar_err *err);
/* Begins a search: no layer is found yet. */
void kern_watch_begin(kern_queue *k);
/* Runs body(arg), a sequence of operations on queue k, as a recording if given (kern_core_ops.replay). Adds its time to
 * *seconds. Layers that kern_watch names in it follow `part`: "draft: ", or "". */
void kern_run_recorded(kern_queue *k, const char *part, kern_recording **recording, void (*body)(void *arg), void *arg,
                       double *seconds);
/* For models and backends: tests the output of a layer; the name follows as for printf; x as in first_nonfinite. Does
 * nothing unless k->watch.on. It waits, so it must not be in a recording. */
void kern_watch(kern_queue *k, const void *x, mar_dtype type, int rows, int width, int stride, const char *name, ...)
    __attribute__((format(printf, 7, 8)));
#define kern_watch(k, ...) ((k)->watch.on ? kern_watch(k, __VA_ARGS__) : (void)0) /* no call where it is off */
/* For backends: names of the head's layers in a checkpoint, for kern_watch. %s is kern_head_spec.prefix. */
#define KERN_HEAD_INPUT "%sinput_proj"
#define KERN_HEAD_BLOCK "%sres_blocks.%d"
#define KERN_HEAD_FINAL "%sfinal_layer"
/* For backends: tests modulation rows of mod_bytes each: [layers][3W] of `type`, then float [2W]. */
void kern_watch_modulation(kern_queue *k, kern_head_form form, const char *prefix, const void *mod, mar_dtype type,
                           int rows, int layers, int width, size_t mod_bytes);

/* The host's memory (mar_options.alloc). */
typedef struct {
    mar_alloc_function *alloc;
    mar_free_function *free;
    void *user;
} kern_memory;

/* Opens the CPU backend. dtype F32, BF16, INT8, INT4 or AUTO; threads 0 = one per available core. Weights, arrays
 * and scratch are in the host's memory, or with `memory` NULL in the C library's. */
mar_status kern_cpu_open(mar_dtype dtype, int threads, const kern_memory *memory, kern_device **out, mar_err *err);

/* Opens the CUDA backend on GPU number `device`. dtype F32, BF16, INT8, INT4 or AUTO; AUTO is bf16. The address is
 * NULL in a library built without the CUDA toolkit. */
__attribute__((weak)) mar_status kern_cuda_open(mar_dtype dtype, int device, kern_device **out, mar_err *err);
/* Reads the fastest algorithms of products from a file, for this GPU and this version of cuBLASLt; further lines are
 * for others. With `time` the device times the algorithms of every product that it plans from now on, unless the file
 * has it, and adds the fastest to the file; a missing one is made. Call it once, before the first queue. */
__attribute__((weak)) mar_status kern_cuda_tuning(kern_device *d, const char *file, int time, mar_err *err);
/* Returns the number of GPUs the CUDA backend can use; 0 without driver or device. *why gets the reason why there are
 * no more; why may be NULL. */
__attribute__((weak)) int kern_cuda_devices(mar_err *why);

#endif
