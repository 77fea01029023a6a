/* The verifier: one interface for every speculative method, for discrete and continuous tokens.
 *
 * A round proposes a block of drafts. Draft x_i was drawn from q_i, and verification turns it into a token of the
 * target's law p_i. A method is four choices:
 *   criterion  f_i(x): the probability that x_i is accepted;
 *   resampler  G_i: the law of what replaces a rejected x_i;
 *   policy     what a rejection does to the rest of the block;
 *   topology   the shape of the block.
 * Each method is one file, specdec/methods/NAME.c, that fills a spec_method, and one line in specdec/registry.c. One
 * driver, spec_verify, runs them all. Everything is in log space and nothing is allocated.
 */
#ifndef SPECDEC_VERIFIER_H
#define SPECDEC_VERIFIER_H

#include "kernels/discrete.h"
#include "kernels/residual.h"

#include <stddef.h>

/* The two laws at one position. */
typedef struct {
    int size; /* discrete: vocabulary; continuous: channels */
    /* Discrete: [size] normalised log p and log q, -INFINITY for 0. NULL if the tokens are continuous. */
    const float *log_p, *log_q;
    /* Continuous: [size] means and log standard deviations of diagonal Gaussians. All of log_std_p is -INFINITY if p is
     * a point; log_std_q is finite unless p is a point. */
    const float *mean_p, *mean_q, *log_std_p, *log_std_q;
    /* Continuous: the sum over the noisy steps above of (log|std_q| - log|std_p|), which is the log of the paper's
     * Sigma (Eq. 4). 0 if the method does not ask for it. */
    double path_log_ratio;
    int index;             /* the draft's number in its block, 1..length */
    int length;            /* of the block */
    const int *neighbours; /* discrete: [size][neighbour_count] nearest tokens, each token itself first; or NULL */
    int neighbour_count;   /* 0 if the method asks for no neighbours */
} spec_site;

/* A token: a number, or `size` channels. */
typedef union {
    int id;
    const float *x;
} spec_token;

typedef enum {
    SPEC_STOP,        /* the rest of the block is dropped */
    SPEC_CONTINUE,    /* the rest is verified with the laws of this round; the result is a draft for the next round */
    SPEC_INDEPENDENT, /* a rejection changes nothing at other positions */
} spec_policy;

enum { SPEC_DISCRETE = 1, SPEC_CONTINUOUS = 2 };             /* kinds of tokens */
enum { SPEC_CHAIN = 1, SPEC_TREE = 2, SPEC_CHAIN_TREE = 4 }; /* shapes: chain, static tree, K-ary tree then a chain */
enum { SPEC_PARAMETERS_MAX = 4 };

typedef struct {
    const char *name; /* "delta" */
    double value;     /* default */
    double min, max;
    const char *meaning; /* one line */
} spec_parameter;

typedef struct spec_method {
    const char *name;    /* "cool-sd-exp" */
    const char *source;  /* "Cool-SD, Eq. 7 and 10" */
    const char *summary; /* one line */
    int tokens;          /* SPEC_DISCRETE | SPEC_CONTINUOUS */
    int topologies;      /* SPEC_CHAIN | ... */
    spec_policy policy;
    int exact;             /* the output has the target's law, given the laws in the sites */
    const char *guarantee; /* in words: "the target's law", "TV bound of Cool-SD Eq. 4, for a chain", "none" */
    int neighbours;        /* needs spec_site.neighbours */
    int stale;             /* drafts come from the last round, from laws that have changed since (SJD) */
    /* Continuous: reads the laws of the chain's last index, the one without noise; else those of the last noisy index.
     */
    int last_index;
    /* Continuous: decides on whole paths of the chain (kernels/ops.h, path_decide) in place of states at one index;
     * `rule` is NULL then. */
    int paths;
    spec_parameter parameters[SPEC_PARAMETERS_MAX + 1]; /* ends with a NULL name */

    /* Continuous: criterion and resampler as data, so that a backend can verify (kernels/ops.h, verify). */
    kern_gaussian_rule (*rule)(const double *parameter);
    /* Discrete: criterion and resampler as data, for the draft at `index`, 1..length, of its block. */
    kern_discrete_rule (*discrete_rule)(const double *parameter, int index, int length);
} spec_method;

