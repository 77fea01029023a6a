/* Times the operations of a queue, at their dispatch: one mechanism for all backends. */
#ifndef KERNELS_TRACE_H
#define KERNELS_TRACE_H

#include "kernels/ops.h"

/* Operations of one kind and number of rows. */
typedef struct {
    char name[80]; /* "linear 3072 x 768, gelu" */
    int rows;      /* of the result */
    int calls;
    double seconds; /* of all calls, as the next two */
    double bytes;   /* that they must at least move: operands, weights and result, each once a call */
    double flop;    /* of their products, 2 a multiply-add */
} kern_traced;

typedef struct kern_trace kern_trace;

/* Begins to time the queue's operations, which get a table of their own for that. What they compute is the same.
 * Recordings are not used meanwhile, so that a GPU's times include its launches, and laps are not taken. */
mar_status kern_trace_begin(kern_queue *k, kern_trace **out, mar_err *err);
/* Gives the queue its tables back, and waits. */
void kern_trace_end(kern_trace *t);
/* Returns what was timed, in the order of the first calls. After kern_trace_end; valid until kern_trace_free. */
const kern_traced *kern_trace_rows(const kern_trace *t, int *count);
void kern_trace_free(kern_trace *t); /* NULL is fine */

#endif
