/* Decodes images: executes the list of steps with three buffers, on as many images at a time as the device allows. */
#include "vae/steps.h"

#include "base/arena.h"

#include <limits.h>
#include <stdlib.h>

struct vae_run {
    kern_queue *k;
    const vae_decoder *d;
    int grid_h, grid_w;
    int images;          /* most images decoded at a time */
    float *stream[2];    /* [images] buffers of x and h; they swap */
    act *a;              /* [images][pixels][channels] input of a product or convolution */
    size_t stream_bytes; /* bytes of an image in each stream */
    size_t act_bytes;    /* bytes of an image in a */
    double flop;         /* of an image */
    /* [images][pixels][z_channels] position in the latents of each number of the tokens; NULL: unchanged. */
    int *position;

    /* Recordings of `decode`: for `images` images, and for the last other number, a batch's rest. */
    struct {
        int images;
        kern_recording *recording;
    } recorded[2];

    /* State of a decode. */
    int n;          /* images */
    float *x;       /* [n][pixels][channels] residual stream */
    float *h;       /* same size: result between two convolutions, or q, k, v as act */
    uint8_t *bytes; /* [n][pixels][3] the images, in the stream that is free by then */
    int *found;     /* [n] KERN_PIXELS_* of each, in front of bytes */
};

typedef struct {
    int height, width;
} extent;

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static double conv_flop(double pixels, int in, int out, int taps)
{
    return 2.0 * pixels * in * out * taps;
}

/* --- preparation: buffer sizes and flop of an image --------------------------------------------------------------- */

static void measure_residual(vae_run *r, const vae_step *s, double pixels)
{
    r->flop += conv_flop(pixels, s->in, s->out, 9) + conv_flop(pixels, s->out, s->out, 9);
    if (s->shortcut) r->flop += conv_flop(pixels, s->in, s->out, 1);
}

static void measure_attention(vae_run *r, const vae_step *s, size_t pixels)
{
    const double n = (double)pixels;
    r->flop += conv_flop(n, s->in, s->in, 4) + 4.0 * n * n * s->in;
    r->stream_bytes = max_size(r->stream_bytes, 3 * pixels * (size_t)s->in * r->k->device->act_size);
}

/* Adds one step's buffers and flop. Sets *e to the size of its output. */
static void measure_step(vae_run *r, const vae_step *s, extent *e)
{
    const size_t pixels = (size_t)e->height * (size_t)e->width;
    const size_t channels = (size_t)(s->in > s->out ? s->in : s->out);
    r->stream_bytes = max_size(r->stream_bytes, pixels * channels * sizeof(float));
    r->act_bytes = max_size(r->act_bytes, pixels * channels * r->k->device->act_size);
    switch (s->kind) {
    case VAE_RESIDUAL:
        measure_residual(r, s, (double)pixels);
        break;
    case VAE_ATTENTION:
        measure_attention(r, s, pixels);
        break;
    case VAE_UPSAMPLE:
        *e = (extent){2 * e->height, 2 * e->width};
        r->stream_bytes = max_size(r->stream_bytes, 4 * pixels * (size_t)s->out * sizeof(float));
        /* 4 of the 9 input pixels of an output pixel differ */
        r->flop += conv_flop(4.0 * (double)pixels, s->in, s->out, 4);
        break;
    }
}

static void measure(vae_run *r)
{
    const vae_decoder *d = r->d;
    const int z = d->latent, tokens = r->grid_h * r->grid_w;
    extent e = {r->grid_h, r->grid_w};
    r->stream_bytes = sizeof(float) * (size_t)tokens * max_size((size_t)z, (size_t)d->config.z_channels);
    r->act_bytes = r->k->device->act_size * (size_t)tokens * (size_t)z;
    r->flop = (d->table ? 0 : conv_flop(tokens, z, z, 1)) + conv_flop(tokens, z, d->width_in, 9);
    for (int i = 0; i < d->n_steps; i++) measure_step(r, &d->steps[i], &e);
    r->flop += conv_flop((double)e.height * e.width, d->width_out, 3, 9);
}

/* --- preparation: plans of each step for n images ----------------------------------------------------------------- */

