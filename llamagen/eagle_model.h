/* An EAGLE drafter for LlamaGen (Li et al. 2024, section 3.2): one layer that predicts the target's next feature from
 * its last one and the token that was drawn from that. A feature is what the target's output layer is given, the result
 * of its last norm. For token t_i and the feature f_{i-1} of the position before it
 *
 *     h = fc [e(t_i); f_{i-1}]
 *     h += attention(attention_norm(h)), over the drafter's own h of t_0 .. t_i, t_i turned as in the target
 *     h += feed_forward(ffn_norm(h))
 *
 * and h stands for f_i: the target's output layer makes of it the law of t_{i+1}. e is the target's embedding. In front
 * of t_0 the feature is the target's own, that of its last position in front of the image tokens.
 *
 * The file, in any format of checkpoints, has for D the target's width and H the SwiGLU's hidden size
 *
 *     eagle.fc.weight                            [D, 2D]   the embedding's part first
 *     eagle.fc.bias                              [D]       or none
 *     eagle.layers.0.attention.wqkv.weight       [3D, D]   q, k, v
 *     eagle.layers.0.attention.wo.weight         [D, D]
 *     eagle.layers.0.feed_forward.w1.weight      [H, D]    w2(silu(w1 x) * w3 x)
 *     eagle.layers.0.feed_forward.w3.weight      [H, D]
 *     eagle.layers.0.feed_forward.w2.weight      [D, H]
 *     eagle.layers.0.attention_norm.weight       [D]       or none: EAGLE's own first layer has no norm
 *     eagle.layers.0.ffn_norm.weight             [D]
 *
 * and may have in its metadata mar.heads, which must be the target's. demo/train_eagle.py trains one. */
#ifndef LLAMAGEN_EAGLE_MODEL_H
#define LLAMAGEN_EAGLE_MODEL_H

#include "llamagen/model.h"

typedef struct {
    int width;      /* D */
    int hidden;     /* H */
    int heads;      /* 0: the file does not say */
    int bias;       /* 1: fc has one */
    int first_norm; /* 1: there is an attention_norm */
    long parameters;
} eagle_config;

/* Whether the file looks like one: it has eagle.fc.weight, or a tensor of eagle.layers. */
int eagle_config_recognise(const wt_file *f);
/* Derives the shape from the tensors. heads: 0, or what takes the metadata's place. MAR_EMODEL, naming the tensor, if
 * it is no such drafter; MAR_EARG if `heads` does not go with the width. */
mar_status eagle_config_derive(const wt_file *f, int heads, eagle_config *out, mar_err *err);
/* Calls `visit` for every tensor of such a drafter, in the order above. */
void eagle_config_tensors(const eagle_config *c, gpt_tensor_visitor *visit, void *user);
/* MAR_EMODEL, saying why, if this is no drafter for such a target. */
mar_status eagle_config_fits(const eagle_config *c, const gpt_config *target, mar_err *err);

typedef struct {
    kern_device *device;
    eagle_config config;
    kern_linear *fc; /* [D][2D] act -> float */
    gpt_layer layer;
} eagle_model;

/* Loads a drafter of the file on queue k; the file may be closed afterwards. Queues other than k can use it once k has
 * finished. */
mar_status eagle_model_create(kern_queue *k, const wt_file *f, int heads, eagle_model **out, mar_err *err);
void eagle_model_free(eagle_model *m); /* NULL is fine */

#endif
