/* Tests the paths that a session with --spec path keeps. A spy wraps the session's path_ratio and path_decide and
 * stores the path of every accepted or replaced token. spy_whiten then computes the target's distribution of these
 * paths independently, from the finished images. It uses plain passes over the tokens before each step, without rounds,
 * drafts or contexts.
 *
 * Under that distribution the innovations u = (state after an index - mean) / standard deviation are independent
 * standard normals. So is the coordinate along the gap between the means of draft and target. For the gap depends only
 * on the past. A wrong verifier favours one of its two sides. */
#ifndef TESTS_PATH_SPY_H
#define TESTS_PATH_SPY_H

#include "diffusion/paths.h"
#include "mar/masked.h"
#include "tests/support/path_mutants.h"

/* Deliberately wrong sessions. Those before SPY_PATH_MUTANTS are path_mutants. */
typedef enum {
    SPY_PATH_MUTANTS = PATH_MUTANTS,
    SPY_ACCEPTS_ALL = PATH_MUTANTS, /* Q is the verifying pass's distribution: every ratio is 1 */
    SPY_KEEPS_BEHIND,               /* a round ends one step after its first replacement's, if there is room */
    SPY_MUTANTS
} spy_mutant;

const char *spy_mutant_name(int mutant);

typedef struct {
    kern_head_ops ops; /* the operations that the session's queue calls */
    kern_queue *k;
    const kern_head_ops *real;
    path_mutation mutation;
    const kern_head_ops *inner; /* the mutant's, or real */
    int mutant;
    uint64_t first_image;
    int images, seq_len, most_replaced, channels, steps, stride;
    float *judged; /* [rows][stride + steps * channels] paths since the last verdict, other distribution's means */
    int rows, room;
    float *kept;  /* [images][seq_len][stride + steps * channels] paths of the kept tokens */
    uint8_t *has; /* [images][seq_len] */
} path_spy;

/* Begins to spy on a session with a batch of images first_image, ... The head has one number of diffusion steps. */
void spy_begin(path_spy *spy, mar_session *s, uint64_t first_image, int images, int mutant);
/* The same for a queue that makes the images, of seq_len tokens, in any order. most_replaced: the tokens that the
 * session has room to replace at the end of a round. */
void spy_begin_on(path_spy *spy, kern_queue *k, int seq_len, int most_replaced, uint64_t first_image, int images,
                  int mutant);
void spy_end(path_spy *spy); /* the session continues without the spy */

/* Innovations of tokens, by step index; arrays grow. */
typedef struct {
    int steps, channels;
    size_t tokens, room;
    float *u;   /* [steps+1][room][channels] of the state after an index; entry `steps`: x_T; entry 0 is unused */
    float *gap; /* [steps+1][room][channels] mean under Q minus mean under P, in standard deviations */
    double off; /* largest difference of a token from its path's end under the distribution of its draw */
} innovations;

/* Adds the innovations of the spy's tokens. label [images] and tokens [images][seq_len][token_dim] are the session's.
 * block: number of steps that share a context, 1 except with context prefix. */
void spy_whiten(const path_spy *spy, const mar_model *target, const mar_params *p, int block, const int *label,
                const float *tokens, innovations *out);
/* Adds the innovations of tokens place[0..count-1], image * seq_len + position, under the target's head `by` and the z
 * of `tokens`. The other arrays are backend memory for them. */
void spy_judge(const path_spy *spy, kern_queue *k, diff_paths *by, const diff_tokens *tokens, const size_t *place,
               float *path, double *log_ratio, float *last, innovations *out);
void innovations_free(innovations *v);

/* p-values of quantities that must be standard normal, each corrected for the number of indices. */
typedef struct {
    double normal;   /* all innovations of an index: Kolmogorov-Smirnov */
    double along;    /* coordinates along the gap: Kolmogorov-Smirnov */
    double balance;  /* sum of gap times innovation over all indices and tokens, in its standard deviations */
    double square;   /* sum of all squares */
    double worst;    /* least p-value, corrected for their number */
    double mean_gap; /* root mean square of a path's gap, not a p-value */
} innovation_test;
innovation_test innovations_test(const innovations *v);

#endif
