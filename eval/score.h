/* The Inception score (Salimans et al., 2016): exp of the mean over a split's images of KL(p(y|x) | p(y)), as mean and
 * standard deviation over splits. Images come one after another; each has a place in an order, which says what split it
 * is in. */
#ifndef EVAL_SCORE_H
#define EVAL_SCORE_H

#include "mar.h"

typedef enum {
    EVAL_SCORE_TORCH_FIDELITY, /* 10 contiguous splits of NumPy's RandomState(2020).permutation(images) */
    EVAL_SCORE_ADM,            /* splits of 5000 in the order that --save_npz writes (eval/order.h) */
    EVAL_SCORE_ADM_AS_GIVEN    /* splits of 5000 in the order of the images, as ADM's evaluator reads arr_0 */
} eval_score_order;

typedef struct eval_score eval_score;

/* Of `images` images, 1 to 2^31 - 1, with `classes` logits each. Memory: 4 bytes an image and 8 a class and split. The
 * caller frees it. MAR_ENOMEM. */
mar_status eval_score_create(eval_score_order order, long images, int classes, eval_score **out);
void eval_score_free(eval_score *s); /* NULL is fine */
/* Logits float [n][classes] of images first..first+n-1. Every image once, in the order of their numbers. */
void eval_score_add(eval_score *s, long first, const float *logits, int n);
/* Mean and population standard deviation over the splits, as torch-fidelity prints them; ADM's evaluator prints the
 * mean only. NaN with fewer images than splits. */
void eval_score_finish(const eval_score *s, double *mean, double *deviation);

#endif
