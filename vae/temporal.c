/* Emu3's layers over time, for one image (emu3/tokenizer/modeling_emu3visionvq.py).
 *
 * The decoder is of videos. A token is `factor` frames of which an image is the first: decode() returns video[:, 0].
 * Before the 2-D layers, which treat each frame by itself, come 3-D convolutions: post_quant_conv, the residual blocks
 * of time_res_stack, and for each doubling of the frames a time_conv behind a nearest-neighbour upsampling in time. All
 * have a kernel of three frames, and causal padding: two frames of zeros in front, none behind. So
 *   y[t] = W[0] x[t - 2] + W[1] x[t - 1] + W[2] x[t] + bias, with x[t] = 0 for t < 0,
 * where W[i] is a 2-D convolution, and
 *   y[0] = W[2] x[0] + bias:
 * the first frame of a result depends on the first frame of the input alone, by the last slice of the kernel.
 * Upsampling in time repeats each frame: u[0] = x[0]. Norms (of batches, with statistics of training) and SiLU treat
 * each number by itself, and the 2-D layers' group norms are of one frame. By induction over the layers, frame 0 of the
 * video is that of 2-D convolutions by the last slices; the other frames are not computed. The padding in space is one
 * pixel on each side.
 *
 * The same layers run on the latent and, with the same weights, on the codebook rows that the spatial norms see. */
#include "vae/pass.h"
#include "weights/shape.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCKS_MAX = VAE_TEMPORAL_MAX, FRAMES = 3, CHANNELS_MAX = VAE_GROUPS / 4 /* vae_temporal_run's buffers */ };
#define NORM_EPS 1e-5 /* of torch.nn.BatchNorm3d */

typedef struct {
    kern_linear *norm[2]; /* SiLU(norm), a diagonal matrix */
    kern_conv *conv[2];
} block;

struct vae_temporal {
    int channels;
    block blocks[BLOCKS_MAX];     /* time_res_stack: x += conv[1](silu(norm[1](conv[0](silu(norm[0](x)))))) */
    kern_conv *convs[BLOCKS_MAX]; /* time_conv: x = silu(conv(x)) */
    kern_linear *silu;            /* SiLU(x) */
    int n_blocks, n_convs;
};

/* --- loading ------------------------------------------------------------------------------------------------------ */

mar_status vae_load_last_slice(const vae_loader *l, const char *prefix, int out, int in, int kernel, float **weight,
                               float **bias)
{
    const int64_t shape[5] = {out, in, FRAMES, kernel, kernel};
    const size_t taps = (size_t)(kernel * kernel);
    *weight = *bias = NULL;
    mar_status status = vae_load(l, prefix, "weight", 5, shape, weight);
    if (status == MAR_OK) status = vae_load(l, prefix, "bias", 1, (int64_t[]){out}, bias);
    for (size_t i = 0; status == MAR_OK && i < (size_t)(out * in); i++)
        for (size_t j = 0; j < taps; j++) (*weight)[i * taps + j] = (*weight)[(i * FRAMES + FRAMES - 1) * taps + j];
    return status;
}

static mar_status temporal_load_conv(const vae_loader *l, const char *prefix, int channels, int flags, kern_conv **conv)
{
    float *weight, *bias;
    mar_status status = vae_load_last_slice(l, prefix, channels, channels, 3, &weight, &bias);
    const kern_conv_spec spec = {.out = channels,
                                 .in = channels,
                                 .kernel_h = 3,
                                 .kernel_w = 3,
                                 .stride = 1,
                                 .pad_h = 1,
                                 .pad_w = 1,
                                 .weight = weight,
                                 .bias = bias,
                                 .flags = flags};
    if (status == MAR_OK) status = l->k->conv->create(l->k, &spec, conv, l->err);
    free(weight);
    free(bias);
    return status;
}

/* Makes y = SiLU(scale x + shift). */
static mar_status create_diagonal(const vae_loader *l, const float *scale, const float *shift, int channels,
                                  kern_linear **out)
{
    const size_t n = (size_t)channels;
    float *weight = calloc(n * n, sizeof *weight);
    if (!weight) return err_set(l->err, MAR_ENOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) weight[i * n + i] = scale[i];
    const kern_linear_spec spec = {.out = channels,
                                   .in = channels,
                                   .weight = weight,
                                   .bias = shift,
                                   .activation = KERN_SILU,
                                   .flags = KERN_IN_F32 | KERN_OUT_F32};
    const mar_status status = l->k->core->linear_create(l->k, &spec, out, l->err);
    free(weight);
    return status;
}

/* Loads a batch norm with its running mean and variance. */
static mar_status temporal_load_norm(const vae_loader *l, const char *prefix, int channels, kern_linear **out)
{
    static const char *const parts[] = {"weight", "bias", "running_mean", "running_var"};
    float *v[4] = {NULL};
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && i < 4; i++)
        status = vae_load(l, prefix, parts[i], 1, (int64_t[]){channels}, &v[i]);
    for (int i = 0; status == MAR_OK && i < channels; i++) {
        if (v[3][i] < 0)
            status = err_set(l->err, MAR_EMODEL, "%s: %s.running_var has the value %g at %d, expected none below 0",
                             wt_path(l->f), prefix, (double)v[3][i], i);
        const double scale = v[0][i] / sqrt((double)v[3][i] + NORM_EPS);
        v[1][i] = (float)(v[1][i] - scale * v[2][i]);
        v[0][i] = (float)scale;
    }
    if (status == MAR_OK) status = create_diagonal(l, v[0], v[1], channels, out);
    for (int i = 0; i < 4; i++) free(v[i]);
    return status;
}

