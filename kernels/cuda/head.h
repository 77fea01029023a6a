/* The diffusion head on the device; in the official form, see kernels/cpu/head.c.
 *
 * Two ways to evaluate it. Many rows: products by cuBLASLt, the rest of a block in two kernels (head.cu). A few: one
 * persistent launch for a whole chain, with the weights on chip (persistent.cu). */
#ifndef KERNELS_CUDA_HEAD_H
#define KERNELS_CUDA_HEAD_H

#include "kernels/cuda/cuda.h"

extern "C" {
#include "kernels/chain.h"
}

typedef struct persistent_head
    persistent_head; /* persistent.cu: the weights as the persistent kernel reads them, and its memory */

struct kern_head {
    int width, depth, channels;
    size_t act_size;
    kern_linear *in; /* [W][C] f32 -> f32 */
    struct kern_head_layers {
        float *ln;              /* device [2][W]: weight, bias */
        kern_linear *fc1, *fc2; /* act -> act without the silu; act -> f32 */
    } * block;
    kern_linear *ada_blocks;     /* [depth*3W][W] act -> act, rows of a modulation row */
    kern_linear *ada_final;      /* [2W][W] act -> f32, the end of a modulation row */
    kern_linear *out;            /* [2C][W] f32 -> f32 */
    persistent_head *persistent; /* NULL: the persistent kernel does not take this head (f32, odd shapes) */
};

/* A modulation row: act [depth][3][W] (shift, scale, gate), then float [2][W] (shift, scale of the final layer). */
static inline size_t cuda_mod_final_offset(const kern_head *h)
{
    return 3u * (size_t)h->depth * (size_t)h->width * h->act_size;
}

/* head_eval of rows whose lists are on the device: row r reads state r % states of x, which is all or half of them. */
void cuda_head_eval_at(cuda_kern *c, const kern_head *h, const float *x, int states, const void *mod,
                       const int *mod_index, int rows, float *out, void *scratch);

enum { PERSISTENT_ROWS = 64 }; /* rows the persistent kernel takes */

/* *out NULL if the persistent kernel does not take heads of this shape or this device; that is no failure. */
mar_status persistent_create(cuda_kern *c, const kern_head_spec *spec, persistent_head **out, mar_err *err);
void persistent_free(cuda_kern *c, persistent_head *f);
/* The job's steps in one launch; its rows are at most PERSISTENT_ROWS. Leaves job->out undefined. */
void persistent_run(cuda_kern *c, const kern_head *h, const kern_chain_job *job);

/* The state of a chain, all arrays on the device; meanings as in kern_chain_job. */
typedef struct {
    int tokens, channels;
    float *x, *x0;
    const float *out; /* [tokens or 2*tokens][2C] */
    const float *cfg; /* NULL: one condition */
    uint64_t seed;
    const uint64_t *image;
    const int *position;
} cuda_chain_state;

/* chain.cu: chain_step and chain_ode_step behind their staging; coef and t are on the device. */
void cuda_chain_advance(cuda_kern *c, const cuda_chain_state *s, const kern_chain_coef *coef, const int *t);
void cuda_chain_ode_advance(cuda_kern *c, const cuda_chain_state *s, const kern_ode_coef *coef);

#endif
