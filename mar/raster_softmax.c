/* The softmax head of the loop in raster order: tokens of a codebook, with the methods of speculative decoding for them
 * (specdec/sampler.h). Plain decoding is the sampler without drafts. */
#include "mar/raster_state.h"

#include "mar_files.h"
#include "mar_measure.h"

#include "mar/core/neighbours.h"
#include "mar/raster_costs.h"
#include "mar/raster_draft.h"
#include "mar/raster_measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct raster_softmax {
    mar_effect effect;
    raster_drafter draft;
    spec_sampler *sampler; /* has the tokens of images in progress; those of finished ones are in their slots */
    int *neighbours;       /* backend [vocabulary][plan.neighbours]; NULL: the method needs none */
    int *given;            /* [seq_len] an image's known tokens, while it begins */
    float *number;         /* host [max_images][seq_len] token ids on their way to the slots */
} raster_softmax;

/* --- the models --------------------------------------------------------------------------------------------------- */

static mar_status softmax_target(void *state, const causal_request *request, int n, float *log_probs, mar_err *err)
{
    return causal_runner_log_probs(((mar_raster *)state)->target, request, n, log_probs, err);
}

static mar_status softmax_target_then(void *state, const causal_request *request, int n, float *log_probs,
                                      const causal_continuation *continuation, mar_err *err)
{
    return causal_runner_log_probs_then(((mar_raster *)state)->target, request, n, log_probs, continuation, err);
}

static mar_status softmax_draft(void *state, const causal_request *request, int n, float *log_probs, mar_err *err)
{
    return raster_drafter_log_probs(&((mar_raster *)state)->softmax->draft, request, n, log_probs, err);
}

static causal_sampling softmax_sampling(const mar_raster *g)
{
    const mar_params *p = &g->plan.params;
    return (causal_sampling){.cfg = p->cfg,
                             .cfg_interval = p->cfg_interval,
                             .temperature = p->temperature,
                             .top_k = p->top_k,
                             .top_p = p->top_p};
}

static int softmax_is_dynamic(const mar_raster *g)
{
    return g->plan.params.tree && strcmp(g->plan.params.tree, "dynamic") == 0;
}

/* Returns whether the sampler takes the likeliest tokens. With temperature 0 the draft distribution has one token, and
 * draws would make a chain of a static tree. */
static int softmax_takes_likeliest(const mar_raster *g)
{
    return g->plan.tree.count > 0 && g->plan.params.temperature == 0;
}

/* Returns the sampling of the draft. Drafts that are chosen, not drawn, are the likeliest of the plain softmax, as in
 * EAGLE-2: temperature, top-k and top-p may leave fewer tokens than a tree has siblings. They are verified as point
 * masses, so that any choice is exact to the model's distribution. */
static causal_sampling softmax_draft_sampling(const mar_raster *g)
{
    causal_sampling sampling = softmax_sampling(g);
    if (softmax_is_dynamic(g) || softmax_takes_likeliest(g))
        sampling.temperature = 1, sampling.top_k = 0, sampling.top_p = 1;
    return sampling;
}

/* Creates the runners of the target and of the draft. */
static mar_status softmax_create_runners(mar_raster *g, mar_err *err)
{
    raster_softmax *s = g->softmax;
    const mar_model *draft = g->plan.params.draft;
    const causal_sampling sampling = softmax_sampling(g), of_draft = softmax_draft_sampling(g);
    mar_status status = raster_create_target(g, &sampling, spec_sampler_target_drafts(s->sampler),
                                             draft && raster_eagle_of(draft), err);
    if (status != MAR_OK || !draft) return status;
    status = raster_drafter_create(g->k, draft, g->model, g->target, &of_draft, g->max_images,
                                   spec_sampler_draft_drafts(s->sampler), &s->draft, err);
    if (status == MAR_OK) raster_drafter_set_cache(&s->draft, raster_cache_type(&g->plan.params));
    return status;
}

/* --- creation ----------------------------------------------------------------------------------------------------- */

static mar_status softmax_resolve(mar_raster *g, const mar_params *params, mar_err *err)
{
    return raster_resolve_ids(g->model, params, g->max_images, &g->plan, err);
}

