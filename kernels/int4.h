/* int4 weights in groups: KERN_INT4_GROUP weights of a row, neighbours along the input, share a scale. weight = code *
 * scale, code -8..7. A byte has two codes plus 8, the first in its low half. Scales are bf16 of either sign: the weight
 * of the largest magnitude then takes the code -8 or near it, whatever its sign.
 *
 * A search over seven scales takes the one of the least squared error. On normal numbers the error is 0.081 of the
 * weights, root mean square; 0.086 without the search, and 0.097 with codes -7..7 and the magnitude over 7. */
#ifndef KERNELS_INT4_H
#define KERNELS_INT4_H

#include <stddef.h>
#include <stdint.h>

enum { KERN_INT4_GROUP = 32, KERN_INT4_BYTES = KERN_INT4_GROUP / 2, KERN_INT4_ZERO = 8 };

/* Quantises w[out][in] to q[out][in/2] and scale[out][in/32]. `in` is a multiple of KERN_INT4_GROUP. A group with a NaN
 * or an infinity gets a NaN scale, so that results show it. A group with all magnitudes below 1e-30 gets scale 0. */
void kern_int4_quantise(const float *w, int out, int in, uint8_t *q, uint16_t *scale);

/* Restores the weights w = code * scale. */
void kern_int4_restore(const uint8_t *q, const uint16_t *scale, int out, int in, float *w);

#endif
