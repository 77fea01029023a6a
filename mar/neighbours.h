/* Which tokens of a codebook are near: what LANTERN's methods ask. */
#ifndef MAR_NEIGHBOURS_H
#define MAR_NEIGHBOURS_H

#include "mar/vae.h"

/* Fills host table [codebook][k], 1 <= k <= codebook, of an image decoder with a codebook: row x has the k tokens
 * nearest to x, nearest first, x itself before all; ties go to the lower number. */
mar_status mar_neighbours(const mar_vae *vae, mar_metric metric, int k, int *table, mar_err *err);

#endif
