/* The measurements of mar bench, and what they share. */
#ifndef TOOLS_BENCH_H
#define TOOLS_BENCH_H

#include "tools/generate/models.h"
#include "mar_measure.h"

#include <cjson/cJSON.h>

/* The machine's measured rates. */
typedef struct {
    double peak;      /* flop per second of matrix products (mar_measure_peak) */
    double bandwidth; /* bytes per second read from memory (mar_measure_bandwidth); 0: not measured */
} bench_machine;

/* Measures the peak, and with `memory` the bandwidth, and shows it on `bar`. Returns the exit status, with the error
 * printed. */
int bench_machine_measure(const run_models *models, int memory, progress *bar, bench_machine *out);
/* Measures the peak again and keeps the larger. For a measurement above the peak: another program may have slowed the
 * first. Returns the exit status, with the error printed. */
int bench_peak_again(const run_models *models, progress *bar, bench_machine *m);
/* Prints "measured memory bandwidth 40.0 GB/s, matrix peak 800.0 GFLOP/s", as far as measured, without a newline. */
void bench_machine_print(const bench_machine *m);
/* Writes the share of a measured rate, "12.3%", or ">100%". The caller explains the latter. Returns text. */
const char *bench_share(double share, char text[16]);
int bench_is_above(double share); /* returns whether bench_share writes ">100%" */
void bench_machine_record(const bench_machine *m, cJSON *record);

/* Returns a new object with model, draft if any, backend, parameters and batch. */
cJSON *bench_record(const run_options *run, const run_models *models, int batch);

/* Makes the same batch `repeat` times with each of the `count` sessions, in turns, pixels included. Sets best[count] to
 * the statistics of each session's fastest. Returns the exit status, with errors and interruptions printed. */
int bench_images(const run_models *models, mar_session *const *sessions, int count, int batch, int repeat,
                 progress *bar, mar_stats *best);

/* Measures discrete tokens: plain decoding and speculation in turns, beside the machine's memory and matrix rates.
 * Makes a batch of `batch` images `repeat` times and keeps the fastest, and measures passes and the machine as often.
 * Prints a table, or JSON. Returns the exit status. */
int bench_discrete(run_options *run, const run_models *models, int batch, int repeat, int json, progress *bar);

/* Measures the parts of a step with the session (--micro). Prints the table, or with `json` the object that
 * bench/gpu_model.py reads. Measures twice if a rate is above the measured peak. Call it after models_session. Returns
 * the exit status. */
int bench_micro(const run_options *run, const run_models *models, mar_session *s, int batch, int json, progress *bar);

#endif
