/* Search for NaN and infinity. */
#include "kernels/cpu/cpu.h"

#include <float.h>
#include <math.h>

static int floats_are_finite(const float *x, int n)
{
    int others = 0;
    for (int i = 0; i < n; i++) others |= !(fabsf(x[i]) <= FLT_MAX);
    return !others;
}

static int bf16_are_finite(const uint16_t *x, int n)
{
    int others = 0;
    for (int i = 0; i < n; i++) others |= (x[i] & 0x7f80) == 0x7f80; /* all exponent bits set */
    return !others;
}

int cpu_first_nonfinite(kern_queue *k, const void *x, mar_dtype type, int rows, int width, int stride)
{
    const int bf16 = cpu_of(k)->d->bf16 && type != MAR_DTYPE_F32;
    if (k->failed != MAR_OK) return -1;
    for (int r = 0; r < rows; r++) {
        const size_t first = (size_t)r * (size_t)stride;
        if (bf16 ? !bf16_are_finite((const uint16_t *)x + first, width)
                 : !floats_are_finite((const float *)x + first, width))
            return r;
    }
    return -1;
}
