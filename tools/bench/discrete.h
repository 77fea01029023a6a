/* mar bench of models with discrete tokens: plain decoding and speculation in turns, and both beside what memory and
 * arithmetic of the machine allow. */
#ifndef TOOLS_BENCH_DISCRETE_H
#define TOOLS_BENCH_DISCRETE_H

#include "tools/generate/models.h"

/* Measures `repeat` batches of `batch` images, of which the best counts, and passes beside the machine in as many
 * turns, and prints a table, or JSON; `bar` shows how far it is. Returns the exit status. */
int bench_discrete(run_options *run, const run_models *models, int batch, int repeat, int json, progress *bar);

#endif
