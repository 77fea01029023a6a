/* The diffusion head on the device. kernels/cpu/head.c shows its layers in the official form.
 *
 * There are two ways to evaluate it. Up to PERSISTENT_ROWS rows: a persistent kernel runs the whole chain in one
 * launch, with the weights on chip (persistent.cu). More rows: products by cuBLASLt, and two kernels for the rest of a
 * block (head.cu). */
#ifndef KERNELS_CUDA_HEAD_H
#define KERNELS_CUDA_HEAD_H

#include "kernels/cuda/cuda.h"

extern "C" {
#include "kernels/chain.h"
}

/* persistent_load.cu: the weights as a persistent kernel reads them. */
typedef struct persistent_head persistent_head;

/* Nothing of it changes after its creation: any number of queues may use it at a time. */
struct kern_head {
    int width, depth, channels;
    size_t act_size;
    kern_linear *in; /* [W][C] f32 -> f32 */
    struct kern_head_layers {
        float *ln;        /* device [2][W]: weight, bias */
        kern_linear *fc1; /* [W][W] act -> act, without the silu */
        kern_linear *fc2; /* [W][W] act -> f32 */
    } * block;
    kern_linear *ada_blocks;     /* [depth*3W][W] act -> act, rows of a modulation row */
    kern_linear *ada_final;      /* [2W][W] act -> f32, the end of a modulation row */
    kern_linear *out;            /* [2C][W] f32 -> f32 */
    persistent_head *persistent; /* NULL: no persistent kernel runs this head here: cuda_head_describe */
    mar_err products;            /* without it: what describe says, and why */
};

/* A modulation row: act [depth][3][W] (shift, scale, gate), then float [2][W] (shift, scale of the final layer). */
static inline size_t cuda_mod_final_offset(const kern_head *h)
{
    return 3u * (size_t)h->depth * (size_t)h->width * h->act_size;
}

/* eval with mod_index on the device. Row r reads state r % states of x; `states` is rows or rows/2. */
void cuda_head_eval_at(cuda_queue *c, const kern_head *h, const float *x, int states, const void *mod,
                       const int *mod_index, int rows, float *out, void *scratch);

enum { PERSISTENT_ROWS = 64 }; /* the most rows that a persistent kernel takes */

/* persistent_load.cu: packs the weights. *out is NULL, with MAR_OK, if a persistent kernel cannot run this head on this
 * device; `why` then says why. */
mar_status persistent_create(cuda_queue *c, const kern_head_spec *spec, persistent_head **out, mar_err *why,
                             mar_err *err);
/* How it runs: "persistent kernel for up to 64 rows, ...". */
const char *persistent_form(const persistent_head *f);
void persistent_free(kern_device *d, persistent_head *f);
/* Prepares for persistent kernels with this head on this queue, so that their launches allocate nothing. */
mar_status persistent_plan(cuda_queue *c, const persistent_head *f, mar_err *err);
/* Runs all steps of a job of at most PERSISTENT_ROWS rows in one launch. job->out is undefined after it. */
void persistent_run(cuda_queue *c, const kern_head *h, const kern_chain_job *job);

/* The state of a chain. All arrays are on the device; fields without a comment are as in kern_chain_job. */
typedef struct {
    int tokens, channels;
    float *x, *x0;
    const float *out; /* [tokens or 2*tokens][2C] */
    const float *cfg; /* NULL: one condition */
    uint64_t seed;
    const uint64_t *image;
    const int *position;
} cuda_chain_state;

/* chain.cu: chain_step and chain_ode_step without the staging; coef and t are on the device. */
void cuda_chain_advance(cuda_queue *c, const cuda_chain_state *s, const kern_chain_coef *coef, const int *t);
void cuda_chain_ode_advance(cuda_queue *c, const cuda_chain_state *s, const kern_ode_coef *coef);

#endif
