/* A MAR model: transformer encoder and decoder, embeddings and diffusion head, packed for a backend. */
#ifndef MAR_MODEL_H
#define MAR_MODEL_H

#include "diffusion/head.h"
#include "mar/core/engine.h"

/* LayerNorm parameters: backend float [2][width], weight then bias. */
typedef float *mar_norm;

/* timm's Block: x += proj(attention(LN1(x))); x += fc2(gelu(fc1(LN2(x)))). */
typedef struct {
    int heads; /* of its attention */
    mar_norm norm1, norm2;
    kern_linear *qkv; /* [3D][D]; NULL in the last decoder block */
    /* [D][D] and [2D][D] of the last decoder block, whose queries are only the predicted positions; NULL in other
     * blocks. */
    kern_linear *q, *kv;
    kern_linear *proj; /* [D][D], adds to x */
    kern_linear *fc1;  /* [hidden][D], gelu */
    kern_linear *fc2;  /* [D][hidden], adds to x */
} mar_block;

typedef struct {
    mar_model base;
    float *class_emb;     /* [classes + 1][D]; the last row is fake_latent, the unconditional class */
    float *encoder_pos;   /* [buffer + seq_len][D] */
    float *decoder_pos;   /* [buffer + seq_len][D] */
    float *diffusion_pos; /* [seq_len][D] */
    float *mask_token;    /* [D] */
    kern_linear *z_proj;  /* [D][token_dim], f32 -> f32 */
    mar_norm z_proj_ln;
    mar_norm encoder_norm, decoder_norm;
    kern_linear *decoder_embed; /* [D][D], act -> f32 */
    mar_block *encoder;         /* [encoder_depth] */
    mar_block *decoder;         /* [decoder_depth] */
    diff_head head;
} mar_masked_model;

static inline const mar_masked_model *mar_masked_model_of(const mar_model *model)
{
    return (const mar_masked_model *)model;
}

/* Implement the engine's load and unload (mar/core/engine.h). */
mar_status mar_masked_load(mar *m, kern_queue *k, const wt_file *f, const struct family_facts *facts, mar_model **out,
                           mar_err *err);
void mar_masked_unload(mar_model *model);

#endif
