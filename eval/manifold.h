/* Precision and recall of images by the manifolds of their features (Kynkaanniemi et al. 2019). */
#ifndef EVAL_MANIFOLD_H
#define EVAL_MANIFOLD_H

#include "kernels/ops.h"

/* Computes precision, the share of the images inside the reference's manifold, and recall, the share of the reference
 * inside the images'. The sets are host [reference_count][dim] and [count][dim]; a ball reaches to the k-th nearest
 * neighbour. MAR_EARG for counts, dim or k out of range and for numbers that are not finite; MAR_ENOMEM. */
mar_status eval_precision_recall(kern_device *d, const float *reference, int reference_count, const float *images,
                                 int count, int dim, int k, double *precision, double *recall, mar_err *err);

#endif
