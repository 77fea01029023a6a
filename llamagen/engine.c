#include "llamagen/engine.h"

#include "mar_files.h"
#include "mar_measure.h"

#include "base/arena.h"
#include "mar/core/neighbours.h"
#include "mar/slots.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    const mar_discrete_model *model;
    kern_queue *k; /* the session's queue */
    mar_discrete_plan plan;
    int max_images;
    mar_effect effect;

    causal_runner *target;
    mar_drafter draft;
    spec_sampler *sampler;
    int *neighbours; /* backend [vocabulary][plan.neighbours]; NULL: the method needs none */
    mar_slots slots; /* their tokens are ids of finished images; the sampler has those of the others */

    causal_start *start; /* [max_images] the images that begin */
    int *given;          /* [max_images][seq_len] their known tokens */
    float *number;       /* host [max_images][seq_len] token ids on their way to the slots */
    /* host [caption_tokens][caption_dim] of 0, a caption to measure, and its mask behind; NULL before the first */
    float *zero;
    int has_negative; /* 1: the second branch's caption is set; needed by decoders of text/grammar.h */
} discrete;

static discrete *of(mar_engine_state *g)
{
    return (discrete *)g;
}

static const discrete *of_const(const mar_engine_state *g)
{
    return (const discrete *)g;
}

/* --- the models --------------------------------------------------------------------------------------------------- */

static mar_status target_log_probs(void *state, const causal_request *request, int n, float *log_probs, mar_err *err)
{
    return causal_runner_log_probs(((discrete *)state)->target, request, n, log_probs, err);
}

static mar_status target_log_probs_then(void *state, const causal_request *request, int n, float *log_probs,
                                        const causal_continuation *continuation, mar_err *err)
{
    return causal_runner_log_probs_then(((discrete *)state)->target, request, n, log_probs, continuation, err);
}

static mar_status draft_log_probs(void *state, const causal_request *request, int n, float *log_probs, mar_err *err)
{
    return mar_drafter_log_probs(&((discrete *)state)->draft, request, n, log_probs, err);
}

static causal_sampling sampling_of(const discrete *g)
{
    const mar_params *p = &g->plan.params;
    return (causal_sampling){.cfg = p->cfg,
                             .cfg_interval = p->cfg_interval,
                             .temperature = p->temperature,
                             .top_k = p->top_k,
                             .top_p = p->top_p};
}

static int is_dynamic(const discrete *g)
{
    return g->plan.params.tree && strcmp(g->plan.params.tree, "dynamic") == 0;
}

/* Returns whether the sampler takes the likeliest tokens. With temperature 0 the draft distribution has one token, and
 * draws would make a chain of a static tree. */
static int takes_likeliest(const discrete *g)
{
    return g->plan.tree.count > 0 && g->plan.params.temperature == 0;
}

/* Returns the sampling of the draft. Drafts that are chosen, not drawn, are the likeliest of the plain softmax, as in
 * EAGLE-2: temperature, top-k and top-p may leave fewer tokens than a tree has siblings. They are verified as point
 * masses, so that any choice is exact. */
static causal_sampling draft_sampling_of(const discrete *g)
{
    causal_sampling sampling = sampling_of(g);
    if (is_dynamic(g) || takes_likeliest(g)) sampling.temperature = 1, sampling.top_k = 0, sampling.top_p = 1;
    return sampling;
}

static mar_status create_runners(discrete *g, mar_err *err)
{
    const mar_model *draft = g->plan.params.draft;
    const causal_sampling sampling = sampling_of(g), draft_sampling = draft_sampling_of(g);
    const kern_cache_type cache = mar_discrete_cache_type(&g->plan.params);
    mar_status status =
        causal_runner_create(g->k, g->model->gpt, &sampling, g->max_images, spec_sampler_target_drafts(g->sampler),
                             draft && mar_eagle_of(draft), &g->target, err);
    if (status == MAR_OK) causal_runner_set_cache(g->target, cache);
    if (status != MAR_OK || !draft) return status;
    status = mar_drafter_create(g->k, draft, g->model, g->target, &draft_sampling, g->max_images,
                                spec_sampler_draft_drafts(g->sampler), &g->draft, err);
    if (status == MAR_OK) mar_drafter_set_cache(&g->draft, cache);
    return status;
}

