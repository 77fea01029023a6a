/* The denoising chain: draws tokens from the head, with noise by address. */
#ifndef DIFFUSION_CHAIN_H
#define DIFFUSION_CHAIN_H

#include "diffusion/head.h"

/* One of the respacings of a chain: its steps and their time embeddings. */
typedef struct {
    diff_spec spec;
    diff_schedule schedule;
    float *temb; /* backend [schedule.steps][width] */
} diff_respacing;

typedef struct {
    kern_queue *k; /* which the chain runs on; it must outlive the chain */
    const diff_head *head;
    diff_respacing *respacing; /* [respacings] */
    int respacings;
    diff_schedule schedule; /* of the respacing in use, which owns the arrays */
    const float *temb;      /* of the respacing in use, which owns it */
    int max_steps;          /* the most steps of any respacing */
    int *step_index;        /* host [max_steps] 0..max_steps-1: the list of all steps for `modulate` */
    int *step_list;         /* host [max_steps] a list of some steps for `modulate` */
    uint8_t *fine;          /* host [max_steps] steps of the respacing in use that the head evaluates without int8 */
    uint8_t *fine_list;     /* host [max_steps] of step_list */
    int *mod_row;           /* host [max_steps] the first modulation row of a step */
    int max_tokens;         /* the most tokens of a call */
    int conditions;         /* rows a token that there is room for: 2 with guidance, else 1 */
    int guided;             /* whether runs are guided, and so have two rows a token; diff_chain_guide sets it */
    int reuse;              /* set by diff_chain_reuse */
    int mod_rows;           /* modulation rows that `mod` has room for: tokens x conditions x steps of a chunk */
    int *x_index;           /* host [rows] which token's state a row reads */
    float temperature;
    const char *part; /* what the names of its layers begin with (kern_watch): "", or "draft: " of a draft's */
    float *before;    /* host [2][max_tokens][channels] the state before a run that is searched again */
    const kern_chain_coef **coef; /* host [max_tokens] each token's step, for chain_law */
    double *zeros;                /* host [max_tokens] */

    /* Backend memory, from diff_chain_lay_out. */
    float *cond;       /* [rows][width] embedded conditions */
    float *out;        /* [rows][2*channels] the head's output */
    float *x0;         /* [max_tokens][channels] a solver's last x0 */
    float *kept;       /* [depth][rows][width] outputs of the blocks' MLPs; only with reuse */
    float *difference; /* [max_tokens][2*channels] conditional minus unconditional output; only with reuse */
    void *mod;         /* [mod_rows] modulation rows */
    void *scratch;     /* working memory of the head */
} diff_chain;

/* Creates a chain for at most max_tokens tokens a call; `guided` means two conditions a token. Call diff_chain_lay_out
 * before the first run. */
mar_status diff_chain_create(kern_queue *k, const diff_head *head, int steps, float temperature, int max_tokens,
                             int guided, diff_chain *out, mar_err *err);
/* Creates a chain with several respacings, which share all buffers. specs [n] is copied; no two have the same number of
 * steps. The first is in use. */
mar_status diff_chain_create_for(kern_queue *k, const diff_head *head, const diff_spec *specs, int n, float temperature,
                                 int max_tokens, int guided, diff_chain *out, mar_err *err);
/* Makes the chain evaluate the head as LazyMAR's release does (diffloss_cached.py). The head is evaluated in full at
 * the first index of a run and at every seventh index, 0 included. In between, outputs of the blocks' MLPs are reused
 * (kern_head_reuse); in the first tenth of the chain only those of blocks 1 to 4. There the head runs on the
 * conditional rows only, and the difference to the unconditional output is that of the last full evaluation. Call it
 * before diff_chain_lay_out. */
void diff_chain_reuse(diff_chain *c);
/* Lays out the chain's working memory at base, which is backend memory and must outlive the chain. Returns the bytes it
 * takes, a multiple of 256. With base NULL it only counts. */
size_t diff_chain_lay_out(diff_chain *c, char *base);
/* Puts the respacing with spec.steps == steps to use; there must be one. */
void diff_chain_use(diff_chain *c, int steps);
/* From now on runs and plans are guided, or not. At first they are if the chain was created so; only then may they be.
 */
void diff_chain_guide(diff_chain *c, int guided);
void diff_chain_free(diff_chain *c);
/* Prepares for calls with this many tokens in the respacing in use, so that diff_chain_sample allocates nothing. */
mar_status diff_chain_plan(diff_chain *c, int tokens, mar_err *err);

/* What a run records for a verifier; all arrays are in backend memory. */
typedef struct {
    int index;            /* the step whose law is wanted */
    float *mean;          /* [tokens][channels] of the law of the state after that step (kernels/ops.h, chain_law) */
    float *log_std;       /* [tokens][channels] of that law */
    double *path_log_std; /* [tokens] receives the sum of log std over channels and the noisy steps above; or NULL */
} diff_trace;

/* x[tokens][channels] <- samples of the chain, by the official p_sample_loop with clip_denoised=False. x_T and every
 * eps_t come from the addresses of (image, position), both host [tokens]. z is backend float [tokens or
 * 2*tokens][z_dim], conditional rows first, then the unconditional ones if guided. cfg is host [tokens], the guidance
 * scale of each token; it acts on eps only and is unused unless guided. */
void diff_chain_sample(diff_chain *c, const float *z, int tokens, const float *cfg, uint64_t seed,
                       const uint64_t *image, const int *position, float *x);
/* The same from the state x before index `first` to the state after index `last`. trace may be NULL; it must be NULL
 * for a solver. A second-order solver can only continue where its last call with these tokens ended. */
void diff_chain_run(diff_chain *c, const float *z, int tokens, const float *cfg, uint64_t seed, const uint64_t *image,
                    const int *position, int first, int last, float *x, diff_trace *trace);
/* x[tokens][channels] <- x_T of diff_chain_sample. */
void diff_chain_start(diff_chain *c, int tokens, uint64_t seed, const uint64_t *image, const int *position, float *x);

/* Shows the search for layers (kern_watch) the conditions z [rows][z_dim] of a run, which c->cond is made of, and the
 * embeddings. */
void diff_chain_watch(const diff_chain *c, const float *z, int rows);

/* Arithmetic of diff_chain_sample in the respacing in use, 2 per multiply-add. */
double diff_chain_flop(const diff_chain *c, int tokens);

#endif
