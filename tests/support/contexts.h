/* A model and images whose tokens are all known, for tests of passes over contexts (nets/masked_contexts.h). A pass
 * sees the tokens declared known to it. */
#ifndef TESTS_CONTEXTS_H
#define TESTS_CONTEXTS_H

#include "nets/masked_contexts.h"
#include "tests/support/support.h"

enum { CONTEXT_IMAGES = 4, CONTEXT_GAMMA = 6, CONTEXT_LIST = CONTEXT_IMAGES * CONTEXT_GAMMA, CONTEXT_SEQ = 64 };

/* A pseudorandom number generator. */
typedef struct {
    uint64_t state;
} dice;

int dice_below(dice *d, int n); /* 0 .. n-1 */
void dice_shuffle(dice *d, int *x, int n);

typedef struct {
    mar *m;
    mar_model *model;
    kern_queue *k;
    int conditions, images, seq, width;
    mar_runner runner;
    void *memory;
    int labels[CONTEXT_IMAGES], order[CONTEXT_IMAGES][CONTEXT_SEQ];
} context_fixture;

/* Makes random tokens, classes and orders. close_context_fixture also closes the handle. */
void open_context_fixture(context_fixture *f, mar *m, const char *path, int conditions, int images, dice *d);
void close_context_fixture(context_fixture *f);
/* Opens a fixture's contexts, lays out their memory and begins a batch. */
void open_contexts(const context_fixture *f, int max_contexts, int chunk, masked_contexts *c, void **memory);
void close_contexts(const context_fixture *f, masked_contexts *c, void *memory);

/* Makes contexts like those of a speculation round: consecutive steps of each image from a random step on. Some ask for
 * more tokens than their step has. Image 0 begins with no token known. Returns their number: at most images * gamma. */
int random_contexts(const context_fixture *f, dice *d, int gamma, masked_context *list);
/* Computes a context's conditions by plain passes of one image: f->runner.net.z [conditions][asked][D]. */
void plain_pass(context_fixture *f, const masked_context *x);

#endif
