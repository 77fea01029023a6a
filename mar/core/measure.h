/* Measurement (mar_session_measure): rows are added to a list, and the host receives them at the end. */
#ifndef MAR_MEASURE_H
#define MAR_MEASURE_H

#include "kernels/ops.h"

typedef struct {
    const char *group; /* mar_measurement's, static */
    char name[80];
    int rows;
    double count, seconds, bytes, flop;
} mar_measured;

typedef struct {
    mar_measured *row; /* [count] */
    int count, capacity;
    int out_of_memory; /* 1: rows are missing */
} mar_measurements;

void mar_measurements_add(mar_measurements *all, const char *group, const mar_measured *row);
void mar_measurements_free(mar_measurements *all);

/* peak.c: Adds a description of the machine, the rate of its matrix products and that of its memory. */
mar_status mar_measure_machine(kern_queue *k, mar_measurements *all, mar_err *err);

#endif
