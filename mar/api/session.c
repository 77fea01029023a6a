/* Sessions: memory, time and images around a model family's engine (mar/core/engine.h). A session has a queue, a
 * failure and a cancel flag of its own. It shares model and VAE with other sessions. */
#include "mar/api/session.h"

#include "mar/core/config.h"
#include "mar/core/measure_session.h"
#include "mar/core/params.h"
#include "mar/core/conditioning.h"
#include "mar/core/vae.h"
#include "mar/ways/ways.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mar_session {
    mar_model *model, *draft; /* draft: NULL without. The session holds a reference on each */
    mar_vae *vae;             /* NULL: tokens only. Referred to, too */
    kern_queue *k;
    int cancel;  /* 1: a call on the session is to stop. Read and written atomically; the queue looks at it */
    mar_err err; /* of the last call that failed, for mar_session_error() */
    mar_progress_function *progress;
    void *progress_user;

    char guarantee[320]; /* mar_session_guarantee */
    int max_images;
    int grid; /* latent pixels a side */
    mar_engine_state *engine_state;
    vae_run *decoder; /* NULL without vae */
    void *arena;      /* backend memory, all there is */
    size_t arena_bytes;
    float *pixels; /* host, of an image that is none */
    int *found;    /* host [vae_run_images] of each image fetched, see vae_pictures */
    int planned;   /* number of images whose shapes are planned; 0: none */

    /* The batch in progress, or finished. */
    int images; /* 0: there was none yet */
    uint64_t first_image;
    int steps;          /* autoregressive steps it takes */
    int decoded;        /* images that the last mar_session_images has finished */
    mar_status dropped; /* why it was dropped; MAR_OK: it was not */
    mar_err why;        /* the message of that */
    const char *since;  /* what dropped it by its success, "was measured"; else NULL */
    double total_s, vae_s, vae_flop;
    int told; /* the log has a line that work cannot be recorded */

    int entered; /* 1: a call is at work, whose callbacks may make no other */
};

static mar_status refuse_callback(mar_session *s)
{
    return err_set(&s->err, MAR_EARG,
                   "the session is at work in another call: expected one after it, not from a callback of it");
}

/* Begins a call with a status. Returns MAR_OK if there is a session, its handle can be used here, and no other call on
 * it is at work. Otherwise the reason is the session's, or without a session the thread's. */
static mar_status enter(mar_session *s)
{
    mar_err err;
    if (!s) return mar_result(NULL, err_set(&err, MAR_EARG, "the session is NULL"), &err);
    const mar_status status = mar_check_handle(s->model->m, &s->err);
    if (status != MAR_OK) return status;
    if (s->entered) return refuse_callback(s);
    s->entered = 1;
    return MAR_OK;
}

static mar_status leave(mar_session *s, mar_status status)
{
    s->entered = 0;
    return status;
}

static int is_usable(const mar_session *s)
{
    return s && !mar_is_elsewhere(s->model->m);
}

void mar_session_cancel(mar_session *s)
{
    if (s) __atomic_store_n(&s->cancel, 1, __ATOMIC_RELAXED);
}

const char *mar_session_error(const mar_session *s)
{
    return s ? s->err.text : mar_error(NULL);
}

void mar_session_on_progress(mar_session *s, mar_progress_function *f, void *user)
{
    if (!s) return;
    s->progress = f;
    s->progress_user = user;
}

static mar_status set_stream(mar_session *s, void *stream)
{
    kern_queue *k = s->k;
    if (!k->core->set_stream)
        return err_set(&s->err, MAR_EARG, "the session runs on a CPU, which has no streams: expected one on a GPU");
    k->core->bind(k);
    const mar_status status = k->core->set_stream(k, stream, &s->err);
    k->core->unbind(k);
    return status;
}

mar_status mar_session_set_stream(mar_session *s, void *stream)
{
    const mar_status status = enter(s);
    return status == MAR_OK ? leave(s, set_stream(s, stream)) : status;
}

/* --- making one ----------------------------------------------------------------------------------------------------
 */

void mar_session_image_size(const mar_session *s, int *width, int *height)
{
    const int side = s && s->vae ? s->grid * mar_vae_get_config(s->vae)->stride : 0;
    if (width) *width = side;
    if (height) *height = side;
}

static mar_status check(const mar_model *model, const mar_vae *vae, int max_batch, mar_err *err)
{
    if (max_batch < 1 || max_batch > 65536)
        return err_set(err, MAR_EARG, "batch of %d images: expected 1..65536", max_batch);
    if (vae && vae->m != model->m) return err_set(err, MAR_EARG, "model and VAE belong to different handles");
    return MAR_OK;
}

