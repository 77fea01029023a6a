/* The masked engine: its plan, its memory, and images that begin and end (mar/masked.h). */
#include "mar/masked.h"

#include "base/arena.h"
#include "mar/core/conditioning.h"
#include "mar/core/params.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mar_status examine(mar_engine_state *engine_state, int slot, mar_err *err)
{
    const mar_masked *g = (const mar_masked *)engine_state;
    return mar_slots_examine(&g->slots, slot, diff_head_range_text(&g->model->head), err);
}

/* --- a step of the images in progress ----------------------------------------------------------------------------- */

static int steps_left(const mar_engine_state *g, int slot)
{
    return mar_masked_steps_left((const mar_masked *)g, slot);
}

static mar_status masked_step(mar_engine_state *engine_state, mar_err *err)
{
    mar_masked *g = (mar_masked *)engine_state;
    mar_status status = MAR_OK;
    if (g->stepper)
        status = g->stepper->step(g->stepper_state, err);
    else if (g->together)
        mar_masked_step(g);
    else
        mar_masked_step_images(g);
    if (status != MAR_OK || !g->k->watch.layer[0]) return status;
    const int next = g->together ? g->step : g->slots.slot[mar_slots_first(&g->slots)].step;
    return mar_slots_refuse_layer(&g->slots, next - 1, err);
}

/* --- beginning and ending images ---------------------------------------------------------------------------------- */

static int together(const mar_engine_state *g)
{
    return ((const mar_masked *)g)->together;
}

static int is_idle(const mar_masked *g)
{
    for (int i = 0; i < g->max_images; i++)
        if (mar_masked_steps_left(g, i) > 0) return 0;
    return 1;
}

/* Returns MAR_EARG unless a model of prompts can begin with this one. */
static mar_status masked_check_prompt(const mar_masked *g, const mar_image *image, mar_err *err)
{
    const causal_model *language = g->model->between.language;
    if (!language) return MAR_OK;
    mar_status status =
        mar_prompt_check(image->features, image->mask, language->shape.prefix, language->shape.rows, err);
    if (status == MAR_OK)
        status =
            mar_prompt_check(image->negative, image->negative_mask, language->shape.prefix, language->shape.rows, err);
    if (status == MAR_OK && g->cfg_branches == 2 && !g->has_negative && !image->negative && image->features)
        status = mar_refuse_no_negative(g->params.cfg, err);
    return status == MAR_OK ? wt_check_unchanged(language->prompt_file, MAR_OK, err) : status;
}

static mar_status masked_set_negative(mar_engine_state *engine_state, const float *features, const uint8_t *mask,
                                      mar_err *err)
{
    mar_masked *g = (mar_masked *)engine_state;
    mar_runner *runners[] = {&g->target, g->draft};
    const causal_shape *s = g->target.between ? &g->model->between.language->shape : NULL;
    if (!s) return err_set(err, MAR_EARG, "the model makes images of classes: it has no negative prompt");
    mar_status status = mar_prompt_check(features, mask, s->prefix, s->rows, err);
    if (status != MAR_OK) return status;
    for (int i = 0; i < 2 && runners[i]; i++) between_set_negative(runners[i]->between, -1, features, mask);
    status = kern_check(g->k, err);
    g->has_negative = status == MAR_OK;
    return status;
}

static mar_status masked_check_image(const mar_engine_state *engine_state, const mar_image *image, mar_err *err)
{
    const mar_masked *g = (const mar_masked *)engine_state;
    const float cfg = g->params.cfg;
    const char *name = NULL;
    const mar_status prompt = masked_check_prompt(g, image, err);
    if (prompt != MAR_OK) return prompt;
    for (int i = 0; !name && i < g->accel_count; i++)
        if (g->accels[i].accel->together) name = g->accels[i].accel->name;
    if (name && image->cfg != cfg)
        return err_set(err, MAR_EARG, "guidance %g: with --%s expected that of the session, %g", (double)image->cfg,
                       name, (double)cfg);
    if (name && image->tokens)
        return err_set(err, MAR_EARG, "--%s keeps a state of the whole batch: expected a request without known tokens",
                       name);
    for (int i = 0; i < g->accel_count; i++) {
        const mar_accel *accel = g->accels[i].accel;
        const mar_status status = accel->check_image ? accel->check_image(image, err) : MAR_OK;
        if (status != MAR_OK) return status;
    }
    return mar_slots_check_guidance(image, mar_cfg_branches(image->cfg), mar_cfg_branches(cfg), cfg, err);
}