/* --- creation ----------------------------------------------------------------------------------------------------- */

/* Creates the table of near tokens from the image decoder's codebook. */
static mar_status create_neighbours(discrete *g, const mar_vae *vae, mar_err *err)
{
    const size_t count = (size_t)g->model->base.config.vocabulary * (size_t)g->plan.neighbours;
    if (count == 0) return MAR_OK;
    if (!vae)
        return err_set(err, MAR_EARG, "--spec %s: needs the image decoder's codebook, but the session has no VAE",
                       g->plan.params.spec);
    int *table = malloc(count * sizeof *table);
    if (!table) return err_set(err, MAR_ENOMEM, "out of memory for a table of %zu near tokens", count);
    g->k->core->unbind(g->k); /* the table takes seconds without the device, and logs to the host */
    mar_status status = mar_neighbours(vae, g->plan.params.lantern_metric, g->plan.neighbours, table, err);
    g->k->core->bind(g->k);
    if (status == MAR_OK) status = g->k->core->alloc(g->k->device, count * sizeof *table, (void **)&g->neighbours, err);
    if (status == MAR_OK) g->k->core->upload(g->k, g->neighbours, table, count * sizeof *table);
    free(table);
    return status;
}

static mar_status create_sampler(discrete *g, mar_err *err)
{
    const mar_discrete_plan *plan = &g->plan;
    const mar_params *p = &plan->params;
    const mar_model_config *c = &g->model->base.config;
    const int jacobi = plan->method && plan->method->stale, dynamic = is_dynamic(g);
    const spec_sampler_options options = {.method = plan->method,
                                          .parameter = plan->parameter,
                                          .length = jacobi ? p->window : p->gamma,
                                          .parent = plan->tree.count ? plan->tree.parent : NULL,
                                          .count = plan->tree.count,
                                          .likeliest = takes_likeliest(g),
                                          .top = dynamic ? p->tree_top : 0,
                                          .total = dynamic ? p->tree_total : 0,
                                          .first = (spec_first)p->first,
                                          .side = mar_grid_columns(c),
                                          .neighbours = g->neighbours,
                                          .neighbour_count = plan->neighbours};
    const spec_model target = {c->vocabulary, g, target_log_probs, target_log_probs_then};
    const spec_model draft = {c->vocabulary, g, draft_log_probs, NULL};
    return spec_sampler_create(g->k, &target, p->draft ? &draft : NULL, &options, g->max_images, c->seq_len,
                               &g->sampler, err);
}

static mar_status allocate_host(discrete *g, mar_err *err)
{
    const size_t images = (size_t)g->max_images, tokens = images * (size_t)g->model->base.config.seq_len;
    g->start = calloc(images, sizeof *g->start);
    g->given = calloc(tokens, sizeof *g->given);
    g->number = calloc(tokens, sizeof *g->number);
    if (!g->start || !g->given || !g->number)
        return err_set(err, MAR_ENOMEM, "out of memory for a batch of %d images", g->max_images);
    return mar_slots_create(g->k, &g->model->base.config, g->max_images, &g->slots, err);
}

/* Returns what rounds keys and values more than the products' operands are; "" if nothing does. */
static const char *rounding_of(const discrete *g)
{
    const mar_cache cache = g->plan.params.cache_dtype;
    if (cache == MAR_CACHE_INT8) return "keys and values in int8";
    return cache == MAR_CACHE_BF16 && g->k->device->act_size > 2 ? "keys and values in bf16" : "";
}

