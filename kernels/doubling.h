/* Convolutions that double the rows and columns of an image, as four convolutions of the image itself. A result's row
 * and column have a parity each. All results of one parity have the same taps: four convolutions with a window of half
 * the size, and one of their results for each pixel. Backends share the weights of those.
 *
 * KERN_UPSAMPLE: a result of the 3x3 convolution depends on 2x2 different pixels, with sums of weights.
 * KERN_TRANSPOSED: a result of row 2 m + p gets tap ky of pixel row m + (p + pad - ky) / 2, where that is whole: two of
 * four taps, or one of two. */
#ifndef KERNELS_DOUBLING_H
#define KERNELS_DOUBLING_H

#include "kernels/ops.h"

/* Returns 1 if the convolution doubles rows and columns. */
static inline int kern_conv_doubles(int flags)
{
    return (flags & (KERN_UPSAMPLE | KERN_TRANSPOSED)) != 0;
}

/* Returns the rows, or columns, of a parity's window. A window of two begins one pixel before its result's in parity 0,
 * at it in parity 1. */
static inline int kern_conv_window(int flags, int kernel)
{
    return flags & KERN_UPSAMPLE ? 2 : flags & KERN_TRANSPOSED ? kernel / 2 : kernel;
}

/* Returns the tap of a parity's window that gets tap `y` of the kernel; -1 if none does. */
static inline int kern_conv_tap(int flags, int kernel, int parity, int y)
{
    if (flags & KERN_UPSAMPLE) return (y + 1 - parity) / 2; /* {0}, {1,2} for parity 0; {0,1}, {2} for parity 1 */
    if (kernel == 2) return y == parity ? 0 : -1;
    return (y + parity) % 2 ? (3 - parity - y) / 2 : -1;
}

/* Writes the weights of one output and one input channel of parity 0..3 (2 * row's + column's) to w [window][window].
 */
static inline void kern_conv_parity(const kern_conv_spec *s, int parity, int out, int in, float w[4])
{
    const int transposed = (s->flags & KERN_TRANSPOSED) != 0, taps = s->kernel_h * s->kernel_w;
    const int window = kern_conv_window(s->flags, s->kernel_w);
    const size_t pair =
        transposed ? (size_t)in * (size_t)s->out + (size_t)out : (size_t)out * (size_t)s->in + (size_t)in;
    const float *from = s->weight + pair * (size_t)taps;
    for (int i = 0; i < window * window; i++) w[i] = 0;
    for (int i = 0; i < taps; i++) {
        const int y = kern_conv_tap(s->flags, s->kernel_h, parity / 2, i / s->kernel_w);
        const int x = kern_conv_tap(s->flags, s->kernel_w, parity % 2, i % s->kernel_w);
        if (y >= 0 && x >= 0) w[y * window + x] += from[i];
    }
}

#endif
