#include "mar/api/measure_passes.h"

#include <stdio.h>
#include <stdlib.h>

/* A batch from its beginning. */
static mar_status start(const mar_passes *p, const int *labels, mar_err *err)
{
    p->k->core->finish(p->k); /* the times of the batch before end here */
    const mar_status status = kern_check(p->k, err);
    if (status != MAR_OK) return status;
    p->engine->begin(p->generation, 0, labels, p->images);
    return kern_check(p->k, err);
}

/* A batch up to the middle of its steps. A way that takes several in a call may be at the end by then: the batch begins
 * anew, and its first call is what is measured. */
static mar_status start_middle(const mar_passes *p, const int *labels, mar_err *err)
{
    mar_status status = start(p, labels, err);
    const int steps = p->engine->steps_left(p->generation), half = steps - steps / 2;
    while (status == MAR_OK && p->engine->steps_left(p->generation) > half)
        status = p->engine->step(p->generation, err);
    if (status == MAR_OK && p->engine->steps_left(p->generation) <= 0) status = start(p, labels, err);
    p->k->core->finish(p->k);
    return status == MAR_OK ? kern_check(p->k, err) : status;
}

static void add_pass(mar_measurements *all, const char *name, int rows, double seconds, double flop)
{
    mar_measured m = {.group = "pass", .rows = rows, .count = 1, .seconds = seconds, .flop = flop};
    snprintf(m.name, sizeof m.name, "%s", name);
    if (seconds > 0) mar_measurements_add(all, &m);
}

/* How often work is run that its backend may record at its second use, so that the last run replays a recording. */
static int runs_to_replay(const mar_passes *p)
{
    return p->k->device->asynchronous ? 3 : 1;
}

/* The passes of one autoregressive step, as sessions run them; then its operations. */
static mar_status measure_step(const mar_passes *p, const int *labels, mar_measurements *all, mar_err *err)
{
    const mar_engine *engine = p->engine;
    mar_stats before = {0}, after = {0};
    double seconds = 0;
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && i < runs_to_replay(p); i++) {
        status = start_middle(p, labels, err);
        if (status != MAR_OK) return status;
        engine->stats(p->generation, &before);
        const double begun = mar_now();
        status = engine->step(p->generation, err);
        p->k->core->finish(p->k);
        seconds = mar_now() - begun;
        if (status == MAR_OK) status = kern_check(p->k, err);
    }
    if (status != MAR_OK) return status;
    engine->stats(p->generation, &after);
    const int tokens = (int)(after.tokens - before.tokens);
    add_pass(all, "encoder", 0, after.encoder_s - before.encoder_s, after.encoder_flop - before.encoder_flop);
    add_pass(all, "decoder", 0, after.decoder_s - before.decoder_s, after.decoder_flop - before.decoder_flop);
    add_pass(all, "head", tokens, after.head_s - before.head_s, after.head_flop - before.head_flop);
    add_pass(all, "draft", 0, after.draft_s - before.draft_s, after.draft_flop - before.draft_flop);
    add_pass(all, "autoregressive step", tokens, seconds, 0);

    kern_trace *trace;
    status = start_middle(p, labels, err);
    if (status == MAR_OK) status = kern_trace_begin(p->k, &trace, err);
    if (status != MAR_OK) return status;
    status = engine->step(p->generation, err);
    if (status == MAR_EMODEL) status = MAR_OK; /* operations were repeated: the tokens mean nothing */
    kern_trace_end(trace);
    mar_measurements_add_trace(all, "operation", trace);
    kern_trace_free(trace);
    return status == MAR_OK ? kern_check(p->k, err) : status;
}

/* The image decoder on as many images as it takes at a time: what they are of makes no difference. */
static mar_status measure_decoder(const mar_passes *p, mar_measurements *all, mar_err *err)
{
    kern_queue *k = p->k;
    const float *latents = p->engine->latents(p->generation);
    const int images = vae_run_images(p->decoder);
    kern_trace *trace;
    double seconds = 0;
    for (int i = 0; i < runs_to_replay(p); i++) {
        seconds = 0;
        k->core->finish(k);
        k->core->lap(k, NULL);
        (void)vae_decode(p->decoder, latents, images);
        k->core->lap(k, &seconds);
        k->core->finish(k);
    }
    add_pass(all, "image decoder", images, seconds, images * vae_run_flop(p->decoder));
    mar_status status = kern_check(k, err);
    if (status == MAR_OK) status = kern_trace_begin(k, &trace, err);
    if (status != MAR_OK) return status;
    (void)vae_decode(p->decoder, latents, images);
    kern_trace_end(trace);
    mar_measurements_add_trace(all, "image decoder", trace);
    kern_trace_free(trace);
    return kern_check(k, err);
}

mar_status mar_measure_passes(const mar_passes *p, mar_measurements *all, mar_err *err)
{
    int *labels = calloc((size_t)p->images, sizeof *labels);
    if (!labels) return err_set(err, MAR_ENOMEM, "out of memory");
    mar_status status = p->engine->measure(p->generation, all, err);
    if (status == MAR_OK) status = measure_step(p, labels, all, err);
    if (status == MAR_OK && p->decoder) status = measure_decoder(p, all, err);
    free(labels);
    if (status == MAR_OK && all->out_of_memory) status = err_set(err, MAR_ENOMEM, "out of memory");
    return status;
}
