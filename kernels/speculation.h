/* Speculation inside the head, for backends: the state of tokens that go through the chain together, and both backends'
 * formulas, by channel. diffusion/speculate.h defines a round and q, and proves exactness.
 *
 * A window is the number of transitions one round can decide for a token.
 *
 * In a round each unfinished token has a slot, and a slot has up to `window` rows. The first row is the token's state
 * x_i at its step index i. The rows after it are the proposals for indices i-1, i-2, ... A row's p and q are the
 * distributions of the transition from its state. The next row was drawn from its q. */
#ifndef KERNELS_SPECULATION_H
#define KERNELS_SPECULATION_H

#include "kernels/chain.h"
#include "kernels/residual.h"

/* Statistics of the tokens since speculate_start. */
typedef struct {
    unsigned long long rounds;            /* evaluations of the target's head, each for all unfinished tokens */
    unsigned long long calls;             /* rounds of a token, summed over tokens */
    unsigned long long calls_max;         /* maximum rounds of one token */
    unsigned long long evaluations;       /* states where the target's head was evaluated */
    unsigned long long draft_evaluations; /* states where the draft's head was evaluated */
    unsigned long long accepted;          /* proposals */
    unsigned long long rejected;          /* proposals */
    unsigned long long tries;             /* candidates to replace rejected proposals */
} kern_speculation_count;

/* A token's own window, and when it ends. */
typedef struct {
    int window; /* at most kern_speculation.window */
    float cost; /* of a round with this window, over one with window 1 */
    float loss; /* the window is 1 where a round without an accepted proposal would raise the loss above this */
} kern_speculation_limit;

/* Entries of kern_speculation.left: unfinished tokens; their highest step index when slots were last assigned; slots
 * assigned after the first ones. */
enum { KERN_LEFT_TOKENS, KERN_LEFT_INDEX, KERN_LEFT_TAKEN, KERN_LEFT };
/* Entries of kern_speculation.evaluated: a state, the head's x0 there, and the variance fraction. */
enum { KERN_EVALUATED_STATE, KERN_EVALUATED_X0, KERN_EVALUATED_FRACTION, KERN_EVALUATED };
/* Entries of kern_speculation.secant: the ratio r, and its numerator and denominator sums. */
enum { KERN_SECANT_RATIO, KERN_SECANT_PRODUCT, KERN_SECANT_SQUARE, KERN_SECANT };

enum { KERN_SPHERE_CHANNELS = 256 }; /* largest C of kern_speculation.sphere */

/* All arrays are in the backend's memory. C = channels, G = group, S = max_steps, R = group * window. */
struct kern_speculation {
    int group;      /* maximum tokens of a call */
    int window;     /* maximum rows of a slot */
    int conditions; /* 1, or 2 with guidance */
    int channels;   /* of a token */
    int max_steps;  /* maximum steps of a call */
    int tokens;     /* tokens of this call, at most group */
    int sources;    /* conditions of this call's tokens, at most `tokens`; candidates for the same token share one
                     * source */
    int steps;      /* steps of this call, at most max_steps */
    int sphere; /* 1: tokens have the norm sqrt(C) (SphereAR), which the filter uses; at most KERN_SPHERE_CHANNELS */
    int rounds; /* backend's own: rounds to begin before it checks for finished tokens */
    int slots;  /* backend's own: slots of this round */
    int rows;   /* backend's own: rows of this round */
    kern_gaussian_rule rule; /* must be exact given the context: all noise of the transitions above */
    float log_temperature;

    kern_chain_coef *coef;         /* [S] */
    int *t;                        /* [S] step in the noise address */
    float *snr;                    /* [S+1] abar / (1 - abar), by index; 0 at index `steps` */
    float *gain;                   /* [S+1] y = gain * x, by index; 0 at index `steps` */
    uint64_t *seed;                /* [G] seed of the noise address */
    uint64_t *image;               /* [G] image of the noise address */
    int *position;                 /* [G] position of the noise address */
    int *source;                   /* [G] source of a token's modulation rows, 0..sources-1 */
    float *cfg;                    /* [G] guidance scale; not read with one condition */
    kern_speculation_limit *limit; /* [G]; NULL: every token has `window`, to the end */

