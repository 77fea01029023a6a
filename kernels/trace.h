/* Timing of a queue's operations at their dispatch: one mechanism for all backends. */
#ifndef KERNELS_TRACE_H
#define KERNELS_TRACE_H

#include "kernels/ops.h"

/* All operations of one kind and row count. */
typedef struct {
    char name[80]; /* "linear 3072 x 768, gelu" */
    int rows;      /* rows of the result */
    int calls;
    double seconds; /* of all calls; so are the next two */
    double bytes;   /* minimum bytes moved: operands, weights and result, each once a call */
    double flop;    /* of their products, 2 per multiply-add */
} kern_traced;

typedef struct kern_trace kern_trace;

/* Begins timing: replaces the queue's tables. Results stay the same. Recordings are off meanwhile, so a GPU's times
 * include its launches, and timer marks are ignored. */
mar_status kern_trace_begin(kern_queue *k, kern_trace **out, mar_err *err);
/* Waits, and restores the queue's tables. */
void kern_trace_end(kern_trace *t);
/* Returns the rows in the order of the first calls. Call after kern_trace_end; valid until kern_trace_free. */
const kern_traced *kern_trace_rows(const kern_trace *t, int *count);
void kern_trace_free(kern_trace *t); /* NULL is fine */

#endif
