/* Pixels: decoding a batch's images, one image's tokens, and what a host gets of them (mar/api/session.h). */
#include "mar/api/session.h"

#include "mar/core/sized.h"
#include "mar/core/vae.h"

#include <float.h>
#include <math.h>
#include <string.h>

static mar_status pictures_refuse_no_vae(mar_session *s)
{
    return err_set(&s->err, MAR_EARG, "the session has no VAE: only tokens can be had");
}

/* Returns the start time of work on images. */
static double pictures_work(mar_session *s)
{
    const double begun = mar_now(); /* before the mark: total_s contains vae_s */
    s->k->core->bind(s->k);
    s->k->core->timer_mark(s->k, NULL);
    return begun;
}

static void pause_work(mar_session *s, double begun)
{
    s->k->core->timer_mark(s->k, &s->vae_s);
    s->total_s += mar_now() - begun;
    s->k->core->unbind(s->k);
}

/* Decodes as many images from number `first` on as the decoder takes, if any are left. They are complete once they are
 * downloaded. */
static vae_pictures pictures_decode(mar_session *s, int first)
{
    const int left = s->images - first, most = vae_run_images(s->decoder), n = left < most ? left : most;
    if (n <= 0) return (vae_pictures){0};
    s->vae_flop += n * vae_run_flop(s->decoder);
    return vae_decode(s->decoder,
                      s->model->engine->latents(s->engine_state) + (size_t)first * mar_session_token_count(s), n);
}

/* Downloads the pictures to rgb, and their flags to s->found. */
static mar_status fetch(mar_session *s, const vae_pictures *p, size_t bytes, uint8_t *rgb)
{
    kern_queue *k = s->k;
    k->core->download(k, s->found, p->found, (size_t)p->n * sizeof *s->found);
    k->core->download(k, rgb, p->bytes, (size_t)p->n * bytes);
    return kern_check(k, &s->err);
}

/* Returns whether image i of those fetched is valid. */
static int pictures_is_picture(const mar_session *s, int i)
{
    return s->found[i] == KERN_PIXELS_WITHIN;
}

/* Rejects an image whose value `at` in s->pixels is not finite. */
static mar_status refuse_pixel(mar_session *s, uint64_t number, size_t at)
{
    int width, height;
    char layer[MAR_LAYER_TEXT];
    mar_session_image_size(s, &width, &height);
    return err_set(&s->err, MAR_EMODEL, "image %llu: the image decoder's output is %s at pixel (%d, %d)%s",
                   (unsigned long long)number, mar_not_finite(s->pixels[at]), (int)(at / 3) % width,
                   (int)(at / 3) / width, mar_layer_text(s->k, layer));
}

/* Rejects an image whose finite values are far out of range: it would be black or white. */
static mar_status refuse_clipped(mar_session *s, uint64_t number)
{
    return err_set(&s->err, MAR_EMODEL,
                   "image %llu: no value of the image decoder's output is between -1 and 1 (the first is %g), so the "
                   "picture would be blank: expected weights that make a picture",
                   (unsigned long long)number, (double)s->pixels[0]);
}

/* Rejects an image whose pixels on the device are invalid, with the reason. */
static mar_status refuse_image(mar_session *s, uint64_t number, const float *pixels, size_t count)
{
    kern_queue *k = s->k;
    k->core->download(k, s->pixels, pixels, count * sizeof *pixels);
    const mar_status status = kern_check(k, &s->err);
    if (status != MAR_OK) return status;
    for (size_t at = 0; at < count; at++)
        if (!(fabsf(s->pixels[at]) <= FLT_MAX)) return refuse_pixel(s, number, at);
    return refuse_clipped(s, number);
}

/* Counts one more decoded image and calls the host. The clock that began at *begun pauses meanwhile. If the host has
 * forked there, the clock stays stopped: *begun is negative. */
static mar_status count_image(mar_session *s, double *begun)
{
    s->decoded++;
    if (!s->progress) return MAR_OK;
    pause_work(s, *begun);
    *begun = -1;
    const mar_status status = mar_session_report(s);
    if (status != MAR_OK) return status;
    *begun = pictures_work(s);
    return kern_check(s->k, &s->err); /* the callback may have cancelled */
}

