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
    for (; i + CHAINS * LANES <= whole; i += CHAINS * LANES)
#pragma GCC unroll 4
        for (int c = 0; c < CHAINS; c++) top[c] = larger(load_floats(s + i + c * LANES), top[c]);
    for (; i < whole; i += LANES) top[0] = larger(load_floats(s + i), top[0]);
    return softmax_largest(larger(larger(top[0], top[1]), larger(top[2], top[3])));
}

/* y = softmax(scale * s), n values, bf16 or float; s is overwritten. The last values, fewer than LANES, are computed in
 * a vector of their own. Its other lanes add exp_v's least value, 2e-38, to a sum of 1 or more. A NaN makes the sum
 * NaN, so all results. */
static inline void softmax_row(float *s, int n, float scale, void *y, const int bf16)
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
        const halves h = to_bf16(p);
        if (bf16)
            memcpy((uint16_t *)y + i, &h, sizeof h);
        else
            memcpy((float *)y + i, &p, sizeof p);
    }
    end *= inv;
    const halves h = to_bf16(end);
    if (bf16)
        memcpy((uint16_t *)y + whole, &h, (size_t)(n - whole) * sizeof(uint16_t));
    else
        memcpy((float *)y + whole, &end, (size_t)(n - whole) * sizeof(float));
}

#endif
