/* Times operations (kernels/time.h): one mechanism for all backends, around their tables. */
#ifndef KERNELS_TRACE_H
#define KERNELS_TRACE_H

#include "kernels/trace_call.h"

/* Begins to time the queue's operations, which get tables of their own for that. A synchronous device's operations are
 * timed where they are. Those of an asynchronous one are repeated by kern_time at their first call, so that sums grow
 * and states go on more often than once: what they compute is of no use. Operations that cannot be recorded are timed
 * where they are. Recordings are not used meanwhile, laps are not taken. */
mar_status kern_trace_begin(kern_queue *k, kern_trace **out, mar_err *err);
/* Gives the queue its tables back, and waits. */
void kern_trace_end(kern_trace *t);
/* What was timed, in the order of the first calls. After kern_trace_end; valid until kern_trace_free. */
const kern_traced *kern_trace_rows(const kern_trace *t, int *count);
void kern_trace_free(kern_trace *t); /* NULL is fine */

#endif
