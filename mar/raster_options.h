/* A session's options in raster order, resolved: methods, trees and lengths of speculation over ids. */
#ifndef MAR_RASTER_OPTIONS_H
#define MAR_RASTER_OPTIONS_H

#include "mar/raster_model.h"
#include "specdec/costs.h"
#include "specdec/sampler.h"

enum { RASTER_TREE_DRAFTS = 256, RASTER_TREE_TEXT = 512 };

/* A static tree of drafts, by levels. */
typedef struct {
    int parent[RASTER_TREE_DRAFTS]; /* [count] parents, as in spec_sampler_options */
    int count, depth;               /* drafts and levels; 0: a chain, a dynamic tree or no drafts */
} raster_tree;

typedef struct {
    mar_params params; /* options with automatic values resolved; texts point into this struct */
    /* Of ids. */
    char tree_text[RASTER_TREE_TEXT];
    const spec_method *method; /* verifier; NULL: plain decoding */
    double parameter[SPEC_PARAMETERS_MAX];
    raster_tree tree;
    int neighbours;     /* tokens a row of the table of near tokens; 0: the method needs no table */
    spec_choice choice; /* of each round's drafts; widths 0: all rounds have the same */
    int measures;       /* 1: its costs are not known yet */
    int is_standard;    /* 1: its costs are the standard ones, not a machine's */
    char costs_text[SPEC_COSTS_TEXT];
} raster_plan;

/* Resolves the options for batches of up to max_images, of ids. Checks them against each other and against the
 * model. */
mar_status raster_resolve_ids(const mar_raster_model *model, const mar_params *params, int max_images, raster_plan *out,
                              mar_err *err);
/* Sets num_iter, an image's tokens. Returns MAR_EARG for another number. */
mar_status raster_resolve_steps(const mar_raster_model *model, mar_params *p, mar_err *err);
/* Returns the type of cached keys and values that the parameters ask for. */
kern_cache_type raster_cache_type(const mar_params *p);
/* Reads --round_costs (spec_costs_read). Returns MAR_EARG for other text. */
mar_status raster_costs_read(const char *text, int first, int most, int may_catch_up, spec_choice *out, mar_err *err);
/* Reads a tree by levels, "4,2,1". "static" is the tree of EAGLE and LANTERN++. Returns MAR_EARG for other text. */
mar_status raster_tree_read(const char *text, raster_tree *out, mar_err *err);

#endif
