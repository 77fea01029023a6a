/* Measuring (mar_session_measure): what is measured is added to a list, which the host is shown when all is done. */
#ifndef MAR_MEASURE_H
#define MAR_MEASURE_H

#include "diffusion/head.h"
#include "kernels/trace.h"

typedef struct {
    const char *group; /* mar_measurement's, static */
    char name[80];
    int rows;
    double count, seconds, bytes, flop;
} mar_measured;

typedef struct {
    mar_measured *row; /* [count] */
    int count, capacity;
    int out_of_memory; /* some are missing */
} mar_measurements;

void mar_measurements_add(mar_measurements *all, const mar_measured *row);
void mar_measurements_free(mar_measurements *all);
/* Adds what was traced. */
void mar_measurements_add_trace(mar_measurements *all, const char *group, const kern_trace *t);

/* peak.c: the rate of matrix products, in flop per second. */
mar_status mar_peak(kern_queue *k, double *flop_per_second, mar_err *err);
/* bandwidth.c: how fast memory is read, in bytes per second. */
mar_status mar_bandwidth(kern_queue *k, double *bytes_per_second, mar_err *err);

/* measure.c: the machine, with what it makes of the head, if h is not NULL; and parts of the head by themselves.
 * `conditions`: rows a token, 1 or 2. steps: diffusion
 * steps of the chains whose rounds of speculation are timed. */
mar_status mar_measure_machine(kern_queue *k, const diff_head *h, mar_measurements *all, mar_err *err);
mar_status mar_measure_head(kern_queue *k, const diff_head *h, int conditions, int steps, mar_measurements *all,
                            mar_err *err);

#endif
