/* Products and linear layers of the CUDA backend: made by linear.cu and weights.cu, multiplied by linear.cu,
 * skinny.cu and product.cu. */
#ifndef KERNELS_CUDA_LINEAR_H
#define KERNELS_CUDA_LINEAR_H

#include "kernels/cuda/cuda.h"

/* Weights of a layer. The last two are multiplied as bf16. */
typedef enum { CUDA_F32, CUDA_BF16, CUDA_F16, CUDA_INT8, CUDA_INT4 } cuda_weights;

/* Immutable after creation. */
struct kern_linear {
    int out, in, flags, y_stride;
    kern_activation activation;
    cuda_weights form; /* x is float with CUDA_F32, f16 with CUDA_F16, else bf16 */
    mar_dtype y_type;  /* of y and bias: F32, or as x */
    size_t row_bytes;  /* from one row of weights to the next */
    void *weight;      /* [out][in]; int8 and int4 as in low_bit.cuh */
    void *scale;       /* int8: float [out]; int4: bf16 [out][groups in row_bytes] */
    void *bias;        /* [out] or NULL */
    float *unit;       /* 1 [in], then 0 [in]: the norm of kern_linear_spec is in weight and bias; else NULL */
    int fused;         /* 1: the product applies the activation */
};

/* Returns the type of a layer's operands. */
static inline mar_dtype cuda_operands(cuda_weights form)
{
    return form == CUDA_F32 ? MAR_DTYPE_F32 : form == CUDA_F16 ? MAR_DTYPE_F16 : MAR_DTYPE_BF16;
}

/* Returns the bytes of a channel's scales. */
static inline size_t cuda_scale_bytes(const kern_linear *l)
{
    return l->form == CUDA_INT4 ? l->row_bytes / 16 * sizeof(bf16) : sizeof(float);
}

/* A product y[rows][out] = x[rows][in] weight^T + bias, of matrices on the device. cuBLASLt computes it where the
 * arrays and their rows are 16-byte aligned, else a simple kernel. */
typedef struct {
    int rows, out, in;
    int x_stride, weight_stride, y_stride; /* elements from one row to the next */
    int transposed;                        /* 1: weight is [in][out], else [out][in] */
    int type;                              /* mar_dtype of x and weight: F32, BF16 or F16 */
    int y_type;                            /* of y and bias: F32, or as `type` */
    int bias;                              /* 1: a bias is given */
    int add;                               /* 1: y += */
    int then;                              /* THEN_*: operation after the sum with its bias */
} cuda_product;
enum {
    THEN_NOTHING,
    THEN_GELU, /* cuBLASLt's tanh form, within 5e-4 of the exact one; not with f32 */
    THEN_RELU,
};

/* linear.cu: chooses the algorithm of a product. It serves fewer rows, too. */
mar_status cuda_product_plan(cuda_queue *c, const cuda_product *p, mar_err *err);
void cuda_multiply(cuda_queue *c, const cuda_product *p, const void *x, const void *weight, const void *bias, void *y);

/* weights.cu: allocates and fills row_bytes, weight and scale. bias host [out]: with l->unit gets the products of
 * norm_bias added. */
mar_status cuda_load_weights(cuda_queue *c, const kern_linear_spec *spec, kern_linear *l, float *bias, mar_err *err);

/* product.cu: fused.skinny for up to product_rows rows. */
int cuda_fused_product(cuda_queue *c, const kern_linear *l, const kern_skinny_job *job);

/* low_bit.cu: packs rows of integers on the device, int8 [n][in], or int4 [n][in/2] with the lower input in the low
 * half of a byte, to `to`, rows of the layer's weights. */
void cuda_low_bit_pack(cuda_queue *c, const kern_linear *l, const void *q, int n, void *to);
/* Restores rows first .. first+n-1 to y, bf16 [n][in]. */
void cuda_low_bit_restore(cuda_queue *c, const kern_linear *l, int first, int n, bf16 *y);

#endif
