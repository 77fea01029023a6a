/* FP8 operands: E4M3 numbers (a sign, 4 bits of exponent, 3 of mantissa; the largest is 448, the least normal one 2^-6)
 * and a scale for each row of the input and for each output channel. number = E4M3 * scale. One source for host and
 * device.
 *
 * A scale is a power of two, the least with which the row's largest magnitude is at most 448. It shifts exponents, so
 * it rounds nothing: a product of scaled numbers has the bits of the scaled product. The CPU backend multiplies the
 * numbers, a GPU the E4M3 and then the scales. A scale of 448 would round no better, for E4M3 is a float. */
#ifndef KERNELS_FP8_H
#define KERNELS_FP8_H

#include "kernels/ops.h"

#include <string.h>

enum { KERN_FP8_MULTIPLE = 16 }; /* inputs and outputs of a layer are multiples of it, or it is none of FP8 */

/* Returns whether a linear layer is multiplied in FP8. */
static inline int kern_fp8_takes(const kern_device *d, int flags, int out, int in)
{
    return d->fp8 && flags & KERN_LOW && !(flags & KERN_IN_F32) && out % KERN_FP8_MULTIPLE == 0 &&
           in % KERN_FP8_MULTIPLE == 0;
}

KERN_FN uint32_t kern_fp8_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
KERN_FN float kern_fp8_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Returns the scale of a row by its largest magnitude; NaN of a NaN or an infinity. *inverse is its inverse. */
KERN_FN float kern_fp8_scale(float most, float *inverse)
{
    const uint32_t bits = kern_fp8_bits(most), up = (bits + 0x1fffff) >> 23; /* 448 is 1.75 * 2^8 */
    const uint32_t exponent = up < 8 + 27 ? 27 : up - 8;                     /* at least 2^-100 */
    *inverse = bits < 0x7f800000 ? kern_fp8_float((254 - exponent) << 23) : NAN;
    return bits < 0x7f800000 ? kern_fp8_float(exponent << 23) : NAN;
}

/* Returns x, |x| <= 448, rounded to the nearest E4M3, ties to even. */
KERN_FN float kern_fp8_round(float x)
{
    const uint32_t exponent = kern_fp8_bits(x) >> 23 & 255, least = 127 - 6;
    /* 1.5 * 2^23 units of the last place that remains */
    const float much = kern_fp8_float(((exponent < least ? least : exponent) + 20) << 23 | 0x400000);
    return (x + much) - much;
}

/* Returns the bits of an E4M3. */
KERN_FN uint8_t kern_fp8_code(float x)
{
    const uint32_t bits = kern_fp8_bits(x), most = bits & 0x7fffffff, normal = (127 - 6) << 23;
    const uint32_t code = most < normal ? (uint32_t)(kern_fp8_float(most) * 512) : (most >> 20) - ((127 - 7) << 3);
    return (uint8_t)((bits >> 24 & 0x80) | code);
}

#endif
