/* How long work on a queue takes. */
#ifndef KERNELS_TIME_H
#define KERNELS_TIME_H

#include "kernels/ops.h"

/* Seconds that one run of body(arg) takes, after others of it, so that what it reads is in the caches that hold it. A
 * body that can be recorded (kern_core_ops.replay) is repeated inside one recording, so that the launches of a GPU do
 * not count: set `recorded`. It waits. After a failure what it returns means nothing. */
double kern_time(kern_queue *k, void (*body)(void *arg), void *arg, int recorded);

#endif