    float *token;     /* [G][C] current state of each token; the sample when the token is finished */
    int *index;       /* [G] a token's step index; -1 when it is finished */
    int *lowest;      /* [G] lowest index where the target was evaluated for a token; `steps` before the first */
    int *calls;       /* [G] rounds of a token */
    int *wide;        /* [G] those with proposals */
    int *rejected;    /* [G] those in which one was rejected */
    float *noise;     /* [S][G][C] eps of every transition */
    float *evaluated; /* [G][S+1][3][C] latest evaluation by token and index; entry `steps` is the prior */
    float *secant;    /* [G][3][C] the filter's ratio r by token, and its sums */

    int *slot_token;   /* [G] a slot's token; -1: none */
    int *slot_row;     /* [G] first row of a slot (CPU) */
    int *row_token;    /* [R] a row's token (CPU) */
    int *row_index;    /* [R] a row's step index (CPU) */
    int *row_list;     /* [R] rows of one evaluation (CPU) */
    int *x_index;      /* [conditions * R] state that a row of the head reads (CPU) */
    int *mod_index;    /* [conditions * R] modulation row that a row of the head reads */
    int *draft_index;  /* [window][conditions][slots] mod_index for one level of proposals at a time (GPU) */
    int *left;         /* [KERN_LEFT] (GPU) */
    float *state;      /* [R][C] a row's state */
    float *mean_p;     /* [R][C] */
    float *log_std_p;  /* [R][C] at temperature 1 */
    float *mean_q;     /* [R][C] */
    float *log_std_q;  /* [R][C] at temperature 1 */
    float *tempered_p; /* [R][C] log_std_p at the chain's temperature */
    float *tempered_q; /* [R][C] log_std_q at the chain's temperature */
    kern_speculation_count *count;
};

/* A head to evaluate at many states. */
struct kern_speculation_head {
    kern_head *net;
    void *mod;        /* [steps][conditions][sources] modulation rows (kern_speculation_mod) */
    float *out;       /* [conditions * R][2C] */
    void *scratch;    /* k->head->scratch_bytes of conditions * max(R, S * sources) rows */
    const char *part; /* prefix of its layers' names (kern_watching) */
};

/* Returns the modulation row of a source at a step index, under a condition. */
KERN_FN int kern_speculation_mod(const kern_speculation *w, int condition, int index, int source)
{
    return (index * w->conditions + condition) * w->sources + source;
}

/* Returns a token's evaluation at an index: [KERN_EVALUATED][C]. */
KERN_FN float *kern_speculation_evaluated(const kern_speculation *w, int token, int index)
{
    return w->evaluated +
           ((size_t)token * (size_t)(w->max_steps + 1) + (size_t)index) * KERN_EVALUATED * (size_t)w->channels;
}

/* Returns a token's ratio and its sums: [KERN_SECANT][C]. */
KERN_FN float *kern_speculation_secant(const kern_speculation *w, int token)
{
    return w->secant + (size_t)token * KERN_SECANT * (size_t)w->channels;
}

/* Returns eps [C] of the transition from an index. */
KERN_FN float *kern_speculation_noise(const kern_speculation *w, int token, int index)
{
    return w->noise + ((size_t)index * (size_t)w->group + (size_t)token) * (size_t)w->channels;
}

/* Returns a token's window in its next round. The loss is what its rounds have cost, less what its decided transitions
 * cost without proposals: all of them known from the rounds before. */
KERN_FN int kern_speculation_window(const kern_speculation *w, int token)
{
    if (!w->limit) return w->window;
    const kern_speculation_limit *l = &w->limit[token];
    const int wide = w->wide[token], decided = w->steps - 1 - w->index[token];
    const float loss = (float)wide * l->cost + (float)(w->calls[token] - wide - decided);
    return loss + l->cost - 1 > l->loss ? 1 : l->window;
}

/* Returns the number of rows of an unfinished token's slot. */
KERN_FN int kern_speculation_levels(const kern_speculation *w, int token)
{
    const int left = w->index[token] + 1, window = kern_speculation_window(w, token);
    return left < window ? left : window;
}

