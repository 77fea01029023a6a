/* Image decoder of a KL or VQ autoencoder (LDM architecture: conv_in, mid, up levels, norm_out, conv_out). MAR uses a
 * KL autoencoder. LlamaGen uses a VQ one (Sun et al. 2024): a token is the index of a codebook row. The row is
 * normalised and goes through post_quant_conv. The coarsest level has attention after each residual block.
 *
 * Chameleon's VQ autoencoder (Chameleon Team 2024; Lumina-mGPT, Anole) has the names of LDM's layers, a codebook that
 * is used as it is, and attention in the middle only. Emu3's (Wang et al. 2024) is of videos: layers over time come
 * first, which for an image are 2-D convolutions (vae/temporal.c). Its norms are spatial: their scales and shifts are
 * linear in the codebook row of a pixel's token.
 *
 * SphereAR's is a ViT decoder (Ke & Xue 2025): conv_in, a transformer over register tokens and the image's tokens,
 * residual blocks that double rows and columns. Its tokens are used as they are. Its encoder is the reverse, with norm
 * and quant_proj at the end. Its tensors are in the model's own file, or alone; their names begin with "vae." in both,
 * or not.
 *
 * l-DeTok's autoencoder (Yang et al. 2025), of MAR models, is a ViT on both sides: a linear layer between patches of
 * pixels and tokens, a transformer, and behind the decoder's patches conv_out. Tokens are latents with the mean and the
 * standard deviation of each channel taken out, which are tensors of the file, too.
 *
 * Flux's KL autoencoder, of NextStep-1, has no layer between encoder and decoder. Its tokens are latents, shifted and
 * scaled by two numbers of config.json beside it (vae/flux.c).
 *
 * The encoder is loaded only if asked for: conv_in, down levels, mid, norm_out, conv_out, quant_conv. Its token is the
 * mean of the posterior, or the codebook row nearest to its result. */
#ifndef VAE_VAE_H
#define VAE_VAE_H

#include "kernels/ops.h"
#include "weights/kind.h"

/* Gives Emu3's decoder as transformers has it (Emu3VQVAE) the names and shapes of Emu3-VisionTokenizer. Errors are
 * those of wt_rename. */
mar_status vae_config_rename(wt_file *f, mar_err *err);
/* Adds the statistics of l-DeTok's latents, if a file of its tokenizer has none (wt_add_statistics). Adds to the
 * metadata what config.json says of the latents of Flux's autoencoder: beside its file or in its folder, or in the
 * folder vae of a model's. */
mar_status vae_config_complete(wt_file *f, mar_err *err);
/* Derives the shape from the tensors of a checkpoint. Returns MAR_EMODEL, naming the tensor, if it is no such
 * autoencoder. */
mar_status vae_config_derive(const wt_file *f, mar_vae_config *config, mar_err *err);
/* Calls `visit` for every tensor of such an autoencoder, in the official order. Includes the encoder if the file has
 * any part of it that is supported (Emu3's is not). Skips what vae_config_ignores_vq knows. */
typedef void vae_tensor_visitor(void *user, const char *name, int rank, const int64_t *shape);
void vae_config_tensors(const wt_file *f, const mar_vae_config *config, vae_tensor_visitor *visit, void *user);
/* Return 1 if the tensor names are those of a KL, VQ or ViT autoencoder, of a VQ one, or of a ViT one. A file of a
 * SphereAR model with its decoder is of a ViT one, too. */
int vae_config_recognise(const wt_file *f);
int vae_config_is_vq(const wt_file *f);
int vae_config_is_vit(const wt_file *f);
int vae_config_is_detok(const wt_file *f); /* of ViT autoencoders, l-DeTok's */
int vae_config_is_emu3(const wt_file *f);  /* of VQ autoencoders, Emu3's */
int vae_config_is_flux(const wt_file *f);  /* of KL autoencoders, Flux's */
/* Returns the models whose tokens a KL or VQ autoencoder decodes: "MAR", "NextStep-1", "LlamaGen", ... */
const char *vae_config_made_for(const wt_file *f);
/* Returns 1 for a tensor that no code needs: l-DeTok's token of masked patches. */
int vae_config_ignores_detok(const char *tensor);
/* Return 1 for a tensor that no code needs: of a VQ autoencoder's training (usage of the codebook, losses); of Emu3's,
 * the encoder and the batch norms' counters. */
int vae_config_ignores_vq(const char *tensor);
int vae_config_ignores_emu3(const char *tensor);
/* Returns 1 if the file has a tensor of the encoder, or of quant_conv after it. */
int vae_config_has_encoder(const wt_file *f);

/* Writes scale, shift and norm as metadata of a converted file that has Flux's autoencoder. */
void vae_put_latents(const mar_vae_config *c, wt_pairs *m);

/* vae/inside.c: the image decoder in a model's file, whose tensors' names begin so. */
#define VAE_INSIDE "vae."
/* Opens a view of it, without the prefix, to close. *out is NULL if the file has none. */
mar_status vae_open_inside(const wt_file *f, wt_file **out, mar_err *err);
/* Visits its tensors under their names in the file; none if the file has no decoder. */
void vae_inside_tensors(const wt_file *f, const mar_vae_config *config, vae_tensor_visitor *visit, void *user);

typedef struct vae_decoder vae_decoder; /* weights on the device, shared by any number of runs */

/* Loads post_quant_conv or post_quant_proj, decoder.* and the codebook of `f`. `f` may be closed afterwards. Returns
 * MAR_EMODEL, naming file and tensor, if one is missing or has another shape. Other queues can use the decoder once k
 * has finished. */
