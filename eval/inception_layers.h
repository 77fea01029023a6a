/* Inception-v3 as a list of steps, with the sizes that the tensors of a file imply. Private to eval/inception*.c. */
#ifndef EVAL_INCEPTION_LAYERS_H
#define EVAL_INCEPTION_LAYERS_H

#include "kernels/ops.h"
#include "weights/weights.h"

/* Steps of the network, and its arrays of activations. */
enum { INCEPTION_SIDE = 299, INCEPTION_STEPS = 128, INCEPTION_BUFFERS = 4, INCEPTION_NAME = 48 };

typedef enum {
    INCEPTION_CONV, /* a convolution with its batch norm and ReLU */
    INCEPTION_POOL,
    INCEPTION_TAKE, /* the spatial features are taken from the array `from` */
} inception_kind;

typedef struct {
    inception_kind kind;
    char name[INCEPTION_NAME]; /* of a convolution: "Mixed_5b.branch1x1" */
    int in, out;               /* channels */
    int kernel_h, kernel_w;    /* of a convolution */
    int stride, pad_h, pad_w;  /* of a convolution */
    kern_pool pool;            /* of a pool */
    int side, out_side;        /* x has side * side pixels, y out_side * out_side */
    int from, to;              /* the arrays of x and y, 0..INCEPTION_BUFFERS-1 */
    int offset, row;           /* y begins at channel `offset` of pixels of `row` channels */
} inception_step;

typedef struct {
    inception_step steps[INCEPTION_STEPS]; /* [count] */
    int count;
    int features, classes;
    int spatial_channels, spatial_side; /* the spatial features: [side][side][channels] */
    int last;                           /* the array with the last activations, [last_side][last_side][features] */
    int last_side;
    size_t elements[INCEPTION_BUFFERS]; /* of each array, for an image */
    long parameters;
} inception_layers;

/* Fills *out. MAR_EMODEL, naming file and tensor, if a tensor of a convolution or fc.weight is missing or does not fit
 * the others. */
mar_status inception_layers_derive(const wt_file *f, inception_layers *out, mar_err *err);

#endif
