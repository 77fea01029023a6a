/* The diffusion head on the device. kernels/cpu/head.c shows its layers in the official form.
 *
 * Up to PERSISTENT_ROWS rows a persistent kernel runs the whole chain in one launch, with the weights on chip
 * (persistent.cu). More rows use cuBLASLt products (head.cu) and two kernels for the rest of a block (head_rows.cu),
 * or, where it is chosen at load, a launch too (groups.cu). Up to 8 rows have two more forms, chosen likewise:
 * resident.cu and streamed.cu. head_reuse.cu has the loop over the blocks. */
#ifndef KERNELS_CUDA_HEAD_H
#define KERNELS_CUDA_HEAD_H

#include "kernels/cuda/cuda.h"

extern "C" {
#include "base/arena.h"
#include "kernels/adaln.h"
#include "kernels/chain.h"
}

/* persistent_load.cu: the weights in a persistent kernel's layout. */
typedef struct persistent_head persistent_head;
/* streamed.cu: a chain of up to 8 rows, whose weights stream through shared memory. */
typedef struct streamed_head streamed_head;

/* Immutable after creation: any number of queues may use it at a time. */
struct kern_head {
    int width, depth, channels;
    kern_head_form form;
    const char *prefix;     /* kern_head_spec */
    int hidden, ada_layers; /* kern_head_spec */
    int f16;                /* act below is f16, else float. A GPU's heads have no bf16 */
    size_t act_size;        /* bytes of an element of act */
    kern_linear *in;        /* [W][C] f32 -> f32 */
    struct kern_head_layers {
        kern_linear *fc1; /* [H][W] act -> f32, without SiLU; SWIGLU: [2H][W] */
        kern_linear *fc2; /* [W][H] act -> f32 */
    } * block;
    float *norms;                /* SWIGLU: [depth][2][W] weight and bias of the layer norms; else NULL */
    kern_linear *ada_blocks;     /* [ada_layers*3W][W] act -> act, rows of a modulation row */
    kern_linear *ada_final;      /* [2W][W] act -> f32, the end of a modulation row */
    kern_linear *out;            /* [2C][W] f32 -> f32; NULL with out_packed */
    void *out_packed;            /* weight of `out` in cuda_head_final's layout; NULL: unsupported width, or not f16 */
    float *out_bias;             /* [2C], with out_packed */
    persistent_head *persistent; /* NULL: no persistent kernel runs this head here; see `how` */
    streamed_head *streamed;     /* NULL: other forms run chains of up to 8 rows */
    mar_err how;                 /* the text of kern_head_ops.describe */
};

/* A modulation row: act [ada_layers][3][W] (shift, scale, gate), then float [2][W] (shift, scale of the final
 * layer). */
static inline size_t cuda_mod_final_offset(const kern_head *h)
{
    return 3u * (size_t)h->ada_layers * (size_t)h->width * h->act_size;
}
/* Returns the offset of block b's shift in a modulation row; its scale and gate follow. */
static inline size_t cuda_mod_block_offset(const kern_head *h, int b)
{
    const int layer = b / (h->depth / h->ada_layers);
    return 3u * (size_t)layer * (size_t)h->width * h->act_size;
}

/* A thread of a row kernel has CUDA_HEAD_LANES neighbouring elements; a block of threads has a row. */
enum { CUDA_HEAD_LANES = 8, CUDA_HEAD_WIDTH = CUDA_HEAD_LANES * 512 };
static inline dim3 cuda_head_threads(const kern_head *h)
{
    return dim3((unsigned)(h->width / CUDA_HEAD_LANES + 31) / 32 * 32);
}

/* An evaluation of the head at many rows; all arrays are on the device. */
typedef struct {
    cuda_queue *c;
    const kern_head *h;
    const char *mod;      /* modulation rows */
    const int *mod_index; /* [rows] modulation row of each row; NULL: its own number */
    int rows;
    float *x;     /* [rows][W] the residual stream */
    float *y;     /* fc1's output [rows][H], SWIGLU [rows][2H], then fc2's [rows][W] */
    float *entry; /* [rows][C] gathered states, or [rows/2][W] the tokens' input projection */
    act *u, *v;   /* [rows][W] and [rows][H] the operands of fc1 and fc2 */
} cuda_evaluation;

/* The residual stream as a pending sum. */
typedef struct {
    const float *from; /* [from_rows][W]; row r reads row r % from_rows */
    int from_rows;     /* rows, or a divisor of it */
    int block;         /* block whose products made y */
    const float *y;    /* [rows][W] addend, before the block's gate; NULL: no addend */
    float *keep;       /* [rows][W] receives the gated y; or NULL */
} cuda_residual;

/* Returns the sum `from` alone. */
static inline cuda_residual cuda_residual_of(const float *from, int from_rows)
{
    return {from, from_rows, 0, NULL, NULL};
}

