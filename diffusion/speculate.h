/* Speculation inside the head: the denoising chain with fewer sequential evaluations, without loss (De Bortoli,
 * Galashov, Gretton and Doucet, "Accelerated Diffusion Models via Speculative Sampling", 2025).
 *
 * Each token is at its own step index i, and its state x_i is known. The window is the number of transitions that one
 * round can decide. A round does three things, for all tokens at once:
 *   1. It proposes the states after the transitions i, i-1, ..., window - 1 of them, from distributions q that cost
 * nothing.
 *   2. It evaluates the head at x_i and at the proposals in one call. That gives the distributions p of `window`
 * transitions.
 *   3. It verifies the proposals from the top down. A draw from Norm[p - q]+ replaces the first rejected one and ends
 *      the round. It keeps the proposal's noise but for one direction (kernels/residual.h), so the evaluations at the
 *      dropped proposals below stay near. If all are accepted, the last transition is drawn from p itself, known
 *      then.
 * The tokens have the plain chain's law for any window and any q. With window 1 on a CPU they have its bits.
 *
 * The proposal law q. An evaluation at index s predicts that the clean token is m, given x_s. Assume that the token
 * given its condition is Gaussian with variance V at s. Then a filter extrapolates the prediction to x_k, k <= s:
 *     m_k = (m + V (y_k - y_s)) / (1 + V (snr_k - snr_s)),   y = snr x / sqrt(abar),   snr = abar / (1 - abar).
 * It follows the proposed state and so the noise. V = r / (1 + snr_s): the variance of a unit Gaussian times a ratio r
 * per channel, since tokens are scaled to unit variance. r is learned from the predictions' changes along the chain so
 * far. Where tokens have a fixed norm (SphereAR), the prediction's move from m loses its radial part. The filter uses
 * the token's latest evaluation at index k itself. An earlier round made it at a proposal that was later dropped; SJD
 * keeps the tail of its drafts likewise. If there is none, it uses the evaluation at the lowest index. Before the first
 * evaluation, m = 0 at snr 0. The variance fraction is that of the same evaluation. With a
 * draft model, q is the law of the draft's head, evaluated at each proposal in turn.
 *
 * Why this is exact to the plain chain. A proposal of transition k is drawn with eps_k, the plain chain's own noise. If
 * the round ends above k, the proposal is dropped and eps_k is used again later. Let F_k be all noise of the
 * transitions above k: x_T and, for j > k, eps_j, the uniforms of j's verification, and its residual's candidates.
 *   - q_k is made of evaluations at states of indices >= k. Such a state depends on noise of transitions above it only,
 *     hence on F_k. Evaluations at lower indices depend on eps_k, so they must never enter q_k.
 *   - The ends of the rounds above k depend on F_k alone. So does r, because it is learned on the way down.
 * Each transition k is decided once. By induction, three things are functions of F_k: (x_k, q_k, p_k) of the round that
 * decides it, and whether k is that round's last transition. eps_k and k's uniforms and candidates are independent of
 * F_k. So x_{k-1}, by the verifier's rule or drawn with eps_k itself, is a draw from p_k given F_k. The rule may make
 * the replacement of a rejected proposal from that proposal, hence from eps_k: it uses no noise of another transition.
 *
 * The windows may be chosen. Let the window of each round be a function of F_k, where k is the round's first
 * transition, and of anything independent of all noise from k on. The induction stands: which states have been
 * evaluated so far, and where the rounds above k end, are functions of F_k still, hence also q_k and r, and whether k
 * is its round's last transition. Two choices are made here (mar/accel/head_spec.c, specdec/choice.h):
 *   - A draw's windows, by the verdicts of the image's earlier draws. Their noise has other addresses.
 *   - The end of a window within a draw (kern_speculation_window), by the rounds of this token and the transitions that
 *     they decided: functions of F_k.
 * A choice must not depend on the noise from k on, nor on evaluations at indices below k, which dropped proposals left.
 * If transition k has a proposal only where eps_k is negative, then x_{k-1} is no draw from p_k: the residual makes up
 * for a proposal drawn from all of q_k. tests/diffusion/test_speculate.c has a choice by an adversary within the rules,
 * and this one, whose distribution it finds wrong.
 */
#ifndef DIFFUSION_SPECULATE_H
#define DIFFUSION_SPECULATE_H

#include "diffusion/chain.h"
#include "kernels/speculation.h"
#include "mar_measure.h"

/* A head that is evaluated at many states. */
typedef struct {
    diff_chain *chain; /* the head, its embedded z and time embeddings; NULL: no draft */
    float *cond; /* backend [branches][sources][width] embedded z of a group that has not all of a call's sources */
    kern_speculation_head at;
} diff_evaluator;

typedef struct {
    diff_evaluator target, draft;
    kern_speculation w;              /* the backend's state; w.window is 0 before diff_speculate_create */
    const kern_chain_coef *schedule; /* the respacing whose tables are on the backend */
    int sources;                     /* maximum sources whose modulation fits */
    uint64_t *packed;                /* host working memory: a group's arrays w.seed .. w.cfg, one after the other */
    int window;                      /* maximum window: that of tokens without a limit */
    int has_limits;                  /* 1: calls may have limits, and are planned for; set after creation */
    kern_speculation_limit *limit;   /* backend [group] */
} diff_speculation;

