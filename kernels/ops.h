/* The kernel table: every operation a model is built from, one implementation per backend.
 *
 * Models are written once over this table. Two kinds of arrays appear:
 *   float*  residual streams, tokens, statistics: always f32;
 *   act*    operands of matrix products: `kern_act_size(k)` bytes an element, bf16 or f32 by backend.
 * All array arguments live in the backend's memory (alloc) unless they are marked `host`; index arguments
 * (`const int *`) and scalars live in host memory and are read before the call returns. Row counts may be 0. Operations
 * on one kern run in order, and may still be running when the call returns: `download` and `finish` wait. Rows are
 * independent: no row of a result depends on what stands in the others. On a CPU not even its bits depend on the number
 * of rows beside it, nor on the number of threads; on a GPU a product of another number of rows may round differently.
 */
#ifndef KERNELS_OPS_H
#define KERNELS_OPS_H

#include "base/error.h"
#include "kernels/rng.h"

#include <stddef.h>
#include <stdint.h>

typedef struct kern kern;                         /* a backend instance */
typedef struct kern_linear kern_linear;           /* packed weights [N][K] and bias of y = act(x W^T + b) */
typedef struct kern_conv kern_conv;               /* packed weights of a 2-D convolution */
typedef struct kern_head kern_head;               /* packed diffusion head */
typedef struct kern_recording kern_recording;     /* recorded work */
typedef struct kern_speculation kern_speculation; /* speculation inside the head: kernels/speculation.h, as */
typedef struct kern_speculation_head kern_speculation_head;
typedef void act; /* array of operands, see above */

typedef enum { KERN_LINEAR, KERN_GELU, KERN_SILU } kern_activation; /* GELU: exact, with erf */

enum {
    KERN_IN_F32 = 1,   /* x is float*, multiplied in f32; else act* */
    KERN_OUT_F32 = 2,  /* y is float*; else act* */
    KERN_OUT_ADD = 4,  /* y += result; needs KERN_OUT_F32 */
    KERN_UPSAMPLE = 8, /* convolutions: of the nearest-neighbour 2x upsampled input; kernel 3, needs KERN_OUT_F32
                        * and excludes KERN_OUT_ADD */
};

typedef struct {
    int out, in;         /* N, K */
    const float *weight; /* host [N][K] */
    const float *bias;   /* host [N] or NULL */
    kern_activation activation;
    int flags;    /* KERN_IN_F32 ... */
    int y_stride; /* elements from one row of y to the next, 0 = out */
} kern_linear_spec;

/* 2-D convolution, stride 1, kernel 1 or 3 with zero padding kernel/2, activations NHWC. */
typedef struct {
    int out, in, kernel; /* channels, channels, 1 or 3 */
    const float *weight; /* host [out][in][kernel][kernel] */
    const float *bias;   /* host [out] */
    int flags;           /* KERN_OUT_F32, KERN_OUT_ADD, KERN_UPSAMPLE; the input is always act* */
} kern_conv_spec;

/* The diffusion head's weights, all host f32, official names in diffusion/head.c. W = width, D = z size. */
typedef struct {
    const float *ln_weight, *ln_bias;   /* [W] in_ln */
    const float *fc1_weight, *fc1_bias; /* [W][W], [W] mlp.0 */
    const float *fc2_weight, *fc2_bias; /* [W][W], [W] mlp.2 */
    const float *ada_weight, *ada_bias; /* [3W][W], [3W] shift, scale, gate */
} kern_head_block;

typedef struct {
    int width, depth, channels;         /* W, residual blocks, token channels C */
    const float *in_weight, *in_bias;   /* [W][C], [W] input_proj */
    const kern_head_block *blocks;      /* [depth] */
    const float *ada_weight, *ada_bias; /* [2W][W], [2W] final adaLN: shift, scale */
    const float *out_weight, *out_bias; /* [2C][W], [2C] final linear: eps, variance fraction */
} kern_head_spec;

