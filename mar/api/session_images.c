/* What a session's batch has made: tokens, and pictures. */
#include "mar/api/session.h"

#include <float.h>
#include <math.h>

static mar_status fetch_tokens(mar_session *s, float *tokens)
{
    mar_status status = mar_check_given(tokens, "tokens", &s->err);
    if (status == MAR_OK) status = mar_session_check_finished(s);
    if (status != MAR_OK) return status;
    kern_queue *k = s->k;
    const mar_model_config *c = &s->model->config;
    k->core->enter(k);
    k->core->download(k, tokens, s->model->engine->latents(s->generation),
                      (size_t)s->images * (size_t)c->seq_len * (size_t)c->token_dim * sizeof *tokens);
    k->core->leave(k);
    status = kern_check(k, &s->err);
    return status == MAR_OK ? MAR_OK : mar_session_stop_reading(s, status);
}

mar_status mar_session_tokens(mar_session *s, float *tokens)
{
    const mar_status status = mar_session_enter(s);
    return status == MAR_OK ? mar_session_leave(s, fetch_tokens(s, tokens)) : status;
}

void mar_session_image_size(const mar_session *s, int *width, int *height)
{
    const int side = s && s->vae ? s->grid * mar_vae_get_config(s->vae)->stride : 0;
    if (width) *width = side;
    if (height) *height = side;
}

/* What frames the work on images, whose time counts. */
static double work(mar_session *s)
{
    s->k->core->enter(s->k);
    s->k->core->lap(s->k, NULL);
    return mar_now();
}

static void pause_work(mar_session *s, double begun)
{
    s->k->core->lap(s->k, &s->vae_s);
    s->total_s += mar_now() - begun;
    s->k->core->leave(s->k);
}

/* Decodes images from number `first` on, as many at a time as the decoder takes, if there are any; they are complete
 * when they are downloaded. */
static vae_pictures decode(mar_session *s, int first)
{
    const size_t count = (size_t)s->model->config.seq_len * (size_t)s->model->config.token_dim;
    const int left = s->images - first, most = vae_run_images(s->decoder), n = left < most ? left : most;
    if (n <= 0) return (vae_pictures){0};
    s->vae_flop += n * vae_run_flop(s->decoder);
    return vae_decode(s->decoder, s->model->engine->latents(s->generation) + (size_t)first * count, n);
}

/* Downloads the pictures to rgb, and what was found in them to s->found. */
static mar_status fetch(mar_session *s, const vae_pictures *p, size_t bytes, uint8_t *rgb)
{
    kern_queue *k = s->k;
    k->core->download(k, s->found, p->found, (size_t)p->n * sizeof *s->found);
    k->core->download(k, rgb, p->bytes, (size_t)p->n * bytes);
    return kern_check(k, &s->err);
}

/* Whether image i of those fetched is a picture. */
static int is_picture(const mar_session *s, int i)
{
    return s->found[i] == KERN_PIXELS_WITHIN;
}

/* The reason that image i, whose value `at` in s->pixels is not finite, is none. */
static mar_status refuse_pixel(mar_session *s, int i, size_t at)
{
    int width, height;
    char layer[MAR_LAYER_TEXT];
    mar_session_image_size(s, &width, &height);
    return err_set(&s->err, MAR_EMODEL, "image %llu: the image decoder's output is %s at pixel (%d, %d)%s",
                   (unsigned long long)s->first_image + (unsigned long long)i, mar_not_finite(s->pixels[at]),
                   (int)(at / 3) % width, (int)(at / 3) / width, mar_layer_text(s->k, layer));
}

/* What finite weights can come to that are out of all proportion: a picture that would be black, or white. */
static mar_status refuse_clipped(mar_session *s, int i)
{
    return err_set(&s->err, MAR_EMODEL,
                   "image %llu: no value of the image decoder's output is between -1 and 1 (the first is %g), so the "
                   "picture would be blank: expected weights that make a picture",
                   (unsigned long long)s->first_image + (unsigned long long)i, (double)s->pixels[0]);
}

/* The reason that image i, which has these pixels on the device and is no picture, is none. */
static mar_status refuse_image(mar_session *s, int i, const float *pixels, size_t count)
{
    kern_queue *k = s->k;
    k->core->download(k, s->pixels, pixels, count * sizeof *pixels);
    const mar_status status = kern_check(k, &s->err);
    if (status != MAR_OK) return status;
    for (size_t at = 0; at < count; at++)
        if (!(fabsf(s->pixels[at]) <= FLT_MAX)) return refuse_pixel(s, i, at);
    return refuse_clipped(s, i);
}

/* Counts one more image as decoded, and tells the host. The work that began at *begun is paused meanwhile. Where the
 * host has forked there, it is not taken up again: *begun is negative then. */
static mar_status count_image(mar_session *s, double *begun)
{
    s->decoded++;
    if (!s->progress) return MAR_OK;
    pause_work(s, *begun);
    *begun = -1;
    const mar_status status = mar_session_report(s);
    if (status != MAR_OK) return status;
    *begun = work(s);
    return kern_check(s->k, &s->err); /* whether it was cancelled there */
}

