/* Speculation across tokens by whole paths (specdec/path.h), in raster order: a smaller SphereAR model drafts. A step
 * has one token, whose number is its position. One pass of the model over tokens n-1 .. n+length-2 gives the true
 * conditions of tokens n .. n+length-1. The model alone draws an image's first token, since its two branches may draw
 * it apart. */
#ifndef SPHEREAR_PATHS_H
#define SPHEREAR_PATHS_H

#include "specdec/path.h"
#include "spherear/state.h"

typedef struct sphere_paths {
    spec_path rounds;
    sphere *g;
    causal_runner *runner; /* of the draft model */
    diff_chain chain;      /* of the draft model */
    int *position;         /* host [seq_len] 0, 1, ... */
    int *row;              /* host [max_images * gamma] 0, 1, ... */
    int *place;            /* host [max_images] places of tokens in g->tokens */

    /* Backend memory, from sphere_paths_lay_out. D and E are the widths of the model and of the draft model. */
    float *z;       /* [2][max_images * gamma][D] conditions of the round's tokens, by image, then token */
    float *draft_z; /* [2][max_images][E] conditions of the draft model's next tokens */
    float *normal;  /* [max_images][C] tokens, normalised */
} sphere_paths;

/* Returns MAR_EARG or MAR_EMODEL if the parameters' draft cannot draft for the model. */
mar_status sphere_paths_check(const sphere_model *model, const mar_params *p, int max_images, mar_err *err);
/* Return the tokens of a round, and the most tokens that a call of a head has. */
int sphere_paths_gamma(const mar_params *p);
int sphere_paths_rows(const mar_params *p, int max_images);
/* Creates the paths of a session whose runner and chain exist. *out is to be freed also after a failure. */
mar_status sphere_paths_create(sphere *g, sphere_paths **out, mar_err *err);
void sphere_paths_free(sphere_paths *s);                  /* NULL is fine */
size_t sphere_paths_lay_out(sphere_paths *s, char *base); /* as diff_chain_lay_out */
mar_status sphere_paths_plan(sphere_paths *s, int images, mar_err *err);
/* Begins a batch of n images in slots 0 .. n - 1: computes their class tokens. */
void sphere_paths_admit(sphere_paths *s, const int *slot, const mar_image *images, int n);
/* Runs a round of all unfinished images, whose first token is known. Returns the queue's failure. */
mar_status sphere_paths_round(sphere_paths *s, mar_err *err);
/* Adds the statistics. */
void sphere_paths_stats(const sphere_paths *s, mar_stats *stats);

#endif
