/* The matrix rate of a backend, measured with its own linear layer: in int8 if that is the arithmetic of its blocks. */
#include "mar/api/handle.h"
#include "mar/api/measure.h"

#include <stdlib.h>

/* Best rate of n x n x n products in about a second. */
static mar_status measure(kern_queue *k, int n, double *flop_per_second, mar_err *err)
{
    kern_device *d = k->device;
    const size_t size = (size_t)n * (size_t)n;
    kern_linear *layer = NULL;
    void *x = NULL, *y = NULL;
    float *weight = malloc(sizeof *weight * size);
    mar_status status = weight ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
    if (status == MAR_OK) {
        for (size_t i = 0; i < size; i++) weight[i] = (float)(i % 251) / 251.0f - 0.5f; /* not zeros: power is real */
        const kern_linear_spec spec = {.out = n, .in = n, .weight = weight, .flags = KERN_INT8};
        status = k->core->linear_create(k, &spec, &layer, err);
    }
    if (status == MAR_OK) status = k->core->linear_plan(k, layer, n, err);
    if (status == MAR_OK) status = d->core->alloc(d, size * sizeof(float), &y, err);
    if (status == MAR_OK) status = d->core->alloc(d, size * d->act_size, &x, err);
    if (status == MAR_OK) {
        k->core->upload(k, y, weight, size * sizeof(float));
        k->core->to_act(k, y, size, x);
        double best = 1e30;
        for (double seconds, all = 0; status == MAR_OK && all < 1; all += seconds) {
            seconds = 0;
            k->core->lap(k, NULL);
            k->core->linear(k, layer, x, n, y);
            k->core->lap(k, &seconds);
            k->core->finish(k);
            if (seconds < best) best = seconds;
            status = kern_check(k, err);
        }
        *flop_per_second = 2.0 * n * n * n / best;
    }
    k->core->finish(k); /* after a failure, too: what it works on is freed */
    d->core->free(d, x);
    d->core->free(d, y);
    d->core->linear_free(d, layer);
    free(weight);
    return status;
}

mar_status mar_peak(kern_queue *k, double *flop_per_second, mar_err *err)
{
    enum { SMALL = 1024, LARGE = 8192 };
    const mar_status status = measure(k, SMALL, flop_per_second, err);
    if (status != MAR_OK || 2.0 * LARGE * LARGE * LARGE / *flop_per_second > 0.02) return status;
    return measure(k, LARGE, flop_per_second, err); /* a small one does not fill such a machine */
}

mar_status mar_measure_peak(mar *m, double *flop_per_second)
{
    mar_err err = {0};
    kern_queue *k;
    mar_status status = mar_check_handle(m, &err);
    if (status == MAR_OK) status = mar_check_given(flop_per_second, "flop_per_second", &err);
    if (status == MAR_OK) status = m->device->core->queue_create(m->device, &k, &err);
    if (status != MAR_OK) return mar_result(m, status, &err);
    k->core->enter(k);
    status = mar_peak(k, flop_per_second, &err);
    k->core->leave(k);
    k->core->queue_free(k);
    return mar_result(m, status, &err);
}
