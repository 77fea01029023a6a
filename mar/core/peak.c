/* Peak rates of a machine: its matrix products and its memory reads. */
#include "mar/core/handle.h"
#include "mar/core/measure.h"

#include <stdlib.h>

/* Work whose fastest run counts: other programs share the machine. */
typedef struct {
    kern_queue *k;
    void (*run)(const void *work);
    const void *work;
    int runs;       /* minimum runs */
    double seconds; /* minimum duration of all runs */
} repeated;

static mar_status fastest(const repeated *r, double *seconds, mar_err *err)
{
    kern_queue *k = r->k;
    double all = 0;
    mar_status status = MAR_OK;
    *seconds = 1e30;
    for (int i = 0; status == MAR_OK && (i < r->runs || all < r->seconds); i++) {
        double once = 0;
        k->core->timer_mark(k, NULL);
        r->run(r->work);
        k->core->timer_mark(k, &once);
        k->core->finish(k);
        if (once < *seconds) *seconds = once;
        all += once;
        status = kern_check(k, err);
    }
    return status;
}

/* --- matrix products, in int8 if the backend's blocks are --------------------------------------------------------- */

typedef struct {
    kern_queue *k;
    kern_linear *layer;
    int n;
    void *x, *y;
} product;

static void peak_multiply(const void *work)
{
    const product *p = work;
    p->k->core->linear(p->k, p->layer, p->x, p->n, p->y);
}

/* Measures the rate of n x n x n products, in flop per second. */
static mar_status measure_product(kern_queue *k, int n, double *flop_per_second, mar_err *err)
{
    kern_device *d = k->device;
    const size_t size = (size_t)n * (size_t)n;
    product p = {.k = k, .n = n};
    double seconds;
    float *weight = malloc(sizeof *weight * size);
    mar_status status = weight ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
    if (status == MAR_OK) {
        for (size_t i = 0; i < size; i++)
            weight[i] = (float)(i % 251) / 251.0f - 0.5f; /* not zeros: switching bits draws power */
        const kern_linear_spec spec = {.out = n, .in = n, .weight = weight, .flags = KERN_LOW};
        status = k->core->linear_create(k, &spec, &p.layer, err);
    }
    if (status == MAR_OK) status = k->core->linear_plan(k, p.layer, n, err);
    if (status == MAR_OK) status = d->core->alloc(d, size * sizeof(float), &p.y, err);
    if (status == MAR_OK) status = d->core->alloc(d, size * d->act_size, &p.x, err);
    if (status == MAR_OK) {
        k->core->upload(k, p.y, weight, size * sizeof(float));
        k->core->to_act(k, p.y, size, p.x);
        status = fastest(&(repeated){k, peak_multiply, &p, 1, 1}, &seconds, err);
        *flop_per_second = 2.0 * n * n * n / seconds;
    }
    k->core->finish(k); /* after a failure, too: pending work uses the freed memory */
    d->core->free(d, p.x);
    d->core->free(d, p.y);
    d->core->linear_free(d, p.layer);
    free(weight);
    return status;
}

