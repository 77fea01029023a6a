/* The verifier: one frame for every speculative method, of discrete and of continuous tokens.
 *
 * A round proposes a block of drafts. Draft x_i was drawn from q_i and is to be turned into a token of the target's
 * law p_i. A method is four choices:
 *   criterion  f_i(x): the probability that x_i is accepted;
 *   resampler  G_i: the law of what replaces a rejected x_i;
 *   policy     what a rejection does to the rest of the block;
 *   topology   the shape of the block.
 * Each method is one file, specdec/methods/NAME.c, that fills a spec_method, and one line in specdec/registry.c. One
 * driver, spec_verify, runs them all. Everything is in log space and nothing is allocated.
 */
#ifndef SPECDEC_VERIFIER_H
#define SPECDEC_VERIFIER_H

#include "kernels/gaussian.h"

#include <stddef.h>

/* What is known at one position: its two laws. */
typedef struct {
    int size; /* discrete: vocabulary; continuous: channels */
    /* Discrete, normalised: log p and log q, [size], -INFINITY for 0. NULL if the tokens are continuous. */
    const float *log_p, *log_q;
    /* Continuous, diagonal Gaussians: means and log standard deviations, [size]. -INFINITY in all of log_std_p makes
     * p a point; log_std_q is finite if p is not one. */
    const float *mean_p, *mean_q, *log_std_p, *log_std_q;
    double path_log_ratio; /* continuous: sum over the noisy steps above of (log|std_q| - log|std_p|), the log of the
                            * paper's Sigma (Eq. 4); 0 if the method does not ask for it */
    int index, length;     /* this is draft `index` (1..length) of a block of `length` */
    const int *neighbours; /* discrete: [size][neighbour_count], nearest first, the token itself first of all; */
    int neighbour_count;   /* 0 and NULL if the method asks for none */
} spec_site;

/* A token: a number, or `size` channels. */
typedef union {
    int id;
    const float *x;
} spec_token;

typedef enum {
    SPEC_STOP,        /* the rest of the block is dropped */
    SPEC_CONTINUE,    /* the rest is verified against the laws at hand, and is a draft for the next round */
    SPEC_INDEPENDENT, /* positions do not see each other */
} spec_policy;

enum { SPEC_DISCRETE = 1, SPEC_CONTINUOUS = 2 };             /* kinds of tokens */
enum { SPEC_CHAIN = 1, SPEC_TREE = 2, SPEC_CHAIN_TREE = 4 }; /* shapes: chain, static tree, K-ary tree then a chain */
enum { SPEC_PARAMETERS_MAX = 4 };

typedef struct {
    const char *name; /* "delta" */
    double value;     /* default */
    double min, max;
    const char *meaning;
} spec_parameter;

typedef struct spec_method {
    const char *name;    /* "cool-sd-exp": the value of --spec */
    const char *source;  /* "Cool-SD, Eq. 7 and 10" */
    const char *summary; /* one line */
    int tokens;          /* SPEC_DISCRETE | SPEC_CONTINUOUS */
    int topologies;      /* SPEC_CHAIN | ... */
    spec_policy policy;
    int exact;             /* the output law is the target's, given the laws in the sites */
    const char *guarantee; /* in words: "the target's law", "TV bound of Cool-SD Eq. 4, for a chain", "none" */
    int neighbours;        /* asks for spec_site.neighbours */
    int stale;             /* drafts are the last round's, from laws that have since changed (SJD) */
    int last_index;        /* continuous: reads the laws of the last index of the chain, the one without noise; else
                            * those of the last noisy one */
    spec_parameter parameters[SPEC_PARAMETERS_MAX + 1]; /* ends with a NULL name */

    /* Continuous: criterion and resampler, as data, so that a backend verifies by them, too (kernels/ops.h, verify). */
    kern_gaussian_rule (*rule)(const double *parameter);
    /* Discrete: log f_i(x), at most 0. log_ratio = log p(x) - log q(x), with 0/0 = 1. */
    double (*log_accept)(const spec_site *s, const double *parameter, spec_token x, double log_ratio);
    /* Discrete. The resampler as a rejection rule: log of the probability that `candidate`, drawn from p, is kept as
     * the replacement of `rejected`; G is proportional to p times it. NULL: Norm[p - q f]+, which minimises Cool-SD's
     * bound (Eq. 5) and makes vanilla exact. */
    double (*log_keep)(const spec_site *s, const double *parameter, int candidate, int rejected, double log_ratio);
} spec_method;

