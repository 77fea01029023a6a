/* Sessions: memory, timing and images around a model family's engine (mar/core/engine.h). A session has its own queue,
 * failure and cancel flag. It shares model and VAE with other sessions. */
#include "mar/api/session.h"

#include "mar/core/config.h"
#include "mar/core/measure_session.h"
#include "mar/core/params.h"
#include "mar/core/sized.h"
#include "mar/core/conditioning.h"
#include "mar/core/vae.h"
#include "mar/accel/registry.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct mar_session {
    mar_model *model, *draft; /* the session references each; draft NULL: none */
    mar_vae *vae;             /* NULL: tokens only; referenced */
    kern_queue *k;
    int cancel;  /* 1: stop the call in progress. Atomic; the queue reads it */
    mar_err err; /* of the last failed call, for mar_session_error() */
    mar_progress_function *progress;
    void *progress_user;

    char guarantee[320]; /* mar_session_guarantee */
    int max_images;
    int grid; /* latent pixels a side */
    mar_engine_state *engine_state;
    vae_run *decoder; /* NULL without vae */
    void *arena;      /* backend: all memory of the session */
    size_t arena_bytes;
    float *pixels; /* host: floats of a rejected image, for the error message */
    int *found;    /* host [vae_run_images] flags of the images fetched, as in vae_pictures */
    int planned;   /* images whose shapes are planned; 0: none */

    /* Batch in progress, or finished. */
    int images; /* 0: no batch yet */
    uint64_t first_image;
    int steps;          /* autoregressive steps of the batch */
    int decoded;        /* images finished by the last mar_session_images */
    mar_status dropped; /* reason for dropping the batch; MAR_OK: not dropped */
    mar_err why;        /* message of `dropped` */
    const char *since;  /* "was measured" or "has decoded ..." if that dropped the batch; else NULL */
    double total_s, vae_s, vae_flop;
    int warned; /* 1: the log knows that recording failed */

    int in_call; /* 1: a call is in progress; its callbacks may make no other */
};

static mar_status refuse_callback(mar_session *s)
{
    return err_set(&s->err, MAR_EARG,
                   "the session is at work in another call: expected one after it, not from a callback of it");
}

/* Begins a call that returns a status. Returns MAR_OK if the session exists, its handle can be used here, and no other
 * call on it is in progress. Otherwise the error is the session's, or the thread's if there is no session. */
static mar_status begin_call(mar_session *s)
{
    mar_err err;
    if (!s) return mar_result(NULL, err_set(&err, MAR_EARG, "the session is NULL"), &err);
    const mar_status status = mar_check_handle(s->model->m, &s->err);
    if (status != MAR_OK) return status;
    if (s->in_call) return refuse_callback(s);
    s->in_call = 1;
    return MAR_OK;
}

static mar_status end_call(mar_session *s, mar_status status)
{
    s->in_call = 0;
    return status;
}

static int is_usable(const mar_session *s)
{
    return s && !mar_in_forked_child(s->model->m);
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
    const mar_status status = begin_call(s);
    return status == MAR_OK ? end_call(s, set_stream(s, stream)) : status;
}

/* --- creation ----------------------------------------------------------------------------------------------------- */

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
    /* the engine has checked that model and decoder fit */
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

/* Assigns parts of the arena at base. Returns its size in bytes. */
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

/* Writes the engine's guarantee. int8 changes the distribution, so that exact methods keep that of the int8 model. */
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

/* Creates the engine's state and the decoder on the session's queue. */
static mar_status create_work(mar_session *s, const mar_params *params, const mar_accels_on *accels, mar_err *err)
{
    const mar_engine *engine = s->model->engine;
    kern_queue *k = s->k;
    k->cancel = &s->cancel;
    k->watch.on = params->check;
    k->core->bind(k);
    mar_status status = engine->create(s->model, s->vae, k, params, accels->on, s->max_images, &s->engine_state, err);
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
    mar_accels_on accels;
    if (status == MAR_OK) status = mar_accels_resolve_params(&read, model->engine->tokens, &accels, err);
    if (status != MAR_OK) return status;
    mar_session *s = calloc(1, sizeof *s);
    if (!s) return err_set(err, MAR_ENOMEM, "out of memory");
    mar_model_retain(s->model = model);
    if (read.draft) mar_model_retain(s->draft = read.draft);
    if (vae) mar_vae_retain(s->vae = vae);
    s->max_images = max_batch;
    s->grid = mar_grid_side(&model->config);
    status = model->m->device->core->queue_create(model->m->device, &s->k, err);
    if (status == MAR_OK) status = create_work(s, &read, &accels, err);
    if (status == MAR_OK)
        *out = s;
    else
        mar_session_free(s);
    return status;
}

