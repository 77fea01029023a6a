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
    float temperature;
    const kern_chain_coef **coef; /* host [max_tokens] */
    float *host_law;              /* host [max_tokens][channels] */
} diff_chain;

/* Working memory for up to max_tokens tokens a call. `guided`: with guidance, two conditions a token. */
mar_status diff_chain_create(const diff_head *head, int steps, float temperature, int max_tokens, int guided,
                             diff_chain *out, mar_err *err);
void diff_chain_free(diff_chain *c);
size_t diff_chain_bytes(const diff_chain *c);
/* Prepares for calls with this many tokens, so that diff_chain_sample allocates nothing. */
mar_status diff_chain_plan(diff_chain *c, int tokens, mar_err *err);

/* What a run leaves behind for a verifier. Backend arrays [tokens][channels]. */
typedef struct {
    int index;             /* the step whose law is wanted */
    float *mean, *log_std; /* the law of the state after it (kernels/ops.h, chain_law) */
    double *path_log_std;  /* host [tokens]: sum of log std over the channels of the noisy steps above it, or NULL */
} diff_trace;

/* x[tokens][channels] <- the chain's samples, x_T and every eps_t at the addresses of (image, position).
 * z backend float [tokens or 2*tokens][z_dim], conditional rows first, then (if guided) unconditional ones.
 * image, position: host [tokens]; cfg: host [tokens], a guidance scale each, unused unless guided. Official
 * p_sample_loop with clip_denoised=False; cfg acts on eps only. */
void diff_chain_sample(diff_chain *c, const float *z, int tokens, const float *cfg, uint64_t seed,
                       const uint64_t *image, const int *position, float *x);
/* The same from the state x before index `first` to the state after index `last`. trace may be NULL. */
void diff_chain_run(diff_chain *c, const float *z, int tokens, const float *cfg, uint64_t seed, const uint64_t *image,
                    const int *position, int first, int last, float *x, diff_trace *trace);
/* x_T of diff_chain_sample. */
void diff_chain_start(diff_chain *c, int tokens, uint64_t seed, const uint64_t *image, const int *position, float *x);

double diff_chain_flop(const diff_chain *c, int tokens); /* 2 per multiply-add */

#endif