/* Moves an image's known tokens to the end of its order, where they count as predicted first. */
static void order_known(mar_masked *g, int *order, const uint8_t *known)
{
    const int seq = g->model->base.config.seq_len;
    int *kept = g->place_slot, masked = 0, n = 0; /* scratch here */
    for (int i = 0; i < seq; i++) {
        if (known[order[i]])
            kept[n++] = order[i];
        else
            order[masked++] = order[i];
    }
    memcpy(order + masked, kept, (size_t)n * sizeof *order);
}

/* Makes the given tokens known to the target. Those that are not known get their place's row anew when they are. */
static void give_tokens(mar_masked *g, int slot, const mar_image *image)
{
    const int seq = g->model->base.config.seq_len;
    const float *tokens = g->slots.tokens + (size_t)slot * (size_t)seq * (size_t)g->model->base.config.token_dim;
    for (int i = 0; i < seq; i++) g->place_slot[i] = slot;
    mar_slots_give(&g->slots, slot, image);
    masked_runner_add_known_tokens(&g->target.net, tokens, seq, g->place_slot, g->place, NULL);
}

static void begin_image(mar_masked *g, int slot, const mar_image *image)
{
    const mar_model_config *c = &g->model->base.config;
    mar_slot *s = &g->slots.slot[slot];
    mar_slots_begin(&g->slots, slot, image);
    g->label[slot] = image->label < 0 ? c->classes : image->label;
    kern_random_order(s->seed, s->number, c->seq_len, g->order[slot]);
    for (int i = 0; i < g->accel_count; i++)
        if (g->accels[i].hooks->order) g->accels[i].hooks->order(g->accels[i].state, g->order[slot]);
    if (image->tokens) order_known(g, g->order[slot], image->known);
    while (s->step < g->params.num_iter && g->steps[s->step].known + g->steps[s->step].predicted <= s->known) s->step++;
    int steps = 0;
    for (int i = s->step; i < g->params.num_iter; i++) steps += g->steps[i].sampling_steps;
    if (g->drawer) g->drawer->begin(g->drawer_state, slot, steps);
}

static void reset_stats(mar_masked *g)
{
    g->stats = (mar_stats){0};
    mar_runner_reset(&g->target);
    masked_contexts_begin(&g->contexts);
    kern_watch_begin(g->k);
}

static void admit(mar_engine_state *engine_state, const int *slot, const mar_image *images, int n)
{
    mar_masked *g = (mar_masked *)engine_state;
    if (is_idle(g)) reset_stats(g);
    for (int i = 0; i < n; i++) begin_image(g, slot[i], &images[i]);
    for (int i = 0; i < n; i++) g->label_list[i] = g->label[slot[i]];
    masked_runner_admit(&g->target.net, n, slot, g->label_list);
    mar_runner_set_prompts(&g->target, slot, images, n);
    if (g->draft) mar_runner_set_prompts(g->draft, slot, images, n);
    for (int i = 0; i < n; i++)
        if (images[i].tokens) give_tokens(g, slot[i], &images[i]);
    if (!g->together) return;
    g->images = n;
    g->step = 0;
    for (int i = 0; i < g->accel_count; i++)
        if (g->accels[i].hooks->begin) g->accels[i].hooks->begin(g->accels[i].state);
}

static void release(mar_engine_state *g, int slot)
{
    mar_slots_release(&((mar_masked *)g)->slots, slot);
}

static void snapshot(mar_engine_state *g, int slot, float *tokens, uint8_t *known)
{
    mar_slots_snapshot(&((const mar_masked *)g)->slots, slot, tokens, known);
}

/* --- plan --------------------------------------------------------------------------------------------------------- */

/* Fills in automatic values, and checks the parameters against the model. */
static mar_status resolve_params(const mar_masked_model *model, const mar_accel *const *accels, mar_params *p,
                                 int max_images, mar_err *err)
{
    const mar_model_config *c = &model->base.config;
    mar_status status = MAR_OK;
    if ((int64_t)max_images * (p->cfg == 1.0f ? 1 : 2) * (c->buffer + c->seq_len) > INT_MAX / 8)
        return err_set(err, MAR_EARG, "batch of %d images of %d tokens: too large", max_images, c->seq_len);
    for (; status == MAR_OK && *accels; accels++)
        if ((*accels)->check) status = (*accels)->check(&model->base, p, err);
    if (status == MAR_OK && p->num_iter > c->seq_len)
        status = err_set(err, MAR_EARG, "--num_iter %d: expected 0..%d (the model has %d tokens)", p->num_iter,
                         c->seq_len, c->seq_len);
    return status;
}

