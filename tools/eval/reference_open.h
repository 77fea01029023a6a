/* What --stats and --images DIR2 name: statistics, images, or "demo". */
#ifndef TOOLS_EVAL_REFERENCE_OPEN_H
#define TOOLS_EVAL_REFERENCE_OPEN_H

#include "eval/reference.h"
#include "tools/generate/job.h"
#include "tools/eval/judge.h"
#include "tools/generate/record.h"

/* Loads an npz of statistics or "demo" (eval/reference.h); judges the images of a directory of PNG and JPEG files, or
 * arr_0 of an npz, as far as what is wanted is not in the file as numbers: mean and covariance if it has none,
 * and, with `want_features` 1, features of single images for precision and recall if it has none. `batch`: images that
 * the network takes at a time, as it was loaded with. Progress goes to stderr unless `quiet`. Returns as
 * judge_images. The caller calls eval_reference_free. */
int eval_reference_open(const char *path, mar *library, mar_features *network, int batch, int want_features, int quiet,
                        eval_reference *out);

/* What tells a reference from others of its name, into text: length and hash of a file, as record_identify_file has it,
 * or how many images a directory has, and a hash of their names, sizes and times. "" for NULL and "demo". Returns 0, or
 * 1 after printing an error. */
int eval_reference_identify(const char *path, char text[RECORD_ID]);

/* Fills in what *out has not yet: mean and covariance of judged images, also of the spatial features, and their
 * features, which it takes over from *d. Returns 0, or 1 after printing an error; the caller calls eval_reference_free.
 */
int eval_reference_of(judged *d, const char *path, eval_reference *out);

/* Whether the path is a directory: of reference images, then. */
int eval_reference_is_directory(const char *path);

#endif
