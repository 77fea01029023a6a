/* What is known of a session's batch besides its images, and the measurement of a session. */
#include "kernels/trace.h"
#include "mar/api/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mar_session_get_stats(const mar_session *s, mar_stats *stats)
{
    if (stats) *stats = (mar_stats){0};
    if (!stats || !mar_session_is_usable(s)) return;
    kern_queue *k = s->k;
    k->core->enter(k);
    k->core->finish(k); /* the times are complete then */
    k->core->leave(k);
    s->model->engine->stats(s->engine_state, stats);
    stats->arena_bytes = s->arena_bytes;
    stats->recorded_bytes = k->recorded_bytes;
    stats->vae_s = s->vae_s;
    stats->vae_flop = s->vae_flop;
    stats->total_s = s->total_s;
}

mar_status mar_session_fates(mar_session *s, uint8_t *map, int *step)
{
    mar_status status = mar_session_enter(s);
    if (status != MAR_OK) return status;
    status = mar_session_check_finished(s);
    if (status == MAR_OK) s->model->engine->fates(s->engine_state, map, step);
    return mar_session_leave(s, status);
}

mar_status mar_session_lateness(mar_session *s, int *late)
{
    mar_status status = mar_session_enter(s);
    if (status != MAR_OK) return status;
    status = mar_check_given(late, "late", &s->err);
    if (status == MAR_OK) status = mar_session_check_finished(s);
    if (status == MAR_OK) s->model->engine->lateness(s->engine_state, late);
    return mar_session_leave(s, status);
}

/* --- measuring ---------------------------------------------------------------------------------------------------- */

/* Begins a batch of any images. */
static mar_status start(mar_session *s)
{
    int *labels = calloc((size_t)s->images, sizeof *labels);
    if (!labels) return err_set(&s->err, MAR_ENOMEM, "out of memory");
    s->k->core->finish(s->k); /* the times of the batch before end here */
    if (kern_check(s->k, &s->err) == MAR_OK) s->model->engine->begin(s->engine_state, 0, labels, s->images);
    free(labels);
    return kern_check(s->k, &s->err);
}

/* Runs a batch up to the middle of its steps. One that takes several in a call may be at the end by then: it begins
 * anew, and its first call is what is measured. */
static mar_status start_middle(mar_session *s)
{
    const mar_engine *engine = s->model->engine;
    mar_status status = start(s);
    const int steps = engine->steps_left(s->engine_state), half = steps - steps / 2;
    while (status == MAR_OK && engine->steps_left(s->engine_state) > half)
        status = engine->step(s->engine_state, &s->err);
    if (status == MAR_OK && engine->steps_left(s->engine_state) <= 0) status = start(s);
    s->k->core->finish(s->k);
    return status == MAR_OK ? kern_check(s->k, &s->err) : status;
}

static mar_status run_step(mar_session *s)
{
    const mar_status status = s->model->engine->step(s->engine_state, &s->err);
    s->k->core->finish(s->k);
    return status == MAR_OK ? kern_check(s->k, &s->err) : status;
}

/* Decodes as many images as the decoder takes at a time; any do. */
static mar_status run_decoder(mar_session *s)
{
    (void)vae_decode(s->decoder, s->model->engine->latents(s->engine_state), vae_run_images(s->decoder));
    s->k->core->finish(s->k);
    return kern_check(s->k, &s->err);
}

/* Runs the work and adds its operations. */
static mar_status trace(mar_session *s, const char *group, mar_status (*work)(mar_session *s), mar_measurements *all)
{
    kern_trace *t;
    int n;
    mar_status status = kern_trace_begin(s->k, &t, &s->err);
    if (status != MAR_OK) return status;
    status = work(s);
    kern_trace_end(t);
    const kern_traced *rows = kern_trace_rows(t, &n);
    for (int i = 0; i < n; i++) {
        const kern_traced *r = &rows[i];
        mar_measured m = {NULL, "", r->rows, r->calls, r->seconds / r->calls, r->bytes / r->calls, r->flop / r->calls};
        memcpy(m.name, r->name, sizeof m.name);
        mar_measurements_add(all, group, &m);
    }
    kern_trace_free(t);
    return status;
}

static void add_pass(mar_measurements *all, const char *name, int rows, double seconds, double flop)
{
    mar_measured m = {.rows = rows, .count = 1, .seconds = seconds, .flop = flop};
    snprintf(m.name, sizeof m.name, "%s", name);
    if (seconds > 0) mar_measurements_add(all, "pass", &m);
}

/* Returns how often work is run that a backend may record at its second use, so that the last run is a replay. */
static int runs_to_replay(const mar_session *s)
{
    return s->k->device->asynchronous ? 3 : 1;
}

/* Measures the passes of one autoregressive step, as sessions run them; then its operations. */
static mar_status measure_step(mar_session *s, mar_measurements *all)
{
    mar_stats before = {0}, after = {0};
    double seconds = 0;
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && i < runs_to_replay(s); i++) {
        status = start_middle(s);
        if (status != MAR_OK) return status;
        s->model->engine->stats(s->engine_state, &before);
        const double begun = mar_now();
        status = run_step(s);
        seconds = mar_now() - begun;
    }
    if (status != MAR_OK) return status;
    s->model->engine->stats(s->engine_state, &after);
    const int tokens = (int)(after.tokens - before.tokens);
    add_pass(all, "encoder", 0, after.encoder_s - before.encoder_s, after.encoder_flop - before.encoder_flop);
    add_pass(all, "decoder", 0, after.decoder_s - before.decoder_s, after.decoder_flop - before.decoder_flop);
    add_pass(all, "head", tokens, after.head_s - before.head_s, after.head_flop - before.head_flop);
    add_pass(all, "draft", 0, after.draft_s - before.draft_s, after.draft_flop - before.draft_flop);
    add_pass(all, "autoregressive step", tokens, seconds, 0);
    status = start_middle(s);
    return status == MAR_OK ? trace(s, "operation", run_step, all) : status;
}

static mar_status measure_decoder(mar_session *s, mar_measurements *all)
{
    const int images = vae_run_images(s->decoder);
    double seconds = 0;
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && i < runs_to_replay(s); i++) {
        const double begun = mar_now();
        status = run_decoder(s);
        seconds = mar_now() - begun;
    }
    if (status != MAR_OK) return status;
    add_pass(all, "image decoder", images, seconds, images * vae_run_flop(s->decoder));
    return trace(s, "image decoder", run_decoder, all);
}

static mar_status measure(mar_session *s, mar_measurements *all)
{
    const mar_engine *engine = s->model->engine;
    s->images = s->max_images;
    mar_status status = mar_session_prepare(s, s->max_images);
    if (status == MAR_OK) status = mar_measure_machine(s->k, all, &s->err);
    if (status == MAR_OK && engine->measure) status = engine->measure(s->engine_state, all, &s->err);
    if (status == MAR_OK) status = measure_step(s, all);
    if (status == MAR_OK && s->decoder) status = measure_decoder(s, all);
    return status == MAR_OK && all->out_of_memory ? err_set(&s->err, MAR_ENOMEM, "out of memory") : status;
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
