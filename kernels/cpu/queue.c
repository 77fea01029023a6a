/* Queues of the CPU backend, and the loops that run on them. */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>

/* --- loops -------------------------------------------------------------------------------------------------------- */

/* Multiply-adds between two checks for a cancel: tenths of a second on a slow core, and far more than the check
 * costs. */
#define SLICE 3e8

typedef struct {
    const cpu_queue *q;
    parallel_body *body;
    void *arg;
    int slice; /* items between two checks */
} sliced_loop;

static void slices_body(void *arg, int first, int last, int thread)
{
    const sliced_loop *l = arg;
    while (first < last && !cpu_cancelled(l->q)) {
        const int end = last - first > l->slice ? first + l->slice : last;
        l->body(l->arg, first, end, thread);
        first = end;
    }
}

static void fail_loop(cpu_queue *q)
{
    mar_err err;
    const mar_status status = (mar_status)atomic_exchange(&q->loop_status, MAR_OK);
    kern_fail(&q->base,
              err_set(&err, status, "%s in %s", status == MAR_ENOMEM ? "out of memory" : "a product failed",
                      dnn_version_text()),
              &err);
}

void cpu_for(cpu_queue *q, int n, double work, parallel_body *body, void *arg)
{
    enum { LITTLE = 200000 }; /* some microseconds; dispatching a loop takes one */
    if (work >= LITTLE) {
        const double items = SLICE / work * n;
        sliced_loop l = {q, body, arg, items < 1 ? 1 : items < n ? (int)items : n};
        parallel_for(q->client, n, slices_body, &l);
    } else if (n > 0 && !cpu_cancelled(q)) {
        body(arg, 0, n, 0);
    }
    if (cpu_cancelled(q)) kern_live(&q->base); /* fails: a part may be missing */
    if (atomic_load_explicit(&q->loop_status, memory_order_relaxed)) fail_loop(q);
}

/* --- queues ------------------------------------------------------------------------------------------------------- */

void cpu_queue_free(kern_queue *k)
{
    if (!k) return;
    cpu_queue *q = cpu_of(k);
    cpu_operands_free_all(q);
    for (int t = 0; t < q->d->threads; t++) {
        if (q->scratch) free(q->scratch[t]);
        if (q->work) free(q->work[t]);
        if (q->tile) free(q->tile[t]);
    }
    free(q->scratch);
    free(q->work);
    free(q->tile);
    free(q->int8_rows);
    free(q->int8_scale);
    pool_client_free(q->client);
    free(q);
}

mar_status cpu_queue_create(kern_device *device, kern_queue **out, mar_err *err)
{
    cpu_device *d = (cpu_device *)device;
    *out = NULL;
    cpu_queue *q = calloc(1, sizeof *q);
    if (!q) return err_set(err, MAR_ENOMEM, "out of memory");
    kern_queue_init(&q->base, device);
    q->d = d;
    q->scratch = calloc((size_t)d->threads, sizeof *q->scratch);
    q->work = calloc((size_t)d->threads, sizeof *q->work);
    q->tile = calloc((size_t)d->threads, sizeof *q->tile);
    mar_status status = q->scratch && q->work && q->tile ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
    if (status == MAR_OK) status = pool_client_create(d->pool, &q->client, err);
    if (status == MAR_OK)
        *out = &q->base;
    else
        cpu_queue_free(&q->base);
    return status;
}
