/* Discrete tokens in tests: the definitions of criterion and residual, written down plainly; and the real sampler and
 * operations with decisions that a script takes, so that all of them can be enumerated, and with faults. */
#ifndef TESTS_DISCRETE_H
#define TESTS_DISCRETE_H

#include "specdec/sampler.h"
#include "tests/support/toy.h"

enum { DISCRETE_MOST = 8 }; /* vocabulary, in the next two */

/* The distributions at one position, as probabilities. */
typedef struct {
    int size;
    double p[DISCRETE_MOST], q[DISCRETE_MOST];
    kern_discrete_rule rule;
    const int *neighbours; /* [size][size] */
} position_laws;

/* f(x), and G given that `rejected` was, [size]. G is not normalised. Returns its sum. */
double plain_accept(const position_laws *l, int x);
double plain_residual(const position_laws *l, int rejected, double *g);
/* Neighbours of x on a circle: x, x+1, x-1, x+2, ... table [size][size] */
void circle(int size, int *table);

/* A sampler on a CPU's queue. */
typedef struct {
    kern_device *device;
    kern_queue *k;
    spec_sampler *s;
    void *memory;
} sampling;

/* Opens a CPU with so many threads; then a sampler on it. A failure is the test's. */
void sampling_open(sampling *g, int threads);
void sampling_create(sampling *g, const spec_model *target, const spec_model *draft, const spec_sampler_options *o,
                     int sequences, int tokens);
void sampling_close(sampling *g);
/* Runs a batch to its end. */
void sampling_run(sampling *g, uint64_t first_image, int sequences, int n);

/* --- scripts --- */

typedef enum {
    FAULT_NONE,
    FAULT_SWAPPED,          /* accepts with q/p */
    FAULT_ALWAYS,           /* accepts everything */
    FAULT_NO_RESIDUAL,      /* replacements are draws from p */
    FAULT_SWAPPED_RESIDUAL, /* [q - p]+ */
    FAULT_STALE_Q,          /* Jacobi: a draft's q is that of the round before */
    FAULT_KEPT_TAIL,        /* Jacobi with STOP: the tail is not drawn anew */
    FAULT_WITH_REPLACEMENT, /* siblings are drawn with replacement */
    FAULT_SORTED_SIBLINGS,  /* they are in the order of their numbers */
    FAULT_SIBLINGS_Q,       /* q without elder siblings is not normalised */
    FAULT_POINT_AS_LAW,     /* a draft that could be one token only is taken for a draw */
    FAULT_WRONG_BONUS,      /* the bonus token comes from the first site's distribution */
} fault;

/* Lets a queue's discrete operations decide by a script, with a fault. */
void script_install(sampling *g, fault f);
/* Runs body for all ways that the decisions can go; weight is the probability of what it has just done. */
void script_each(void (*body)(void *arg), void (*seen)(void *arg, double weight), void *arg);

/* The distribution of one round of the real code: its tokens, extended to n from p, by their numbers, law [size^n].
 * Returns the mean of how many tokens it had. */
double round_law(const toy *p, const toy *q, const spec_sampler_options *o, int n, double *law);

#endif
