/* How fast a backend reads its memory. */
#include "mar/api/handle.h"
#include "mar/api/measure.h"

enum {
    WIDTH = 1024,           /* floats of a row, which is 4 KiB */
    LEAST_ROWS = 128 << 10, /* 512 MiB */
    MOST_ROWS = 1024 << 10, /* 4 GiB */
};

typedef struct {
    kern_queue *k;
    float *x;
    int rows;
} array;

/* Where there is no operation that reads alone one half is copied to the other; what is written counts, too. */
static void pass(const array *a)
{
    const size_t n = (size_t)a->rows * WIDTH;
    if (a->k->device->measure->read)
        a->k->device->measure->read(a->k, a->x, n);
    else
        a->k->core->copy_rows(a->k, a->x + n / 2, NULL, a->x, NULL, NULL, NULL, a->rows / 2, WIDTH);
}

/* The best of the passes of about half a second, and of five at least: other programs take their share of memory. */
static mar_status measure(const array *a, double *bytes_per_second, mar_err *err)
{
    kern_queue *k = a->k;
    double best = 1e30, all = 0;
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && (i < 5 || all < 0.5); i++) {
        double seconds = 0;
        k->core->lap(k, NULL);
        pass(a);
        k->core->lap(k, &seconds);
        k->core->finish(k);
        if (seconds < best) best = seconds;
        all += seconds;
        status = kern_check(k, err);
    }
    *bytes_per_second = 4.0 * WIDTH * a->rows / best;
    return status;
}

mar_status mar_bandwidth(kern_queue *k, double *bytes_per_second, mar_err *err)
{
    kern_machine machine = {0};
    k->device->measure->machine(k->device, NULL, &machine);
    const double wanted = 4 * machine.cache_bytes / (WIDTH * sizeof(float));
    array a = {.k = k, .rows = wanted < LEAST_ROWS ? LEAST_ROWS : wanted > MOST_ROWS ? MOST_ROWS : (int)wanted};
    mar_status status = k->core->alloc(k->device, (size_t)a.rows * WIDTH * sizeof *a.x, (void **)&a.x, err);
    if (status == MAR_OK) status = measure(&a, bytes_per_second, err);
    k->core->finish(k);
    k->device->core->free(k->device, a.x);
    return status;
}

mar_status mar_measure_bandwidth(mar *m, double *bytes_per_second)
{
    mar_err err = {0};
    kern_queue *k;
    mar_status status = mar_check_handle(m, &err);
    if (status == MAR_OK) status = mar_check_given(bytes_per_second, "bytes_per_second", &err);
    if (status == MAR_OK) status = m->device->core->queue_create(m->device, &k, &err);
    if (status != MAR_OK) return mar_result(m, status, &err);
    k->core->enter(k);
    status = mar_bandwidth(k, bytes_per_second, &err);
    k->core->leave(k);
    k->core->queue_free(k);
    return mar_result(m, status, &err);
}