static mar_status decode_all(mar_session *s, uint8_t *rgb)
{
    int width, height;
    mar_session_image_size(s, &width, &height);
    const size_t count = (size_t)width * (size_t)height * 3;
    double begun = pictures_work(s);
    mar_status status = MAR_OK;
    vae_pictures now = pictures_decode(s, 0);
    while (status == MAR_OK && now.n > 0) {
        const int first = s->decoded;
        int good = 0;
        status = fetch(s, &now, count, rgb + (size_t)first * count);
        if (status != MAR_OK) break;
        while (good < now.n && pictures_is_picture(s, good)) good++;
        const vae_pictures fetched = now;
        /* An asynchronous device decodes the next images while the host receives these. */
        const int ahead = s->k->device->asynchronous && good == now.n;
        if (ahead) now = pictures_decode(s, first + now.n);
        for (int i = 0; status == MAR_OK && i < good; i++) status = count_image(s, &begun);
        if (status == MAR_OK && good < fetched.n)
            status = refuse_image(s, s->first_image + (uint64_t)(first + good), fetched.pixels + (size_t)good * count,
                                  count);
        if (status == MAR_OK && !ahead) now = pictures_decode(s, first + fetched.n);
    }
    if (begun >= 0) pause_work(s, begun);
    return status;
}

static mar_status fetch_images(mar_session *s, uint8_t *rgb)
{
    mar_status status = mar_check_given(rgb, "rgb", &s->err);
    if (status == MAR_OK) status = mar_session_check_finished(s);
    if (status != MAR_OK) return status;
    if (!s->vae) return pictures_refuse_no_vae(s);
    s->decoded = 0;
    status = decode_all(s, rgb);
    if (mar_session_is_usable(s)) mar_session_log_unrecorded(s);
    return status == MAR_OK ? MAR_OK : mar_session_stop_reading(s, status);
}

mar_status mar_session_images(mar_session *s, uint8_t *rgb)
{
    const mar_status status = mar_session_enter(s);
    return status == MAR_OK ? mar_session_leave(s, fetch_images(s, rgb)) : status;
}

/* --- one image in the host's format ------------------------------------------------------------------------------- */

enum { GREY = 128 }; /* cells of unknown tokens */

void mar_pixels_init(mar_pixels *pixels, size_t size)
{
    mar_sized_init(pixels, size, &(const mar_pixels){0}, sizeof *pixels);
}

static size_t pictures_pixel_bytes(mar_pixel_format format)
{
    return format == MAR_PIXELS_RGB_F32 ? 3 * sizeof(float) : format == MAR_PIXELS_RGBA8 ? 4 : 3;
}

static mar_status pictures_read_pixels(mar_session *s, const mar_pixels *given, mar_pixels *out)
{
    int width, height;
    mar_session_image_size(s, &width, &height);
    *out = (mar_pixels){.size = sizeof *out};
    mar_status status = mar_sized_read(given, out, sizeof *out, "mar_pixels", &s->err);
    if (status == MAR_OK) status = mar_check_given(out->data, "mar_pixels.data", &s->err);
    if (status == MAR_OK && !s->vae) status = pictures_refuse_no_vae(s);
    if (status != MAR_OK) return status;
    if (out->format < MAR_PIXELS_RGB8 || out->format > MAR_PIXELS_RGB_F32)
        return err_set(&s->err, MAR_EARG, "mar_pixels.format %d: expected a mar_pixel_format", (int)out->format);
    const size_t row = (size_t)width * pictures_pixel_bytes(out->format), rows = (size_t)height;
    if (out->stride == 0) out->stride = row;
    if (out->stride < row || (out->format == MAR_PIXELS_RGB_F32 && out->stride % sizeof(float)))
        return err_set(&s->err, MAR_EARG, "mar_pixels.stride %zu: expected %zu bytes a row, or more%s", out->stride,
                       row, out->format == MAR_PIXELS_RGB_F32 ? ", in whole floats" : "");
    if (out->capacity < row || (out->capacity - row) / out->stride < rows - 1)
        return err_set(&s->err, MAR_EARG, "mar_pixels.capacity %zu: too few bytes for %zu rows of %zu", out->capacity,
                       rows, out->stride);
    return MAR_OK;
}

/* Returns whether the pixel lies in the cell of a known token. known NULL: all are. */
static int pictures_is_known(const mar_session *s, const uint8_t *known, int width, int x, int y)
{
    if (!known) return 1;
    const int columns = mar_grid_columns(&s->model->config), cell = width / columns; /* a cell is square */
    return known[y / cell * columns + x / cell];
}

