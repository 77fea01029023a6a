/* mar bench --micro. */
#ifndef TOOLS_BENCH_MICRO_H
#define TOOLS_BENCH_MICRO_H

#include "tools/generate/models.h"

/* Measures with the session. Prints the table, or with `json` the object that bench/gpu_model.py reads. Measures twice
 * if a rate is above the measured peak. Call it after models_session. Returns the exit status. */
int bench_micro(const run_options *run, const run_models *models, mar_session *s, int batch, int json, progress *bar);

#endif
