/* A linear layer of the CUDA backend: made by linear.cu, multiplied there and by skinny.cu. */
#ifndef KERNELS_CUDA_LINEAR_H
#define KERNELS_CUDA_LINEAR_H

#include "kernels/cuda/cuda.h"

/* Immutable after creation. */
struct kern_linear {
    int out, in, flags, y_stride;
    kern_activation activation;
    int f32, y_f32; /* types of x and weight, and of y and bias: float, else bf16 */
    void *weight;   /* [out][in] */
    void *bias;     /* [out] or NULL */
    int fused;      /* 1: the product applies the activation */
    int fp8;        /* 1: weight is E4M3 [out][in], then float [out] scales; bias is bf16 */
};

#endif
