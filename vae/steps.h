/* The decoder as a list of steps: decoder.c builds it from a checkpoint, run.c executes it. Private to vae/. */
#ifndef VAE_STEPS_H
#define VAE_STEPS_H

#include "vae/names.h"

/* Groups of GroupNorm in the LDM autoencoders. */
enum { VAE_GROUPS = 32 };
#define VAE_EPS         1e-6f
#define VAE_TOKEN_SCALE 0.2325f /* tokens = latent * this (official MAR) */

typedef struct {
    float *weight, *bias; /* backend [channels] */
} vae_norm;

typedef enum {
    VAE_RESIDUAL,  /* x' = shortcut(x) + conv[1](silu(norm[1](conv[0](silu(norm[0](x)))))) */
    VAE_ATTENTION, /* x' = x + proj(attention(qkv(norm[0](x)))), one head over all pixels */
    VAE_UPSAMPLE,  /* x' = conv[0](x upsampled 2x) */
} vae_step_kind;

typedef struct {
    vae_step_kind kind;
    /* Prefix of its tensors' names, "decoder.up.2.block.1"; at most 45 characters. */
    char name[VAE_NAME_SIZE];
    int in, out;             /* channels */
    vae_norm norm[2];        /* RESIDUAL: both; ATTENTION: the first */
    kern_conv *conv[2];      /* RESIDUAL: both; UPSAMPLE: the first */
    kern_conv *shortcut;     /* RESIDUAL: 1x1, or NULL for x itself */
    kern_linear *qkv, *proj; /* ATTENTION */
} vae_step;

struct vae_decoder {
    kern_device *device; /* holds the weights */
    mar_vae_config config;
    const vae_names *names;
    int latent;              /* input channels of conv_in */
    kern_linear *post_quant; /* KL: post_quant_conv as f32 [latent][latent], applied to tokens */
    float *embedding;        /* VQ: host [codebook][z_channels], as in the file; KL: NULL, as the next two */
    float *codebook;         /* VQ: the same, rows of length 1 */
    float *table;            /* VQ: backend [codebook][latent], post_quant_conv of codebook */
    kern_conv *conv_in;
    vae_step *steps; /* [n_steps] middle block, then levels from the coarsest */
    int n_steps;
    int width_in, width_out; /* channels before the first step and after the last */
    vae_norm norm_out;
    kern_conv *conv_out;
};

#endif
