/* mar generate --resume: which images of a run are in its directory already. */
#ifndef TOOLS_RESUME_H
#define TOOLS_RESUME_H

#include "tools/generate/job.h"

/* Reads the numbered images in the directory. Sets job->have and job->existing, and puts them on job->grid if there is
 * one. After prepare; writes nothing. Returns 0; or 1 after printing why the run cannot go on there: an image that is
 * not whole, has another text than this run gives it (record_texts_make), or a number that this run does not have. */
int resume_find(generate_job *job);

#endif
