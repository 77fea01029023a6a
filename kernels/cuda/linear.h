/* A linear layer of the CUDA backend: made by linear.cu, multiplied there and by skinny.cu. */
#ifndef KERNELS_CUDA_LINEAR_H
#define KERNELS_CUDA_LINEAR_H

#include "kernels/cuda/cuda.h"

/* Weights of a layer. The last two are multiplied as bf16. */
typedef enum { CUDA_F32, CUDA_BF16, CUDA_F16, CUDA_FP8, CUDA_INT8, CUDA_INT4 } cuda_weights;

/* Immutable after creation. */
struct kern_linear {
    int out, in, flags, y_stride;
    kern_activation activation;
    cuda_weights form; /* x is float with CUDA_F32, f16 with CUDA_F16, else bf16 */
    mar_dtype y_type;  /* of y: F32, or as x; so is bias, but bf16 with CUDA_FP8 */
    size_t row_bytes;  /* from one row of weights to the next */
    void *weight;      /* [out][in]; FP8: then float [out] scales; int8 and int4 as in low_bit.cuh */
    void *scale;       /* int8: float [out]; int4: bf16 [out][groups in row_bytes]; else NULL */
    void *bias;        /* [out] or NULL */
    int fused;         /* 1: the product applies the activation */
};

/* low_bit.cu: allocates and fills weight and scale of an int8 or int4 layer. */
mar_status cuda_low_bit_create(cuda_queue *c, const kern_linear_spec *spec, kern_linear *l, mar_err *err);
/* Restores rows first .. first+n-1 to y, bf16 [n][in]. */
void cuda_low_bit_restore(cuda_queue *c, const kern_linear *l, int first, int n, bf16 *y);

#endif
