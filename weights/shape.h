/* What a model's configuration is read from: the shapes and names of tensors, and numbers of the metadata. */
#ifndef WEIGHTS_SHAPE_H
#define WEIGHTS_SHAPE_H

#include "weights/weights.h"

enum { WT_DIM_MAX = 1 << 20 }; /* any dimension of a model; keeps every product of two well inside 64 bits */

/* The tensor of this name, which must have the given rank and dimensions of 1 to WT_DIM_MAX. MAR_EMODEL. */
mar_status wt_find_shape(const wt_file *f, const char *name, int rank, const wt_tensor **out, mar_err *err);
/* One more than the largest N below `limit` of the tensors "<prefix>N."; 0 if there is none. Larger numbers are left to
 * the check for extra tensors. */
int wt_count_parts(const wt_file *f, const char *prefix, int limit);
/* A positive number of the metadata; *out stays as it is if there is none of that key. MAR_EMODEL. */
mar_status wt_metadata_number(const wt_file *f, const char *key, long *out, mar_err *err);

#endif
