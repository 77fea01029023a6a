#include "mar/raster.h"

#include "mar/core/conditioning.h"
#include "mar/raster_measure.h"
#include "mar/raster_tokens.h"

#include <stdlib.h>
#include <string.h>

static mar_raster *raster_of(mar_engine_state *g)
{
    return (mar_raster *)g;
}

static const mar_raster *raster_of_const(const mar_engine_state *g)
{
    return (const mar_raster *)g;
}

/* --- creation ----------------------------------------------------------------------------------------------------- */

static void raster_free(mar_engine_state *engine_state)
{
    mar_raster *g = raster_of(engine_state);
    if (!g) return;
    g->k->core->finish(g->k); /* uploads and timer marks write to memory that is freed below */
    g->head->free(g);
    causal_runner_free(g->target);
    mar_slots_free(&g->slots);
    free(g->start);
    free(g->zero);
    free(g->negative);
    free(g);
}

mar_status mar_raster_create(const raster_head *head, mar_model *base, const mar_vae *vae, kern_queue *k,
                             const mar_params *params, const mar_accel *const *accels, int max_images,
                             mar_engine_state **out, mar_err *err)
{
    *out = NULL;
    mar_status status = mar_check_vae(&base->config, vae, err);
    if (status != MAR_OK) return status;
    mar_raster *g = calloc(1, sizeof *g);
    if (!g) return err_set(err, MAR_ENOMEM, "out of memory");
    *g = (mar_raster){.model = mar_raster_model_of(base),
                      .head = head,
                      .k = k,
                      .max_images = max_images,
                      .branches = params->cfg > 1 ? 2 : 1};
    status = head->resolve(g, params, err);
    if (status == MAR_OK) status = mar_slots_create(k, &base->config, max_images, &g->slots, err);
    g->start = calloc((size_t)max_images, sizeof *g->start);
    g->negative = calloc((size_t)base->config.caption_tokens + 1, sizeof *g->negative + 1);
    if (status == MAR_OK && (!g->start || !g->negative))
        status = err_set(err, MAR_ENOMEM, "out of memory for a batch of %d images", max_images);
    if (status == MAR_OK) status = head->create(g, vae, accels, err);
    if (status == MAR_OK)
        *out = (mar_engine_state *)g;
    else
        raster_free((mar_engine_state *)g);
    return status;
}

static mar_status raster_create_ids(mar_model *model, const mar_vae *vae, kern_queue *k, const mar_params *params,
                                    const mar_accel *const *accels, int max_images, mar_engine_state **out,
                                    mar_err *err)
{
    return mar_raster_create(&raster_softmax_head, model, vae, k, params, accels, max_images, out, err);
}

static mar_status raster_create_vectors(mar_model *model, const mar_vae *vae, kern_queue *k, const mar_params *params,
                                        const mar_accel *const *accels, int max_images, mar_engine_state **out,
                                        mar_err *err)
{
    return mar_raster_create(&raster_diffusion_head, model, vae, k, params, accels, max_images, out, err);
}

static size_t raster_lay_out(mar_engine_state *engine_state, char *base)
{
    mar_raster *g = raster_of(engine_state);
    const size_t used = causal_runner_lay_out(g->target, base);
    return used + g->head->lay_out(g, base ? base + used : NULL);
}

static mar_status raster_plan_images(mar_engine_state *engine_state, int images, mar_err *err)
{
    mar_raster *g = raster_of(engine_state);
    mar_status status = causal_runner_plan(g->target, images, err);
    if (status == MAR_OK) status = g->head->plan(g, images, err);
    return status == MAR_OK ? kern_check(g->k, err) : status;
}

/* --- images that begin and end ------------------------------------------------------------------------------------ */

static int raster_together(const mar_engine_state *engine_state)
{
    const mar_raster *g = raster_of_const(engine_state);
    return g->head->together && g->head->together(g);
}

/* Returns MAR_EARG unless a model of prompts can begin with this one. */
static mar_status raster_check_prompt(const mar_raster *g, const float *ids, const uint8_t *mask, mar_err *err)
{
    const causal_shape *c = &g->model->facts.net;
    return c->prompt ? mar_prompt_check(ids, mask, c->prefix, c->rows, err) : MAR_OK;
}

/* Puts a prompt into the second branch of the images that start next. */
static void raster_put_negative(mar_raster *g, const float *ids, const uint8_t *mask)
{
    causal_runner_set_negative(g->target, ids, mask);
    if (g->head->set_negative) g->head->set_negative(g, ids, mask);
}

