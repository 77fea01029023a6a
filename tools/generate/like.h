/* --like: the run that made an image, from the text in its PNG. */
#ifndef TOOLS_LIKE_H
#define TOOLS_LIKE_H

#include "tools/cli/options.h"
#include "tools/generate/job.h"

/* Reads o->like, if there is one, and sets the options of `set` that were not given: parameters, arithmetic, model
 * files, class, and o->first, the image's number. Call it between options_read and run_options_done. Returns 0, or 1
 * with the error printed: a file that is no image of mar generate or mar eval, or a model file that is not here. */
int like_take(generate_options *o, const option_set *set);

/* Checks that the job's image has the bits of o->like, unless an option was given that makes another image. Call it
 * after record_identify and models_session. Returns 0, or 1 with the error printed: another version of libmar, another
 * arithmetic, or a model file that has the name of the image's but other bytes. Prints a line if a given model file is
 * not the image's. */
int like_check(const generate_job *job);

void like_free(generate_options *o);

#endif
