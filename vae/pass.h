/* Execution of steps on whole images, or on a band of an image's rows. Private to vae/. */
#ifndef VAE_PASS_H
#define VAE_PASS_H

#include "vae/steps.h"

typedef struct {
    int height, width;
} vae_extent;

/* Working state. The buffers' sizes are those of vae_sizes. */
typedef struct {
    kern_queue *k;
    vae_vit_pass *vit; /* NULL: the decoder has no transformer */
    vae_extent grid;   /* of tokens */
    int n;             /* images */
    float *x;          /* [n][pixels][channels] residual stream */
    float *h;          /* same size: result between two convolutions, or q, k, v as act */
    act *a;            /* [n][pixels][channels] input of a product or convolution */
    const float *zq;   /* spatial norms: [n][grid pixels][z_channels] codebook rows of the tokens; else NULL */
    int z;             /* z_channels */
    float *cells;      /* spatial norms: [n][grid pixels][2][channels] scales and shifts */
} vae_pass;

/* Rows of an image whose norms are known. */
typedef struct {
    int first;          /* row */
    const double *sums; /* kern_norm's */
    int pixels;         /* of the image */
} vae_rows;

/* Room for an image. */
typedef struct {
    size_t stream, act, cells; /* bytes of x and of h, of a, of cells */
    double flop;
} vae_sizes;

static inline size_t vae_pixels(vae_extent e)
{
    return (size_t)e.height * (size_t)e.width;
}

/* Returns the size of a step's output. */
vae_extent vae_size_after(const vae_step *s, vae_extent e);

/* Enlarges `sizes` to fit an input of e x net->in, conv_in and the first `count` steps; with all steps, also norm_out
 * and conv_out. Adds their flop. grid: of tokens, for spatial norms. */
void vae_measure(kern_queue *k, const vae_network *net, const vae_vit *vit, vae_extent grid, int count, vae_extent e,
                 vae_sizes *sizes);
/* Prepares the same for n images. vit may be NULL. */
mar_status vae_plan(const vae_pass *p, const vae_network *net, int n, int count, vae_extent e, mar_err *err);
/* Prepares a norm of n images with this number of cells. */
mar_status vae_plan_norm(const vae_pass *p, const vae_norm *norm, int n, int pixels, int channels, int cells,
                         mar_err *err);

/* Runs conv_in and the first `count` steps on p->x of size e. Returns the size of the result, in p->x. */
vae_extent vae_pass_steps(vae_pass *p, const vae_network *net, int count, vae_extent e);
/* Runs norm_out, SiLU and conv_out from p->x to p->h; without conv_out, swaps these. */
void vae_pass_end(vae_pass *p, const vae_network *net, vae_extent e);
/* p->a = norm(x), with SiLU or without. e: of x, all rows of each image, or those of `rows`. */
void vae_pass_norm(const vae_pass *p, const vae_norm *norm, const float *x, vae_extent e, int channels, int silu,
                   const vae_rows *rows);
/* Passes the output of a layer to kern_watch; f32: 1 for float, 0 for act. */
void vae_watch(const vae_pass *p, const char *step, const char *layer, const void *x, int f32, vae_extent e,
               int channels);

/* --- temporal.c: Emu3's layers over time ---------------------------------------------------------------------------
 */

mar_status vae_temporal_load(const vae_loader *l, int channels, vae_temporal **out);
void vae_temporal_free(kern_device *device, vae_temporal *t); /* NULL is fine */
/* Loads a 3-D convolution [out][in][3][kernel][kernel] and its bias: *weight [out][in][kernel][kernel] is its last
 * slice. The caller frees both, also after a failure. */
mar_status vae_load_last_slice(const vae_loader *l, const char *prefix, int out, int in, int kernel, float **weight,
                               float **bias);
double vae_temporal_flop(const vae_temporal *t, size_t pixels); /* of an image */
/* n: arrays of e pixels, two an image. */
mar_status vae_temporal_plan(kern_queue *k, const vae_temporal *t, int n, vae_extent e, mar_err *err);
/* Runs them on x, [2 p->n][grid pixels][channels], in place. */
void vae_temporal_run(const vae_pass *p, const vae_temporal *t, float *x);

#endif