typedef struct {
    long tokens;
    long sources;           /* distinct z of these tokens */
    long calls;             /* sequential calls of the target's head, summed over tokens; a plain chain makes `steps` */
    int calls_max;          /* maximum calls of a token */
    long batched;           /* calls of the target's head, each for all tokens of a group */
    long draft_batched;     /* calls of the draft's head, each for all tokens of a group */
    long modulations;       /* (source, step) pairs whose modulation was computed, of each model */
    long evaluations;       /* states at which the target's head was evaluated */
    long draft_evaluations; /* states at which the draft's head was evaluated */
    long accepted;          /* proposals */
    long rejected;          /* proposals */
    long tries;             /* candidates for the replacements of rejected proposals */
    double flop;            /* arithmetic of all this, 2 per multiply-add */
} diff_speculation_stats;

/* Creates speculation for the chain `target`. The head of the chain `draft` proposes, or the filter if draft is NULL.
 * Both chains must outlive it. Their respacing and guidance (diff_chain_use, diff_chain_guide) may change between
 * calls, in both alike. At temperature 0 there is no noise to guess with, so window counts as 1. `tokens` is the
 * maximum that go through the chain together, for calls whose tokens share sources; 0: the target's max_tokens, or what
 * fits. Call diff_speculate_lay_out before the first run. Returns MAR_EARG if window is not positive, the sampler is
 * a solver, or the chains differ in channels, guidance, tokens or steps. */
mar_status diff_speculate_create(diff_chain *target, diff_chain *draft, int window, int tokens, diff_speculation *out,
                                 mar_err *err);
/* Lays out the working memory at base, backend memory that must outlive s. Returns its bytes, a multiple of 256. With
 * base NULL it only counts. */
size_t diff_speculate_lay_out(diff_speculation *s, char *base);
void diff_speculate_free(diff_speculation *s);
/* Prepares for calls with this many tokens of this many sources in the respacing in use, on a CPU also with fewer.
 * diff_speculate_sample then allocates nothing. */
mar_status diff_speculate_plan(diff_speculation *s, int tokens, int sources, mar_err *err);

/* The rounds of a token. */
typedef struct {
    int rounds;   /* with and without proposals */
    int wide;     /* with proposals */
    int rejected; /* in which a proposal was rejected */
} diff_tally;

/* The tokens of one call. A source is a z with its modulation, computed once. Several tokens may share one, as
 * candidates for one token do. */
typedef struct {
    int count;   /* tokens */
    int sources; /* sources, at most the chain's max_tokens */
    /* Host [count] source of each token, 0..sources-1, not decreasing; NULL: token i has source i, and sources is
     * count. */
    const int *source;
    const float *z;        /* backend [branches][sources][z_dim] */
    const float *draft_z;  /* the draft's z of the same tokens; unused without a draft */
    const float *cfg;      /* host [count]; unused without guidance */
    const uint64_t *seed;  /* host [count], of the noise addresses */
    const uint64_t *image; /* host [count], of the noise addresses */
    const int *position;   /* host [count], of the noise addresses */
    const int *slot;       /* host [count] the image's place in its session; read by mar/accel only */
    /* Host [count] windows by token; NULL: all have that of the speculation. With limits, host [count] of tallies. */
    const kern_speculation_limit *limit;
    diff_tally *tally;
} diff_tokens;

/* Returns the source of token i. */
int diff_tokens_source(const diff_tokens *t, int i);
/* Returns how many tokens from `first` on fit in a group: at most `most`, of at most `sources` sources. */
int diff_tokens_from(const diff_tokens *t, int first, int most, int sources);

/* Draws tokens x backend [count][C] with the law of diff_chain_sample; with window 1 on a CPU with its bits. path is
 * backend [count][(max_steps + 1) * KERN_EVALUATED * C], or NULL. It receives the entries of kern_speculation.evaluated
 * by step index: the token's states and the head's prediction at each. Adds to *stats. */
void diff_speculate_sample(diff_speculation *s, const diff_tokens *tokens, float *x, float *path,
                           diff_speculation_stats *stats);

/* For measurements: prepares rounds of `tokens` tokens, at most the group, whose chain is the last `window` steps of
 * the one in use, at most the window of s. No tokens are in progress. */
void diff_speculate_rehearse(diff_speculation *s, int tokens, int window);
/* Puts them at the top of that chain, and waits for it. */
void diff_speculate_restart(diff_speculation *s);
/* Takes one round, which evaluates `window` states of each token, and waits for it. With window 1 it is a step of the
 * plain chain. */
void diff_speculate_round(diff_speculation *s);

/* Adds calls, states and proposals to a session's statistics. */
void diff_speculate_add_stats(const diff_speculation_stats *s, mar_stats *to);

/* Parts that diffusion/paths.h shares: evaluations of one model's head at many states of tokens with `sources` sources.
 * Embeds the z [branches][sources][z_dim] of all sources of a call. */
void diff_speculate_embed(const diff_speculation *s, const diff_evaluator *e, const float *z, int sources);
/* Computes the modulation e->at.mod [steps][branches][n] of all steps of the sources first .. first+n-1, at most
 * s->sources, of all `sources` embedded. */
void diff_speculate_modulate(const diff_speculation *s, const diff_evaluator *e, int sources, int first, int n);
/* Adds to stats->flop the arithmetic of the work that stats counts beyond `before`. */
void diff_speculate_count_flop(const diff_speculation *s, const diff_speculation_stats *before,
                               diff_speculation_stats *stats);

#endif