/* Creates the table of near tokens from the image decoder's codebook. */
static mar_status softmax_create_neighbours(mar_raster *g, const mar_vae *vae, mar_err *err)
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
    if (status == MAR_OK)
        status = g->k->core->alloc(g->k->device, count * sizeof *table, (void **)&g->softmax->neighbours, err);
    if (status == MAR_OK) g->k->core->upload(g->k, g->softmax->neighbours, table, count * sizeof *table);
    free(table);
    return status;
}

static mar_status softmax_create_sampler(mar_raster *g, mar_err *err)
{
    const raster_plan *plan = &g->plan;
    const mar_params *p = &plan->params;
    const mar_model_config *c = &g->model->base.config;
    const int jacobi = plan->method && plan->method->stale, dynamic = softmax_is_dynamic(g);
    const spec_sampler_options options = {.method = plan->method,
                                          .parameter = plan->parameter,
                                          .length = jacobi ? p->window : p->gamma,
                                          .parent = plan->tree.count ? plan->tree.parent : NULL,
                                          .count = plan->tree.count,
                                          .likeliest = softmax_takes_likeliest(g),
                                          .top = dynamic ? p->tree_top : 0,
                                          .total = dynamic ? p->tree_total : 0,
                                          .first = (spec_first)p->first,
                                          .side = mar_grid_columns(c),
                                          .neighbours = g->softmax->neighbours,
                                          .neighbour_count = plan->neighbours,
                                          .choice = plan->choice.widths ? &plan->choice : NULL};
    const spec_model target = {c->vocabulary, g, softmax_target, softmax_target_then};
    const spec_model draft = {c->vocabulary, g, softmax_draft, NULL};
    return spec_sampler_create(g->k, &target, p->draft ? &draft : NULL, &options, g->max_images, c->seq_len,
                               &g->softmax->sampler, err);
}

static void softmax_write_effect(mar_raster *g)
{
    const spec_method *m = g->plan.method;
    char *text = g->softmax->effect.how;
    const size_t size = sizeof g->softmax->effect.how;
    g->softmax->effect.exact = !m || m->exact;
    if (!m)
        text[0] = '\0';
    else if (m->exact)
        snprintf(text, size, "by speculation (%s)", m->name);
    else if (strcmp(m->guarantee, "none") == 0)
        snprintf(text, size, "changed by %s, without a bound", m->name);
    else
        snprintf(text, size, "changed by %s; guarantee: %s", m->name, m->guarantee);
}

static void softmax_free(mar_raster *g)
{
    raster_softmax *s = g->softmax;
    if (!s) return;
    spec_sampler_free(s->sampler);
    raster_drafter_free(&s->draft);
    g->k->device->core->free(g->k->device, s->neighbours);
    free(s->given);
    free(s->number);
    free(s);
}

static mar_status softmax_create(mar_raster *g, const mar_vae *vae, const mar_accel *const *accels, mar_err *err)
{
    (void)accels; /* those for such tokens have no hooks */
    const size_t n = (size_t)g->model->facts.net.seq_len;
    raster_softmax *s = g->softmax = calloc(1, sizeof *s);
    if (!s) return err_set(err, MAR_ENOMEM, "out of memory");
    s->given = calloc(n, sizeof *s->given);
    s->number = calloc((size_t)g->max_images * n, sizeof *s->number);
    if (!s->given || !s->number)
        return err_set(err, MAR_ENOMEM, "out of memory for a batch of %d images", g->max_images);
    mar_status status = softmax_create_neighbours(g, vae, err);
    if (status == MAR_OK) status = softmax_create_sampler(g, err);
    if (status == MAR_OK) status = softmax_create_runners(g, err);
    if (status == MAR_OK) softmax_write_effect(g);
    return status;
}

static size_t softmax_lay_out(mar_raster *g, char *base)
{
    size_t used = mar_slots_lay_out(&g->slots, 0, base);
    used += raster_drafter_lay_out(&g->softmax->draft, base ? base + used : NULL);
    used += spec_sampler_lay_out(g->softmax->sampler, base ? base + used : NULL);
    return used;
}

/* The first time, which is for all images, also measures the costs of rounds, if the session needs them. */
static mar_status softmax_plan(mar_raster *g, int images, mar_err *err)
{
    const mar_status status = raster_drafter_plan(&g->softmax->draft, images, err);
    if (status != MAR_OK || !g->plan.measures) return status;
    g->plan.measures = 0;
    return raster_costs_measure(g, g->softmax->sampler, &g->softmax->draft, g->softmax->given, err);
}

