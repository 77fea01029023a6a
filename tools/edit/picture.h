/* What mar edit begins with: a picture on the model's grid, and which of its tokens are kept. */
#ifndef TOOLS_EDIT_PICTURE_H
#define TOOLS_EDIT_PICTURE_H

#include "tools/images/image.h"

#include <stdint.h>

/* Places the picture on a canvas of width x height pixels, which it may not exceed, with its upper left corner at x, y;
 * both -1: in the middle, on a border of cells. Its outermost pixels continue to the canvas's sides, since the image
 * encoder sees these, too. Sets known [tokens], rows of `columns`: 1 if the picture covers the token's whole cell.
 * `name` is the picture's, for messages. Returns 0, and the caller frees out->rgb; or 1 with the error printed. */
int edit_place(const char *name, const image *picture, int x, int y, int width, int height, int columns, image *out,
               uint8_t *known);

/* Clears known [tokens] of every token whose cell has a white pixel in the mask: 128 or more in a channel. The
 * mask has the size of the canvas, or of the picture, and then its place. Returns 0, or 1 with the error printed. */
int edit_mask(const char *name, const image *mask, const image *picture, int x, int y, int width, int height,
              int columns, uint8_t *known);

/* Keeps a fraction of the known tokens, rounded, and clears the others, at least one. Which ones depends on seed and
 * image number. */
void edit_keep(double fraction, uint64_t seed, uint64_t number, int count, uint8_t *known);

/* Returns how many of known [count] are 1. */
int edit_count(const uint8_t *known, int count);

#endif
