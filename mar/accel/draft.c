/* A draft model beside the target. Its runner knows every token that the target makes. */
#include "mar/accel/draft.h"

#include "specdec/verifier.h"

#include <stdlib.h>

int mar_verifies_paths(const mar_params *p)
{
    const spec_method *m = p->spec ? spec_method_find(p->spec) : NULL;
    return m && m->paths;
}

static mar_status draft_check(const mar_model *model, mar_params *p, mar_err *err)
{
    const mar_status status = mar_check_draft(model, p->draft, err);
    if (status != MAR_OK || model->config.order != MAR_ORDER_SETS) return status;
    const mar_masked_model *target = mar_masked_model_of(model), *draft = mar_masked_model_of(p->draft);
    const causal_model *language = target->between.language, *of_draft = draft->between.language;
    if (language && language->shape.rows != of_draft->shape.rows) /* ids of prompts are checked by the model's */
        return err_set(err, MAR_EMODEL, "the draft knows %d ids of prompts, expected the model's %d",
                       of_draft->shape.rows, language->shape.rows);
    if (target->process == draft->process) return MAR_OK;
    return err_set(err, MAR_EMODEL, "the draft, %s, has another noise schedule than the model, %s",
                   p->draft->config.title, model->config.title);
}

/* Returns the tokens of an image that its head draws or judges at once: those of a step or, with whole paths, of a
 * round. */
static int step_tokens(const mar_masked *g)
{
    int most = mar_verifies_paths(&g->params) ? g->max_tokens : 0;
    for (int i = 0; i < g->params.num_iter; i++)
        if (g->steps[i].predicted > most) most = g->steps[i].predicted;
    return most;
}

static mar_status draft_create(mar_masked *g, void **state, mar_err *err)
{
    const size_t steps = (size_t)g->params.num_iter;
    mar_draft *d = *state = calloc(1, sizeof *d);
    diff_spec *specs = malloc(2 * steps * sizeof *specs);
    mar_status status = d && specs ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory");
    if (status == MAR_OK) {
        d->g = g;
        d->recordings = calloc(steps, sizeof *d->recordings);
        if (!d->recordings) status = err_set(err, MAR_ENOMEM, "out of memory");
    }
    if (status == MAR_OK) {
        const int n = mar_masked_specs(g, specs);
        status = mar_runner_create(g->k, mar_masked_model_of(g->params.draft), g->max_images, g->cfg_branches,
                                   step_tokens(g), specs, n, g->params.temperature, &d->runner, err);
        g->draft = &d->runner;
        g->draft_recordings = d->recordings;
        d->runner.chain.part = d->runner.net.part = "draft: ";
    }
    free(specs);
    return status;
}

static void draft_free_recordings(mar_draft *d)
{
    for (int i = 0; d->recordings && i < d->g->params.num_iter; i++) mar_recordings_free(d->g->k, &d->recordings[i]);
}

static void draft_destroy(void *state)
{
    mar_draft *d = state;
    draft_free_recordings(d);
    free(d->recordings);
    mar_runner_free(&d->runner);
    free(d);
}

static size_t draft_lay_out(void *state, char *base)
{
    return mar_runner_lay_out(&((mar_draft *)state)->runner, base);
}

static mar_status draft_plan(void *state, int images, mar_err *err)
{
    mar_draft *d = state;
    draft_free_recordings(d);
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && i < d->g->params.num_iter; i++) {
        const mar_step *step = &d->g->steps[i];
        if (d->g->drawer) /* which needs its z */
            status = mar_runner_plan(&d->runner, images, step, err);
        else
            status = masked_runner_plan_known_tokens(&d->runner.net, images * step->predicted, err);
    }
    return status;
}

static void draft_begin(void *state)
{
    mar_draft *d = state;
    mar_runner_begin(&d->runner, d->g->images, d->g->label);
}

static void add_known_tokens(void *state, int n)
{
    mar_draft *d = state;
    const mar_masked *g = d->g;
    mar_recordings *alike = mar_masked_recordings(g, d->recordings, mar_masked_first_alike(g, g->step));
    masked_runner_add_known_tokens(&d->runner.net, g->sampled, n, g->row_slot, g->row_position,
                                   alike ? &alike->net.known_tokens : NULL);
}

static void draft_stats(const void *state, mar_stats *sum)
{
    const mar_runner *r = &((const mar_draft *)state)->runner;
    sum->draft_s = r->net.encoder_s + r->net.decoder_s + r->head_s;
    sum->draft_flop = r->net.encoder_flop + r->net.decoder_flop + r->head_flop;
    if (r->between) sum->draft_flop += between_flop(r->between);
}

static const mar_masked_hooks draft_hooks = {
    .create = draft_create,
    .destroy = draft_destroy,
    .lay_out = draft_lay_out,
    .plan = draft_plan,
    .begin = draft_begin,
    .add_known_tokens = add_known_tokens,
    .stats = draft_stats,
};

const mar_accel mar_accel_draft = {
    .name = "draft",
    .together = 1,
    .changes = MAR_STAGE_DRAFT,
    .needs = MAR_STAGE_AR_STEPS | MAR_STAGE_SOLVER | MAR_STAGE_PASSES | MAR_STAGE_HEAD,
    .exact = 1,
    .check = draft_check,
    .masked = &draft_hooks,
};
