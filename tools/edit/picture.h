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

/* Reads "X,Y,WIDTH,HEIGHT". Returns 0, or 1 with the error printed. */
int edit_read_box(const char *text, int box[4]);
/* Makes a mask of width x height pixels, white in a box alone. Returns 0, and the caller frees out->rgb; or 1 with the
 * error printed. */
int edit_box(const int box[4], int width, int height, image *out);

/* Writes how much of each pixel of the canvas is pasted from the picture, uint8_t [height][width], 255: all of it.
 * Nothing where the mask is white, NULL: nowhere, or beside the picture; from there on it grows to all in `feather`
 * pixels, by the nearest such pixel (Euclidean). Place, mask and picture are those of edit_mask, which has checked
 * them. Returns 0, or 1 with the error printed. */
int edit_paste_weights(const image *mask, const image *picture, int x, int y, int width, int height, int columns,
                       int feather, uint8_t *weight);

/* Pastes pixels of the canvas over those of rgb, both uint8_t [height][width][3], by weights. */
void edit_paste(const image *canvas, const uint8_t *weight, uint8_t *rgb);

/* Keeps a fraction of the known tokens, rounded, and clears the others, at least one. Which ones depends on seed and
 * image number. */
void edit_keep(double fraction, uint64_t seed, uint64_t number, int count, uint8_t *known);

/* Returns how many of known [count] are 1. */
int edit_count(const uint8_t *known, int count);

#endif
