/* The near tokens of a codebook, for LANTERN's methods. The table is computed once and kept in a file beside the
 * checkpoint: FILE.neighbours-l2-1000.npz for the 1000 nearest by l2 distance.
 *
 *     codebook    float32 [size][dim]  the codebook; a file with another one is rejected
 *     metric      int32 [1]            mar_metric
 *     neighbours  int32 [size][k]      row x: the tokens nearest to x, nearest first, beginning with x
 *
 * Distances follow LANTERN's code (entrypoints/generate_codebook.py): they are those of the checkpoint's rows, not of
 * the normalised rows that are decoded. */
#ifndef MAR_NEIGHBOURS_H
#define MAR_NEIGHBOURS_H

#include "mar/core/vae.h"

/* Fills host table [codebook][k], 1 <= k <= codebook, for an image decoder with a codebook. Ties go to the lower token
 * id. A rejected file is replaced; if none can be written, the table is used without. Both are logged to the host, so
 * no queue may be bound. Returns MAR_ENOMEM without memory. */
mar_status mar_neighbours(const mar_vae *vae, mar_metric metric, int k, int *table, mar_err *err);

#endif
