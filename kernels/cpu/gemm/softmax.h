/* The softmax of a row of scores, compiled once per instruction set: in softmax.c, and in each micro-kernel's file. */
#ifndef KERNELS_CPU_GEMM_SOFTMAX_H
#define KERNELS_CPU_GEMM_SOFTMAX_H

#include "kernels/cpu/gemm/vector.h"

#include <math.h>

/* Returns the largest of v's lanes. */
static inline float softmax_largest(floats v)
{
    float lane[LANES];
    memcpy(lane, &v, sizeof lane);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) lane[j] = lane[j + half] > lane[j] ? lane[j + half] : lane[j];
    return lane[0];
}

static inline float softmax_sum(floats v)
{
    float lane[LANES];
    memcpy(lane, &v, sizeof lane);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) lane[j] += lane[j + half];
    return lane[0];
}

/* Returns the largest of a row's first `whole` values, whole vectors, and of `end`. A NaN may be passed
 * over: it makes the sum NaN. */
static inline float softmax_top(const float *s, int whole, floats end)
{
    enum { CHAINS = 4 }; /* one would wait for itself */
    floats top[CHAINS] = {end, end, end, end};
    int i = 0;
    for (; i + CHAINS * LANES <= whole; i += CHAINS * LANES) {
        UNROLL
        for (int c = 0; c < CHAINS; c++) top[c] = larger(load_floats(s + i + c * LANES), top[c]);
    }
    for (; i < whole; i += LANES) top[0] = larger(load_floats(s + i), top[0]);
    return softmax_largest(larger(larger(top[0], top[1]), larger(top[2], top[3])));
}

/* y = softmax(scale * s), n values; s is overwritten, y may be s. The last values, fewer than LANES, are computed in a
 * vector of their own. Its other lanes add exp_v's least value, 2e-38, to a sum of 1 or more. A NaN makes the sum NaN,
 * so all results. */
static inline void softmax_row(float *s, int n, float scale, float *y)
{
    const int whole = n / LANES * LANES;
    floats end = all(-INFINITY), sum = all(0);
    memcpy(&end, s + whole, (size_t)(n - whole) * sizeof *s);
    const floats most = all(softmax_top(s, whole, end));
    for (int i = 0; i < whole; i += LANES) {
        const floats e = exp_v((load_floats(s + i) - most) * scale);
        memcpy(s + i, &e, sizeof e);
        sum += e;
    }
    end = exp_v((end - most) * scale);
    const float inv = 1 / softmax_sum(sum + end);
    for (int i = 0; i < whole; i += LANES) {
        const floats p = load_floats(s + i) * inv;
        memcpy(y + i, &p, sizeof p);
    }
    end *= inv;
    memcpy(y + whole, &end, (size_t)(n - whole) * sizeof *y);
}

/* Returns 2^x for x <= 1 with a relative error below 4e-6, a thousandth of bf16's spacing; at least 2^-126. NaN for
 * NaN. The polynomial's largest relative error over -0.5 .. 0.5 is least. */
static inline floats softmax_power(floats x)
{
    x = larger(all(-126), x);
    const floats sum = x + 12582912.0f, r = x - (sum - 12582912.0f);
    floats p = all(0.00957010191f);
    p = multiply_add_v(p, r, all(0.0559178603f));
    p = multiply_add_v(p, r, all(0.240247448f));
    p = multiply_add_v(p, r, all(0.693121815f));
    p = multiply_add_v(p, r, all(0.999999261f));
    return p * (floats)(((uints)sum + 127) << 23);
}

/* y = exp(scale * (s - their largest)), n values, bf16. Returns 1 over the sum of the values before they are rounded:
 * the factor of results, which is cheaper than one of each weight. Other lanes of the last vector and NaN as above. */
static inline float softmax_weights(const float *s, int n, float scale, uint16_t *y)
{
    const int whole = n / LANES * LANES;
    floats end = all(-INFINITY), sum = all(0);
    memcpy(&end, s + whole, (size_t)(n - whole) * sizeof *s);
    const float factor = scale * 1.44269504f;
    const floats shift = all(softmax_top(s, whole, end) * -factor);
    for (int i = 0; i < whole; i += LANES) {
        const floats e = softmax_power(multiply_add_v(load_floats(s + i), all(factor), shift));
        const halves h = to_bf16(e);
        memcpy(y + i, &h, sizeof h);
        sum += e;
    }
    end = softmax_power(multiply_add_v(end, all(factor), shift));
    const halves h = to_bf16(end);
    memcpy(y + whole, &h, (size_t)(n - whole) * sizeof *y);
    return 1 / softmax_sum(sum + end);
}

#endif