/* Sets the rows a token of each step. An accelerator that draws tokens of several steps at once needs the same number
 * in all. */
static void plan_cfg_branches(mar_masked *g, int in_blocks)
{
    const mar_params *p = &g->params;
    int most = 1;
    g->cfg_branches = 1;
    for (int i = 0; i < p->num_iter; i++) {
        mar_step *s = &g->steps[i];
        s->cfg_branches = mar_cfg_branches(s->cfg);
        if (s->cfg_branches > most) most = s->cfg_branches;
        if (p->cfg != 1 && s->share != 0)
            g->cfg_branches = 2; /* also where a scale is rounded to 1: a request has another */
    }
    for (int i = 0; in_blocks && i < p->num_iter; i++) g->steps[i].cfg_branches = most;
}

static mar_status masked_plan_steps(mar_masked *g, mar_err *err)
{
    const mar_params *p = &g->params;
    g->steps = calloc((size_t)p->num_iter, sizeof *g->steps);
    g->recordings = calloc((size_t)p->num_iter, sizeof *g->recordings);
    if (!g->steps || !g->recordings) return err_set(err, MAR_ENOMEM, "out of memory");
    mar_steps_plan(p->num_iter, g->model->base.config.seq_len, p->cfg, p->cfg_schedule, g->steps);
    for (int i = 0; i < p->num_iter; i++) g->steps[i].sampling_steps = p->num_sampling_steps;
    int block = 0;
    for (int i = 0; i < g->accel_count; i++) {
        const mar_accel *accel = g->accels[i].accel;
        if (accel->plan_steps) accel->plan_steps(&g->model->base.config, p, g->steps);
        for (int j = 0; accel->sampling_steps && j < p->num_iter; j++)
            g->steps[j].sampling_steps = accel->sampling_steps(p, j);
        if (accel->block_steps) block = accel->block_steps(p);
    }
    plan_cfg_branches(g, block > 0);
    for (int i = 0; i < p->num_iter; i++) {
        int sum = 0;
        g->steps[i].number = i;
        for (int j = i; (j == i || j < i + block) && j < p->num_iter; j++) sum += g->steps[j].predicted;
        if (sum > g->max_tokens) g->max_tokens = sum;
    }
    return MAR_OK;
}

/* Adds the chain of `steps` diffusion steps unless it is listed. Returns the new length. */
static int add_spec(const mar_masked *g, diff_spec *specs, int n, int steps)
{
    for (int i = 0; i < n; i++)
        if (specs[i].steps == steps) return n;
    specs[n] = (diff_spec){MAR_SAMPLER_DDPM, steps, DIFF_TOP, .process = g->model->process};
    for (int i = 0; i < g->accel_count; i++)
        if (g->accels[i].accel->respace) g->accels[i].accel->respace(&g->params, &specs[n]);
    return n + 1;
}

int mar_masked_specs(const mar_masked *g, diff_spec *specs)
{
    int n = 0;
    for (int i = 0; i < g->params.num_iter; i++) {
        const mar_step *s = &g->steps[i];
        if (s->predicted > s->detailed) n = add_spec(g, specs, n, s->sampling_steps);
        if (s->detailed) n = add_spec(g, specs, n, s->detailed_steps);
    }
    return n;
}

static mar_status create_target(mar_masked *g, mar_err *err)
{
    diff_spec *specs = malloc(2 * (size_t)g->params.num_iter * sizeof *specs);
    if (!specs) return err_set(err, MAR_ENOMEM, "out of memory");
    const int n = mar_masked_specs(g, specs);
    const mar_status status = mar_runner_create(g->k, g->model, g->max_images, g->cfg_branches, g->max_tokens, specs, n,
                                                g->params.temperature, &g->target, err);
    free(specs);
    return status;
}

/* Returns whether an accelerator other than i changes the distribution. */
static int others_change(const mar_masked *g, int i)
{
    for (int k = 0; k < g->accel_count; k++)
        if (k != i && !g->accels[k].accel->exact) return 1;
    return 0;
}