static void write_effect(discrete *g)
{
    const spec_method *m = g->plan.method;
    const char *rounding = rounding_of(g), *and = *rounding ? ", " : "";
    char *text = g->effect.how;
    const size_t size = sizeof g->effect.how;
    g->effect.exact = !*rounding && (!m || m->exact);
    if (!m || (m->exact && *rounding))
        snprintf(text, size, "%s", rounding);
    else if (m->exact)
        snprintf(text, size, "by speculation (%s)", m->name);
    else if (strcmp(m->guarantee, "none") == 0)
        snprintf(text, size, "%s%schanged by %s, without a bound", rounding, and, m->name);
    else
        snprintf(text, size, "%s%schanged by %s; guarantee: %s", rounding, and, m->name, m->guarantee);
}

static void destroy(mar_engine_state *engine_state)
{
    discrete *g = of(engine_state);
    if (!g) return;
    g->k->core->finish(g->k); /* the table's upload, and timer marks: their times go to statistics of what is freed */
    spec_sampler_free(g->sampler);
    mar_drafter_free(&g->draft);
    causal_runner_free(g->target);
    g->k->device->core->free(g->k->device, g->neighbours);
    mar_slots_free(&g->slots);
    free(g->start);
    free(g->given);
    free(g->number);
    free(g->zero);
    free(g);
}

static mar_status create(mar_model *base, const mar_vae *vae, kern_queue *k, const mar_params *params,
                         const mar_accel *const *accels, int max_images, mar_engine_state **out, mar_err *err)
{
    (void)accels; /* the sampler's methods are not in this list */
    *out = NULL;
    mar_status status = mar_check_vae(&base->config, vae, err);
    discrete *g = status == MAR_OK ? calloc(1, sizeof *g) : NULL;
    if (status == MAR_OK && !g) status = err_set(err, MAR_ENOMEM, "out of memory");
    if (status != MAR_OK) return status;
    g->model = mar_discrete_model_of(base);
    g->k = k;
    g->max_images = max_images;
    status = mar_discrete_resolve_params(g->model, params, max_images, &g->plan, err);
    if (status == MAR_OK) status = create_neighbours(g, vae, err);
    if (status == MAR_OK) status = create_sampler(g, err);
    if (status == MAR_OK) status = create_runners(g, err);
    if (status == MAR_OK) status = allocate_host(g, err);
    if (status == MAR_OK) {
        write_effect(g);
        *out = (mar_engine_state *)g;
    } else {
        destroy((mar_engine_state *)g);
    }
    return status;
}

static size_t lay_out(mar_engine_state *engine_state, char *base)
{
    discrete *g = of(engine_state);
    size_t used = mar_slots_lay_out(&g->slots, 0, base);
    used += causal_runner_lay_out(g->target, base ? base + used : NULL);
    used += mar_drafter_lay_out(&g->draft, base ? base + used : NULL);
    used += spec_sampler_lay_out(g->sampler, base ? base + used : NULL);
    return used;
}

static mar_status plan(mar_engine_state *engine_state, int images, mar_err *err)
{
    discrete *g = of(engine_state);
    mar_status status = causal_runner_plan(g->target, images, err);
    if (status == MAR_OK) status = mar_drafter_plan(&g->draft, images, err);
    return status == MAR_OK ? kern_check(g->k, err) : status;
}

/* --- images that begin -------------------------------------------------------------------------------------------- */

/* Returns 0: each image of the batch goes at its own pace. */
static int together(const mar_engine_state *g)
{
    (void)g;
    return 0;
}

/* Returns MAR_EARG unless the mask of a prompt has padding on the left alone. NULL has none. */
static mar_status check_mask(const discrete *g, const uint8_t *mask, mar_err *err)
{
    const causal_shape *c = &g->model->gpt->shape;
    int first = 0;
    if (!c->prompt || !mask) return MAR_OK;
    while (first < c->prefix && !mask[first]) first++;
    for (int i = first; i < c->prefix; i++)
        if (!mask[i])
            return err_set(err, MAR_EARG,
                           "the caption's mask is 0 at position %d behind a 1, expected padding on the "
                           "left alone",
                           i);
    if (first == c->prefix) return err_set(err, MAR_EARG, "the caption's mask is 0 everywhere, expected a prompt");
    return MAR_OK;
}