/* Resets channel c of a token to the top of the chain: no evaluation yet, and r = 1. */
KERN_FN void kern_speculation_reset(const kern_speculation *w, int token, int c)
{
    const int channels = w->channels;
    float *prior = kern_speculation_evaluated(w, token, w->steps), *secant = kern_speculation_secant(w, token);
    prior[KERN_EVALUATED_STATE * channels + c] = prior[KERN_EVALUATED_X0 * channels + c] = 0;
    prior[KERN_EVALUATED_FRACTION * channels + c] = 0.5f;
    secant[KERN_SECANT_RATIO * channels + c] = 1;
    secant[KERN_SECANT_PRODUCT * channels + c] = secant[KERN_SECANT_SQUARE * channels + c] = 0;
}

/* --- proposals ----------------------------------------------------------------------------------------------- */

/* The parameters of q of one transition, extrapolated from the evaluation at index s; they do not depend on the
 * transition's starting state. m, V, y and snr as in diffusion/speculate.h. */
typedef struct {
    float x0;       /* m, the head's x0 at s */
    float variance; /* V */
    float y;        /* y_s */
    float divisor;  /* 1 + V (snr_k - snr_s) */
    float log_std;  /* log std of q, at temperature 1 */
} kern_speculation_filter;

/* Prepares q of transition k. It reads no evaluation at an index below k: the proof of exactness needs that. */
KERN_FN kern_speculation_filter kern_speculation_prepare(const kern_speculation *w, int token, int k, int c)
{
    const int channels = w->channels, from = k > w->lowest[token] ? k : w->lowest[token];
    const float *evaluated = kern_speculation_evaluated(w, token, from), *secant = kern_speculation_secant(w, token);
    const float prior = 1 / (1 + w->snr[from]), rise = w->snr[k] - w->snr[from];
    /* Any bounds work, here and in the mean. They keep q finite where untrained weights throw the chain far away. */
    const float part = fminf(fmaxf(evaluated[KERN_EVALUATED_FRACTION * channels + c], -1), 2);
    kern_speculation_filter f;
    f.x0 = evaluated[KERN_EVALUATED_X0 * channels + c];
    if (w->sphere) f.x0 = fminf(fmaxf(f.x0, -1e6f), 1e6f); /* so that sums of squares are finite */
    f.variance = prior * secant[KERN_SECANT_RATIO * channels + c];
    f.y = w->gain[from] * evaluated[KERN_EVALUATED_STATE * channels + c];
    f.divisor = 1 + f.variance * rise;
    f.log_std = kern_chain_log_std(&w->coef[k], part);
    return f;
}

/* Returns the filter's prediction of the clean token at transition k from the state x. */
KERN_FN float kern_speculation_clean(const kern_speculation *w, const kern_speculation_filter *f, int k, float x)
{
    const float clean = (f->x0 + f->variance * (w->gain[k] * x - f->y)) / f->divisor;
    return fminf(fmaxf(clean, -1e6f), 1e6f);
}

/* Returns the multiple of m that the prediction loses where tokens lie on a sphere. Its move from m has the radial part
 * product / square times m; these are the sums over the channels of (prediction - m) m and of m^2. Such a part does not
 * exist on the sphere, and m is close to it once the noise is small. Of the weights snr / (c + snr), c = 2 was best in
 * trials. */
KERN_FN float kern_speculation_radial(const kern_speculation *w, int token, int k, float product, float square)
{
    const float snr = w->snr[k > w->lowest[token] ? k : w->lowest[token]];
    return square > 1e-9f ? snr / (2 + snr) * (product / square) : 0;
}

/* Returns the mean of q of transition k from the state x. `radial` is 0 without a sphere. */
KERN_FN float kern_speculation_mean(const kern_speculation *w, const kern_speculation_filter *f, int k, float x,
                                    float radial)
{
    return w->coef[k].coef_x0 * (kern_speculation_clean(w, f, k, x) - radial * f->x0) + w->coef[k].coef_xt * x;
}

/* Returns the state after transition k of a Gaussian, with the noise eps. */
KERN_FN float kern_speculation_move(const kern_speculation *w, int k, float mean, float log_std, float eps)
{
    return mean + expf(log_std) * eps * w->coef[k].noise;
}

/* --- evaluations --------------------------------------------------------------------------------------------- */

/* Computes p of transition k from the state x, at temperature 1. Its inputs are the head's outputs: eps with and
 * without condition (without guidance uncond is cond), and the conditional v. */
