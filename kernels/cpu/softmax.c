/* The softmax of rows.h, compiled once per instruction set like rows.c. */
#include "kernels/cpu/gemm/vector.h"
#include "kernels/cpu/rows.h"

#include <math.h>

#define PASTE_(a, b) a##_##b
#define PASTE(a, b)  PASTE_(a, b)

/* Returns the largest of v's lanes. */
static inline float largest(floats v)
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

/* The last values, fewer than LANES, are computed in a vector of their own. Its other lanes add exp_v's least value,
 * 2e-38, to a sum of 1 or more. A NaN makes the sum NaN, so all results. */
void PASTE(kern_softmax, KERN_ISA)(float *s, int n, float scale, void *y, int bf16)
{
    const int whole = n / LANES * LANES;
    floats end = all(-INFINITY), sum = all(0);
    memcpy(&end, s + whole, (size_t)(n - whole) * sizeof *s);
    floats top = end;
    for (int i = 0; i < whole; i += LANES) top = larger(load_floats(s + i), top);
    const floats most = all(largest(top));
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