mar_status vae_decoder_create(kern_queue *k, const wt_file *f, vae_decoder **out, mar_err *err);
void vae_decoder_free(vae_decoder *d); /* call it after freeing its runs; NULL is fine */
/* Loads encoder.* and quant_conv of `f`, the file of the decoder, so that later runs can encode. Call it at most once.
 * Returns MAR_EMODEL, as vae_decoder_create does, if the file has no encoder or a part of one; the decoder stays
 * usable, also for one that is not supported: Emu3's. */
mar_status vae_decoder_add_encoder(vae_decoder *d, kern_queue *k, const wt_file *f, mar_err *err);
int vae_decoder_has_encoder(const vae_decoder *d); /* 1: loaded */
int vae_decoder_is_sphere(const vae_decoder *d);   /* 1: SphereAR's, whose tokens are on a sphere */
const mar_vae_config *vae_decoder_config(const vae_decoder *d);
/* Returns a VQ codebook for lookup: host float [codebook][z_channels], LlamaGen's rows of length 1. Valid as long as
 * the decoder. Returns NULL for a KL autoencoder. */
const float *vae_decoder_codebook(const vae_decoder *d);
/* Returns the codebook as stored, rows of any length. LANTERN's code measures the distance of tokens on it. */
const float *vae_decoder_embedding(const vae_decoder *d);

typedef struct vae_run vae_run; /* decodes and encodes latents of one size, any aspect ratio, on one queue */

/* Creates a run for at most `batch` latents of grid_h x grid_w pixels, one token each. Queue k must outlive it. Call
 * vae_run_lay_out and vae_run_plan before vae_decode and vae_encode. `memory` bounds the working memory of decoding an
 * image. An image that needs more is decoded in bands of rows, one image at a time, with 1.5 to 2 times the work of the
 * layers concerned: on a CPU with the same bits, on a GPU but for last ones. Decoders with an encoder, and ViTs, decode
 * whole images. A bound below what bands need gives the least. Returns MAR_EMODEL for another grid than that of a ViT
 * decoder's positions, and for an encoder that normalises patches which do not divide the grid. */
#define VAE_MEMORY ((size_t)1500000000)
mar_status vae_run_create(kern_queue *k, const vae_decoder *d, int grid_h, int grid_w, int batch, size_t memory,
                          vae_run **out, mar_err *err);
void vae_run_free(vae_run *r);
/* Makes a token patch x patch latent pixels, packed as in models/mar.py: [channel][row][column]. The grid's sides must
 * be multiples of patch. Call it at most once. Returns MAR_ENOMEM. */
mar_status vae_run_unpatchify(vae_run *r, int patch, mar_err *err);
/* Returns the number of images that vae_decode takes at a time: those of the batch that fit the device's image_budget,
 * at least one. While kern_watch searches layers it is one, so that the finding belongs to the image. */
int vae_run_images(const vae_run *r);
/* Prepares for `images` images, vae_run_images per call and the rest in a last call. The first plan of a decoder packs
 * its weights. */
mar_status vae_run_plan(vae_run *r, int images, mar_err *err);
/* Lays out working memory at base, backend memory that must outlive the run. Returns its size in bytes, a multiple of
 * 256. With base NULL it only counts. */
size_t vae_run_lay_out(vae_run *r, char *base);
/* Returns the flop of an image, 2 per multiply-add of convolutions and attention. A convolution after upsampling counts
 * 4 input pixels per output pixel, since only 4 of the 9 differ. */
double vae_run_flop(const vae_run *r);

/* The decoded images, in the backend's memory. Owned by the run, valid until its next vae_decode or vae_encode. */
typedef struct {
    int n;
    const float *pixels; /* [n][H][W][3] nominally in [-1,1], not clipped */
    /* [n][H][W][3] kern_pixel_byte of pixels: MAR's and NextStep-1's KERN_BYTES_NEAREST; LlamaGen's and SphereAR's:
     * KERN_BYTES_DOWN; Chameleon's, Emu3's and l-DeTok's: KERN_BYTES_CUT. */
    const uint8_t *bytes;
    /* [n] KERN_PIXELS_*. An image with NOT_FINITE is invalid. So is one without WITHIN: all its channels are black or
     * white, and no working decoder produces that. */
    const int *found;
} vae_pictures;

/* Decodes n images, 1..vae_run_images. tokens is backend float [n][grid_h*grid_w][z_channels], as the model predicts
 * them: KL (latent - config.shift) * config.scale; l-DeTok's (latent - mean) / std; SphereAR's unchanged. Patches
 * (vae_run_unpatchify) have as many numbers. VQ tokens are [n][grid_h*grid_w] indices. Allocates nothing except for
 * recordings; kern_check reports a failure. An image is independent of the others, except for the last bits of a GPU's
 * products. */
vae_pictures vae_decode(vae_run *r, const float *tokens, int n);

/* Encodes an image of the run's size, whose decoder has the encoder. pixels is host [H][W][channels], rows `stride`
 * bytes apart, channels 3 (RGB) or 4 (the last is ignored). tokens is host float, as vae_decode takes them for an
 * image, but SphereAR's are of any length. A VQ token is NaN if its encoding is not finite. Allocates nothing;
 * kern_check reports a failure, after which tokens are invalid. Waits as `download` does. */
void vae_encode(vae_run *r, const uint8_t *pixels, size_t stride, int channels, float *tokens);

#endif
