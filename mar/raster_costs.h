/* The costs of rounds, measured for --window auto and --gamma auto, which chooses each round's drafts by them. */
#ifndef MAR_RASTER_COSTS_H
#define MAR_RASTER_COSTS_H

#include "mar/raster_draft.h"
#include "mar/raster_state.h"

/* Measures rounds of the session's sampler, for all its images, with drafting, in the middle of each, but behind 128
 * tokens at most of all together, and what a draft model takes to catch up behind plain rounds. Sets g->plan.choice and
 * params.round_costs, whose digits are those that the choice uses. No image is in progress. `token` is scratch
 * [seq_len]. */
mar_status raster_costs_measure(mar_raster *g, spec_sampler *s, raster_drafter *draft, int *token, mar_err *err);

#endif
