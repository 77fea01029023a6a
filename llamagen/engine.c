#include "llamagen/engine.h"

#include "base/arena.h"
#include "mar/core/neighbours.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    const mar_discrete_model *model;
    kern_queue *k; /* the session's queue */
    mar_discrete_plan plan;
    int max_images;
    char guarantee[160];

    gpt_runner *target;
    mar_drafter draft;
    spec_sampler *sampler;
    int *neighbours; /* backend [vocabulary][plan.neighbours]; NULL: the method needs none */
    float *latents;  /* backend [max_images][seq_len] token ids, after the last step */

    /* Batch in progress. */
    int images;
    uint64_t first_image;
    int *label;    /* host [max_images] */
    float *number; /* host [max_images][seq_len] token ids */
    uint8_t *mask; /* host [max_images][caption_tokens] of 1: used for captions without a mask */
    float *zero;   /* host [max_images][caption_tokens][caption_dim] of 0: captions to measure; NULL before the first */
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

static mar_status target_log_probs(void *state, const spec_request *request, int n, float *log_probs, mar_err *err)
{
    return gpt_runner_log_probs(((discrete *)state)->target, request, n, log_probs, err);
}

static mar_status target_log_probs_then(void *state, const spec_request *request, int n, float *log_probs,
                                        const spec_continuation *continuation, mar_err *err)
{
    return gpt_runner_log_probs_then(((discrete *)state)->target, request, n, log_probs, continuation, err);
}

static mar_status draft_log_probs(void *state, const spec_request *request, int n, float *log_probs, mar_err *err)
{
    return mar_drafter_log_probs(&((discrete *)state)->draft, request, n, log_probs, err);
}

static gpt_sampling sampling_of(const discrete *g)
{
    const mar_params *p = &g->plan.params;
    return (gpt_sampling){.cfg = p->cfg,
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
static gpt_sampling draft_sampling_of(const discrete *g)
{
    gpt_sampling sampling = sampling_of(g);
    if (is_dynamic(g) || takes_likeliest(g)) sampling.temperature = 1, sampling.top_k = 0, sampling.top_p = 1;
    return sampling;
}

static mar_status create_runners(discrete *g, mar_err *err)
{
    const mar_model *draft = g->plan.params.draft;
    const gpt_sampling sampling = sampling_of(g), draft_sampling = draft_sampling_of(g);
    const mar_status status =
        gpt_runner_create(g->k, g->model->gpt, &sampling, g->max_images, spec_sampler_target_drafts(g->sampler),
                          draft && mar_eagle_of(draft), &g->target, err);
    if (status != MAR_OK || !draft) return status;
    return mar_drafter_create(g->k, draft, g->model, g->target, &draft_sampling, g->max_images,
                              spec_sampler_draft_drafts(g->sampler), &g->draft, err);
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
                                          .side = mar_grid_side(c),
                                          .neighbours = g->neighbours,
                                          .neighbour_count = plan->neighbours};
    const spec_model target = {c->vocabulary, g, target_log_probs, target_log_probs_then};
    const spec_model draft = {c->vocabulary, g, draft_log_probs, NULL};
    return spec_sampler_create(g->k, &target, p->draft ? &draft : NULL, &options, g->max_images, c->seq_len,
                               &g->sampler, err);
}

static mar_status allocate_host(discrete *g, mar_err *err)
{
    const mar_model_config *c = &g->model->base.config;
    const size_t images = (size_t)g->max_images, positions = images * (size_t)c->caption_tokens;
    g->number = calloc(images * (size_t)c->seq_len, sizeof *g->number);
    g->label = calloc(images, sizeof *g->label);
    g->mask = malloc(positions + 1);
    if (!g->number || !g->label || !g->mask)
        return err_set(err, MAR_ENOMEM, "out of memory for a batch of %d images", g->max_images);
    memset(g->mask, 1, positions + 1);
    return MAR_OK;
}

/* Writes the guarantee, one line (mar_session_guarantee). */
static void write_guarantee(discrete *g)
{
    const spec_method *m = g->plan.method;
    if (!m)
        snprintf(g->guarantee, sizeof g->guarantee, "exact: the target's distribution");
    else if (m->exact)
        snprintf(g->guarantee, sizeof g->guarantee, "exact: the target's distribution, by speculation (%s)", m->name);
    else if (strcmp(m->guarantee, "none") == 0)
        snprintf(g->guarantee, sizeof g->guarantee, "approximate: changed by %s, without a bound", m->name);
    else
        snprintf(g->guarantee, sizeof g->guarantee, "approximate: changed by %s; guarantee: %s", m->name, m->guarantee);
}

static void destroy(mar_engine_state *engine_state)
{
    discrete *g = of(engine_state);
    if (!g) return;
    g->k->core->finish(g->k); /* the table's upload, and timer marks: their times go to statistics of what is freed */
    spec_sampler_free(g->sampler);
    mar_drafter_free(&g->draft);
    gpt_runner_free(g->target);
    g->k->device->core->free(g->k->device, g->neighbours);
    free(g->number);
    free(g->label);
    free(g->mask);
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
        write_guarantee(g);
        *out = (mar_engine_state *)g;
    } else {
        destroy((mar_engine_state *)g);
    }
    return status;
}