static mar_status load_block(const vae_loader *l, int number, int channels, block *b)
{
    char name[VAE_NAME_SIZE];
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && i < 2; i++) {
        snprintf(name, sizeof name, "decoder.time_res_stack.%d.norm%d", number, i + 1);
        status = temporal_load_norm(l, name, channels, &b->norm[i]);
        snprintf(name, sizeof name, "decoder.time_res_stack.%d.conv%d.conv", number, i + 1);
        if (status == MAR_OK)
            status = temporal_load_conv(l, name, channels, KERN_OUT_F32 | (i ? KERN_OUT_ADD : 0), &b->conv[i]);
    }
    return status;
}

/* Makes SiLU alone. */
static mar_status load_silu(const vae_loader *l, int channels, kern_linear **out)
{
    float *ones = malloc(sizeof *ones * (size_t)channels);
    if (!ones) return err_set(l->err, MAR_ENOMEM, "out of memory");
    for (int i = 0; i < channels; i++) ones[i] = 1;
    const mar_status status = create_diagonal(l, ones, NULL, channels, out);
    free(ones);
    return status;
}

mar_status vae_temporal_load(const vae_loader *l, int channels, vae_temporal **out)
{
    *out = NULL;
    if (channels > CHANNELS_MAX)
        return err_set(l->err, MAR_EMODEL, "%s: a latent of %d channels, expected at most %d before layers over time",
                       wt_path(l->f), channels, CHANNELS_MAX);
    vae_temporal *t = *out = calloc(1, sizeof *t);
    if (!t) return err_set(l->err, MAR_ENOMEM, "out of memory");
    t->channels = channels;
    t->n_blocks = wt_count_parts(l->f, "decoder.time_res_stack.", BLOCKS_MAX);
    t->n_convs = wt_count_parts(l->f, "decoder.time_conv.", BLOCKS_MAX);
    mar_status status = load_silu(l, channels, &t->silu);
    for (int i = 0; status == MAR_OK && i < t->n_blocks; i++) status = load_block(l, i, channels, &t->blocks[i]);
    for (int i = 0; status == MAR_OK && i < t->n_convs; i++) {
        char name[VAE_NAME_SIZE];
        snprintf(name, sizeof name, "decoder.time_conv.%d.conv.conv", i);
        status = temporal_load_conv(l, name, channels, KERN_OUT_F32, &t->convs[i]);
    }
    return status;
}

void vae_temporal_free(kern_device *device, vae_temporal *t)
{
    if (!t) return;
    for (int i = 0; i < t->n_blocks; i++)
        for (int j = 0; j < 2; j++) {
            device->core->linear_free(device, t->blocks[i].norm[j]);
            device->conv->free(device, t->blocks[i].conv[j]);
        }
    for (int i = 0; i < t->n_convs; i++) device->conv->free(device, t->convs[i]);
    device->core->linear_free(device, t->silu);
    free(t);
}

/* --- passes ------------------------------------------------------------------------------------------------------- */

double vae_temporal_flop(const vae_temporal *t, size_t pixels)
{
    const double conv = 2.0 * 9 * (double)pixels * t->channels * t->channels;
    return 2 * conv * (2 * t->n_blocks + t->n_convs); /* of two inputs */
}

mar_status vae_temporal_plan(kern_queue *k, const vae_temporal *t, int n, vae_extent e, mar_err *err)
{
    const int rows = n * e.height * e.width;
    mar_status status = k->core->linear_plan(k, t->silu, rows, err);
    for (int i = 0; i < 2 * t->n_blocks; i++) {
        const block *b = &t->blocks[i / 2];
        if (status == MAR_OK) status = k->core->linear_plan(k, b->norm[i % 2], rows, err);
        if (status == MAR_OK) status = k->conv->plan(k, b->conv[i % 2], n, e.height, e.width, err);
    }
    for (int i = 0; status == MAR_OK && i < t->n_convs; i++)
        status = k->conv->plan(k, t->convs[i], n, e.height, e.width, err);
    return status;
}

void vae_temporal_run(const vae_pass *p, const vae_temporal *t, float *x)
{
    kern_queue *k = p->k;
    const int n = 2 * p->n, height = p->grid.height, width = p->grid.width, rows = n * height * width;
    const size_t count = (size_t)rows * (size_t)t->channels;
    float *between = p->h + count; /* h has VAE_GROUPS floats a pixel or more */
    for (const block *b = t->blocks; b < t->blocks + t->n_blocks; b++) {
        for (int i = 0; i < 2; i++) {
            k->core->linear(k, b->norm[i], i ? p->h : x, rows, between);
            k->core->to_act(k, between, count, p->a);
            k->conv->conv(k, b->conv[i], p->a, n, height, width, i ? x : p->h);
        }
        kern_watch(k, x, MAR_DTYPE_F32, rows, t->channels, t->channels, "decoder.time_res_stack.%d",
                   (int)(b - t->blocks));
    }
    for (int i = 0; i < t->n_convs; i++) {
        k->core->to_act(k, x, count, p->a);
        k->conv->conv(k, t->convs[i], p->a, n, height, width, p->h);
        k->core->linear(k, t->silu, p->h, rows, x);
        kern_watch(k, x, MAR_DTYPE_F32, rows, t->channels, t->channels, "decoder.time_conv.%d", i);
    }
}