static mar_status measure_peak(kern_queue *k, double *flop_per_second, mar_err *err)
{
    enum { SMALL = 1024, LARGE = 8192 };
    const mar_status status = measure_product(k, SMALL, flop_per_second, err);
    if (status != MAR_OK || 2.0 * LARGE * LARGE * LARGE / *flop_per_second > 0.02) return status;
    return measure_product(k, LARGE, flop_per_second, err); /* a small product does not fill such a machine */
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

enum {
    WIDTH = 1024,           /* floats of a row: 4 KiB */
    GPU_ROWS = 1 << 10,     /* at least: 4 MiB */
    CPU_ROWS = 128 << 10,   /* 512 MiB: a processor may have several caches but reports one */
    MOST_ROWS = 1024 << 10, /* 4 GiB */
};

typedef struct {
    kern_queue *k;
    float *x;
    int rows;
} array;

static void pass(const void *work)
{
    const array *a = work;
    a->k->device->measure->read(a->k, a->x, (size_t)a->rows * WIDTH);
}

/* Writes the memory that is read, by all threads: until then all its pages may be one page of zeros, which is in
 * cache. */
static void peak_write_rows(const array *a)
{
    const int half = a->rows / 2;
    float *const middle = a->x + (size_t)half * WIDTH;
    a->k->core->copy_rows(a->k, middle, NULL, a->x, NULL, NULL, NULL, half, WIDTH);
    a->k->core->copy_rows(a->k, a->x, NULL, middle, NULL, NULL, NULL, half, WIDTH);
}

static mar_status measure_bandwidth(kern_queue *k, double *bytes_per_second, mar_err *err)
{
    kern_machine machine = {0};
    double seconds;
    k->device->measure->machine(k->device, &machine);
    const int gpu = machine.clock > 0, caches = gpu ? 16 : 4; /* a GPU's pass also has to outlast its launch */
    const double wanted = caches * machine.cache_bytes / (WIDTH * sizeof(float));
    const int least = gpu ? GPU_ROWS : CPU_ROWS;
    array a = {.k = k, .rows = wanted < least ? least : wanted > MOST_ROWS ? MOST_ROWS : (int)wanted};
    mar_status status = k->core->alloc(k->device, (size_t)a.rows * WIDTH * sizeof *a.x, (void **)&a.x, err);
    if (status == MAR_OK) peak_write_rows(&a);
    if (status == MAR_OK) status = fastest(&(repeated){k, pass, &a, 5, 0.5}, &seconds, err);
    if (status == MAR_OK) *bytes_per_second = 4.0 * WIDTH * a.rows / seconds;
    k->core->finish(k);
    k->device->core->free(k->device, a.x);
    return status;
}

/* --- both --------------------------------------------------------------------------------------------------------- */

mar_status mar_measure_machine(kern_queue *k, mar_measurements *all, mar_err *err)
{
    kern_machine m;
    double flops, bytes;
    k->device->measure->machine(k->device, &m);
    mar_status status = measure_peak(k, &flops, err);
    if (status == MAR_OK) status = measure_bandwidth(k, &bytes, err);
    if (status != MAR_OK) return status;
    const mar_measured rows[] = {
        {.name = "processors", .count = m.processors},
        {.name = "clock", .count = m.clock},
        {.name = "cache bytes", .count = m.cache_bytes},
        {.name = "matrix product", .rows = 1024, .count = 1, .seconds = 0x1p31 / flops, .flop = 0x1p31},
        {.name = "memory", .count = 1, .seconds = 0x1p30 / bytes, .bytes = 0x1p30},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].count > 0) mar_measurements_add(all, "machine", &rows[i]);
    return MAR_OK;
}

/* Measures one of the two on a queue of its own. */
static mar_status measure_with(mar *m, mar_status (*measure)(kern_queue *k, double *rate, mar_err *err), double *rate,
                               const char *name)
{
    mar_err err = {0};
    kern_queue *k;
    mar_status status = mar_check_handle(m, &err);
    if (status == MAR_OK) status = mar_check_given(rate, name, &err);
    if (status == MAR_OK) status = m->device->core->queue_create(m->device, &k, &err);
    if (status != MAR_OK) return mar_result(m, status, &err);
    k->core->bind(k);
    status = measure(k, rate, &err);
    k->core->unbind(k);
    k->core->queue_free(k);
    return mar_result(m, status, &err);
}

mar_status mar_measure_peak(mar *m, double *flop_per_second)
{
    return measure_with(m, measure_peak, flop_per_second, "flop_per_second");
}

mar_status mar_measure_bandwidth(mar *m, double *bytes_per_second)
{
    return measure_with(m, measure_bandwidth, bytes_per_second, "bytes_per_second");
}
