/* Measures a session's passes and operations. */
#include "mar/core/measure_session.h"

#include "kernels/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

mar_status mar_measure_begin(const mar_measured_parts *p, mar_err *err)
{
    const size_t n = (size_t)p->images;
    int *slot = malloc(n * sizeof *slot);
    mar_image *images = calloc(n, sizeof *images);
    const mar_params *params = p->engine->params(p->engine_state);
    mar_status status = slot && images ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
    p->k->core->finish(p->k); /* pending timers belong to the batch before */
    for (int i = 0; status == MAR_OK && i < p->images; i++) {
        p->engine->release(p->engine_state, i);
        slot[i] = i;
        images[i] = (mar_image){.seed = params->seed, .number = (uint64_t)i, .cfg = params->cfg};
    }
    if (status == MAR_OK) status = kern_check(p->k, err);
    if (status == MAR_OK) p->engine->admit(p->engine_state, slot, images, p->images);
    free(slot);
    free(images);
    return status == MAR_OK ? kern_check(p->k, err) : status;
}

/* Runs a batch to the middle of its steps. A batch that takes several steps a call may have ended by then. It begins
 * anew, and its first call is measured. All images have as many steps left. */
static mar_status start_middle(const mar_measured_parts *p, mar_err *err)
{
    const mar_engine *engine = p->engine;
    mar_engine_state *g = p->engine_state;
    mar_status status = mar_measure_begin(p, err);
    const int steps = engine->steps_left(g, 0), half = steps - steps / 2;
    while (status == MAR_OK && engine->steps_left(g, 0) > half) status = engine->step(g, err);
    if (status == MAR_OK && engine->steps_left(g, 0) <= 0) status = mar_measure_begin(p, err);
    p->k->core->finish(p->k);
    return status == MAR_OK ? kern_check(p->k, err) : status;
}

static mar_status measure_session_run_step(const mar_measured_parts *p, mar_err *err)
{
    const mar_status status = p->engine->step(p->engine_state, err);
    p->k->core->finish(p->k);
    return status == MAR_OK ? kern_check(p->k, err) : status;
}

/* Decodes as many images as the decoder takes at a time, of any content. */
static mar_status run_decoder(const mar_measured_parts *p, mar_err *err)
{
    (void)vae_decode(p->decoder, p->engine->latents(p->engine_state), vae_run_images(p->decoder));
    p->k->core->finish(p->k);
    return kern_check(p->k, err);
}

/* Runs the work and adds its operations. */
static mar_status trace(const mar_measured_parts *p, const char *group,
                        mar_status (*work)(const mar_measured_parts *p, mar_err *err), mar_measurements *all,
                        mar_err *err)
{
    kern_trace *t;
    int n;
    mar_status status = kern_trace_begin(p->k, &t, err);
    if (status != MAR_OK) return status;
    status = work(p, err);
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

/* Returns how often to run work that a backend may record at its second use, so that the last run is a replay. */
static int runs_to_replay(const mar_measured_parts *p)
{
    return p->k->device->asynchronous ? 3 : 1;
}

/* Measures the passes of one autoregressive step, as sessions run them; then its operations. */
static mar_status measure_session_measure_step(const mar_measured_parts *p, mar_measurements *all, mar_err *err)
{
    mar_stats before = {0}, after = {0};
    double seconds = 0;
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && i < runs_to_replay(p); i++) {
        status = start_middle(p, err);
        if (status != MAR_OK) return status;
        p->engine->stats(p->engine_state, &before);
        const double begun = mar_now();
        status = measure_session_run_step(p, err);
        seconds = mar_now() - begun;
    }
    if (status != MAR_OK) return status;
    p->engine->stats(p->engine_state, &after);
    const int tokens = (int)(after.tokens - before.tokens);
    add_pass(all, "encoder", 0, after.encoder_s - before.encoder_s, after.encoder_flop - before.encoder_flop);
    add_pass(all, after.encoder_flop > 0 ? "decoder" : "transformer", 0, after.decoder_s - before.decoder_s,
             after.decoder_flop - before.decoder_flop);
    add_pass(all, "head", tokens, after.head_s - before.head_s, after.head_flop - before.head_flop);
    add_pass(all, "draft", 0, after.draft_s - before.draft_s, after.draft_flop - before.draft_flop);
    add_pass(all, "autoregressive step", tokens, seconds, 0);
    status = start_middle(p, err);
    return status == MAR_OK ? trace(p, "operation", measure_session_run_step, all, err) : status;
}

static mar_status measure_decoder(const mar_measured_parts *p, mar_measurements *all, mar_err *err)
{
    const int images = vae_run_images(p->decoder);
    double seconds = 0;
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && i < runs_to_replay(p); i++) {
        const double begun = mar_now();
        status = run_decoder(p, err);
        seconds = mar_now() - begun;
    }
    if (status != MAR_OK) return status;
    add_pass(all, "image decoder", images, seconds, images * vae_run_flop(p->decoder));
    return trace(p, "image decoder", run_decoder, all, err);
}

mar_status mar_measure_parts(const mar_measured_parts *p, mar_measurements *all, mar_err *err)
{
    mar_status status = mar_measure_machine(p->k, all, err);
    if (status == MAR_OK && p->engine->measure) status = p->engine->measure(p->engine_state, all, err);
    if (status == MAR_OK) status = measure_session_measure_step(p, all, err);
    if (status == MAR_OK && p->decoder) status = measure_decoder(p, all, err);
    for (int i = 0; i < p->images; i++) p->engine->release(p->engine_state, i);
    return status == MAR_OK && all->out_of_memory ? err_set(err, MAR_ENOMEM, "out of memory") : status;
}
