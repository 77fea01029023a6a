/* The decoder as a list of steps: decoder.c fills it from a checkpoint, run.c executes it. Private to vae/. */
#ifndef VAE_STEPS_H
#define VAE_STEPS_H

#include "vae/names.h"

/* GroupNorm of the LDM autoencoders. */
enum { VAE_GROUPS = 32 };
#define VAE_EPS         1e-6f
#define VAE_TOKEN_SCALE 0.2325f /* tokens = latent * this (official MAR) */

typedef struct {
    float *weight, *bias; /* backend [channels] */
} vae_norm;

typedef enum {
    VAE_RESIDUAL,  /* x' = shortcut(x) + conv[1](silu(norm[1](conv[0](silu(norm[0](x)))))) */
    VAE_ATTENTION, /* x' = x + proj(attention(qkv(norm[0](x)))), one head over all pixels */
    VAE_UPSAMPLE,  /* x' = conv[0](x enlarged 2x) */
} vae_step_kind;

typedef struct {
    vae_step_kind kind;
    char name[VAE_NAME_SIZE]; /* what its tensors' names begin with, "decoder.up.2.block.1"; 45 characters at most */
    int in, out;              /* channels */
    vae_norm norm[2];         /* RESIDUAL: both; ATTENTION: the first */
    kern_conv *conv[2];       /* RESIDUAL: both; UPSAMPLE: the first */
    kern_conv *shortcut;      /* RESIDUAL: 1x1, or NULL for x itself */
    kern_linear *qkv, *proj;  /* ATTENTION */
} vae_step;

struct vae_decoder {
    kern_device *device; /* which has the weights */
    mar_vae_config config;
    const vae_names *names;
    int latent;              /* channels of what the first convolution is given */
    kern_linear *post_quant; /* KL: the 1x1 convolution of the latent, in f32; its input is tokens */
    float *embedding;        /* VQ: host [codebook][z_channels], as in the file; else NULL, as the next two */
    float *codebook;         /* the same, each row of length 1 */
    float *table;            /* backend [codebook][latent] the 1x1 convolution of that */
    kern_conv *conv_in;
    vae_step *steps; /* [n_steps] middle block, then levels from the coarsest */
    int n_steps;
    int width_in, width_out; /* channels before the first step and after the last */
    vae_norm norm_out;
    kern_conv *conv_out;
};

#endif
