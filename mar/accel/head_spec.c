/* Speculation inside the head (diffusion/speculate.h). With a draft model, the draft's head proposes. */
#include "mar/accel.h"
#include "mar/accel/draft.h"

#include <stdlib.h>

typedef struct {
    mar_chain_stage stage;
    diff_speculation head;
} head_spec;

static mar_status head_spec_create(const mar_chain_stage *stage, void **state, mar_err *err)
{
    head_spec *h = *state = calloc(1, sizeof *h);
    if (!h) return err_set(err, MAR_ENOMEM, "out of memory");
    h->stage = *stage;
    return diff_speculate_create(stage->chain, stage->draft, stage->params->head_spec, 0, &h->head, err);
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

static mar_status head_spec_plan(void *state, int tokens, mar_err *err)
{
    return diff_speculate_plan(&((head_spec *)state)->head, tokens, tokens, err);
}

static void head_spec_draw(void *state, const diff_tokens *tokens, float *x)
{
    head_spec *h = state;
    diff_speculation_stats stats = {0};
    diff_speculate_sample(&h->head, tokens, x, NULL, &stats);
    *h->stage.head_flop += stats.flop;
    diff_speculate_add_stats(&stats, h->stage.stats);
}

/* Tells whether it is on. Where whole paths are verified, it works inside that accelerator. */
static int head_spec_is_on(const mar_params *p)
{
    return !mar_verifies_paths(p);
}

static const mar_chain_hooks head_spec_hooks = {
    .create = head_spec_create,
    .destroy = head_spec_destroy,
    .lay_out = head_spec_lay_out,
    .plan = head_spec_plan,
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
    .chain = &head_spec_hooks,
};
