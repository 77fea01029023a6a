/* Queues of the CPU backend, and the loops that run on them. */
#include "kernels/cpu/cpu.h"

#include <stdarg.h>
#include <stdio.h>
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
}

/* --- queues ------------------------------------------------------------------------------------------------------- */

mar_status cpu_work_room(cpu_queue *q, size_t bytes, mar_err *err)
{
    if (bytes <= q->work_bytes) return MAR_OK;
    bytes = (bytes + 4095) / 4096 * 4096;
    for (int t = 0; t < q->d->threads; t++) {
        void *larger;
        const mar_status status = cpu_pages(q->d, bytes, "scratch for a thread", &larger, err);
        if (status != MAR_OK) return status;
        cpu_pages_free(q->d, q->work[t]);
        q->work[t] = larger;
    }
    q->work_bytes = bytes;
    return MAR_OK;
}

/* Replaces *buffer by one of at least `bytes` bytes. */
static mar_status queue_grow(const cpu_device *d, void **buffer, size_t *size, size_t bytes, mar_err *err)
{
    void *larger;
    if (bytes <= *size) return MAR_OK;
    bytes = (bytes + 4095) / 4096 * 4096;
    const mar_status status = cpu_pages(d, bytes, "scratch", &larger, err);
    if (status != MAR_OK) return status;
    cpu_pages_free(d, *buffer);
    *buffer = larger;
    *size = bytes;
    return MAR_OK;
}

mar_status cpu_operand_room(cpu_queue *q, int rows, size_t row_bytes, mar_err *err)
{
    const mar_status status = queue_grow(q->d, &q->operand, &q->operand_bytes, (size_t)rows * row_bytes, err);
    if (status != MAR_OK) return status;
    return queue_grow(q->d, &q->operand_scale, &q->scale_bytes, (size_t)rows * sizeof(float), err);
}

int cpu_planned(cpu_queue *q, int has_room, const char *call, ...)
{
    char sizes[128];
    mar_err err = {0};
    va_list arguments;
    if (has_room) return 1;
    va_start(arguments, call);
    vsnprintf(sizes, sizeof sizes, call, arguments);
    va_end(arguments);
    kern_fail(&q->base, err_set(&err, MAR_EBACKEND, "%s without a plan", sizes), &err);
    return 0;
}

void cpu_queue_free(kern_queue *k)
{
    if (!k) return;
    cpu_queue *q = cpu_of(k);
    for (int t = 0; q->work && t < q->d->threads; t++) cpu_pages_free(q->d, q->work[t]);
    free(q->work);
    cpu_pages_free(q->d, q->operand);
    cpu_pages_free(q->d, q->operand_scale);
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
    q->work = calloc((size_t)d->threads, sizeof *q->work);
    mar_status status = q->work ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
    if (status == MAR_OK) status = pool_client_create(d->pool, &q->client, err);
    if (status == MAR_OK)
        *out = &q->base;
    else
        cpu_queue_free(&q->base);
    return status;
}
