/* int8 weights with one scale per output channel: weight = int8 * scale. The scale is the channel's largest magnitude
 * over 127, so -128 does not occur. */
#ifndef KERNELS_INT8_H
#define KERNELS_INT8_H

#include <stddef.h>
#include <stdint.h>

/* Quantises w[out][in] to q[out][in] and scale[out]. A channel with a NaN or an infinity gets a NaN scale and zeros, so
 * that results show it. A channel with all magnitudes below 1e-30 gets scale 0. */
void kern_int8_quantise(const float *w, int out, int in, int8_t *q, float *scale);

/* Computes smoothing factors for a layer w[out][in] behind a norm with gain[in]. factor[j] is a power of two in 1 ..
 * 128. The norm's gain and bias of channel j are divided by it, and column j is multiplied. Before quantisation the
 * product keeps its bits, within f32's exponent range. A channel the norm makes much larger than others then no longer
 * takes up the others' integer range. Half of its exponent moves to the weights.
 *
 * This is SmoothQuant (Xiao et al., 2023) with |gain| in place of the largest operand, so it needs no calibration.
 * factor ~ sqrt(|gain[j]| / max |w[.][j]|), relative to the channels' geometric mean. It is never below 1: a norm may
 * have a small gain to make up for large inputs. It is 1 where gain or column is zero or not finite. */
void kern_int8_smooth(const float *gain, const float *w, int out, int in, float *factor);

/* Restores the weights w = q * scale. */
void kern_int8_restore(const int8_t *q, const float *scale, int out, int in, float *w);

#endif
