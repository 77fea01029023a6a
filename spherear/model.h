/* A SphereAR model, packed for a backend. */
#ifndef SPHEREAR_MODEL_H
#define SPHEREAR_MODEL_H

#include "mar/core/engine.h"
#include "nets/causal.h"
#include "spherear/config.h"

typedef struct {
    mar_model base;
    sphere_config shape;
    causal_model *transformer;
    diff_head head;
    float *ones; /* backend [C] 1: the gain of a token's normalisation */
} sphere_model;

static inline const sphere_model *sphere_model_of(const mar_model *model)
{
    return (const sphere_model *)model;
}

/* Returns the shape as the public header has it. */
mar_model_config sphere_public_config(const sphere_config *c);

/* The engine's load, unload and describe (mar/core/engine.h). */
mar_status sphere_model_load(mar *m, kern_queue *k, const wt_file *f, int heads, mar_model **out, mar_err *err);
void sphere_model_unload(mar_model *model);
void sphere_model_describe(const mar_model *model, char *text, size_t size);

#endif