static mar_status plan_residual(kern_queue *k, const vae_step *s, int n, extent e, mar_err *err)
{
    mar_status status = k->conv->group_norm_plan(k, n, e.height * e.width, s->in, err);
    if (status == MAR_OK) status = k->conv->plan(k, s->conv[0], n, e.height, e.width, err);
    if (status == MAR_OK && s->shortcut) status = k->conv->plan(k, s->shortcut, n, e.height, e.width, err);
    if (status == MAR_OK) status = k->conv->group_norm_plan(k, n, e.height * e.width, s->out, err);
    return status == MAR_OK ? k->conv->plan(k, s->conv[1], n, e.height, e.width, err) : status;
}

static mar_status plan_attention(kern_queue *k, const vae_step *s, int n, extent e, mar_err *err)
{
    const int pixels = e.height * e.width, c = s->in;
    mar_status status = k->conv->group_norm_plan(k, n, pixels, c, err);
    if (status == MAR_OK) status = k->core->linear_plan(k, s->qkv, n * pixels, err);
    if (status == MAR_OK) status = k->core->attention_plan(k, pixels, pixels, 1, c, 3 * c, 3 * c, err);
    return status == MAR_OK ? k->core->linear_plan(k, s->proj, n * pixels, err) : status;
}

/* Plans one step. Sets *e to the size of its output. */
static mar_status plan_step(kern_queue *k, const vae_step *s, int n, extent *e, mar_err *err)
{
    const extent in = *e;
    switch (s->kind) {
    case VAE_RESIDUAL:
        return plan_residual(k, s, n, in, err);
    case VAE_ATTENTION:
        return plan_attention(k, s, n, in, err);
    case VAE_UPSAMPLE:
        *e = (extent){2 * in.height, 2 * in.width};
        return k->conv->plan(k, s->conv[0], n, in.height, in.width, err);
    }
    return MAR_OK;
}

static mar_status plan_pass(vae_run *r, int n, mar_err *err)
{
    const vae_decoder *d = r->d;
    kern_queue *k = r->k;
    extent e = {r->grid_h, r->grid_w};
    mar_status status = d->table ? MAR_OK : k->core->linear_plan(k, d->post_quant, n * e.height * e.width, err);
    if (status == MAR_OK) status = k->conv->plan(k, d->conv_in, n, e.height, e.width, err);
    for (int i = 0; status == MAR_OK && i < d->n_steps; i++) status = plan_step(k, &d->steps[i], n, &e, err);
    if (status == MAR_OK) status = k->conv->group_norm_plan(k, n, e.height * e.width, d->width_out, err);
    return status == MAR_OK ? k->conv->plan(k, d->conv_out, n, e.height, e.width, err) : status;
}

mar_status vae_run_plan(vae_run *r, int images, mar_err *err)
{
    const int rest = images % r->images;
    mar_status status = images >= r->images ? plan_pass(r, r->images, err) : MAR_OK;
    return status == MAR_OK && rest > 0 ? plan_pass(r, rest, err) : status;
}

/* Returns the number of images that fit the device's budget, at least one, or one while layers are searched. */
static int images_at_a_time(const vae_run *r, int batch)
{
    const size_t fit = r->k->device->image_budget / (2 * r->stream_bytes + r->act_bytes);
    return fit < 1 || r->k->watch.on ? 1 : fit < (size_t)batch ? (int)fit : batch;
}

int vae_run_images(const vae_run *r)
{
    return r->images;
}

size_t vae_run_lay_out(vae_run *r, char *base)
{
    size_t used = 0;
    r->stream[0] = arena_carve(base, &used, (size_t)r->images, r->stream_bytes);
    r->stream[1] = arena_carve(base, &used, (size_t)r->images, r->stream_bytes);
    r->a = arena_carve(base, &used, (size_t)r->images, r->act_bytes);
    return used;
}

mar_status vae_run_create(kern_queue *k, const vae_decoder *d, int grid_h, int grid_w, int batch, vae_run **out,
                          mar_err *err)
{
    *out = NULL;
    const int longest = 16384 / d->config.stride; /* far below sizes that overflow */
    if (grid_h < 1 || grid_w < 1 || grid_h > longest || grid_w > longest)
        return err_set(err, MAR_EARG, "latent grid %dx%d: expected 1..%d by 1..%d", grid_h, grid_w, longest, longest);
    vae_run *r = calloc(1, sizeof *r);
    if (!r) return err_set(err, MAR_ENOMEM, "out of memory");
    r->k = k;
    r->d = d;
    r->grid_h = grid_h;
    r->grid_w = grid_w;
    measure(r);
    r->images = images_at_a_time(r, batch);
    *out = r;
    return MAR_OK;
}

