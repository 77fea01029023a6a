/* Sessions: creation, figures and measurement (mar/api/session.h). */
#include "mar/api/session.h"

#include "base/arena.h"
#include "families/mar.h"
#include "mar/core/measure_session.h"
#include "mar/core/params.h"
#include "mar/core/sized.h"
#include "mar/core/vae.h"
#include "mar/accel/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mar_session_cancel(mar_session *s)
{
    if (s) __atomic_store_n(&s->cancel, 1, __ATOMIC_RELAXED);
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
    const mar_status status = mar_session_enter(s);
    return status == MAR_OK ? mar_session_leave(s, set_stream(s, stream)) : status;
}

/* --- creation ----------------------------------------------------------------------------------------------------- */

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
    s->grid_height = patch * mar_grid_rows(&s->model->config);
    s->grid_width = patch * mar_grid_columns(&s->model->config);
    mar_status status = vae_run_create(s->k, s->vae->decoder, s->grid_height, s->grid_width, s->max_images, VAE_MEMORY,
                                       &s->decoder, err);
    if (status == MAR_OK) status = vae_run_unpatchify(s->decoder, patch, err);
    if (status != MAR_OK) return status;
    int width, height;
    mar_session_image_size(s, &width, &height);
    const size_t numbers = (size_t)width * (size_t)height * 3;
    s->pixels = malloc(numbers * sizeof *s->pixels);
    s->bytes = malloc(numbers);
    s->found = calloc((size_t)vae_run_images(s->decoder), sizeof *s->found);
    return s->pixels && s->bytes && s->found
               ? MAR_OK
               : err_set(err, MAR_ENOMEM, "out of memory for an image of %dx%d", width, height);
}

/* Allocates the lists of images in progress. */
static mar_status create_lists(mar_session *s, mar_err *err)
{
    const size_t n = (size_t)s->max_images;
    s->last_request = &s->first_request;
    s->at = calloc(n, sizeof *s->at);
    s->admit_slot = calloc(n, sizeof *s->admit_slot);
    s->admit_image = calloc(n, sizeof *s->admit_image);
    s->admit_entry = calloc(n, sizeof *s->admit_entry);
    s->batch = calloc(n, sizeof *s->batch);
    s->tokens = calloc(mar_session_token_count(s), sizeof *s->tokens);
    s->known = calloc((size_t)s->model->config.seq_len, 1);
    if (s->at && s->admit_slot && s->admit_image && s->admit_entry && s->batch && s->tokens && s->known) return MAR_OK;
    return err_set(err, MAR_ENOMEM, "out of memory for a batch of %d images", s->max_images);
}

/* Assigns parts of the arena at base. Returns its size in bytes. */
static size_t session_lay_out(mar_session *s, char *base)
{
    size_t used = s->model->engine->lay_out(s->engine_state, base);
    if (!s->decoder) return used;
    used += vae_run_lay_out(s->decoder, base ? base + used : NULL);
    s->latents = arena_carve(base, &used, mar_session_token_count(s), sizeof *s->latents);
    return used;
}

static mar_status session_allocate(mar_session *s, mar_err *err)
{
    const mar *m = s->model->m;
    mar_err reason = {0};
    s->arena_bytes = session_lay_out(s, NULL);
    const mar_status status = m->device->core->alloc(m->device, s->arena_bytes, &s->arena, &reason);
    if (status != MAR_OK)
        return err_set(err, status, "a batch of %d image%s needs %.3g GB of %smemory: %s%s", s->max_images,
                       s->max_images == 1 ? "" : "s", (double)s->arena_bytes / 1e9,
                       m->backend == MAR_BACKEND_CUDA ? "GPU " : "", reason.text,
                       s->max_images > 1 ? "" : "; this is the least a batch can be");
    session_lay_out(s, s->arena);
    return MAR_OK;
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
    if (status == MAR_OK)
        mar_guarantee_write(s->model, s->engine_state, engine->params(s->engine_state), NULL, &s->guarantee);
    if (status == MAR_OK) status = create_decoder(s, err);
    if (status == MAR_OK) status = session_allocate(s, err);
    if (status == MAR_OK) status = mar_session_plan(s, s->max_images, err);
    if (status == MAR_OK) status = kern_check(k, err);
    k->core->unbind(k);
    return status;
}

