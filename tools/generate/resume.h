/* mar generate --resume: finds the images of a run that its directory has. */
#ifndef TOOLS_RESUME_H
#define TOOLS_RESUME_H

#include "tools/generate/job.h"

/* Reads the numbered images in the directory. Sets job->have and job->existing, and puts them on job->grid if there is
 * one. Call it after prepare. Writes no file. Returns 0. Returns 1, with the error printed, for a damaged image, one
 * with other text than this run's (record_texts_make), or a number that this run lacks. */
int resume_find(generate_job *job);

#endif
