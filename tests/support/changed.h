/* Copies of models and checkpoints with one tensor changed. */
#ifndef TESTS_CHANGED_H
#define TESTS_CHANGED_H

#include "mar.h"
#include "tests/support/archive.h"
#include "weights/weights.h"

/* Writes `model` ("demo", "demo-draft", "demo-vae") in f32 as directory/file, with `value` in elements first ..
 * first+count-1 of a tensor. With count 0 it changes all elements from `first` on. A failure fails the test. Returns
 * the path; the caller frees it. */
char *write_changed(mar *m, const char *directory, const char *file, const char *model, const char *tensor, long first,
                    long count, float value);
/* Copies a checkpoint in one type, without a tensor; or, with a rank, with that tensor in another shape. tensor NULL:
 * all tensors. `skips` leaves out more, unless it is NULL. */
void write_copy_without(const char *from, const char *to, wt_dtype dtype, const char *tensor, int rank,
                        const int64_t *shape, int (*skips)(const char *name));
/* Makes an f32 element of a tensor in a safetensors file NaN. */
void write_nan(const char *path, const char *tensor, long at);
/* Returns the f32 data of a tensor in a safetensors file, and its number of elements in *count. Fails the test if the
 * tensor is missing. */
void *file_tensor(const bytes *file, const char *tensor, long *count);

#endif
