/* Pictures: RGB bytes, PNG with text, and files that are complete or not there. */
#ifndef TOOLS_IMAGE_H
#define TOOLS_IMAGE_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    int width, height;
    uint8_t *rgb; /* [height][width][3], rows top to bottom */
} image;

/* Text stored in a PNG. Keys: 1..79 Latin-1 characters; values may be UTF-8. */
typedef struct {
    const char *key, *value;
} image_text;

/* Encodes as PNG and puts it at `path`: written to a temporary file in the same directory, synced and
 * renamed, so that the path has the old file or the whole new one. Signals that end the process wait until it
 * is done. Returns 0, or 1 after printing an error (full disk and file size limit included); nothing is left
 * then. */
int image_write_png(const char *path, const image *picture, const image_text *texts, int text_count);

/* Tries whether a file can be created in the directory of `path`. Returns 0, or 1 after printing why not. */
int image_can_write(const char *path);

/* Images of one size on a grid, GRID_GAP white pixels between them; cells without an image are white. */
enum { GRID_GAP = 2 };

/* Allocates the picture for rows x columns cells; the caller frees grid->rgb. 1 if out of memory, 0 if not.
 */
int image_grid_create(int rows, int columns, int cell_width, int cell_height, image *grid);
void image_grid_set(image *grid, int row, int column, int cell_width, int cell_height, const uint8_t *rgb);
/* Pixels of such a grid, as a double since it may be absurdly large. */
double image_grid_pixels(int rows, int columns, int cell_width, int cell_height);

#endif
