/* Inception-v3 as a list of steps, sized by the tensors of a file. Private to eval/inception*.c. */
#ifndef EVAL_INCEPTION_LAYERS_H
#define EVAL_INCEPTION_LAYERS_H

#include "kernels/ops.h"
#include "weights/weights.h"

/* Sizes: input pixels per side, steps, activation arrays, bytes of a name. */
enum { INCEPTION_SIDE = 299, INCEPTION_STEPS = 128, INCEPTION_BUFFERS = 4, INCEPTION_NAME = 48 };

typedef enum {
    INCEPTION_CONV, /* convolution with batch norm and ReLU */
    INCEPTION_POOL,
    INCEPTION_TAKE, /* copies the spatial features out of array `from` */
} inception_kind;

typedef struct {
    inception_kind kind;
    char name[INCEPTION_NAME]; /* CONV: "Mixed_5b.branch1x1" */
    int in, out;               /* channels */
    int kernel_h, kernel_w;    /* CONV */
    int stride, pad_h, pad_w;  /* CONV */
    kern_pool pool;            /* POOL */
    int side, out_side;        /* x has side * side pixels, y out_side * out_side */
    int from, to;              /* arrays of x and y, 0..INCEPTION_BUFFERS-1 */
    int offset, row;           /* y starts at channel `offset` of pixels of `row` channels */
} inception_step;

typedef struct {
    inception_step steps[INCEPTION_STEPS]; /* [count] */
    int count;
    int features, classes;
    int spatial_channels, spatial_side; /* spatial features: [side][side][channels] */
    int last;                           /* array of the last activations, [last_side][last_side][features] */
    int last_side;
    size_t elements[INCEPTION_BUFFERS]; /* of each array, per image */
    long parameters;
} inception_layers;

/* Derives the steps and sizes. Returns MAR_EMODEL, naming file and tensor, if a convolution's tensor or fc.weight is
 * missing or inconsistent. */
mar_status inception_layers_derive(const wt_file *f, inception_layers *out, mar_err *err);

#endif
