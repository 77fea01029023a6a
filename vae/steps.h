/* Encoder and decoder as lists of steps: encoder.c, decoder.c and vit.c build them from a checkpoint by layers.c, run.c
 * executes them; vit_pass.c executes a ViT's transformer. Private to vae/. */
#ifndef VAE_STEPS_H
#define VAE_STEPS_H

#include "vae/names.h"

/* Groups of GroupNorm in the LDM autoencoders. */
enum { VAE_GROUPS = 32 };
#define VAE_EPS         1e-6f
#define VAE_TOKEN_SCALE 0.2325f /* tokens = latent * this (official MAR) */

typedef struct {
    int groups;
    float *weight, *bias; /* backend [channels]; NULL with cells */
    kern_linear *cells;   /* spatial norm: scales and shifts [2][channels] of a codebook row, f32; else NULL */
} vae_norm;

typedef enum {
    VAE_RESIDUAL,    /* x' = shortcut(x) + conv[1](silu(norm[1](conv[0](silu(norm[0](x)))))) */
    VAE_DOUBLING,    /* the same; conv[0] and shortcut are transposed convolutions, with twice the rows and columns */
    VAE_HALVING,     /* the same; conv[0] and shortcut halve rows and columns */
    VAE_ATTENTION,   /* x' = x + proj(attention(qkv(norm[0](x)))), one head over all pixels */
    VAE_UPSAMPLE,    /* x' = conv[0](x upsampled 2x) */
    VAE_DOWNSAMPLE,  /* x' = conv[0](x), half as many rows and columns */
    VAE_TRANSFORMER, /* x' = the side's vae_vit of x */
    VAE_PATCHIFY,    /* x' = proj(patches of patch x patch pixels of x) */
    VAE_UNPATCHIFY,  /* x' = the pixels of the patches proj(x) */
} vae_step_kind;

typedef struct {
    vae_step_kind kind;
    /* Prefix of its tensors' names, "decoder.up.2.block.1"; at most 45 characters. */
    char name[VAE_NAME_SIZE];
    const vae_residual_names *names; /* RESIDUAL, DOUBLING, HALVING */
    int in, out;                     /* channels */
    vae_norm norm[2];                /* with names: both; ATTENTION: the first */
    kern_conv *conv[2];              /* with names: both; UPSAMPLE, DOWNSAMPLE: the first */
    kern_conv *shortcut;             /* RESIDUAL: 1x1, or NULL for x itself; DOUBLING, HALVING: 2x2 */
    kern_linear *qkv, *proj;         /* ATTENTION; proj: PATCHIFY, UNPATCHIFY, too. A patch: [row][column][channel] */
    int patch;                       /* PATCHIFY, UNPATCHIFY: rows and columns of pixels of a patch */
} vae_step;

/* Layers of a side: conv_in, the steps, norm_out, SiLU, conv_out. l-DeTok has conv_out alone, its encoder none,
 * SphereAR's encoder conv_in alone. */
typedef struct {
    const char *side; /* "encoder", "decoder" or "vae.decoder": the first part of its tensors' names */
    const vae_end_names *ends;
    int in, out;        /* channels of the first convolution's input and of the last one's output */
    kern_conv *conv_in; /* NULL: none */
    vae_step *steps;    /* [n_steps] */
    int n_steps;
    int width_in, width_out; /* channels before the first step and after the last */
    vae_norm norm_out;       /* groups 0: none */
    kern_conv *conv_out;     /* NULL: none */
} vae_network;

typedef struct vae_vit vae_vit;

typedef struct {
    vae_network network; /* levels from the finest, then the middle block */
    vae_vit *vit;        /* ViT; else NULL */
    /* quant_conv as f32. KL: the rows of the mean, times config.scale. Flux: the same without quant_conv. l-DeTok:
     * latent_head, the mean's rows, with the latents' statistics taken out. SphereAR: the mean's rows of quant_proj of
     * encoder.output. */
    kern_linear *quant;
} vae_encoder;

/* A layer of the transformer: x += wo(attention(rotate(qkv(norm(x))))), then x += w2(swiglu(w1(norm(x)))). */
typedef struct {
    float *attention_norm, *ffn_norm; /* backend [width] */
    kern_linear *qkv, *wo, *w1, *w2;
} vae_vit_layer;

struct vae_vit {
    vae_vit_shape shape;
    float *registers;      /* backend [registers][width]; NULL: none */
    float *positions;      /* backend [grid^2][width]; the next two [width]. NULL where shape.names has none */
    float *before, *after; /* norms */
    float *rope;           /* backend [registers + grid^2][width / heads]; NULL: a run makes its own */
    vae_vit_layer *layers;
};

typedef struct vae_temporal vae_temporal; /* vae/temporal.c */

struct vae_decoder {
    kern_device *device; /* holds the weights */
    mar_vae_config config;
    const vae_names *names;
    int latent; /* input channels of conv_in */
    /* Applied to tokens, as f32. KL: post_quant_conv [latent][latent]; Flux: scale and shift. ViT: [latent][z_channels]
     * post_quant_proj, or l-DeTok's decoder_embed, with the latents' statistics put in. */
    kern_linear *post_quant;
    vae_vit *vit;           /* NULL: KL or VQ */
    float *embedding;       /* VQ: host [codebook][z_channels], as in the file; KL: NULL, as the next two */
    float *codebook;        /* VQ: the same in the codebook's form (vae_to_codebook) */
    float *table;           /* VQ: backend [codebook][latent], post_quant_conv of codebook */
    float *rows;            /* Emu3: backend [codebook][z_channels], embedding */
    vae_temporal *temporal; /* Emu3; else NULL */
    vae_network network;    /* middle block or transformer, then levels from the coarsest */
    vae_encoder *encoder;   /* NULL: not loaded */
};

