/* oneDNN. No other file includes it, so its 2.x and 3.x C interfaces differ in one place.
 *
 * Whatever allocates in oneDNN runs in guarded calls (guard.h), so running out of memory is an error of these
 * functions. Every primitive is created for one thread and executed by one thread. The callers (linear.c, attention.c,
 * head.c) divide the work into fixed tiles, and the thread pool distributes them. So the arithmetic of a tile depends
 * on its shape only, never on the number of threads. */
#ifndef KERNELS_CPU_ONEDNN_H
#define KERNELS_CPU_ONEDNN_H

#include "kernels/ops.h"

typedef struct dnn dnn; /* engine and stream: any number of threads may use it at a time */

/* Opens oneDNN. `workers` threads have numbers 1 .. workers; others have none. */
mar_status dnn_open(int workers, dnn **out, mar_err *err);
void dnn_close(dnn *d);
const char *
dnn_version_text(void); /* "oneDNN 2.6.3 isa e7", the instruction set it uses; each thread has its own copy */

/* A weight matrix in oneDNN's preferred layout. It depends on n, k and the type only. */
typedef struct dnn_packed dnn_packed;

/* Packs B[k][n], given transposed as host float w[n][k]. */
mar_status dnn_pack(dnn *d, const float *w, int n, int k, int bf16, dnn_packed **out, mar_err *err);
void dnn_packed_free(dnn_packed *w);

/* A product or convolution. It is immutable. Any number of threads may run it at once, each with its own operands and
 * scratch. */
typedef struct dnn_primitive dnn_primitive;
void dnn_primitive_free(dnn_primitive *p);        /* NULL is fine */
int dnn_primitive_number(const dnn_primitive *p); /* 0, 1, ... in the order of creation */
size_t dnn_primitive_scratch_bytes(const dnn_primitive *p);
/* A thread's state to run p: oneDNN's handles, pointed at the arrays by each run. A primitive has those of the
 * workers. */
typedef struct dnn_operands dnn_operands;
mar_status dnn_operands_create(const dnn *d, const dnn_primitive *p, dnn_operands **out, mar_err *err);
void dnn_operands_free(dnn_operands *o); /* NULL is fine */
dnn_operands *dnn_worker_operands(const dnn_primitive *p, int worker);

/* C[m][n] = activation(A[m][k] B[k][n] + bias[n]) (+ C if accumulate). Leading dimensions in elements. */
typedef struct {
    int m, n, k;
    int lda, ldb, ldc;
    int bf16;                 /* A and B are bf16, and C unless c_f32; else all are f32 */
    int c_f32;                /* C is f32 */
    const dnn_packed *packed; /* a B whose layout to use; NULL: B is a plain matrix with ldb */
    int b_transposed;         /* a plain B is [n][k] */
    int has_bias;             /* a bias float [n] is given */
    int accumulate;           /* C += */
    kern_activation activation;
} dnn_matmul_spec;

/* Creates a product. Neither this nor dnn_conv_create may run on two threads at a time. */
mar_status dnn_matmul_create(dnn *d, const dnn_matmul_spec *spec, dnn_primitive **out, mar_err *err);
/* Runs a product; `w` is a packed B, `b` a plain one. Returns MAR_ENOMEM if oneDNN had no memory, MAR_EBACKEND if it
 * failed otherwise: C is then undefined. */
mar_status dnn_matmul_run(const dnn_primitive *p, dnn_operands *o, const void *a, const dnn_packed *w, const void *b,
                          const float *bias, void *c, void *scratch);

/* Convolutions of one image: x[height][width][in] -> y[..][..][out], zero padding of pad_top and pad_bottom rows and of
 * pad_side columns on either side. One thread runs a primitive; conv.c divides an image into bands of rows. */
typedef struct {
    int out, in, kernel_h, kernel_w, stride;
    int height, width;
    int pad_top, pad_bottom, pad_side;
    int bf16;       /* x and the weights are bf16, and y unless y_f32; else all are f32 */
    int y_f32;      /* y is f32 */
    int accumulate; /* y += */
} dnn_conv_spec;

/* Creates a convolution. `layout` is a hint: weights packed for another size, whose layout this convolution should
 * share. NULL is fine. */
mar_status dnn_conv_create(dnn *d, const dnn_conv_spec *spec, const dnn_packed *layout, dnn_primitive **out,
                           mar_err *err);
int dnn_conv_takes(const dnn_primitive *c, const dnn_packed *w); /* returns 1 if w has the layout c needs */
/* Packs weights for a convolution of this spec from `plain` [out][in][kernel_h][kernel_w]. With `plain` NULL it repacks
 * the same weights from another layout. */
mar_status dnn_conv_pack(dnn *d, const dnn_primitive *c, const dnn_conv_spec *spec, const float *plain,
                         const dnn_packed *packed, dnn_packed **out, mar_err *err);
/* Runs a convolution; bias float [out]. Returns as dnn_matmul_run does. */
mar_status dnn_conv_run(const dnn_primitive *c, dnn_operands *o, const void *x, const dnn_packed *w, const float *bias,
                        void *y, void *scratch);

#endif
