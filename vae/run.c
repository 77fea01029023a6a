/* Decodes and encodes images: executes the list of steps with three buffers. Decodes as many images at a time as the
 * device allows, and encodes one. */
#include "vae/steps.h"

#include "base/arena.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

typedef struct {
    int height, width;
} extent;

struct vae_run {
    kern_queue *k;
    const vae_decoder *d;
    extent grid;
    int images;          /* most images decoded at a time */
    float *stream[2];    /* [images] buffers of x and h */
    act *a;              /* [images][pixels][channels] input of a product or convolution */
    size_t stream_bytes; /* bytes of an image in each stream */
    size_t act_bytes;    /* bytes of an image in a */
    double flop;         /* of an image's decoding */
    vae_vit_pass *vit;   /* NULL: the decoder has no transformer */
    float *host;         /* [pixels][3] input of the encoder, or its result for a VQ decoder; NULL without encoder */
    /* [images][pixels][z_channels] position in the latents of each number of the tokens; NULL: unchanged. */
    int *position;

    /* Recordings of `decode`: for `images` images, and for the last other number, a batch's rest. */
    struct {
        int images;
        kern_recording *recording;
    } recorded[2];

    /* State of a call. */
    int n;          /* images */
    float *x;       /* [n][pixels][channels] residual stream */
    float *h;       /* same size: result between two convolutions, or q, k, v as act */
    uint8_t *bytes; /* [n][pixels][3] the images, in the stream that is free by then */
    int *found;     /* [n] KERN_PIXELS_* of each, in front of bytes */
};

static size_t pixels_of(extent e)
{
    return (size_t)e.height * (size_t)e.width;
}

/* Returns the size of the images. */
static extent image_size(const vae_run *r)
{
    const int stride = r->d->config.stride;
    return (extent){r->grid.height * stride, r->grid.width * stride};
}

