/* Reference statistics for the evaluation of images. */
#ifndef EVAL_REFERENCE_H
#define EVAL_REFERENCE_H

#include "mar.h"

typedef struct {
    const char *path;   /* as given */
    int dim;            /* length of a feature vector; 0: only arr_0, no mu and sigma */
    double *mu, *sigma; /* [dim], [dim][dim]; NULL if dim is 0 */
    int spatial;        /* length of mu_s; 0: absent */
    double *mu_s;       /* [spatial]; NULL: absent */
    double *sigma_s;    /* [spatial][spatial]; NULL: absent */
    float *features;    /* [feature_count][feature_dim] of single images, for precision and recall; NULL: absent */
    int feature_dim;    /* that of VGG16, else dim */
    long feature_count; /* 0: absent */
    long pictures;      /* n of arr_0, uint8 [n][height][width][3]; 0: the file has none */
    /* Images behind mu and sigma: num_images, as mar stats writes it. Without mu and sigma n of arr_0, from which they
     * are computed. 0: unknown, as in ADM's files, whose mu and sigma are of more images than their arr_0. */
    long images;
    int resize; /* 1: of images resized as clean-fid does it; 0: as TensorFlow 1; -1: the file does not say */
} eval_reference;

/* Loads an npz with mu and sigma (float32 or float64, any order), or arr_0, and optionally mu_s, sigma_s, features,
 * num_images, clean_resize (0 or 1). "demo" is built in: real digits in the demo's features. arr_0 is not read. Shapes
 * must be consistent; sigma must be finite, and symmetric within 1e-6 of its largest number. Returns MAR_EIO,
 * MAR_EFORMAT, MAR_EMODEL or MAR_ENOMEM, and in `why`, char [size], path and array, found and expected. The caller
 * calls eval_reference_free. */
mar_status eval_reference_load(const char *path, eval_reference *out, char *why, size_t size);
void eval_reference_free(eval_reference *r); /* {0} is fine */

/* Writes the members of r that are set to an npz, completely or not at all. */
mar_status eval_reference_save(const char *path, const eval_reference *r, char *why, size_t size);

#endif
