/* Built-in models with other weights in one tensor. */
#ifndef TESTS_CHANGED_H
#define TESTS_CHANGED_H

#include "mar.h"
#include "tests/support/archive.h"

/* Writes `model` ("demo", "demo-draft", "demo-vae") in f32 as directory/file, with `value` in elements first ..
 * first+count-1 of a tensor. With count 0 it changes all elements from `first` on. A failure fails the test. Returns
 * the path; the caller frees it. */
char *write_changed(mar *m, const char *directory, const char *file, const char *model, const char *tensor, long first,
                    long count, float value);
/* Returns the f32 data of a tensor in a safetensors file, and its number of elements in *count. Fails the test if the
 * tensor is missing. */
void *file_tensor(const bytes *file, const char *tensor, long *count);

#endif