void vae_run_free(vae_run *r)
{
    if (!r) return;
    for (int i = 0; i < 2; i++) r->k->core->recording_free(r->k, r->recorded[i].recording);
    free(r->position);
    free(r);
}

/* Inverts patchify of models/mar.py, "nhwcpq->nchpwq", with the latents' channels last. */
mar_status vae_run_unpatchify(vae_run *r, int patch, mar_err *err)
{
    const int channels = r->d->config.z_channels, rows = r->grid_h / patch, columns = r->grid_w / patch;
    const size_t count = (size_t)r->images * (size_t)r->grid_h * (size_t)r->grid_w * (size_t)channels;
    if (patch == 1) return MAR_OK;
    int *at = r->position = count > INT_MAX ? NULL : malloc(count * sizeof *at);
    if (!at) return err_set(err, MAR_ENOMEM, "out of memory for the places of %zu numbers", count);
    for (int n = 0; n < r->images; n++)
        for (int h = 0; h < rows; h++)
            for (int w = 0; w < columns; w++)
                for (int c = 0; c < channels; c++)
                    for (int p = 0; p < patch; p++)
                        for (int q = 0; q < patch; q++)
                            *at++ = ((n * r->grid_h + h * patch + p) * r->grid_w + w * patch + q) * channels + c;
    return MAR_OK;
}

double vae_run_flop(const vae_run *r)
{
    return r->flop;
}

/* --- decoding ---------------------------------------------------------------------------------------------------- */

/* Passes the output of a layer to kern_watch; f32: 1 for float, 0 for act. */
static void watch(vae_run *r, const char *step, const char *layer, const void *x, int f32, extent e, int channels)
{
    kern_watch(r->k, x, f32, r->n * e.height * e.width, channels, channels, "%s%s", step, layer);
}

static void norm(vae_run *r, const float *x, extent e, int channels, const vae_norm *n, int silu)
{
    kern_queue *k = r->k;
    k->conv->group_norm(k, x, r->n, e.height * e.width, channels, VAE_GROUPS, n->weight, n->bias, VAE_EPS, silu, r->a);
}

static void run_residual(vae_run *r, const vae_step *s, extent e)
{
    kern_queue *k = r->k;
    norm(r, r->x, e, s->in, &s->norm[0], 1);
    watch(r, s->name, ".norm1", r->a, 0, e, s->in);
    k->conv->conv(k, s->conv[0], r->a, r->n, e.height, e.width, r->h);
    watch(r, s->name, ".conv1", r->h, 1, e, s->out);
    if (s->shortcut) { /* x becomes shortcut(x), from its copy in a */
        k->core->to_act(k, r->x, (size_t)r->n * (size_t)e.height * (size_t)e.width * (size_t)s->in, r->a);
        k->conv->conv(k, s->shortcut, r->a, r->n, e.height, e.width, r->x);
        watch(r, s->name, ".nin_shortcut", r->x, 1, e, s->out);
    }
    norm(r, r->h, e, s->out, &s->norm[1], 1);
    watch(r, s->name, ".norm2", r->a, 0, e, s->out);
    k->conv->conv(k, s->conv[1], r->a, r->n, e.height, e.width, r->x);
    watch(r, s->name, ".conv2", r->x, 1, e, s->out);
}

static void run_attention(vae_run *r, const vae_step *s, extent e)
{
    kern_queue *k = r->k;
    const int pixels = e.height * e.width, rows = r->n * pixels, c = s->in;
    const char *qkv = (const char *)r->h; /* act [rows][3][c] */
    norm(r, r->x, e, c, &s->norm[0], 0);
    watch(r, s->name, ".norm", r->a, 0, e, c);
    k->core->linear(k, s->qkv, r->a, rows, r->h);
    for (int i = 0; i < 3; i++)
        kern_watch(k, qkv + (size_t)(i * c) * k->device->act_size, 0, rows, c, 3 * c, "%s.%c", s->name, "qkv"[i]);
    k->core->attention(k, qkv, 3 * c, qkv + (size_t)c * k->device->act_size, qkv + 2 * (size_t)c * k->device->act_size,
                       3 * c, r->n, pixels, pixels, 1, c, r->a);
    watch(r, s->name, "", r->a, 0, e, c);
    k->core->linear(k, s->proj, r->a, rows, r->x);
    watch(r, s->name, ".proj_out", r->x, 1, e, c);
}

