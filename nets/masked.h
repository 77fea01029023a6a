/* MAR's two towers (Li et al., "Autoregressive Image Generation without Vector Quantization", 2024): a ViT encoder over
 * buffer and known tokens, a ViT decoder over all positions. Its output z conditions the tokens of masked positions. */
#ifndef NETS_MASKED_H
#define NETS_MASKED_H

#include "kernels/ops.h"
#include "weights/weights.h"

typedef struct {
    int width; /* D of both towers */
    int encoder_depth, decoder_depth;
    int heads, decoder_heads; /* attention heads of encoder and decoder */
    int mlp_hidden;
    int buffer;    /* rows in front of the tokens, computed from the class */
    int seq_len;   /* tokens of an image */
    int columns;   /* tokens in a row of the image */
    int token_dim; /* numbers of a token */
    int classes;   /* 0: the buffer has no class, and class_emb.weight is not read */
    int side;      /* the position tables are of a grid of side x side tokens, resized to the image's; 0: of the
                    * image's own */
} masked_shape;

/* LayerNorm parameters: backend float [2][width], weight then bias. */
typedef float *masked_norm;

/* timm's Block: x += proj(attention(LN1(x))); x += fc2(gelu(fc1(LN2(x)))). */
typedef struct {
    int heads; /* of its attention */
    masked_norm norm1, norm2;
    kern_linear *qkv; /* [3D][D]; NULL in the last decoder block */
    /* [D][D] and [2D][D] of the last decoder block, whose queries are only the predicted positions; NULL in other
     * blocks. */
    kern_linear *q, *kv;
    kern_linear *proj; /* [D][D], adds to x */
    kern_linear *fc1;  /* [hidden][D], gelu */
    kern_linear *fc2;  /* [D][hidden], adds to x */
} masked_block;

/* The towers, packed for a backend. */
typedef struct {
    masked_shape shape;
    float *class_emb;     /* [classes + 1][D]; the last row is fake_latent, the unconditional class */
    float *encoder_pos;   /* [buffer + seq_len][D] */
    float *decoder_pos;   /* [buffer + seq_len][D] */
    float *diffusion_pos; /* [seq_len][D] */
    float *mask_token;    /* [D] */
    kern_linear *z_proj;  /* [D][token_dim], f32 -> f32 */
    masked_norm z_proj_ln;
    masked_norm encoder_norm, decoder_norm;
    kern_linear *decoder_embed; /* [D][D], act -> f32 */
    masked_block *encoder;      /* [encoder_depth] */
    masked_block *decoder;      /* [decoder_depth] */
} masked_net;

/* Loads the towers on queue k. The caller waits for the queue. On failure too, masked_net_free frees what was loaded.
 */
mar_status masked_net_load(kern_queue *k, const wt_file *f, const masked_shape *shape, masked_net *out, mar_err *err);
void masked_net_free(kern_device *d, masked_net *net);

#endif
