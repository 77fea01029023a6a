/* The shape of a MAR model, derived from the tensors of a checkpoint. */
#ifndef MAR_CONFIG_H
#define MAR_CONFIG_H

#include "weights/weights.h"

/* Fills config from the tensors and metadata. `heads` 0: metadata "mar.heads" and "mar.decoder_heads", else those of
 * the official model of that width, else a guess, and heads_guessed is 1. MAR_EMODEL, naming the tensor, if the file is
 * no MAR model, or if encoder and decoder have different widths; other wrong tensors are not noticed here, but by
 * mar_inspect and when they are loaded. */
mar_status mar_config_derive(const wt_file *f, int heads, mar_model_config *config, mar_err *err);

/* Calls visit(user, name, rank, shape) for every tensor such a model has, in the official order
 * (formats: fake_latent [1,D], encoder_pos_embed_learned [1,buffer+seq,D], ...). */
typedef void mar_tensor_visitor(void *user, const char *name, int rank, const int64_t *shape);
void mar_config_tensors(const mar_model_config *config, mar_tensor_visitor *visit, void *user);

/* Whether the tensor is one of the transformer's matrices that dtype int8 multiplies in int8 and that are I8 in an int8
 * file (weights/weights.h). */
int mar_config_is_int8(const char *tensor);
/* The norm in front of a matrix that mar_config_is_int8, "encoder_blocks.0.norm1" of
 * "encoder_blocks.0.attn.qkv.weight", to text, which it returns. NULL: it has none. */
const char *mar_config_norm_of(const char *tensor, char *text, size_t size);

/* True if the file looks like a MAR checkpoint (has class_emb.weight or diffloss.net.*). */
int mar_config_recognise(const wt_file *f);

#endif
