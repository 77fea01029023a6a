/* The pictures of a run whose images are all stored: requested files, and those on the page. Missing ones are decoded
 * again from the tokens. */
#ifndef TOOLS_EVAL_PICTURES_H
#define TOOLS_EVAL_PICTURES_H

#include "tools/eval/job.h"
#include "tools/eval/report.h"

/* Completes RUN/images and RUN/images.npz. crc [images]: CRC-32 of each image. Returns 0, 1 with the error printed, or
 * an interruption's status. */
int eval_pictures_finish(eval_job *job, const uint32_t *crc);

/* Allocates the pixels of the list's images. Without a model, images that the store lacks are dropped from the list.
 * Returns as eval_pictures_finish. */
int eval_pictures_get(eval_job *job, eval_report_image *list, int *count);

#endif
