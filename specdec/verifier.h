/* The verifier: one interface for every speculative method, for discrete and continuous tokens.
 *
 * A round proposes a block of drafts. Draft x_i was drawn from q_i, and verification turns it into a token of the
 * target's law p_i. A method is four choices:
 *   criterion  f_i(x): the probability that x_i is accepted;
 *   resampler  G_i: the law of what replaces a rejected x_i;
 *   policy     what a rejection does to the rest of the block;
 *   topology   the shape of the block.
 * Each method is one file, specdec/methods/NAME.c, that fills a spec_method, and one line in specdec/registry.c.
 * Criterion and resampler are data, which the operations of a backend run by: kern_discrete_ops.verify on blocks of
 * discrete tokens (kernels/discrete.h), kern_head_ops.verify on continuous ones. Nothing is allocated. */
#ifndef SPECDEC_VERIFIER_H
#define SPECDEC_VERIFIER_H

#include "kernels/discrete.h"
#include "kernels/residual.h"

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
    int neighbours;        /* needs a table of neighbours (specdec/neighbours.h) */
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

typedef enum {
    SPEC_DROPPED = KERN_DRAFT_DROPPED,   /* not reached, or not on the path taken */
    SPEC_ACCEPTED = KERN_DRAFT_ACCEPTED, /* the draft is kept */
    SPEC_REPLACED = KERN_DRAFT_REPLACED, /* the draft is rejected, and the replacement is in its place */
} spec_verdict;

#endif
