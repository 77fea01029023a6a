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
 * passes of at most `most` tokens, a divisor of n, with keys and values of this type. The caller frees them. */
float *raster_conditions(const harmon *h, const float *tokens, int n, int most, kern_cache_type type);
/* Checks that rows [n] with keys and values in bf16 and int8 are near `expected`, and that those in int8 are farther
 * away. Frees bf16 and int8. */
void raster_check_cache_error(float *bf16, float *int8, const float *expected, size_t n);
/* Checks that a session of a model in f32 for two guided images has half the memory for keys and values with
 * cache_dtype bf16, and with int8 as much as numbers of a byte and a scale for each head take. All of it is `layers`
 * layers of `slots` slots at least. */
void raster_check_cache_memory(mar *m, mar_model *model, int layers, int slots);

#endif
