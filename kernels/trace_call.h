/* An operation that is called while a trace times it (kernels/trace.h): what its files share. */
#ifndef KERNELS_TRACE_CALL_H
#define KERNELS_TRACE_CALL_H

#include "kernels/ops.h"

/* Operations of one kind and size. */
typedef struct {
    char name[80];  /* "linear 3072 x 768, gelu" */
    int rows;       /* of the result */
    int calls;      /* since the trace began */
    double seconds; /* of one call */
    double bytes;   /* that one call must at least move: operands, weights and result, each once */
    double flop;    /* of its products, 2 a multiply-add */
} kern_traced;

enum { TRACE_ROWS_MAX = 256 }; /* kinds of operations */

typedef struct {
    kern_core_ops core; /* must be first: a traced queue's `core` points to it */
    kern_head_ops head;
    kern_conv_ops conv;
    kern_discrete_ops discrete;
    kern_queue *k;
    const kern_core_ops *real_core;
    const kern_head_ops *real_head;
    const kern_conv_ops *real_conv;
    const kern_discrete_ops *real_discrete;
    kern_traced row[TRACE_ROWS_MAX];
    int count;
} kern_trace;

/* An operation that is called. */
typedef struct {
    kern_queue *k;
    const kern_core_ops *core; /* the backend's */
    const kern_head_ops *head;
    const kern_conv_ops *conv;
    const kern_discrete_ops *discrete;
    int recorded; /* it can be recorded */
    int rows;
    double bytes, flop;
    char name[80];
} kern_trace_call;

/* One that moves so many bytes and computes so much; the name as for printf. */
kern_trace_call kern_trace_call_of(kern_queue *k, int rows, double bytes, double flop, const char *name, ...)
    __attribute__((format(printf, 5, 6)));
/* Runs the operation, body(arg), and counts its time. */
void kern_trace_run(const kern_trace_call *o, void (*body)(void *arg), void *arg);

/* Defines NAME_body, which calls the backend's FUNCTION ("core->linear") with these arguments of `c`, a NAME_call,
 * whose first field is its kern_trace_call `o`. */
#define TRACE_BODY(name, function, ...)                                                                                \
    static void name##_body(void *arg)                                                                                 \
    {                                                                                                                  \
        const name##_call *c = arg;                                                                                    \
        c->o.function(c->o.k, __VA_ARGS__);                                                                            \
    }
/* Defines NAME_call, too, of a function whose only argument is a job. */
#define TRACE_JOB(name, function)                                                                                      \
    typedef struct {                                                                                                   \
        kern_trace_call o;                                                                                             \
        const void *job;                                                                                               \
    } name##_call;                                                                                                     \
    TRACE_BODY(name, function, c->job)

/* Bytes of n operands. */
static inline double kern_trace_act_bytes(const kern_queue *k, double n)
{
    return n * (double)k->device->act_size;
}

/* Put the operations of one kind into the trace's tables, which have the backend's. */
void kern_trace_core(kern_trace *t);
void kern_trace_head(kern_trace *t);
void kern_trace_conv(kern_trace *t);
void kern_trace_tokens(kern_trace *t); /* causal transformers and discrete tokens */

#endif
