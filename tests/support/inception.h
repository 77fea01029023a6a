/* Networks of Inception's layout with addressed weights, and images to show them: the same as
 * tests/golden/make_inception.py makes, whose results are in tests/golden/data/inception.safetensors. */
#ifndef TESTS_INCEPTION_H
#define TESTS_INCEPTION_H

#include "tests/support/support.h"

enum {
    INCEPTION_SINGLE = 5,    /* images with results of their own */
    INCEPTION_SET = 100,     /* images of each of the two sets that are compared, which lie alternately */
    INCEPTION_FULL_SET = 30, /* the same, of those that the network of full size compares */
    INCEPTION_SIDE = 64,     /* of the sets' images */
    INCEPTION_FIRST = 100    /* number of the first image of the sets */
};

extern const int inception_single[INCEPTION_SINGLE][2]; /* height, width */

/* Writes the network "full" (the published size, 95 MB) or "small" (an eighth of the channels) of the golden file as
 * safetensors. */
void inception_write(const wt_file *golden, const char *which, const char *path);
/* Image `number`: rgb [height][width][3]. */
void inception_image(int number, int height, int width, uint8_t *rgb);
/* The sets' images first .. first+n-1: rgb [n][INCEPTION_SIDE][INCEPTION_SIDE][3]. */
void inception_images(int first, int n, uint8_t *rgb);

#endif
