/* What mar/ needs of the family MAR beside its row. */
#ifndef FAMILIES_MAR_H
#define FAMILIES_MAR_H

#include "families/families.h"

enum { MAR_PATCH_MAX = 16, MAR_KL16_CHANNELS = 16 };

/* Fills config from the tensors and the metadata. heads 0: heads from the metadata "mar.heads" and
 * "mar.decoder_heads", else from the official model of that width, else a guess with heads_guessed 1. Returns
 * MAR_EMODEL, naming the tensor, if the file is not a MAR model, or if encoder and decoder have different widths.
 * patch_size is the asked one, else the metadata's mar.patch_size, else 0: MAR_EARG, or MAR_EMODEL for the metadata, if
 * its square does not divide token_dim, or if the two differ. mar_inspect and the loader report other wrong tensors. */
mar_status family_mar_derive(const wt_file *f, const wt_asked *asked, mar_model_config *config, mar_err *err);
/* Does the same for a model of MAR's towers that something else than a class may condition: it then has no class. */
mar_status family_mar_derive_as(const wt_file *f, const wt_asked *asked, mar_conditioning conditioning,
                                mar_model_config *config, mar_err *err);
/* Calls visit(user, name, rank, shape) for every tensor of such a model, in the official order (formats: fake_latent
 * [1,D], encoder_pos_embed_learned [1,buffer+seq,D], ...). */
void family_mar_tensors(const mar_model_config *config, wt_tensor_visitor *visit, void *user);
/* Returns whether the tensor is a matrix of the transformer that dtype int8 multiplies in int8. An int8 file stores it
 * as I8 (weights/weights.h). */
int family_mar_is_int8(const char *tensor);

/* Returns the patch size p with p * p * z_channels = token_dim; 0 if no p up to MAR_PATCH_MAX fits. */
int family_mar_patches(int token_dim, int z_channels);
/* Returns the patch size to decode with: the model's own or the caller's. Without both it is 1 if a token has
 * z_channels channels, else that of a decoder of 16 channels. Returns 0 if that does not determine it. */
int mar_patch_size(const mar_model_config *model, int z_channels);

#endif
