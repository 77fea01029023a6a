/* The discrete engine: LlamaGen's autoregressive loop over tokens of a codebook, one after another, with the methods of
 * speculative decoding for them (specdec/sampler.h). Plain decoding is the sampler without drafts. */
#ifndef MAR_DISCRETE_H
#define MAR_DISCRETE_H

#include "llamagen/eagle.h"
#include "mar/core/engine.h"
#include "specdec/sampler.h"

/* engine_config.c: Derives the shape of a LlamaGen file. The handle gives the number of tokens where the file does not.
 * MAR_EARG if the two differ. */
mar_status mar_discrete_config(const mar *m, const wt_file *f, int heads, gpt_config *out, mar_err *err);
/* Return the shape as the public header has it. A drafter's has no images, tokens or classes. */
mar_model_config mar_discrete_public_config(const gpt_config *c);
mar_model_config mar_eagle_public_config(const eagle_config *c);

/* engine_model.c: a LlamaGen model. */
typedef struct {
    mar_model base;
    gpt_model *gpt;
} mar_discrete_model;

static inline const mar_discrete_model *mar_discrete_model_of(const mar_model *model)
{
    return (const mar_discrete_model *)model;
}

/* The engine's load, unload and describe (mar/core/engine.h). */
mar_status mar_discrete_load(mar *m, kern_queue *k, const wt_file *f, int heads, mar_model **out, mar_err *err);
void mar_discrete_unload(mar_model *model);
void mar_discrete_describe(const mar_model *model, char *text, size_t size);

/* engine_eagle.c: an EAGLE drafter, a family of models that can be drafts only. */
typedef struct {
    mar_model base;
    eagle_model *eagle;
} mar_eagle_model;

extern const mar_engine mar_eagle_engine;

/* The drafter, if the model is one, or NULL. */
static inline const eagle_model *mar_eagle_of(const mar_model *model)
{
    return model->engine == &mar_eagle_engine ? ((const mar_eagle_model *)model)->eagle : NULL;
}

enum { MAR_TREE_DRAFTS = 256, MAR_TREE_TEXT = 512 };

/* A static tree of drafts by levels. */
typedef struct {
    int parent[MAR_TREE_DRAFTS]; /* [count] as in spec_sampler_options */
    int count, depth;            /* 0: none, a chain or a dynamic tree */
} mar_tree;

/* What a session's options come to. */
typedef struct {
    mar_params params; /* with automatic values filled in; tree points to tree_text */
    char tree_text[MAR_TREE_TEXT];
    const spec_method *method; /* NULL: plain */
    double parameter[SPEC_PARAMETERS_MAX];
    mar_tree tree;
    int neighbours; /* tokens in a row of the table of near ones; 0: the method needs none */
} mar_discrete_plan;

/* engine_options.c: reads the options for batches of up to max_images of the model, and checks them together and
 * against the model. */
mar_status mar_discrete_resolve_params(const mar_discrete_model *model, const mar_params *params, int max_images,
                                       mar_discrete_plan *out, mar_err *err);
/* Reads a tree by levels, "4,2,1"; "static" is that of EAGLE and LANTERN++. MAR_EARG if it is neither. */
mar_status mar_tree_read(const char *text, mar_tree *out, mar_err *err);

/* engine_draft.c: what drafts for a session, a smaller LlamaGen model or an EAGLE drafter over the target's
 * features. */
typedef struct {
    gpt_runner *model; /* one of them is NULL, without a draft both */
    eagle_runner *eagle;
} mar_drafter;

/* `target` works with the same guidance, and with `keep` if mar_eagle_of(draft). The other arguments are those of
 * gpt_runner_create. On failure nothing is left. */
mar_status mar_drafter_create(kern_queue *k, const mar_model *draft, const mar_discrete_model *model,
                              gpt_runner *target, const gpt_sampling *sampling, int images, int drafts,
                              mar_drafter *out, mar_err *err);
void mar_drafter_free(mar_drafter *d); /* before the target */
size_t mar_drafter_lay_out(mar_drafter *d, char *base);
mar_status mar_drafter_plan(mar_drafter *d, int images, mar_err *err);
/* After the target has begun, with labels or captions as there. */
void mar_drafter_begin(mar_drafter *d, int images, const int *labels);
void mar_drafter_begin_captions(mar_drafter *d, int images, const float *features, const uint8_t *mask);
/* A spec_model's `laws`. */
mar_status mar_drafter_laws(mar_drafter *d, const spec_request *request, int n, float *log_probs, mar_err *err);
const gpt_runner_stats *mar_drafter_stats(const mar_drafter *d); /* NULL without a draft */

/* engine_measure.c: adds passes of the model over chains of 0, 1, 4, 16 and 64 drafts behind half an image, of so
 * many images at a time, with the bytes that they must read and their arithmetic: group "pass", "target, 16 drafts" if
 * `whose` is "target". */
mar_status mar_discrete_measure(kern_queue *k, const gpt_model *model, const gpt_sampling *sampling, int images,
                                const char *whose, mar_measurements *all, mar_err *err);
/* engine_measure_eagle.c: adds an EAGLE drafter's passes behind half an image, as a round of this plan has them: over
 * one token and over as many as a round can add, "draft, 0 drafts at depth 0", and over each level of drafts that the
 * drafter is asked about, "draft, 10 drafts at depth 2". */
mar_status mar_eagle_measure(kern_queue *k, const eagle_model *eagle, const gpt_model *model,
                             const gpt_sampling *sampling, const mar_discrete_plan *plan, int images,
                             mar_measurements *all, mar_err *err);

/* What both use, in engine_measure.c. A pass that is timed, of a runner with these statistics: mar_discrete_timed
 * sets m's counts to the pass's, and m->seconds to its time if that is 0 or longer. */
typedef struct {
    kern_queue *k;
    const gpt_runner_stats *stats;
    gpt_runner_stats before;
} mar_discrete_timer;

mar_discrete_timer mar_discrete_time(kern_queue *k, const gpt_runner_stats *stats);
void mar_discrete_timed(const mar_discrete_timer *t, mar_measured *m);
/* Starts images of class 0, or of captions whose features are 0. */
mar_status mar_discrete_begin_any(gpt_runner *r, const gpt_config *c, int images, mar_err *err);

#endif
