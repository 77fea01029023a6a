/* Batches: images that begin together, of consecutive numbers (mar/api/session.h). A batch is as many requests, with
 * the session's seed and guidance, which keep the slots 0, 1, .. until the next batch. */
#include "mar/api/session.h"

#include "mar/core/conditioning.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* --- beginning ---------------------------------------------------------------------------------------------------- */

/* Returns image i of a batch. */
static mar_image image_of(const mar_session *s, uint64_t first_image, const mar_conditions *of, int i)
{
    const mar_params *p = mar_session_get_params(s);
    const mar_model_config *c = &s->model->config;
    const size_t positions = (size_t)c->caption_tokens, features = positions * (size_t)c->caption_dim;
    return (mar_image){.label = of->labels ? of->labels[i] : -1,
                       .features = of->features ? of->features + (size_t)i * features : NULL,
                       .mask = of->mask ? of->mask + (size_t)i * positions : NULL,
                       .seed = p->seed,
                       .number = first_image + (uint64_t)i,
                       .cfg = p->cfg};
}

/* Lists the images of the batch in s->admit_image. */
static void list_images(mar_session *s, const mar_conditions *of)
{
    for (int i = 0; i < s->images; i++) {
        s->admit_slot[i] = i;
        s->admit_image[i] = image_of(s, s->first_image, of, i);
        s->batch[i] = (mar_entry){.id = ++s->last_id, .image = {.number = s->first_image + (uint64_t)i}};
        s->admit_entry[i] = &s->batch[i];
    }
}

static mar_status batch_start(mar_session *s, const mar_conditions *of)
{
    const mar_status status = mar_session_prepare(s, s->images);
    if (status != MAR_OK) return status;
    const double begun = mar_now();
    list_images(s, of);
    mar_session_admit(s, s->admit_entry, s->images);
    s->steps = mar_session_steps_left(s);
    s->total_s = mar_now() - begun;
    return kern_check(s->k, &s->err);
}

static mar_status batch_begin(mar_session *s, uint64_t first_image, const mar_conditions *of, int n)
{
    if (n < 1 || n > s->max_images)
        return err_set(&s->err, MAR_EARG, "%d images: expected 1..%d, the session's batch", n, s->max_images);
    mar_status status = mar_conditioning_check(of, &s->model->config, n, &s->err);
    for (int i = 0; status == MAR_OK && i < n; i++) {
        const mar_image image = image_of(s, first_image, of, i);
        status = s->model->engine->check(s->engine_state, &image, &s->err);
    }
    if (status == MAR_OK) status = mar_session_refuse_requests(s);
    if (status != MAR_OK) return status;
    __atomic_store_n(&s->cancel, 0, __ATOMIC_RELAXED); /* the flag concerned the previous batch */
    mar_session_drop_since(s, NULL);                   /* frees the slots */
    s->images = n;
    s->first_image = first_image;
    s->decoded = 0;
    s->dropped = MAR_OK;
    s->k->core->bind(s->k);
    status = batch_start(s, of);
    s->k->core->unbind(s->k);
    return status == MAR_OK ? MAR_OK : mar_session_drop(s, status);
}

mar_status mar_session_begin(mar_session *s, uint64_t first_image, const int *labels, int n)
{
    mar_status status = mar_session_enter(s);
    if (status != MAR_OK) return status;
    status = mar_check_given(labels, "labels", &s->err);
    if (status == MAR_OK) status = batch_begin(s, first_image, &(mar_conditions){.labels = labels}, n);
    return mar_session_leave(s, status);
}

mar_status mar_session_begin_captions(mar_session *s, uint64_t first_image, const float *features, const uint8_t *mask,
                                      int n)
{
    mar_status status = mar_session_enter(s);
    if (status != MAR_OK) return status;
    status = mar_check_given(features, "features", &s->err);
    if (status == MAR_OK)
        status = batch_begin(s, first_image, &(mar_conditions){.features = features, .mask = mask}, n);
    return mar_session_leave(s, status);
}