const spec_method *spec_method_find(const char *name); /* NULL if there is none */
const spec_method *const *spec_methods(void);          /* ends with NULL */

/* Where a verification finds its random numbers. Each (image, position, step) may be verified once only. */
typedef kern_address spec_address;

typedef enum {
    SPEC_DROPPED,  /* not reached, or not on the path taken */
    SPEC_ACCEPTED, /* the draft is kept */
    SPEC_REPLACED, /* the draft is rejected, and the replacement is in its place */
} spec_verdict;

/* log p(x) - log q(x) at a site, with 0/0 = 1. */
double spec_log_ratio(const spec_site *site, spec_token x);

/* Verifies one draft, by a method that does not decide on paths. A continuous replacement is written to `replacement`
 * [size], a discrete one to *id; the other may be NULL. Returns SPEC_ACCEPTED or SPEC_REPLACED. *tries is the number of
 * candidates drawn for the residual, which has no limit; it is 0 for an accepted draft and for discrete tokens.
 *   - If p is a point (temperature 0), a draft is accepted if it is that point.
 *   - If an inexact criterion leaves next to no residual, the replacement is a draw from p (kernels/gaussian.h).
 *   - With NaN in a law the draft is rejected, and the replacement shows the NaN.
 *   - Discrete: if rounding leaves nothing of [p - q f]+, then p = q there, and the draft is accepted. */
spec_verdict spec_verify_one(const spec_method *m, const double *parameter, const spec_site *site, spec_token draft,
                             const spec_address *address, float *replacement, int *id, long *tries);

/* A block of drafts. Draft n follows draft parent[n] < n, or the verified prefix if parent[n] is -1. Drafts with the
 * same parent are in the order in which they were drawn: the first from q, each later one from q without its elder
 * siblings.
 */
typedef struct {
    int count;               /* drafts */
    int length;              /* positions: the length of the longest path */
    const spec_token *draft; /* [count] */
    const int *parent;       /* [count]; NULL: a chain, parent[n] = n - 1 */
    /* [count + 1] site n has the laws of what follows draft n - 1; site 0 those of what follows the prefix. A site that
     * no draft follows needs no q; without p either, it gives no bonus token. spec_verify sets spec_site.index and
     * length. */
    const spec_site *site;
    /* [length], or [length + 1] if there can be a bonus token: an address by position, all different. */
    const spec_address *address;
    /* Continuous: policy STOP even if the method's is INDEPENDENT, for a block in which each draft was drawn given the
     * one before. */
    int stop;
} spec_block;

/* The result of verifying a block. */
typedef struct {
    int accepted; /* tau: drafts accepted on the path from the prefix; with INDEPENDENT, drafts accepted in all */
    int final;    /* tokens that are final: the accepted ones, and the replacement or the bonus token */
    int length;   /* tokens in all; with CONTINUE those after the final ones are drafts for the next round */
    long tries;   /* candidates drawn for residuals of continuous tokens */
} spec_outcome;

/* Where spec_verify writes; the arrays are the caller's. */
typedef struct {
    spec_verdict *verdict; /* [count] */
    int *id;               /* discrete: [length + 1] the tokens by position */
    /* Discrete: [length + 1] the site whose p each token is a draw from. In the next round a draft of CONTINUE must be
     * verified with that p as its q, not with the q it had before. With STOP the entries after the final tokens are
     * set, too: they are the laws to redraft from. */
    int *law;
    float *x;         /* continuous: [length][size] the tokens by position */
    float *workspace; /* discrete, with siblings: spec_workspace_size(size) floats; else NULL */
} spec_output;

static inline size_t spec_workspace_size(int size)
{
    return 3 * (size_t)size;
}

/* Verifies a block with any method, policy and topology. Among siblings, draft k is tested against what the rejection
 * of the elder ones left of p (SJD-PAC Eq. 7 and 8). If every draft of a path is accepted, discrete tokens get a bonus
 * token, drawn from p. With CONTINUE, verification goes on along the first path (first siblings only) after its first
 * token that is not an accepted draft. Continuous blocks are chains. */
spec_outcome spec_verify(const spec_method *m, const double *parameter, const spec_block *block,
                         const spec_output *out);

#endif
