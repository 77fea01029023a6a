/* A MAR model: transformer encoder and decoder, embeddings, diffusion head, packed for a backend. */
#ifndef MAR_MODEL_H
#define MAR_MODEL_H

#include "diffusion/head.h"
#include "mar/handle.h"

/* LayerNorm parameters: backend float [2][width], weight then bias. */
typedef float *mar_norm;

/* timm's Block: x += proj(attention(LN1(x))); x += fc2(gelu(fc1(LN2(x)))). */
typedef struct {
    mar_norm norm1, norm2;
    kern_linear *qkv;    /* [3D][D]; NULL in the last decoder block, */
    kern_linear *q, *kv; /* which asks only the predicted positions: [D][D] and [2D][D]; else NULL */
    kern_linear *proj;   /* [D][D], adds to x */
    kern_linear *fc1;    /* [hidden][D], gelu */
    kern_linear *fc2;    /* [D][hidden], adds to x */
} mar_block;

struct mar_model {
    mar *m;
    mar_model_config config;
    float *class_emb;     /* [classes + 1][D]; the last row is fake_latent, the unconditional class */
    float *encoder_pos;   /* [buffer + seq_len][D] */
    float *decoder_pos;   /* [buffer + seq_len][D] */
    float *diffusion_pos; /* [seq_len][D] */
    float *mask_token;    /* [D] */
    kern_linear *z_proj;  /* [D][token_dim], f32 -> f32 */
    mar_norm z_proj_ln, encoder_norm, decoder_norm;
    kern_linear *decoder_embed; /* [D][D], act -> f32 */
    mar_block *encoder, *decoder;
    diff_head head;
};

#endif