static size_t lay_out(mar_engine_state *engine_state, char *base)
{
    discrete *g = of(engine_state);
    size_t used = 0;
    g->latents = arena_carve(base, &used, (size_t)g->max_images * (size_t)g->model->base.config.seq_len, sizeof(float));
    used += gpt_runner_lay_out(g->target, base ? base + used : NULL);
    used += mar_drafter_lay_out(&g->draft, base ? base + used : NULL);
    used += spec_sampler_lay_out(g->sampler, base ? base + used : NULL);
    return used;
}

static mar_status plan(mar_engine_state *engine_state, int images, mar_err *err)
{
    discrete *g = of(engine_state);
    mar_status status = gpt_runner_plan(g->target, images, err);
    if (status == MAR_OK) status = mar_drafter_plan(&g->draft, images, err);
    return status == MAR_OK ? kern_check(g->k, err) : status;
}

/* --- a batch ------------------------------------------------------------------------------------------------------ */

/* Begins a batch of labels or captions. */
static void begin_tokens(discrete *g, uint64_t first_image, int images)
{
    g->images = images;
    g->first_image = first_image;
    kern_watch_begin(g->k);
    spec_sampler_begin(g->sampler);
    for (int i = 0; i < images; i++) {
        const spec_start start = {
            .seed = g->plan.params.seed, .image = first_image + (uint64_t)i, .n = g->model->base.config.seq_len};
        spec_sampler_admit(g->sampler, i, &start);
    }
}

static void begin_captions(mar_engine_state *engine_state, uint64_t first_image, const float *features,
                           const uint8_t *mask, int images)
{
    discrete *g = of(engine_state);
    begin_tokens(g, first_image, images);
    if (!mask) mask = g->mask;
    gpt_runner_begin_captions(g->target, images, features, mask);
    mar_drafter_begin_captions(&g->draft, images, features, mask);
}

/* Begins captions to measure, whose features are 0. */
static void begin_any(discrete *g, uint64_t first_image, int images)
{
    const mar_model_config *c = &g->model->base.config;
    const size_t n = (size_t)g->max_images * (size_t)c->caption_tokens * (size_t)c->caption_dim;
    mar_err err;
    if (!g->zero) g->zero = calloc(n, sizeof *g->zero);
    if (g->zero)
        begin_captions((mar_engine_state *)g, first_image, g->zero, NULL, images);
    else
        kern_fail(g->k, err_set(&err, MAR_ENOMEM, "out of memory for %d captions to measure", images), &err);
}

static int together(const mar_engine_state *g)
{
    (void)g;
    return 1;
}

static mar_status check_image(const mar_engine_state *g, const mar_image *image, mar_err *err)
{
    const mar_params *p = &of_const(g)->plan.params;
    if (image->seed != p->seed || image->cfg != p->cfg || image->tokens)
        return err_set(err, MAR_EARG, "discrete tokens: expected the session's seed and guidance, and no known token");
    return MAR_OK;
}

static void admit(mar_engine_state *engine_state, const int *slot, const mar_image *images, int n)
{
    discrete *g = of(engine_state);
    (void)slot;
    if (g->model->base.config.caption_tokens && !images->features) {
        begin_any(g, images->number, n);
        return;
    }
    if (images->features) {
        begin_captions(engine_state, images->number, images->features, images->mask, n);
        return;
    }
    int *labels = g->label;
    begin_tokens(g, images->number, n);
    for (int i = 0; i < n; i++) labels[i] = images[i].label;
    gpt_runner_begin(g->target, n, labels);
    mar_drafter_begin(&g->draft, n, labels);
}

static void release(mar_engine_state *g, int slot)
{
    (void)g, (void)slot;
}

static mar_status examine(mar_engine_state *g, int slot, mar_err *err)
{
    (void)g, (void)slot, (void)err;
    return MAR_OK;
}

