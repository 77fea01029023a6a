/* Kinds of files with an image decoder (weights/kind.h); their facts are a mar_vae_config. */
#ifndef VAE_KINDS_H
#define VAE_KINDS_H

#include "weights/kind.h"

extern const wt_kind vae_kinds[]; /* a row without a name at the end */

/* Adds the shape of a ViT image decoder. */
void vae_add_vit(const wt_report *to, const mar_vae_config *c);

#endif
