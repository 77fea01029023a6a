/* Deliberately wrong verifiers of whole paths, which tests of the distribution must catch. A mutant wraps a queue's
 * path_ratio or path_decide. It reads the operations' arrays, so the backend must be the CPU. */
#ifndef TESTS_PATH_MUTANTS_H
#define TESTS_PATH_MUTANTS_H

#include "kernels/ops.h"

typedef enum {
    PATH_UNCHANGED,     /* no mutant: the real operations */
    PATH_SWAPPED,       /* P and Q are swapped: every log ratio has the other sign */
    PATH_STEP_LEFT_OUT, /* the log ratio's sum lacks one step's term */
    PATH_KEEPS_ALL,     /* the residual lacks 1 - Q/P: the first candidate is kept */
    PATH_LAST_COUNTED,  /* the sum has a term of index 0, as if it added noise */
    PATH_MUTANTS
} path_mutant;

extern const char *const path_mutant_names[PATH_MUTANTS];

typedef struct {
    kern_head_ops ops; /* must be first: a mutated queue's `head` points to it */
    const kern_head_ops *real;
    path_mutant mutant;
    int left_out; /* PATH_STEP_LEFT_OUT: the index whose term is left out; negative: counted from `steps` down */
} path_mutation;

/* Gives the queue the mutant's operations until path_mutant_end. *m must live until then. */
void path_mutant_begin(path_mutation *m, kern_queue *k, path_mutant mutant, int left_out);
void path_mutant_end(path_mutation *m, kern_queue *k);

#endif
