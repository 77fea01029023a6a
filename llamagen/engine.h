/* The discrete engine: the autoregressive loop of LlamaGen and its kin over tokens of a codebook, with the methods of
 * speculative decoding for them (specdec/sampler.h). Plain decoding is the sampler without drafts. */
#ifndef MAR_DISCRETE_H
#define MAR_DISCRETE_H

#include "llamagen/config.h"
#include "mar/core/engine.h"
#include "specdec/eagle.h"
#include "specdec/sampler.h"

/* engine_config.c: Derives the shape of a LlamaGen file. The handle gives the number of tokens if the file does not.
 * Returns MAR_EARG if the two differ. */
mar_status mar_discrete_config(const mar *m, const wt_file *f, int heads, gpt_config *out, mar_err *err);
/* Derives that of a decoder of text/grammar.h, for the handle's size of images. */
mar_status mar_decoder_config(const mar *m, const wt_file *f, int heads, gpt_config *out, mar_err *err);
/* Returns the shape as the public header has it. A drafter has no images, tokens or classes. */
mar_model_config mar_discrete_public_config(const gpt_config *c);
mar_model_config mar_eagle_public_config(const eagle_config *c);

/* engine_model.c: a model of LlamaGen, or a decoder of text/grammar.h. */
typedef struct {
    mar_model base;
    gpt_config config;
    causal_model *gpt;
    char guess[GPT_GUESS_TEXT]; /* the base's warning */
} mar_discrete_model;

static inline const mar_discrete_model *mar_discrete_model_of(const mar_model *model)
{
    return (const mar_discrete_model *)model;
}

/* Loads the transformer on queue k. Of a decoder of text/grammar.h it takes the rows of image tokens alone. */
mar_status mar_discrete_load_net(kern_queue *k, const wt_file *f, const gpt_config *c, causal_model **out,
                                 mar_err *err);
/* The engine's load, unload and describe (mar/core/engine.h). */
mar_status mar_discrete_load(mar *m, kern_queue *k, const wt_file *f, int heads, mar_model **out, mar_err *err);
void mar_discrete_unload(mar_model *model);
void mar_discrete_describe(const mar_model *model, char *text, size_t size);

/* engine_eagle.c: an EAGLE drafter. This family of models serves as draft only. */
typedef struct {
    mar_model base;
    eagle_model *eagle;
} mar_eagle_model;

extern const mar_engine mar_eagle_engine;

/* Returns the drafter; NULL if the model is not one. */
static inline const eagle_model *mar_eagle_of(const mar_model *model)
{
    return model->engine == &mar_eagle_engine ? ((const mar_eagle_model *)model)->eagle : NULL;
}

enum { MAR_TREE_DRAFTS = 256, MAR_TREE_TEXT = 512 };

/* A static tree of drafts, by levels. */
typedef struct {
    int parent[MAR_TREE_DRAFTS]; /* [count] parents, as in spec_sampler_options */
    int count, depth;            /* drafts and levels; 0: a chain, a dynamic tree or no drafts */
} mar_tree;

/* The resolved options of a session. */
typedef struct {
    mar_params params; /* options with automatic values resolved; tree points to tree_text */
    char tree_text[MAR_TREE_TEXT];
    const spec_method *method; /* verifier; NULL: plain decoding */
    double parameter[SPEC_PARAMETERS_MAX];
    mar_tree tree;
    int neighbours; /* tokens a row of the table of near tokens; 0: the method needs no table */
} mar_discrete_plan;

/* engine_options.c: Resolves the options for batches of up to max_images. Checks them against each other and against
 * the model. */
mar_status mar_discrete_resolve_params(const mar_discrete_model *model, const mar_params *params, int max_images,
                                       mar_discrete_plan *out, mar_err *err);
/* Returns the type of cached keys and values that the parameters ask for. */
kern_cache_type mar_discrete_cache_type(const mar_params *p);
/* Reads a tree by levels, "4,2,1". "static" is the tree of EAGLE and LANTERN++. Returns MAR_EARG for other text. */
mar_status mar_tree_read(const char *text, mar_tree *out, mar_err *err);

/* engine_draft.c: the draft of a session. It is a smaller model of the same family, or an EAGLE drafter over the
 * target's features. */
typedef struct {
    causal_runner *model; /* at most one is not NULL; without a draft both are */
    eagle_runner *eagle;
} mar_drafter;

/* Creates the drafter. `target` uses the same guidance, and has `keep` if mar_eagle_of(draft). The other arguments are
 * those of causal_runner_create. Frees everything on failure. */
mar_status mar_drafter_create(kern_queue *k, const mar_model *draft, const mar_discrete_model *model,
                              causal_runner *target, const causal_sampling *sampling, int images, int drafts,
                              mar_drafter *out, mar_err *err);
/* Sets the type of cached keys and values, as causal_runner_set_cache. */
void mar_drafter_set_cache(mar_drafter *d, kern_cache_type type);
/* Sets the caption in the second branch, as causal_runner_set_negative. */
void mar_drafter_set_negative(mar_drafter *d, const float *features, const uint8_t *mask);
void mar_drafter_free(mar_drafter *d); /* call before the target is freed */
size_t mar_drafter_lay_out(mar_drafter *d, char *base);
mar_status mar_drafter_plan(mar_drafter *d, int images, mar_err *err);
void mar_drafter_clear_stats(mar_drafter *d);
/* Starts images that the target has just started. */
void mar_drafter_admit(mar_drafter *d, const causal_start *start, int n);
/* Implements spec_model.log_probs. */
mar_status mar_drafter_log_probs(mar_drafter *d, const causal_request *request, int n, float *log_probs, mar_err *err);
/* Returns the draft's statistics; NULL without a draft. */
const causal_runner_stats *mar_drafter_stats(const mar_drafter *d);

/* engine_measure.c: Measures passes over chains of 0, 1, 4, 16 and 64 drafts behind half an image, for `images` images.
 * Adds their times, bytes and flop to the group "pass". A row is named "target, 16 drafts" if `role` is "target". */
mar_status mar_discrete_measure(kern_queue *k, const causal_model *model, const causal_sampling *sampling,
                                kern_cache_type cache, int images, const char *role, mar_measurements *all,
                                mar_err *err);
/* engine_measure_eagle.c: Measures an EAGLE drafter's passes behind half an image, as a round of the plan makes them.
 * It adds "draft, 0 drafts at depth 0" over one token and over the most tokens that a round can add. It adds each level
 * of drafts that the drafter is asked about: "draft, 10 drafts at depth 2". */
mar_status mar_eagle_measure(kern_queue *k, const eagle_model *eagle, const causal_model *model,
                             const causal_sampling *sampling, const mar_discrete_plan *plan, int images,
                             mar_measurements *all, mar_err *err);

/* Shared by both, in engine_measure.c: a timed pass of a runner with these statistics. mar_discrete_timed sets m's
 * counts to the pass's. It sets m->seconds to the pass's time if m->seconds is 0 or longer. */
typedef struct {
    kern_queue *k;
    const causal_runner_stats *stats;
    causal_runner_stats before;
} mar_discrete_timer;

mar_discrete_timer mar_discrete_time(kern_queue *k, const causal_runner_stats *stats);
void mar_discrete_timed(const mar_discrete_timer *t, mar_measured *m);
/* Starts images of class 0, or of captions whose features are 0. */
mar_status mar_discrete_begin_any(causal_runner *r, const causal_shape *c, int images, mar_err *err);

#endif
