/* A session's batch: it begins, steps, tells how far it is, and ends or is dropped. */
#include "mar/api/session.h"
#include "mar/masked/subjects.h"

mar_status mar_session_drop(mar_session *s, mar_status status)
{
    s->dropped = status;
    s->why = s->err;
    s->planned = 0;
    if (status != MAR_ECANCELLED)
        mar_log(s->model->m, MAR_LOG_WARNING, "the batch of %d images from number %llu failed: %s", s->images,
                (unsigned long long)s->first_image, s->why.text);
    s->err = s->why; /* the log may have made a call that was refused */
    return status;
}

mar_status mar_session_stop_reading(mar_session *s, mar_status status)
{
    if (status != MAR_ECANCELLED) return mar_session_drop(s, status);
    __atomic_store_n(&s->cancel, 0, __ATOMIC_RELAXED);
    s->k->core->enter(s->k);
    s->k->core->recover(s->k);
    s->k->core->leave(s->k);
    return status;
}

mar_status mar_session_report(mar_session *s)
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

void mar_session_tell_unrecorded(mar_session *s)
{
    if (s->told || s->k->unrecorded == 0) return;
    s->told = 1;
    const mar_err kept = s->err; /* the log may make a call that is refused */
    mar_log(s->model->m, MAR_LOG_WARNING, "work that is repeated cannot be recorded, and takes longer: %s",
            s->k->why_unrecorded.text);
    s->err = kept;
}

mar_status mar_session_prepare(mar_session *s, int n)
{
    kern_queue *k = s->k;
    if (kern_check(k, NULL) != MAR_OK) k->core->recover(k);
    k->core->finish(k); /* the times of a dropped batch end here */
    const mar_status status = kern_check(k, &s->err);
    return status == MAR_OK ? mar_session_plan(s, n, &s->err) : status;
}

static mar_status start(mar_session *s, uint64_t first_image, const mar_subjects *of, int n)
{
    const mar_engine *engine = s->model->engine;
    const mar_status status = mar_session_prepare(s, n);
    if (status != MAR_OK) return status;
    const double begun = mar_now();
    if (of->labels)
        engine->begin(s->generation, first_image, of->labels, n);
    else
        engine->begin_captions(s->generation, first_image, of->features, of->mask, n);
    s->steps = engine->steps_left(s->generation);
    s->total_s = mar_now() - begun;
    return kern_check(s->k, &s->err);
}

static mar_status begin(mar_session *s, uint64_t first_image, const mar_subjects *of, int n)
{
    if (n < 1 || n > s->max_images)
        return err_set(&s->err, MAR_EARG, "%d images: expected 1..%d, the session's batch", n, s->max_images);
    mar_status status = mar_subjects_check(of, &s->model->config, n, &s->err);
    if (status != MAR_OK) return status;
    __atomic_store_n(&s->cancel, 0, __ATOMIC_RELAXED); /* it concerned the batch before */
    s->images = n;
    s->first_image = first_image;
    s->decoded = 0;
    s->dropped = MAR_OK;
    s->measured = 0;
    s->vae_s = s->vae_flop = 0;
    s->k->core->enter(s->k);
    status = start(s, first_image, of, n);
    s->k->core->leave(s->k);
    return status == MAR_OK ? MAR_OK : mar_session_drop(s, status);
}

mar_status mar_session_begin(mar_session *s, uint64_t first_image, const int *labels, int n)
{
    mar_status status = mar_session_enter(s);
    if (status != MAR_OK) return status;
    status = mar_check_given(labels, "labels", &s->err);
    if (status == MAR_OK) status = begin(s, first_image, &(mar_subjects){.labels = labels}, n);
    return mar_session_leave(s, status);
}

mar_status mar_session_begin_captions(mar_session *s, uint64_t first_image, const float *features, const uint8_t *mask,
                                      int n)
{
    mar_status status = mar_session_enter(s);
    if (status != MAR_OK) return status;
    status = mar_check_given(features, "features", &s->err);
    if (status == MAR_OK) status = begin(s, first_image, &(mar_subjects){.features = features, .mask = mask}, n);
    return mar_session_leave(s, status);
}

static mar_status refuse_dropped(mar_session *s)
{
    if (s->dropped == MAR_OK) return MAR_OK;
    if (s->dropped == MAR_ECANCELLED) return err_set(&s->err, MAR_EARG, "the batch was cancelled: begin another first");
    if (s->measured) return err_set(&s->err, MAR_EARG, "the session was measured: begin a batch first");
    return err_set(&s->err, MAR_EARG, "the batch failed, begin another first: %s", s->why.text);
}

static mar_status step(mar_session *s)
{
    mar_status status = refuse_dropped(s);
    if (status != MAR_OK) return status;
    kern_queue *k = s->k;
    if (mar_session_done(s)) return err_set(&s->err, MAR_EARG, "no step left: begin a batch first");
    k->core->enter(k);
    const double begun = mar_now();
    status = s->model->engine->step(s->generation, &s->err);
    if (mar_session_done(s)) k->core->finish(k);
    s->total_s += mar_now() - begun;
    /* A cancel that comes when all is done leaves the images whole. */
    const int whole = status == MAR_OK && k->failed == MAR_OK && mar_session_done(s);
    if (status == MAR_OK) status = kern_check(k, &s->err);
    k->core->leave(k);
    mar_session_tell_unrecorded(s);
    if (status == MAR_OK) {
        status = mar_session_report(s);
        if (status == MAR_OK) status = kern_check(k, &s->err); /* whether it was cancelled there */
    }
    if (status == MAR_OK) return MAR_OK;
    return whole ? mar_session_stop_reading(s, status) : mar_session_drop(s, status);
}

mar_status mar_session_step(mar_session *s)
{
    const mar_status status = mar_session_enter(s);
    return status == MAR_OK ? mar_session_leave(s, step(s)) : status;
}

int mar_session_done(const mar_session *s)
{
    return mar_session_steps_left(s) <= 0;
}

int mar_session_steps_left(const mar_session *s)
{
    return mar_session_is_usable(s) && s->dropped == MAR_OK ? s->model->engine->steps_left(s->generation) : 0;
}

mar_status mar_session_check_finished(mar_session *s)
{
    if (s->images == 0) return err_set(&s->err, MAR_EARG, "no images: begin a batch first");
    if (!mar_session_done(s))
        return err_set(&s->err, MAR_EARG, "the images are not finished: %d steps left", mar_session_steps_left(s));
    return refuse_dropped(s);
}
