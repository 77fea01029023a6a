/* Opens the argument of --stats and --images: statistics, images, or "demo". */
#ifndef TOOLS_EVAL_REFERENCE_OPEN_H
#define TOOLS_EVAL_REFERENCE_OPEN_H

#include "eval/reference.h"
#include "tools/generate/job.h"
#include "tools/eval/judge.h"
#include "tools/generate/record.h"

/* Loads "demo" or an npz of statistics (eval/reference.h). Otherwise judges the images of a directory of PNG and JPEG
 * files, or arr_0 of an npz, for what the file lacks: mean and covariance and, with `want_features` 1, features of
 * single images for precision and recall. `batch`: images at a time, as the network was loaded with. Progress goes to
 * stderr unless `quiet`. Returns as judge_images. The caller calls eval_reference_free. */
int eval_reference_open(const char *path, mar *library, mar_features *network, int batch, int want_features, int quiet,
                        eval_reference *out);

/* Writes the identity of a reference to text: of a file as record_identify_file, of a directory the number of images
 * and a hash of their names, sizes and times. "" for NULL and "demo". Returns 0, or 1 with the error printed. */
int eval_reference_identify(const char *path, char text[RECORD_ID]);

/* Fills in what *out lacks: mean and covariance of judged images, also of the spatial features, and their features,
 * moved from *d. Returns 0, or 1 with the error printed. The caller calls eval_reference_free. */
int eval_reference_of(judged *d, const char *path, eval_reference *out);

/* Returns whether the path is a directory, with reference images. */
int eval_reference_is_directory(const char *path);

#endif
