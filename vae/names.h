/* Families of image decoders with the same layers: their tensors' names, and what else differs. Private to vae/. */
#ifndef VAE_NAMES_H
#define VAE_NAMES_H

#include "vae/vae.h"

enum { VAE_NAME_SIZE = 128 };

/* Names of a residual block's layers, after its prefix. */
typedef struct {
    const char *norm[2], *conv[2], *shortcut;
} vae_residual_names;

/* Names of the first and the last layers of a side, after its prefix. */
typedef struct {
    const char *conv_in, *norm_out, *conv_out;
} vae_end_names;

/* Parts of names: a level is `level` and its number; a residual block is `block` and its number in the level. */
typedef struct {
    const char *encoder_level;
    const char *decoder_level;
    int coarsest_first;      /* 1: the decoder's level 0 is the coarsest; 0: the finest, as the encoder's always is */
    const char *block;       /* residual block of a level */
    const char *middle[3];   /* residual block, attention, residual block; after "encoder." or "decoder." */
    int attends_at_coarsest; /* 1: the coarsest level has attention after each residual block */
    int is_vq;               /* 1: a token is the number of a codebook's row */
    int normalises;          /* 1: rows of the codebook are scaled to length 1 */
    int temporal;            /* 1: layers over time before conv_in, and spatial norms (vae/temporal.c) */
    const char *post_quant;  /* layer between token and conv_in; NULL: none (Flux) */
    kern_bytes bytes;        /* rounding of pixels */
    const char *made_for;    /* models whose tokens it decodes */
} vae_names;

enum { VAE_TEMPORAL_MAX = 16 }; /* most residual blocks over time, and most doublings of frames */

extern const vae_residual_names vae_residual_names_ldm, vae_residual_names_up, vae_residual_names_vit;
extern const vae_end_names vae_end_names_ldm, vae_end_names_vit, vae_end_names_vit_encoder, vae_end_names_detok;

/* Returns the family of the file: a KL autoencoder (LDM), or a VQ one of LlamaGen
 * (tokenizer/tokenizer_image/vq_model.py), Chameleon (LDM's names, as in taming-transformers) or Emu3
 * (emu3/tokenizer/modeling_emu3visionvq.py). */
const vae_names *vae_names_of(const wt_file *f);

/* Writes the prefix of a decoder level's names, without a final dot, to name, char [VAE_NAME_SIZE]: "decoder.up.2".
 * Level 0 is the finest. */
void vae_name_level(const vae_names *names, int levels, int level, char *name);
/* Sets *out to the output channels of the level's residual blocks. Returns MAR_EMODEL if the tensor is missing or its
 * size is invalid. */
mar_status vae_level_width(const wt_file *f, const vae_names *names, int levels, int level, int *out, mar_err *err);
/* Returns 1 if an encoder level has attention after each residual block. In a KL autoencoder this depends on the image
 * size in training, so it is read from the file. Level 0 is the finest. */
int vae_encoder_attends(const wt_file *f, const vae_names *names, int levels, int level);

/* --- Flux's: flux.c has what no tensor shows --- */

/* Returns 1 if the tensors with this prefix are those of Flux's autoencoder. */
int vae_flux_recognise(const wt_file *f, const char *prefix);
mar_status vae_flux_complete(wt_file *f, mar_err *err); /* vae_config_complete's part */
/* Sets scale, shift and norm. Returns MAR_EMODEL, with key and value, for numbers that are missing or not supported. */
mar_status vae_flux_derive(const wt_file *f, mar_vae_config *c, mar_err *err);

/* --- ViT autoencoders: vit_config.c has the shape of both sides of SphereAR's, detok_config.c of l-DeTok's --- */

/* Most blocks that double or halve rows and columns; most layers. */
enum { VAE_VIT_BLOCKS = 6, VAE_VIT_DEPTH_MAX = 256 };

/* Names of a side's transformer, after the side, and what else differs. */
typedef struct {
    const char *layers;    /* ".layers", which the number of a layer follows */
    const char *norm[2];   /* of a layer: in front of the attention, in front of the MLP */
    const char *attention; /* of a layer, the next two after it */
    const char *qkv, *wo;
    const char *mlp; /* likewise; w1 has SwiGLU's two halves */
    const char *w1, *w2;
    const char *positions;      /* rows that are added to the tokens in front of the layers; NULL: none */
    const char *before, *after; /* norms in front of all layers and behind them; NULL: none */
    int bias;                   /* 1: matrices and convolutions have biases */
    int angles;                 /* of a pair of a head's numbers (kern_core_ops.rotate) */
    kern_bytes bytes;           /* rounding of pixels */
} vae_vit_names;
extern const vae_vit_names vae_vit_names_sphere, vae_vit_names_sphere_encoder, vae_vit_names_detok;

/* Shape of a ViT decoder or encoder. */
typedef struct {
    const vae_vit_names *names;
    const char *prefix;      /* of all names: "vae." in a model's file and in vae.pt, or "" */
    const char *side;        /* "vae.decoder", "vae.encoder", "decoder" or "encoder" */
    int channels;            /* of a token */
    int width, depth;        /* of the transformer */
    int heads, hidden;       /* hidden: of SwiGLU */
    int registers, grid;     /* register tokens; rows and columns of tokens, or 0: without freqs_cis */
    int patch;               /* l-DeTok: rows and columns of pixels that a linear layer makes of a token; else 0 */
    int in;                  /* SphereAR's encoder: channels in front of the blocks; else 0 */
    int blocks;              /* that double rows and columns, or halve them */
    int out[VAE_VIT_BLOCKS]; /* channels after each */
    int has_table;           /* 1: the file has freqs_cis in f32 or f64 */
} vae_vit_shape;

/* config.c: derives the shape of a file of vae_config_is_vit. Returns MAR_EMODEL, naming the tensor. */
mar_status vae_vit_derive(const wt_file *f, vae_vit_shape *out, mar_err *err);
/* config.c: writes all of the config but its size. */
void vae_vit_config(const wt_file *f, const vae_vit_shape *s, mar_vae_config *config);
int vae_sphere_recognise(const wt_file *f);
mar_status vae_sphere_derive(const wt_file *f, vae_vit_shape *out, mar_err *err);
/* Derives SphereAR's encoder. Returns MAR_EMODEL if the file has none or a part of one. */
mar_status vae_sphere_derive_encoder(const wt_file *f, vae_vit_shape *out, mar_err *err);
/* Visits its tensors, the encoder's if the file has a whole one, and freqs_cis only if the file has it. */
void vae_sphere_tensors(const wt_file *f, const vae_vit_shape *s, vae_tensor_visitor *visit, void *user);
/* Sets *out to dimension `dim` of the tensor prefix + name. Returns MAR_EMODEL if it is missing or has another rank. */
mar_status vae_vit_find(const wt_file *f, const char *prefix, const char *name, int rank, int dim, int *out,
                        mar_err *err);
/* Returns MAR_EMODEL unless `heads` divide the width into heads that can be rotated. */
mar_status vae_vit_check_heads(const wt_file *f, const char *side, int width, long heads, mar_err *err);
/* Derives one side of l-DeTok's tokenizer. */
mar_status vae_detok_derive(const wt_file *f, const char *side, vae_vit_shape *out, mar_err *err);
/* Visits the decoder's tensors, and the encoder's if the file has it. */
void vae_detok_tensors(const wt_file *f, const vae_vit_shape *s, vae_tensor_visitor *visit, void *user);
/* Returns the groups of a GroupNorm over `channels` channels. */
int vae_vit_groups(int channels);
enum { VAE_VIT_LAST_GROUPS = 16 }; /* of the last one */

#endif
