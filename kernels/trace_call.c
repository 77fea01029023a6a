#include "kernels/trace_call.h"

#include "kernels/time.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static kern_trace *trace_of(const kern_queue *k)
{
    return (kern_trace *)(uintptr_t)k->core;
}

kern_trace_call kern_trace_call_of(kern_queue *k, int rows, double bytes, double flop, const char *name, ...)
{
    const kern_trace *t = trace_of(k);
    kern_trace_call o = {.k = k,
                         .core = t->real_core,
                         .head = t->real_head,
                         .conv = t->real_conv,
                         .discrete = t->real_discrete,
                         .recorded = 1,
                         .rows = rows,
                         .bytes = bytes,
                         .flop = flop};
    va_list arguments;
    va_start(arguments, name);
    vsnprintf(o.name, sizeof o.name, name, arguments);
    va_end(arguments);
    return o;
}

/* The row of an operation, a new one at its first call. Where there is no more room the last row takes all. */
static kern_traced *row_of(kern_trace *t, const kern_trace_call *o)
{
    for (int i = 0; i < t->count; i++)
        if (t->row[i].rows == o->rows && strcmp(t->row[i].name, o->name) == 0) return &t->row[i];
    if (t->count == TRACE_ROWS_MAX) return &t->row[TRACE_ROWS_MAX - 1];
    kern_traced *r = &t->row[t->count++];
    *r = (kern_traced){.rows = o->rows, .bytes = o->bytes, .flop = o->flop};
    memcpy(r->name, o->name, sizeof r->name);
    return r;
}

void kern_trace_run(const kern_trace_call *o, void (*body)(void *arg), void *arg)
{
    kern_trace *t = trace_of(o->k);
    if (o->rows <= 0) {
        body(arg);
        return;
    }
    kern_traced *r = row_of(t, o);
    const int repeated = o->k->device->asynchronous && o->recorded;
    double seconds = 0;
    if (!repeated) {
        t->real_core->finish(o->k);
        t->real_core->lap(o->k, NULL);
    } else if (r->calls == 0) {
        r->seconds = kern_time(o->k, body, arg, 1);
    }
    body(arg);
    if (!repeated) {
        t->real_core->lap(o->k, &seconds);
        t->real_core->finish(o->k);
        r->seconds += (seconds - r->seconds) / (r->calls + 1); /* the mean */
    }
    r->calls++;
}
