/* The shape of a MAR model, derived from the tensors of a checkpoint. */
#ifndef MAR_CONFIG_H
#define MAR_CONFIG_H

#include "weights/weights.h"

enum { MAR_PATCH_MAX = 16, MAR_KL16_CHANNELS = 16 };

/* Fills config from the tensors and metadata. `heads` 0: metadata "mar.heads" and "mar.decoder_heads", else those of
 * the official model of that width, else a guess, and heads_guessed is 1. MAR_EMODEL, naming the tensor, if the file is
 * no MAR model, or if encoder and decoder have different widths; other wrong tensors are not noticed here, but by
 * mar_inspect and when they are loaded. */
mar_status mar_config_derive(const wt_file *f, int heads, mar_model_config *config, mar_err *err);

/* Sets patch_size to the one asked for, or else to the metadata's (mar.patch_size); without both it stays 0. MAR_EARG,
 * or MAR_EMODEL for the metadata, if it does not go with token_dim, or if the two differ. */
mar_status mar_config_patch(const wt_file *f, int asked, mar_model_config *config, mar_err *err);

/* Returns the patch size p with p * p * z_channels = token_dim, or 0 if there is none up to MAR_PATCH_MAX. */
int mar_config_patches(int token_dim, int z_channels);
/* Returns the patch size to decode with: the model's own or the caller's, else 1 if a token has z_channels channels,
 * else that of a decoder of 16 channels. Returns 0 if that does not determine it. */
int mar_patch_size(const mar_model_config *model, int z_channels);

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
