#ifndef MAR_VAE_H
#define MAR_VAE_H

#include "mar/handle.h"
#include "vae/vae.h"

struct mar_vae {
    mar *m;
    vae_decoder *decoder;
};

#endif
