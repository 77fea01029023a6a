#include "kernels/int4.h"

#include <math.h>
#include <string.h>

enum { GROUP = KERN_INT4_GROUP, LANES = 8, NAN_BF16 = 0x7fc0, ZEROS = KERN_INT4_ZERO * 0x11 };
static const float LEAST = 1e-30f;

static uint16_t int4_to_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static float int4_from_bf16(uint16_t h)
{
    const uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Returns x rounded to the nearest code. |x| is below 2^22. */
static inline float int4_code(float x)
{
    const float n = x + 12582912.0f - 12582912.0f; /* 1.5 * 2^23; vectorised, unlike rintf */
    return n < -8 ? -8 : n > 7 ? 7 : n;
}

static float int4_sum(const float lane[LANES])
{
    float sum = 0;
    for (int j = 0; j < LANES; j++) sum += lane[j];
    return sum;
}

/* Writes the codes of the least squared error for u * unit, and returns their scale. u's largest magnitude is -8. For
 * codes q the best scale is (u q) / (q q). Rounded to s * unit it leaves the error u u - s (2 u q - s q q). The largest
 * code is 6 or more, so weights restored from these codes find them again, without an error. */
static uint16_t best_codes(const float u[GROUP], float unit, float best[GROUP])
{
    static const float extremes[] = {6, 6.5f, 7, 7.5f, 8, 8.5f, 9}; /* code of the largest magnitude before rounding */
    float code[GROUP], most = -1;
    uint16_t scale = 0;
    for (size_t e = 0; e < sizeof extremes / sizeof *extremes; e++) {
        const float factor = extremes[e] / 8;
        float products[LANES] = {0}, squares[LANES] = {0};
        for (int i = 0; i < GROUP; i += LANES)
            for (int j = 0; j < LANES; j++) {
                const float q = int4_code(u[i + j] * factor);
                code[i + j] = q;
                products[j] += u[i + j] * q;
                squares[j] += q * q;
            }
        const float uq = int4_sum(products), qq = int4_sum(squares);
        const uint16_t rounded = int4_to_bf16(unit * (uq / qq));
        const float s = int4_from_bf16(rounded) / unit, gain = s * (2 * uq - s * qq);
        if (gain <= most) continue;
        most = gain;
        scale = rounded;
        memcpy(best, code, sizeof code);
    }
    return scale;
}

static void quantise_group(const float *w, uint8_t *q, uint16_t *scale)
{
    float u[GROUP], code[GROUP], extreme = 0;
    int finite = 1;
    for (int i = 0; i < GROUP; i++) {
        finite &= isfinite(w[i]) != 0;
        if (fabsf(w[i]) > fabsf(extreme)) extreme = w[i];
    }
    if (!finite || fabsf(extreme) < LEAST) {
        *scale = finite ? 0 : NAN_BF16;
        memset(q, ZEROS, KERN_INT4_BYTES);
        return;
    }
    const float unit = extreme / -8;
    for (int i = 0; i < GROUP; i++) u[i] = w[i] / unit;
    *scale = best_codes(u, unit, code);
    for (int i = 0; i < GROUP; i++) code[i] += KERN_INT4_ZERO;
    for (int i = 0; i < KERN_INT4_BYTES; i++) q[i] = (uint8_t)((int)code[2 * i] | (int)code[2 * i + 1] << 4);
}

void kern_int4_quantise(const float *w, int out, int in, uint8_t *q, uint16_t *scale)
{
    const size_t groups = (size_t)out * (size_t)(in / GROUP);
    for (size_t g = 0; g < groups; g++) quantise_group(w + g * GROUP, q + g * KERN_INT4_BYTES, scale + g);
}

void kern_int4_restore(const uint8_t *q, const uint16_t *scale, int out, int in, float *w)
{
    const size_t groups = (size_t)out * (size_t)(in / GROUP);
    for (size_t g = 0; g < groups; g++, q += KERN_INT4_BYTES, w += GROUP) {
        const float s = int4_from_bf16(scale[g]);
        for (int i = 0; i < KERN_INT4_BYTES; i++) {
            w[2 * i] = (float)((q[i] & 15) - KERN_INT4_ZERO) * s;
            w[2 * i + 1] = (float)((q[i] >> 4) - KERN_INT4_ZERO) * s;
        }
    }
}
