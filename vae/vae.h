/* The KL autoencoder's decoder (LDM architecture: conv_in, mid, up levels, norm_out, conv_out). */
#ifndef VAE_VAE_H
#define VAE_VAE_H

#include "kernels/ops.h"
#include "weights/weights.h"

/* Shape from the tensors of a checkpoint; MAR_EMODEL, naming the tensor, if it is no KL autoencoder. */
mar_status vae_config_derive(const wt_file *f, mar_vae_config *config, mar_err *err);
/* Every tensor of such an autoencoder, encoder included, official order. */
typedef void vae_tensor_visitor(void *user, const char *name, int rank, const int64_t *shape);
void vae_config_tensors(const wt_file *f, const mar_vae_config *config, vae_tensor_visitor *visit, void *user);
int vae_config_recognise(const wt_file *f);

typedef struct vae_decoder vae_decoder; /* the weights, in the backend's memory */

/* Post-quantisation, decoder.* of `f`; the file may be closed afterwards. MAR_EMODEL with file and tensor. */
mar_status vae_decoder_create(kern *k, const wt_file *f, vae_decoder **out, mar_err *err);
void vae_decoder_free(vae_decoder *d); /* after its runs; NULL is fine */
const mar_vae_config *vae_decoder_config(const vae_decoder *d);

typedef struct vae_run vae_run; /* decodes latents of one size, square or not */

/* The first run of a decoder packs its weights. It decodes after vae_run_lay_out. */
mar_status vae_run_create(vae_decoder *d, int grid_h, int grid_w, vae_run **out, mar_err *err);
void vae_run_free(vae_run *r);
/* Gives the run its working memory in backend memory at base, which must outlive it, and returns the bytes it takes, a
 * multiple of 256; base NULL only counts. */
size_t vae_run_lay_out(vae_run *r, char *base);
/* Arithmetic per image: 2 per multiply-add of convolutions and attention; a convolution after upsampling
 * counts with the 4 different input pixels that an output pixel has, not with 9. */
double vae_run_flop(const vae_run *r);

/* tokens: backend float [grid_h*grid_w][z_channels] as the model predicts them, 0.2325 (the official scale) times the
 * latent. Returns the pixels, backend float [H][W][3], nominally in [-1,1], not clipped: the run's own, until its next
 * call. Allocates nothing. A failure of the backend shows in kern_check. */
const float *vae_decode(vae_run *r, const float *tokens);
/* round(clip((x+1)/2*255, 0, 255)), half to even as numpy, NaN to 0: float [n] -> uint8 [n]. */
void vae_to_bytes(const float *pixels, size_t n, uint8_t *bytes);

#endif
