/* The discrete engine: LlamaGen's autoregressive loop over tokens of a codebook, one after another, with the methods of
 * speculative decoding for them (specdec/sampler.h). Plain decoding is the sampler without drafts. */
#ifndef MAR_DISCRETE_H
#define MAR_DISCRETE_H

#include "llamagen/runner.h"
#include "mar/engine.h"
#include "specdec/sampler.h"

/* discrete_model.c: a LlamaGen model. */
typedef struct {
    mar_model base;
    gpt_model *gpt;
} mar_discrete_model;

static inline const mar_discrete_model *mar_discrete_model_of(const mar_model *model)
{
    return (const mar_discrete_model *)model;
}

/* The engine's load, unload and describe (mar/engine.h). */
mar_status mar_discrete_load(mar *m, kern_queue *k, const wt_file *f, int heads, mar_model **out, mar_err *err);
void mar_discrete_unload(mar_model *model);
void mar_discrete_describe(const mar_model *model, char *text, size_t size);

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

/* discrete_options.c: reads the options for batches of up to max_images of the model, and checks them together and
 * against the model. */
mar_status mar_discrete_settle(const mar_discrete_model *model, const mar_params *params, int max_images,
                               mar_discrete_plan *out, mar_err *err);
/* Reads a tree by levels, "4,2,1"; "static" is that of EAGLE and LANTERN++. MAR_EARG if it is neither. */
mar_status mar_tree_read(const char *text, mar_tree *out, mar_err *err);

/* discrete_measure.c: adds passes of the model over chains of 0, 1, 4, 16 and 64 drafts behind half an image, of so
 * many images at a time, with the bytes that they must read and their arithmetic: group "pass", "target, 16 drafts" if
 * `whose` is "target". */
mar_status mar_discrete_measure(kern_queue *k, const gpt_model *model, const gpt_sampling *sampling, int images,
                                const char *whose, mar_measurements *all, mar_err *err);

#endif