/* head_rows.cu: y = SiLU(temb[temb_index[s]] + cond[r]) [total][W], s = row / rows, r = row % rows. */
void cuda_head_condition(cuda_queue *c, const kern_head *h, const float *temb, const int *temb_index, int total,
                         const float *cond, int rows, act *y);
/* Computes s, into e->x if there is a y, and prepares the input e->u of block b's fc1. Then s has no addend. */
void cuda_head_norm(const cuda_evaluation *e, cuda_residual *s, int b);
/* out [rows][2C] = the final layer at s. */
void cuda_head_final(const cuda_evaluation *e, const cuda_residual *s, float *out);
/* Packs the final layer's weight, at load, where cuda_head_final has its own kernel. */
mar_status cuda_head_pack_out(cuda_queue *c, const kern_head_spec *spec, kern_head *h, mar_err *err);

/* head.cu: lays out an evaluation's working memory in `scratch`. */
cuda_evaluation cuda_evaluation_in(cuda_queue *c, const kern_head *h, const void *mod, const int *mod_index, int rows,
                                   void *scratch);
/* y [rows][W] = fc1, activation and fc2 of block b at e->u. Overwrites e->y and e->v. */
void cuda_head_products(const cuda_evaluation *e, int b, float *y);
/* head_reuse.cu: out = the head at the residual stream `from` [from_rows][W]; from_rows divides e->rows. kept
 * [depth][stride] as in eval_reusing; NULL with KERN_HEAD_FRESH: nothing is cached. */
void cuda_head_layers(const cuda_evaluation *e, const float *from, int from_rows, kern_head_reuse reuse, float *kept,
                      size_t stride, float *out);
/* head.cu: runs eval with mod_index on the device. Row r reads state r % states of x; `states` is rows or rows/2. */
void cuda_head_eval_at(cuda_queue *c, const kern_head *h, const float *x, int states, const void *mod,
                       const int *mod_index, int rows, float *out, void *scratch);

enum { PERSISTENT_ROWS = 128 }; /* maximum rows of a persistent kernel */

/* persistent_load.cu: packs the weights, and sets h->persistent and h->streamed, the last of h's layers. Leaves the
 * first NULL if a persistent kernel cannot run this head on this device. *how gets the reason, or how the kernel runs:
 * "persistent kernel up to 128 rows, ...". */
mar_status persistent_create(cuda_queue *c, const kern_head_spec *spec, kern_head *h, mar_err *how, mar_err *err);
void persistent_free(kern_device *d, persistent_head *f);
/* The next two take a job whose arrays are all on the device; `last` is 0, and cfg is NULL with one condition. */
/* Runs all steps of a job of at most PERSISTENT_ROWS rows in one launch. job->out is undefined after it. */
void persistent_run(cuda_queue *c, const kern_head *h, const kern_chain_job *job);
/* streamed.cu: makes the form of a head that has all its layers, which must outlive it. Leaves *out NULL if it cannot
 * run this head on this device. streamed_run is as persistent_run, but returns 0 if the job is not its. f may be NULL.
 */
mar_status streamed_create(cuda_queue *c, const kern_head_spec *spec, const kern_head *h, streamed_head **out,
                           mar_err *err);
void streamed_free(kern_device *d, streamed_head *f);
int streamed_run(cuda_queue *c, const streamed_head *f, const kern_chain_job *job);
/* groups.cu: the same for a head with a form in groups and 16 or more rows, in job->scratch, of which it needs
 * groups_scratch_bytes. Returns 0 if the job is not its. f may be NULL. */
int groups_run(cuda_queue *c, const persistent_head *f, const kern_chain_job *job);
size_t groups_scratch_bytes(const persistent_head *f, int rows);
/* groups_speculation.cu: runs all rounds of a call, whose filter proposes. Returns 0 if the call is not its: another
 * form of the head, fewer than 16 rows, or a slot with more than 32. */
int groups_run_speculation(cuda_queue *c, const kern_speculation *w, const kern_speculation_head *target);
/* chain.cu: takes the step of an index, from the head's outputs in job->out. */
void cuda_chain_advance(cuda_queue *c, const kern_chain_job *job, int channels, int index);

#if defined(__CUDACC__) || defined(MAR_CUDAHOST)
/* Draws the noise of a token's step for channels `channel` to `channel` + 3, which share a Philox block. */
static __device__ __forceinline__ void cuda_step_noise(const kern_chain_job &j, int step, int token, int channel,
                                                       float noise[4])
{
    uint32_t words[4];
    kern_random_words(j.seed[token], KERN_NOISE_STEP, j.image[token], (uint32_t)j.position[token], (uint32_t)j.t[step],
                      (uint32_t)channel / 4, words);
    kern_normal4(words, noise);
}
#endif

#endif
