/* int8 weights: each output channel has a scale, and a weight is its int8 times it. The scale is the greatest magnitude
 * of the channel's weights over 127, so that -128 does not occur. */
#ifndef KERNELS_INT8_H
#define KERNELS_INT8_H

#include <stddef.h>
#include <stdint.h>

/* w[out][in] becomes q[out][in] and scale[out]. A channel that has a NaN or an infinity has a scale of NaN and zeros,
 * so that results show it; one whose magnitudes are all below 1e-30 has a scale of 0. */
void kern_int8_quantise(const float *w, int out, int in, int8_t *q, float *scale);

/* The weights that q and scale stand for. */
void kern_int8_restore(const int8_t *q, const float *scale, int out, int in, float *w);

#endif