mar_status mar_session_set_negative(mar_session *s, const float *features, const uint8_t *mask)
{
    mar_status status = mar_session_enter(s);
    if (status != MAR_OK) return status;
    const mar_engine *engine = s->model->engine;
    status = mar_check_given(features, "features", &s->err);
    if (status == MAR_OK) status = mar_check_given(mask, "mask", &s->err);
    if (status == MAR_OK && (!engine->set_negative || !s->model->config.caption_tokens))
        status = err_set(&s->err, MAR_EARG, "the model makes images of classes: it has no negative prompt");
    if (status == MAR_OK) status = mar_features_check(features, &s->model->config, 1, &s->err);
    if (status != MAR_OK) return mar_session_leave(s, status);
    const int idle = mar_session_is_idle(s) && !s->pending; /* else a failure is that of images in progress */
    s->k->core->bind(s->k);
    if (idle && kern_check(s->k, NULL) != MAR_OK) { /* of the batch before */
        __atomic_store_n(&s->cancel, 0, __ATOMIC_RELAXED);
        s->k->core->recover(s->k);
    }
    status = engine->set_negative(s->engine_state, features, mask, &s->err);
    s->k->core->unbind(s->k);
    return mar_session_leave(s, status);
}

/* --- a step ------------------------------------------------------------------------------------------------------- */

static mar_status batch_step(mar_session *s)
{
    mar_entry *failed;
    mar_status status = mar_session_refuse_dropped(s);
    if (status != MAR_OK) return status;
    kern_queue *k = s->k;
    if (mar_session_done(s)) return err_set(&s->err, MAR_EARG, "no step left: begin a batch first");
    k->core->bind(k);
    status = mar_session_run_step(s, &failed);
    const int done = mar_session_done(s);
    for (int i = 0; done && i < s->images; i++) s->batch[i].state = MAR_REQUEST_DONE;
    /* A cancel after the last step leaves the images whole. */
    const int whole = status == MAR_OK && k->failed == MAR_OK && done;
    if (status == MAR_OK) status = kern_check(k, &s->err);
    k->core->unbind(k);
    mar_session_log_unrecorded(s);
    if (status == MAR_OK) {
        status = mar_session_report(s);
        if (status == MAR_OK) status = kern_check(k, &s->err); /* the callback may have cancelled */
    }
    if (status == MAR_OK) return MAR_OK;
    return whole ? mar_session_stop_reading(s, status) : mar_session_drop(s, status);
}

mar_status mar_session_step(mar_session *s)
{
    const mar_status status = mar_session_enter(s);
    if (status != MAR_OK) return status;
    return mar_session_leave(s, s->requests ? mar_session_step_requests(s) : batch_step(s));
}

uint64_t mar_session_batch_request(const mar_session *s, int i)
{
    if (!mar_session_is_usable(s) || s->dropped != MAR_OK || i < 0 || i >= s->images) return 0;
    return s->batch[i].id;
}

/* --- results ------------------------------------------------------------------------------------------------------ */

static mar_status fetch_tokens(mar_session *s, float *tokens)
{
    mar_status status = mar_check_given(tokens, "tokens", &s->err);
    if (status == MAR_OK) status = mar_session_check_finished(s);
    if (status != MAR_OK) return status;
    kern_queue *k = s->k;
    k->core->bind(k);
    k->core->download(k, tokens, s->model->engine->latents(s->engine_state),
                      (size_t)s->images * mar_session_token_count(s) * sizeof *tokens);
    k->core->unbind(k);
    status = kern_check(k, &s->err);
    return status == MAR_OK ? MAR_OK : mar_session_stop_reading(s, status);
}

mar_status mar_session_tokens(mar_session *s, float *tokens)
{
    const mar_status status = mar_session_enter(s);
    return status == MAR_OK ? mar_session_leave(s, fetch_tokens(s, tokens)) : status;
}

mar_status mar_session_token_status(mar_session *s, uint8_t *map, int *step)
{
    mar_status status = mar_session_enter(s);
    if (status != MAR_OK) return status;
    const size_t n = (size_t)s->model->config.seq_len;
    status = mar_session_check_finished(s);
    for (int i = 0; status == MAR_OK && i < s->images; i++)
        s->model->engine->token_status(s->engine_state, i, map ? map + (size_t)i * n : NULL,
                                       step ? step + (size_t)i * n : NULL);
    return mar_session_leave(s, status);
}

mar_status mar_session_staleness(mar_session *s, int *late)
{
    mar_status status = mar_session_enter(s);
    if (status != MAR_OK) return status;
    const size_t n = (size_t)s->model->config.seq_len;
    status = mar_check_given(late, "late", &s->err);
    if (status == MAR_OK) status = mar_session_check_finished(s);
    for (int i = 0; status == MAR_OK && i < s->images; i++)
        s->model->engine->staleness(s->engine_state, i, late + (size_t)i * n);
    return mar_session_leave(s, status);
}