static mar_status masked_create_drawer(mar_masked *g, const mar_chain_hooks *drawer, mar_err *err)
{
    const mar_chain_stage stage = {.params = &g->params,
                                   .max_images = g->max_images,
                                   .chain = &g->target.chain,
                                   .draft = g->draft ? &g->draft->chain : NULL,
                                   .stats = &g->stats,
                                   .head_flop = &g->target.head_flop};
    g->drawer = drawer;
    return drawer->create(&stage, &g->drawer_state, err);
}

static mar_status create_accels(mar_masked *g, mar_err *err)
{
    mar_status status = MAR_OK;
    if (!g->together) status = masked_contexts_create_in(&g->target.net, &g->contexts, err);
    for (int i = 0; status == MAR_OK && i < g->accel_count; i++) {
        const mar_masked_hooks *hooks = g->accels[i].hooks;
        if (hooks->create) status = hooks->create(g, &g->accels[i].state, err);
        if (status == MAR_OK && g->accels[i].accel->chain)
            status = masked_create_drawer(g, g->accels[i].accel->chain, err);
        if (hooks->step) g->stepper = hooks, g->stepper_state = g->accels[i].state;
    }
    for (int i = 0; status == MAR_OK && i < g->accel_count; i++)
        if (g->accels[i].hooks->effect && !others_change(g, i)) {
            g->accels[i].hooks->effect(g->accels[i].state, &g->effect);
            g->has_effect = 1;
        }
    return status;
}

/* Assigns parts of the host memory at base. Returns its size in bytes. base NULL only counts. */
static size_t lay_out_host(mar_masked *g, char *base)
{
    const size_t images = (size_t)g->max_images, seq = (size_t)g->model->base.config.seq_len;
    const size_t rows = images * (size_t)g->max_tokens;
    size_t used = 0;
    g->parts = arena_carve(base, &used, images, sizeof *g->parts);
    g->list = arena_carve(base, &used, images, sizeof *g->list);
    g->label = arena_carve(base, &used, images, sizeof *g->label);
    g->label_list = arena_carve(base, &used, images, sizeof *g->label_list);
    g->order = arena_carve(base, &used, images, sizeof *g->order);
    g->order_data = arena_carve(base, &used, images * seq, sizeof *g->order_data);
    g->place = arena_carve(base, &used, seq, sizeof *g->place);
    g->place_slot = arena_carve(base, &used, seq, sizeof *g->place_slot);
    g->row_seed = arena_carve(base, &used, rows, sizeof *g->row_seed);
    g->row_image = arena_carve(base, &used, rows, sizeof *g->row_image);
    g->row_slot = arena_carve(base, &used, rows, sizeof *g->row_slot);
    g->row_position = arena_carve(base, &used, rows, sizeof *g->row_position);
    g->row_cfg = arena_carve(base, &used, rows, sizeof *g->row_cfg);
    g->row_place = arena_carve(base, &used, rows, sizeof *g->row_place);
    return used;
}

static mar_status masked_allocate_host(mar_masked *g, mar_err *err)
{
    const int seq = g->model->base.config.seq_len;
    g->host = calloc(1, lay_out_host(g, NULL));
    if (!g->host) return err_set(err, MAR_ENOMEM, "out of memory for a batch of %d images", g->max_images);
    lay_out_host(g, g->host);
    for (int i = 0; i < g->max_images; i++) g->order[i] = g->order_data + (size_t)i * (size_t)seq;
    for (int i = 0; i < seq; i++) g->place[i] = i;
    return MAR_OK;
}

static void masked_free_recordings(mar_masked *g)
{
    for (int i = 0; g->recordings && i < g->params.num_iter; i++) mar_recordings_free(g->k, &g->recordings[i]);
}

static void masked_destroy(mar_engine_state *engine_state)
{
    mar_masked *g = (mar_masked *)engine_state;
    if (!g) return;
    masked_free_recordings(g);
    if (g->drawer_state) g->drawer->destroy(g->drawer_state);
    for (int i = g->accel_count - 1; i >= 0; i--)
        if (g->accels[i].state) g->accels[i].hooks->destroy(g->accels[i].state);
    masked_contexts_free(&g->contexts);
    mar_runner_free(&g->target);
    free(g->steps);
    free(g->recordings);
    mar_slots_free(&g->slots);
    free(g->host);
    free(g);
}

