/* A decoder of Llama's kind, packed for a backend. */
#ifndef LLAMAGEN_MODEL_H
#define LLAMAGEN_MODEL_H

#include "kernels/ops.h"
#include "llamagen/config.h"

typedef struct {
    float *attention_norm; /* backend [D]; NULL: attention reads x itself (an EAGLE drafter's layer) */
    float *ffn_norm;       /* backend [D] */
    /* Norms of q and k: backend [heads or kv_heads][head_dim], or NULL. */
    float *q_norm, *q_norm_bias, *k_norm, *k_norm_bias;
    kern_linear *qkv; /* [D + 2 * kv_heads * head_dim][D] act -> act; RoPE rotates neighbours */
    kern_linear *wo;  /* [D][D] adds to x */
    kern_linear *w13; /* [2 * hidden][D] w1, then w3 */
    kern_linear *w2;  /* [D][hidden] adds to x */
} gpt_layer;

typedef struct {
    kern_device *device;
    gpt_config config;
    /* NULL in a SphereAR model, but for norm, rope and layers. */
    float *class_emb; /* backend [classes + 1][D]; the last row is the unconditional class. NULL with captions */
    /* LlamaGen's projection of captions, tanh-GELU in the middle; NULL in others. */
    kern_linear *caption_fc1, *caption_fc2;
    float *no_caption; /* backend [prefix][caption_dim] unconditional caption, likewise */
    float *token_emb;  /* backend [vocabulary][D], then the line end's row if there is one */
    float *norm;       /* backend [D] */
    /* [vocabulary][D] act -> float. Rows of the file's that are no image tokens are left out, so that those tokens
     * cannot come. */
    kern_linear *output;
    float *rope;       /* backend [prefix + gpt_positions][head_dim] cos, sin of each pair; at the prefix zeros
                        * (LlamaGen) or 1, 0 (SphereAR) */
    gpt_layer *layers; /* [depth] */
    float norm_eps;    /* of the RMS norms */
} gpt_model;

/* Loads the file's model on queue k. The shape is that of gpt_config_derive; the caller may have changed seq_len. The
 * file may be closed afterwards. Other queues may use the model once k has finished. Returns MAR_EARG if seq_len is not
 * a square, or the error of a tensor. */
mar_status gpt_model_load(kern_queue *k, const wt_file *f, const gpt_config *config, gpt_model **out, mar_err *err);
void gpt_model_free(gpt_model *m); /* m may be NULL */

/* Loads one layer, whose tensors' names begin with `prefix`, "layers.3". `before` is the last product of the layer
 * before it, or NULL. After a failure *b holds what was loaded; free it. */
mar_status gpt_layer_load(kern_queue *k, const wt_file *f, const char *prefix, const gpt_layer_shape *shape,
                          kern_linear *before, gpt_layer *b, mar_err *err);
void gpt_layer_free(kern_device *d, gpt_layer *b); /* leaves it empty */

#endif
