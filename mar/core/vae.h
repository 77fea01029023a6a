#ifndef MAR_VAE_H
#define MAR_VAE_H

#include "mar/core/handle.h"
#include "vae/vae.h"

/* Nothing in it changes after it is loaded but the count of references. */
struct mar_vae {
    mar *m; /* which it holds a reference on */
    vae_decoder *decoder;
    char *path;            /* of a file with a codebook, from the root; else, and of a built-in one, NULL */
    atomic_int references; /* mar_vae_load's, and one for each session */
};

void mar_vae_retain(mar_vae *vae);

#endif
