/* The state of a session: its calls, its images in progress and how they end (mar/api/session.h). */
#include "mar/api/session.h"

#include <float.h>
#include <math.h>

/* --- calls -------------------------------------------------------------------------------------------------------- */

mar_status mar_session_refuse_callback(mar_session *s)
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
    if (s->in_call) return mar_session_refuse_callback(s);
    s->in_call = 1;
    return MAR_OK;
}

mar_status mar_session_leave(mar_session *s, mar_status status)
{
    s->in_call = 0;
    return status;
}

int mar_session_is_usable(const mar_session *s)
{
    return s && !mar_in_forked_child(s->model->m);
}

const char *mar_session_error(const mar_session *s)
{
    return s ? s->err.text : mar_error(NULL);
}

const mar_params *mar_session_get_params(const mar_session *s)
{
    return s ? s->model->engine->params(s->engine_state) : NULL;
}

void mar_session_image_size(const mar_session *s, int *width, int *height)
{
    const int stride = s && s->vae ? mar_vae_get_config(s->vae)->stride : 0;
    if (width) *width = stride ? s->grid_width * stride : 0;
    if (height) *height = stride ? s->grid_height * stride : 0;
}

size_t mar_session_token_count(const mar_session *s)
{
    return (size_t)s->model->config.seq_len * (size_t)s->model->config.token_dim;
}

int mar_session_is_token(const mar_session *s, float x)
{
    const int vocabulary = s->model->config.vocabulary;
    return vocabulary ? x >= 0 && x < (float)vocabulary && x == floorf(x) : fabsf(x) <= FLT_MAX;
}

/* --- plans and the log -------------------------------------------------------------------------------------------- */

mar_status mar_session_plan(mar_session *s, int n, mar_err *err)
{
    if (s->planned == n) return MAR_OK;
    s->planned = 0;
    mar_status status = s->model->engine->plan(s->engine_state, n, err);
    if (status == MAR_OK && s->decoder) status = vae_run_plan(s->decoder, n, err);
    if (status == MAR_OK) s->planned = n;
    return status;
}

mar_status mar_session_prepare(mar_session *s, int n)
{
    kern_queue *k = s->k;
    if (kern_check(k, NULL) != MAR_OK) k->core->recover(k);
    k->core->finish(k); /* pending timers belong to the dropped batch */
    s->total_s = s->vae_s = s->vae_flop = 0;
    const mar_status status = kern_check(k, &s->err);
    return status == MAR_OK ? mar_session_plan(s, n, &s->err) : status;
}

void mar_session_log_unrecorded(mar_session *s)
{
    if (s->warned || s->k->unrecorded == 0) return;
    s->warned = 1;
    const mar_err kept = s->err; /* the log callback may make a refused call */
    mar_log(s->model->m, MAR_LOG_WARNING, "work that is repeated cannot be recorded, and takes longer: %s",
            s->k->why_unrecorded.text);
    s->err = kept;
}

mar_status mar_session_report(mar_session *s)
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

/* --- images in progress ------------------------------------------------------------------------------------------- */

int mar_session_is_idle(const mar_session *s)
{
    for (int i = 0; i < s->max_images; i++)
        if (mar_entry_is_running(s->at[i])) return 0;
    return 1;
}

void mar_session_admit(mar_session *s, mar_entry *const *entries, int n)
{
    const mar_engine *engine = s->model->engine;
    for (int i = 0; i < n; i++) {
        entries[i]->slot = s->admit_slot[i];
        entries[i]->state = MAR_REQUEST_RUNNING;
        s->at[s->admit_slot[i]] = entries[i];
    }
    engine->admit(s->engine_state, s->admit_slot, s->admit_image, n);
    for (int i = 0; i < n; i++) entries[i]->steps = engine->steps_left(s->engine_state, entries[i]->slot);
}

void mar_session_release(mar_session *s, mar_entry *e)
{
    if (e->slot < 0) return;
    s->model->engine->release(s->engine_state, e->slot);
    s->at[e->slot] = NULL;
    e->slot = -1;
}