static mar_status create_decoder(mar_session *s, mar_err *err)
{
    if (!s->vae) return MAR_OK;
    /* the engine has checked that the two go together */
    const int z = mar_vae_get_config(s->vae)->z_channels,
              patch = s->model->config.vocabulary ? 1 : mar_patch_size(&s->model->config, z);
    s->grid *= patch;
    mar_status status = vae_run_create(s->k, s->vae->decoder, s->grid, s->grid, s->max_images, &s->decoder, err);
    if (status == MAR_OK) status = vae_run_unpatchify(s->decoder, patch, err);
    if (status != MAR_OK) return status;
    int width, height;
    mar_session_image_size(s, &width, &height);
    s->pixels = malloc((size_t)width * (size_t)height * 3 * sizeof *s->pixels);
    s->found = calloc((size_t)vae_run_images(s->decoder), sizeof *s->found);
    return s->pixels && s->found ? MAR_OK
                                 : err_set(err, MAR_ENOMEM, "out of memory for an image of %dx%d", width, height);
}

/* Cuts the arena; returns its size. */
static size_t lay_out(mar_session *s, char *base)
{
    size_t used = s->model->engine->lay_out(s->engine_state, base);
    if (s->decoder) used += vae_run_lay_out(s->decoder, base ? base + used : NULL);
    return used;
}

static mar_status allocate(mar_session *s, mar_err *err)
{
    const mar *m = s->model->m;
    mar_err reason = {0};
    s->arena_bytes = lay_out(s, NULL);
    const mar_status status = m->device->core->alloc(m->device, s->arena_bytes, &s->arena, &reason);
    if (status != MAR_OK)
        return err_set(err, status, "a batch of %d image%s needs %.3g GB of %smemory: %s; %s", s->max_images,
                       s->max_images == 1 ? "" : "s", (double)s->arena_bytes / 1e9,
                       m->backend == MAR_BACKEND_CUDA ? "GPU " : "", reason.text,
                       s->max_images > 1 ? "lower the batch" : "this is the least a batch can be");
    lay_out(s, s->arena);
    return MAR_OK;
}

static mar_status plan(mar_session *s, int n, mar_err *err)
{
    if (s->planned == n) return MAR_OK;
    s->planned = 0;
    mar_status status = s->model->engine->plan(s->engine_state, n, err);
    if (status == MAR_OK && s->decoder) status = vae_run_plan(s->decoder, n, err);
    if (status == MAR_OK) s->planned = n;
    return status;
}

/* What the engine says of the output's law, of which int8 makes another: a way that is exact leaves it that one. */
static void write_guarantee(mar_session *s)
{
    static const char approximate[] = "approximate: ";
    char of_ways[sizeof s->guarantee - 32];
    const mar_engine *engine = s->model->engine;
    const char *text = engine->guarantee(s->engine_state);
    const size_t n = sizeof approximate - 1;
    if (!*text) mar_accels_describe(engine->params(s->engine_state), of_ways, sizeof of_ways), text = of_ways;
    if (!s->k->device->int8)
        snprintf(s->guarantee, sizeof s->guarantee, "%s", text);
    else if (strncmp(text, approximate, n) == 0)
        snprintf(s->guarantee, sizeof s->guarantee, "%sint8, %s", approximate, text + n);
    else
        snprintf(s->guarantee, sizeof s->guarantee, "%sint8", approximate);
}

/* Makes what runs on the session's queue. */
static mar_status create_work(mar_session *s, const mar_params *params, const mar_accels_on *ways, mar_err *err)
{
    const mar_engine *engine = s->model->engine;
    kern_queue *k = s->k;
    k->cancel = &s->cancel;
    k->watch.on = params->check;
    k->core->bind(k);
    mar_status status = engine->create(s->model, s->vae, k, params, ways->on, s->max_images, &s->engine_state, err);
    if (status == MAR_OK) write_guarantee(s);
    if (status == MAR_OK) status = create_decoder(s, err);
    if (status == MAR_OK) status = allocate(s, err);
    if (status == MAR_OK) status = plan(s, s->max_images, err);
    if (status == MAR_OK) status = kern_check(k, err);
    k->core->unbind(k);
    return status;
}

