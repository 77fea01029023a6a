/* Differences between rows, and LazyMAR's measure of how much a row has changed. */
#include "kernels/cpu/cpu.h"

#include <math.h>

static float element(const char *row, int i, int bf16)
{
    if (!bf16) return ((const float *)row)[i];
    const uint32_t bits = (uint32_t)((const uint16_t *)row)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float cosine(const char *a, const char *b, int first, int n, int bf16)
{
    float ab = 0, aa = 0, bb = 0;
    for (int i = first; i < first + n; i++) {
        const float x = element(a, i, bf16), y = element(b, i, bf16);
        ab += x * y, aa += x * x, bb += y * y;
    }
    return ab / (fmaxf(sqrtf(aa), 1e-8f) * fmaxf(sqrtf(bb), 1e-8f));
}

void cpu_similarity(kern *k, const act *a, const act *b, int stride, int rows, int heads, int head_dim, float *y)
{
    cpu_kern *c = cpu_of(k);
    const int team = cpu_team(c, 3.0 * rows * heads * head_dim);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int r = 0; r < rows; r++) {
        const size_t first = (size_t)r * (size_t)stride;
        y[r] = 0;
        for (int h = 0; h < heads; h++)
            y[r] += cosine(act_at(k, a, first), act_at(k, b, first), h * head_dim, head_dim, c->bf16) / (float)heads;
    }
}

void cpu_subtract(kern *k, const float *a, const float *b, size_t n, float *y)
{
    const int team = cpu_team(cpu_of(k), 16.0 * (double)n);
#pragma omp parallel for num_threads(team) schedule(static)
    for (size_t i = 0; i < n; i++) y[i] = a[i] - b[i];
}