int mar_session_steps_left(const mar_session *s)
{
    int most = 0;
    if (!mar_session_is_usable(s)) return 0;
    for (int i = 0; i < s->max_images; i++) {
        const int left = s->at[i] ? s->model->engine->steps_left(s->engine_state, i) : 0;
        if (left > most) most = left;
    }
    return most ? most : s->pending; /* a request that waits has one step at least */
}

int mar_session_done(const mar_session *s)
{
    return mar_session_steps_left(s) <= 0;
}

mar_status mar_session_examine(mar_session *s, mar_entry **failed)
{
    const kern_queue *k = s->k;
    *failed = NULL;
    for (int i = 0; i < s->max_images; i++) {
        if (!mar_entry_is_running(s->at[i])) continue;
        /* An asynchronous device waits only for an image that is finished, or when a layer is searched. */
        if (k->device->asynchronous && !k->watch.on && mar_entry_steps_left(s, s->at[i]) > 0) continue;
        const mar_status status = s->model->engine->examine(s->engine_state, i, &s->err);
        if (status == MAR_EMODEL) *failed = s->at[i];
        if (status != MAR_OK) return status;
    }
    return MAR_OK;
}

mar_status mar_session_run_step(mar_session *s, mar_entry **failed)
{
    kern_queue *k = s->k;
    const double begun = mar_now();
    *failed = NULL;
    mar_status status = s->model->engine->step(s->engine_state, &s->err);
    int finished = 0;
    for (int i = 0; i < s->max_images; i++)
        finished |= mar_entry_is_running(s->at[i]) && mar_entry_steps_left(s, s->at[i]) <= 0;
    if (finished) k->core->finish(k);
    if (status == MAR_OK) status = mar_session_examine(s, failed);
    s->total_s += mar_now() - begun;
    return status;
}

/* --- the end of a batch ------------------------------------------------------------------------------------------- */

mar_status mar_session_drop(mar_session *s, mar_status status)
{
    s->dropped = status;
    s->why = s->err;
    s->since = NULL;
    s->planned = 0;
    for (int i = 0; i < s->max_images; i++)
        if (s->at[i]) mar_session_release(s, s->at[i]);
    if (status != MAR_ECANCELLED)
        mar_log(s->model->m, MAR_LOG_WARNING, "the batch of %d images from number %llu failed: %s", s->images,
                (unsigned long long)s->first_image, s->why.text);
    s->err = s->why; /* the log callback may have made a refused call */
    return status;
}

void mar_session_drop_since(mar_session *s, const char *since)
{
    for (int i = 0; i < s->max_images; i++)
        if (s->at[i]) mar_session_release(s, s->at[i]);
    s->dropped = MAR_EARG;
    s->since = since;
}

mar_status mar_session_stop_reading(mar_session *s, mar_status status)
{
    if (status != MAR_ECANCELLED) return mar_session_drop(s, status);
    __atomic_store_n(&s->cancel, 0, __ATOMIC_RELAXED);
    s->k->core->bind(s->k);
    s->k->core->recover(s->k);
    s->k->core->unbind(s->k);
    return status;
}

mar_status mar_session_refuse_dropped(mar_session *s)
{
    if (s->dropped == MAR_OK) return MAR_OK;
    if (s->dropped == MAR_ECANCELLED) return err_set(&s->err, MAR_EARG, "the batch was cancelled: begin another first");
    if (s->since) return err_set(&s->err, MAR_EARG, "the session %s: begin a batch first", s->since);
    return err_set(&s->err, MAR_EARG, "the batch failed, begin another first: %s", s->why.text);
}

mar_status mar_session_check_finished(mar_session *s)
{
    if (s->images == 0) return err_set(&s->err, MAR_EARG, "no images: begin a batch first");
    if (s->dropped == MAR_OK && !mar_session_done(s))
        return err_set(&s->err, MAR_EARG, "the images are not finished: %d steps left", mar_session_steps_left(s));
    return mar_session_refuse_dropped(s);
}

mar_status mar_session_refuse_requests(mar_session *s)
{
    if (s->requests == 0) return MAR_OK;
    return err_set(&s->err, MAR_EARG, "the session has %d request%s: take or cancel %s first", s->requests,
                   s->requests == 1 ? "" : "s", s->requests == 1 ? "it" : "them");
}