/* Returns the size of a step's output. */
static extent size_after(const vae_step *s, extent e)
{
    if (s->kind == VAE_UPSAMPLE || s->kind == VAE_DOUBLING) return (extent){2 * e.height, 2 * e.width};
    return s->kind == VAE_DOWNSAMPLE ? (extent){e.height / 2, e.width / 2} : e;
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static double conv_flop(double pixels, int in, int out, int taps)
{
    return 2.0 * pixels * in * out * taps;
}

/* --- preparation: buffer sizes and flop of an image --------------------------------------------------------------- */

/* Makes the buffers fit x of `streamed` floats and an operand of `operand` elements. */
static void fit(vae_run *r, size_t streamed, size_t operand)
{
    r->stream_bytes = max_size(r->stream_bytes, sizeof(float) * streamed);
    r->act_bytes = max_size(r->act_bytes, r->k->device->act_size * operand);
}

static double residual_flop(const vae_step *s, double pixels)
{
    const double shortcut = s->shortcut ? conv_flop(pixels, s->in, s->out, 1) : 0;
    return conv_flop(pixels, s->in, s->out, 9) + conv_flop(pixels, s->out, s->out, 9) + shortcut;
}

/* pixels: of the block's input. A transposed convolution has a quarter of its taps at a pixel of its output. */
static double doubling_flop(const vae_step *s, double pixels)
{
    return conv_flop(4 * pixels, s->in, s->out, 4 + 1) + conv_flop(4 * pixels, s->out, s->out, 9);
}

static double measure_transformer(vae_run *r, size_t tokens)
{
    size_t streamed;
    const size_t bytes = vae_vit_bytes(r->k->device, r->d->vit, tokens, &streamed);
    fit(r, streamed, 0);
    r->stream_bytes = max_size(r->stream_bytes, bytes);
    return vae_vit_flop(r->d->vit, tokens);
}

static double measure_attention(vae_run *r, const vae_step *s, size_t pixels)
{
    const double n = (double)pixels;
    r->stream_bytes = max_size(r->stream_bytes, 3 * pixels * (size_t)s->in * r->k->device->act_size);
    return conv_flop(n, s->in, s->in, 4) + 4.0 * n * n * s->in;
}

/* Fits one step's buffers. Sets *e to the size of its output. Returns its flop. */
static double measure_step(vae_run *r, const vae_step *s, extent *e)
{
    const size_t pixels = pixels_of(*e), channels = (size_t)(s->in > s->out ? s->in : s->out);
    fit(r, pixels * channels, pixels * channels);
    *e = size_after(s, *e);
    switch (s->kind) {
    case VAE_RESIDUAL:
        return residual_flop(s, (double)pixels);
    case VAE_DOUBLING:
        fit(r, 4 * pixels * (size_t)s->out, 4 * pixels * (size_t)s->out);
        return doubling_flop(s, (double)pixels);
    case VAE_TRANSFORMER:
        return measure_transformer(r, pixels);
    case VAE_ATTENTION:
        return measure_attention(r, s, pixels);
    case VAE_UPSAMPLE:
        fit(r, 4 * pixels * (size_t)s->out, 0);
        /* 4 of the 9 input pixels of an output pixel differ */
        return conv_flop(4.0 * (double)pixels, s->in, s->out, 4);
    case VAE_DOWNSAMPLE:
        return conv_flop((double)pixels_of(*e), s->in, s->out, 9);
    }
    return 0;
}

/* Fits the buffers of a side, whose input has the size e. Returns its flop. */
static double measure_network(vae_run *r, const vae_network *net, extent e)
{
    const size_t in = pixels_of(e) * (size_t)net->in;
    fit(r, in, in);
    double flop = conv_flop((double)pixels_of(e), net->in, net->width_in, 9);
    for (int i = 0; i < net->n_steps; i++) flop += measure_step(r, &net->steps[i], &e);
    fit(r, pixels_of(e) * (size_t)net->out, 0);
    return flop + conv_flop((double)pixels_of(e), net->width_out, net->out, 9);
}

static void measure(vae_run *r)
{
    const vae_decoder *d = r->d;
    const size_t tokens = pixels_of(r->grid);
    fit(r, tokens * (size_t)d->config.z_channels, 0);
    r->flop = d->table ? 0 : conv_flop((double)tokens, d->config.z_channels, d->latent, 1);
    r->flop += measure_network(r, &d->network, r->grid);
    if (d->encoder) measure_network(r, &d->encoder->network, image_size(r));
}

/* --- preparation: plans of each step for n images ----------------------------------------------------------------- */

static mar_status plan_residual(kern_queue *k, const vae_step *s, int n, extent e, mar_err *err)
{
    mar_status status = k->conv->group_norm_plan(k, n, e.height * e.width, s->in, err);
    if (status == MAR_OK) status = k->conv->plan(k, s->conv[0], n, e.height, e.width, err);
    if (status == MAR_OK && s->shortcut) status = k->conv->plan(k, s->shortcut, n, e.height, e.width, err);
    e = size_after(s, e);
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

static mar_status plan_step(vae_run *r, const vae_step *s, int n, extent e, mar_err *err)
{
    kern_queue *k = r->k;
    switch (s->kind) {
    case VAE_TRANSFORMER:
        return vae_vit_plan(r->vit, n, err);
    case VAE_RESIDUAL:
    case VAE_DOUBLING:
        return plan_residual(k, s, n, e, err);
    case VAE_ATTENTION:
        return plan_attention(k, s, n, e, err);
    case VAE_UPSAMPLE:
    case VAE_DOWNSAMPLE:
        return k->conv->plan(k, s->conv[0], n, e.height, e.width, err);
    }
    return MAR_OK;
}

static mar_status plan_network(vae_run *r, const vae_network *net, int n, extent e, mar_err *err)
{
    kern_queue *k = r->k;
    mar_status status = k->conv->plan(k, net->conv_in, n, e.height, e.width, err);
    for (int i = 0; status == MAR_OK && i < net->n_steps; i++) {
        status = plan_step(r, &net->steps[i], n, e, err);
        e = size_after(&net->steps[i], e);
    }
    if (status == MAR_OK) status = k->conv->group_norm_plan(k, n, e.height * e.width, net->width_out, err);
    return status == MAR_OK ? k->conv->plan(k, net->conv_out, n, e.height, e.width, err) : status;
}

static mar_status plan_decoder(vae_run *r, int n, mar_err *err)
{
    const vae_decoder *d = r->d;
    kern_queue *k = r->k;
    mar_status status = d->table ? MAR_OK : k->core->linear_plan(k, d->post_quant, n * (int)pixels_of(r->grid), err);
    return status == MAR_OK ? plan_network(r, &d->network, n, r->grid, err) : status;
}

static mar_status plan_encoder(vae_run *r, mar_err *err)
{
    const vae_encoder *encoder = r->d->encoder;
    if (!encoder) return MAR_OK;
    const mar_status status = r->k->core->linear_plan(r->k, encoder->quant, (int)pixels_of(r->grid), err);
    return status == MAR_OK ? plan_network(r, &encoder->network, 1, image_size(r), err) : status;
}

mar_status vae_run_plan(vae_run *r, int images, mar_err *err)
{
    const int rest = images % r->images;
    mar_status status = plan_encoder(r, err);
    if (status == MAR_OK && images >= r->images) status = plan_decoder(r, r->images, err);
    return status == MAR_OK && rest > 0 ? plan_decoder(r, rest, err) : status;
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
    r->grid = (extent){grid_h, grid_w};
    measure(r);
    r->images = images_at_a_time(r, batch);
    const size_t pixels = pixels_of(image_size(r));
    const size_t host = max_size(3 * pixels, pixels_of(r->grid) * (size_t)d->config.z_channels);
    mar_status status = MAR_OK;
    if (d->encoder && !(r->host = malloc(host * sizeof *r->host)))
        status = err_set(err, MAR_ENOMEM, "out of memory for an image of %zu pixels", pixels);
    if (d->vit) status = vae_vit_pass_create(k, d->vit, grid_h, grid_w, r->images, &r->vit, err);
    if (status != MAR_OK) {
        vae_run_free(r);
        return status;
    }
    *out = r;
    return MAR_OK;
}

void vae_run_free(vae_run *r)
{
    if (!r) return;
    for (int i = 0; i < 2; i++) r->k->core->recording_free(r->k, r->recorded[i].recording);
    vae_vit_pass_free(r->vit);
    free(r->position);
    free(r->host);
    free(r);
}

/* Inverts patchify of models/mar.py, "nhwcpq->nchpwq", with the latents' channels last. */
mar_status vae_run_unpatchify(vae_run *r, int patch, mar_err *err)
{
    const int channels = r->d->config.z_channels, rows = r->grid.height / patch, columns = r->grid.width / patch;
    const size_t count = (size_t)r->images * pixels_of(r->grid) * (size_t)channels;
    if (patch == 1) return MAR_OK;
    int *at = r->position = count > INT_MAX ? NULL : malloc(count * sizeof *at);
    if (!at) return err_set(err, MAR_ENOMEM, "out of memory for the places of %zu numbers", count);
    for (int n = 0; n < r->images; n++)
        for (int h = 0; h < rows; h++)
            for (int w = 0; w < columns; w++)
                for (int c = 0; c < channels; c++)
                    for (int p = 0; p < patch; p++)
                        for (int q = 0; q < patch; q++)
                            *at++ =
                                ((n * r->grid.height + h * patch + p) * r->grid.width + w * patch + q) * channels + c;
    return MAR_OK;
}

double vae_run_flop(const vae_run *r)
{
    return r->flop;
}

/* --- the steps ---------------------------------------------------------------------------------------------------- */

/* Passes the output of a layer to kern_watch; f32: 1 for float, 0 for act. */
static void watch(vae_run *r, const char *step, const char *layer, const void *x, int f32, extent e, int channels)
{
    kern_watch(r->k, x, f32, r->n * e.height * e.width, channels, channels, "%s%s", step, layer);
}

static void norm(vae_run *r, const float *x, extent e, int channels, const vae_norm *n, int silu)
{
    kern_queue *k = r->k;
    k->conv->group_norm(k, x, r->n, e.height * e.width, channels, n->groups, n->weight, n->bias, VAE_EPS, silu, r->a);
}

static void run_residual(vae_run *r, const vae_step *s, extent e)
{
    kern_queue *k = r->k;
    const extent after = size_after(s, e);
    norm(r, r->x, e, s->in, &s->norm[0], 1);
    watch(r, s->name, s->names->norm[0], r->a, 0, e, s->in);
    k->conv->conv(k, s->conv[0], r->a, r->n, e.height, e.width, r->h);
    watch(r, s->name, s->names->conv[0], r->h, 1, after, s->out);
    if (s->shortcut) { /* x becomes shortcut(x), from its copy in a */
        k->core->to_act(k, r->x, (size_t)r->n * pixels_of(e) * (size_t)s->in, r->a);
        k->conv->conv(k, s->shortcut, r->a, r->n, e.height, e.width, r->x);
        watch(r, s->name, s->names->shortcut, r->x, 1, after, s->out);
    }
    norm(r, r->h, after, s->out, &s->norm[1], 1);
    watch(r, s->name, s->names->norm[1], r->a, 0, after, s->out);
    k->conv->conv(k, s->conv[1], r->a, r->n, after.height, after.width, r->x);
    watch(r, s->name, s->names->conv[1], r->x, 1, after, s->out);
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

static void run_resample(vae_run *r, const vae_step *s, extent e)
{
    kern_queue *k = r->k;
    k->core->to_act(k, r->x, (size_t)r->n * pixels_of(e) * (size_t)s->in, r->a);
    k->conv->conv(k, s->conv[0], r->a, r->n, e.height, e.width, r->x);
    watch(r, s->name, s->kind == VAE_UPSAMPLE ? ".upsample.conv" : ".downsample.conv", r->x, 1, size_after(s, e),
          s->out);
}

static void run_step(vae_run *r, const vae_step *s, extent e)
{
    switch (s->kind) {
    case VAE_TRANSFORMER:
        vae_vit_run(r->vit, r->n, r->x, r->h, r->x, s->name);
        break;
    case VAE_RESIDUAL:
    case VAE_DOUBLING:
        run_residual(r, s, e);
        break;
    case VAE_ATTENTION:
        run_attention(r, s, e);
        break;
    case VAE_UPSAMPLE:
    case VAE_DOWNSAMPLE:
        run_resample(r, s, e);
        break;
    }
}

/* Runs the layers of a side on r->stream[0], of size e. The result is in r->h. */
static void run_network(vae_run *r, const vae_network *net, extent e)
{
    kern_queue *k = r->k;
    r->x = r->stream[0], r->h = r->stream[1];
    k->core->to_act(k, r->x, (size_t)r->n * pixels_of(e) * (size_t)net->in, r->a);
    k->conv->conv(k, net->conv_in, r->a, r->n, e.height, e.width, r->x);
    watch(r, net->side, net->ends->conv_in, r->x, 1, e, net->width_in);
    for (int i = 0; i < net->n_steps; i++) {
        run_step(r, &net->steps[i], e);
        e = size_after(&net->steps[i], e);
    }
    norm(r, r->x, e, net->width_out, &net->norm_out, 1);
    watch(r, net->side, net->ends->norm_out, r->a, 0, e, net->width_out);
    k->conv->conv(k, net->conv_out, r->a, r->n, e.height, e.width, r->h);
    watch(r, net->side, net->ends->conv_out, r->h, 1, e, net->out);
}

/* --- decoding ----------------------------------------------------------------------------------------------------- */

/* Decodes the latents in r->stream[0] to pixels in r->h and bytes in r->bytes. */
static void decode(void *arg)
{
    vae_run *r = arg;
    const vae_decoder *d = r->d;
    run_network(r, &d->network, r->grid);
    /* Fits into x: it has 4 bytes per channel of each pixel, and at least VAE_VIT_LAST_GROUPS channels. */
    r->found = (int *)(void *)r->x;
    r->bytes = (uint8_t *)(r->found + r->n);
    r->k->conv->to_bytes(r->k, r->h, r->n, (int)pixels_of(image_size(r)) * 3,
                         d->table || d->vit ? KERN_BYTES_DOWN : KERN_BYTES_NEAREST, r->bytes, r->found);
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
    const int rows = n * (int)pixels_of(r->grid);
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
    watch(r, d->vit ? d->vit->shape.prefix : "", d->vit ? "post_quant_proj" : "post_quant_conv", r->stream[0], 1,
          r->grid, d->latent);
    if (k->watch.on) /* it waits between layers */
        decode(r);
    else
        k->core->replay(k, recording_of(r, n), decode, r);
    return (vae_pictures){n, r->h, r->bytes, r->found};
}

/* --- encoding ----------------------------------------------------------------------------------------------------- */

/* Converts bytes to -1..1, as the official code does: ToTensor, Normalize(0.5, 0.5). */
static void to_floats(const uint8_t *pixels, size_t stride, int channels, extent e, float *y)
{
    for (int i = 0; i < e.height; i++, pixels += stride)
        for (int j = 0; j < e.width; j++)
            for (int c = 0; c < 3; c++) *y++ = (float)pixels[j * channels + c] / 127.5f - 1;
}

/* Returns the codebook row nearest to an encoding of length 1, the first of several, or NaN if none is comparable. The
 * distance is the official one without its constant |z|^2: |row|^2 - 2 row z. A row of zeros can be nearest. */
static float nearest(const float *codebook, int rows, int channels, const float *z)
{
    double least = INFINITY;
    float found = NAN;
    for (int i = 0; i < rows; i++, codebook += channels) {
        double distance = 0;
        for (int c = 0; c < channels; c++) distance += (double)codebook[c] * ((double)codebook[c] - 2 * (double)z[c]);
        if (distance < least) least = distance, found = (float)i;
    }
    return found;
}

/* Downloads the encodings `z` and writes the tokens of their nearest rows. */
static void quantise(vae_run *r, const float *z, float *tokens)
{
    const mar_vae_config *c = &r->d->config;
    const size_t rows = pixels_of(r->grid), channels = (size_t)c->z_channels;
    r->k->core->download(r->k, r->host, z, rows * channels * sizeof *z);
    for (size_t i = 0; i < rows; i++) {
        vae_normalise(r->host + i * channels, c->z_channels, r->host + i * channels);
        tokens[i] = nearest(r->d->codebook, c->codebook, c->z_channels, r->host + i * channels);
    }
}

void vae_encode(vae_run *r, const uint8_t *pixels, size_t stride, int channels, float *tokens)
{
    kern_queue *k = r->k;
    const vae_encoder *encoder = r->d->encoder;
    const extent e = image_size(r);
    const int rows = (int)pixels_of(r->grid), z = r->d->config.z_channels;
    k->watch.part = "";
    r->n = 1;
    to_floats(pixels, stride, channels, e, r->host);
    k->core->upload(k, r->stream[0], r->host, 3 * pixels_of(e) * sizeof *r->host);
    run_network(r, &encoder->network, e);
    k->core->linear(k, encoder->quant, r->h, rows, r->x);
    watch(r, "", "quant_conv", r->x, 1, r->grid, z);
    if (r->d->codebook) {
        quantise(r, r->x, tokens);
        return;
    }
    const float *out = r->x;
    if (r->position) { /* the inverse of vae_decode's */
        k->core->copy_rows(k, r->h, NULL, r->x, r->position, NULL, NULL, rows * z, 1);
        out = r->h;
    }
    k->core->download(k, tokens, out, (size_t)rows * (size_t)z * sizeof *tokens);
}
