/* Resizing as Pillow does it (Image.resize, src/libImaging/Resample.c): filters that widen as the picture shrinks, the
 * rows first, then the columns. Pillow 13 takes the columns of some tall pictures first, whose bytes then differ by 1
 * at most. */
#ifndef EVAL_RESIZE_H
#define EVAL_RESIZE_H

#include "base/error.h"

#include <stdint.h>

/* Filters: half widths of 1, 2 (a = -1/2) and 3 pixels. */
typedef enum { EVAL_BILINEAR, EVAL_BICUBIC, EVAL_LANCZOS } eval_filter;

/* A picture in the host's memory. */
typedef struct {
    const uint8_t *rgb; /* [height][width][3] */
    int width, height;  /* pixels, 1..EVAL_SIDE_MAX */
} eval_picture;

enum { EVAL_SIDE_MAX = 16384 };

/* Resizes to y, uint8_t [height][width][3], in Pillow's arithmetic of 8 bits: weights of 22 bits, and a rounding to 8
 * bits between the two passes. A side that stays is copied. Returns MAR_ENOMEM. */
mar_status eval_resize_bytes(const eval_picture *p, eval_filter filter, int width, int height, uint8_t *y,
                             mar_err *err);

/* Resizes to y, float [height][width][3] of 0..255, each channel in Pillow's mode "F", clipped at the end: clean-fid's
 * resize. Returns MAR_ENOMEM. */
mar_status eval_resize_floats(const eval_picture *p, eval_filter filter, int width, int height, float *y, mar_err *err);

/* Resizes the shorter side to `side`, the longer one in proportion, rounded down, and cuts `side` pixels from the
 * middle of that one: rounded down, as CLIP's processor in transformers, or with `to_even` a half to even, as
 * torchvision's Resize and CenterCrop. Only these pixels are computed. y is uint8_t [side][side][3]. Returns
 * MAR_ENOMEM. */
mar_status eval_resize_square(const eval_picture *p, eval_filter filter, int side, int to_even, uint8_t *y,
                              mar_err *err);
/* Does the same, to even, to y float [side][side][3], neither rounded nor clipped: torchvision (0.17 on) with a tensor,
 * whose resize has antialiasing. */
mar_status eval_resize_square_floats(const eval_picture *p, eval_filter filter, int side, float *y, mar_err *err);

#endif
