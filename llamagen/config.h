/* The shape of LlamaGen's transformer (Sun et al. 2024, autoregressive/models/gpt.py), and its tensors by their names.
 */
#ifndef LLAMAGEN_CONFIG_H
#define LLAMAGEN_CONFIG_H

#include "weights/weights.h"

typedef struct {
    int width;       /* dim */
    int depth;       /* n_layer */
    int heads;       /* n_head; keys and values have as many */
    int hidden;      /* of the SwiGLU */
    int vocabulary;  /* image tokens */
    int seq_len;     /* image tokens of an image, a square */
    int classes;     /* class-conditional: the table has one more row, the unconditional class; else 0 */
    int prefix;      /* positions in front of the image tokens: 1 for a class, 120 for a caption */
    int caption_dim; /* text-to-image: width of a caption's features; else 0 */
    long parameters;
    int heads_guessed; /* 1: nothing says how many heads there are, and the width is no official one */
} gpt_config;

/* Derives the shape from the tensors. `heads`: 0 takes it from the metadata (mar.heads), else from the official widths,
 * else a guess. seq_len is in no tensor: from the metadata (mar.seq_len), else 256; gpt_config.seq_len may be
 * set to another square by the caller, since positions are computed (384-pixel models have 576). MAR_EMODEL, naming the
 * tensor, if it is no LlamaGen model; other wrong tensors are noticed when they are loaded. MAR_EARG if `heads` does
 * not go with the width (gpt_heads_divide). */
mar_status gpt_config_derive(const wt_file *f, int heads, gpt_config *config, mar_err *err);
/* Whether so many heads divide the width into sizes that there are: multiples of 4, since half of a head's pairs turn
 * with the row, half with the column, up to KERN_CACHE_HEAD_MAX (kernels/ops.h). */
int gpt_heads_divide(long heads, int width);
/* Calls `visit` for every tensor of such a model, in the official order. */
typedef void gpt_tensor_visitor(void *user, const char *name, int rank, const int64_t *shape);
void gpt_config_tensors(const gpt_config *c, gpt_tensor_visitor *visit, void *user);
/* The tensors of one layer, whose names begin with `prefix`, "layers.3". first_norm 0: it has no attention_norm. */
void gpt_layer_tensors(const char *prefix, int64_t width, int64_t hidden, int first_norm, gpt_tensor_visitor *visit,
                       void *user);
/* Whether the file looks like one: it has layers.0.attention.wqkv.weight or tok_embeddings.weight. */
int gpt_config_recognise(const wt_file *f);
/* Whether a tensor beside these is harmless: what some programs keep that can be computed (freqs_cis, causal_mask), and
 * caches of keys and values. */
int gpt_config_ignores(const char *name);
/* Whether the tensor is one of the layers' matrices that dtype int8 multiplies in int8 and that are I8 in an int8 file
 * (weights/weights.h), an EAGLE drafter's layer included. */
int gpt_config_is_int8(const char *tensor);
/* The side of the square of seq_len tokens; 0 if it is no square. */
int gpt_config_side(int seq_len);

#endif
