/* The verifier: one interface for every speculative method, for discrete and continuous tokens.
 *
 * A round proposes a block of drafts. Draft x_i was drawn from q_i; verification turns it into a token drawn from the
 * target's distribution p_i. A method is four choices:
 *   criterion  f_i(x): the probability that x_i is accepted;
 *   resampler  G_i: the distribution of the replacement of a rejected x_i;
 *   policy     the effect of a rejection on the rest of the block;
 *   topology   the shape of the block.
 * Each method is one file, specdec/methods/NAME.c, that fills a spec_method, and one line in specdec/registry.c.
 *
 * Criterion and resampler are data, and a backend's operations run by them. kern_discrete_ops.verify verifies blocks of
 * discrete tokens (kernels/discrete.h), and kern_head_ops.verify continuous ones. spec_verify below does the latter on
 * the host, a block at a time. Nothing is allocated. */
#ifndef SPECDEC_VERIFIER_H
#define SPECDEC_VERIFIER_H

#include "kernels/discrete.h"
#include "kernels/residual.h"

#include <stddef.h>

/* The distributions p and q of a continuous token at one position: diagonal Gaussians. */
typedef struct {
    int size; /* channels */
    /* [size] means and log standard deviations. If p is a point, all of log_std_p is -INFINITY. Otherwise log_std_q is
     * finite. */
    const float *mean_p, *mean_q, *log_std_p, *log_std_q;
    /* Sum over the noisy steps above of (log|std_q| - log|std_p|): the log of the paper's Sigma (Eq. 4). 0 if the
     * method does not use it. */
    double path_log_ratio;
} spec_site;

typedef enum {
    SPEC_STOP,     /* the rest of the block is dropped */
    SPEC_CONTINUE, /* the rest is verified with this round's distributions; the results are drafts of the next round */
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
    int exact;             /* the output has the target's distribution, given the p and q of the sites */
    const char *guarantee; /* one phrase: "the target's law", "TV bound of Cool-SD Eq. 4, for a chain", "none" */
    int neighbours;        /* needs a table of neighbours (specdec/neighbours.h) */
    int stale;             /* drafts are drawn from the last round's distributions, changed since (SJD) */
    /* Continuous: p and q are those of the chain's last index, the one without noise. 0: those of the last noisy
     * index. */
    int last_index;
    /* Continuous: decides on whole paths of the chain (kernels/ops.h, path_decide) in place of states at one index.
     * `rule` is then NULL. */
    int paths;
    spec_parameter parameters[SPEC_PARAMETERS_MAX + 1]; /* ends with a NULL name */

    /* Continuous: criterion and resampler as data, for a backend's operation (kernels/ops.h, verify). */
    kern_gaussian_rule (*rule)(const double *parameter);
    /* Discrete: criterion and resampler as data, for the draft at `index`, 1..length, of its block. */
    kern_discrete_rule (*discrete_rule)(const double *parameter, int index, int length);
} spec_method;

const spec_method *spec_method_find(const char *name); /* NULL if no method has the name */
const spec_method *const *spec_methods(void);          /* ends with NULL */

/* Address of a verification's random numbers. Each (image, position, step) may be verified only once. */
typedef kern_address spec_address;

typedef enum {
    SPEC_DROPPED = KERN_DRAFT_DROPPED,   /* not reached, or not on the path taken */
    SPEC_ACCEPTED = KERN_DRAFT_ACCEPTED, /* the draft is kept */
    SPEC_REPLACED = KERN_DRAFT_REPLACED, /* the draft is rejected, and the replacement is in its place */
} spec_verdict;

/* Returns log p(x) - log q(x) at a site. */
double spec_log_ratio(const spec_site *site, const float *x);

/* Verifies one continuous draft, by a method that does not decide on paths. Returns SPEC_ACCEPTED, or SPEC_REPLACED
 * with the replacement in `replacement` [size]. *tries is the number of candidates drawn for the residual. It has no
 * limit; it is 0 for an accepted draft.
 *   - If p is a point (temperature 0), a draft is accepted if it equals that point.
 *   - If an inexact criterion leaves next to no residual, the replacement is a draw from p (kernels/gaussian.h).
 *   - If p or q has a NaN, the draft is rejected, and the replacement shows the NaN. */
spec_verdict spec_verify_one(const spec_method *m, const double *parameter, const spec_site *site, const float *draft,
                             const spec_address *address, float *replacement, long *tries);

/* A block of continuous drafts, one a position. */
typedef struct {
    int count;
    const float *const *draft;   /* [count][size] */
    const spec_site *site;       /* [count] */
    const spec_address *address; /* [count], all different */
    /* 1: policy STOP even if the method's is INDEPENDENT. For a block whose drafts were each drawn given the one
     * before. */
    int stop;
} spec_block;

/* The result of verifying a block. */
typedef struct {
    int accepted; /* drafts accepted */
    int final;    /* final tokens: the accepted drafts and the replacements */
    long tries;   /* candidates drawn for residuals */
} spec_outcome;

/* Verifies a block. The caller owns verdict [count] and the tokens x [count][size]. SPEC_INDEPENDENT verifies every
 * position; SPEC_STOP ends at the first rejection. */
spec_outcome spec_verify(const spec_method *m, const double *parameter, const spec_block *block, spec_verdict *verdict,
                         float *x);

#endif