/* One diffusion step of the learned-range Gaussian chain, in f32 (diffusion/schedule.h fills it). */
typedef struct {
    float sqrt_recip_abar, sqrt_recipm1_abar; /* x0 = a*x_t - b*eps */
    float coef_x0, coef_xt;                   /* posterior mean = coef_x0*x0 + coef_xt*x_t */
    float log_var_min, log_var_max;           /* log variance = frac*max + (1-frac)*min, frac = (v+1)/2 */
    float noise;                              /* temperature, or 0 at the last index */
} kern_chain_coef;

/* One step of an ODE solver of the chain that predicts x0, first or second order (diffusion/schedule.h). */
typedef struct {
    float sqrt_recip_abar, sqrt_recipm1_abar; /* x0 = a*x_t - b*eps */
    float coef_x, coef_x0, coef_previous; /* next x = coef_x*x_t + coef_x0*x0 + coef_previous*(x0 of the step before) */
} kern_ode_coef;

/* LazyMAR's evaluation of the head: what the blocks' MLPs gave is kept and used again. Blocks 1 to 4 give again what
 * they added to x; the others give their MLP's result again, gated anew. */
typedef enum {
    KERN_HEAD_FRESH, /* computes and keeps all */
    KERN_HEAD_WARM,  /* takes blocks 1 to 4 from what is kept, computes and keeps the others */
    KERN_HEAD_KEPT,  /* takes all from what is kept */
} kern_head_reuse;

/* A run of the chain from index `first` down to `last`. rows = tokens * conditions: row c * tokens + t is condition c
 * of token t, the conditional one first; both read the token's state. Steps are of DDPM (coef) or of a solver (ode). */
typedef struct {
    int tokens, conditions;
    int first, last;
    const void *mod;             /* modulation row of index i and row r: (first - i) * rows + r */
    float *x;                    /* [tokens][C]: the state before index `first`, then that after `last` */
    float *x0;                   /* [tokens][C] a solver's, as for chain_ode_step; else NULL */
    const kern_chain_coef *coef; /* host, by index; NULL: */
    const kern_ode_coef *ode;    /* host, by index */
    const int *t;                /* host, by index: the noise address's step */
    const float *cfg;            /* host [tokens]; with one condition unused */
    uint64_t seed;
    const uint64_t *image; /* host [tokens] */
    const int *position;   /* host [tokens] */
    float *out;            /* [rows][2C] working memory */
    void *scratch;         /* head_scratch_bytes(rows) */
} kern_chain_job;

/* A criterion for diagonal Gaussians p and q (specdec/). With log p/q = exponents + normalisers (log |std_q| - log
 * |std_p|) and path = path_q - path_p, a draft x from q is accepted with probability min(1, exp(a)),
 *   a = exponents / temper + normalisers + path_accept * path,
 * else replaced by a draw from Norm[p - c q]+, log c = path_scale * path. Exact: temper 1, the others 0. */
typedef struct {
    double temper, path_accept, path_scale;
} kern_gaussian_rule;

/* Verifies rows of continuous drafts, each by itself. */
typedef struct {
    int rows, channels;
    const float *draft;              /* [rows][C] */
    const float *mean_p, *log_std_p; /* [rows][C] the target's laws */
    const float *mean_q, *log_std_q; /* [rows][C] the laws the drafts were drawn from */
    const double *path_p, *path_q;   /* [rows]; NULL: 0 */
    kern_gaussian_rule rule;
    uint64_t seed; /* addresses: purposes VERIFY and RESIDUAL, image, position, step */
    uint32_t step;
    const uint64_t *image; /* host [rows] */
    const int *position;   /* host [rows] */
    const int *group;      /* host [rows], and */
    const int *order;      /* host [rows]: first_replaced[g] is the least `order` of a replaced row of group g */
    int groups;
    float *x;            /* [rows][C] the drafts, or what replaces them; may be draft */
    int *replaced;       /* [rows] 0 or 1 */
    int *tries;          /* [rows] candidates drawn for the residual, 0 if accepted */
    int *first_replaced; /* [groups]; INT_MAX: none */
} kern_verify_job;

