/* Encoder and decoder as lists of steps: encoder.c and decoder.c build them from a checkpoint by layers.c, run.c
 * executes them. Private to vae/. */
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
    VAE_RESIDUAL,   /* x' = shortcut(x) + conv[1](silu(norm[1](conv[0](silu(norm[0](x)))))) */
    VAE_ATTENTION,  /* x' = x + proj(attention(qkv(norm[0](x)))), one head over all pixels */
    VAE_UPSAMPLE,   /* x' = conv[0](x upsampled 2x) */
    VAE_DOWNSAMPLE, /* x' = conv[0](x), half as many rows and columns */
} vae_step_kind;

typedef struct {
    vae_step_kind kind;
    /* Prefix of its tensors' names, "decoder.up.2.block.1"; at most 45 characters. */
    char name[VAE_NAME_SIZE];
    int in, out;             /* channels */
    vae_norm norm[2];        /* RESIDUAL: both; ATTENTION: the first */
    kern_conv *conv[2];      /* RESIDUAL: both; UPSAMPLE, DOWNSAMPLE: the first */
    kern_conv *shortcut;     /* RESIDUAL: 1x1, or NULL for x itself */
    kern_linear *qkv, *proj; /* ATTENTION */
} vae_step;

/* Layers of a side: conv_in, the steps, norm_out, SiLU, conv_out. */
typedef struct {
    const char *side; /* "encoder" or "decoder": the first part of its tensors' names */
    int in, out;      /* channels of the first convolution's input and of the last one's output */
    kern_conv *conv_in;
    vae_step *steps; /* [n_steps] */
    int n_steps;
    int width_in, width_out; /* channels before the first step and after the last */
    vae_norm norm_out;
    kern_conv *conv_out;
} vae_network;

typedef struct {
    vae_network network; /* levels from the finest, then the middle block */
    kern_linear *quant;  /* quant_conv as f32. KL: the rows of the mean, times VAE_TOKEN_SCALE */
} vae_encoder;

struct vae_decoder {
    kern_device *device; /* holds the weights */
    mar_vae_config config;
    const vae_names *names;
    int latent;              /* input channels of conv_in */
    kern_linear *post_quant; /* KL: post_quant_conv as f32 [latent][latent], applied to tokens */
    float *embedding;        /* VQ: host [codebook][z_channels], as in the file; KL: NULL, as the next two */
    float *codebook;         /* VQ: the same, rows of length 1 */
    float *table;            /* VQ: backend [codebook][latent], post_quant_conv of codebook */
    vae_network network;     /* middle block, then levels from the coarsest */
    vae_encoder *encoder;    /* NULL: not loaded */
};

/* --- layers.c: loads layers by official names and exact shapes, and packs them for the backend -------------------- */

typedef struct {
    kern_queue *k;
    const wt_file *f;
    mar_err *err;
} vae_loader;

/* Writes `prefix` and the formatted text to name, char [VAE_NAME_SIZE]. */
__attribute__((format(printf, 3, 4))) void vae_name(char *name, const char *prefix, const char *format, ...);
/* Loads tensor `prefix`.`suffix` as host floats; the caller frees *out, also after a failure. */
mar_status vae_load(const vae_loader *l, const char *prefix, const char *suffix, int rank, const int64_t *shape,
                    float **out);
/* Loads n 1x1 convolutions with the same input as one linear layer over NHWC pixels. The input is scaled by
 * input_scale, so the weights are divided by it. */
mar_status vae_load_linear(const vae_loader *l, const char *prefix, const char *const *names, int n, int channels,
                           float input_scale, int flags, kern_linear **out);

/* Makes room for at most `most` steps of `side`. */
mar_status vae_network_begin(const vae_loader *l, vae_network *net, const char *side, int most);
/* The next four add a step; `prefix` begins its tensors' names. */
mar_status vae_add_residual(const vae_loader *l, vae_network *net, const char *prefix, int in, int out);
mar_status vae_add_attention(const vae_loader *l, vae_network *net, const char *prefix, int channels);
mar_status vae_add_upsample(const vae_loader *l, vae_network *net, const char *prefix, int channels);
mar_status vae_add_downsample(const vae_loader *l, vae_network *net, const char *prefix, int channels);
/* Adds the three steps of the middle block. */
mar_status vae_add_middle(const vae_loader *l, vae_network *net, const vae_names *names, int channels);
/* Loads conv_in, norm_out and conv_out. in, out, width_in and width_out are set. */
mar_status vae_load_ends(const vae_loader *l, vae_network *net);
void vae_network_free(kern_device *device, vae_network *net);

/* Computes y = x / max(|x|, 1e-12), as torch.nn.functional.normalize. */
void vae_normalise(const float *x, int channels, float *y);

/* encoder.c */
void vae_encoder_free(kern_device *device, vae_encoder *e); /* NULL is fine */

#endif
