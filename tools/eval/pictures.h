/* The pictures of a run whose images are all in the store: files that were asked for, and those that the report shows.
 * What is missing is decoded again from the tokens. */
#ifndef TOOLS_EVAL_PICTURES_H
#define TOOLS_EVAL_PICTURES_H

#include "tools/eval/job.h"
#include "tools/eval/report.h"

/* Completes RUN/images and RUN/images.npz, of crc [images], the CRC-32 of each image. Returns 0, 1 after printing an
 * error, or an interruption's status. */
int eval_pictures_finish(eval_job *job, const uint32_t *crc);

/* Allocates the pixels of the list's images; without a model those that are not in the store fall out of it. The same.
 */
int eval_pictures_get(eval_job *job, eval_report_image *list, int *count);

#endif