static mar_status create(mar_model *model, mar_vae *vae, const mar_params *params, int max_batch, mar_session **out,
                         mar_err *err)
{
    mar_params read;
    mar_status status = mar_params_read(params, &read, err);
    if (status == MAR_OK) status = check(model, vae, max_batch, err);
    mar_accels_on ways;
    if (status == MAR_OK) status = mar_accels_resolve_params(&read, model->engine->tokens, &ways, err);
    if (status != MAR_OK) return status;
    mar_session *s = calloc(1, sizeof *s);
    if (!s) return err_set(err, MAR_ENOMEM, "out of memory");
    mar_model_retain(s->model = model);
    if (read.draft) mar_model_retain(s->draft = read.draft);
    if (vae) mar_vae_retain(s->vae = vae);
    s->max_images = max_batch;
    s->grid = mar_grid_side(&model->config);
    status = model->m->device->core->queue_create(model->m->device, &s->k, err);
    if (status == MAR_OK) status = create_work(s, &read, &ways, err);
    if (status == MAR_OK)
        *out = s;
    else
        mar_session_free(s);
    return status;
}

/* Tells the log of a session that was just made. A callback that frees it is refused. */
static void tell_created(mar_session *s)
{
    const mar *m = s->model->m;
    const char *warning = s->model->engine->warning(s->engine_state);
    enter(s);
    mar_log(m, MAR_LOG_INFO, "session for batches of %d images: %.3g MB of working memory, %s", s->max_images,
            (double)s->arena_bytes / 1e6, mar_session_guarantee(s));
    if (warning) mar_log(m, MAR_LOG_WARNING, "%s", warning);
    leave(s, MAR_OK);
}

mar_status mar_session_create(mar_model *model, mar_vae *vae, const mar_params *params, int max_batch,
                              mar_session **out)
{
    mar_err err = {0};
    if (out) *out = NULL;
    mar_status status = mar_check_given(model, "model", &err);
    if (status != MAR_OK) return mar_result(NULL, status, &err);
    status = mar_check_handle(model->m, &err);
    if (status == MAR_OK) status = mar_check_given(out, "out", &err);
    if (status == MAR_OK) status = create(model, vae, params, max_batch, out, &err);
    if (status == MAR_OK) tell_created(*out);
    return mar_result(model->m, status, &err);
}

void mar_session_free(mar_session *s)
{
    if (!is_usable(s)) return;
    if (s->entered) {
        mar_result(s->model->m, refuse_callback(s), &s->err);
        return;
    }
    kern_queue *k = s->k;
    if (k) {
        k->core->bind(k);
        k->core->finish(k); /* times still to come have their place in s, and work in the memory that is freed */
        if (s->engine_state) s->model->engine->free(s->engine_state);
        vae_run_free(s->decoder);
        k->device->core->free(k->device, s->arena);
        k->core->unbind(k);
        k->core->queue_free(k);
    }
    mar_vae_free(s->vae);
    mar_model_free(s->draft);
    mar_model_free(s->model);
    free(s->pixels);
    free(s->found);
    free(s);
}

const mar_params *mar_session_get_params(const mar_session *s)
{
    return s ? s->model->engine->params(s->engine_state) : NULL;
}

const char *mar_session_guarantee(const mar_session *s)
{
    return s ? s->guarantee : "";
}

const char *mar_session_description(const mar_session *s, char *text, size_t size)
{
    char head[ERR_TEXT_MAX], draft[ERR_TEXT_MAX] = "", recordings[64] = "", refused[ERR_TEXT_MAX + 32] = "";
    if (!text || size == 0) return "";
    text[0] = '\0';
    if (!is_usable(s)) return text;
    const kern_queue *k = s->k;
    s->model->engine->describe(s->model, head, sizeof head);
    if (s->draft) s->draft->engine->describe(s->draft, draft, sizeof draft);
    if (k->recordings + k->unrecorded > 0)
        snprintf(recordings, sizeof recordings, "; %d recording%s", k->recordings, k->recordings == 1 ? "" : "s");
    if (k->unrecorded > 0) snprintf(refused, sizeof refused, ", %d refused: %s", k->unrecorded, k->why_unrecorded.text);
    snprintf(text, size, "%s%s%s%s%s", head, s->draft ? "; draft's " : "", draft, recordings, refused);
    return text;
}

/* --- a batch -------------------------------------------------------------------------------------------------------
 */

int mar_session_done(const mar_session *s)
{
    return mar_session_steps_left(s) <= 0;
}

int mar_session_steps_left(const mar_session *s)
{
    return is_usable(s) && s->dropped == MAR_OK ? s->model->engine->steps_left(s->engine_state) : 0;
}

