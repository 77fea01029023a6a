/* Reference statistics: what images are compared with. */
#ifndef EVAL_REFERENCE_H
#define EVAL_REFERENCE_H

#include "mar.h"

typedef struct {
    const char *path;   /* as given */
    int dim;            /* of the features; 0: the file has no mu and sigma, but arr_0 */
    double *mu, *sigma; /* [dim], [dim][dim]; NULL if dim is 0 */
    int spatial;        /* of mu_s and sigma_s; 0: it has none */
    double *mu_s;       /* [spatial]; NULL: none */
    double *sigma_s;    /* [spatial][spatial]; NULL: none */
    float *features;    /* [feature_count][dim] of single images, for precision and recall; NULL: none */
    long feature_count; /* 0: none */
    int has_images;     /* 1: it has arr_0, uint8 [n][height][width][3] */
    long images;        /* n of arr_0; or the number of images that the statistics say they are of; 0: unknown */
} eval_reference;

/* Reads an npz with mu and sigma (float32 or float64, either order), and mu_s, sigma_s, features, arr_0, num_images as
 * far as they are there; or "demo": real digits in the demo's features, built in. arr_0 is not read. Every shape is
 * checked against the others; sigma must be symmetric within 1e-6 of its largest number, and finite. MAR_EIO,
 * MAR_EFORMAT, MAR_EMODEL, MAR_ENOMEM with a line in `why`, char [size]: it names path and array, what was found and
 * what was expected. The caller calls eval_reference_free. */
mar_status eval_reference_load(const char *path, eval_reference *out, char *why, size_t size);
void eval_reference_free(eval_reference *r); /* {0} is fine */

/* Writes such a file, whole or not at all: of `r` what is there. */
mar_status eval_reference_save(const char *path, const eval_reference *r, char *why, size_t size);

#endif
