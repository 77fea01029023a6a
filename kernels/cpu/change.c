/* Differences between rows, and LazyMAR's measure of a row's change. */
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

static float head_cosine(const char *a, const char *b, int first, int n, int bf16)
{
    float ab = 0, aa = 0, bb = 0;
    for (int i = first; i < first + n; i++) {
        const float x = element(a, i, bf16), y = element(b, i, bf16);
        ab += x * y, aa += x * x, bb += y * y;
    }
    return ab / (fmaxf(sqrtf(aa), 1e-8f) * fmaxf(sqrtf(bb), 1e-8f));
}

typedef struct {
    const cpu_device *d;
    const act *a, *b;
    int stride, heads, head_dim;
    float *y;
} similarity_loop;

static void similarity_body(void *arg, int first, int last, int thread)
{
    const similarity_loop *s = arg;
    const kern_device *d = &s->d->base;
    (void)thread;
    for (int r = first; r < last; r++) {
        const size_t at = (size_t)r * (size_t)s->stride;
        s->y[r] = 0;
        for (int h = 0; h < s->heads; h++)
            s->y[r] += head_cosine(act_at(d, s->a, at), act_at(d, s->b, at), h * s->head_dim, s->head_dim, s->d->bf16) /
                       (float)s->heads;
    }
}

void cpu_similarity(kern_queue *k, const act *a, const act *b, int stride, int rows, int heads, int head_dim, float *y)
{
    similarity_loop s = {cpu_of(k)->d, a, b, stride, heads, head_dim, y};
    if (kern_live(k)) cpu_for(cpu_of(k), rows, 3.0 * rows * heads * head_dim, similarity_body, &s);
}

typedef struct {
    const float *a, *b;
    size_t n;
    float *y;
} subtract_loop;

enum { SUBTRACTED = 4096 }; /* elements of an item */

static void subtract_body(void *arg, int first, int last, int thread)
{
    const subtract_loop *s = arg;
    const size_t end = (size_t)last * SUBTRACTED < s->n ? (size_t)last * SUBTRACTED : s->n;
    (void)thread;
    for (size_t i = (size_t)first * SUBTRACTED; i < end; i++) s->y[i] = s->a[i] - s->b[i];
}

void cpu_subtract(kern_queue *k, const float *a, const float *b, size_t n, float *y)
{
    subtract_loop s = {a, b, n, y};
    if (kern_live(k)) cpu_for(cpu_of(k), (int)((n + SUBTRACTED - 1) / SUBTRACTED), 16.0 * (double)n, subtract_body, &s);
}