static mar_status set_negative(mar_engine_state *engine_state, const float *features, const uint8_t *mask, mar_err *err)
{
    discrete *g = of(engine_state);
    if (!g->model->gpt->shape.prompt)
        return err_set(err, MAR_EARG, "the model has no negative prompt: its unconditional caption is in its file");
    const mar_status status = check_mask(g, mask, err);
    if (status != MAR_OK) return status;
    causal_runner_set_negative(g->target, features, mask);
    mar_drafter_set_negative(&g->draft, features, mask);
    g->has_negative = 1;
    return kern_check(g->k, err);
}

static mar_status check_image(const mar_engine_state *engine_state, const mar_image *image, mar_err *err)
{
    const discrete *g = of_const(engine_state);
    const causal_sampling sampling = sampling_of(g);
    mar_status status = check_mask(g, image->mask, err);
    if (status != MAR_OK) return status;
    if (g->model->gpt->shape.prompt && causal_cfg_branches(&sampling) == 2 && !g->has_negative)
        return err_set(err, MAR_EARG,
                       "guidance %g has nothing to guide away from: expected mar_session_set_negative before the first "
                       "image",
                       (double)sampling.cfg);
    status = mar_slots_check_guidance(image, image->cfg > 1 ? 2 : 1, causal_cfg_branches(&sampling), sampling.cfg, err);
    return status == MAR_OK ? mar_slots_check_prefix(&g->model->base.config, image, err) : status;
}

/* Begins a session's work: what happened before counts no more. */
static void begin_work(discrete *g)
{
    kern_watch_begin(g->k);
    spec_sampler_begin(g->sampler);
    causal_runner_clear_stats(g->target);
    mar_drafter_clear_stats(&g->draft);
}

/* Sets the features of a caption and its mask. NULL means a caption to measure: of a prompt's usual length. */
static void set_caption(discrete *g, const mar_image *image, causal_start *start)
{
    const causal_shape *c = &g->model->gpt->shape;
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
    for (int i = 0; i < c->prefix; i++) mask[i] = !c->prompt || i >= c->prefix - GPT_USUAL_PROMPT;
    start->features = g->zero;
    start->mask = mask;
}

/* Begins an image in a slot, but for the models' part: fills *start for them. */
static void begin_image(discrete *g, int slot, const mar_image *image, int *given, causal_start *start)
{
    const int n = g->model->base.config.seq_len;
    mar_slots_begin(&g->slots, slot, image);
    const int known = g->slots.slot[slot].given;
    for (int i = 0; i < known; i++) given[i] = (int)image->tokens[i];
    *start = (causal_start){.image = slot, .label = image->label, .cfg = image->cfg, .token = given, .given = known};
    set_caption(g, image, start);
    const spec_start sequence = {.seed = image->seed, .image = image->number, .n = n, .token = given, .given = known};
    spec_sampler_admit(g->sampler, slot, &sequence);
}

/* Returns whether an image is in progress: here, without an error, and not yet whole in its slot. */
static int is_running(const discrete *g, int slot)
{
    const mar_slot *s = &g->slots.slot[slot];
    return s->busy && !s->step && !s->failure.text[0];
}

/* Moves the tokens of images that are finished to their slots, whose step is then 1. */
static void move_finished(discrete *g)
{
    const size_t n = (size_t)g->model->base.config.seq_len;
    for (int i = 0; i < g->max_images; i++) {
        const int *token = spec_sampler_tokens(g->sampler, i);
        float *number = g->number + (size_t)i * n;
        if (!is_running(g, i) || spec_sampler_left(g->sampler, i) > 0) continue;
        for (size_t t = 0; t < n; t++) number[t] = (float)token[t];
        g->k->core->upload(g->k, g->slots.tokens + (size_t)i * n, number, n * sizeof *number);
        g->slots.slot[i].step = 1;
    }
}

