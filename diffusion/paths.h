/* Whole paths of the denoising chain: drawn from one distribution, and compared with another.
 *
 * A token's path is the chain's states x_T .. x_1. Head and z give it the density N(x_T) prod N(x_{t-1}; mu(x_t),
 * sigma(x_t)). Under either distribution the factors are known Gaussians at the same states. So the log of the ratio of
 * the two densities is a sum over the noisy steps. The path is known, so one batched call of the head gives all terms.
 * kern_head_ops.path_decide decides by the ratio; specdec/path.h proves it exact to plain sampling. */
#ifndef DIFFUSION_PATHS_H
#define DIFFUSION_PATHS_H

#include "diffusion/speculate.h"

typedef struct {
    diff_speculation draws; /* draws the paths; its record of evaluations is the path */
    int stride;             /* floats of a path */
    int most;               /* maximum paths that one call of the head judges */
    int *x_index;           /* host [branches * most * max_steps] state that a row of the head reads */
    int *mod_index;         /* host [branches * most * max_steps] modulation row of a row of the head */

    /* Backend memory, from diff_paths_lay_out. Judging keeps the modulation in the memory of `draws`, idle at that
     * time. */
    float *out;    /* [branches][most][steps][2C] */
    void *scratch; /* of the head, for these rows */
} diff_paths;

/* Warning for the log where the head that verifies paths is in bf16. */
extern const char diff_paths_bf16_warning[];
/* Creates paths of the chain's head, with the chain's noise, guidance and respacings. `window` and `tokens` are as in
 * diff_speculate_create; window 1 draws step by step. The chain must outlive it. Call diff_paths_lay_out before the
 * first draw. */
mar_status diff_paths_create(diff_chain *chain, int window, int tokens, diff_paths *out, mar_err *err);
size_t diff_paths_lay_out(diff_paths *p, char *base); /* as diff_speculate_lay_out */
void diff_paths_free(diff_paths *p);
/* Prepares draws and judgements of this many tokens, each with its own z, in the respacing in use; on a CPU also of
 * fewer tokens, and of tokens that share z. Draws and judgements then allocate nothing. */
mar_status diff_paths_plan(diff_paths *p, int tokens, mar_err *err);

/* Draws tokens as diff_speculate_sample does, x backend [count][C], and their paths, path backend [count][stride] or
 * NULL. Adds to *stats. */
void diff_paths_draw(diff_paths *p, const diff_tokens *tokens, float *x, float *path, diff_speculation_stats *stats);
/* Compares paths, backend [count][stride], drawn from another distribution q, with the distribution p of this head
 * under tokens->z. The paths have the respacing in use. Writes log_ratio backend [count], the log of p(path) / q(path).
 * On a CPU it is exactly 0 if p = q. Writes last backend [count][C], the token that p gives from the last state. Adds
 * batched calls, evaluations, modulations, sources and arithmetic to *stats. seed, image, position and draft_z are not
 * read. */
void diff_paths_judge(diff_paths *p, const diff_tokens *tokens, const float *path, double *log_ratio, float *last,
                      diff_speculation_stats *stats);

#endif
