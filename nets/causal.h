/* A causal transformer of Llama's kind, packed for a backend. */
#ifndef NETS_CAUSAL_H
#define NETS_CAUSAL_H

#include "kernels/causal.h"
#include "nets/causal_shape.h"

#define CAUSAL_HEAD_EPS 1e-5f /* of the norms of q and k: ChameleonLayerNorm's */

typedef kern_decoder_layer causal_layer;

/* What a shape lacks is NULL. */
typedef struct {
    kern_device *device;
    causal_shape shape;
    float *class_emb;                       /* backend [classes + 1][prefix][D]; the last is the unconditional class */
    kern_linear *caption_fc1, *caption_fc2; /* of captions that are no prompts, tanh-GELU in the middle */
    float *no_caption;                      /* backend [prefix][caption_dim] unconditional caption, likewise */
    float *token_emb;                       /* backend [vocabulary][D], then the line end's row if there is one */
    const wt_file *prompt_file;             /* with the embedding [rows][D] of prompts, read as they come; not owned */
    kern_linear *project[2]; /* [D][token_dim] f32 -> f32, or [project_hidden][token_dim], SiLU, [D][project_hidden] */
    float *input_norm;       /* backend [D] */
    float *norm;             /* backend [D] */
    /* [vocabulary][D] act -> float. Rows of the file's that are no image tokens are left out, so that those tokens
     * cannot come. */
    kern_linear *output;
    float *next_position;   /* backend [seq_len or next_rows][D] */
    kern_linear *condition; /* [D][D] act -> f32 */
    float *rope;            /* backend [prefix + causal_positions][head_dim] cos, sin of each pair */
    causal_layer *layers;   /* [depth] */
    kern_decoder *decoder;  /* all layers in one launch, for few rows; NULL: layer by layer */
} causal_model;

/* Loads the file's model on queue k. `image_id` is NULL, or host [vocabulary] the rows of embedding and output layer
 * that are image tokens, then the line end's if there is one. The file may be closed afterwards, but for a shape with
 * prompts, whose model reads it until it is freed. Other queues may use the model once k has finished. Returns MAR_EARG
 * if the rotation is by a grid and seq_len not columns * columns, or the error of a tensor. */
mar_status causal_model_load(kern_queue *k, const wt_file *f, const causal_shape *shape, const int *image_id,
                             causal_model **out, mar_err *err);
void causal_model_free(causal_model *m); /* m may be NULL */

/* Loads one layer, whose tensors' names begin with `prefix`, "layers.3". `before` is the last product of the layer
 * before it, or NULL. After a failure *b holds what was loaded; free it. */
mar_status causal_layer_load(kern_queue *k, const wt_file *f, const char *prefix, const causal_shape *shape,
                             kern_linear *before, causal_layer *b, mar_err *err);
void causal_layer_free(kern_device *d, causal_layer *b); /* leaves it empty */

#endif
