/* Where the images of a run lie on its grid. */
#ifndef TOOLS_GRID_H
#define TOOLS_GRID_H

#include "tools/generate/job.h"

/* Sets job->rows, columns and class_is_column. After class_count, num and total. */
void grid_shape(generate_job *job);

/* Puts `rgb`, uint8_t [height][width][3], on a canvas of the job's rows and columns, in the cell of image `index`. */
void grid_place(const generate_job *job, image *canvas, long index, const uint8_t *rgb);

#endif
