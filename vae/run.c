/* Decodes and encodes images: executes the list of steps with three buffers. Decodes as many images at a time as the
 * device allows, and encodes one. An image that would need too much memory is decoded in bands. */
#include "vae/bands.h"

#include "base/arena.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

struct vae_run {
    kern_queue *k;
    const vae_decoder *d;
    int images;           /* most images decoded at a time */
    float *stream[2];     /* [images] buffers of x and h */
    vae_vit_pass *vit[2]; /* of the decoder, and of the encoder; NULL: no ViT */
    vae_pass p;           /* state of a call; its grid is the tokens' */
    float *latent;        /* Emu3: [2][images][pixels][z_channels] latents, then codebook rows; else NULL */
    vae_sizes sizes;      /* of an image */
    vae_bands *bands;     /* NULL: all steps run on whole images */
    float *host;          /* [pixels][3] input of the encoder, or its result for a VQ decoder; NULL without encoder */
    /* [images][pixels][z_channels] position in the latents of each number of the tokens; NULL: unchanged. */
    int *position;

    /* Recordings of `decode`: for `images` images, and for the last other number, a batch's rest. */
    struct {
        int images;
        kern_recording *recording;
    } recorded[2];

    /* Results of a call. */
    float *pixels;  /* [n][pixels][3] */
    uint8_t *bytes; /* [n][pixels][3] */
    int *found;     /* [n] KERN_PIXELS_* of each, in front of bytes */
};

/* Returns the size of the images. */
static vae_extent image_size(const vae_run *r)
{
    const int stride = r->d->config.stride;
    return (vae_extent){r->p.grid.height * stride, r->p.grid.width * stride};
}

static size_t run_max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Returns the bytes of an image's pixels, rounded, and of its flags. */
static size_t result_bytes(const vae_run *r)
{
    return 3 * vae_pixels(image_size(r)) + sizeof(int);
}

/* Decides which steps are to run in bands, if an image's memory is to be at most `limit` bytes. */
static mar_status run_divide(vae_run *r, size_t limit, mar_err *err)
{
    const vae_decoder *d = r->d;
    const size_t latents = 2 * sizeof(float) * vae_pixels(r->p.grid) * (size_t)d->config.z_channels;
    const size_t others = result_bytes(r) + (d->temporal ? latents : 0) + 1024; /* and what rounding adds */
    vae_bands_free(r->bands);
    r->bands = NULL;
    if (d->encoder) return MAR_OK; /* it encodes whole images */
    return vae_bands_create(&r->p, d, limit > others ? limit - others : 0, &r->bands, err);
}

static void run_measure(vae_run *r)
{
    const vae_decoder *d = r->d;
    const vae_network *net = &d->network;
    const size_t tokens = vae_pixels(r->p.grid), latent = tokens * (size_t)d->config.z_channels;
    r->sizes = (vae_sizes){.stream = latent * sizeof(float)};
    vae_measure(r->k, net, d->vit, r->p.grid, net->n_steps, r->p.grid, &r->sizes);
    r->sizes.flop += d->table ? 0 : 2.0 * (double)latent * d->latent;
    if (d->temporal) r->sizes.flop += vae_temporal_flop(d->temporal, tokens);
    const double flop = r->sizes.flop;
    if (d->encoder)
        vae_measure(r->k, &d->encoder->network, d->encoder->vit, r->p.grid, d->encoder->network.n_steps, image_size(r),
                    &r->sizes);
    r->sizes.flop = flop; /* of decoding */
}

/* --- preparation -------------------------------------------------------------------------------------------------- */

static mar_status plan_decoder(vae_run *r, int n, mar_err *err)
{
    const vae_decoder *d = r->d;
    const vae_network *net = &d->network;
    kern_queue *k = r->k;
    mar_status status = MAR_OK;
    r->p.vit = r->vit[0];
    if (!d->table) status = k->core->linear_plan(k, d->post_quant, n * (int)vae_pixels(r->p.grid), err);
    if (status == MAR_OK && d->temporal) status = vae_temporal_plan(k, d->temporal, 2 * n, r->p.grid, err);
    const int whole = r->bands ? vae_bands_first(r->bands) : net->n_steps;
    if (status == MAR_OK) status = vae_plan(&r->p, net, n, whole, r->p.grid, err);
    return status == MAR_OK && r->bands ? vae_bands_plan(r->bands, &r->p, err) : status;
}