static mar_status raster_set_negative(mar_engine_state *engine_state, const float *features, const uint8_t *mask,
                                      mar_err *err)
{
    mar_raster *g = raster_of(engine_state);
    if (!g->model->facts.net.prompt)
        return err_set(err, MAR_EARG, "the model has no negative prompt: its unconditional caption is in its file");
    mar_status status = raster_check_prompt(g, features, mask, err);
    if (status != MAR_OK) return status;
    const size_t prefix = (size_t)g->model->facts.net.prefix;
    memcpy(g->negative, features, prefix * sizeof *features);
    memcpy(g->negative + prefix, mask, prefix);
    raster_put_negative(g, features, mask);
    status = kern_check(g->k, err);
    g->has_negative = status == MAR_OK; /* after a failure its rows may be in part those of another */
    return status;
}

static mar_status raster_check(const mar_engine_state *engine_state, const mar_image *image, mar_err *err)
{
    const mar_raster *g = raster_of_const(engine_state);
    const float cfg = g->plan.params.cfg;
    mar_status status = raster_check_prompt(g, image->features, image->mask, err);
    if (status == MAR_OK) status = raster_check_prompt(g, image->negative, image->negative_mask, err);
    if (status != MAR_OK) return status;
    if (g->model->facts.net.prompt && g->branches == 2 && !g->has_negative && !image->negative)
        return mar_refuse_no_negative(cfg, err);
    if (g->model->net->prompt_file)
        status =
            wt_check_unchanged(g->model->net->prompt_file, MAR_OK, err); /* else all images in progress would fail */
    if (status != MAR_OK) return status;
    status = mar_slots_check_guidance(image, image->cfg > 1 ? 2 : 1, g->branches, cfg, err);
    if (status == MAR_OK && g->head->check) status = g->head->check(g, image, err);
    if (status != MAR_OK || !raster_is_discrete(g->model)) return status;
    return mar_slots_check_prefix(&g->model->base.config, image, err);
}

/* Sets the features of a caption and its mask. NULL means a caption to measure: of a prompt's usual length. */
static void raster_set_caption(mar_raster *g, const mar_image *image, causal_start *start)
{
    const causal_shape *c = &g->model->facts.net;
    const size_t n = (size_t)c->prefix * (size_t)c->caption_dim;
    mar_err err;
    start->features = image->features;
    start->mask = image->mask;
    if (image->features || n == 0) return;
    if (!g->zero) g->zero = calloc(n + (size_t)c->prefix, sizeof *g->zero);
    if (!g->zero) {
        kern_fail(g->k, err_set(&err, MAR_ENOMEM, "out of memory for a caption to measure"), &err);
        return;
    }
    uint8_t *mask = (uint8_t *)(g->zero + n);
    for (int i = 0; i < c->prefix; i++) mask[i] = !c->prompt || i >= c->prefix - RASTER_USUAL_PROMPT;
    start->features = g->zero;
    start->mask = mask;
}

/* Begins images whose second branches have the same prompt. */
static void raster_admit_alike(mar_raster *g, const int *slot, const mar_image *images, int n)
{
    for (int i = 0; i < n; i++) {
        mar_slots_begin(&g->slots, slot[i], &images[i]);
        g->start[i] = (causal_start){.image = slot[i], .label = images[i].label, .cfg = images[i].cfg};
        raster_set_caption(g, &images[i], &g->start[i]);
        g->head->place(g, slot[i], &images[i], &g->start[i]);
    }
    if (kern_check(g->k, NULL) != MAR_OK) return;
    causal_runner_admit(g->target, g->start, n);
    g->head->admit(g, slot, images, n);
}

static void raster_admit(mar_engine_state *engine_state, const int *slot, const mar_image *images, int n)
{
    mar_raster *g = raster_of(engine_state);
    if (mar_slots_are_free(&g->slots)) { /* statistics begin anew */
        kern_watch_begin(g->k);
        causal_runner_clear_stats(g->target);
        g->head->begin(g);
    }
    for (int first = 0, end; first < n; first = end) {
        const mar_image *image = &images[first];
        for (end = first + 1; !image->negative && end < n && !images[end].negative;) end++;
        if (image->negative) raster_put_negative(g, image->negative, image->negative_mask);
        raster_admit_alike(g, slot + first, image, end - first);
        if (image->negative && g->has_negative)
            raster_put_negative(g, g->negative, (uint8_t *)(g->negative + g->model->facts.net.prefix));
    }
}

static void raster_release(mar_engine_state *engine_state, int slot)
{
    mar_raster *g = raster_of(engine_state);
    mar_slots_release(&g->slots, slot);
    if (g->head->release) g->head->release(g, slot);
}

/* --- the loop ----------------------------------------------------------------------------------------------------- */

