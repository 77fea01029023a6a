/* The engine of models that make tokens in raster order, one loop for both heads: a softmax over ids
 * (specdec/sampler.h) and a diffusion over vectors (diffusion/chain.h). */
#ifndef MAR_RASTER_H
#define MAR_RASTER_H

#include "mar/raster_state.h"

/* Implements the engines' create with this head. */
mar_status mar_raster_create(const raster_head *head, mar_model *model, const mar_vae *vae, kern_queue *k,
                             const mar_params *params, const mar_accel *const *accels, int max_images,
                             mar_engine_state **out, mar_err *err);

#endif
