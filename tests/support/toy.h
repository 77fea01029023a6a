/* Toy causal models, small enough to enumerate: random distributions of the next token for every prefix. */
#ifndef TESTS_TOY_H
#define TESTS_TOY_H

#include "specdec/sampling.h"

#include <stdint.h>

typedef struct {
    int size, length; /* vocabulary; longest prefix that has a distribution */
    long nodes;       /* prefixes of 0..length tokens */
    float *log_probs; /* [nodes][size], normalised */
    long calls;       /* of toy_laws */
    long rows;        /* distributions that they were to make */
    kern_queue *k;    /* where toy_laws writes; NULL: the distributions' rows are host memory */
    int markov;       /* 1: only the token before counts */
} toy;

/* Logits are normal with deviation `spread`, added to the logits of `base` unless that is NULL. If zeros > 0, each
 * prefix gives probability 0 to one of the first `zeros` tokens. Aborts without memory. */
toy *toy_create(int size, int length, uint64_t seed, double spread, const toy *base, int zeros);
void toy_free(toy *t);

const float *toy_law(const toy *t, const int *prefix, int length);

/* Sequences of n tokens are numbered 0..size^n-1, the first token being the most significant digit. */
long toy_sequences(const toy *t, int n);
long toy_number(const toy *t, const int *x, int n);
void toy_probabilities(const toy *t, int n, double *probability);

/* spec_model.laws with a toy as its state. It writes the rows from request.from on only. */
mar_status toy_laws(void *state, const spec_request *request, int n, float *log_probs, mar_err *err);

#endif