/* Copies the image in s->bytes, or s->pixels, to the host's. */
static void write_pixels(const mar_session *s, const uint8_t *known, const mar_pixels *out)
{
    int width, height;
    mar_session_image_size(s, &width, &height);
    for (int y = 0; y < height; y++) {
        uint8_t *row = (uint8_t *)out->data + (size_t)y * out->stride;
        float *numbers = (float *)(void *)row; /* aligned, as the host's array is */
        for (int x = 0; x < width; x++) {
            const size_t at = 3 * ((size_t)y * (size_t)width + (size_t)x), step = pictures_pixel_bytes(out->format);
            const int shown = pictures_is_known(s, known, width, x, y);
            for (size_t c = 0; c < 3 && out->format == MAR_PIXELS_RGB_F32; c++)
                numbers[3 * (size_t)x + c] = shown ? (s->pixels[at + c] + 1) / 2 : (float)GREY / 255;
            for (size_t c = 0; c < 3 && out->format != MAR_PIXELS_RGB_F32; c++)
                row[step * (size_t)x + c] = shown ? s->bytes[at + c] : GREY;
            if (out->format == MAR_PIXELS_RGBA8) row[step * (size_t)x + 3] = shown ? 255 : 0;
        }
    }
}

/* Decodes an image's tokens on the backend to s->bytes, and to s->pixels for floats. */
static mar_status decode_image(mar_session *s, uint64_t number, const float *latents, int floats)
{
    int width, height;
    kern_queue *k = s->k;
    mar_session_image_size(s, &width, &height);
    const size_t count = (size_t)width * (size_t)height * 3;
    const kern_watching kept = k->watch; /* a search among the steps' layers goes on afterwards */
    kern_watch_begin(k);
    const vae_pictures p = vae_decode(s->decoder, latents, 1);
    s->vae_flop += vae_run_flop(s->decoder);
    mar_status status = fetch(s, &p, count, s->bytes);
    if (status == MAR_OK && !pictures_is_picture(s, 0)) status = refuse_image(s, number, p.pixels, count);
    if (status == MAR_OK && floats) k->core->download(k, s->pixels, p.pixels, count * sizeof *s->pixels);
    k->watch = kept;
    return status == MAR_OK ? kern_check(k, &s->err) : status;
}

mar_status mar_session_decode_one(mar_session *s, uint64_t number, const float *tokens, const uint8_t *known,
                                  const mar_pixels *pixels)
{
    mar_pixels out;
    kern_queue *k = s->k;
    mar_status status = pictures_read_pixels(s, pixels, &out);
    if (status != MAR_OK) return status;
    const double begun = pictures_work(s);
    const int idle = mar_session_is_idle(s); /* else a failure of the queue is that of images in progress */
    if (idle && kern_check(k, NULL) != MAR_OK) k->core->recover(k);
    k->core->upload(k, s->latents, tokens, mar_session_token_count(s) * sizeof *tokens);
    status = decode_image(s, number, s->latents, out.format == MAR_PIXELS_RGB_F32);
    pause_work(s, begun);
    if (status == MAR_OK) write_pixels(s, known, &out);
    return idle && status == MAR_ECANCELLED ? mar_session_stop_reading(s, status) : status;
}

static mar_status fetch_image(mar_session *s, int i, const mar_pixels *pixels)
{
    mar_pixels out;
    mar_status status = mar_session_check_finished(s);
    if (status == MAR_OK && (i < 0 || i >= s->images))
        status = err_set(&s->err, MAR_EARG, "image %d: expected 0..%d, one of the batch", i, s->images - 1);
    if (status == MAR_OK) status = pictures_read_pixels(s, pixels, &out);
    if (status != MAR_OK) return status;
    const double begun = pictures_work(s);
    status = decode_image(s, s->first_image + (uint64_t)i,
                          s->model->engine->latents(s->engine_state) + (size_t)i * mar_session_token_count(s),
                          out.format == MAR_PIXELS_RGB_F32);
    pause_work(s, begun);
    if (status == MAR_OK) write_pixels(s, NULL, &out);
    return status == MAR_OK ? MAR_OK : mar_session_stop_reading(s, status);
}

mar_status mar_session_image(mar_session *s, int i, mar_pixels *pixels)
{
    const mar_status status = mar_session_enter(s);
    return status == MAR_OK ? mar_session_leave(s, fetch_image(s, i, pixels)) : status;
}

