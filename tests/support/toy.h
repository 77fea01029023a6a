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
    long rows;        /* distributions requested from them */
    kern_queue *k;    /* where toy_laws writes; NULL: the rows are in host memory */
    int markov;       /* 1: only the token before counts */
} toy;

/* Makes a toy model. Logits are normal with deviation `spread`, added to those of `base` unless it is NULL. If zeros >
 * 0, each prefix gives probability 0 to one of the first `zeros` tokens. Aborts without memory. */
toy *toy_create(int size, int length, uint64_t seed, double spread, const toy *base, int zeros);
void toy_free(toy *t);

const float *toy_law(const toy *t, const int *prefix, int length);

/* Sequences of n tokens are numbered 0..size^n-1. The first token is the most significant digit. */
long toy_sequences(const toy *t, int n);
long toy_number(const toy *t, const int *x, int n);
void toy_probabilities(const toy *t, int n, double *probability);

/* Implements spec_model.log_probs with a toy as its state. Writes only the rows from request.from on. */
mar_status toy_laws(void *state, const causal_request *request, int n, float *log_probs, mar_err *err);

#endif
