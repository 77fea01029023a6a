/* Measuring what sessions run: the passes of one autoregressive step and of the image decoder, and their operations. */
#ifndef MAR_MEASURE_PASSES_H
#define MAR_MEASURE_PASSES_H

#include "mar/api/engine.h"
#include "vae/vae.h"

/* A session's parts that are measured, planned for batches of `images`. */
typedef struct {
    kern_queue *k; /* entered */
    const mar_engine *engine;
    mar_generation *generation;
    vae_run *decoder; /* NULL: tokens only */
    int images;
} mar_passes;

/* Measures all, the engine's own parts first. The batch in progress is lost. */
mar_status mar_measure_passes(const mar_passes *p, mar_measurements *all, mar_err *err);

#endif
