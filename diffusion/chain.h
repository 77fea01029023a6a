/* Drawing tokens: the denoising chain on addressed noise. */
#ifndef DIFFUSION_CHAIN_H
#define DIFFUSION_CHAIN_H

#include "diffusion/head.h"

typedef struct {
    const diff_head *head;
    diff_schedule schedule;
    float *temb;       /* [steps][width] */
    int *step_index;   /* [steps] 0..steps-1, for head_modulate */
    int max_tokens;    /* per call */
    int guided;        /* two rows a token */
    int mod_rows;      /* modulation rows the buffer holds: tokens x conditions x steps of a chunk */
    float *cond, *out; /* [rows][width], [rows][2*channels] */
    void *mod, *scratch;
    int *x_index; /* host [rows]: which token's state a row reads */
} diff_chain;

/* Working memory for up to max_tokens tokens a call. `guided`: with guidance, two conditions a token. */
mar_status diff_chain_create(const diff_head *head, int steps, float temperature, int max_tokens, int guided,
                             diff_chain *out, mar_err *err);
void diff_chain_free(diff_chain *c);
size_t diff_chain_bytes(const diff_chain *c);
/* Prepares for calls with this many tokens, so that diff_chain_sample allocates nothing. */
mar_status diff_chain_plan(diff_chain *c, int tokens, mar_err *err);

/* x[tokens][channels] <- the chain's samples, x_T and every eps_t at the addresses of (image, position).
 * z backend float [tokens or 2*tokens][z_dim], conditional rows first, then (if guided) unconditional ones.
 * image, position: host [tokens]. Official p_sample_loop with clip_denoised=False; cfg acts on eps only. */
void diff_chain_sample(diff_chain *c, const float *z, int tokens, float cfg, uint64_t seed, const uint64_t *image,
                       const int *position, float *x);
/* The same from given x_T (in x) and index `first` downwards: for tests and for chains that start lower. */
void diff_chain_run(diff_chain *c, const float *z, int tokens, float cfg, uint64_t seed, const uint64_t *image,
                    const int *position, int first, float *x);

double diff_chain_flop(const diff_chain *c, int tokens); /* 2 per multiply-add */

#endif
