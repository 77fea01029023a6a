/* What the two files about NextStep-1 share. */
#ifndef FAMILIES_NEXTSTEP_H
#define FAMILIES_NEXTSTEP_H

#include "families/families.h"

#define NEXTSTEP_INPUT "image_in_projector.weight" /* [width][numbers of a token] */
#define NEXTSTEP_TABLE "gen_pos_embed"             /* the table of positions, [1][tokens][width] */

int nextstep_recognise(const wt_file *f);
/* Tells whether the file is NextStep-1.1, whose config.json has the names of another training code. */
int nextstep_is_newer(const wt_file *f);
/* Reads the side of a token's patch of latents, from 1 to 64. Returns MAR_EMODEL for another, and if a token's numbers
 * are no such patches. */
mar_status nextstep_patch(const wt_file *f, int *out, mar_err *err);
/* Sets *used to 1 if the configuration or the metadata ask for the table of positions, and *table to its tensor, NULL
 * if none is used or there is none of such a shape. */
mar_status nextstep_positions(const wt_file *f, int *used, const wt_tensor **table, mar_err *err);

#endif