/* --- tokens of the host ------------------------------------------------------------------------------------------- */

/* Returns MAR_EARG if a number is not one of the model's tokens. */
static mar_status check_tokens(mar_session *s, const float *tokens, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!mar_session_is_token(s, tokens[i]))
            return err_set(&s->err, MAR_EARG, "number %zu of the tokens is %g, expected %s", i, (double)tokens[i],
                           s->model->config.vocabulary ? "one of the vocabulary" : "a finite one");
    return MAR_OK;
}

/* Replaces the batch's tokens. */
static mar_status put_tokens(mar_session *s, uint64_t first_image, const float *tokens, int n, size_t count)
{
    kern_queue *k = s->k;
    __atomic_store_n(&s->cancel, 0, __ATOMIC_RELAXED);
    mar_session_drop_since(s, "has decoded other tokens");
    s->images = n;
    s->first_image = first_image;
    s->decoded = 0;
    k->core->bind(k);
    mar_status status = mar_session_prepare(s, n);
    /* The cast is safe: the engine owns this memory, and the image decoder only reads it. */
    float *latents = (float *)(uintptr_t)s->model->engine->latents(s->engine_state);
    if (status == MAR_OK) k->core->upload(k, latents, tokens, count * sizeof *tokens);
    if (status == MAR_OK) status = kern_check(k, &s->err);
    k->core->unbind(k);
    return status;
}

static mar_status decode_given(mar_session *s, uint64_t first_image, const float *tokens, int n, uint8_t *rgb)
{
    const size_t image = mar_session_token_count(s);
    mar_status status = mar_check_given(tokens, "tokens", &s->err);
    if (status == MAR_OK) status = mar_check_given(rgb, "rgb", &s->err);
    if (status == MAR_OK && !s->vae) status = pictures_refuse_no_vae(s);
    if (status == MAR_OK) status = mar_session_refuse_requests(s);
    if (status != MAR_OK) return status;
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

/* --- pictures of the host ----------------------------------------------------------------------------------------- */

/* Returns MAR_EMODEL if one of a picture's tokens is not finite. */
static mar_status check_encoded(mar_session *s, const float *tokens)
{
    char layer[MAR_LAYER_TEXT];
    for (size_t i = 0; i < mar_session_token_count(s); i++)
        if (!mar_session_is_token(s, tokens[i]))
            return err_set(&s->err, MAR_EMODEL, "number %zu of the picture's tokens is %s%s", i,
                           mar_not_finite(tokens[i]), mar_layer_text(s->k, layer));
    return MAR_OK;
}

static mar_status pictures_encode(mar_session *s, const mar_pixels *pixels, float *tokens)
{
    mar_pixels in;
    kern_queue *k = s->k;
    mar_status status = mar_check_given(tokens, "tokens", &s->err);
    if (status == MAR_OK) status = pictures_read_pixels(s, pixels, &in);
    if (status != MAR_OK) return status;
    if (in.format == MAR_PIXELS_RGB_F32)
        return err_set(&s->err, MAR_EARG, "mar_pixels.format MAR_PIXELS_RGB_F32: expected RGB8 or RGBA8 to encode");
    if (!vae_decoder_has_encoder(s->vae->decoder))
        return err_set(&s->err, MAR_EARG,
                       "the image decoder was loaded without its encoder: expected mar_source.encoder = 1");
    const int idle = mar_session_is_idle(s); /* else a failure of the queue is that of images in progress */
    const kern_watching kept = k->watch;
    k->core->bind(k);
    if (idle && kern_check(k, NULL) != MAR_OK) k->core->recover(k);
    kern_watch_begin(k);
    vae_encode(s->decoder, in.data, in.stride, (int)pictures_pixel_bytes(in.format), tokens);
    status = kern_check(k, &s->err);
    k->core->unbind(k);
    if (status == MAR_OK && s->model->engine->normalise) s->model->engine->normalise(s->engine_state, tokens);
    if (status == MAR_OK) status = check_encoded(s, tokens);
    k->watch = kept;
    return idle && status == MAR_ECANCELLED ? mar_session_stop_reading(s, status) : status;
}

mar_status mar_session_encode(mar_session *s, const mar_pixels *pixels, float *tokens)
{
    const mar_status status = mar_session_enter(s);
    return status == MAR_OK ? mar_session_leave(s, pictures_encode(s, pixels, tokens)) : status;
}
