/* All images of a run on one picture: the grid, and the map of accepted tokens. */
#ifndef TOOLS_GENERATE_GRID_H
#define TOOLS_GENERATE_GRID_H

#include "tools/generate/job.h"

/* Sets job->rows, columns and class_is_column, and creates the pictures that the options ask for: job->grid, and
 * job->map with map_cell. Returns 0, or 1 with the error printed. */
int grid_create(generate_job *job);

/* Copies `rgb`, uint8_t [height][width][3], to the cell of image `index` on a canvas of the job's rows and columns. */
void grid_place(const generate_job *job, image *canvas, long index, const uint8_t *rgb);

#endif
