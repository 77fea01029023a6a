/* Which tokens of a codebook are near: what LANTERN's methods ask. The table is made once and kept in a file beside the
 * checkpoint, FILE.neighbours-l2-1000.npz for the 1000 nearest by l2 distance:
 *
 *     codebook    float32 [size][dim]  of which it was made; the file is of no use for another one
 *     metric      int32 [1]            mar_metric
 *     neighbours  int32 [size][k]      row x: the tokens nearest to x, nearest first, x itself before all
 *
 * Near is what LANTERN's code calls so (entrypoints/generate_codebook.py): distances are those of the rows that the
 * checkpoint has, not of those of length 1 that are decoded. */
#ifndef MAR_NEIGHBOURS_H
#define MAR_NEIGHBOURS_H

#include "mar/core/vae.h"

/* Fills host table [codebook][k], 1 <= k <= codebook, for an image decoder with a codebook; ties go to the lower
 * number. A file that is of no use is replaced; where none can be written it is done without. Both are told the host's
 * log, so that no queue may be entered. MAR_ENOMEM. */
mar_status mar_neighbours(const mar_vae *vae, mar_metric metric, int k, int *table, mar_err *err);

#endif
