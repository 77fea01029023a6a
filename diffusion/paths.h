/* Whole paths of the denoising chain: drawn from one law, with all that is needed to compare them with another.
 *
 * A token's path is the chain's states x_T .. x_1. Under a law, given by the head and its condition, it has the density
 * N(x_T) prod N(x_{t-1}; mu(x_t), sigma(x_t)). Both laws' factors are known Gaussians at the same states. So the log of
 * the ratio of two densities is a sum over the noisy steps, and since the path is known, one batched call of the head
 * gives all its terms. What is made of the ratio is kern_head_ops.path_decide; mar/ways/path.h says why it is exact. */
#ifndef DIFFUSION_PATHS_H
#define DIFFUSION_PATHS_H

#include "diffusion/speculate.h"

typedef struct {
    diff_speculation draws; /* which draws paths, and whose record of evaluations is the path */
    int stride;             /* floats of a path */
    int most;               /* paths that one call of the head judges, at most */
    int *x_index;           /* host [conditions * most * max_steps] the state that a row of the head reads */
    int *mod_index;         /* host [conditions * most * max_steps] its modulation row */

    /* Backend memory: diff_paths_lay_out. The modulation is in the memory of `draws`, which has none meanwhile. */
    float *out;    /* [conditions][most][steps][2C] */
    void *scratch; /* of the head, for these rows */
} diff_paths;

/* Creates paths of the chain's head, with the chain's noise, guidance and respacings; `window` and `tokens` as in
 * diff_speculate_create, window 1: step by step. The chain must outlive it. Call diff_paths_lay_out before the first
 * draw. */
mar_status diff_paths_create(diff_chain *chain, int window, int tokens, diff_paths *out, mar_err *err);
size_t diff_paths_lay_out(diff_paths *p, char *base); /* as diff_speculate_lay_out */
void diff_paths_free(diff_paths *p);
/* Prepares draws of so many tokens and judgements of so many paths, each with conditions of its own, in the respacing
 * in use, so that they allocate nothing. Either may be 0. Products of other numbers of rows are prepared when they
 * come, so they must not be in a recording. */
mar_status diff_paths_plan(diff_paths *p, int drawn, int judged, mar_err *err);

/* Draws tokens as diff_speculate_sample does, and their paths: x backend [count][C], path backend [count][stride], or
 * NULL. Adds to *stats. */
void diff_paths_draw(diff_paths *p, const diff_tokens *tokens, float *x, float *path, diff_speculation_stats *stats);
/* Compares paths, backend [count][stride], drawn from another law, with the law of this head under tokens->z; seed,
 * image, position and draft_z are not read. The paths have the respacing in use. log_ratio backend [count]: log of
 * (density under this law / density under the law that drew it). On a CPU it is exactly 0 if the laws are the same.
 * last backend [count][C]: the token this law would make of the last state. Adds batched calls, evaluations,
 * modulations, sources and arithmetic to *stats. */
void diff_paths_judge(diff_paths *p, const diff_tokens *tokens, const float *path, double *log_ratio, float *last,
                      diff_speculation_stats *stats);

#endif
