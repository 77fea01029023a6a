#include "kernels/f16.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

void kern_f16_round(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float a = fabsf(x[i]);
        uint32_t bits;
        float y;
        memcpy(&bits, &a, sizeof bits);
        bits = (bits + 0xfffu + (bits >> 13 & 1u)) & ~0x1fffu; /* 10 bits of mantissa */
        memcpy(&y, &bits, sizeof y);
        const float small = (a + 0.75f) - 0.75f; /* a multiple of 2^-24, the step of subnormal numbers */
        y = a < 0x1p-14f ? small : y;
        y = a >= 65520 ? INFINITY : y;
        x[i] = a <= FLT_MAX ? copysignf(y, x[i]) : x[i]; /* an infinity or a NaN stays */
    }
}