static void run_upsample(vae_run *r, const vae_step *s, extent *e)
{
    kern_queue *k = r->k;
    float *larger = r->h;
    k->core->to_act(k, r->x, (size_t)r->n * (size_t)e->height * (size_t)e->width * (size_t)s->in, r->a);
    k->conv->conv(k, s->conv[0], r->a, r->n, e->height, e->width, larger);
    r->h = r->x;
    r->x = larger;
    *e = (extent){2 * e->height, 2 * e->width};
    watch(r, s->name, ".upsample.conv", r->x, 1, *e, s->out);
}

/* Decodes the latents in r->stream[0] to pixels in r->h and bytes in r->bytes. */
static void decode(void *arg)
{
    vae_run *r = arg;
    r->x = r->stream[0], r->h = r->stream[1];
    const vae_decoder *d = r->d;
    kern_queue *k = r->k;
    extent e = {r->grid_h, r->grid_w};
    const size_t n = (size_t)r->n * (size_t)(r->grid_h * r->grid_w) * (size_t)d->latent;
    k->core->to_act(k, r->x, n, r->a);
    k->conv->conv(k, d->conv_in, r->a, r->n, e.height, e.width, r->x);
    watch(r, "", "decoder.conv_in", r->x, 1, e, d->width_in);
    for (int i = 0; i < d->n_steps; i++) {
        const vae_step *s = &d->steps[i];
        switch (s->kind) {
        case VAE_RESIDUAL:
            run_residual(r, s, e);
            break;
        case VAE_ATTENTION:
            run_attention(r, s, e);
            break;
        case VAE_UPSAMPLE:
            run_upsample(r, s, &e);
            break;
        }
    }
    norm(r, r->x, e, d->width_out, &d->norm_out, 1);
    watch(r, "", "decoder.norm_out", r->a, 0, e, d->width_out);
    k->conv->conv(k, d->conv_out, r->a, r->n, e.height, e.width, r->h);
    watch(r, "", "decoder.conv_out", r->h, 1, e, 3);
    /* Fits into x: it has 4 bytes per channel of each pixel, and at least VAE_GROUPS channels. */
    r->found = (int *)(void *)r->x;
    r->bytes = (uint8_t *)(r->found + r->n);
    k->conv->to_bytes(k, r->h, r->n, e.height * e.width * 3, d->table ? KERN_BYTES_DOWN : KERN_BYTES_NEAREST, r->bytes,
                      r->found);
}

/* Returns the slot of the recording for n images. */
static kern_recording **recording_of(vae_run *r, int n)
{
    const int i = n != r->images;
    if (r->recorded[i].images != n) {
        r->k->core->recording_free(r->k, r->recorded[i].recording);
        r->recorded[i].recording = NULL;
        r->recorded[i].images = n;
    }
    return &r->recorded[i].recording;
}

vae_pictures vae_decode(vae_run *r, const float *tokens, int n)
{
    kern_queue *k = r->k;
    const vae_decoder *d = r->d;
    const int rows = n * r->grid_h * r->grid_w;
    k->watch.part = "";
    r->n = n;
    if (r->position) { /* the second stream is free until the first residual block */
        k->core->copy_rows(k, r->stream[1], r->position, tokens, NULL, NULL, NULL, rows * d->config.z_channels, 1);
        tokens = r->stream[1];
    }
    if (d->table)
        k->core->look_up(k, d->table, d->config.codebook, d->latent, tokens, rows, r->stream[0]);
    else
        k->core->linear(k, d->post_quant, tokens, rows, r->stream[0]);
    watch(r, "", "post_quant_conv", r->stream[0], 1, (extent){r->grid_h, r->grid_w}, d->latent);
    if (k->watch.on) /* it waits between layers */
        decode(r);
    else
        k->core->replay(k, recording_of(r, n), decode, r);
    return (vae_pictures){n, r->h, r->bytes, r->found};
}
