/* Measures what a session runs: the passes of one autoregressive step and of the image decoder, and their
 * operations. */
#ifndef MAR_MEASURE_SESSION_H
#define MAR_MEASURE_SESSION_H

#include "mar/core/engine.h"
#include "vae/vae.h"

/* The parts of a session, planned for batches of `images`. */
typedef struct {
    kern_queue *k; /* bound */
    const mar_engine *engine;
    mar_engine_state *engine_state;
    vae_run *decoder; /* NULL: tokens only */
    int images;
} mar_measured_parts;

/* Begins a batch of arbitrary images, in place of those in progress. */
mar_status mar_measure_begin(const mar_measured_parts *p, mar_err *err);

/* Measures the machine, the engine's own parts, a step and the decoder. Destroys the batch in progress. */
mar_status mar_measure_parts(const mar_measured_parts *p, mar_measurements *all, mar_err *err);

#endif