static mar_status session_create(mar_model *model, mar_vae *vae, const mar_params *params, int max_batch,
                                 mar_session **out, mar_err *err)
{
    mar_params read;
    mar_status status = mar_params_read(params, &read, err);
    if (status == MAR_OK) status = check(model, vae, max_batch, err);
    if (status == MAR_OK) status = mar_params_suit(&read, &model->config, err);
    if (status == MAR_OK) mar_params_take_defaults(&read, &model->config);
    mar_accels_on accels;
    if (status == MAR_OK) status = mar_accels_resolve_params(&read, model->engine, &accels, err);
    if (status != MAR_OK) return status;
    mar_session *s = calloc(1, sizeof *s);
    if (!s) return err_set(err, MAR_ENOMEM, "out of memory");
    mar_model_retain(s->model = model);
    if (read.draft) mar_model_retain(s->draft = read.draft);
    if (vae) mar_vae_retain(s->vae = vae);
    s->max_images = max_batch;
    status = create_lists(s, err);
    if (status == MAR_OK) status = model->m->device->core->queue_create(model->m->device, &s->k, err);
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
    if (status == MAR_OK) status = session_create(model, vae, params, max_batch, out, &err);
    if (status == MAR_OK) log_created(*out);
    return mar_result(model->m, status, &err);
}

void mar_session_free(mar_session *s)
{
    if (!mar_session_is_usable(s)) return;
    if (s->in_call) {
        mar_result(s->model->m, mar_session_refuse_callback(s), &s->err);
        return;
    }
    kern_queue *k = s->k;
    if (k) {
        if (s->engine_state) mar_session_free_requests(s);
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
    void *host[] = {s->pixels,     s->bytes,       s->found,       s->tokens, s->known, s->at,
                    s->admit_slot, s->admit_image, s->admit_entry, s->batch,  s};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) free(host[i]);
}

const mar_guarantee *mar_session_get_guarantee(const mar_session *s)
{
    return s ? &s->guarantee.facts : NULL;
}

const char *mar_session_guarantee(const mar_session *s)
{
    return s ? s->guarantee.line : "";
}

const char *mar_session_request_guarantee(const mar_session *s, const mar_request *request, char *text, size_t size)
{
    mar_request read;
    mar_guarantee_text made;
    if (!text || size == 0) return "";
    text[0] = '\0';
    if (!s || !request) return text;
    mar_request_init(s, &read, sizeof read);
    if (mar_sized_read(request, &read, sizeof read, "mar_request", NULL) != MAR_OK) return text;
    mar_params p = *mar_session_get_params(s);
    p.cfg = read.cfg;
    mar_guarantee_write(s->model, s->engine_state, &p, read.known, &made);
    snprintf(text, size, "%s", made.line);
    return text;
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

/* --- statistics and measurement ----------------------------------------------------------------------------------- */

void mar_stats_init(mar_stats *stats, size_t size)
{
    mar_sized_init(stats, size, &(const mar_stats){0}, sizeof *stats);
}

void mar_session_get_stats(const mar_session *s, mar_stats *stats)
{
    mar_stats all = {0};
    if (!stats) return;
    if (mar_session_is_usable(s)) {
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

static mar_status session_measure(mar_session *s, mar_measurements *all)
{
    const mar_measured_parts parts = {s->k, s->model->engine, s->engine_state, s->decoder, s->max_images};
    s->images = s->max_images;
    const mar_status status = mar_session_prepare(s, s->max_images);
    return status == MAR_OK ? mar_measure_parts(&parts, all, &s->err) : status;
}

static mar_status measure_and_report(mar_session *s, mar_measurement_function *f, void *user)
{
    mar_status status = mar_check_given((const void *)(uintptr_t)f, "f", &s->err);
    if (status != MAR_OK) return status;
    status = mar_session_refuse_requests(s);
    if (status != MAR_OK) return status;
    mar_measurements all = {0};
    mar_session_drop_since(s, "was measured");
    const int watched = s->k->watch.on; /* the search for layers waits: it takes time and cannot be recorded */
    __atomic_store_n(&s->cancel, 0, __ATOMIC_RELAXED);
    s->k->core->bind(s->k);
    s->k->watch.on = 0;
    status = session_measure(s, &all);
    s->k->watch.on = watched;
    s->k->core->unbind(s->k);
    if (status != MAR_OK) {
        mar_measurements_free(&all);
        return mar_session_drop(s, status);
    }
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
    const mar_status status = mar_session_enter(s);
    return status == MAR_OK ? mar_session_leave(s, measure_and_report(s, f, user)) : status;
}

mar_engine_state *mar_session_engine_state(mar_session *s)
{
    return s->engine_state;
}

kern_queue *mar_session_queue(mar_session *s)
{
    return s->k;
}
