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
 * discrete tokens (kernels/discrete.h), and kern_head_ops.verify continuous ones. Nothing is allocated. */
#ifndef SPECDEC_VERIFIER_H
#define SPECDEC_VERIFIER_H

#include "kernels/discrete.h"
#include "kernels/residual.h"

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
    int exact; /* the output has the target's distribution, given the p and q of the sites */
    /* exact: its condition, ", given the context", or ""; else one phrase: "TV bound of Cool-SD Eq. 4, for a chain",
     * "none" */
    const char *guarantee;
    int neighbours; /* needs a table of neighbours (specdec/neighbours.h) */
    int stale;      /* drafts are drawn from the last round's distributions, changed since (SJD) */
    int coupled;    /* stale: the noise of a draft belongs to its position, not to the round (SCD); policy SPEC_STOP */
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

typedef enum {
    SPEC_DROPPED = KERN_DRAFT_DROPPED,   /* not reached, or not on the path taken */
    SPEC_ACCEPTED = KERN_DRAFT_ACCEPTED, /* the draft is kept */
    SPEC_REPLACED = KERN_DRAFT_REPLACED, /* the draft is rejected, and the replacement is in its place */
} spec_verdict;

#endif
