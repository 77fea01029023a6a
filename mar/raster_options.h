/* A session's options in raster order, resolved: methods, trees and lengths of speculation over ids. */
#ifndef MAR_RASTER_OPTIONS_H
#define MAR_RASTER_OPTIONS_H

#include "mar/raster_model.h"
#include "specdec/sampler.h"

enum {
    RASTER_TREE_DRAFTS = 256,
    RASTER_TREE_TEXT = 512,
    RASTER_COSTS_TEXT = 16 * SPEC_WIDTHS,
    RASTER_COST_MOST = 1000
};

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
    char costs_text[RASTER_COSTS_TEXT];
} raster_plan;

/* Resolves the options for batches of up to max_images, of ids. Checks them against each other and against the
 * model. */
mar_status raster_resolve_ids(const mar_raster_model *model, const mar_params *params, int max_images, raster_plan *out,
                              mar_err *err);
/* Sets num_iter, an image's tokens. Returns MAR_EARG for another number. */
mar_status raster_resolve_steps(const mar_raster_model *model, mar_params *p, mar_err *err);
/* Returns the type of cached keys and values that the parameters ask for. */
kern_cache_type raster_cache_type(const mar_params *p);
/* Makes the choice among 0, first, 2 * first, 4 * first, ... drafts, at most `most`, whose costs are 1 until they are
 * known. Keeps out->depth. */
void raster_costs_begin(spec_choice *out, int first, int most);
/* Reads --round_costs: the costs of `first`, 2 * first, ... drafts, at most `most`. Keeps out->depth. Returns MAR_EARG
 * for other text. Jacobi's first is 2: a single draft never comes from the round before. */
mar_status raster_costs_read(const char *text, int first, int most, spec_choice *out, mar_err *err);
void raster_costs_write(const spec_choice *choice, char *text, size_t size);
/* Reads a tree by levels, "4,2,1". "static" is the tree of EAGLE and LANTERN++. Returns MAR_EARG for other text. */
mar_status raster_tree_read(const char *text, raster_tree *out, mar_err *err);

#endif
