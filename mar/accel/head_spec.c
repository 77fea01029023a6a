/* Speculation inside the head (diffusion/speculate.h) for the tokens of a step. With a draft model, the draft's head
 * proposes. */
#include "mar/masked.h"
#include "mar/accel/draft.h"

#include "diffusion/speculate.h"

#include <stdlib.h>

typedef struct {
    mar_masked *g;
    diff_speculation head;
    mar_draft *draft; /* NULL: no draft model, the filter proposes */
} head_spec;

static mar_status head_spec_create(mar_masked *g, void **state, mar_err *err)
{
    head_spec *h = *state = calloc(1, sizeof *h);
    if (!h) return err_set(err, MAR_ENOMEM, "out of memory");
    h->g = g;
    h->draft = mar_masked_state(g, &mar_accel_draft);
    return diff_speculate_create(&g->target.chain, h->draft ? &h->draft->runner.chain : NULL, g->params.head_spec, 0,
                                 &h->head, err);
}

static void head_spec_destroy(void *state)
{
    head_spec *h = state;
    diff_speculate_free(&h->head);
    free(h);
}

static size_t head_spec_lay_out(void *state, char *base)
{
    return diff_speculate_lay_out(&((head_spec *)state)->head, base);
}

static mar_status head_spec_plan(void *state, int images, mar_err *err)
{
    const head_spec *h = state;
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && h->draft && i < h->g->params.num_iter; i++)
        status = mar_runner_plan(&h->draft->runner, images, &h->g->steps[i], err);
    return status;
}

static mar_status head_spec_plan_draw(void *state, int tokens, int steps, mar_err *err)
{
    head_spec *h = state;
    if (h->draft) {
        diff_chain_use(&h->draft->runner.chain, steps);
        diff_chain_guide(&h->draft->runner.chain, h->g->target.chain.guided);
    }
    return diff_speculate_plan(&h->head, tokens, tokens, err);
}

/* Computes the draft's z of the step's tokens. They are drawn in one call, because with a draft no accelerator changes
 * the steps. */
static const float *predict_draft_z(head_spec *h, const mar_draw *d, int steps)
{
    mar_runner *r = &h->draft->runner;
    const mar_batch batch = mar_masked_batch(h->g);
    mar_runner_predict(r, &batch, &h->g->steps[h->g->step], 0, d->count,
                       mar_masked_recordings(h->g, h->draft->recordings, h->g->step));
    diff_chain_use(&r->chain, steps);
    diff_chain_guide(&r->chain, h->g->target.chain.guided);
    return r->net.z;
}

static void head_spec_draw(void *state, const mar_draw *d, int z_row, int steps, float *x)
{
    head_spec *h = state;
    mar_masked *g = h->g;
    kern_queue *k = g->k;
    const float *z = g->target.net.z + (size_t)z_row * (size_t)g->model->base.config.width;
    const float *draft_z = h->draft ? predict_draft_z(h, d, steps) : NULL;
    diff_speculation_stats stats = {0};
    k->core->timer_mark(k, NULL);
    const diff_tokens tokens = {.count = d->count,
                                .sources = d->count,
                                .z = z,
                                .draft_z = draft_z,
                                .cfg = d->cfg,
                                .seed = d->seed,
                                .image = d->image,
                                .position = d->position};
    diff_speculate_sample(&h->head, &tokens, x, NULL, &stats);
    k->core->timer_mark(k, &g->target.head_s);
    g->target.head_flop += stats.flop;
    diff_speculate_add_stats(&stats, &g->stats);
}

/* Tells whether it is on. Where whole paths are verified, it works inside that accelerator. */
static int head_spec_is_on(const mar_params *p)
{
    return !mar_verifies_paths(p);
}

static const mar_masked_hooks head_spec_hooks = {
    .create = head_spec_create,
    .destroy = head_spec_destroy,
    .lay_out = head_spec_lay_out,
    .plan = head_spec_plan,
    .plan_draw = head_spec_plan_draw,
    .draw = head_spec_draw,
};

const mar_accel mar_accel_head_spec = {
    .name = "head_spec",
    .changes = MAR_STAGE_CHAIN,
    .needs = MAR_STAGE_SOLVER | MAR_STAGE_HEAD,
    .exact = 1,
    .exact_by = "speculation inside the head",
    .methods =
        (const mar_accel_method[]){{.name = "head-spec",
                                    .guarantee = "",
                                    .source = "De Bortoli et al. 2025, with continuous SD Eq. 10's residual",
                                    .summary = "guess W steps of a token's chain, verify them in one call of the "
                                               "head"},
                                   {0}},
    .is_on = head_spec_is_on,
    .masked = &head_spec_hooks,
};
