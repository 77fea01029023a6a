/* mar bench for discrete tokens: plain decoding and speculation in turns, compared with the machine's memory and matrix
 * rates. */
#ifndef TOOLS_BENCH_DISCRETE_H
#define TOOLS_BENCH_DISCRETE_H

#include "tools/generate/models.h"

/* Measures `repeat` batches of `batch` images and keeps the fastest. Measures passes and the machine in as many turns.
 * Prints a table, or JSON; `bar` shows the progress. Returns the exit status. */
int bench_discrete(run_options *run, const run_models *models, int batch, int repeat, int json, progress *bar);

#endif
