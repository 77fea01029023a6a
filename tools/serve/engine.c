#include "tools/serve/engine.h"

#include "tools/cli/command.h"

#include <stdlib.h>
#include <string.h>

static mar_pixels rgb8(const service *s, uint8_t *rgb)
{
    mar_pixels p;
    mar_pixels_init(&p, sizeof p);
    p.format = MAR_PIXELS_RGB8;
    p.data = rgb;
    p.capacity = (size_t)s->width * (size_t)s->height * 3;
    return p;
}

/* Returns the HTTP status of a failure of the library. */
static int code_of(mar_status status)
{
    return status == MAR_EARG ? 400 : status == MAR_ENOMEM || status == MAR_ECANCELLED ? 503 : 500;
}

static void engine_finish(engine *e, job *j, int image, mar_status status)
{
    jobs *t = &e->service->jobs;
    if (status == MAR_OK) {
        jobs_finish(t, j, image, JOB_DONE, 0, NULL);
        return;
    }
    const char *why = mar_session_error(e->service->session);
    if (j->spec.is_edit && !mar_vae_get_config(e->service->models.vae)->encoder)
        why = "the file of the image decoder has no encoder, which an edit needs";
    if (code_of(status) == 500) log_line(&e->service->log, LOG_IMAGE, "an image failed: %s", why);
    jobs_finish(t, j, image, JOB_FAILED, code_of(status), *why ? why : mar_status_name(status));
}

/* --- images that begin ------------------------------------------------------------------------------------------- */

/* Makes the tokens of an edit's picture, once for all images of the job. */
static mar_status encode_picture(engine *e, job *j)
{
    if (j->has_tokens) return MAR_OK;
    const mar_pixels picture = rgb8(e->service, j->spec.picture);
    const mar_status status = mar_session_encode(e->service->session, &picture, j->spec.tokens);
    j->has_tokens = status == MAR_OK;
    return status;
}

static mar_status engine_submit(engine *e, job *j, int image, uint64_t *id)
{
    mar_session *s = e->service->session;
    const captions *c = e->service->models.captions;
    job_prompt *p = j->prompt;
    mar_request r;
    mar_request_init(s, &r, sizeof r);
    if (p || c) {
        const mar_model_config *m = mar_model_get_config(e->service->models.model);
        captions own = {.tokens = m->caption_tokens, .dim = m->caption_dim, .list = p ? &p->rows : NULL};
        captions_place(p ? &own : c, p ? 0 : j->spec.label, e->features, e->mask);
        r.features = e->features;
        r.mask = e->mask;
        if (p && p->negative) {
            own.list = &p->negative->rows;
            r.negative = e->features + own.tokens * own.dim;
            r.negative_mask = e->mask + own.tokens;
            captions_place(&own, 0, e->features + own.tokens * own.dim, e->mask + own.tokens);
        }
    } else {
        r.label = j->spec.label;
    }
    r.seed = j->spec.seed;
    r.image = (uint64_t)image;
    r.cfg = j->spec.cfg;
    if (j->spec.is_edit) {
        const mar_status status = encode_picture(e, j);
        if (status != MAR_OK) return status;
        r.tokens = j->spec.tokens;
        r.known = j->spec.known;
    }
    return mar_session_submit(s, &r, id);
}

/* Fills the session's batch with new images. Those that wait stay in the table, which knows whose turn it is. */
static void take_new(engine *e)
{
    jobs *t = &e->service->jobs;
    int image;
    for (job *j; e->count < e->service->options.batch && (j = jobs_claim(t, &image));) {
        uint64_t id = 0;
        if (jobs_is_cancelled(t, j)) {
            jobs_finish(t, j, image, JOB_CANCELLED, 0, NULL);
            continue;
        }
        const mar_status status = engine_submit(e, j, image, &id);
        if (status == MAR_OK)
            e->work[e->count++] = (engine_work){j, image, id};
        else
            engine_finish(e, j, image, status);
    }
}

/* --- images in progress ------------------------------------------------------------------------------------------- */

static void drop_cancelled(engine *e, int all)
{
    jobs *t = &e->service->jobs;
    int kept = 0;
    for (int i = 0; i < e->count; i++) {
        const engine_work w = e->work[i];
        if (!all && !jobs_is_cancelled(t, w.job)) {
            e->work[kept++] = w;
            continue;
        }
        mar_session_cancel_request(e->service->session, w.id);
        jobs_finish(t, w.job, w.image, JOB_CANCELLED, 0, NULL);
    }
    e->count = kept;
}

/* Takes a finished image. */
static mar_status engine_take(const engine *e, const engine_work *w)
{
    mar_pixels pixels = rgb8(e->service, w->job->image[w->image].rgb);
    return mar_session_take(e->service->session, w->id, NULL, &pixels);
}