static int raster_steps_left(const mar_engine_state *g, int slot)
{
    return raster_left(raster_of_const(g), slot);
}

static mar_status raster_step(mar_engine_state *engine_state, mar_err *err)
{
    mar_raster *g = raster_of(engine_state);
    return g->head->step(g, err);
}

static mar_status raster_examine(mar_engine_state *engine_state, int slot, mar_err *err)
{
    const mar_raster *g = raster_of(engine_state);
    if (raster_is_discrete(g->model) && !g->slots.slot[slot].failure.text[0]) return MAR_OK; /* ids are finite */
    return mar_slots_examine(&g->slots, slot, diff_head_range_text(&g->model->head), err);
}

/* Brings a slot up to date. */
static const mar_slots *raster_read(const mar_engine_state *engine_state, int slot)
{
    mar_raster *g = (mar_raster *)(uintptr_t)engine_state;
    if (g->head->read) g->head->read(g, slot);
    return &g->slots;
}

static void raster_snapshot(mar_engine_state *g, int slot, float *tokens, uint8_t *known)
{
    mar_slots_snapshot(raster_read(g, slot), slot, tokens, known);
}

static void raster_token_status(const mar_engine_state *g, int slot, uint8_t *map, int *ar_step)
{
    mar_slots_token_status(raster_read(g, slot), slot, map, ar_step);
}

static void raster_staleness(const mar_engine_state *g, int slot, int *staleness)
{
    mar_slots_staleness(&raster_of_const(g)->slots, slot, staleness);
}

/* --- facts -------------------------------------------------------------------------------------------------------- */

static const mar_params *raster_params(const mar_engine_state *g)
{
    return &raster_of_const(g)->plan.params;
}

static const mar_effect *raster_effect(const mar_engine_state *engine_state)
{
    const mar_raster *g = raster_of_const(engine_state);
    return g->head->effect(g);
}

static const char *raster_warning(const mar_engine_state *engine_state)
{
    const mar_raster *g = raster_of_const(engine_state);
    return g->head->warning ? g->head->warning(g) : NULL;
}

static const float *raster_latents(const mar_engine_state *g)
{
    return raster_of_const(g)->slots.tokens;
}

static void raster_normalise(const mar_engine_state *g, float *tokens)
{
    raster_normalise_tokens(raster_of_const(g), tokens);
}

static void raster_stats(const mar_engine_state *engine_state, mar_stats *stats)
{
    const mar_raster *g = raster_of_const(engine_state);
    const causal_runner_stats *target = causal_runner_get_stats(g->target);
    g->head->stats(g, stats);
    stats->decoder_s += target->prefix_s + target->tokens_s;
    if (stats->plain_s > 0 && !g->diffusion) stats->plain_s += target->prefix_s;
    stats->decoder_flop = target->flop;
    stats->decoder_bytes = target->bytes;
    stats->passes = (double)target->passes;
}

static mar_status raster_measure(mar_engine_state *engine_state, mar_measurements *all, mar_err *err)
{
    mar_raster *g = raster_of(engine_state);
    return g->head->measure ? g->head->measure(g, all, err) : MAR_OK;
}

extern const mar_engine mar_raster_ids_engine, mar_raster_vectors_engine;

/* What both engines share: the loop. */
#define RASTER_LOOP                                                                                                    \
    .load = raster_load, .unload = mar_raster_unload, .describe = mar_raster_describe, .free = raster_free,            \
    .params = raster_params, .effect = raster_effect, .warning = raster_warning, .lay_out = raster_lay_out,            \
    .plan = raster_plan_images, .together = raster_together, .check = raster_check,                                    \
    .set_negative = raster_set_negative, .admit = raster_admit, .release = raster_release, .step = raster_step,        \
    .steps_left = raster_steps_left, .examine = raster_examine, .snapshot = raster_snapshot,                           \
    .latents = raster_latents, .stats = raster_stats, .measure = raster_measure, .token_status = raster_token_status,  \
    .staleness = raster_staleness

const mar_engine mar_raster_ids_engine = {
    .tokens = "discrete",
    .order = MAR_ORDER_RASTER,
    .stages = MAR_STAGE_DRAFT,
    .create = raster_create_ids,
    RASTER_LOOP,
};

const mar_engine mar_raster_vectors_engine = {
    .tokens = "continuous",
    .order = MAR_ORDER_RASTER,
    .stages = MAR_STAGE_DRAFT | MAR_STAGE_COUNTS | MAR_STAGE_SOLVER | MAR_STAGE_CHAIN,
    .create = raster_create_vectors,
    .normalise = raster_normalise,
    RASTER_LOOP,
};