/* Memory, time, recordings, products, rows and attention: what every model is built from. */
typedef struct {
    void (*close)(kern *k);

    mar_status (*alloc)(kern *k, size_t bytes, void **out, mar_err *err); /* 64-byte aligned, zeroed */
    void (*free)(kern *k, void *p);
    void (*upload)(kern *k, void *dst, const void *src, size_t bytes);   /* host -> backend; src may be changed then */
    void (*download)(kern *k, void *dst, const void *src, size_t bytes); /* backend -> host, waits */
    void (*finish)(kern *k);                                             /* waits for all work */

    /* Adds the time since the last lap to *seconds, at the latest when `download` or `finish` next return; NULL: only
     * begins. At most some thousand laps between two waits. */
    void (*lap)(kern *k, double *seconds);
    /* Does body(arg), a sequence of operations without alloc, plans, download, finish, lap, similarity and window_*,
     * whose number, order, scalars and backend addresses are the same at each call with this recording; contents of
     * host arrays may differ. A backend that can, records it at the first call (*recording NULL) and replays it later:
     * then body's calls only hand over their host arrays. body may be called more than once for one recording: it
     * changes nothing on the host but what the next call sets again. recording_free(NULL) is allowed. */
    void (*replay)(kern *k, kern_recording **recording, void (*body)(void *arg), void *arg);
    void (*recording_free)(kern *k, kern_recording *recording);

    /* y[rows][N] = activation(x[rows][K] W^T + bias). Weights are copied, converted and packed here, once. */
    mar_status (*linear_create)(kern *k, const kern_linear_spec *spec, kern_linear **out, mar_err *err);
    void (*linear_free)(kern *k, kern_linear *l);
    /* Prepares for calls with this row count, so that `linear` allocates nothing. Optional. */
    mar_status (*linear_plan)(kern *k, kern_linear *l, int rows, mar_err *err);
    void (*linear)(kern *k, const kern_linear *l, const void *x, int rows, void *y);

    /* y[r] = (x[i] - mean) / sqrt(var + eps) * weight + bias, i = index ? index[r] : r. x float [..][dim],
     * weight and bias float [dim]; y act [rows][dim], or float if y_f32. */
    void (*layer_norm)(kern *k, const float *x, const int *index, int rows, int dim, const float *weight,
                       const float *bias, float eps, void *y, int y_f32);
    /* dst[dst_index[r]] = src[src_index[r]] + add[add_index[r]], rows of dim floats. A NULL index is the
     * identity; add may be NULL: then bits are copied, and the rows may be of operands too, counted in floats. */
    void (*copy_rows)(kern *k, float *dst, const int *dst_index, const float *src, const int *src_index,
                      const float *add, const int *add_index, int rows, int dim);
    /* y[r] = cosine between the head_dim parts of row r of a and of b, averaged over the heads: how much a row has
     * changed. Rows are `stride` elements apart; y host float [rows]. Two zero parts have cosine 0. */
    void (*similarity)(kern *k, const act *a, const act *b, int stride, int rows, int heads, int head_dim, float *y);
    /* y[i] = a[i] - b[i] */
    void (*subtract)(kern *k, const float *a, const float *b, size_t n, float *y);
    /* y[r] = x[r] as act. */
    void (*to_act)(kern *k, const float *x, size_t n, act *y);

    /* Multi-head attention of n_seq independent sequences. Row i of sequence s of q starts at
     * q + (s*n_q + i)*q_stride elements, and of k and v at (s*n_k + i)*kv_stride; heads lie side by side,
     * head_dim each. y act [n_seq*n_q][heads*head_dim]. Scores are scaled by 1/sqrt(head_dim), softmax in f32. */
    void (*attention)(kern *k, const act *q, int q_stride, const act *key, const act *value, int kv_stride, int n_seq,
                      int n_q, int n_k, int heads, int head_dim, act *y);
    /* Prepares for calls of this shape, so that `attention` allocates nothing. */
    mar_status (*attention_plan)(kern *k, int n_q, int n_k, int heads, int head_dim, int q_stride, int kv_stride,
                                 mar_err *err);
} kern_core_ops;

