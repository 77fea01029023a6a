#include "tools/generate/grid.h"

#include "tools/cli/command.h"

#include <math.h>
#include <stdlib.h>

enum { GRID_PIXELS_MAX = 100000000 }; /* 300 MB in memory; 32x32 images of 256x256 are two thirds of it */

/* Sets job->rows, columns and class_is_column. Rows are classes, or columns if there are more classes than images of
 * each: wide rather than high. One class, or one image of each, makes a square. */
static void grid_shape(generate_job *job)
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
static void grid_find(const generate_job *job, long index, int *row, int *column)
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
    grid_find(job, index, &row, &column);
    image_grid_set(canvas, row, column, job->width, job->height, rgb);
}

static int grid_create_one(const generate_job *job, const char *path, image_format format, image *canvas)
{
    double pixels = image_grid_pixels(job->rows, job->columns, job->width, job->height);
    if (pixels > GRID_PIXELS_MAX)
        return tool_error("%s: a grid of %ld images of %dx%d has %.0f pixels, expected %d at most: use fewer images or "
                          "--out DIR without --grid",
                          path, job->total, job->width, job->height, pixels, GRID_PIXELS_MAX);
    const double side =
        fmax(image_grid_pixels(1, job->columns, job->width, 1), image_grid_pixels(job->rows, 1, 1, job->height));
    if (side > image_format_side_max(format))
        return tool_error("%s: a grid with a side of %.0f pixels, expected %d at most in %s", path, side,
                          image_format_side_max(format), image_format_name(format));
    if (image_grid_create(job->rows, job->columns, job->width, job->height, canvas) != 0)
        return tool_error("out of memory for a grid of %.0f pixels", pixels);
    return 0;
}

int grid_create(generate_job *job)
{
    const char *map = job->options.accept_map;
    const int grid = job->out.is_file ? job->total > 1 : job->options.grid;
    grid_shape(job);
    if (grid && grid_create_one(job, job->out.path, job->out.format, &job->grid) != 0) return 1;
    if (!map) return 0;
    job->map_cell = malloc((size_t)job->width * (size_t)job->height * 3);
    if (!job->map_cell) return tool_error("out of memory for the map of an image");
    return grid_create_one(job, map, IMAGE_PNG, &job->map);
}