static void snapshot(mar_engine_state *engine_state, int slot, float *tokens, uint8_t *known)
{
    const discrete *g = of(engine_state);
    const int n = g->model->base.config.seq_len;
    const int *token = spec_sampler_tokens(g->sampler, slot);
    for (int i = 0; i < n; i++) {
        known[i] = i < spec_sampler_known(g->sampler, slot) && token[i] != SPEC_UNREAD;
        tokens[i] = known[i] ? (float)token[i] : 0;
    }
}

static int steps_left(const mar_engine_state *g, int slot)
{
    return slot < of_const(g)->images ? spec_sampler_left(of_const(g)->sampler, slot) : 0;
}

/* Passes the token ids to the image decoder. */
static void finish_tokens(discrete *g)
{
    const size_t n = (size_t)g->model->base.config.seq_len;
    for (int i = 0; i < g->images; i++) {
        const int *token = spec_sampler_tokens(g->sampler, i);
        for (size_t t = 0; t < n; t++) g->number[(size_t)i * n + t] = (float)token[t];
    }
    g->k->core->upload(g->k, g->latents, g->number, (size_t)g->images * n * sizeof *g->number);
}

/* Reports a layer whose output has a NaN or an infinity while every distribution so far had a token. */
static mar_status refuse_layer(const discrete *g, mar_err *err)
{
    char others[32] = "";
    const unsigned long long first = g->first_image;
    if (g->images > 1) snprintf(others, sizeof others, " to %llu", first + (unsigned long long)g->images - 1);
    return err_set(
        err, MAR_EMODEL, "image%s %llu%s, round %ld: the output of %s is not finite, although all tokens so far are",
        others[0] ? "s" : "", first, others, spec_sampler_get_stats(g->sampler)->calls - 1, g->k->watch.layer);
}

static mar_status step(mar_engine_state *engine_state, mar_err *err)
{
    discrete *g = of(engine_state);
    char layer[MAR_LAYER_TEXT];
    mar_err why = {0};
    mar_status status = spec_sampler_round(g->sampler, &why);
    if (status == MAR_OK && kern_check(g->k, NULL) != MAR_OK) return kern_check(g->k, err);
    for (int i = 0; i < g->images && status == MAR_OK; i++) status = spec_sampler_failed(g->sampler, i, &why);
    if (status == MAR_EMODEL) return err_set(err, status, "%s%s", why.text, mar_layer_text(g->k, layer));
    if (status != MAR_OK) return err_set(err, status, "%s", why.text);
    if (g->k->watch.layer[0]) return refuse_layer(g, err);
    int left = 0;
    for (int i = 0; i < g->images; i++) left += steps_left(engine_state, i);
    if (left == 0) finish_tokens(g);
    return MAR_OK;
}

/* --- statistics, guarantee and parameters ------------------------------------------------------------------------- */

static const mar_params *params_of(const mar_engine_state *g)
{
    return &of_const(g)->plan.params;
}

static const char *guarantee_of(const mar_engine_state *g)
{
    return of_const(g)->guarantee;
}

static const char *warning_of(const mar_engine_state *g)
{
    (void)g;
    return NULL;
}

static const float *latents(const mar_engine_state *g)
{
    return of_const(g)->latents;
}

static void stats_of(const mar_engine_state *engine_state, mar_stats *stats)
{
    const discrete *g = of_const(engine_state);
    const spec_sampler_stats *s = spec_sampler_get_stats(g->sampler);
    const gpt_runner_stats *t = gpt_runner_get_stats(g->target), *d = mar_drafter_stats(&g->draft);
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
    const gpt_model *model = g->model->gpt;
    const mar_model *draft = g->plan.params.draft;
    const gpt_sampling sampling = sampling_of(g), draft_sampling = draft_sampling_of(g);
    const mar_status status = mar_discrete_measure(g->k, model, &sampling, g->max_images, "target", all, err);
    if (status != MAR_OK || !draft) return status;
    if (mar_eagle_of(draft))
        return mar_eagle_measure(g->k, mar_eagle_of(draft), model, &draft_sampling, &g->plan, g->max_images, all, err);
    return mar_discrete_measure(g->k, mar_discrete_model_of(draft)->gpt, &draft_sampling, g->max_images, "draft", all,
                                err);
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
    .kind = MAR_KIND_LLAMAGEN,
    .load = mar_discrete_load,
    .unload = mar_discrete_unload,
    .describe = mar_discrete_describe,
    .create = create,
    .free = destroy,
    .params = params_of,
    .guarantee = guarantee_of,
    .warning = warning_of,
    .lay_out = lay_out,
    .plan = plan,
    .together = together,
    .check = check_image,
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
