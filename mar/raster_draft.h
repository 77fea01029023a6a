/* The draft of a session of ids: a smaller model of the same family, or an EAGLE drafter over the target's features. */
#ifndef MAR_RASTER_DRAFT_H
#define MAR_RASTER_DRAFT_H

#include "mar/raster_model.h"
#include "specdec/eagle.h"

/* An EAGLE drafter. This family of models serves as draft only. */
typedef struct {
    mar_model base;
    eagle_model *eagle;
} raster_eagle_model;

extern const mar_engine mar_eagle_engine;

/* Returns the drafter; NULL if the model is not one. */
static inline const eagle_model *raster_eagle_of(const mar_model *model)
{
    return model->engine == &mar_eagle_engine ? ((const raster_eagle_model *)model)->eagle : NULL;
}

typedef struct {
    causal_runner *model; /* at most one is not NULL; without a draft both are */
    eagle_runner *eagle;
} raster_drafter;

/* Creates the drafter. `target` uses the same guidance, and has `keep` if raster_eagle_of(draft). The other arguments
 * are those of causal_runner_create. Frees everything on failure. */
mar_status raster_drafter_create(kern_queue *k, const mar_model *draft, const mar_raster_model *model,
                                 causal_runner *target, const causal_sampling *sampling, int images, int drafts,
                                 raster_drafter *out, mar_err *err);
/* Sets the type of cached keys and values, as causal_runner_set_cache. */
void raster_drafter_set_cache(raster_drafter *d, kern_cache_type type);
/* Sets the caption in the second branch, as causal_runner_set_negative. */
void raster_drafter_set_negative(raster_drafter *d, const float *features, const uint8_t *mask);
void raster_drafter_free(raster_drafter *d); /* call before the target is freed */
size_t raster_drafter_lay_out(raster_drafter *d, char *base);
mar_status raster_drafter_plan(raster_drafter *d, int images, mar_err *err);
void raster_drafter_clear_stats(raster_drafter *d);
/* Starts images that the target has just started. */
void raster_drafter_admit(raster_drafter *d, const causal_start *start, int n);
/* Implements spec_model.log_probs. */
mar_status raster_drafter_log_probs(raster_drafter *d, const causal_request *request, int n, float *log_probs,
                                    mar_err *err);
/* Returns the draft's statistics; NULL without a draft. */
const causal_runner_stats *raster_drafter_stats(const raster_drafter *d);

#endif
