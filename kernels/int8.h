/* int8 weights: each output channel has a scale, and a weight is its int8 times it. The scale is the greatest magnitude
 * of the channel's weights over 127, so that -128 does not occur. */
#ifndef KERNELS_INT8_H
#define KERNELS_INT8_H

#include <stddef.h>
#include <stdint.h>

/* w[out][in] becomes q[out][in] and scale[out]. A channel that has a NaN or an infinity has a scale of NaN and zeros,
 * so that results show it; one whose magnitudes are all below 1e-30 has a scale of 0. */
void kern_int8_quantise(const float *w, int out, int in, int8_t *q, float *scale);

/* Smoothing for a layer w[out][in] whose operands come from a norm with this gain[in]: factor[j], a power of two in 1
 * .. 128, is what to divide the norm's gain and bias of channel j by and to multiply the layer's column j by. The
 * product stays what it is, to the bit before quantisation, but for numbers that f32 has no exponent for. A channel
 * that the norm makes much larger than others no longer takes the integers of the others' operands: its size goes to
 * the weights, half of it as an exponent. This is SmoothQuant (Xiao et al., 2023) with |gain| in place of the greatest
 * operand, so it needs no calibration: factor ~ sqrt(|gain[j]| / max |w[.][j]|), relative to the channels' geometric
 * mean. It is never below 1: a norm has a small gain, too, where it makes up for large numbers in front of it. Where
 * gain or column is zero or not finite, factor is 1. */
void kern_int8_smooth(const float *gain, const float *w, int out, int in, float *factor);

/* The weights that q and scale stand for. */
void kern_int8_restore(const int8_t *q, const float *scale, int out, int in, float *w);

#endif
