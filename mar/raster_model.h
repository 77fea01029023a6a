/* A model that makes tokens in raster order: a causal transformer with a softmax head, its output layer, or with a
 * diffusion head. A family says what it is in facts. */
#ifndef MAR_RASTER_MODEL_H
#define MAR_RASTER_MODEL_H

#include "diffusion/chain.h"
#include "families/families.h"
#include "mar/core/engine.h"
#include "nets/causal.h"

typedef struct {
    mar_model_config config; /* as the public header has it */
    causal_shape net;
    const int *image_id; /* as causal_model_load; used while it loads */
    /* Of the diffusion head, for tokens that are vectors; unused for ids. */
    diff_head_shape head;
    diff_process process;
    raster_norm norm;
    int falls;           /* 1: the linear guidance schedule falls from the scale to 1; 0: it rises from 1 */
    int first_is_apart;  /* 1: with that schedule the unconditional branch draws its first token for itself */
    int last_is_counted; /* 1: num_sampling_steps counts the flow's last step, too */
    int last_is_noisy;   /* 1: that step is like the others (diff_spec); 0: it is without noise */
} raster_facts;

enum { RASTER_NOTE = 256 };

typedef struct {
    mar_model base;
    raster_facts facts;
    causal_model *net;
    diff_head head;         /* of the diffusion head */
    float *ones, *zeros;    /* backend [token_dim], of the tokens' normalisation */
    char note[RASTER_NOTE]; /* the base's warning */
} mar_raster_model;

static inline const mar_raster_model *mar_raster_model_of(const mar_model *model)
{
    return (const mar_raster_model *)model;
}

/* Returns whether tokens are ids, drawn from a softmax. */
static inline int raster_is_discrete(const mar_raster_model *model)
{
    return model->facts.net.vocabulary > 0;
}

/* Loads a model of these facts on queue k. `note` is a warning to log, or "". */
mar_status mar_raster_load(mar *m, kern_queue *k, const wt_file *f, const raster_facts *facts, const char *note,
                           mar_model **out, mar_err *err);
/* The engines' unload and describe (mar/core/engine.h). */
void mar_raster_unload(mar_model *model);
void mar_raster_describe(const mar_model *model, char *text, size_t size);

/* The engines' load. */
mar_status raster_load(mar *m, kern_queue *k, const wt_file *f, const family_facts *facts, mar_model **out,
                       mar_err *err);

#endif