static mar_status decode_all(mar_session *s, uint8_t *rgb)
{
    int width, height;
    mar_session_image_size(s, &width, &height);
    const size_t count = (size_t)width * (size_t)height * 3;
    double begun = work(s);
    mar_status status = MAR_OK;
    vae_pictures now = decode(s, 0);
    while (status == MAR_OK && now.n > 0) {
        const int first = s->decoded;
        int good = 0;
        status = fetch(s, &now, count, rgb + (size_t)first * count);
        if (status != MAR_OK) break;
        while (good < now.n && is_picture(s, good)) good++;
        const vae_pictures fetched = now;
        /* A device that works on when a call returns has the next ones while the host is told of these. */
        const int ahead = s->k->device->asynchronous && good == now.n;
        if (ahead) now = decode(s, first + now.n);
        for (int i = 0; status == MAR_OK && i < good; i++) status = count_image(s, &begun);
        if (status == MAR_OK && good < fetched.n)
            status = refuse_image(s, first + good, fetched.pixels + (size_t)good * count, count);
        if (status == MAR_OK && !ahead) now = decode(s, first + fetched.n);
    }
    if (begun >= 0) pause_work(s, begun);
    return status;
}

static mar_status fetch_images(mar_session *s, uint8_t *rgb)
{
    mar_status status = mar_check_given(rgb, "rgb", &s->err);
    if (status == MAR_OK) status = mar_session_check_finished(s);
    if (status != MAR_OK) return status;
    if (!s->vae) return err_set(&s->err, MAR_EARG, "the session has no VAE: only tokens can be had");
    s->decoded = 0;
    status = decode_all(s, rgb);
    if (mar_session_is_usable(s)) mar_session_tell_unrecorded(s);
    return status == MAR_OK ? MAR_OK : mar_session_stop_reading(s, status);
}

mar_status mar_session_images(mar_session *s, uint8_t *rgb)
{
    const mar_status status = mar_session_enter(s);
    return status == MAR_OK ? mar_session_leave(s, fetch_images(s, rgb)) : status;
}

/* MAR_EARG if a token cannot be one of the model's. */
static mar_status check_tokens(mar_session *s, const float *tokens, size_t count)
{
    const int vocabulary = s->model->config.vocabulary;
    for (size_t i = 0; i < count; i++) {
        const float x = tokens[i];
        if (vocabulary ? x >= 0 && x < (float)vocabulary && x == floorf(x) : fabsf(x) <= FLT_MAX) continue;
        return err_set(&s->err, MAR_EARG, "number %zu of the tokens is %g, expected %s", i, (double)x,
                       vocabulary ? "one of the vocabulary" : "a finite one");
    }
    return MAR_OK;
}

/* The tokens take the place of the batch's. */
static mar_status put_tokens(mar_session *s, uint64_t first_image, const float *tokens, int n, size_t count)
{
    kern_queue *k = s->k;
    __atomic_store_n(&s->cancel, 0, __ATOMIC_RELAXED);
    s->images = n;
    s->first_image = first_image;
    s->decoded = s->measured = 0;
    s->dropped = MAR_EARG;
    err_set(&s->why, MAR_EARG, "the session has decoded other tokens");
    s->total_s = s->vae_s = s->vae_flop = 0;
    k->core->enter(k);
    mar_status status = mar_session_prepare(s, n);
    /* The engine's own memory, which it lets the image decoder read only. */
    float *latents = (float *)(uintptr_t)s->model->engine->latents(s->generation);
    if (status == MAR_OK) k->core->upload(k, latents, tokens, count * sizeof *tokens);
    if (status == MAR_OK) status = kern_check(k, &s->err);
    k->core->leave(k);
    return status;
}

static mar_status decode_given(mar_session *s, uint64_t first_image, const float *tokens, int n, uint8_t *rgb)
{
    const size_t image = (size_t)s->model->config.seq_len * (size_t)s->model->config.token_dim;
    mar_status status = mar_check_given(tokens, "tokens", &s->err);
    if (status == MAR_OK) status = mar_check_given(rgb, "rgb", &s->err);
    if (status != MAR_OK) return status;
    if (!s->vae) return err_set(&s->err, MAR_EARG, "the session has no VAE, which decodes tokens");
    if (n < 1 || n > s->max_images)
        return err_set(&s->err, MAR_EARG, "%d images: expected 1..%d, the session's batch", n, s->max_images);
    status = check_tokens(s, tokens, (size_t)n * image);
    if (status != MAR_OK) return status;
    status = put_tokens(s, first_image, tokens, n, (size_t)n * image);
    if (status == MAR_OK) status = decode_all(s, rgb);
    return status == MAR_OK ? MAR_OK : mar_session_drop(s, status);
}

mar_status mar_session_decode(mar_session *s, uint64_t first_image, const float *tokens, int n, uint8_t *rgb)
{
    const mar_status status = mar_session_enter(s);
    return status == MAR_OK ? mar_session_leave(s, decode_given(s, first_image, tokens, n, rgb)) : status;
}