/* The diffusion head and its chain. Modulation rows are what depends on (condition, t) only: adaLN(SiLU(temb[t] + c))
 * of every block and of the final layer, computed ahead of the chain in one large product. One row is
 * head_mod_bytes() long, its layout the backend's own. */
typedef struct {
    mar_status (*create)(kern *k, const kern_head_spec *spec, kern_head **out, mar_err *err);
    void (*free)(kern *k, kern_head *h);
    size_t (*mod_bytes)(const kern_head *h);
    size_t (*scratch_bytes)(const kern_head *h, int rows); /* for head_modulate and head_eval */
    mar_status (*plan)(kern *k, kern_head *h, int rows, mar_err *err);
    /* mod[s*rows + r] = modulation for (temb[temb_index[s]], cond[r]); temb [..][W], cond [rows][W] floats. */
    void (*modulate)(kern *k, const kern_head *h, const float *temb, const int *temb_index, int steps,
                     const float *cond, int rows, void *mod, void *scratch);
    /* out[r][2C] = net(x[x_index ? x_index[r] : r][C]; mod row mod_index ? mod_index[r] : r). */
    void (*eval)(kern *k, const kern_head *h, const float *x, const int *x_index, const void *mod, const int *mod_index,
                 int rows, float *out, void *scratch);
    /* The same by `reuse`; kept float [depth][kept_rows][W], of which the first `rows` rows are meant: as many as in
     * the FRESH call before, or fewer. */
    void (*eval_reusing)(kern *k, const kern_head *h, const float *x, const int *x_index, const void *mod,
                         const int *mod_index, int rows, kern_head_reuse reuse, float *kept, int kept_rows, float *out,
                         void *scratch);

    /* The steps of a job: head_eval and chain_step (chain_ode_step) at each index. */
    void (*chain_run)(kern *k, const kern_head *h, const kern_chain_job *job);
    /* x[r][c] <- p_sample(x, out) with the noise at address (KERN_NOISE_STEP, image[r], position[r], step, c).
     * out [rows or 2*rows][2C]: eps then variance fraction. cfg host [rows] or NULL: with guidance row rows+r is the
     * unconditional one of row r; guidance acts on eps only, the variance is the conditional row's. */
    void (*chain_step)(kern *k, float *x, const float *out, int rows, int channels, const float *cfg,
                       const kern_chain_coef *coef, uint64_t seed, const uint64_t *image, const int *position,
                       int step);
    /* x <- the solver's next state; x0 [rows][C] holds the x0 of the step before and receives this step's (it is not
     * read where coef_previous is 0). out, cfg as for chain_step; the variances are not used. */
    void (*chain_ode_step)(kern *k, float *x, float *x0, const float *out, int rows, int channels, const float *cfg,
                           const kern_ode_coef *coef);
    /* The law chain_step draws from: mean[r][c], and log_std[r][c] = log(temperature * sigma), -inf at temperature 0.
     * coef host [rows]: a row's own step. At index 0 log_std is that of the clipped variance at `temperature`, though
     * chain_step adds no noise there. */
    void (*chain_law)(kern *k, const float *x, const float *out, int rows, int channels, const float *cfg,
                      const kern_chain_coef *const *coef, float temperature, float *mean, float *log_std);
    /* path[r] += log_std[r][0] + ... + log_std[r][channels - 1] */
    void (*add_log_std)(kern *k, double *path, const float *log_std, int rows, int channels);
    /* Draft tokens against the target. */
    void (*verify)(kern *k, const kern_verify_job *job);
    /* x[r][c] = standard normal at address (purpose, image[r], position[r], step, c). */
    void (*normal)(kern *k, float *x, int rows, int channels, uint64_t seed, kern_noise purpose, const uint64_t *image,
                   const int *position, int step);

    /* Speculation inside the head (diffusion/speculate.h), for the tokens that a window holds. */
    mar_status (*speculate_plan)(kern *k, kern_head *h, const kern_speculation *w,
                                 mar_err *err); /* of w->tokens tokens */
    /* Every token to the top of the chain: x_T, all its noise, nothing known, nothing counted. */
    void (*speculate_start)(kern *k, kern_speculation *w);
    /* Begins a round: the states of the unfinished tokens and the proposals behind them, by the filter or by a draft's
     * head. Returns 0 if all tokens are finished, and may find that out some rounds late. */
    int (*speculate_propose)(kern *k, kern_speculation *w, const kern_speculation_head *draft);
    /* Ends it: evaluates the target there, verifies, and takes each token down to where its round ends. */
    void (*speculate_walk)(kern *k, kern_speculation *w, const kern_speculation_head *target);
    /* All rounds in one operation, proposals by the filter. Returns 0, and has done nothing, if that does not suit the
     * head or the number of rows. NULL: it never does. */
    int (*speculate_run)(kern *k, kern_speculation *w, const kern_speculation_head *target);
} kern_head_ops;

