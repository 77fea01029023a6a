/* Parts of raster models with vectors on golden data. Failures fail the test. */
#ifndef TESTS_RASTER_H
#define TESTS_RASTER_H

#include "mar/raster_model.h"
#include "tests/support/harmon.h"

/* Returns n floats of the backend. The caller frees them. */
float *backend_floats(kern_queue *k, const float *x, size_t n);

/* Returns the head's velocities [n][channels] of the golden rows head.x at head.time (diff_schedule.time) for the
 * golden conditions of this name. The caller frees them. */
float *raster_velocities(mar *m, mar_model *model, const wt_file *golden, const char *conditions);

/* Computes the head's conditions behind prompt 0 and each of n tokens, [conditional, unconditional][1 + n][width], in
 * passes of at most `most` tokens, a divisor of n. The caller frees them. */
float *raster_conditions(const harmon *h, const float *tokens, int n, int most);

#endif
