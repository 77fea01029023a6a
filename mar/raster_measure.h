/* Passes measured by themselves (mar_session_measure), of models of ids. */
#ifndef MAR_RASTER_MEASURE_H
#define MAR_RASTER_MEASURE_H

#include "mar/raster_options.h"
#include "nets/causal_runner.h"
#include "specdec/eagle.h"

enum { RASTER_USUAL_PROMPT = 32 }; /* positions of a prompt in measurements */

/* Measures passes over chains of 0, 1, 4, 16 and 64 drafts behind half an image, for `images` images. Adds their times,
 * bytes and flop to the group "pass". A row is named "target, 16 drafts" if `role` is "target". */
mar_status raster_measure_net(kern_queue *k, const causal_model *model, const causal_sampling *sampling,
                              kern_cache_type cache, int images, const char *role, mar_measurements *all, mar_err *err);
/* raster_measure_eagle.c: measures an EAGLE drafter's passes behind half an image, as a round of the plan makes them.
 * It adds "draft, 0 drafts at depth 0" over one token and over the most tokens that a round can add. It adds each level
 * of drafts that the drafter is asked about: "draft, 10 drafts at depth 2". */
mar_status raster_measure_eagle(kern_queue *k, const eagle_model *eagle, const causal_model *model,
                                const causal_sampling *sampling, const raster_plan *plan, int images,
                                mar_measurements *all, mar_err *err);

/* A timed pass of a runner with these statistics. raster_timed sets m's counts to the pass's. It sets m->seconds to the
 * pass's time if m->seconds is 0 or longer. */
typedef struct {
    kern_queue *k;
    const causal_runner_stats *stats;
    causal_runner_stats before;
} raster_timer;

raster_timer raster_time(kern_queue *k, const causal_runner_stats *stats);
void raster_timed(const raster_timer *t, mar_measured *m);
/* Starts images of class 0, or of captions whose features are 0. */
mar_status raster_begin_any(causal_runner *r, const causal_shape *c, int images, mar_err *err);

#endif
