/* Networks of Inception's layout with addressed weights, and images for them. tests/golden/make_inception.py makes the
 * same ones. Its results are in tests/golden/data/inception.safetensors. */
#ifndef TESTS_INCEPTION_H
#define TESTS_INCEPTION_H

#include "tests/support/support.h"

enum {
    INCEPTION_SINGLE = 5,    /* images with results of their own */
    INCEPTION_SET = 100,     /* images of each of the two compared sets; the sets alternate */
    INCEPTION_FULL_SET = 30, /* the same for the full-size network */
    INCEPTION_SIDE = 64,     /* of the sets' images */
    INCEPTION_FIRST = 100    /* number of the first image of the sets */
};

extern const int inception_single[INCEPTION_SINGLE][2]; /* height, width */

/* Writes a network of the golden file as safetensors: "full" (published size, 95 MB) or "small" (an eighth of the
 * channels). */
void inception_write(const wt_file *golden, const char *which, const char *path);
/* Draws image `number`: rgb [height][width][3]. */
void inception_image(int number, int height, int width, uint8_t *rgb);
/* Draws the sets' images first .. first+n-1: rgb [n][INCEPTION_SIDE][INCEPTION_SIDE][3]. */
void inception_images(int first, int n, uint8_t *rgb);

#endif
