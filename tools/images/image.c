#include "tools/images/image.h"

#include "tools/cli/text.h"

#include <stdlib.h>
#include <string.h>

/* --- memory for pixels ----------------------------------------------------------------------------------- */

int image_check_sides(double width, double height, char why[IMAGE_WHY_MAX])
{
    if (width >= 1 && height >= 1 && width <= IMAGE_SIDE_MAX && height <= IMAGE_SIDE_MAX) return 0;
    return text_fail(why, IMAGE_WHY_MAX, "has %.0fx%.0f pixels, expected sides of 1 to %d", width, height,
                     IMAGE_SIDE_MAX);
}

int image_make_room(double width, double height, size_t size, double pixels_per_byte, image *out,
                    char why[IMAGE_WHY_MAX])
{
    if (image_check_sides(width, height, why) != 0) return 1;
    if (width * height > pixels_per_byte * (double)size)
        return text_fail(why, IMAGE_WHY_MAX, "has %zu bytes of pixels, too few for its %.0fx%.0f", size, width, height);
    *out = (image){(int)width, (int)height, malloc((size_t)width * (size_t)height * 3)};
    return out->rgb ? 0 : text_fail(why, IMAGE_WHY_MAX, "out of memory for %.0fx%.0f pixels", width, height);
}

int image_split_alpha(const uint8_t *rgba, image *out, uint8_t **alpha)
{
    const size_t pixels = (size_t)out->width * (size_t)out->height;
    uint8_t *to = alpha ? malloc(pixels) : NULL;
    if (alpha && !to) return 1;
    for (size_t i = 0; i < pixels; i++) {
        memcpy(out->rgb + 3 * i, rgba + 4 * i, 3);
        if (to) to[i] = rgba[4 * i + 3];
    }
    if (alpha) *alpha = to;
    return 0;
}

/* --- grids -------------------------------------------------------------------------------------------- */

double image_grid_pixels(int rows, int columns, int cell_width, int cell_height)
{
    return ((double)columns * (cell_width + GRID_GAP) - GRID_GAP) *
           ((double)rows * (cell_height + GRID_GAP) - GRID_GAP);
}

int image_grid_create(int rows, int columns, int cell_width, int cell_height, image *grid)
{
    grid->width = columns * (cell_width + GRID_GAP) - GRID_GAP;
    grid->height = rows * (cell_height + GRID_GAP) - GRID_GAP;
    size_t bytes = (size_t)grid->width * (size_t)grid->height * 3;
    grid->rgb = malloc(bytes);
    if (!grid->rgb) return 1;
    memset(grid->rgb, 255, bytes);
    return 0;
}

void image_grid_set(image *grid, int row, int column, int cell_width, int cell_height, const uint8_t *rgb)
{
    size_t left = (size_t)column * (size_t)(cell_width + GRID_GAP);
    size_t top = (size_t)row * (size_t)(cell_height + GRID_GAP);
    for (int y = 0; y < cell_height; y++)
        memcpy(grid->rgb + ((top + (size_t)y) * (size_t)grid->width + left) * 3,
               rgb + (size_t)y * (size_t)cell_width * 3, (size_t)cell_width * 3);
}
