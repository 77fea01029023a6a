/* The KL autoencoder's decoder (LDM architecture: conv_in, mid, up levels, norm_out, conv_out). */
#ifndef VAE_VAE_H
#define VAE_VAE_H

#include "kernels/ops.h"
#include "weights/weights.h"

/* Derives the shape from the tensors of a checkpoint. MAR_EMODEL, naming the tensor, if it is no KL autoencoder. */
mar_status vae_config_derive(const wt_file *f, mar_vae_config *config, mar_err *err);
/* Calls `visit` for every tensor of such an autoencoder, encoder included, in the official order. */
typedef void vae_tensor_visitor(void *user, const char *name, int rank, const int64_t *shape);
void vae_config_tensors(const wt_file *f, const mar_vae_config *config, vae_tensor_visitor *visit, void *user);
/* Whether the file looks like a KL autoencoder. */
int vae_config_recognise(const wt_file *f);

typedef struct vae_decoder vae_decoder; /* the weights, in the device's memory; any number of runs share them */

/* Loads post_quant_conv and decoder.* of `f`, which may be closed afterwards. MAR_EMODEL, naming file and tensor, if
 * one is missing or has another shape. Queues other than k can use the decoder once k has finished. */
mar_status vae_decoder_create(kern_queue *k, const wt_file *f, vae_decoder **out, mar_err *err);
void vae_decoder_free(vae_decoder *d); /* after its runs; NULL is fine */
const mar_vae_config *vae_decoder_config(const vae_decoder *d);

typedef struct vae_run vae_run; /* decodes latents of one size, square or not, on one queue */

/* Creates a run for latents of grid_h x grid_w tokens on queue k, which must outlive it. The first run of a decoder
 * packs its weights. Call vae_run_lay_out before vae_decode. */
mar_status vae_run_create(kern_queue *k, const vae_decoder *d, int grid_h, int grid_w, vae_run **out, mar_err *err);
void vae_run_free(vae_run *r);
/* Lays out the run's working memory at base, which is backend memory and must outlive the run. Returns the bytes it
 * takes, a multiple of 256. With base NULL it only counts. */
size_t vae_run_lay_out(vae_run *r, char *base);
/* Arithmetic of an image, 2 per multiply-add of convolutions and attention. A convolution after upsampling counts 4
 * input pixels for an output pixel, those that differ, not 9. */
double vae_run_flop(const vae_run *r);

/* Decodes tokens, backend float [grid_h*grid_w][z_channels], as the model predicts them: 0.2325 (the official scale)
 * times the latent. Returns the pixels, backend float [H][W][3], nominally in [-1,1] and not clipped. They belong to
 * the run and are valid until its next call. Allocates nothing. kern_check reports a failure of the backend. */
const float *vae_decode(vae_run *r, const float *tokens);
/* bytes[n] = round(clip((x+1)/2*255, 0, 255)) of float pixels[n], half to even as numpy does. Returns the number of the
 * first pixel that is NaN or infinite, or n: a picture with one is none, although NaN becomes 0. */
size_t vae_to_bytes(const float *pixels, size_t n, uint8_t *bytes);
/* Whether none of float pixels[n] is between -1 and 1, so that all of them are clipped: a picture of black and white
 * channels alone, which no decoder that works makes. */
int vae_is_clipped(const float *pixels, size_t n);

#endif
