/* Discrete tokens in tests: plain definitions of acceptance criterion and residual, and the real sampler and
 * operations. A script takes their decisions, so that all can be enumerated. Faults can be planted. */
#ifndef TESTS_DISCRETE_H
#define TESTS_DISCRETE_H

#include "specdec/sampler.h"
#include "tests/support/toy.h"

enum { DISCRETE_MOST = 8 }; /* largest vocabulary of position_laws and the scripts */

/* The distributions at one position, as probabilities. */
typedef struct {
    int size;
    double p[DISCRETE_MOST], q[DISCRETE_MOST];
    kern_discrete_rule rule;
    const int *neighbours; /* [size][size] */
} position_laws;

/* Return f(x), and G given that `rejected` was rejected, [size]. G is not normalised; the second returns its sum. */
double plain_accept(const position_laws *l, int x);
double plain_residual(const position_laws *l, int rejected, double *g);
/* Writes the neighbours of each x on a circle: x, x+1, x-1, x+2, ... table [size][size] */
void circle(int size, int *table);

/* A sampler on a CPU queue. */
typedef struct {
    kern_device *device;
    kern_queue *k;
    spec_sampler *s;
    void *memory;
    spec_start start; /* seed and given tokens of the sequences that sampling_run runs */
} sampling;

/* Open a CPU with this many threads, and then a sampler on it. A failure fails the test. */
void sampling_open(sampling *g, int threads);
void sampling_create(sampling *g, const spec_model *target, const spec_model *draft, const spec_sampler_options *o,
                     int sequences, int tokens);
void sampling_close(sampling *g);
/* Begins sequences 0, 1, ...: *first, with the next image numbers. */
void sampling_begin(spec_sampler *s, const spec_start *first, int sequences);
/* Runs a batch to its end. */
void sampling_run(sampling *g, uint64_t first_image, int sequences, int n);

/* --- scripts --- */

typedef enum {
    FAULT_NONE,
    FAULT_SWAPPED,          /* accepts with q/p */
    FAULT_ALWAYS,           /* accepts everything */
    FAULT_NO_RESIDUAL,      /* replacements are drawn from p */
    FAULT_SWAPPED_RESIDUAL, /* [q - p]+ */
    FAULT_STALE_Q,          /* Jacobi: a draft's q is that of the previous round */
    FAULT_KEPT_TAIL,        /* Jacobi with STOP: the tail is not redrawn */
    FAULT_WITH_REPLACEMENT, /* siblings are drawn with replacement */
    FAULT_SORTED_SIBLINGS,  /* siblings are sorted by token id */
    FAULT_SIBLINGS_Q,       /* q without elder siblings is not normalised */
    FAULT_POINT_AS_LAW,     /* a deterministic draft is taken for a random draw */
    FAULT_WRONG_BONUS,      /* the bonus token comes from the first site's distribution */
    FAULT_SPENT_NOISE,      /* races: the noise of a position also draws its replacement */
    FAULT_NOISE_AS_COIN,    /* races: a draft's coin is a function of its position's noise */
    FAULT_SHARED_NOISE,     /* races: all positions have the same noise */
} fault;

/* Makes a queue's discrete operations decide by a script, with a fault. */
void script_install(sampling *g, fault f);
/* Runs body for every sequence of decisions. weight is the probability of the run that has just ended. */
void script_each(void (*body)(void *arg), void (*seen)(void *arg, double weight), void *arg);

/* Computes the distribution of one round's tokens in the real code. p extends them to n tokens. law [size^n] is indexed
 * by sequence number. Returns the mean number of tokens. */
double round_law(const toy *p, const toy *q, const spec_sampler_options *o, int n, double *law);

#endif
