/* Group normalisation: sums by channel over fixed chunks of pixels, added up in order, then one affine map and SiLU a
 * channel. Sums are double, because mean and variance come from one pass: E[x^2] - mean^2. */
#include "kernels/cpu/cpu.h"

#include <math.h>

enum { MAX_CHUNKS = 64, MIN_CHUNK = 16 }; /* pixels */

static int chunk_pixels(int pixels)
{
    int chunk = (pixels + MAX_CHUNKS - 1) / MAX_CHUNKS;
    return chunk > MIN_CHUNK ? chunk : MIN_CHUNK;
}

/* The first thread's work buffer has double [MAX_CHUNKS][2][channels], then float [2][channels]. */
static size_t work_bytes(int channels)
{
    return (size_t)channels * (2 * MAX_CHUNKS * sizeof(double) + 2 * sizeof(float));
}

mar_status cpu_group_norm_plan(kern *kern_, int pixels, int channels, mar_err *err)
{
    cpu_kern *k = cpu_of(kern_);
    (void)pixels;
    return cpu_grow(k, k->work, &k->work_bytes, work_bytes(channels), err);
}

/* Computes scale and shift [channels], so that x*scale + shift normalises a channel. sums [chunks][2][channels]. */
static void group_affine(const double *sums, int chunks, int pixels, int channels, int groups, const float *weight,
                         const float *bias, float eps, float *scale, float *shift)
{
    const int size = channels / groups;
    const double count = (double)pixels * size;
    for (int g = 0; g < groups; g++) {
        double sum = 0, square = 0;
        for (int i = 0; i < chunks; i++)
            for (int c = g * size; c < (g + 1) * size; c++) {
                sum += sums[(size_t)(2 * i) * (size_t)channels + (size_t)c];
                square += sums[(size_t)(2 * i + 1) * (size_t)channels + (size_t)c];
            }
        const double mean = sum / count, variance = fmax(square / count - mean * mean, 0.0);
        const double inv = 1.0 / sqrt(variance + (double)eps);
        for (int c = g * size; c < (g + 1) * size; c++) {
            scale[c] = (float)(inv * weight[c]);
            shift[c] = (float)(bias[c] - mean * inv * weight[c]);
        }
    }
}

void cpu_group_norm(kern *kern_, const float *x, int pixels, int channels, int groups, const float *weight,
                    const float *bias, float eps, int silu, act *y)
{
    cpu_kern *k = cpu_of(kern_);
    const int chunk = chunk_pixels(pixels), chunks = (pixels + chunk - 1) / chunk;
    const size_t n = (size_t)channels;
    if (k->work_bytes < work_bytes(channels)) {
        mar_err err = {0};
        kern_fail(kern_, err_set(&err, MAR_EBACKEND, "group norm of %d channels without a plan", channels), &err);
        return;
    }
    double *sums = k->work[0];
    float *scale = (float *)(sums + 2 * MAX_CHUNKS * n), *shift = scale + n;
#pragma omp parallel num_threads(k->threads) if (chunks > 1)
    {
#pragma omp for schedule(dynamic, 1)
        for (int i = 0; i < chunks; i++) {
            const int count = i + 1 < chunks ? chunk : pixels - i * chunk;
            double *own = sums + 2 * n * (size_t)i;
            memset(own, 0, 2 * n * sizeof *own);
            k->rows->channel_sums(x + n * (size_t)chunk * (size_t)i, count, channels, own, own + n);
        }
#pragma omp single
        group_affine(sums, chunks, pixels, channels, groups, weight, bias, eps, scale, shift);
#pragma omp for schedule(dynamic, 1)
        for (int i = 0; i < chunks; i++) {
            const int count = i + 1 < chunks ? chunk : pixels - i * chunk;
            const size_t at = n * (size_t)chunk * (size_t)i;
            k->rows->affine_silu(x + at, count, channels, scale, shift, silu, act_at(kern_, y, at), k->bf16);
        }
    }
}