static mar_status drop(mar_session *s, mar_status status)
{
    s->dropped = status;
    s->why = s->err;
    s->since = NULL;
    s->planned = 0;
    if (status != MAR_ECANCELLED)
        mar_log(s->model->m, MAR_LOG_WARNING, "the batch of %d images from number %llu failed: %s", s->images,
                (unsigned long long)s->first_image, s->why.text);
    s->err = s->why; /* the log may have made a call that was refused */
    return status;
}

static mar_status stop_reading(mar_session *s, mar_status status)
{
    if (status != MAR_ECANCELLED) return drop(s, status);
    __atomic_store_n(&s->cancel, 0, __ATOMIC_RELAXED);
    s->k->core->bind(s->k);
    s->k->core->recover(s->k);
    s->k->core->unbind(s->k);
    return status;
}

static mar_status report(mar_session *s)
{
    const mar_progress p = {.step = s->steps - mar_session_steps_left(s),
                            .steps = s->steps,
                            .images = s->decoded,
                            .batch = s->images,
                            .first_image = s->first_image};
    if (!s->progress) return MAR_OK;
    s->progress(s->progress_user, s, &p);
    return mar_check_handle(s->model->m, &s->err);
}

static void tell_unrecorded(mar_session *s)
{
    if (s->told || s->k->unrecorded == 0) return;
    s->told = 1;
    const mar_err kept = s->err; /* the log may make a call that is refused */
    mar_log(s->model->m, MAR_LOG_WARNING, "work that is repeated cannot be recorded, and takes longer: %s",
            s->k->why_unrecorded.text);
    s->err = kept;
}

static mar_status prepare(mar_session *s, int n)
{
    kern_queue *k = s->k;
    if (kern_check(k, NULL) != MAR_OK) k->core->recover(k);
    k->core->finish(k); /* the times of a dropped batch end here */
    s->total_s = s->vae_s = s->vae_flop = 0;
    const mar_status status = kern_check(k, &s->err);
    return status == MAR_OK ? plan(s, n, &s->err) : status;
}

static mar_status start(mar_session *s, uint64_t first_image, const mar_conditioning *of, int n)
{
    const mar_engine *engine = s->model->engine;
    const mar_status status = prepare(s, n);
    if (status != MAR_OK) return status;
    const double begun = mar_now();
    if (of->labels)
        engine->begin(s->engine_state, first_image, of->labels, n);
    else
        engine->begin_captions(s->engine_state, first_image, of->features, of->mask, n);
    s->steps = engine->steps_left(s->engine_state);
    s->total_s = mar_now() - begun;
    return kern_check(s->k, &s->err);
}

static mar_status begin(mar_session *s, uint64_t first_image, const mar_conditioning *of, int n)
{
    if (n < 1 || n > s->max_images)
        return err_set(&s->err, MAR_EARG, "%d images: expected 1..%d, the session's batch", n, s->max_images);
    mar_status status = mar_conditioning_check(of, &s->model->config, n, &s->err);
    if (status != MAR_OK) return status;
    __atomic_store_n(&s->cancel, 0, __ATOMIC_RELAXED); /* it concerned the batch before */
    s->images = n;
    s->first_image = first_image;
    s->decoded = 0;
    s->dropped = MAR_OK;
    s->since = NULL;
    s->k->core->bind(s->k);
    status = start(s, first_image, of, n);
    s->k->core->unbind(s->k);
    return status == MAR_OK ? MAR_OK : drop(s, status);
}

mar_status mar_session_begin(mar_session *s, uint64_t first_image, const int *labels, int n)
{
    mar_status status = enter(s);
    if (status != MAR_OK) return status;
    status = mar_check_given(labels, "labels", &s->err);
    if (status == MAR_OK) status = begin(s, first_image, &(mar_conditioning){.labels = labels}, n);
    return leave(s, status);
}

mar_status mar_session_begin_captions(mar_session *s, uint64_t first_image, const float *features, const uint8_t *mask,
                                      int n)
{
    mar_status status = enter(s);
    if (status != MAR_OK) return status;
    status = mar_check_given(features, "features", &s->err);
    if (status == MAR_OK) status = begin(s, first_image, &(mar_conditioning){.features = features, .mask = mask}, n);
    return leave(s, status);
}