static void admit(mar_engine_state *engine_state, const int *slot, const mar_image *images, int n)
{
    discrete *g = of(engine_state);
    if (mar_slots_are_free(&g->slots)) begin_work(g);
    for (int i = 0; i < n; i++)
        begin_image(g, slot[i], &images[i], g->given + (size_t)i * (size_t)g->model->base.config.seq_len, &g->start[i]);
    if (kern_check(g->k, NULL) != MAR_OK) return;
    causal_runner_admit(g->target, g->start, n);
    mar_drafter_admit(&g->draft, g->start, n);
    move_finished(g);
}

static void release(mar_engine_state *engine_state, int slot)
{
    discrete *g = of(engine_state);
    mar_slots_release(&g->slots, slot);
    spec_sampler_release(g->sampler, slot);
}

/* --- a round ------------------------------------------------------------------------------------------------------ */

/* Returns 0 for an image that has failed, too. */
static int steps_left(const mar_engine_state *engine_state, int slot)
{
    const discrete *g = of_const(engine_state);
    return is_running(g, slot) ? spec_sampler_left(g->sampler, slot) : 0;
}

/* Fails the images that a model gave no distribution for. Returns their number. */
static int fail_images(discrete *g)
{
    char layer[MAR_LAYER_TEXT];
    mar_err why;
    int failed = 0;
    for (int i = 0; i < g->max_images; i++) {
        if (!is_running(g, i) || spec_sampler_failed(g->sampler, i, &why) == MAR_OK) continue;
        err_set(&g->slots.slot[i].failure, MAR_EMODEL, "%s%s", why.text, mar_layer_text(g->k, layer));
        failed++;
    }
    return failed;
}

/* Fails all images of the round: a layer's output has a NaN or an infinity, while every distribution had a token. */
static void fail_round(discrete *g)
{
    int running = 0;
    for (int i = 0; i < g->max_images; i++) running += is_running(g, i);
    for (int i = 0; i < g->max_images; i++) {
        if (!is_running(g, i)) continue;
        err_set(&g->slots.slot[i].failure, MAR_EMODEL,
                "image %llu%s, token %d: the output of %s is not finite, although all tokens so far are",
                (unsigned long long)g->slots.slot[i].number, running > 1 ? " or one beside it" : "",
                spec_sampler_known(g->sampler, i), g->k->watch.layer);
    }
}

static mar_status step(mar_engine_state *engine_state, mar_err *err)
{
    discrete *g = of(engine_state);
    mar_status status = spec_sampler_round(g->sampler, err);
    if (status == MAR_OK) status = kern_check(g->k, err);
    if (status != MAR_OK) return status;
    const int failed = fail_images(g);
    if (g->k->watch.layer[0]) {
        if (!failed) fail_round(g);
        kern_watch_begin(g->k); /* those who go on have layers of their own */
    }
    move_finished(g);
    return MAR_OK;
}

static mar_status examine(mar_engine_state *engine_state, int slot, mar_err *err)
{
    const char *text = of(engine_state)->slots.slot[slot].failure.text;
    return text[0] ? err_set(err, MAR_EMODEL, "%s", text) : MAR_OK;
}

static void snapshot(mar_engine_state *engine_state, int slot, float *tokens, uint8_t *known)
{
    const discrete *g = of(engine_state);
    spec_sampler_read(g->sampler);
    const int *token = spec_sampler_tokens(g->sampler, slot), n = spec_sampler_known(g->sampler, slot);
    for (int i = 0; i < g->model->base.config.seq_len; i++) {
        known[i] = i < n && token[i] >= 0; /* a failed queue or image leaves tokens unread */
        tokens[i] = known[i] ? (float)token[i] : 0;
    }
}

/* --- statistics, effect and parameters ---------------------------------------------------------------------------- */

static const mar_params *params_of(const mar_engine_state *g)
{
    return &of_const(g)->plan.params;
}

static const mar_effect *effect_of(const mar_engine_state *g)
{
    return &of_const(g)->effect;
}

static const char *warning_of(const mar_engine_state *g)
{
    (void)g;
    return NULL;
}

