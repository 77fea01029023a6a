/* The shape of LlamaGen's transformer (Sun et al. 2024, autoregressive/models/gpt.py), and its tensors' names. */
#ifndef LLAMAGEN_CONFIG_H
#define LLAMAGEN_CONFIG_H

#include "weights/weights.h"

/* Families with this transformer. SphereAR's (model.py) has one tensor for both halves of the SwiGLU's first layer, the
 * epsilon 1e-6, rotary positions counted from the middle of the tokens, columns first, and no output layer. */
typedef enum { GPT_LLAMAGEN, GPT_SPHEREAR } gpt_family;

typedef struct {
    gpt_family family;
    int width;       /* dim */
    int depth;       /* n_layer */
    int heads;       /* n_head, also the number of key and value heads */
    int hidden;      /* width of the SwiGLU */
    int vocabulary;  /* image tokens */
    int seq_len;     /* tokens of an image, a square */
    int classes;     /* class-conditional: class_emb has one row more, the unconditional class. 0 with captions */
    int prefix;      /* positions before the image tokens: 1 for a class, 120 for a caption */
    int caption_dim; /* text-to-image: width of a caption's features; else 0 */
    long parameters;
    int heads_guessed; /* 1: the number of heads is a guess, since no source tells it and the width is not official */
} gpt_config;

/* Derives the shape from the tensors. `heads` 0 takes the heads from the metadata (mar.heads), else from the official
 * widths, else guesses them. seq_len is in no tensor: it comes from the metadata (mar.seq_len), else it is 256.
 * Positions are computed, so the caller may set it to another square (384-pixel models have 576). Returns MAR_EMODEL,
 * naming the tensor, if the file is not a LlamaGen model; other wrong tensors are found when they are loaded. Returns
 * MAR_EARG if `heads` does not fit the width (gpt_heads_divide). */
mar_status gpt_config_derive(const wt_file *f, int heads, gpt_config *config, mar_err *err);
/* Sets heads and heads_guessed of a config with a width, as gpt_config_derive does. */
mar_status gpt_config_derive_heads(const wt_file *f, int heads, gpt_config *c, mar_err *err);
/* Tells whether this many heads divide the width into supported sizes: multiples of 4, up to KERN_CACHE_HEAD_MAX
 * (kernels/ops.h). RoPE rotates half of a head's pairs by the row and half by the column: hence multiples of 4. */
int gpt_heads_divide(long heads, int width);
/* Calls `visit` for every tensor of the model, in the official order. */
typedef void gpt_tensor_visitor(void *user, const char *name, int rank, const int64_t *shape);
void gpt_config_tensors(const gpt_config *c, gpt_tensor_visitor *visit, void *user);
/* The form of a layer's tensors. */
enum {
    GPT_LAYER_PLAIN = 0,
    GPT_LAYER_NO_NORM = 1, /* there is no attention_norm (an EAGLE drafter's layer) */
    GPT_LAYER_JOINED = 2,  /* feed_forward.w1 has the rows of w3, too (SphereAR) */
    GPT_LAYER_LLAMA = 4,   /* the names of transformers' Llama, q, k and v apart (a published EAGLE drafter) */
};
/* The tensors of a layer. */
typedef enum { GPT_WQKV, GPT_WO, GPT_W1, GPT_W3, GPT_W2, GPT_ATTENTION_NORM, GPT_FFN_NORM, GPT_LAYER_TENSORS } gpt_part;
enum { GPT_TENSOR_NAME = 96 };
/* Writes the name of a layer's tensor, of which `piece` 0.. has a part of the rows. Returns NULL if there is no such
 * piece. */
const char *gpt_layer_name(const char *prefix, int form, gpt_part part, int piece, char text[GPT_TENSOR_NAME]);
/* Calls `visit` for the tensors of one layer, whose names begin with `prefix`, "layers.3". */
void gpt_layer_tensors(const char *prefix, int64_t width, int64_t hidden, int form, gpt_tensor_visitor *visit,
                       void *user);
/* Tells whether the file looks like LlamaGen: it has layers.0.attention.wqkv.weight or tok_embeddings.weight. */
int gpt_config_recognise(const wt_file *f);
/* Tells whether an extra tensor is harmless: one that can be computed (freqs_cis, causal_mask), or a key-value
 * cache. */
int gpt_config_ignores(const char *name);
/* Tells whether the tensor is a layer's matrix that dtype int8 multiplies in int8 and an int8 file stores as I8
 * (weights/weights.h). An EAGLE drafter's layer counts. */
int gpt_config_is_int8(const char *tensor);
/* Returns the side of the square of seq_len tokens; 0 if seq_len is not a square. */
int gpt_config_side(int seq_len);

#endif
