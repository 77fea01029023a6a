/* Tensor names of an image decoder, the only difference between families with the same layers. Private to vae/. */
#ifndef VAE_NAMES_H
#define VAE_NAMES_H

#include "vae/vae.h"

enum { VAE_NAME_SIZE = 128 };

/* Parts of names: a level is `level` and its number; a residual block is `block` and its number in the level. */
typedef struct {
    const char *encoder_level;
    const char *decoder_level;
    int coarsest_first;      /* 1: the decoder's level 0 is the coarsest; 0: the finest, as the encoder's always is */
    const char *block;       /* residual block of a level */
    const char *middle[3];   /* residual block, attention, residual block; after "encoder." or "decoder." */
    int attends_at_coarsest; /* 1: the coarsest level has attention after each residual block */
} vae_names;

/* Returns the names of a KL autoencoder (LDM), or of a VQ one (LlamaGen, tokenizer/tokenizer_image/vq_model.py). */
const vae_names *vae_names_of(int is_vq);

/* Writes the prefix of a decoder level's names, without a final dot, to name, char [VAE_NAME_SIZE]: "decoder.up.2".
 * Level 0 is the finest. */
void vae_name_level(const vae_names *names, int levels, int level, char *name);
/* Sets *out to the output channels of the level's residual blocks. Returns MAR_EMODEL if the tensor is missing or its
 * size is invalid. */
mar_status vae_level_width(const wt_file *f, const vae_names *names, int levels, int level, int *out, mar_err *err);
/* Returns 1 if an encoder level has attention after each residual block. In a KL autoencoder this depends on the image
 * size in training, so it is read from the file. Level 0 is the finest. */
int vae_encoder_attends(const wt_file *f, const vae_names *names, int levels, int level);

#endif
