/* The denoising chain: draws tokens from the head, with noise by address. */
#ifndef DIFFUSION_CHAIN_H
#define DIFFUSION_CHAIN_H

#include "diffusion/head.h"

/* A respacing of the chain: its timesteps and their embeddings. */
typedef struct {
    diff_spec spec;
    diff_schedule schedule;
    float *temb; /* backend [schedule.steps][width] */
} diff_respacing;

typedef struct {
    kern_queue *k; /* queue of the chain; it must outlive the chain */
    const diff_head *head;
    diff_respacing *respacing; /* [respacings] */
    int respacings;
    diff_schedule schedule; /* of the respacing in use, the owner of the arrays */
    const float *temb;      /* of the respacing in use, its owner */
    int max_steps;          /* maximum steps of a respacing */
    int *step_index;        /* host [max_steps] 0..max_steps-1: list of all steps for `modulate` */
    int *step_list;         /* host [max_steps] list of some steps for `modulate` */
    uint8_t *fine;          /* host [max_steps] 1: the head evaluates the step of the respacing in use without int8 */
    uint8_t *fine_list;     /* host [max_steps] `fine` of the steps of step_list */
    int *mod_row;           /* host [max_steps] first modulation row of a step */
    int max_tokens;         /* maximum tokens of a call */
    int cfg_branches;       /* rows a token that the buffers hold: 2 with guidance, else 1 */
    int guided;             /* whether runs are guided and have two rows a token; set by diff_chain_guide */
    int reuse;              /* set by diff_chain_reuse */
    int mod_rows;           /* rows of `mod`: tokens x branches x steps of a chunk */
    int *x_index;           /* host [rows] token whose state a row reads */
    float temperature;
    const char *part; /* prefix of its layers' names (kern_watch): "", or "draft: " for a draft's chain */
    float *before;    /* host [2][max_tokens][channels] x and x0 before a run that is searched for a non-finite layer */
    const kern_chain_coef **coef; /* host [max_tokens] each token's step, for chain_gaussian */
    double *zeros;                /* host [max_tokens] zeros */

    /* Backend memory, from diff_chain_lay_out. */
    float *cond;       /* [rows][width] embedded z */
    float *out;        /* [rows][2*channels] the head's output */
    float *x0;         /* [max_tokens][channels] a solver's last x0 */
    float *kept;       /* [depth][rows][width] outputs of the blocks' MLPs; only with reuse */
    float *difference; /* [max_tokens][2*channels] conditional minus unconditional output; only with reuse */
    void *mod;         /* [mod_rows] modulation rows */
    void *scratch;     /* working memory of the head */
} diff_chain;

/* Creates a chain for at most max_tokens tokens a call, with two rows a token if `guided`. k and head must outlive it.
 * Call diff_chain_lay_out before the first run. Returns MAR_EARG if steps or temperature is out of range. */
mar_status diff_chain_create(kern_queue *k, const diff_head *head, int steps, float temperature, int max_tokens,
                             int guided, diff_chain *out, mar_err *err);
/* Creates a chain with several respacings that share all buffers. specs [n] is copied; no two have the same number of
 * steps. The first is in use. */
mar_status diff_chain_create_for(kern_queue *k, const diff_head *head, const diff_spec *specs, int n, float temperature,
                                 int max_tokens, int guided, diff_chain *out, mar_err *err);
/* Makes the chain evaluate the head as LazyMAR's release does (diffloss_cached.py). Call it before diff_chain_lay_out.
 * The head is evaluated in full at the first index of a run and at every seventh index, 0 included. In between, outputs
 * of the blocks' MLPs are reused (kern_head_reuse). In the first tenth of the chain only those of blocks 1 to 4 are. At
 * these indices only conditional rows are evaluated. Their difference to the unconditional output is that of the last
 * full evaluation. */
void diff_chain_reuse(diff_chain *c);
/* Lays out the chain's working memory at base, backend memory that must outlive the chain. Returns its bytes, a
 * multiple of 256. With base NULL it only counts. */
size_t diff_chain_lay_out(diff_chain *c, char *base);
/* Switches to the respacing with spec.steps == steps. One must exist. */
void diff_chain_use(diff_chain *c, int steps);
/* Turns the guidance of later runs and plans on or off. Only a chain created as guided may be guided; it is at
 * first. */
void diff_chain_guide(diff_chain *c, int guided);
void diff_chain_free(diff_chain *c);
/* Prepares for calls with this many tokens in the respacing in use, on a CPU also with fewer. diff_chain_sample then
 * allocates nothing. */
mar_status diff_chain_plan(diff_chain *c, int tokens, mar_err *err);

/* Output of a run for a verifier. All arrays are backend memory. */
typedef struct {
    int index;            /* step whose distribution is recorded */
    float *mean;          /* [tokens][channels] mean of the state after that step (kernels/ops.h, chain_gaussian) */
    float *log_std;       /* [tokens][channels] log standard deviation of that state */
    double *path_log_std; /* [tokens] sum of the log std over channels and the noisy steps above; may be NULL */
} diff_trace;

/* Draws x [tokens][channels] from the chain: MAR's official p_sample_loop with clip_denoised=False, or SphereAR's
 * euler_maruyama. x_T and every eps_t
 * come from the addresses of (seed, image, position), each host [tokens]. z is backend float [tokens or
 * 2*tokens][z_dim]: conditional rows, then the unconditional ones if guided. cfg is host [tokens], the guidance scale
 * of each token; it acts on the prediction only and is unused unless guided. */
void diff_chain_sample(diff_chain *c, const float *z, int tokens, const float *cfg, const uint64_t *seed,
                       const uint64_t *image, const int *position, float *x);
/* Runs the chain from the state x before index `first` to the state after index `last`. trace may be NULL, and must be
 * for a solver. A second-order solver can only continue where its last call with these tokens ended. */
void diff_chain_run(diff_chain *c, const float *z, int tokens, const float *cfg, const uint64_t *seed,
                    const uint64_t *image, const int *position, int first, int last, float *x, diff_trace *trace);
/* For measurements: prepares the chain's last step for tokens of any z. */
void diff_chain_rehearse(diff_chain *c, int tokens);
/* Takes it from the state x; `seed` is also that of the image. */
void diff_chain_take_last(diff_chain *c, int tokens, const float *cfg, const uint64_t *seed, const int *position,
                          float *x);
/* Draws the x_T of diff_chain_sample into x [tokens][channels]. */
void diff_chain_start(diff_chain *c, int tokens, const uint64_t *seed, const uint64_t *image, const int *position,
                      float *x);

/* Shows the search for a non-finite layer (kern_watch) a run's z [rows][z_dim], its embedding c->cond, and the time
 * embeddings. */
void diff_chain_watch(const diff_chain *c, const float *z, int rows);

/* Returns the arithmetic of diff_chain_sample in the respacing in use, 2 per multiply-add. */
double diff_chain_flop(const diff_chain *c, int tokens);

#endif
