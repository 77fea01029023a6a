/* Laps: times between events on the stream, added up when it is idle. */
#include "kernels/cuda/cuda.h"

#include <stdlib.h>

enum { LAPS = 4096 }; /* between two waits */

struct cuda_laps {
    cudaEvent_t event[LAPS];
    double *seconds[LAPS]; /* where to add the time since the event before; may be NULL */
    int made;              /* events created */
    int count;             /* events recorded since the last wait */
};

mar_status cuda_laps_open(cuda_queue *c, mar_err *err)
{
    c->laps = (struct cuda_laps *)calloc(1, sizeof *c->laps);
    return c->laps ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
}

void cuda_laps_close(cuda_queue *c)
{
    for (int i = 0; c->laps && i < c->laps->made; i++) (void)cudaEventDestroy(c->laps->event[i]);
    free(c->laps);
}

void cuda_lap(kern_queue *k, double *seconds)
{
    cuda_queue *c = cuda_of(k);
    struct cuda_laps *l = c->laps;
    if (!cuda_outside_recording(c, "a lap") || !cuda_live(c)) return;
    if (l->count == LAPS) {
        if (!cuda_ok(c, cudaStreamSynchronize(c->stream), "waiting for the GPU")) return;
        cuda_laps_settle(c);
    }
    if (l->count == l->made) {
        if (!cuda_ok(c, cudaEventCreate(&l->event[l->made]), "making an event")) return;
        l->made++;
    }
    l->seconds[l->count] = seconds;
    if (cuda_ok(c, cudaEventRecord(l->event[l->count], c->stream), "recording an event")) l->count++;
}

void cuda_laps_forget(cuda_queue *c)
{
    c->laps->count = 0;
}

void cuda_laps_settle(cuda_queue *c)
{
    struct cuda_laps *l = c->laps;
    for (int i = 1; i < l->count; i++) {
        float ms = 0;
        if (l->seconds[i] &&
            cuda_ok(c, cudaEventElapsedTime(&ms, l->event[i - 1], l->event[i]), "reading a lap's time"))
            *l->seconds[i] += ms / 1000;
    }
    if (l->count > 1) { /* the next lap begins with the last event */
        cudaEvent_t last = l->event[l->count - 1];
        l->event[l->count - 1] = l->event[0];
        l->event[0] = last;
        l->count = 1;
    }
}
