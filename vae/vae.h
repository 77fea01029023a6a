/* The image decoder of a KL or VQ autoencoder (LDM architecture: conv_in, mid, up levels, norm_out, conv_out). MAR's is
 * a KL one. LlamaGen's is a VQ one (Sun et al. 2024): a token is the number of a row of its codebook, which is divided
 * by its length and goes through post_quant_conv; the coarsest level has attention behind each residual block. */
#ifndef VAE_VAE_H
#define VAE_VAE_H

#include "kernels/ops.h"
#include "weights/weights.h"

/* Derives the shape from the tensors of a checkpoint. MAR_EMODEL, naming the tensor, if it is no such autoencoder. */
mar_status vae_config_derive(const wt_file *f, mar_vae_config *config, mar_err *err);
/* Calls `visit` for every tensor of such an autoencoder, encoder included if the file has any of it, in the official
 * order. Of a VQ one's file quantize.codebook_used is left out, which says what training has used. */
typedef void vae_tensor_visitor(void *user, const char *name, int rank, const int64_t *shape);
void vae_config_tensors(const wt_file *f, const mar_vae_config *config, vae_tensor_visitor *visit, void *user);
/* Whether the file looks like a KL or VQ autoencoder, and if so whether like a VQ one: by the names of its tensors. */
int vae_config_recognise(const wt_file *f);
int vae_config_is_vq(const wt_file *f);

typedef struct vae_decoder vae_decoder; /* the weights, in the device's memory; any number of runs share them */

/* Loads post_quant_conv, decoder.* and the codebook of `f`, which may be closed afterwards. MAR_EMODEL, naming file and
 * tensor, if one is missing or has another shape. Queues other than k can use the decoder once k has finished. */
mar_status vae_decoder_create(kern_queue *k, const wt_file *f, vae_decoder **out, mar_err *err);
void vae_decoder_free(vae_decoder *d); /* after its runs; NULL is fine */
const mar_vae_config *vae_decoder_config(const vae_decoder *d);
/* VQ: the codebook as tokens are looked up, each of length 1: host float [codebook][z_channels], valid as long as the
 * decoder. NULL of a KL autoencoder. */
const float *vae_decoder_codebook(const vae_decoder *d);
/* The same as the file has it, rows of any length: by these LANTERN's code measures how far apart tokens are. */
const float *vae_decoder_embedding(const vae_decoder *d);

typedef struct vae_run vae_run; /* decodes latents of one size, square or not, on one queue */

/* Creates a run for batches of at most `batch` latents of grid_h x grid_w pixels, each a token, on queue k, which must
 * outlive it. Call vae_run_lay_out and vae_run_plan before vae_decode. */
mar_status vae_run_create(kern_queue *k, const vae_decoder *d, int grid_h, int grid_w, int batch, vae_run **out,
                          mar_err *err);
void vae_run_free(vae_run *r);
/* From now on a token is patch x patch latent pixels, as models/mar.py packs them: [channel][row][column]. The grid's
 * sides are multiples of patch. To be called at most once. MAR_ENOMEM. */
mar_status vae_run_unpatchify(vae_run *r, int patch, mar_err *err);
/* How many images vae_decode takes at a time: as many of the batch as fit in the device's image_budget, at least one.
 * One while layers are searched (kern_watch), so that what is found is the image's own. */
int vae_run_images(const vae_run *r);
/* Prepares for `images` images, decoded vae_run_images at a time, the last call maybe fewer. The first plan of a
 * decoder packs its weights. */
mar_status vae_run_plan(vae_run *r, int images, mar_err *err);
/* Lays out the run's working memory at base, which is backend memory and must outlive the run. Returns the bytes it
 * takes, a multiple of 256. With base NULL it only counts. */
size_t vae_run_lay_out(vae_run *r, char *base);
/* Arithmetic of an image, 2 per multiply-add of convolutions and attention. A convolution after upsampling counts 4
 * input pixels for an output pixel, those that differ, not 9. */
double vae_run_flop(const vae_run *r);

/* What came of n images, in the backend's memory. It belongs to the run and is valid until its next vae_decode. */
typedef struct {
    int n;
    const float *pixels; /* [n][H][W][3] nominally in [-1,1], not clipped */
    const uint8_t
        *bytes;       /* [n][H][W][3] kern_pixel_byte of them: KERN_BYTES_NEAREST, with a codebook KERN_BYTES_DOWN */
    const int *found; /* [n] KERN_PIXELS_*. With NOT_FINITE, or without WITHIN, an image is none: the latter is a
                       * picture of black and white channels alone, which no decoder that works makes */
} vae_pictures;

/* Decodes the tokens of n images, 1..vae_run_images, backend float [n][grid_h*grid_w][z_channels], as the model
 * predicts them: 0.2325 (the official scale) times the latent; of patches (vae_run_unpatchify) as many numbers. With a
 * codebook they are [n][grid_h*grid_w], the tokens' numbers. Allocates nothing but what a backend records. kern_check
 * reports a failure of the backend. An image does not depend on those beside it, but for the last bits of a GPU's
 * products. */
vae_pictures vae_decode(vae_run *r, const float *tokens, int n);

#endif
