/* A convolution to test, for the tests of both backends. */
#ifndef TESTS_CONV_CASE_H
#define TESTS_CONV_CASE_H

#include "tests/support/support.h"

typedef struct {
    int height, width, in, out, kernel, flags;
    int more; /* images beside the first */
} conv_case;

/* Elements of x, y and the weights. */
static inline size_t in_size(const conv_case *c)
{
    return (size_t)(c->more + 1) * (size_t)c->height * (size_t)c->width * (size_t)c->in;
}

static inline size_t out_size(const conv_case *c)
{
    return (size_t)(c->more + 1) * (size_t)c->height * (size_t)c->width * (size_t)c->out *
           (c->flags & KERN_UPSAMPLE ? 4 : 1);
}

static inline size_t weight_size(const conv_case *c)
{
    return (size_t)c->out * (size_t)c->in * (size_t)(c->kernel * c->kernel);
}

/* Creates the convolution; a failure fails the test. */
static inline kern_conv *make_conv(kern_queue *k, const conv_case *c, const float *weight, const float *bias)
{
    mar_err err = {0};
    kern_conv *conv = NULL;
    const kern_conv_spec spec = {.out = c->out,
                                 .in = c->in,
                                 .kernel_h = c->kernel,
                                 .kernel_w = c->kernel,
                                 .stride = 1,
                                 .pad_h = c->kernel / 2,
                                 .pad_w = c->kernel / 2,
                                 .weight = weight,
                                 .bias = bias,
                                 .flags = c->flags};
    assert_ok(k->conv->create(k, &spec, &conv, &err), &err);
    return conv;
}

#endif
