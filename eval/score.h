/* Inception score (Salimans et al., 2016): exp of the mean over a split of KL(p(y|x) | p(y)), averaged over splits.
 * Images are streamed; an order assigns each to a split. */
#ifndef EVAL_SCORE_H
#define EVAL_SCORE_H

#include "mar.h"

typedef enum {
    EVAL_SCORE_TORCH_FIDELITY, /* 10 contiguous splits of NumPy's RandomState(2020).permutation(images) */
    EVAL_SCORE_ADM,            /* splits of 5000 in the order of --save_npz (eval/order.h) */
    EVAL_SCORE_ADM_AS_GIVEN    /* splits of 5000 in image order, as ADM's evaluator reads arr_0 */
} eval_score_order;

typedef struct eval_score eval_score;

/* Creates a score of `images` images, 1 to 2^31 - 1, with `classes` logits each. Memory: 4 bytes an image and 8 per
 * class and split. The caller frees it. Returns MAR_ENOMEM. */
mar_status eval_score_create(eval_score_order order, long images, int classes, eval_score **out);
void eval_score_free(eval_score *s); /* NULL is fine */
/* Adds logits float [n][classes] of images first..first+n-1. Add every image once, in order. */
void eval_score_add(eval_score *s, long first, const float *logits, int n);
/* Computes mean and population standard deviation over the splits, as torch-fidelity prints them; ADM's evaluator
 * prints only the mean. Both are NaN with fewer images than splits. */
void eval_score_finish(const eval_score *s, double *mean, double *deviation);

#endif
