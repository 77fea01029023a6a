/* An EAGLE drafter (Li et al. 2024, section 3.2): one layer that predicts the target's next feature. A
 * feature is the input of the target's output layer: the result of its last norm. The drafter reads the last feature
 * f_{i-1} and the token t_i that was drawn from it:
 *
 *     h = fc [e(t_i); f_{i-1}]
 *     h += attention(attention_norm(h)), over the drafter's own h of t_0 .. t_i, with RoPE as in the target
 *     h += feed_forward(ffn_norm(h))
 *
 * h predicts f_i: the target's output layer turns it into the distribution of t_{i+1}. e is the target's embedding.
 * Before t_0 the feature is the target's own, of its last position before the image tokens.
 *
 * The file, in any format of checkpoints, has for D the target's width and H the SwiGLU's hidden size
 *
 *     eagle.fc.weight                            [D, 2D]   the embedding's part first
 *     eagle.fc.bias                              [D]       optional
 *     eagle.layers.0.attention.wqkv.weight       [3D, D]   q, k, v
 *     eagle.layers.0.attention.wo.weight         [D, D]
 *     eagle.layers.0.feed_forward.w1.weight      [H, D]    w2(silu(w1 x) * w3 x)
 *     eagle.layers.0.feed_forward.w3.weight      [H, D]
 *     eagle.layers.0.feed_forward.w2.weight      [D, H]
 *     eagle.layers.0.attention_norm.weight       [D]       optional: EAGLE's own first layer has no norm
 *     eagle.layers.0.ffn_norm.weight             [D]
 *
 * Its metadata may have mar.heads, which must be the target's. demo/train_eagle.py trains one.
 *
 * LANTERN's drafters (jadohu/LANTERN, models/drafters/cnets_llamagen.py; pytorch_model.bin) are read as they are:
 *
 *     fc.weight, fc.bias                                              as above; the bias is optional
 *     layers.0.self_attn.{q,k,v,o}_proj.weight                        [D, D]
 *     layers.0.mlp.{gate,up}_proj.weight, .down_proj.weight           [H, D], [D, H]
 *     layers.0.post_attention_layernorm.weight                        [D]
 *     embed_tokens.weight                                             [vocabulary, D] e, in place of the target's
 *
 * They differ in two points. The epsilon of the norm is 1e-6. The drafter's own sequence begins before t_0: position j
 * of the target's prefix, all but the last, has a row with the feature f_j and the embedding of token 0. These rows
 * have no mask. As in the target, RoPE makes their q and k zero. A class has a prefix of one position, and no such row.
 *
 * LANTERN's drafters for Anole and Lumina-mGPT (cnets_anole.py, cnets_lumina_mgpt.py) have
 *
 *     layers.0.self_attn.{q,k}_norm.weight, .bias                     [heads, D / heads], Lumina-mGPT's [1, D / heads]
 *     layers.0.input_layernorm.weight                                 [D]
 *
 * too. Their epsilon is the target's, and the rows before t_0 have the prompt's tokens: f_j with the embedding of token
 * j + 1. Their embed_tokens.weight is a copy of the target's, which is used instead. A line end has a row as a token
 * has: with the feature of the token before it. */
#ifndef SPECDEC_EAGLE_MODEL_H
#define SPECDEC_EAGLE_MODEL_H

#include "nets/causal.h"

typedef struct {
    int width;      /* D */
    int hidden;     /* H */
    int heads;      /* 0: the file does not say */
    int bias;       /* 1: fc has a bias */
    int first_norm; /* 1: there is an attention_norm */
    int published;  /* 1: LANTERN's names */
    int qk_norm;    /* 1: norms of q and k, rotary pairs by halves: a drafter for Anole or Lumina-mGPT */
    causal_norm_shape norm_shape;
    int vocabulary; /* tokens of its own embedding; 0: none, or a copy that is not used */
    long parameters;
} eagle_config;

/* Tells whether the file looks like a drafter: it has eagle.fc.weight, a tensor of eagle.layers, or fc.weight beside
 * layers.0.self_attn.q_proj.weight. */
int eagle_config_recognise(const wt_file *f);
/* Derives the shape from the tensors. `heads` other than 0 replaces the metadata's. Returns MAR_EMODEL, naming the
 * tensor, if the file is not such a drafter, and MAR_EARG if `heads` does not fit the width. */
mar_status eagle_config_derive(const wt_file *f, int heads, eagle_config *out, mar_err *err);
/* Calls `visit` for every tensor of the drafter, in the order above. */
void eagle_config_tensors(const eagle_config *c, causal_tensor_visitor *visit, void *user);
/* Tells whether an extra tensor is harmless: a copy of the target's embedding. */
int eagle_config_ignores(const char *name);
/* Returns MAR_EMODEL, saying why, if the drafter does not fit the target. */
mar_status eagle_config_fits(const eagle_config *c, const causal_shape *target, mar_err *err);

typedef struct {
    kern_device *device;
    eagle_config config;
    kern_linear *fc;  /* [D][2D] act -> float */
    float *token_emb; /* backend [vocabulary][D]; NULL: the target's */
    causal_layer layer;
} eagle_model;

/* Loads the file's drafter on queue k. The file may be closed afterwards. Other queues may use the drafter once k has
 * finished. */
mar_status eagle_model_create(kern_queue *k, const wt_file *f, int heads, eagle_model **out, mar_err *err);
void eagle_model_free(eagle_model *m); /* m may be NULL */

#endif
