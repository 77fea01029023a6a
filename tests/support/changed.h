/* Built-in models with other weights in one tensor. */
#ifndef TESTS_CHANGED_H
#define TESTS_CHANGED_H

#include "mar.h"
#include "tests/support/archive.h"

/* Writes `model` ("demo", "demo-draft", "demo-vae") in f32 as directory/file, with `value` in numbers first ..
 * first+count-1 of a tensor; count 0: in all from `first` on. Fails the test if that fails. Returns the path, which the
 * caller frees. */
char *write_changed(mar *m, const char *directory, const char *file, const char *model, const char *tensor, long first,
                    long count, float value);
/* The data of a tensor of a safetensors file in f32, and how many numbers it has. Fails the test if there is none. */
void *file_tensor(const bytes *file, const char *tensor, long *count);

#endif