static mar_status plan_encoder(vae_run *r, mar_err *err)
{
    const vae_encoder *encoder = r->d->encoder;
    if (!encoder) return MAR_OK;
    r->p.vit = r->vit[1];
    const mar_status status = r->k->core->linear_plan(r->k, encoder->quant, (int)vae_pixels(r->p.grid), err);
    return status == MAR_OK ? vae_plan(&r->p, &encoder->network, 1, encoder->network.n_steps, image_size(r), err)
                            : status;
}

mar_status vae_run_plan(vae_run *r, int images, mar_err *err)
{
    const int rest = images % r->images;
    mar_status status = plan_encoder(r, err);
    if (status == MAR_OK && images >= r->images) status = plan_decoder(r, r->images, err);
    return status == MAR_OK && rest > 0 ? plan_decoder(r, rest, err) : status;
}

/* Returns the number of images that fit the device's budget, at least one, or one while layers are searched. */
static int run_images_at_a_time(const vae_run *r, int batch)
{
    const size_t fit = r->k->device->image_budget / (2 * r->sizes.stream + r->sizes.act + r->sizes.cells);
    return r->bands || fit < 1 || r->k->watch.on ? 1 : fit < (size_t)batch ? (int)fit : batch;
}

int vae_run_images(const vae_run *r)
{
    return r->images;
}

size_t vae_run_lay_out(vae_run *r, char *base)
{
    const size_t n = (size_t)r->images, latent = vae_pixels(r->p.grid) * (size_t)r->d->config.z_channels;
    size_t used = 0;
    if (r->bands) {
        used = vae_bands_lay_out(r->bands, base);
        vae_bands_whole(r->bands, &r->p);
        r->stream[0] = r->p.x, r->stream[1] = r->p.h;
        r->found = arena_carve(base, &used, n, result_bytes(r));
    } else {
        r->stream[0] = arena_carve(base, &used, n, r->sizes.stream);
        r->stream[1] = arena_carve(base, &used, n, r->sizes.stream);
        r->p.a = arena_carve(base, &used, n, r->sizes.act);
        r->p.cells = arena_carve(base, &used, n, r->sizes.cells);
        r->found = (int *)(void *)r->stream[0]; /* it has 4 bytes per channel of a pixel, at least 3 channels */
    }
    r->latent = r->d->temporal ? arena_carve(base, &used, 2 * n, latent * sizeof(float)) : NULL;
    return used;
}

mar_status vae_run_create(kern_queue *k, const vae_decoder *d, int grid_h, int grid_w, int batch, size_t memory,
                          vae_run **out, mar_err *err)
{
    *out = NULL;
    const int longest = 16384 / d->config.stride; /* far below sizes that overflow */
    if (grid_h < 1 || grid_w < 1 || grid_h > longest || grid_w > longest)
        return err_set(err, MAR_EARG, "latent grid %dx%d: expected 1..%d by 1..%d", grid_h, grid_w, longest, longest);
    const int norm = d->encoder && d->config.norm ? d->config.norm : 1;
    if (grid_h % norm || grid_w % norm)
        return err_set(err, MAR_EMODEL,
                       "latent grid %dx%d: the encoder normalises %dx%d latents together, expected a "
                       "multiple",
                       grid_h, grid_w, norm, norm);
    vae_run *r = calloc(1, sizeof *r);
    if (!r) return err_set(err, MAR_ENOMEM, "out of memory");
    r->k = k;
    r->d = d;
    r->p = (vae_pass){.k = k, .grid = {grid_h, grid_w}, .z = d->config.z_channels};
    run_measure(r);
    mar_status status = run_divide(r, memory, err);
    r->images = run_images_at_a_time(r, batch);
    const size_t pixels = vae_pixels(image_size(r));
    const size_t host = run_max_size(3 * pixels, vae_pixels(r->p.grid) * (size_t)d->config.z_channels);
    if (status == MAR_OK && d->encoder && !(r->host = malloc(host * sizeof *r->host)))
        status = err_set(err, MAR_ENOMEM, "out of memory for an image of %zu pixels", pixels);
    if (status == MAR_OK && d->vit) status = vae_vit_pass_create(k, d->vit, grid_h, grid_w, r->images, &r->vit[0], err);
    if (status == MAR_OK && d->encoder && d->encoder->vit)
        status = vae_vit_pass_create(k, d->encoder->vit, grid_h, grid_w, 1, &r->vit[1], err);
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
    for (int i = 0; i < 2; i++) vae_vit_pass_free(r->vit[i]);
    vae_bands_free(r->bands);
    free(r->position);
    free(r->host);
    free(r);
}

