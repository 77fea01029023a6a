/* The matrix rate of a backend, measured with its own linear layer. */
#include "mar/handle.h"

#include <stdlib.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

mar_status mar_measure_peak(mar *m, double *flop_per_second)
{
    enum { N = 1024 };
    kern *k = m->kern;
    kern_linear *layer = NULL;
    void *x = NULL, *y = NULL;
    float *weight = malloc(sizeof *weight * N * N);
    mar_status status = weight ? MAR_OK : err_set(&m->err, MAR_ENOMEM, "out of memory");
    if (status == MAR_OK) {
        for (int i = 0; i < N * N; i++) weight[i] = (float)(i % 251) / 251.0f - 0.5f; /* not zeros: power is real */
        const kern_linear_spec spec = {.out = N, .in = N, .weight = weight};
        status = k->ops->linear_create(k, &spec, &layer, &m->err);
    }
    if (status == MAR_OK) status = k->ops->alloc(k, N * N * k->act_size, &x, &m->err);
    if (status == MAR_OK) status = k->ops->alloc(k, N * N * k->act_size, &y, &m->err);
    if (status == MAR_OK) {
        k->ops->to_act(k, weight, N * N, x);
        double best = 1e30;
        for (double start = now(), t0 = start; t0 - start < 1.0;) {
            k->ops->linear(k, layer, x, N, y);
            const double t1 = now();
            if (t1 - t0 < best) best = t1 - t0;
            t0 = t1;
        }
        *flop_per_second = 2.0 * N * N * N / best;
        status = kern_check(k, &m->err);
    }
    if (x) k->ops->free(k, x);
    if (y) k->ops->free(k, y);
    k->ops->linear_free(k, layer);
    free(weight);
    return status;
}
