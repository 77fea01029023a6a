#ifndef MAR_VAE_H
#define MAR_VAE_H

#include "mar/core/handle.h"
#include "vae/vae.h"

/* A loaded VAE is constant but for its reference count. */
struct mar_vae {
    mar *m; /* library handle; referenced */
    vae_decoder *decoder;
    mar_vae_config config;
    char *name;            /* of its file, for messages */
    char *path;            /* absolute path of a file with a codebook; NULL for others and built-in ones */
    atomic_int references; /* mar_vae_load's, and one a session */
};

void mar_vae_retain(mar_vae *vae);

#endif
