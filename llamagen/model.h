/* LlamaGen's transformer, packed for a backend. */
#ifndef LLAMAGEN_MODEL_H
#define LLAMAGEN_MODEL_H

#include "kernels/ops.h"
#include "llamagen/config.h"

typedef struct {
    float *attention_norm; /* backend [D]; NULL: attention reads x itself (an EAGLE drafter's layer) */
    float *ffn_norm;       /* backend [D] */
    kern_linear *qkv;      /* [3D][D] act -> act */
    kern_linear *wo;       /* [D][D] adds to x */
    kern_linear *w13;      /* [2 * hidden][D] w1, then w3 */
    kern_linear *w2;       /* [D][hidden] adds to x */
} gpt_layer;

typedef struct {
    kern_device *device;
    gpt_config config;
    /* Of LlamaGen alone: NULL in a SphereAR model, but for norm, rope and layers. */
    float *class_emb; /* backend [classes + 1][D]; the last row is the unconditional class. NULL with captions */
    kern_linear *caption_fc1, *caption_fc2; /* tanh-GELU between them; NULL without captions */
    float *no_caption;   /* backend [prefix][caption_dim] unconditional caption; NULL without captions */
    float *token_emb;    /* backend [vocabulary][D] */
    float *norm;         /* backend [D] */
    kern_linear *output; /* [vocabulary][D] act -> float */
    float *rope;       /* backend [prefix + seq_len][head_dim] cos, sin of each pair; at the prefix zeros (LlamaGen) or
                        * 1, 0 (SphereAR) */
    gpt_layer *layers; /* [depth] */
    float norm_eps;    /* of the RMS norms; 0: the family's */
} gpt_model;

/* Loads the file's model on queue k. The shape is that of gpt_config_derive; the caller may have changed seq_len. The
 * file may be closed afterwards. Other queues may use the model once k has finished. Returns MAR_EARG if seq_len is not
 * a square, or the error of a tensor. */
mar_status gpt_model_load(kern_queue *k, const wt_file *f, const gpt_config *config, gpt_model **out, mar_err *err);
void gpt_model_free(gpt_model *m); /* m may be NULL */

/* Loads one layer, whose tensors' names begin with `prefix`, "layers.3". Its form is as in gpt_layer_tensors. `before`
 * is the last product of the layer before it, or NULL. After a failure *b holds what was loaded; free it. */
mar_status gpt_layer_load(kern_queue *k, const wt_file *f, const char *prefix, int width, int hidden, int form,
                          kern_linear *before, gpt_layer *b, mar_err *err);
void gpt_layer_free(kern_device *d, gpt_layer *b); /* leaves it empty */

#endif
