#include "tools/generate/grid.h"

#include <math.h>

/* Sets the shape. Rows are classes, or columns if there are more classes than images of each: wide rather than high.
 * One class, or one image of each, makes a square. */
void grid_shape(generate_job *job)
{
    if (job->class_count > 1 && job->num > 1) {
        job->class_is_column = job->class_count >= job->num;
        job->columns = job->class_is_column ? job->class_count : job->num;
        job->rows = job->class_is_column ? job->num : job->class_count;
    } else {
        job->columns = (int)ceil(sqrt((double)job->total));
        job->rows = (int)((job->total + job->columns - 1) / job->columns);
    }
}

/* Finds the row and column of an image on the grid. */
static void place(const generate_job *job, long index, int *row, int *column)
{
    const long group = index / job->num, member = index % job->num; /* class; image of the class */
    *row = (int)(index / job->columns);
    *column = (int)(index % job->columns);
    if (job->class_count > 1 && job->num > 1) {
        *row = (int)(job->class_is_column ? member : group);
        *column = (int)(job->class_is_column ? group : member);
    }
}

void grid_place(const generate_job *job, image *canvas, long index, const uint8_t *rgb)
{
    int row, column;
    place(job, index, &row, &column);
    image_grid_set(canvas, row, column, job->width, job->height, rgb);
}