static mar_status masked_create(mar_model *base, const mar_vae *vae, kern_queue *k, const mar_params *params,
                                const mar_accel *const *accels, int max_images, mar_engine_state **out, mar_err *err)
{
    static const mar_masked_hooks none;
    const mar_masked_model *model = mar_masked_model_of(base);
    mar_params p = *params;
    *out = NULL;
    mar_status status = mar_check_vae(&base->config, vae, err);
    if (status == MAR_OK) status = resolve_params(model, accels, &p, max_images, err);
    if (status != MAR_OK) return status;
    mar_masked *g = calloc(1, sizeof *g);
    if (!g) return err_set(err, MAR_ENOMEM, "out of memory");
    g->model = model;
    g->k = k;
    g->params = p;
    g->max_images = max_images;
    g->grid = mar_grid_columns(&base->config);
    g->step = p.num_iter;
    for (; *accels; accels++) {
        g->accels[g->accel_count].hooks = (*accels)->masked ? (*accels)->masked : &none;
        g->accels[g->accel_count++].accel = *accels;
        g->together |= (*accels)->together;
    }
    status = masked_plan_steps(g, err);
    if (status == MAR_OK) status = create_target(g, err);
    if (status == MAR_OK) status = mar_slots_create(k, &base->config, max_images, &g->slots, err);
    if (status == MAR_OK) status = masked_allocate_host(g, err);
    if (status == MAR_OK) status = create_accels(g, err);
    if (status == MAR_OK)
        *out = (mar_engine_state *)g;
    else
        masked_destroy((mar_engine_state *)g);
    return status;
}

void *mar_masked_state(const mar_masked *g, const mar_accel *accel)
{
    for (int i = 0; i < g->accel_count; i++)
        if (g->accels[i].accel == accel) return g->accels[i].state;
    return NULL;
}

static size_t masked_lay_out(mar_engine_state *engine_state, char *base)
{
    mar_masked *g = (mar_masked *)engine_state;
    const mar_model_config *c = &g->model->base.config;
    const size_t images = (size_t)g->max_images, token = (size_t)c->token_dim * sizeof(float);
    size_t used = mar_slots_lay_out(&g->slots, 0, base);
    g->sampled = arena_carve(base, &used, images * (size_t)g->max_tokens, token);
    used += mar_runner_lay_out(&g->target, base ? base + used : NULL);
    if (!g->together) masked_contexts_lay_out(&g->contexts, base); /* they have the runner's memory */
    for (int i = 0; i < g->accel_count; i++)
        if (g->accels[i].hooks->lay_out)
            used += g->accels[i].hooks->lay_out(g->accels[i].state, base ? base + used : NULL);
    if (g->drawer) used += g->drawer->lay_out(g->drawer_state, base ? base + used : NULL);
    return used;
}

/* Prepares draws of n tokens in `steps` diffusion steps with cfg_branches rows a token. */
static mar_status masked_plan_draw(mar_masked *g, int n, int steps, int cfg_branches, mar_err *err)
{
    if (n == 0) return MAR_OK;
    mar_masked_use_chain(g, steps, cfg_branches);
    if (g->drawer) return g->drawer->plan(g->drawer_state, n, err);
    return diff_chain_plan(&g->target.chain, n, err);
}

/* Prepares steps of images at different places of the plan, and images with known tokens. */
static mar_status plan_apart(mar_masked *g, int images, mar_err *err)
{
    mar_status status = masked_runner_plan_known_tokens(&g->target.net, images * g->max_tokens, err);
    if (status == MAR_OK) status = masked_runner_plan_known_tokens(&g->target.net, g->model->base.config.seq_len, err);
    if (status == MAR_OK) status = masked_contexts_plan(&g->contexts, err);
    for (int i = 0; status == MAR_OK && i < g->params.num_iter; i++)
        if (mar_masked_first_alike(g, i) == i)
            status = masked_plan_draw(g, images * g->max_tokens, g->steps[i].sampling_steps, g->cfg_branches, err);
    return status;
}