static mar_status refuse_dropped(mar_session *s)
{
    if (s->dropped == MAR_OK) return MAR_OK;
    if (s->dropped == MAR_ECANCELLED) return err_set(&s->err, MAR_EARG, "the batch was cancelled: begin another first");
    if (s->since) return err_set(&s->err, MAR_EARG, "the session %s: begin a batch first", s->since);
    return err_set(&s->err, MAR_EARG, "the batch failed, begin another first: %s", s->why.text);
}

static mar_status step(mar_session *s)
{
    mar_status status = refuse_dropped(s);
    if (status != MAR_OK) return status;
    kern_queue *k = s->k;
    if (mar_session_done(s)) return err_set(&s->err, MAR_EARG, "no step left: begin a batch first");
    k->core->bind(k);
    const double begun = mar_now();
    status = s->model->engine->step(s->engine_state, &s->err);
    if (mar_session_done(s)) k->core->finish(k);
    s->total_s += mar_now() - begun;
    /* A cancel that comes when all is done leaves the images whole. */
    const int whole = status == MAR_OK && k->failed == MAR_OK && mar_session_done(s);
    if (status == MAR_OK) status = kern_check(k, &s->err);
    k->core->unbind(k);
    tell_unrecorded(s);
    if (status == MAR_OK) {
        status = report(s);
        if (status == MAR_OK) status = kern_check(k, &s->err); /* whether it was cancelled there */
    }
    if (status == MAR_OK) return MAR_OK;
    return whole ? stop_reading(s, status) : drop(s, status);
}

mar_status mar_session_step(mar_session *s)
{
    const mar_status status = enter(s);
    return status == MAR_OK ? leave(s, step(s)) : status;
}

static mar_status check_finished(mar_session *s)
{
    if (s->images == 0) return err_set(&s->err, MAR_EARG, "no images: begin a batch first");
    if (!mar_session_done(s))
        return err_set(&s->err, MAR_EARG, "the images are not finished: %d steps left", mar_session_steps_left(s));
    return refuse_dropped(s);
}

/* --- images --------------------------------------------------------------------------------------------------------
 */

static mar_status fetch_tokens(mar_session *s, float *tokens)
{
    mar_status status = mar_check_given(tokens, "tokens", &s->err);
    if (status == MAR_OK) status = check_finished(s);
    if (status != MAR_OK) return status;
    kern_queue *k = s->k;
    const mar_model_config *c = &s->model->config;
    k->core->bind(k);
    k->core->download(k, tokens, s->model->engine->latents(s->engine_state),
                      (size_t)s->images * (size_t)c->seq_len * (size_t)c->token_dim * sizeof *tokens);
    k->core->unbind(k);
    status = kern_check(k, &s->err);
    return status == MAR_OK ? MAR_OK : stop_reading(s, status);
}

mar_status mar_session_tokens(mar_session *s, float *tokens)
{
    const mar_status status = enter(s);
    return status == MAR_OK ? leave(s, fetch_tokens(s, tokens)) : status;
}

/* What frames the work on images, whose time counts. */
static double work(mar_session *s)
{
    s->k->core->bind(s->k);
    s->k->core->lap(s->k, NULL);
    return mar_now();
}

static void pause_work(mar_session *s, double begun)
{
    s->k->core->lap(s->k, &s->vae_s);
    s->total_s += mar_now() - begun;
    s->k->core->unbind(s->k);
}

/* Decodes images from number `first` on, as many at a time as the decoder takes, if there are any; they are complete
 * when they are downloaded. */
static vae_pictures decode(mar_session *s, int first)
{
    const size_t count = (size_t)s->model->config.seq_len * (size_t)s->model->config.token_dim;
    const int left = s->images - first, most = vae_run_images(s->decoder), n = left < most ? left : most;
    if (n <= 0) return (vae_pictures){0};
    s->vae_flop += n * vae_run_flop(s->decoder);
    return vae_decode(s->decoder, s->model->engine->latents(s->engine_state) + (size_t)first * count, n);
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
    const mar_status status = report(s);
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
    if (status == MAR_OK) status = check_finished(s);
    if (status != MAR_OK) return status;
    if (!s->vae) return err_set(&s->err, MAR_EARG, "the session has no VAE: only tokens can be had");
    s->decoded = 0;
    status = decode_all(s, rgb);
    if (is_usable(s)) tell_unrecorded(s);
    return status == MAR_OK ? MAR_OK : stop_reading(s, status);
}

mar_status mar_session_images(mar_session *s, uint8_t *rgb)
{
    const mar_status status = enter(s);
    return status == MAR_OK ? leave(s, fetch_images(s, rgb)) : status;
}

/* Returns MAR_EARG if a number cannot be one of the model's tokens. */
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

