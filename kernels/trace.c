#include "kernels/trace.h"

#include <stdlib.h>

static void traced_lap(kern_queue *k, double *seconds)
{
    (void)k, (void)seconds;
}

static void traced_replay(kern_queue *k, kern_recording **recording, void (*body)(void *arg), void *arg)
{
    (void)k, (void)recording;
    body(arg);
}

mar_status kern_trace_begin(kern_queue *k, kern_trace **out, mar_err *err)
{
    kern_trace *t = *out = calloc(1, sizeof *t);
    if (!t) return err_set(err, MAR_ENOMEM, "out of memory");
    t->k = k;
    t->real_core = k->core, t->real_head = k->head, t->real_conv = k->conv, t->real_discrete = k->discrete;
    t->core = *k->core, t->head = *k->head, t->conv = *k->conv, t->discrete = *k->discrete;
    t->core.lap = traced_lap;
    t->core.replay = traced_replay;
    kern_trace_core(t);
    kern_trace_head(t);
    kern_trace_conv(t);
    kern_trace_tokens(t);
    k->core->finish(k);
    k->core = &t->core, k->head = &t->head, k->conv = &t->conv, k->discrete = &t->discrete;
    return MAR_OK;
}

void kern_trace_end(kern_trace *t)
{
    kern_queue *k = t->k;
    k->core = t->real_core, k->head = t->real_head, k->conv = t->real_conv, k->discrete = t->real_discrete;
    k->core->finish(k);
}

const kern_traced *kern_trace_rows(const kern_trace *t, int *count)
{
    *count = t->count;
    return t->row;
}

void kern_trace_free(kern_trace *t)
{
    free(t);
}