/* Inverts patchify of models/mar.py, "nhwcpq->nchpwq", with the latents' channels last. */
mar_status vae_run_unpatchify(vae_run *r, int patch, mar_err *err)
{
    const int channels = r->d->config.z_channels, rows = r->p.grid.height / patch, columns = r->p.grid.width / patch;
    const size_t count = (size_t)r->images * vae_pixels(r->p.grid) * (size_t)channels;
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
                                ((n * r->p.grid.height + h * patch + p) * r->p.grid.width + w * patch + q) * channels +
                                c;
    return MAR_OK;
}

double vae_run_flop(const vae_run *r)
{
    return r->sizes.flop;
}

/* --- decoding ----------------------------------------------------------------------------------------------------- */

/* Sets the buffers of a call that runs whole images. */
static vae_pass *run_begin(vae_run *r, int n)
{
    r->k->watch.part = "";
    r->p.n = n;
    r->p.x = r->stream[0], r->p.h = r->stream[1];
    r->p.vit = r->vit[0];
    return &r->p;
}

/* Decodes the latents in r->stream[0] to r->pixels and r->bytes. */
static void run_decode(void *arg)
{
    vae_run *r = arg;
    const vae_decoder *d = r->d;
    const vae_network *net = &d->network;
    vae_pass *p = run_begin(r, r->p.n);
    if (d->temporal) {
        vae_temporal_run(p, d->temporal, r->latent);
        p->k->core->copy_rows(p->k, p->x, NULL, r->latent, NULL, NULL, NULL, p->n * (int)vae_pixels(p->grid),
                              d->latent);
        p->zq = r->latent + (size_t)p->n * vae_pixels(p->grid) * (size_t)d->latent;
    }
    if (r->bands) {
        vae_pass_steps(p, net, vae_bands_first(r->bands), p->grid);
        r->pixels = vae_bands_run(r->bands, p);
    } else {
        vae_pass_end(p, net, vae_pass_steps(p, net, net->n_steps, p->grid));
        r->pixels = p->h;
    }
    r->bytes = (uint8_t *)(r->found + p->n);
    r->k->conv->to_bytes(r->k, r->pixels, p->n, (int)vae_pixels(image_size(r)) * 3,
                         d->vit ? d->vit->shape.names->bytes : d->names->bytes, r->bytes, r->found);
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
    const int rows = n * (int)vae_pixels(r->p.grid);
    vae_pass *p = run_begin(r, n);
    if (r->position) { /* the second stream is free until the first residual block */
        k->core->copy_rows(k, r->stream[1], r->position, tokens, NULL, NULL, NULL, rows * d->config.z_channels, 1);
        tokens = r->stream[1];
    }
    if (d->temporal) { /* decode brings the latents to the first stream */
        k->core->look_up(k, d->table, d->config.codebook, d->latent, tokens, rows, r->latent);
        k->core->look_up(k, d->rows, d->config.codebook, d->latent, tokens, rows,
                         r->latent + (size_t)rows * (size_t)d->latent);
    } else if (d->table)
        k->core->look_up(k, d->table, d->config.codebook, d->latent, tokens, rows, r->stream[0]);
    else
        k->core->linear(k, d->post_quant, tokens, rows, r->stream[0]);
    const vae_vit_shape *vit = d->vit ? &d->vit->shape : NULL;
    vae_watch(p, vit ? vit->prefix : "",
              !vit         ? d->names->post_quant ? d->names->post_quant : "latents"
              : vit->patch ? "decoder.decoder_embed"
                           : "post_quant_proj",
              d->temporal ? r->latent : r->stream[0], 1, p->grid, d->latent);
    if (k->watch.on) /* it waits between layers */
        run_decode(r);
    else
        k->core->replay(k, recording_of(r, n), run_decode, r);
    return (vae_pictures){n, r->pixels, r->bytes, r->found};
}

