/* Group normalisation: sums by channel over fixed chunks of pixels, added in order, then one affine map and SiLU per
 * channel. Sums are double, because mean and variance come from one pass: E[x^2] - mean^2. */
#include "kernels/cpu/cpu.h"

#include <math.h>

enum { MAX_CHUNKS = 64, MIN_CHUNK = 16 }; /* of pixels */

static int chunk_pixels(int pixels)
{
    int chunk = (pixels + MAX_CHUNKS - 1) / MAX_CHUNKS;
    return chunk > MIN_CHUNK ? chunk : MIN_CHUNK;
}

/* Returns the bytes of double [MAX_CHUNKS][2][channels] and float [2][channels] in the first thread's work buffer. */
static size_t work_bytes(int channels)
{
    return (size_t)channels * (2 * MAX_CHUNKS * sizeof(double) + 2 * sizeof(float));
}

mar_status cpu_group_norm_plan(kern_queue *k, int images, int pixels, int channels, mar_err *err)
{
    (void)images, (void)pixels;
    return cpu_work_room(cpu_of(k), work_bytes(channels), err);
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

typedef struct {
    const cpu_device *d;
    const float *x;
    int pixels, channels, chunk; /* chunk: pixels of a chunk */
    int silu;
    double *sums;
    float *scale, *shift;
    act *y;
} group_norm;

static int pixels_of(const group_norm *g, int chunk)
{
    const int left = g->pixels - chunk * g->chunk;
    return left < g->chunk ? left : g->chunk;
}

static void sums_body(void *arg, int first, int last, int thread)
{
    const group_norm *g = arg;
    const size_t n = (size_t)g->channels;
    (void)thread;
    for (int i = first; i < last; i++) {
        double *own = g->sums + 2 * n * (size_t)i;
        memset(own, 0, 2 * n * sizeof *own);
        g->d->rows->channel_sums(g->x + n * (size_t)g->chunk * (size_t)i, pixels_of(g, i), g->channels, own, own + n);
    }
}

static void affine_body(void *arg, int first, int last, int thread)
{
    const group_norm *g = arg;
    (void)thread;
    for (int i = first; i < last; i++) {
        const size_t at = (size_t)g->channels * (size_t)g->chunk * (size_t)i;
        g->d->rows->affine_silu(g->x + at, pixels_of(g, i), g->channels, g->scale, g->shift, g->silu,
                                act_at(&g->d->base, g->y, at), g->d->bf16);
    }
}

void cpu_group_norm(kern_queue *k, const float *x, int images, int pixels, int channels, int groups,
                    const float *weight, const float *bias, float eps, int silu, act *y)
{
    cpu_queue *q = cpu_of(k);
    const size_t n = (size_t)channels;
    if (!kern_live(k)) return;
    if (!cpu_planned(q, work_bytes(channels) <= q->work_bytes, "group norm of %d channels", channels)) return;
    double *sums = q->work[0];
    float *scale = (float *)(sums + 2 * MAX_CHUNKS * n), *shift = scale + n;
    group_norm g = {q->d, x, pixels, channels, chunk_pixels(pixels), silu, sums, scale, shift, y};
    const int chunks = (pixels + g.chunk - 1) / g.chunk;
    const double work = 16.0 * pixels * channels;
    for (int i = 0; i < images; i++) {
        cpu_for(q, chunks, work, sums_body, &g);
        group_affine(sums, chunks, pixels, channels, groups, weight, bias, eps, scale, shift);
        cpu_for(q, chunks, work, affine_body, &g);
        g.x += (size_t)pixels * n;
        g.y = act_at(&q->d->base, g.y, (size_t)pixels * n);
    }
}