/* --- layers.c: loads layers by official names and exact shapes, and packs them for the backend -------------------- */

typedef struct {
    kern_queue *k;
    const wt_file *f;
    mar_err *err;
    int no_bias; /* 1: convolutions have none (SphereAR) */
    int spatial; /* z_channels of spatial norms (Emu3); 0: plain group norms */
} vae_loader;

/* Writes `prefix` and the formatted text to name, char [VAE_NAME_SIZE]. */
__attribute__((format(printf, 3, 4))) void vae_name(char *name, const char *prefix, const char *format, ...);
/* Loads tensor `prefix`.`suffix` as host floats; the caller frees *out, also after a failure. */
mar_status vae_load(const vae_loader *l, const char *prefix, const char *suffix, int rank, const int64_t *shape,
                    float **out);
/* Loads a vector of n floats into the backend's memory. */
mar_status vae_load_vector(const vae_loader *l, const char *prefix, const char *suffix, int n, float **out);
/* Makes a layer y[out] = factor * x + shift of the first `out` of x[in], as f32. */
mar_status vae_scaling_create(const vae_loader *l, int out, int in, float factor, float shift, kern_linear **linear);
/* Loads n 1x1 convolutions with the same input as one linear layer over NHWC pixels. The input is scaled by
 * input_scale, so the weights are divided by it. */
mar_status vae_load_linear(const vae_loader *l, const char *prefix, const char *const *names, int n, int channels,
                           float input_scale, int flags, kern_linear **out);

/* Makes room for at most `most` steps of `side`. */
mar_status vae_network_begin(const vae_loader *l, vae_network *net, const char *side, int most);
/* The next seven add a step; `prefix` begins its tensors' names. */
mar_status vae_add_residual(const vae_loader *l, vae_network *net, const char *prefix, int in, int out);
mar_status vae_add_vit_residual(const vae_loader *l, vae_network *net, const char *prefix, int channels);
mar_status vae_add_doubling(const vae_loader *l, vae_network *net, const char *prefix, int in, int out);
mar_status vae_add_halving(const vae_loader *l, vae_network *net, const char *prefix, int in, int out);
mar_status vae_add_attention(const vae_loader *l, vae_network *net, const char *prefix, int channels);
mar_status vae_add_upsample(const vae_loader *l, vae_network *net, const char *prefix, int channels);
mar_status vae_add_downsample(const vae_loader *l, vae_network *net, const char *prefix, int channels);
/* Adds the three steps of the middle block. */
mar_status vae_add_middle(const vae_loader *l, vae_network *net, const vae_names *names, int channels);
void vae_add_transformer(vae_network *net, const char *prefix, int width);
/* Adds a step that makes rows of `width` numbers of patches, or patches of rows, from the convolution `prefix`. */
mar_status vae_add_patchify(const vae_loader *l, vae_network *net, const char *prefix, int patch, int width);
mar_status vae_add_unpatchify(const vae_loader *l, vae_network *net, const char *prefix, int patch, int width);
/* Loads conv_in, norm_out and conv_out, those that have names. in, out, width_in and width_out are set; `groups` are
 * norm_out's. */
mar_status vae_load_ends(const vae_loader *l, vae_network *net, const vae_end_names *names, int groups);
void vae_network_free(kern_device *device, vae_network *net);

/* Brings a vector [z_channels] to the codebook's form: y = x / max(|x|, 1e-12), as torch.nn.functional.normalize, or x
 * itself where the family does not normalise. y may be x. */
void vae_to_codebook(const vae_decoder *d, const float *x, float *y);

/* encoder.c */
void vae_encoder_free(kern_device *device, vae_encoder *e); /* NULL is fine */

/* --- vit.c: a ViT's weights ----------------------------------------------------------------------------------------
 */

/* Loads all of d but the config's other families: config, latent, post_quant, vit and network. */
mar_status vae_vit_load(const vae_loader *l, vae_decoder *d);
/* Loads the encoder of the file that d is from. */
mar_status vae_vit_load_encoder(const vae_loader *l, const vae_decoder *d, vae_encoder *e);
void vae_vit_free(kern_device *device, vae_vit *v); /* NULL is fine */

/* --- vit_pass.c: its transformer ------------------------------------------------------------------------------------
 */

typedef struct vae_vit_pass vae_vit_pass; /* for at most `images` images of one grid, on one queue */

/* Returns MAR_EMODEL for another grid than that of the file. */
mar_status vae_vit_pass_create(kern_queue *k, const vae_vit *v, int grid_h, int grid_w, int images, vae_vit_pass **out,
                               mar_err *err);
void vae_vit_pass_free(vae_vit_pass *p); /* NULL is fine */
/* Set *streamed to the floats of an image's residual stream, and return the bytes of its other arrays. */
size_t vae_vit_bytes(const kern_device *device, const vae_vit *v, size_t tokens, size_t *streamed);
double vae_vit_flop(const vae_vit *v, size_t tokens); /* of an image */
mar_status vae_vit_plan(const vae_vit_pass *p, int images, mar_err *err);
/* Returns the places of patches' rows of pixels in images, host [images][tokens][patch]: each has 3 * patch floats. */
const int *vae_vit_pieces(const vae_vit_pass *p);
/* Runs the transformer on x, backend float [images][grid_h * grid_w][width], in place. h: working memory for
 * `streamed` floats an image. work: vae_vit_bytes an image; it may be x. `name` begins its layers' names. */
void vae_vit_run(const vae_vit_pass *p, int images, float *x, float *h, void *work, const char *name);

#endif
