#include "kernels/int8.h"

#include <math.h>
#include <string.h>

static const float LEAST = 1e-30f;

static float greatest(const float *w, int in)
{
    float most = 0;
    for (int i = 0; i < in; i++) {
        const float magnitude = fabsf(w[i]);
        if (!isfinite(magnitude)) return NAN;
        if (magnitude > most) most = magnitude;
    }
    return most;
}

void kern_int8_quantise(const float *w, int out, int in, int8_t *q, float *scale)
{
    for (int o = 0; o < out; o++, w += in, q += in) {
        const float most = greatest(w, in);
        const int usable = most >= LEAST; /* false for NaN */
        scale[o] = usable ? most / 127.0f : isnan(most) ? NAN : 0.0f;
        if (!usable) {
            memset(q, 0, (size_t)in);
            continue;
        }
        const float factor = 127.0f / most;
        for (int i = 0; i < in; i++) q[i] = (int8_t)lrintf(w[i] * factor);
    }
}

/* Writes log2(|gain[j]| / max |w[.][j]|) of each channel to ratio, NaN where it is undefined; returns their mean. */
static float log_ratios(const float *gain, const float *w, int out, int in, float *ratio)
{
    double sum = 0;
    int n = 0;
    for (int j = 0; j < in; j++) ratio[j] = 0;
    for (int o = 0; o < out; o++, w += in)
        for (int j = 0; j < in; j++) {
            const float magnitude = fabsf(w[j]);
            if (magnitude > ratio[j] || isnan(magnitude)) ratio[j] = magnitude; /* a NaN stays */
        }
    for (int j = 0; j < in; j++) {
        ratio[j] = log2f(fabsf(gain[j])) - log2f(ratio[j]);
        if (!isfinite(ratio[j])) {
            ratio[j] = NAN;
            continue;
        }
        sum += (double)ratio[j];
        n++;
    }
    return n ? (float)(sum / n) : 0;
}

void kern_int8_smooth(const float *gain, const float *w, int out, int in, float *factor)
{
    enum { MOST = 7 };
    const float mean = log_ratios(gain, w, out, in, factor);
    for (int j = 0; j < in; j++) {
        const float exponent = rintf((factor[j] - mean) / 2);
        factor[j] = exponent >= 1 ? ldexpf(1, exponent < MOST ? (int)exponent : MOST) : 1;
    }
}

void kern_int8_restore(const int8_t *q, const float *scale, int out, int in, float *w)
{
    for (int o = 0; o < out; o++)
        for (int i = 0; i < in; i++, q++, w++) *w = (float)*q * scale[o];
}
