/* The layout of a run's images on its grid. */
#ifndef TOOLS_GRID_H
#define TOOLS_GRID_H

#include "tools/generate/job.h"

/* Sets job->rows, columns and class_is_column, from class_count, num and total. */
void grid_shape(generate_job *job);

/* Copies `rgb`, uint8_t [height][width][3], to the cell of image `index` on a canvas of the job's rows and columns. */
void grid_place(const generate_job *job, image *canvas, long index, const uint8_t *rgb);

#endif