/* Replaces the batch's tokens. */
static mar_status put_tokens(mar_session *s, uint64_t first_image, const float *tokens, int n, size_t count)
{
    kern_queue *k = s->k;
    __atomic_store_n(&s->cancel, 0, __ATOMIC_RELAXED);
    s->images = n;
    s->first_image = first_image;
    s->decoded = 0;
    s->dropped = MAR_EARG;
    s->since = "has decoded other tokens";
    k->core->bind(k);
    mar_status status = prepare(s, n);
    /* The engine owns this memory; the image decoder only reads it. */
    float *latents = (float *)(uintptr_t)s->model->engine->latents(s->engine_state);
    if (status == MAR_OK) k->core->upload(k, latents, tokens, count * sizeof *tokens);
    if (status == MAR_OK) status = kern_check(k, &s->err);
    k->core->unbind(k);
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
    return status == MAR_OK ? MAR_OK : drop(s, status);
}

mar_status mar_session_decode(mar_session *s, uint64_t first_image, const float *tokens, int n, uint8_t *rgb)
{
    const mar_status status = enter(s);
    return status == MAR_OK ? leave(s, decode_given(s, first_image, tokens, n, rgb)) : status;
}

/* --- statistics, and measuring -------------------------------------------------------------------------------------
 */

void mar_session_get_stats(const mar_session *s, mar_stats *stats)
{
    if (stats) *stats = (mar_stats){0};
    if (!stats || !is_usable(s)) return;
    kern_queue *k = s->k;
    k->core->bind(k);
    k->core->finish(k); /* the times are complete then */
    k->core->unbind(k);
    s->model->engine->stats(s->engine_state, stats);
    stats->arena_bytes = s->arena_bytes;
    stats->recorded_bytes = k->recorded_bytes;
    stats->vae_s = s->vae_s;
    stats->vae_flop = s->vae_flop;
    stats->total_s = s->total_s;
}

mar_status mar_session_fates(mar_session *s, uint8_t *map, int *step)
{
    mar_status status = enter(s);
    if (status != MAR_OK) return status;
    status = check_finished(s);
    if (status == MAR_OK) s->model->engine->fates(s->engine_state, map, step);
    return leave(s, status);
}

mar_status mar_session_lateness(mar_session *s, int *late)
{
    mar_status status = enter(s);
    if (status != MAR_OK) return status;
    status = mar_check_given(late, "late", &s->err);
    if (status == MAR_OK) status = check_finished(s);
    if (status == MAR_OK) s->model->engine->lateness(s->engine_state, late);
    return leave(s, status);
}

static mar_status measure(mar_session *s, mar_measurements *all)
{
    const mar_measured_parts parts = {s->k, s->model->engine, s->engine_state, s->decoder, s->max_images};
    s->images = s->max_images;
    const mar_status status = prepare(s, s->max_images);
    return status == MAR_OK ? mar_measure_parts(&parts, all, &s->err) : status;
}

static mar_status measure_and_tell(mar_session *s, mar_measurement_function *f, void *user)
{
    mar_status status = mar_check_given((const void *)(uintptr_t)f, "f", &s->err);
    if (status != MAR_OK) return status;
    mar_measurements all = {0};
    const int watched = s->k->watch.on; /* looking for layers waits, which takes time and cannot be recorded */
    __atomic_store_n(&s->cancel, 0, __ATOMIC_RELAXED);
    s->k->core->bind(s->k);
    s->k->watch.on = 0;
    status = measure(s, &all);
    s->k->watch.on = watched;
    s->k->core->unbind(s->k);
    if (status != MAR_OK) {
        mar_measurements_free(&all);
        return drop(s, status);
    }
    s->dropped = MAR_EARG; /* the batch: it is of no use */
    s->since = "was measured";
    for (int i = 0; i < all.count; i++) {
        const mar_measured *m = &all.row[i];
        const mar_measurement shown = {m->group, m->name, m->rows, m->count, m->seconds, m->bytes, m->flop};
        f(user, &shown);
    }
    mar_measurements_free(&all);
    return MAR_OK;
}

mar_status mar_session_measure(mar_session *s, mar_measurement_function *f, void *user)
{
    const mar_status status = enter(s);
    return status == MAR_OK ? leave(s, measure_and_tell(s, f, user)) : status;
}

mar_engine_state *mar_session_engine_state(mar_session *s)
{
    return s->engine_state;
}

kern_queue *mar_session_queue(mar_session *s)
{
    return s->k;
}