/* --- images that begin -------------------------------------------------------------------------------------------- */

static void softmax_set_negative(mar_raster *g, const float *features, const uint8_t *mask)
{
    raster_drafter_set_negative(&g->softmax->draft, features, mask);
}

static void softmax_begin(mar_raster *g)
{
    spec_sampler_begin(g->softmax->sampler);
    raster_drafter_clear_stats(&g->softmax->draft);
}

static void softmax_place(mar_raster *g, int slot, const mar_image *image, causal_start *start)
{
    raster_softmax *s = g->softmax;
    const int n = g->model->facts.net.seq_len, known = g->slots.slot[slot].given;
    for (int i = 0; i < known; i++) s->given[i] = (int)image->tokens[i];
    const spec_start sequence = {
        .seed = image->seed, .image = image->number, .n = n, .token = s->given, .given = known};
    spec_sampler_admit(s->sampler, slot, &sequence);
    start->token = spec_sampler_tokens(s->sampler, slot);
    start->given = known;
}

/* Returns whether an image is in progress: here, without an error, and not yet whole in its slot. */
static int softmax_is_running(const mar_raster *g, int slot)
{
    const mar_slot *s = &g->slots.slot[slot];
    return s->busy && !s->step && !s->failure.text[0];
}

/* Notes how far the images are, and moves the tokens of finished ones to their slots, whose step is then 1. */
static void softmax_update(mar_raster *g)
{
    const raster_softmax *s = g->softmax;
    const size_t n = (size_t)g->model->facts.net.seq_len;
    for (int i = 0; i < g->max_images; i++) {
        const int *token = spec_sampler_tokens(s->sampler, i);
        float *number = s->number + (size_t)i * n;
        if (!softmax_is_running(g, i)) continue;
        g->slots.slot[i].known = (int)n - spec_sampler_left(s->sampler, i);
        if (g->slots.slot[i].known < (int)n) continue;
        for (size_t t = 0; t < n; t++) number[t] = (float)token[t];
        g->k->core->upload(g->k, g->slots.tokens + (size_t)i * n, number, n * sizeof *number);
        g->slots.slot[i].step = 1;
    }
}

static void softmax_admit(mar_raster *g, const int *slot, const mar_image *images, int n)
{
    (void)slot, (void)images;
    raster_drafter_admit(&g->softmax->draft, g->start, n);
    softmax_update(g);
}

static void softmax_release(mar_raster *g, int slot)
{
    spec_sampler_release(g->softmax->sampler, slot);
}

/* --- a round ------------------------------------------------------------------------------------------------------ */

/* Fails the images that a model gave no distribution for. Returns their number. */
static int softmax_fail_images(mar_raster *g)
{
    char layer[MAR_LAYER_TEXT];
    mar_err why;
    int failed = 0;
    for (int i = 0; i < g->max_images; i++) {
        if (!softmax_is_running(g, i) || spec_sampler_failed(g->softmax->sampler, i, &why) == MAR_OK) continue;
        err_set(&g->slots.slot[i].failure, MAR_EMODEL, "%s%s", why.text, mar_layer_text(g->k, layer));
        failed++;
    }
    return failed;
}

/* Fails all images of the round: a layer's output has a NaN or an infinity, while every distribution had a token. */
static void softmax_fail_round(mar_raster *g)
{
    int running = 0;
    for (int i = 0; i < g->max_images; i++) running += softmax_is_running(g, i);
    for (int i = 0; i < g->max_images; i++) {
        if (!softmax_is_running(g, i)) continue;
        err_set(&g->slots.slot[i].failure, MAR_EMODEL,
                "image %llu%s, token %d: the output of %s is not finite, although all tokens so far are",
                (unsigned long long)g->slots.slot[i].number, running > 1 ? " or one beside it" : "",
                spec_sampler_known(g->softmax->sampler, i), g->k->watch.layer);
    }
}

static mar_status softmax_step(mar_raster *g, mar_err *err)
{
    mar_status status = spec_sampler_round(g->softmax->sampler, err);
    if (status == MAR_OK) status = kern_check(g->k, err);
    if (status != MAR_OK) return status;
    const int failed = softmax_fail_images(g);
    if (g->k->watch.layer[0]) {
        if (!failed) softmax_fail_round(g);
        kern_watch_begin(g->k); /* those who go on have layers of their own */
    }
    softmax_update(g);
    return MAR_OK;
}