KERN_FN void kern_speculation_transition(const kern_speculation *w, int token, int k, float x, float cond, float uncond,
                                         float v, float *mean, float *log_std)
{
    const kern_chain_coef *coef = &w->coef[k];
    *mean = kern_chain_mean(coef, x, kern_chain_eps(cond, uncond, w->conditions == 2 ? w->cfg[token] : 1));
    *log_std = kern_chain_log_std(coef, kern_chain_fraction(v));
}

/* Returns the x0 equivalent to a mean of the transition from x. */
KERN_FN float kern_speculation_x0(const kern_chain_coef *coef, float x, float mean)
{
    return kern_multiply_add(-coef->coef_xt, x, mean) / coef->coef_x0;
}

/* Stores the evaluation of the state x at index k: mean and v of its distribution. */
KERN_FN void kern_speculation_remember(const kern_speculation *w, int token, int k, int c, float x, float mean, float v)
{
    float *evaluated = kern_speculation_evaluated(w, token, k);
    evaluated[KERN_EVALUATED_STATE * w->channels + c] = x;
    evaluated[KERN_EVALUATED_X0 * w->channels + c] = kern_speculation_x0(&w->coef[k], x, mean);
    evaluated[KERN_EVALUATED_FRACTION * w->channels + c] = kern_chain_fraction(v);
}

/* --- r -------------------------------------------------------------------------------------------------------- */

/* Returns the move of x0 from index k+1 to k expected by the filter with r = 1. Both indices have been evaluated at the
 * chain's own states. */
KERN_FN float kern_speculation_expected(const kern_speculation *w, int token, int k, int c)
{
    const float *above = kern_speculation_evaluated(w, token, k + 1), *here = kern_speculation_evaluated(w, token, k);
    const float prior = 1 / (1 + w->snr[k + 1]), rise = w->snr[k] - w->snr[k + 1];
    return prior *
           (w->gain[k] * here[c] - w->gain[k + 1] * above[c] - rise * here[KERN_EVALUATED_X0 * w->channels + c]);
}

/* Adds the step from index k+1 to k to the sums of r. mean_square is that of the expected moves over the channels.
 * Dividing by it gives every step the same weight. */
KERN_FN void kern_speculation_learn(const kern_speculation *w, int token, int k, int c, float mean_square)
{
    /* The weight of r's prior value 1, the decay of old steps, and r's bounds. All are from trials; none is
     * delicate. */
    const float prior = 2, keep = 0.8f, least = 0.5f, most = 2;
    const int channels = w->channels;
    const float *x0 = kern_speculation_evaluated(w, token, k) + KERN_EVALUATED_X0 * channels;
    const float *x0_above = kern_speculation_evaluated(w, token, k + 1) + KERN_EVALUATED_X0 * channels;
    float *secant = kern_speculation_secant(w, token);
    float *product = &secant[KERN_SECANT_PRODUCT * channels + c], *square = &secant[KERN_SECANT_SQUARE * channels + c];
    const float expected = kern_speculation_expected(w, token, k, c);
    *product = keep * *product + expected * (x0[c] - x0_above[c]) / mean_square;
    *square = keep * *square + expected * expected / mean_square;
    secant[KERN_SECANT_RATIO * channels + c] = fminf(fmaxf((prior + *product) / (prior + *square), least), most);
}

/* --- verification -------------------------------------------------------------------------------------------- */

/* The path passed to rules. The exact rule ignores it; tests have deliberately wrong rules that use it. */
enum { KERN_SPECULATION_PATH = 1 };

/* Returns p and q of a row's transition, at the chain's temperature. */
KERN_FN kern_gaussians kern_speculation_gaussians(const kern_speculation *w, int row)
{
    const size_t first = (size_t)row * (size_t)w->channels;
    const kern_gaussians pq = {w->channels, w->mean_p + first, w->mean_q + first, w->tempered_p + first,
                               w->tempered_q + first};
    return pq;
}

/* Returns the address of transition k's random numbers. */
KERN_FN kern_address kern_speculation_address(const kern_speculation *w, int token, int k)
{
    const kern_address address = {w->seed[token], w->image[token], (uint32_t)w->position[token], (uint32_t)w->t[k]};
    return address;
}

#endif
