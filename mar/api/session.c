/* Sessions: memory, time and images around a model family's engine (mar/api/engine.h). A session has a queue, a failure
 * and a flag for cancelling of its own, and shares model and VAE with other sessions. Here it is made and freed. */
#include "mar/api/session.h"

#include "mar/api/config.h"
#include "mar/api/params.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mar_status refuse_callback(mar_session *s)
{
    return err_set(&s->err, MAR_EARG,
                   "the session is at work in another call: expected one after it, not from a callback of it");
}

mar_status mar_session_enter(mar_session *s)
{
    mar_err err;
    if (!s) return mar_result(NULL, err_set(&err, MAR_EARG, "the session is NULL"), &err);
    const mar_status status = mar_check_handle(s->model->m, &s->err);
    if (status != MAR_OK) return status;
    if (s->entered) return refuse_callback(s);
    s->entered = 1;
    return MAR_OK;
}

mar_status mar_session_leave(mar_session *s, mar_status status)
{
    s->entered = 0;
    return status;
}

int mar_session_is_usable(const mar_session *s)
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
    k->core->enter(k);
    const mar_status status = k->core->set_stream(k, stream, &s->err);
    k->core->leave(k);
    return status;
}

mar_status mar_session_set_stream(mar_session *s, void *stream)
{
    const mar_status status = mar_session_enter(s);
    return status == MAR_OK ? mar_session_leave(s, set_stream(s, stream)) : status;
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
    size_t used = s->model->engine->lay_out(s->generation, base);
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

mar_status mar_session_plan(mar_session *s, int n, mar_err *err)
{
    if (s->planned == n) return MAR_OK;
    s->planned = 0;
    mar_status status = s->model->engine->plan(s->generation, n, err);
    if (status == MAR_OK && s->decoder) status = vae_run_plan(s->decoder, n, err);
    if (status == MAR_OK) s->planned = n;
    return status;
}

/* What the engine says of the output's law, of which int8 makes another: a way that is exact leaves it that one. */
static void write_guarantee(mar_session *s)
{
    static const char approximate[] = "approximate: ";
    const char *text = s->model->engine->guarantee(s->generation);
    const size_t n = sizeof approximate - 1;
    if (!s->k->device->int8)
        snprintf(s->guarantee, sizeof s->guarantee, "%s", text);
    else if (strncmp(text, approximate, n) == 0)
        snprintf(s->guarantee, sizeof s->guarantee, "%sint8, %s", approximate, text + n);
    else
        snprintf(s->guarantee, sizeof s->guarantee, "%sint8", approximate);
}

/* Makes what runs on the session's queue. */
static mar_status create_work(mar_session *s, const mar_params *params, mar_err *err)
{
    kern_queue *k = s->k;
    k->cancel = &s->cancel;
    k->watch.on = params->check;
    k->core->enter(k);
    mar_status status = s->model->engine->create(s->model, s->vae, k, params, s->max_images, &s->generation, err);
    if (status == MAR_OK) write_guarantee(s);
    if (status == MAR_OK) status = create_decoder(s, err);
    if (status == MAR_OK) status = allocate(s, err);
    if (status == MAR_OK) status = mar_session_plan(s, s->max_images, err);
    if (status == MAR_OK) status = kern_check(k, err);
    k->core->leave(k);
    return status;
}

static mar_status create(mar_model *model, mar_vae *vae, const mar_params *params, int max_batch, mar_session **out,
                         mar_err *err)
{
    mar_params read;
    mar_status status = mar_params_read(params, &read, err);
    if (status == MAR_OK) status = check(model, vae, max_batch, err);
    if (status != MAR_OK) return status;
    mar_session *s = calloc(1, sizeof *s);
    if (!s) return err_set(err, MAR_ENOMEM, "out of memory");
    mar_model_retain(s->model = model);
    if (read.draft) mar_model_retain(s->draft = read.draft);
    if (vae) mar_vae_retain(s->vae = vae);
    s->max_images = max_batch;
    s->grid = mar_grid_side(&model->config);
    status = model->m->device->core->queue_create(model->m->device, &s->k, err);
    if (status == MAR_OK) status = create_work(s, &read, err);
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
    const char *warning = s->model->engine->warning(s->generation);
    mar_session_enter(s);
    mar_log(m, MAR_LOG_INFO, "session for batches of %d images: %.3g MB of working memory, %s", s->max_images,
            (double)s->arena_bytes / 1e6, mar_session_guarantee(s));
    if (warning) mar_log(m, MAR_LOG_WARNING, "%s", warning);
    mar_session_leave(s, MAR_OK);
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
    if (!mar_session_is_usable(s)) return;
    if (s->entered) {
        mar_result(s->model->m, refuse_callback(s), &s->err);
        return;
    }
    kern_queue *k = s->k;
    if (k) {
        k->core->enter(k);
        k->core->finish(k); /* times still to come have their place in s, and work in the memory that is freed */
        if (s->generation) s->model->engine->free(s->generation);
        vae_run_free(s->decoder);
        k->device->core->free(k->device, s->arena);
        k->core->leave(k);
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
    return s ? s->model->engine->params(s->generation) : NULL;
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
    if (!mar_session_is_usable(s)) return text;
    const kern_queue *k = s->k;
    s->model->engine->describe(s->model, head, sizeof head);
    if (s->draft) s->draft->engine->describe(s->draft, draft, sizeof draft);
    if (k->recordings + k->unrecorded > 0)
        snprintf(recordings, sizeof recordings, "; %d recording%s", k->recordings, k->recordings == 1 ? "" : "s");
    if (k->unrecorded > 0) snprintf(refused, sizeof refused, ", %d refused: %s", k->unrecorded, k->why_unrecorded.text);
    snprintf(text, size, "%s%s%s%s%s", head, s->draft ? "; draft's " : "", draft, recordings, refused);
    return text;
}

mar_generation *mar_session_generation(mar_session *s)
{
    return s->generation;
}

kern_queue *mar_session_queue(mar_session *s)
{
    return s->k;
}