/* Writes an image's tokens so far, and how they came to be, to its slot. The tokens of a finished one are there, so
 * that the queue need not be bound. */
static void softmax_read(mar_raster *g, int slot)
{
    _Static_assert((int)SPEC_DROPPED == (int)MAR_TOKEN_TARGET && (int)SPEC_ACCEPTED == (int)MAR_TOKEN_ACCEPTED &&
                       (int)SPEC_REPLACED == (int)MAR_TOKEN_REPLACED,
                   "a verdict is a status");
    const raster_softmax *s = g->softmax;
    const size_t n = (size_t)g->model->facts.net.seq_len, first = (size_t)slot * n;
    int *ar_step = g->slots.ar_step + first;
    float *number = s->number + first;
    spec_sampler_read(s->sampler);
    spec_sampler_token_status(s->sampler, slot, g->slots.token_status + first, ar_step);
    const int *token = spec_sampler_tokens(s->sampler, slot), known = spec_sampler_known(s->sampler, slot);
    for (int i = 0; i < (int)n; i++) { /* a failed queue or image leaves tokens unread */
        const int is_known = i < known && token[i] >= 0;
        number[i] = is_known ? (float)token[i] : 0;
        if (!is_known) ar_step[i] = -1;
    }
    if (!g->slots.slot[slot].step) g->k->core->upload(g->k, g->slots.tokens + first, number, n * sizeof *number);
}

/* --- statistics and effect ---------------------------------------------------------------------------------------- */

static const mar_effect *softmax_effect(const mar_raster *g)
{
    return &g->softmax->effect;
}

static void softmax_stats(const mar_raster *g, mar_stats *stats)
{
    const spec_sampler_stats *s = spec_sampler_get_stats(g->softmax->sampler);
    const causal_runner_stats *d = raster_drafter_stats(&g->softmax->draft);
    *stats = (mar_stats){.decoder_s = s->target_s,
                         .draft_s = s->draft_s + (d ? d->prefix_s : 0),
                         .verify_s = s->verify_s,
                         .draft_flop = d ? d->flop : 0,
                         .draft_bytes = d ? d->bytes : 0,
                         .draft_calls = (double)s->draft_calls,
                         .contexts = (double)s->rows};
    stats->tokens = s->tokens;
    if (!g->plan.method) return;
    stats->drafted = s->drafted;
    stats->accepted = s->accepted;
    stats->rounds = s->rounds;
    stats->round_steps = stats->tokens;
    _Static_assert(sizeof stats->accepted_lengths == sizeof s->lengths, "both have as many lengths");
    memcpy(stats->accepted_lengths, s->lengths, sizeof s->lengths);
    stats->undrafted = s->undrafted;
    if (s->spent > 0 && !g->plan.is_standard)
        stats->plain_s = (s->draft_s + s->target_s + s->verify_s) * (double)s->tokens / s->spent;
}

static mar_status softmax_measure(mar_raster *g, mar_measurements *all, mar_err *err)
{
    const causal_model *model = g->model->net;
    const mar_model *draft = g->plan.params.draft;
    const causal_sampling sampling = softmax_sampling(g), draft_sampling = softmax_draft_sampling(g);
    const kern_cache_type cache = raster_cache_type(&g->plan.params);
    const mar_status status = raster_measure_net(g->k, model, &sampling, cache, g->max_images, "target", all, err);
    if (status != MAR_OK || !draft) return status;
    if (raster_eagle_of(draft))
        return raster_measure_eagle(g->k, raster_eagle_of(draft), model, &draft_sampling, &g->plan, g->max_images, all,
                                    err);
    return raster_measure_net(g->k, mar_raster_model_of(draft)->net, &draft_sampling, cache, g->max_images, "draft",
                              all, err);
}

extern const raster_head raster_softmax_head;
const raster_head raster_softmax_head = {
    .resolve = softmax_resolve,
    .create = softmax_create,
    .free = softmax_free,
    .lay_out = softmax_lay_out,
    .plan = softmax_plan,
    .set_negative = softmax_set_negative,
    .begin = softmax_begin,
    .place = softmax_place,
    .admit = softmax_admit,
    .step = softmax_step,
    .release = softmax_release,
    .read = softmax_read,
    .effect = softmax_effect,
    .stats = softmax_stats,
    .measure = softmax_measure,
};
