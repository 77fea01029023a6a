/* What every kind of measurement of mar bench prints or writes alike. */
#ifndef TOOLS_BENCH_COMMON_H
#define TOOLS_BENCH_COMMON_H

#include "tools/generate/models.h"

#include <cjson/cJSON.h>

/* What the machine can do, as the library measured it. */
typedef struct {
    double peak;      /* flop per second of matrix products (mar_measure_peak) */
    double bandwidth; /* bytes per second read from memory (mar_measure_bandwidth); 0: not measured */
} bench_machine;

/* Measures the peak, and with `memory` the bandwidth; `bar` says so. Returns the exit status, with the error printed.
 */
int bench_machine_measure(const run_models *models, int memory, progress *bar, bench_machine *out);
/* Measures the peak again and keeps the larger of both: for when something else was faster than the first, which
 * another program may have slowed. Returns the exit status, with the error printed. */
int bench_peak_again(const run_models *models, progress *bar, bench_machine *m);
/* "measured memory bandwidth 40.0 GB/s, matrix peak 800.0 GFLOP/s", as far as measured, without an end of line. */
void bench_machine_print(const bench_machine *m);
/* The share of a measured rate, "12.3%", or ">100%", which the caller explains. Returns text. */
const char *bench_share(double share, char text[16]);
int bench_is_above(double share); /* whether that is ">100%" */
void bench_machine_record(const bench_machine *m, cJSON *record);

/* A new object: model, draft if there is one, backend, parameters, batch. */
cJSON *bench_record(const run_options *run, const run_models *models, int batch);

/* Keeps the faster of two batches; *best is all 0 before the first. */
void bench_take_best(mar_stats *best, const mar_stats *stats);

#endif