static mar_status masked_plan(mar_engine_state *engine_state, int images, mar_err *err)
{
    mar_masked *g = (mar_masked *)engine_state;
    masked_free_recordings(g);
    g->planned = images;
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && i < g->params.num_iter; i++) {
        const mar_step *s = &g->steps[i];
        status = mar_runner_plan(&g->target, images, s, err);
        const int others = images * (s->predicted - s->detailed);
        if (status == MAR_OK) status = masked_plan_draw(g, others, s->sampling_steps, s->cfg_branches, err);
        if (status == MAR_OK)
            status = masked_plan_draw(g, images * s->detailed, s->detailed_steps, s->cfg_branches, err);
        if (status == MAR_OK) status = kern_check(g->k, err); /* planning takes long enough to be cancelled */
    }
    if (status == MAR_OK && !g->together) status = plan_apart(g, images, err);
    for (int i = 0; status == MAR_OK && i < g->accel_count; i++)
        if (g->accels[i].hooks->plan) status = g->accels[i].hooks->plan(g->accels[i].state, images, err);
    return status;
}

/* --- descriptions ------------------------------------------------------------------------------------------------- */

static void masked_describe(const mar_model *model, char *text, size_t size)
{
    const diff_head *head = &mar_masked_model_of(model)->head;
    snprintf(text, size, "head: %s", head->device->head->describe(head->net));
}

static const mar_params *params_of(const mar_engine_state *g)
{
    return &((const mar_masked *)g)->params;
}

static const mar_effect *effect_of(const mar_engine_state *engine_state)
{
    const mar_masked *g = (const mar_masked *)engine_state;
    return g->has_effect ? &g->effect : NULL;
}

static const char *warning_of(const mar_engine_state *engine_state)
{
    const mar_masked *g = (const mar_masked *)engine_state;
    const char *warning = NULL;
    for (int i = 0; !warning && i < g->accel_count; i++)
        if (g->accels[i].hooks->warn) warning = g->accels[i].hooks->warn(g->accels[i].state);
    return warning;
}

static const float *latents(const mar_engine_state *g)
{
    return ((const mar_masked *)g)->slots.tokens;
}

static void stats_of(const mar_engine_state *engine_state, mar_stats *stats)
{
    const mar_masked *g = (const mar_masked *)engine_state;
    const mar_runner *t = &g->target;
    *stats = g->stats;
    stats->encoder_s = t->net.encoder_s + g->contexts.encoder_s;
    stats->decoder_s = t->net.decoder_s + g->contexts.decoder_s;
    stats->head_s = t->head_s;
    stats->encoder_flop = t->net.encoder_flop + g->contexts.encoder_flop;
    stats->decoder_flop = t->net.decoder_flop + g->contexts.decoder_flop;
    if (t->between) stats->decoder_flop += between_flop(t->between);
    stats->head_flop = t->head_flop;
    if (g->drawer) g->drawer->stats(g->drawer_state, stats);
    stats->head_call_bytes = diff_head_sequential_bytes(&g->model->head);
    stats->head_call_products = 2 * g->model->head.shape.depth + 2;
    for (int i = 0; i < g->accel_count; i++)
        if (g->accels[i].hooks->stats) g->accels[i].hooks->stats(g->accels[i].state, stats);
}

static void get_token_status(const mar_engine_state *g, int slot, uint8_t *map, int *ar_step)
{
    mar_slots_token_status(&((const mar_masked *)g)->slots, slot, map, ar_step);
}

static void get_staleness(const mar_engine_state *g, int slot, int *staleness)
{
    mar_slots_staleness(&((const mar_masked *)g)->slots, slot, staleness);
}

extern const mar_engine mar_masked_engine;
const mar_engine mar_masked_engine = {
    .tokens = "continuous",
    .order = MAR_ORDER_SETS,
    .stages = MAR_STAGE_AR_STEPS | MAR_STAGE_DRAFT | MAR_STAGE_PASSES | MAR_STAGE_COUNTS | MAR_STAGE_SOLVER |
              MAR_STAGE_CHAIN | MAR_STAGE_HEAD | MAR_STAGE_STATES,
    .load = mar_masked_load,
    .unload = mar_masked_unload,
    .describe = masked_describe,
    .create = masked_create,
    .free = masked_destroy,
    .params = params_of,
    .effect = effect_of,
    .warning = warning_of,
    .lay_out = masked_lay_out,
    .plan = masked_plan,
    .together = together,
    .check = masked_check_image,
    .set_negative = masked_set_negative,
    .admit = admit,
    .release = release,
    .step = masked_step,
    .steps_left = steps_left,
    .examine = examine,
    .snapshot = snapshot,
    .latents = latents,
    .stats = stats_of,
    .token_status = get_token_status,
    .staleness = get_staleness,
};