const spec_method *spec_method_find(const char *name); /* NULL if there is none */
const spec_method *const *spec_methods(void);          /* ends with NULL */

typedef kern_address spec_address; /* each (image, position, step) is verified at most once */

typedef enum {
    SPEC_DROPPED,  /* not reached, or not on the path taken */
    SPEC_ACCEPTED, /* the draft stays */
    SPEC_REPLACED, /* rejected; the replacement is in its place */
} spec_verdict;

/* log p(x) - log q(x) at a site, with 0/0 = 1. */
double spec_log_ratio(const spec_site *site, spec_token x);

/* Verifies one draft. `replacement` [size] takes a continuous replacement and *id a discrete one; the other may be
 * NULL. Returns SPEC_ACCEPTED or SPEC_REPLACED; *tries counts candidates drawn for the residual (0 if accepted or
 * discrete). There is no cap on them. What an inexact criterion rejects may leave
 * next to no residual; then the replacement is a draw from p (kernels/gaussian.h). A law with NaN is rejected, and its
 * replacement shows it. Where p is a point (log_std_p =
 * -INFINITY, temperature 0) a draft is accepted if it is that point.
 * Discrete: if rounding leaves nothing of [p - q f]+, then p = q there and the draft is accepted. */
spec_verdict spec_verify_one(const spec_method *m, const double *parameter, const spec_site *site, spec_token draft,
                             const spec_address *address, float *replacement, int *id, long *tries);

/* A block of drafts. Draft n follows draft parent[n] < n, or the verified prefix (-1); drafts with the same parent
 * stand in the order in which they were drawn, the first from q, each other one from q without its elder siblings. */
typedef struct {
    int count;               /* drafts */
    int length;              /* positions: the longest path */
    const spec_token *draft; /* [count] */
    const int *parent;       /* [count]; NULL: a chain, parent[n] = n - 1 */
    const spec_site *site;   /* [count + 1]: the laws of what follows draft n - 1 (0: the prefix). A site that no draft
                              * follows needs no q; with no p either it gives no bonus token. spec_site.index and
                              * length are set by spec_verify. */
    const spec_address *address; /* [length], one more if there can be a bonus token: by position, no two alike */
    int stop;                    /* continuous: STOP, also where the method's policy is INDEPENDENT, for a block whose
                                  * drafts were each drawn behind the one before */
} spec_block;

/* What came of it. */
typedef struct {
    int accepted; /* drafts accepted on the path from the prefix: tau. INDEPENDENT: in all */
    int final;    /* tokens that are final: the accepted ones, and the replacement or the bonus token */
    int length;   /* tokens in all: with CONTINUE those behind the final ones are drafts for the next round */
    long tries;   /* candidates drawn for residuals of continuous tokens */
} spec_outcome;

/* Where spec_verify writes; the caller's. */
typedef struct {
    spec_verdict *verdict; /* [count] */
    int *id;               /* discrete: [length + 1], the tokens by position */
    int *law;              /* discrete: [length + 1], the site whose p each token is a draw from. CONTINUE's drafts must
                            * be verified against that p as their q in the next round, not against the q they had
                            * before. Behind the final tokens this is filled with STOP, too: the law to redraft from */
    float *x;              /* continuous: [length][size], the tokens by position */
    float *workspace;      /* discrete, with siblings: spec_workspace_size(size) floats; else NULL */
} spec_output;

static inline size_t spec_workspace_size(int size)
{
    return 3 * (size_t)size;
}

/* Verifies a block with any method, policy and topology. Among siblings, draft k is tested against what the rejection
 * of the elder ones left of p (SJD-PAC Eq. 7 and 8). If every draft of a path is accepted, discrete tokens get one more
 * from p: the bonus. CONTINUE goes on along the first path (first drafts only) behind the first token that is no
 * accepted draft of it. Continuous blocks are chains. */
spec_outcome spec_verify(const spec_method *m, const double *parameter, const spec_block *block,
                         const spec_output *out);

#endif
