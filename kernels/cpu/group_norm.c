/* Group normalisation: sums by channel over fixed chunks of pixels, added in order, then one affine map and SiLU per
 * channel, or per channel and cell. Sums are double, because mean and variance come from one pass: E[x^2] - mean^2. A
 * chunk's sums are added pixel by pixel, so that an image may come in parts (group_sums). */
#include "kernels/cpu/cpu.h"

#include <math.h>

enum { MIN_CHUNK = 16 }; /* pixels */

static int chunk_pixels(int pixels)
{
    const int chunk = cpu_divide_up(pixels, KERN_NORM_CHUNKS);
    return chunk > MIN_CHUNK ? chunk : MIN_CHUNK;
}

/* Returns the bytes of double [KERN_NORM_CHUNKS][2][channels] and float [2][channels] in the first thread's work
 * buffer, and of float [2][channels] of a cell in each. */
static size_t group_norm_work_bytes(int channels)
{
    return (size_t)channels * (2 * KERN_NORM_CHUNKS * sizeof(double) + 4 * sizeof(float));
}

mar_status cpu_group_norm_plan(kern_queue *k, int images, int pixels, int channels, mar_err *err)
{
    (void)images, (void)pixels;
    return cpu_work_room(cpu_of(k), group_norm_work_bytes(channels), err);
}

/* Computes scale and shift [channels], so that x*scale + shift normalises a channel. sums [chunks][2][channels]. */
static void group_affine(const kern_norm *norm, const double *sums, int chunks, int pixels, int channels, float *scale,
                         float *shift)
{
    const int size = channels / norm->groups;
    const double count = (double)pixels * size;
    for (int g = 0; g < norm->groups; g++) {
        double sum = 0, square = 0;
        for (int i = 0; i < chunks; i++)
            for (int c = g * size; c < (g + 1) * size; c++) {
                sum += sums[(size_t)(2 * i) * (size_t)channels + (size_t)c];
                square += sums[(size_t)(2 * i + 1) * (size_t)channels + (size_t)c];
            }
        const double mean = sum / count, variance = fmax(square / count - mean * mean, 0.0);
        const double inv = 1.0 / sqrt(variance + (double)norm->eps);
        for (int c = g * size; c < (g + 1) * size; c++) {
            const double weight = norm->cells ? 1 : norm->weight[c], bias = norm->cells ? 0 : norm->bias[c];
            scale[c] = (float)(inv * weight);
            shift[c] = (float)(bias - mean * inv * weight);
        }
    }
}

/* Part of an image, pixels first .. first + count - 1. */
typedef struct {
    const cpu_queue *q;
    const kern_norm *norm;
    const float *x; /* its first pixel */
    int first, count, channels, chunk;
    double *sums;
    float *scale, *shift;
    const float *cells; /* of the image */
    act *y;
} part;

static void sums_body(void *arg, int from, int to, int thread)
{
    const part *p = arg;
    const size_t n = (size_t)p->channels;
    (void)thread;
    for (int i = from; i < to; i++) {
        double *own = p->sums + 2 * n * (size_t)i;
        const int begin = i * p->chunk, at = begin > p->first ? begin : p->first;
        const int end = cpu_lesser(begin + p->chunk, p->first + p->count);
        if (at == begin) memset(own, 0, 2 * n * sizeof *own);
        p->q->d->rows->channel_sums(p->x + n * (size_t)(at - p->first), end - at, p->channels, own, own + n);
    }
}

static void group_norm_add_sums(cpu_queue *q, part *p)
{
    const int from = p->first / p->chunk, to = cpu_divide_up(p->first + p->count, p->chunk);
    part shifted = *p; /* cpu_for counts from 0 */
    shifted.first -= from * p->chunk;
    shifted.sums += 2 * (size_t)p->channels * (size_t)from;
    cpu_for(q, to - from, 16.0 * p->count * p->channels, sums_body, &shifted);
}

static void map_pixels(const part *p, int from, int n, const float *scale, const float *shift)
{
    const size_t at = (size_t)from * (size_t)p->channels;
    p->q->d->rows->affine_silu(p->x + at, n, p->channels, scale, shift, p->norm->silu, act_at(&p->q->d->base, p->y, at),
                               p->q->d->bf16);
}

/* Maps pixels from .. from + n - 1, by the scales and shifts of their cells. scale, shift: [channels] of one. */
static void map_cells(const part *p, int from, int n, float *scale, float *shift)
{
    const int side = p->norm->side, width = p->norm->width;
    for (const int end = from + n; from < end; from += n) {
        const int row = from / width + p->norm->top, column = from % width;
        const float *cell = p->cells + 2 * (size_t)p->channels * (size_t)(row / side * (width / side) + column / side);
        for (int c = 0; c < p->channels; c++) {
            scale[c] = p->scale[c] * cell[c];
            shift[c] = p->shift[c] * cell[c] + cell[p->channels + c];
        }
        n = cpu_lesser(side - column % side, end - from);
        map_pixels(p, from, n, scale, shift);
    }
}

static void affine_body(void *arg, int from, int to, int thread)
{
    const part *p = arg;
    float *own = (float *)((double *)p->q->work[thread] + 2 * KERN_NORM_CHUNKS * (size_t)p->channels) + 2 * p->channels;
    for (int i = from; i < to; i++) {
        const int at = i * p->chunk, n = cpu_lesser(p->chunk, p->count - at);
        if (p->cells)
            map_cells(p, at, n, own, own + p->channels);
        else
            map_pixels(p, at, n, p->scale, p->shift);
    }
}

void cpu_group_norm(kern_queue *k, const kern_norm *norm, const float *x, int images, int pixels, int channels, act *y)
{
    cpu_queue *q = cpu_of(k);
    const size_t n = (size_t)channels, image = (size_t)pixels * n;
    if (!kern_live(k)) return;
    if (!cpu_planned(q, group_norm_work_bytes(channels) <= q->work_bytes, "group norm of %d channels", channels))
        return;
    double *sums = q->work[0];
    float *scale = (float *)(sums + 2 * KERN_NORM_CHUNKS * n);
    part p = {q, norm, x, 0, pixels, channels, chunk_pixels(pixels), sums, scale, scale + n, norm->cells, y};
    const int chunks = cpu_divide_up(pixels, p.chunk), total = norm->sums ? norm->total : pixels;
    for (int i = 0; i < images; i++) {
        if (!norm->sums) group_norm_add_sums(q, &p);
        group_affine(norm, norm->sums ? norm->sums : sums, cpu_divide_up(total, chunk_pixels(total)), total, channels,
                     scale, scale + n);
        cpu_for(q, chunks, 16.0 * pixels * channels, affine_body, &p);
        p.x += image;
        p.y = act_at(&q->d->base, p.y, image);
        if (p.cells) p.cells += 2 * image / (size_t)(norm->side * norm->side);
    }
}

void cpu_group_sums(kern_queue *k, const float *x, int pixels, int channels, int first, int count, double *sums)
{
    part p = {.q = cpu_of(k),
              .x = x,
              .first = first,
              .count = count,
              .channels = channels,
              .chunk = chunk_pixels(pixels),
              .sums = sums};
    if (kern_live(k) && count > 0) group_norm_add_sums(cpu_of(k), &p);
}
