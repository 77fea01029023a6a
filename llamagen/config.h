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
} gpt_config;

/* Derives the shape from the tensors. `heads`: 0 takes it from the metadata (mar.heads), else from the official widths,
 * else a head size of 64. seq_len is in no tensor: from the metadata (mar.seq_len), else 256; gpt_config.seq_len may be
 * set to another square by the caller, since positions are computed (384-pixel models have 576). MAR_EMODEL, naming the
 * tensor, if it is no LlamaGen model. */
mar_status gpt_config_derive(const wt_file *f, int heads, gpt_config *config, mar_err *err);
/* Calls `visit` for every tensor of such a model, in the official order. */
typedef void gpt_tensor_visitor(void *user, const char *name, int rank, const int64_t *shape);
void gpt_config_tensors(const gpt_config *c, gpt_tensor_visitor *visit, void *user);
int gpt_config_recognise(const wt_file *f);

#endif
