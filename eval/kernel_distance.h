/* Kernel (Inception) distance of images from a reference (Binkowski et al., 2018), as torch-fidelity computes it. */
#ifndef EVAL_KERNEL_DISTANCE_H
#define EVAL_KERNEL_DISTANCE_H

#include "kernels/ops.h"

/* Computes mean and population standard deviation over `subsets` pairs of subsets of `size` vectors each, drawn as
 * torch-fidelity draws them with the images first. The sets are host [reference_count][dim] and [count][dim]. MAR_EARG
 * for counts, dim, subsets or size out of range, and for numbers that are not finite; MAR_ENOMEM. */
mar_status eval_kernel_distance(kern_device *d, const float *reference, int reference_count, const float *images,
                                int count, int dim, int subsets, int size, double *mean, double *deviation,
                                mar_err *err);

#endif
