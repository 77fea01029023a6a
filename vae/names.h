/* What the layers of an image decoder are called in its file: the one thing in which the families differ that have the
 * same layers. Private to vae/. */
#ifndef VAE_NAMES_H
#define VAE_NAMES_H

#include "vae/vae.h"

enum { VAE_NAME_SIZE = 128 };

/* Parts of names. A level is `level` and its number, a residual block `block` and its number in the level. */
typedef struct {
    const char *encoder_level;
    const char *decoder_level;
    int coarsest_first;    /* 1: the decoder's level 0 is the coarsest; else the finest. The encoder's is the finest */
    const char *block;     /* of a level */
    const char *middle[3]; /* residual block, attention, residual block; behind "encoder." or "decoder." */
    int attends_at_coarsest; /* 1: the coarsest level of encoder and decoder has attention behind each residual block */
} vae_names;

/* Of a KL autoencoder (LDM), or of a VQ one (LlamaGen, tokenizer/tokenizer_image/vq_model.py). */
const vae_names *vae_names_of(int is_vq);

/* name char [VAE_NAME_SIZE] = what the names of a decoder's level begin with, 0 the finest, without a dot at the end:
 * "decoder.up.2". */
void vae_name_level(const vae_names *names, int levels, int level, char *name);
/* Output channels of its residual blocks. MAR_EMODEL if there is none, or if it has no sensible number. */
mar_status vae_level_width(const wt_file *f, const vae_names *names, int levels, int level, int *out, mar_err *err);

#endif
