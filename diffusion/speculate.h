/* Lossless speculation inside the head: the denoising chain with fewer sequential evaluations (De Bortoli, Galashov,
 * Gretton and Doucet, "Accelerated Diffusion Models via Speculative Sampling", 2025).
 *
 * A round, for every token at its own step index i, x_i known:
 *   1. propose the states behind the transitions i, i-1, ... from laws q that cost nothing, window - 1 of them;
 *   2. evaluate the head at x_i and at the proposals, all tokens in one call: the laws p of `window` transitions;
 *   3. walk down: verify each proposal; the first rejected one is replaced by a draw from Norm[p - q]+ and ends the
 *      round. If all are accepted, the last transition, of which p is known, is drawn from p itself.
 * The tokens' law is the plain chain's for any window and any q; with window 1 on a CPU their bits are.
 *
 * What q is. An evaluation at index s said that the clean token is m, given x_s. As if the token were Gaussian given
 * its condition, with variance V at s, a filter turns that into what the head would say of x_k, k <= s:
 *   m_k = (m + V (y_k - y_s)) / (1 + V (snr_k - snr_s)),   y = snr x / sqrt(abar),   snr = abar / (1 - abar),
 * which follows the proposed state and so the noise. V = r / (1 + snr_s): that of a unit Gaussian, as tokens are scaled
 * to be, times a ratio r per channel learned from how the head's answers moved along the chain so far. The evaluation
 * used is the token's latest at index k itself, made in an earlier round at a proposal that came to nothing (as SJD
 * keeps the tail of its drafts), else the lowest there is; before the first, m = 0 at snr 0. The variance fraction is
 * taken over from there. With a draft model, q is the law of its head, evaluated at each proposal in turn.
 *
 * Why that is exact. A proposal of transition k is drawn with eps_k, the plain chain's own noise, and that of a round
 * that ended above k is forgotten and eps_k used again. Call F_k all noise of the transitions above k: x_T and, for
 * j > k, eps_j, the uniform of j's verification, its residual's candidates. q_k is made of evaluations at states of
 * indices >= k, and such a state depends on noise of transitions above it only, hence on F_k: evaluations at lower
 * indices, which know eps_k, must never enter q_k. How far the rounds above got depends on F_k, too, as does r, learned
 * on the way down. So by induction (x_k, q_k, p_k) of the round that decides transition k, which happens once, and
 * whether it is the window's last, are functions of F_k; eps_k and k's uniform and candidates are independent of it,
 * and x_{k-1}, by the verifier's rule or drawn with eps_k itself, is a draw from p_k given F_k. */
#ifndef DIFFUSION_SPECULATE_H
#define DIFFUSION_SPECULATE_H

#include "diffusion/chain.h"
#include "kernels/speculation.h"

/* A head that is evaluated at many states. */
typedef struct {
    diff_chain *chain; /* the head, its conditions and step embeddings; NULL: no draft */
    kern_speculation_head at;
} diff_evaluator;

typedef struct {
    diff_evaluator target, draft;
    kern_speculation w;              /* w.group tokens go through the chain together; w.window 0: none was created */
    const kern_chain_coef *schedule; /* the respacing whose tables are on the backend */
    float *table;                    /* host [max_steps+1] */
} diff_speculation;

typedef struct {
    long tokens;
    long calls;         /* sequential calls of the target's head, summed over tokens; the plain chain's: steps each */
    int calls_max;      /* of one token */
    long batched;       /* calls of the target's head, each for all tokens of a group */
    long draft_batched; /* of the draft's */
    long modulations;   /* (token, step) pairs, of each model */
    long evaluations;   /* states at which the target's head was evaluated */
    long draft_evaluations; /* the draft's */
    long accepted, rejected;
    long tries;  /* candidates for the replacements of the rejected */
    double flop; /* arithmetic, 2 per multiply-add */
} diff_speculation_stats;

/* For the tokens of `target`'s calls; both chains must outlive it. draft: the chain whose head proposes, or NULL. The
 * respacing in use (diff_chain_use) may change between calls, in both chains alike. At temperature 0 there is no noise
 * in which a guess could be right, and window counts as 1. It runs after diff_speculate_lay_out. MAR_EARG if window is
 * not positive, the sampler is not DDPM or the chains do not go together. */
mar_status diff_speculate_create(diff_chain *target, diff_chain *draft, int window, diff_speculation *out,
                                 mar_err *err);
/* Gives it its working memory in backend memory at base, which must outlive it, and returns the bytes it takes, a
 * multiple of 256; base NULL only counts. */
size_t diff_speculate_lay_out(diff_speculation *s, char *base);
void diff_speculate_free(diff_speculation *s);
/* Prepares for calls with this many tokens in the respacing in use, so that diff_speculate_sample allocates nothing. */
mar_status diff_speculate_plan(diff_speculation *s, int tokens, mar_err *err);

/* As diff_chain_sample, in law; with window 1 on a CPU in bits. draft_z: the draft's conditions of the same tokens, if
 * it has a draft. Adds to *stats. */
void diff_speculate_sample(diff_speculation *s, const float *z, const float *draft_z, int tokens, const float *cfg,
                           uint64_t seed, const uint64_t *image, const int *position, float *x,
                           diff_speculation_stats *stats);

#endif
