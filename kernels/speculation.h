/* Speculation inside the head, as backends do it: the state of the tokens that go through the chain together, and the
 * formulas of both backends, by channel. What a round is, what q is and why it is exact: diffusion/speculate.h.
 *
 * In a round each unfinished token has a slot, and a slot has rows: the state x_i the token is in, at its index i, and
 * behind it the proposals for the indices i-1, i-2, ... A row's p and q are the laws of the transition from its state:
 * q is what the next row was drawn from. */
#ifndef KERNELS_SPECULATION_H
#define KERNELS_SPECULATION_H

#include "kernels/chain.h"
#include "kernels/gaussian.h"

/* Statistics of the tokens since speculate_start. */
typedef struct {
    unsigned long long rounds;
    unsigned long long calls;                          /* rounds of a token, summed over tokens */
    unsigned long long calls_max;                      /* of one token */
    unsigned long long evaluations, draft_evaluations; /* states */
    unsigned long long accepted, rejected;
    unsigned long long tries; /* candidates for the replacements of the rejected */
} kern_speculation_count;

enum { KERN_SEEN_STATE, KERN_SEEN_X0, KERN_SEEN_FRACTION, KERN_SEEN };            /* of kern_speculation.seen */
enum { KERN_SECANT_RATIO, KERN_SECANT_PRODUCT, KERN_SECANT_SQUARE, KERN_SECANT }; /* of kern_speculation.secant */

/* All arrays are the backend's. C = channels, G = group, S = max_steps, R = group * window. */
struct kern_speculation {
    int group, window, conditions, channels, max_steps;
    int tokens, steps;       /* of the call: at most group and max_steps */
    int rounds, slots, rows; /* the backend's own: rounds begun, slots of this one, and its rows */
    kern_gaussian_rule rule; /* conditional: exact given the context, here all noise above */
    float log_temperature;
    uint64_t seed;

    kern_chain_coef *coef; /* [S] */
    int *t;                /* [S] the noise address's step */
    float *snr, *gain;     /* [S+1] abar / (1 - abar); y = gain * x. 0 at `steps` */
    uint64_t *image;       /* [G] */
    int *position;         /* [G] */
    float *cfg;            /* [G], read with two conditions */

    float *token;                /* [G][C] where each token is, in the end the sample */
    int *index, *lowest, *calls; /* [G] its step index, -1 in the end; lowest index evaluated; rounds */
    float *noise;                /* [S][G][C] eps of every transition */
    float *seen;   /* [G][S+1][3][C] evaluations by token and index: state, x0, variance fraction. Entry `steps` is what
                    * is known before the first one */
    float *secant; /* [G][3][C] r, and the two sums it is the quotient of */

    int *slot_token, *slot_row;            /* [G] a slot's token, and its first row */
    int *row_token, *row_index, *row_list; /* [R] a row's token and step index; rows to evaluate */
    int *x_index, *mod_index;              /* [conditions * R] what the head is evaluated at */
    int *draft_index;                      /* [window][conditions][slots] a GPU's: mod_index level by level */
    int *left;                             /* [2] a GPU's: unfinished tokens, and tokens taken up since the first */
    float *state;                          /* [R][C] */
    float *mean_p, *log_std_p;             /* [R][C] log std is at temperature 1 */
    float *mean_q, *log_std_q;             /* [R][C] likewise */
    float *tempered_p, *tempered_q;        /* [R][C] log std at the chain's temperature */
    kern_speculation_count *count;
};

/* Evaluates one head at many states. */
struct kern_speculation_head {
    kern_head *net;
    void *mod;     /* [conditions][steps][tokens] modulation rows */
    float *out;    /* [conditions * R][2C] */
    void *scratch; /* head_scratch_bytes of conditions * R rows */
};

KERN_FN float *kern_speculation_seen(const kern_speculation *w, int token, int index)
{
    return w->seen + ((size_t)token * (size_t)(w->max_steps + 1) + (size_t)index) * KERN_SEEN * (size_t)w->channels;
}

KERN_FN float *kern_speculation_secant(const kern_speculation *w, int token)
{
    return w->secant + (size_t)token * KERN_SECANT * (size_t)w->channels;
}

KERN_FN float *kern_speculation_noise(const kern_speculation *w, int token, int index)
{
    return w->noise + ((size_t)index * (size_t)w->group + (size_t)token) * (size_t)w->channels;
}

/* Rows of an unfinished token. */
KERN_FN int kern_speculation_levels(const kern_speculation *w, int token)
{
    const int left = w->index[token] + 1;
    return left < w->window ? left : w->window;
}

/* A token at the top of the chain, with nothing known. */
KERN_FN void kern_speculation_reset(const kern_speculation *w, int token, int c)
{
    const int channels = w->channels;
    float *prior = kern_speculation_seen(w, token, w->steps), *secant = kern_speculation_secant(w, token);
    prior[KERN_SEEN_STATE * channels + c] = prior[KERN_SEEN_X0 * channels + c] = 0;
    prior[KERN_SEEN_FRACTION * channels + c] = 0.5f;
    secant[KERN_SECANT_RATIO * channels + c] = 1;
    secant[KERN_SECANT_PRODUCT * channels + c] = secant[KERN_SECANT_SQUARE * channels + c] = 0;
}

/* --- proposals ----------------------------------------------------------------------------------------------- */

/* The filter's q of one transition, but for the state it starts from. */
typedef struct {
    float x0, variance, held, spread;
    float log_std;
} kern_speculation_filter;