static mar_request_info info_of(const engine *e, const engine_work *w)
{
    mar_request_info info;
    mar_request_info_init(&info, sizeof info);
    if (mar_session_get_request(e->service->session, w->id, &info) != MAR_OK) info.state = MAR_REQUEST_UNKNOWN;
    return info;
}

/* Takes the images that are finished, and notes the steps of the others. Returns the number of those taken. `failure`:
 * status of a step that failed as a whole: it ends all that had begun. */
static int look(engine *e, mar_status failure)
{
    jobs *t = &e->service->jobs;
    int kept = 0, taken = 0;
    for (int i = 0; i < e->count; i++) {
        const engine_work w = e->work[i];
        const mar_request_info info = info_of(e, &w);
        switch (info.state) {
        case MAR_REQUEST_DONE:
        case MAR_REQUEST_FAILED:
            engine_finish(e, w.job, w.image, engine_take(e, &w));
            if (info.state == MAR_REQUEST_DONE) /* if its pixels cannot be had it is still there */
                mar_session_cancel_request(e->service->session, w.id);
            taken++;
            continue;
        case MAR_REQUEST_RUNNING:
            if (failure == MAR_OK) {
                jobs_progress(t, w.job, w.image, info.step, info.steps);
                break;
            }
            mar_session_cancel_request(e->service->session, w.id);
            /* fall through */
        case MAR_REQUEST_UNKNOWN:
            engine_finish(e, w.job, w.image, failure == MAR_OK ? MAR_EBACKEND : failure);
            continue;
        case MAR_REQUEST_WAITING:
            break;
        }
        e->work[kept++] = w;
    }
    e->count = kept;
    return taken;
}

/* Makes one preview that a client waits for, so that previews take at most half of the time. */
static void make_preview(engine *e)
{
    service *s = e->service;
    for (int k = 0; k < e->count; k++) {
        const engine_work *w = &e->work[(e->next_preview + k) % e->count];
        if (!jobs_wants_preview(&s->jobs, w->job, w->image)) continue;
        e->next_preview = (e->next_preview + k + 1) % e->count;
        const mar_request_info info = info_of(e, w);
        mar_pixels pixels = rgb8(s, e->rgb);
        if (info.state != MAR_REQUEST_RUNNING || mar_session_preview(s->session, w->id, &pixels) != MAR_OK) continue;
        metrics_preview(&s->metrics);
        jobs_put_preview(&s->jobs, w->job, w->image, info.step, e->rgb);
        return;
    }
}

static void engine_step(engine *e)
{
    service *s = e->service;
    int waiting, running, unencoded;
    const double began = tool_seconds();
    const mar_status status = mar_session_step(s->session);
    const double seconds = tool_seconds() - began;
    atomic_store(&s->is_broken, status != MAR_OK);
    if (status != MAR_OK) log_line(&s->log, LOG_STEP, "a step failed: %s", mar_session_error(s->session));
    const int taken = look(e, status);
    jobs_count(&s->jobs, &waiting, &running, &unencoded);
    metrics_step(&s->metrics, running + taken, seconds);
    e->busy_s += seconds;
    if (taken > 0) {
        jobs_note_pace(&s->jobs, e->busy_s, taken);
        e->busy_s = 0;
    }
    make_preview(e);
}

static void *engine_run(void *self)
{
    engine *e = self;
    while (jobs_await(&e->service->jobs, e->count > 0)) {
        take_new(e);
        drop_cancelled(e, 0);
        if (e->count > 0) engine_step(e);
    }
    take_new(e);
    drop_cancelled(e, 1);
    return NULL;
}

static void free_memory(engine *e)
{
    free(e->work);
    free(e->rgb);
    free(e->features);
    free(e->mask);
}

int engine_start(engine *e, service *s)
{
    const mar_model_config *c = mar_model_get_config(s->models.model);
    *e = (engine){.service = s,
                  .work = calloc((size_t)s->options.batch, sizeof *e->work),
                  .rgb = malloc((size_t)s->width * (size_t)s->height * 3),
                  .features = malloc(2 * (size_t)c->caption_tokens * (size_t)c->caption_dim * sizeof *e->features + 1),
                  .mask = malloc(2 * (size_t)c->caption_tokens + 1)};
    if (e->work && e->rgb && e->features && e->mask && pthread_create(&e->thread, NULL, engine_run, e) == 0) return 0;
    free_memory(e);
    *e = (engine){.service = NULL};
    return tool_error("the system starts no more threads, or has no memory for them");
}

void engine_end(engine *e)
{
    if (!e->service) return;
    pthread_join(e->thread, NULL);
    free_memory(e);
    *e = (engine){.service = NULL};
}