/* --- encoding ----------------------------------------------------------------------------------------------------- */

/* Converts bytes to -1..1, as the official code does: ToTensor, Normalize(0.5, 0.5). */
static void to_floats(const uint8_t *pixels, size_t stride, int channels, vae_extent e, float *y)
{
    for (int i = 0; i < e.height; i++, pixels += stride)
        for (int j = 0; j < e.width; j++)
            for (int c = 0; c < 3; c++) *y++ = (float)pixels[j * channels + c] / 127.5f - 1;
}

/* Returns the codebook row nearest to an encoding in the codebook's form, the first of several, or NaN if none is
 * comparable. The distance is the official one without its constant |z|^2: |row|^2 - 2 row z. A row of zeros can be
 * nearest. */
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
    const size_t rows = vae_pixels(r->p.grid), channels = (size_t)c->z_channels;
    r->k->core->download(r->k, r->host, z, rows * channels * sizeof *z);
    for (size_t i = 0; i < rows; i++) {
        vae_to_codebook(r->d, r->host + i * channels, r->host + i * channels);
        tokens[i] = nearest(r->d->codebook, c->codebook, c->z_channels, r->host + i * channels);
    }
}

/* Makes tokens of a patch of latents whose rows are `columns` latents apart: a layer norm without weights over all its
 * numbers, then shift and scale. */
static void normalise_patch(const mar_vae_config *c, int columns, float *x)
{
    const int run = c->norm * c->z_channels, stride = columns * c->z_channels, n = c->norm * run;
    double sum = 0, square = 0;
    for (int i = 0; i < n; i++) sum += (double)x[i / run * stride + i % run];
    for (int i = 0; i < n; i++) square += pow((double)x[i / run * stride + i % run] - sum / n, 2);
    const double factor = 1 / sqrt(square / n + (double)VAE_EPS);
    for (int i = 0; i < n; i++) {
        float *y = &x[i / run * stride + i % run];
        *y = (float)((((double)*y - sum / n) * factor - (double)c->shift) * (double)c->scale);
    }
}

/* Makes tokens of an image's latents in the backend's memory, in place. */
static void normalise(vae_run *r, float *latents)
{
    const mar_vae_config *c = &r->d->config;
    const vae_extent grid = r->p.grid;
    const size_t bytes = vae_pixels(grid) * (size_t)c->z_channels * sizeof *latents;
    r->k->core->download(r->k, r->host, latents, bytes);
    for (int i = 0; i < grid.height; i += c->norm)
        for (int j = 0; j < grid.width; j += c->norm)
            normalise_patch(c, grid.width, r->host + (size_t)(i * grid.width + j) * (size_t)c->z_channels);
    r->k->core->upload(r->k, latents, r->host, bytes);
}

void vae_encode(vae_run *r, const uint8_t *pixels, size_t stride, int channels, float *tokens)
{
    kern_queue *k = r->k;
    const vae_encoder *encoder = r->d->encoder;
    const vae_extent e = image_size(r);
    const int rows = (int)vae_pixels(r->p.grid), z = r->d->config.z_channels;
    vae_pass *p = run_begin(r, 1);
    p->vit = r->vit[1];
    to_floats(pixels, stride, channels, e, r->host);
    k->core->upload(k, p->x, r->host, 3 * vae_pixels(e) * sizeof *r->host);
    vae_pass_end(p, &encoder->network, vae_pass_steps(p, &encoder->network, encoder->network.n_steps, e));
    k->core->linear(k, encoder->quant, p->h, rows, p->x);
    const vae_vit *vit = encoder->vit;
    vae_watch(p, vit ? vit->shape.prefix : "",
              !vit               ? r->d->names->post_quant ? "quant_conv" : "latents"
              : vit->shape.patch ? "encoder.latent_head"
                                 : "quant_proj",
              p->x, 1, p->grid, z);
    if (r->d->config.norm) normalise(r, p->x);
    if (r->d->codebook) {
        quantise(r, p->x, tokens);
        return;
    }
    const float *out = p->x;
    if (r->position) { /* the inverse of vae_decode's */
        k->core->copy_rows(k, p->h, NULL, p->x, r->position, NULL, NULL, rows * z, 1);
        out = p->h;
    }
    k->core->download(k, tokens, out, (size_t)rows * (size_t)z * sizeof *tokens);
}