/* q of transition k. Reads no evaluation below k. */
KERN_FN kern_speculation_filter kern_speculation_prepare(const kern_speculation *w, int token, int k, int c)
{
    const int channels = w->channels, from = k > w->lowest[token] ? k : w->lowest[token];
    const float *seen = kern_speculation_seen(w, token, from), *secant = kern_speculation_secant(w, token);
    const float prior = 1 / (1 + w->snr[from]), rise = w->snr[k] - w->snr[from];
    /* any bounds do, they keep q finite where untrained weights throw the chain far away: here, and in the mean */
    const float part = fminf(fmaxf(seen[KERN_SEEN_FRACTION * channels + c], -1), 2);
    kern_speculation_filter f;
    f.x0 = seen[KERN_SEEN_X0 * channels + c];
    f.variance = prior * secant[KERN_SECANT_RATIO * channels + c];
    f.held = w->gain[from] * seen[KERN_SEEN_STATE * channels + c];
    f.spread = 1 + f.variance * rise;
    f.log_std = kern_chain_log_std(&w->coef[k], part);
    return f;
}

KERN_FN float kern_speculation_mean(const kern_speculation *w, const kern_speculation_filter *f, int k, float x)
{
    const float clean = (f->x0 + f->variance * (w->gain[k] * x - f->held)) / f->spread;
    return w->coef[k].coef_x0 * fminf(fmaxf(clean, -1e6f), 1e6f) + w->coef[k].coef_xt * x;
}

/* The state after transition k of this law, with its own noise. */
KERN_FN float kern_speculation_move(const kern_speculation *w, int k, float mean, float log_std, float eps)
{
    return mean + expf(log_std) * eps * w->coef[k].noise;
}

/* --- evaluations --------------------------------------------------------------------------------------------- */

/* The law of transition k from the state x, at temperature 1, by the head's answers, of which without guidance uncond
 * is cond, and v is the conditional one. */
KERN_FN void kern_speculation_law(const kern_speculation *w, int token, int k, float x, float cond, float uncond,
                                  float v, float *mean, float *log_std)
{
    const kern_chain_coef *coef = &w->coef[k];
    *mean = kern_chain_mean(coef, x, kern_chain_eps(cond, uncond, w->conditions == 2 ? w->cfg[token] : 1));
    *log_std = kern_chain_log_std(coef, kern_chain_fraction(v));
}

/* Keeps what the head said of the state x at index k. */
KERN_FN void kern_speculation_remember(const kern_speculation *w, int token, int k, int c, float x, float mean, float v)
{
    float *seen = kern_speculation_seen(w, token, k);
    seen[KERN_SEEN_STATE * w->channels + c] = x;
    seen[KERN_SEEN_X0 * w->channels + c] = (mean - w->coef[k].coef_xt * x) / w->coef[k].coef_x0;
    seen[KERN_SEEN_FRACTION * w->channels + c] = kern_chain_fraction(v);
}

/* --- r -------------------------------------------------------------------------------------------------------- */

/* By how much x0 was to move in the step from index k+1 to k, both evaluated at the chain's own states: what the filter
 * with r = 1 expected. */
KERN_FN float kern_speculation_expected(const kern_speculation *w, int token, int k, int c)
{
    const float *above = kern_speculation_seen(w, token, k + 1), *here = kern_speculation_seen(w, token, k);
    const float prior = 1 / (1 + w->snr[k + 1]), rise = w->snr[k] - w->snr[k + 1];
    return prior * (w->gain[k] * here[c] - w->gain[k + 1] * above[c] - rise * here[KERN_SEEN_X0 * w->channels + c]);
}

/* Adds that step to the sums of r. mean_square: of the expected moves, over the channels: a step's weight does not
 * depend on its size. */
KERN_FN void kern_speculation_learn(const kern_speculation *w, int token, int k, int c, float mean_square)
{
    /* weight of r's prior value 1, how fast old steps are forgotten, bounds: from trials, none of them delicate */
    const float prior = 2, keep = 0.8f, least = 0.5f, most = 2;
    const int channels = w->channels;
    const float *x0 = kern_speculation_seen(w, token, k) + KERN_SEEN_X0 * channels;
    const float *x0_above = kern_speculation_seen(w, token, k + 1) + KERN_SEEN_X0 * channels;
    float *secant = kern_speculation_secant(w, token);
    float *product = &secant[KERN_SECANT_PRODUCT * channels + c], *square = &secant[KERN_SECANT_SQUARE * channels + c];
    const float expected = kern_speculation_expected(w, token, k, c);
    *product = keep * *product + expected * (x0[c] - x0_above[c]) / mean_square;
    *square = keep * *square + expected * expected / mean_square;
    secant[KERN_SECANT_RATIO * channels + c] = fminf(fmaxf((prior + *product) / (prior + *square), least), most);
}

/* --- verification -------------------------------------------------------------------------------------------- */

/* The path of a rule that asks for it. The exact one does not; those of tests, wrong on purpose, do. */
enum { KERN_WINDOW_PATH = 1 };

/* The two laws of a row's transition, at the chain's temperature. */
KERN_FN kern_gaussians kern_speculation_laws(const kern_speculation *w, int row)
{
    const size_t first = (size_t)row * (size_t)w->channels;
    const kern_gaussians laws = {w->channels, w->mean_p + first, w->mean_q + first, w->tempered_p + first,
                                 w->tempered_q + first};
    return laws;
}

KERN_FN kern_address kern_speculation_address(const kern_speculation *w, int token, int k)
{
    const kern_address address = {w->seed, w->image[token], (uint32_t)w->position[token], (uint32_t)w->t[k]};
    return address;
}

#endif
