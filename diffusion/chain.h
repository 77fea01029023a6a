/* Drawing tokens: the denoising chain on addressed noise. */
#ifndef DIFFUSION_CHAIN_H
#define DIFFUSION_CHAIN_H

#include "diffusion/head.h"

/* One of the step counts of a chain. */
typedef struct {
    diff_spec spec;
    diff_schedule schedule;
    float *temb; /* [schedule.steps][width] */
} diff_respacing;

typedef struct {
    const diff_head *head;
    diff_respacing *respacing; /* [respacings] */
    int respacings;
    diff_schedule schedule; /* of the respacing in use; the arrays are the respacing's */
    const float *temb;      /* likewise */
    int max_steps;          /* of any respacing */
    int *step_index;        /* [max_steps] 0..max_steps-1, for head_modulate of all steps */
    int *step_list;         /* [max_steps] and of some */
    int *mod_row;           /* [max_steps] where a step's modulation rows begin */
    int max_tokens;         /* per call */
    int guided;             /* two rows a token */
    int reuse;              /* as LazyMAR's release does: diff_chain_reuse */
    int mod_rows;           /* modulation rows the buffer holds: tokens x conditions x steps of a chunk */
    int *x_index;           /* host [rows]: which token's state a row reads */
    float temperature;
    const kern_chain_coef **coef; /* host [max_tokens] */
    double *zeros;                /* host [max_tokens] */

    /* backend memory: diff_chain_lay_out */
    float *cond, *out; /* [rows][width], [rows][2*channels] */
    float *x0;         /* [max_tokens][channels] a solver's last x0 */
    float *kept;       /* reuse: [depth][rows][width] what the blocks gave */
    float *difference; /* reuse: [max_tokens][2*channels] conditional minus unconditional output */
    void *mod, *scratch;
} diff_chain;

/* For up to max_tokens tokens a call. `guided`: with guidance, two conditions a token. It runs after
 * diff_chain_lay_out. */
mar_status diff_chain_create(const diff_head *head, int steps, float temperature, int max_tokens, int guided,
                             diff_chain *out, mar_err *err);
/* One that can be run with any of several step counts, which share all buffers; specs [n] is copied, no two with the
 * same number of steps. The first is in use. */
mar_status diff_chain_create_for(const diff_head *head, const diff_spec *specs, int n, float temperature,
                                 int max_tokens, int guided, diff_chain *out, mar_err *err);
/* From now on, evaluates the head as LazyMAR's release does (diffloss_cached.py): in full at the first index of a run
 * and at every seventh, 0 included. In between, what the blocks' MLPs gave is used again (kern_head_reuse), in the
 * first tenth of the chain for blocks 1 to 4 only; the head runs on the conditional rows, whose difference to the
 * unconditional ones is that of the last full evaluation. To be called before diff_chain_lay_out. */
void diff_chain_reuse(diff_chain *c);
/* Gives the chain its working memory in backend memory at base, which must outlive it, and returns the bytes it takes,
 * a multiple of 256; base NULL only counts. */
size_t diff_chain_lay_out(diff_chain *c, char *base);
/* Uses the respacing with spec.steps == steps, which must be there, from now on. */
void diff_chain_use(diff_chain *c, int steps);
void diff_chain_free(diff_chain *c);
/* Prepares for calls with this many tokens in the respacing in use, so that diff_chain_sample allocates nothing. */
mar_status diff_chain_plan(diff_chain *c, int tokens, mar_err *err);

/* What a run leaves behind for a verifier. Backend arrays, [tokens][channels] unless it says another shape. */
typedef struct {
    int index;             /* the step whose law is wanted */
    float *mean, *log_std; /* the law of the state after it (kernels/ops.h, chain_law) */
    double *path_log_std;  /* [tokens] set to: sum of log std over channels and the noisy steps above it; or NULL */
} diff_trace;

/* x[tokens][channels] <- the chain's samples, x_T and every eps_t at the addresses of (image, position).
 * z backend float [tokens or 2*tokens][z_dim], conditional rows first, then (if guided) unconditional ones.
 * image, position: host [tokens]; cfg: host [tokens], a guidance scale each, unused unless guided. Official
 * p_sample_loop with clip_denoised=False; cfg acts on eps only. */
void diff_chain_sample(diff_chain *c, const float *z, int tokens, const float *cfg, uint64_t seed,
                       const uint64_t *image, const int *position, float *x);
/* The same from the state x before index `first` to the state after index `last`. trace may be NULL, and must be for a
 * solver; a solver of second order goes on only from where its last call with these tokens ended. */
void diff_chain_run(diff_chain *c, const float *z, int tokens, const float *cfg, uint64_t seed, const uint64_t *image,
                    const int *position, int first, int last, float *x, diff_trace *trace);
/* x_T of diff_chain_sample. */
void diff_chain_start(diff_chain *c, int tokens, uint64_t seed, const uint64_t *image, const int *position, float *x);

double diff_chain_flop(const diff_chain *c, int tokens); /* 2 per multiply-add */

#endif