/* Logs the new session. A callback that frees it is refused. */
static void log_created(mar_session *s)
{
    const mar *m = s->model->m;
    const char *warning = s->model->engine->warning(s->engine_state);
    begin_call(s);
    mar_log(m, MAR_LOG_INFO, "session for batches of %d images: %.3g MB of working memory, %s", s->max_images,
            (double)s->arena_bytes / 1e6, mar_session_guarantee(s));
    if (warning) mar_log(m, MAR_LOG_WARNING, "%s", warning);
    end_call(s, MAR_OK);
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
    if (status == MAR_OK) log_created(*out);
    return mar_result(model->m, status, &err);
}

void mar_session_free(mar_session *s)
{
    if (!is_usable(s)) return;
    if (s->in_call) {
        mar_result(s->model->m, refuse_callback(s), &s->err);
        return;
    }
    kern_queue *k = s->k;
    if (k) {
        k->core->bind(k);
        k->core->finish(k); /* pending timers write to s, and pending work uses the freed memory */
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
    s->err = s->why; /* the log callback may have made a refused call */
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
    const mar_progress p = {.size = sizeof p,
                            .step = s->steps - mar_session_steps_left(s),
                            .steps = s->steps,
                            .images = s->decoded,
                            .batch = s->images,
                            .first_image = s->first_image};
    if (!s->progress) return MAR_OK;
    s->progress(s->progress_user, s, &p);
    return mar_check_handle(s->model->m, &s->err);
}

static void log_unrecorded(mar_session *s)
{
    if (s->warned || s->k->unrecorded == 0) return;
    s->warned = 1;
    const mar_err kept = s->err; /* the log callback may make a refused call */
    mar_log(s->model->m, MAR_LOG_WARNING, "work that is repeated cannot be recorded, and takes longer: %s",
            s->k->why_unrecorded.text);
    s->err = kept;
}

static mar_status prepare(mar_session *s, int n)
{
    kern_queue *k = s->k;
    if (kern_check(k, NULL) != MAR_OK) k->core->recover(k);
    k->core->finish(k); /* pending timers belong to the dropped batch */
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
    __atomic_store_n(&s->cancel, 0, __ATOMIC_RELAXED); /* the flag concerned the previous batch */
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
    mar_status status = begin_call(s);
    if (status != MAR_OK) return status;
    status = mar_check_given(labels, "labels", &s->err);
    if (status == MAR_OK) status = begin(s, first_image, &(mar_conditioning){.labels = labels}, n);
    return end_call(s, status);
}

mar_status mar_session_begin_captions(mar_session *s, uint64_t first_image, const float *features, const uint8_t *mask,
                                      int n)
{
    mar_status status = begin_call(s);
    if (status != MAR_OK) return status;
    status = mar_check_given(features, "features", &s->err);
    if (status == MAR_OK) status = begin(s, first_image, &(mar_conditioning){.features = features, .mask = mask}, n);
    return end_call(s, status);
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
    /* A cancel after the last step leaves the images whole. */
    const int whole = status == MAR_OK && k->failed == MAR_OK && mar_session_done(s);
    if (status == MAR_OK) status = kern_check(k, &s->err);
    k->core->unbind(k);
    log_unrecorded(s);
    if (status == MAR_OK) {
        status = report(s);
        if (status == MAR_OK) status = kern_check(k, &s->err); /* the callback may have cancelled */
    }
    if (status == MAR_OK) return MAR_OK;
    return whole ? stop_reading(s, status) : drop(s, status);
}

mar_status mar_session_step(mar_session *s)
{
    const mar_status status = begin_call(s);
    return status == MAR_OK ? end_call(s, step(s)) : status;
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
    const mar_status status = begin_call(s);
    return status == MAR_OK ? end_call(s, fetch_tokens(s, tokens)) : status;
}

/* Returns the start time of work on images. */
static double work(mar_session *s)
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
static vae_pictures decode(mar_session *s, int first)
{
    const size_t count = (size_t)s->model->config.seq_len * (size_t)s->model->config.token_dim;
    const int left = s->images - first, most = vae_run_images(s->decoder), n = left < most ? left : most;
    if (n <= 0) return (vae_pictures){0};
    s->vae_flop += n * vae_run_flop(s->decoder);
    return vae_decode(s->decoder, s->model->engine->latents(s->engine_state) + (size_t)first * count, n);
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
static int is_picture(const mar_session *s, int i)
{
    return s->found[i] == KERN_PIXELS_WITHIN;
}

/* Rejects image i, whose value `at` in s->pixels is not finite. */
static mar_status refuse_pixel(mar_session *s, int i, size_t at)
{
    int width, height;
    char layer[MAR_LAYER_TEXT];
    mar_session_image_size(s, &width, &height);
    return err_set(&s->err, MAR_EMODEL, "image %llu: the image decoder's output is %s at pixel (%d, %d)%s",
                   (unsigned long long)s->first_image + (unsigned long long)i, mar_not_finite(s->pixels[at]),
                   (int)(at / 3) % width, (int)(at / 3) / width, mar_layer_text(s->k, layer));
}

/* Rejects image i, whose finite values are far out of range: it would be black or white. */
static mar_status refuse_clipped(mar_session *s, int i)
{
    return err_set(&s->err, MAR_EMODEL,
                   "image %llu: no value of the image decoder's output is between -1 and 1 (the first is %g), so the "
                   "picture would be blank: expected weights that make a picture",
                   (unsigned long long)s->first_image + (unsigned long long)i, (double)s->pixels[0]);
}

/* Rejects image i, whose pixels on the device are invalid, with the reason. */
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

/* Counts one more decoded image and calls the host. The clock that began at *begun pauses meanwhile. If the host has
 * forked there, the clock stays stopped: *begun is negative. */
static mar_status count_image(mar_session *s, double *begun)
{
    s->decoded++;
    if (!s->progress) return MAR_OK;
    pause_work(s, *begun);
    *begun = -1;
    const mar_status status = report(s);
    if (status != MAR_OK) return status;
    *begun = work(s);
    return kern_check(s->k, &s->err); /* the callback may have cancelled */
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
        /* An asynchronous device decodes the next images while the host receives these. */
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
    if (is_usable(s)) log_unrecorded(s);
    return status == MAR_OK ? MAR_OK : stop_reading(s, status);
}

mar_status mar_session_images(mar_session *s, uint8_t *rgb)
{
    const mar_status status = begin_call(s);
    return status == MAR_OK ? end_call(s, fetch_images(s, rgb)) : status;
}

/* Returns MAR_EARG if a number is not one of the model's tokens. */
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
    /* The cast is safe: the engine owns this memory, and the image decoder only reads it. */
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
    const mar_status status = begin_call(s);
    return status == MAR_OK ? end_call(s, decode_given(s, first_image, tokens, n, rgb)) : status;
}

/* --- statistics and measurement ----------------------------------------------------------------------------------- */

void mar_stats_init(mar_stats *stats, size_t size)
{
    mar_sized_init(stats, size, &(const mar_stats){0}, sizeof *stats);
}

void mar_session_get_stats(const mar_session *s, mar_stats *stats)
{
    mar_stats all = {0};
    if (!stats) return;
    if (is_usable(s)) {
        kern_queue *k = s->k;
        k->core->bind(k);
        k->core->finish(k); /* completes the times */
        k->core->unbind(k);
        s->model->engine->stats(s->engine_state, &all);
        all.arena_bytes = s->arena_bytes;
        all.recorded_bytes = k->recorded_bytes;
        all.vae_s = s->vae_s;
        all.vae_flop = s->vae_flop;
        all.total_s = s->total_s;
    }
    mar_sized_write(stats, &all, sizeof all);
}

mar_status mar_session_fates(mar_session *s, uint8_t *map, int *step)
{
    mar_status status = begin_call(s);
    if (status != MAR_OK) return status;
    status = check_finished(s);
    if (status == MAR_OK) s->model->engine->token_status(s->engine_state, map, step);
    return end_call(s, status);
}

mar_status mar_session_lateness(mar_session *s, int *late)
{
    mar_status status = begin_call(s);
    if (status != MAR_OK) return status;
    status = mar_check_given(late, "late", &s->err);
    if (status == MAR_OK) status = check_finished(s);
    if (status == MAR_OK) s->model->engine->staleness(s->engine_state, late);
    return end_call(s, status);
}

static mar_status measure(mar_session *s, mar_measurements *all)
{
    const mar_measured_parts parts = {s->k, s->model->engine, s->engine_state, s->decoder, s->max_images};
    s->images = s->max_images;
    const mar_status status = prepare(s, s->max_images);
    return status == MAR_OK ? mar_measure_parts(&parts, all, &s->err) : status;
}

static mar_status measure_and_report(mar_session *s, mar_measurement_function *f, void *user)
{
    mar_status status = mar_check_given((const void *)(uintptr_t)f, "f", &s->err);
    if (status != MAR_OK) return status;
    mar_measurements all = {0};
    const int watched = s->k->watch.on; /* the search for layers waits: it takes time and cannot be recorded */
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
    s->dropped = MAR_EARG; /* the measurement has destroyed the batch */
    s->since = "was measured";
    for (int i = 0; i < all.count; i++) {
        const mar_measured *m = &all.row[i];
        const mar_measurement shown = {.size = sizeof shown,
                                       .group = m->group,
                                       .name = m->name,
                                       .rows = m->rows,
                                       .count = m->count,
                                       .seconds = m->seconds,
                                       .bytes = m->bytes,
                                       .flop = m->flop};
        f(user, &shown);
    }
    mar_measurements_free(&all);
    return MAR_OK;
}

mar_status mar_session_measure(mar_session *s, mar_measurement_function *f, void *user)
{
    const mar_status status = begin_call(s);
    return status == MAR_OK ? end_call(s, measure_and_report(s, f, user)) : status;
}

mar_engine_state *mar_session_engine_state(mar_session *s)
{
    return s->engine_state;
}

kern_queue *mar_session_queue(mar_session *s)
{
    return s->k;
}
