/* The only file that sees oneDNN, so that its 2.x and 3.x C interfaces differ in one place.
 *
 * Matrix products: every primitive is created for one thread and executed by one thread; the callers
 * (linear.c, attention.c, head.c) cut the work into fixed tiles and share them out. So the arithmetic of a tile
 * depends on its shape only, never on the number of threads. */
#ifndef KERNELS_CPU_ONEDNN_H
#define KERNELS_CPU_ONEDNN_H

#include "base/error.h"

#include <stddef.h>

typedef struct dnn dnn; /* engine and stream */

mar_status dnn_open(int threads, dnn **out, mar_err *err); /* `threads` callers at a time */
void dnn_close(dnn *d);
const char *dnn_version_text(void); /* "oneDNN 2.6.3" */

/* A weight matrix in the layout oneDNN likes best; the layout depends on n, k and the type only. */
typedef struct dnn_packed dnn_packed;

/* Packs B[k][n], given transposed as host float w[n][k]. */
mar_status dnn_pack(dnn *d, const float *w, int n, int k, int bf16, dnn_packed **out, mar_err *err);
void dnn_packed_free(dnn_packed *w);

typedef enum { DNN_NONE, DNN_GELU_ERF, DNN_SILU } dnn_activation;

/* C[m][n] = activation(A[m][k] B[k][n] + bias[n]) (+ C if accumulate). Leading dimensions in elements. */
typedef struct {
    int m, n, k;
    int lda, ldb, ldc;
    int bf16; /* A and B (and C unless c_f32) are bf16, else f32 */
    int c_f32;
    const dnn_packed *packed; /* any B of the layout to be used; NULL: B is a plain matrix with ldb */
    int b_transposed;         /* plain B is [n][k] */
    int has_bias;             /* float [n] */
    int accumulate;
    dnn_activation activation;
} dnn_matmul_spec;

typedef struct dnn_matmul dnn_matmul;

mar_status dnn_matmul_create(dnn *d, const dnn_matmul_spec *spec, dnn_matmul **out, mar_err *err);
void dnn_matmul_free(dnn_matmul *p);
size_t dnn_matmul_scratch_bytes(const dnn_matmul *p);
/* May run in several threads at once, each with its own index 0..threads-1 and scratch. `w` for a packed B, else
 * `b`. Allocates nothing. */
void dnn_matmul_run(const dnn_matmul *p, int thread, const void *a, const dnn_packed *w, const void *b,
                    const float *bias, void *c, void *scratch);

/* Convolutions of one image: x[height][width][in] -> y[..][..][out], stride 1, zero padding of pad_top and
 * pad_bottom rows and of pad_side columns on either side. Like products, one thread runs one primitive; conv.c cuts
 * an image into bands of rows. */
typedef struct {
    int out, in, kernel;
    int height, width;
    int pad_top, pad_bottom, pad_side;
    int bf16; /* x and the weights (and y unless y_f32) are bf16, else f32 */
    int y_f32;
    int accumulate; /* y += */
} dnn_conv_spec;

typedef struct dnn_conv dnn_conv;

/* `layout` is a wish: weights packed for another size that this convolution should take, too. NULL is fine. */
mar_status dnn_conv_create(dnn *d, const dnn_conv_spec *spec, const dnn_packed *layout, dnn_conv **out, mar_err *err);
void dnn_conv_free(dnn_conv *c);
size_t dnn_conv_scratch_bytes(const dnn_conv *c);
int dnn_conv_takes(const dnn_conv *c, const dnn_packed *w); /* whether w has the layout that c needs */
/* Packs for c from plain [out][in][kernel][kernel], or, if that is NULL, from the same weights packed otherwise. */
mar_status dnn_conv_pack(dnn *d, const dnn_conv *c, const float *plain, const dnn_packed *packed, dnn_packed **out,
                         mar_err *err);
/* As dnn_matmul_run. bias float [out]. */
void dnn_conv_run(const dnn_conv *c, int thread, const void *x, const dnn_packed *w, const float *bias, void *y,
                  void *scratch);

#endif
