/* A trace's operations of image decoders. */
#include "kernels/trace_call.h"

typedef struct {
    kern_trace_call o;
    const kern_conv *conv;
    const act *x;
    int images, height, width;
    void *y;
} conv_call;

TRACE_BODY(conv, conv->conv, c->conv, c->x, c->images, c->height, c->width, c->y)

static void traced_conv(kern_queue *k, const kern_conv *conv, const act *x, int images, int height, int width, void *y)
{
    kern_conv_spec s;
    k->device->measure->conv_spec(conv, &s);
    const int upsample = (s.flags & KERN_UPSAMPLE) != 0;
    const double in_pixels = (double)images * height * width, in = in_pixels * s.in;
    const double rows = (height + 2 * s.pad_h - s.kernel_h) / s.stride + 1;
    const double columns = (width + 2 * s.pad_w - s.kernel_w) / s.stride + 1;
    const double pixels = upsample ? 4 * in_pixels : images * rows * columns;
    const double taps = upsample ? 4 : (double)s.kernel_h * s.kernel_w; /* input pixels that differ, as vae_run_flop */
    const double results = pixels * s.out, weights = (double)s.out * s.in * s.kernel_h * s.kernel_w;
    const double bytes =
        kern_trace_act_bytes(k, in + weights) +
        (s.flags & KERN_OUT_F32 ? 4 * results * (s.flags & KERN_OUT_ADD ? 2 : 1) : kern_trace_act_bytes(k, results));
    const kern_trace_call o =
        kern_trace_call_of(k, (int)pixels, bytes, 2 * results * s.in * taps, "convolution %dx%d, %d to %d%s%s%s",
                           s.kernel_h, s.kernel_w, s.in, s.out, s.stride > 1 ? ", stride 2" : "",
                           upsample ? ", upsampled" : "", s.flags & KERN_OUT_ADD ? ", added" : "");
    conv_call c = {o, conv, x, images, height, width, y};
    kern_trace_run(&c.o, conv_body, &c);
}

typedef struct {
    kern_trace_call o;
    const float *x, *weight, *bias;
    int images, channels, groups, silu;
    float eps;
    act *y;
} group_norm_call;

TRACE_BODY(group_norm, conv->group_norm, c->x, c->images, c->o.rows / c->images, c->channels, c->groups, c->weight,
           c->bias, c->eps, c->silu, c->y)

static void traced_group_norm(kern_queue *k, const float *x, int images, int pixels, int channels, int groups,
                              const float *weight, const float *bias, float eps, int silu, act *y)
{
    const double n = (double)images * pixels * channels;
    const kern_trace_call o = kern_trace_call_of(k, images * pixels, 8 * n + kern_trace_act_bytes(k, n), 0,
                                                 "group norm %d%s", channels, silu ? ", silu" : "");
    group_norm_call c = {o, x, weight, bias, images, channels, groups, silu, eps, y};
    kern_trace_run(&c.o, group_norm_body, &c);
}

typedef struct {
    kern_trace_call o;
    const float *x;
    int images;
    kern_bytes how;
    uint8_t *y;
    int *found;
} to_bytes_call;

TRACE_BODY(to_bytes, conv->to_bytes, c->x, c->images, c->o.rows / c->images, c->how, c->y, c->found)

static void traced_to_bytes(kern_queue *k, const float *x, int images, int values, kern_bytes how, uint8_t *y,
                            int *found)
{
    const int n = images * values;
    const kern_trace_call o = kern_trace_call_of(k, n, 5.0 * n, 0, "pixels to bytes");
    to_bytes_call c = {o, x, images, how, y, found};
    kern_trace_run(&c.o, to_bytes_body, &c);
}

void kern_trace_conv(kern_trace *t)
{
    t->conv.conv = traced_conv;
    t->conv.group_norm = traced_group_norm;
    t->conv.to_bytes = traced_to_bytes;
}