static const float *latents(const mar_engine_state *g)
{
    return of_const(g)->slots.tokens;
}

static void stats_of(const mar_engine_state *engine_state, mar_stats *stats)
{
    const discrete *g = of_const(engine_state);
    const spec_sampler_stats *s = spec_sampler_get_stats(g->sampler);
    const causal_runner_stats *t = causal_runner_get_stats(g->target), *d = mar_drafter_stats(&g->draft);
    *stats = (mar_stats){.decoder_s = s->target_s + t->prefix_s,
                         .draft_s = s->draft_s + (d ? d->prefix_s : 0),
                         .verify_s = s->verify_s,
                         .decoder_flop = t->flop,
                         .draft_flop = d ? d->flop : 0,
                         .decoder_bytes = t->bytes,
                         .draft_bytes = d ? d->bytes : 0,
                         .draft_calls = (double)s->draft_calls,
                         .passes = (double)t->passes,
                         .contexts = (double)s->rows};
    stats->tokens = s->tokens;
    if (!g->plan.method) return;
    stats->drafted = s->drafted;
    stats->accepted = s->accepted;
    stats->rounds = s->rounds;
    stats->round_steps = stats->tokens;
    _Static_assert(sizeof stats->accepted_lengths == sizeof s->lengths, "both have as many lengths");
    memcpy(stats->accepted_lengths, s->lengths, sizeof s->lengths);
}

static mar_status measure(mar_engine_state *engine_state, mar_measurements *all, mar_err *err)
{
    const discrete *g = of(engine_state);
    const causal_model *model = g->model->gpt;
    const mar_model *draft = g->plan.params.draft;
    const causal_sampling sampling = sampling_of(g), draft_sampling = draft_sampling_of(g);
    const kern_cache_type cache = mar_discrete_cache_type(&g->plan.params);
    const mar_status status = mar_discrete_measure(g->k, model, &sampling, cache, g->max_images, "target", all, err);
    if (status != MAR_OK || !draft) return status;
    if (mar_eagle_of(draft))
        return mar_eagle_measure(g->k, mar_eagle_of(draft), model, &draft_sampling, &g->plan, g->max_images, all, err);
    return mar_discrete_measure(g->k, mar_discrete_model_of(draft)->gpt, &draft_sampling, cache, g->max_images, "draft",
                                all, err);
}

static void get_token_status(const mar_engine_state *g, int slot, uint8_t *map, int *round)
{
    _Static_assert((int)SPEC_DROPPED == (int)MAR_TOKEN_TARGET && (int)SPEC_ACCEPTED == (int)MAR_TOKEN_ACCEPTED &&
                       (int)SPEC_REPLACED == (int)MAR_TOKEN_REPLACED,
                   "a verdict is a status");
    spec_sampler_token_status(of_const(g)->sampler, slot, map, round);
}

static void get_staleness(const mar_engine_state *g, int slot, int *staleness)
{
    (void)slot;
    memset(staleness, 0, (size_t)of_const(g)->model->base.config.seq_len * sizeof *staleness);
}

extern const mar_engine mar_discrete_engine;
const mar_engine mar_discrete_engine = {
    .name = "llamagen",
    .tokens = "discrete",
    .kinds = 1 << MAR_KIND_LLAMAGEN | 1 << MAR_KIND_DECODER,
    .load = mar_discrete_load,
    .unload = mar_discrete_unload,
    .describe = mar_discrete_describe,
    .create = create,
    .free = destroy,
    .params = params_of,
    .effect = effect_of,
    .warning = warning_of,
    .lay_out = lay_out,
    .plan = plan,
    .together = together,
    .check = check_image,
    .set_negative = set_negative,
    .admit = admit,
    .release = release,
    .step = step,
    .steps_left = steps_left,
    .examine = examine,
    .snapshot = snapshot,
    .latents = latents,
    .stats = stats_of,
    .measure = measure,
    .token_status = get_token_status,
    .staleness = get_staleness,
};
