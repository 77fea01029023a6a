/* The shape of a MAR model, derived from the tensors of a checkpoint. */
#ifndef MAR_CONFIG_H
#define MAR_CONFIG_H

#include "weights/weights.h"

enum { MAR_PATCH_MAX = 16, MAR_KL16_CHANNELS = 16 };

/* Fills config from the tensors and the metadata. `heads` 0: heads from the metadata "mar.heads" and
 * "mar.decoder_heads", else from the official model of that width, else a guess with heads_guessed 1. Returns
 * MAR_EMODEL, naming the tensor, if the file is not a MAR model, or if encoder and decoder have different widths.
 * mar_inspect and the loader report other wrong tensors. */
mar_status mar_config_derive(const wt_file *f, int heads, mar_model_config *config, mar_err *err);

/* Sets patch_size to `asked`, else to the metadata's mar.patch_size; without both it stays 0. Returns MAR_EARG, or
 * MAR_EMODEL for the metadata, if its square does not divide token_dim, or if the two differ. */
mar_status mar_config_patch(const wt_file *f, int asked, mar_model_config *config, mar_err *err);

/* Returns the patch size p with p * p * z_channels = token_dim; 0 if no p up to MAR_PATCH_MAX fits. */
int mar_config_patches(int token_dim, int z_channels);
/* Returns the patch size to decode with: the model's own or the caller's. Without both it is 1 if a token has
 * z_channels channels, else that of a decoder of 16 channels. Returns 0 if that does not determine it. */
int mar_patch_size(const mar_model_config *model, int z_channels);

/* Calls visit(user, name, rank, shape) for every tensor of such a model, in the official order (formats: fake_latent
 * [1,D], encoder_pos_embed_learned [1,buffer+seq,D], ...). */
typedef void mar_tensor_visitor(void *user, const char *name, int rank, const int64_t *shape);
void mar_config_tensors(const mar_model_config *config, mar_tensor_visitor *visit, void *user);

/* Returns whether the tensor is a matrix of the transformer that dtype int8 multiplies in int8. An int8 file stores it
 * as I8 (weights/weights.h). */
int mar_config_is_int8(const char *tensor);
/* Writes to text the norm in front of a matrix that mar_config_is_int8: "encoder_blocks.0.norm1" for
 * "encoder_blocks.0.attn.qkv.weight". Returns text; NULL if there is no norm. */
const char *mar_config_norm_of(const char *tensor, char *text, size_t size);

/* Returns whether the file looks like a MAR checkpoint (has class_emb.weight or diffloss.net.*). */
int mar_config_recognise(const wt_file *f);

#endif
