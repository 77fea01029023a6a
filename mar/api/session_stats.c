/* What is known of a session's batch besides its images, and the measurement of a session. */
#include "mar/api/measure_passes.h"
#include "mar/api/session.h"

void mar_session_get_stats(const mar_session *s, mar_stats *stats)
{
    if (stats) *stats = (mar_stats){0};
    if (!stats || !mar_session_is_usable(s)) return;
    kern_queue *k = s->k;
    k->core->enter(k);
    k->core->finish(k); /* the times are complete then */
    k->core->leave(k);
    s->model->engine->stats(s->generation, stats);
    stats->arena_bytes = s->arena_bytes;
    stats->recorded_bytes = k->recorded_bytes;
    stats->products_tuned = __atomic_load_n(&k->device->tuned, __ATOMIC_RELAXED);
    stats->products_otherwise = __atomic_load_n(&k->device->tuned_otherwise, __ATOMIC_RELAXED);
    stats->tuning_s = 1e-9 * (double)__atomic_load_n(&k->device->tuning_ns, __ATOMIC_RELAXED);
    stats->vae_s = s->vae_s;
    stats->vae_flop = s->vae_flop;
    stats->total_s = s->total_s;
}

mar_status mar_session_fates(mar_session *s, uint8_t *map, int *step)
{
    mar_status status = mar_session_enter(s);
    if (status != MAR_OK) return status;
    status = mar_session_check_finished(s);
    if (status == MAR_OK) s->model->engine->fates(s->generation, map, step);
    return mar_session_leave(s, status);
}

mar_status mar_session_lateness(mar_session *s, int *late)
{
    mar_status status = mar_session_enter(s);
    if (status != MAR_OK) return status;
    status = mar_check_given(late, "late", &s->err);
    if (status == MAR_OK) status = mar_session_check_finished(s);
    if (status == MAR_OK) s->model->engine->lateness(s->generation, late);
    return mar_session_leave(s, status);
}

static mar_status measure(mar_session *s, mar_measurements *all)
{
    const mar_passes passes = {s->k, s->model->engine, s->generation, s->decoder, s->max_images};
    s->images = s->max_images;
    const mar_status status = mar_session_prepare(s, s->max_images);
    return status == MAR_OK ? mar_measure_passes(&passes, all, &s->err) : status;
}

static mar_status measure_and_tell(mar_session *s, mar_measurement_function *f, void *user)
{
    mar_status status = mar_check_given((const void *)(uintptr_t)f, "f", &s->err);
    if (status != MAR_OK) return status;
    mar_measurements all = {0};
    s->measured = 0;
    const int watched = s->k->watch.on; /* looking for layers waits, which takes time and cannot be recorded */
    __atomic_store_n(&s->cancel, 0, __ATOMIC_RELAXED);
    s->k->core->enter(s->k);
    s->k->watch.on = 0;
    status = measure(s, &all);
    s->k->watch.on = watched;
    s->k->core->leave(s->k);
    if (status != MAR_OK) {
        mar_measurements_free(&all);
        return mar_session_drop(s, status);
    }
    s->dropped = MAR_EARG; /* the batch: it is of no use */
    s->measured = 1;
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
    const mar_status status = mar_session_enter(s);
    return status == MAR_OK ? mar_session_leave(s, measure_and_tell(s, f, user)) : status;
}
