/* What a session with --spec path keeps, looked at from outside. A spy stands around the session's path_ratio and
 * path_decide and remembers the path of every token that was verified or replaced. spy_whiten then computes the
 * target's distribution of these paths by itself, from the finished images: plain passes over the tokens before each
 * step, which know nothing of rounds, drafts and contexts.
 *
 * Under that distribution the innovations u = (state after an index - mean) / standard deviation are independent
 * standard normals, and so is the coordinate along the gap between the means of draft and target, since the gap depends
 * on what came before only. A verifier that is wrong favours one of the two sides there. */
#ifndef TESTS_PATH_SPY_H
#define TESTS_PATH_SPY_H

#include "mar/masked/masked.h"
#include "tests/support/path_mutants.h"

/* Sessions that are wrong on purpose. Those before SPY_PATH_MUTANTS are path_mutants. */
typedef enum {
    SPY_PATH_MUTANTS = PATH_MUTANTS,
    SPY_ACCEPTS_ALL = PATH_MUTANTS, /* Q is that of the pass that verifies: every ratio is 1 */
    SPY_KEEPS_BEHIND,               /* a round ends one step behind that of its first replacement */
    SPY_MUTANTS
} spy_mutant;

const char *spy_mutant_name(int mutant);

typedef struct {
    kern_head_ops ops; /* what the session's queue calls */
    kern_queue *k;
    const kern_head_ops *real;
    path_mutation mutation;
    const kern_head_ops *inner; /* the mutant's, or real */
    int mutant;
    uint64_t first_image;
    int images, seq_len, channels, steps, stride;
    float *
        judged; /* [rows][stride + steps * channels] paths since the last verdict, and the other distribution's means */
    int rows, room;
    float *kept;  /* [images][seq_len][stride + steps * channels] of tokens that stayed */
    uint8_t *has; /* [images][seq_len] */
} path_spy;

/* The session has a batch of images first_image, ... Its head has one number of diffusion steps. */
void spy_begin(path_spy *spy, mar_session *s, uint64_t first_image, int images, int mutant);
void spy_end(path_spy *spy); /* the session works on without it */

/* Innovations of tokens, by step index; arrays grow. */
typedef struct {
    int steps, channels;
    size_t tokens, room;
    float *u;   /* [steps+1][room][channels] of the state after an index; entry `steps`: x_T. Entry 0 is not used */
    float *gap; /* [steps+1][room][channels] mean under Q less mean under P, in standard deviations */
    double off; /* largest difference of an image's token from what the path ends in, under the distribution it was
                   drawn from */
} innovations;

/* Adds those of the spy's tokens. label [images]; tokens [images][seq_len][token_dim] are the session's. block: steps
 * that share a context; 1 but in context prefix. */
void spy_whiten(const path_spy *spy, const mar_model *target, const mar_params *p, int block, const int *label,
                const float *tokens, innovations *out);
void innovations_free(innovations *v);

/* p-values of what must be standard normal, each corrected for the number of indices. */
typedef struct {
    double normal;   /* all innovations of an index: Kolmogorov-Smirnov */
    double along;    /* coordinates along the gap: Kolmogorov-Smirnov */
    double balance;  /* sum of gap times innovation over all indices and tokens, in its standard deviations */
    double square;   /* sum of all squares */
    double worst;    /* the least of them, corrected for their number */
    double mean_gap; /* root mean square of a path's gap, no p-value */
} innovation_test;
innovation_test innovations_test(const innovations *v);

#endif
