/* Timer marks: times between events on the stream, added up when it is idle. */
#include "kernels/cuda/cuda.h"

#include <stdlib.h>

enum { TIMER_MARKS = 4096 }; /* marks between two waits */

struct cuda_timer {
    cudaEvent_t event[TIMER_MARKS];
    double *seconds[TIMER_MARKS]; /* destination of the time since the previous event; may be NULL */
    int made;                     /* events created */
    int count;                    /* events recorded since the last wait */
};

mar_status cuda_timer_open(cuda_queue *c, mar_err *err)
{
    c->timer = (struct cuda_timer *)calloc(1, sizeof *c->timer);
    return c->timer ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
}

void cuda_timer_close(cuda_queue *c)
{
    for (int i = 0; c->timer && i < c->timer->made; i++) (void)cudaEventDestroy(c->timer->event[i]);
    free(c->timer);
}

void cuda_timer_mark(kern_queue *k, double *seconds)
{
    cuda_queue *c = cuda_of(k);
    struct cuda_timer *l = c->timer;
    if (!cuda_outside_recording(c, "a timer mark") || !cuda_live(c)) return;
    if (l->count == TIMER_MARKS) {
        if (!cuda_ok(c, cudaStreamSynchronize(c->stream), "waiting for the GPU")) return;
        cuda_timer_read(c);
    }
    if (l->count == l->made) {
        if (!cuda_ok(c, cudaEventCreate(&l->event[l->made]), "making an event")) return;
        l->made++;
    }
    l->seconds[l->count] = seconds;
    if (cuda_ok(c, cudaEventRecord(l->event[l->count], c->stream), "recording an event")) l->count++;
}

void cuda_timer_forget(cuda_queue *c)
{
    c->timer->count = 0;
}

void cuda_timer_read(cuda_queue *c)
{
    struct cuda_timer *l = c->timer;
    for (int i = 1; i < l->count; i++) {
        float ms = 0;
        if (l->seconds[i] &&
            cuda_ok(c, cudaEventElapsedTime(&ms, l->event[i - 1], l->event[i]), "reading a timer mark"))
            *l->seconds[i] += ms / 1000;
    }
    if (l->count > 1) { /* the last event becomes the first */
        cudaEvent_t last = l->event[l->count - 1];
        l->event[l->count - 1] = l->event[0];
        l->event[0] = last;
        l->count = 1;
    }
}
