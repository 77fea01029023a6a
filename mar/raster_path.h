/* Speculation across tokens by whole paths (specdec/path.h), in raster order: a smaller model of the family drafts. A
 * step has one token, whose number is its position. One pass of the model over tokens n-1 .. n+length-2 gives the true
 * conditions of tokens n .. n+length-1. The model alone draws an image's first token, since its two branches may draw
 * it apart. */
#ifndef MAR_RASTER_PATH_H
#define MAR_RASTER_PATH_H

#include "mar/path_costs.h"
#include "mar/raster_tokens.h"

typedef struct raster_path {
    spec_path rounds;
    path_costs costs;
    mar_raster *g;
    causal_runner *runner; /* of the draft model */
    diff_chain chain;      /* of the draft model */
    int *position;         /* host [seq_len] 0, 1, ... */
    int *row;              /* host [max_images * gamma] 0, 1, ... */
    int *place;            /* host [max_images] places of tokens in the slots' tokens */
    int *computed;         /* host [max_images] first tokens that the draft model has computed, all of them final */

    /* Backend memory, from raster_path_lay_out. D and E are the widths of the model and of the draft model. */
    float *z;       /* [2][max_images * gamma][D] conditions of the round's tokens, by image, then token */
    float *draft_z; /* [2][max_images][E] conditions of the draft model's next tokens */
    float *normal;  /* [max_images][C] tokens, normalised */
} raster_path;

/* Resolves gamma. Returns MAR_EARG or MAR_EMODEL if the parameters' draft cannot draft for the model. */
mar_status raster_path_check(const mar_raster_model *model, mar_params *p, int max_images, mar_err *err);
/* Returns the most tokens that a call of a head has. */
int raster_path_rows(const mar_params *p, int max_images);
/* Creates the paths of a session whose runner and chain exist. *out is to be freed also after a failure. */
mar_status raster_path_create(mar_raster *g, raster_path **out, mar_err *err);
void raster_path_free(raster_path *s);                  /* NULL is fine */
size_t raster_path_lay_out(raster_path *s, char *base); /* as diff_chain_lay_out */
mar_status raster_path_plan(raster_path *s, int images, mar_err *err);
/* Sets the prompt in the second branch of the draft model's images that start next. */
void raster_path_set_negative(raster_path *s, const float *features, const uint8_t *mask);
/* Begins a batch without images and statistics. Adds n images in these slots: computes what is before their tokens. */
void raster_path_begin(raster_path *s);
void raster_path_admit(raster_path *s, const int *slot, const mar_image *images, int n);
/* Runs a round of all unfinished images, whose first token is known. Returns the queue's failure. */
mar_status raster_path_round(raster_path *s, mar_err *err);
/* Leaves an image out of later rounds. */
void raster_path_release(raster_path *s, int slot);
/* Adds the statistics. */
void raster_path_stats(const raster_path *s, mar_stats *stats);

#endif