/* The image decoder. Activations are NHWC, one image at a time. */
typedef struct {
    /* Weights are copied by create and packed by the first plan. */
    mar_status (*create)(kern *k, const kern_conv_spec *spec, kern_conv **out, mar_err *err);
    void (*free)(kern *k, kern_conv *c);
    /* Must precede calls with this height and width of x, so that `conv` allocates nothing and cannot fail. */
    mar_status (*plan)(kern *k, kern_conv *c, int height, int width, mar_err *err);
    /* y[H][W][out] (upsampling: [2H][2W][out]) from x[H][W][in]. */
    void (*conv)(kern *k, const kern_conv *c, const act *x, int height, int width, void *y);
    /* y = GroupNorm(x) * weight + bias, then x*sigmoid(x) if silu. x float [pixels][channels], y act. */
    mar_status (*group_norm_plan)(kern *k, int pixels, int channels, mar_err *err); /* as conv_plan */
    void (*group_norm)(kern *k, const float *x, int pixels, int channels, int groups, const float *weight,
                       const float *bias, float eps, int silu, act *y);
} kern_conv_ops;

struct kern {
    const kern_core_ops *core;
    const kern_head_ops *head;
    const kern_conv_ops *conv;
    size_t act_size;       /* bytes of an act element: 2 (bf16) or 4 (f32) */
    size_t mod_budget;     /* modulation rows to make at a time, in bytes */
    size_t recorded_bytes; /* memory of the recordings there are, but for what the driver takes for them */
    char description[128]; /* "cpu bf16 (avx512_bf16), 2 threads" */
    mar_status failed;     /* the first failure of an operation that returns nothing; sticky */
    mar_err failure;
};

/* For backends: remembers the first failure. */
void kern_fail(kern *k, mar_status status, const mar_err *err);
/* For models: MAR_OK, or the first failure with its message. */
mar_status kern_check(const kern *k, mar_err *err);

/* The CPU backend. dtype F32, BF16 or AUTO; threads 0 = one per available core. */
mar_status kern_cpu_open(mar_dtype dtype, int threads, kern **out, mar_err *err);

/* The CUDA backend on GPU number `device`. dtype F32, BF16 or AUTO, which is bf16. A library built without the CUDA
 * toolkit does not have it: the address is NULL. */
__attribute__((weak)) mar_status kern_cuda_open(mar_dtype dtype, int device, kern **out, mar_err *err);
/* Number of GPUs that the CUDA backend can use; 0 without driver or device. */
__attribute__((weak)) int kern_cuda_devices(void);

#endif
