/* The costs of rounds of Jacobi decoding, measured for --window auto, which chooses each round's drafts by them. */
#ifndef MAR_RASTER_COSTS_H
#define MAR_RASTER_COSTS_H

#include "mar/raster_state.h"

/* Measures rounds of the session's sampler, for all its images, in the middle of each, but behind 128 tokens at most of
 * all together. Sets g->plan.choice and params.window_costs, whose digits are those that the choice uses. No image is
 * in progress. `token` is scratch [seq_len]. */
mar_status raster_costs_measure(mar_raster *g, spec_sampler *s, int *token, mar_err *err);

#endif
