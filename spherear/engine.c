/* SphereAR's autoregressive loop: one token of every image a step, each drawn by the head's flow from the condition
 * that the transformer's last pass gave, and normalised to the sphere of radius sqrt(channels). */
#include "base/arena.h"

#include "mar_files.h"
#include "mar_measure.h"
#include "mar/masked/accel.h"
#include "spherear/paths.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sphere *of(mar_engine_state *g)
{
    return (sphere *)g;
}

static const sphere *of_const(const mar_engine_state *g)
{
    return (const sphere *)g;
}

static int seq_len(const sphere *g)
{
    return g->model->shape.transformer.shape.seq_len;
}

static int steps_left(const mar_engine_state *engine_state, int slot)
{
    const sphere *g = of_const(engine_state);
    return g->slots.slot[slot].busy ? seq_len(g) - g->slots.slot[slot].known : 0;
}

/* --- one step ----------------------------------------------------------------------------------------------------- */

/* Lists a token to draw: that of a slot, or with `apart` the one of its unconditional branch. */
static void list_token(sphere *g, int slot, int apart)
{
    const mar_slot *s = &g->slots.slot[slot];
    const int i = g->drawn++, n = seq_len(g);
    g->row_slot[i] = slot;
    g->row_seed[i] = s->seed;
    g->row_image[i] = s->number;
    g->row_position[i] = apart ? n : s->known; /* noise that no other token of the image has */
    g->row_cfg[i] = sphere_scale(g, s, s->known);
    g->row_place[i] = apart ? g->max_images * n + slot : slot * n + s->known;
    g->row_z[i] = (apart ? g->max_images : 0) + slot;
}

/* Argument of a recording's body. */
typedef struct {
    sphere *g;
    int guided;
} drawing;

static void gather_z(const sphere *g, int guided)
{
    const int d = g->model->shape.transformer.shape.width, n = g->drawn;
    for (int i = 0; guided && i < n; i++) g->row_z[n + i] = g->max_images + g->row_slot[i];
    g->k->core->copy_rows(g->k, g->z_drawn, NULL, g->z, g->row_z, NULL, NULL, guided ? 2 * n : n, d);
}

/* Normalises the tokens drawn and writes them to the images. */
static void write_tokens(const sphere *g)
{
    kern_queue *k = g->k;
    const int channels = g->model->shape.head.channels;
    k->core->rms_norm(k, g->sampled, NULL, g->drawn, channels, g->model->ones, SPHERE_EPS, g->normal, 1);
    k->core->copy_rows(k, g->slots.tokens, g->row_place, g->normal, NULL, NULL, NULL, g->drawn, channels);
}

static void draw_plain(void *arg)
{
    const drawing *d = arg;
    sphere *g = d->g;
    gather_z(g, d->guided);
    diff_chain_sample(&g->chain, g->z_drawn, g->drawn, g->row_cfg, g->row_seed, g->row_image, g->row_position,
                      g->sampled);
    write_tokens(g);
}

/* Adds the work of a call. Sequential calls are those of tokens in the images, not of `apart` ones. */
static void count_speculation(sphere *g, const diff_speculation_stats *s, int apart)
{
    g->head_flop += s->flop;
    g->stats.head_batched += (double)s->batched;
    if (!apart) g->stats.head_calls += (double)s->calls;
    g->stats.head_rows += (double)s->evaluations;
    if (s->calls_max > g->stats.head_calls_max) g->stats.head_calls_max = s->calls_max;
    g->stats.proposals += s->accepted + s->rejected;
    g->stats.proposals_accepted += s->accepted;
    g->stats.residual_tries += s->tries;
}

static void draw_by_speculation(sphere *g, int guided, int apart)
{
    diff_speculation_stats stats = {0};
    g->k->watch.part = "";
    g->k->core->timer_mark(g->k, NULL);
    gather_z(g, guided);
    const diff_tokens tokens = {.count = g->drawn,
                                .sources = g->drawn,
                                .z = g->z_drawn,
                                .cfg = g->row_cfg,
                                .seed = g->row_seed,
                                .image = g->row_image,
                                .position = g->row_position};
    diff_speculate_sample(&g->speculation, &tokens, g->sampled, NULL, &stats);
    write_tokens(g);
    g->k->core->timer_mark(g->k, &g->head_s);
    count_speculation(g, &stats, apart);
}

/* Draws the listed tokens; apart: those of unconditional branches that draw for themselves. */
static void draw(sphere *g, int guided, int apart)
{
    drawing d = {g, guided};
    const net_recording_shape shape = {.kind = guided, .rows = g->drawn};
    if (g->drawn == 0) return;
    diff_chain_guide(&g->chain, guided);
    if (g->speculation.w.window) {
        draw_by_speculation(g, guided, apart);
        return;
    }
    g->k->watch.part = "";
    g->k->core->timer_mark(g->k, NULL);
    net_recordings_run(g->k, &g->recordings, &shape, draw_plain, &d);
    g->k->core->timer_mark(g->k, &g->head_s);
    const int steps = g->chain.schedule.steps;
    g->head_flop += diff_chain_flop(&g->chain, g->drawn);
    g->stats.head_batched += steps;
    if (!apart) g->stats.head_calls += (double)steps * g->drawn;
    g->stats.head_rows += (double)steps * g->drawn;
    g->stats.head_calls_max = steps;
}

/* Draws the next token of every unfinished image: guided ones together, then those without guidance at this token, then
 * those of unconditional branches that draw for themselves. */
static void draw_tokens(sphere *g)
{
    enum { GUIDED, PLAIN, APART, GROUPS };
    for (int group = 0; group < GROUPS; group++) {
        g->drawn = 0;
        for (int slot = 0; slot < g->max_images; slot++) {
            const mar_slot *s = &g->slots.slot[slot];
            if (steps_left((mar_engine_state *)g, slot) == 0) continue;
            const int guided = sphere_scale(g, s, s->known) != 1;
            if (group == APART ? sphere_draws_apart(g, s, s->known) : guided == (group == GUIDED))
                list_token(g, slot, group == APART);
        }
        draw(g, group == GUIDED, group == APART);
    }
}

/* Takes a round of paths. The images' first tokens are drawn plainly. */
static mar_status step_by_paths(sphere *g, mar_err *err)
{
    int first = 0;
    for (int slot = 0; slot < g->max_images; slot++) first |= steps_left((mar_engine_state *)g, slot) == seq_len(g);
    if (!first) return sphere_paths_round(g->paths, err);
    draw_tokens(g);
    for (int slot = 0; slot < g->max_images; slot++)
        if (steps_left((mar_engine_state *)g, slot) > 0)
            mar_slots_add(&g->slots, slot, 1, MAR_TOKEN_TARGET), g->stats.tokens++;
    diff_chain_guide(&g->chain, g->branches == 2);
    diff_chain_guide(&g->paths->chain, g->branches == 2);
    return MAR_OK;
}

static void step_plainly(sphere *g)
{
    draw_tokens(g);
    causal_vectors_begin(g->target, g->slots.tokens);
    for (int slot = 0; slot < g->max_images; slot++) {
        if (steps_left((mar_engine_state *)g, slot) == 0) continue;
        mar_slots_add(&g->slots, slot, 1, MAR_TOKEN_TARGET);
        g->stats.tokens++;
        const int known = g->slots.slot[slot].known;
        if (known < seq_len(g))
            sphere_add_tokens(g, g->target, slot, known - 1, 1, 1, g->max_images, &slot), g->stats.contexts++;
    }
    causal_vectors_run(g->target, g->z);
}

static mar_status step(mar_engine_state *engine_state, mar_err *err)
{
    sphere *g = of(engine_state);
    mar_status status = MAR_OK;
    if (g->paths)
        status = step_by_paths(g, err);
    else
        step_plainly(g);
    if (status != MAR_OK || !g->k->watch.layer[0]) return status;
    return mar_slots_refuse_layer(&g->slots, g->slots.slot[mar_slots_first(&g->slots)].known - 1, err);
}

/* --- beginning and ending images ---------------------------------------------------------------------------------- */

/* A round of paths has the session's guidance. Otherwise each image goes at its own pace. */
static int together(const mar_engine_state *g)
{
    return of_const(g)->paths != NULL;
}

static mar_status check_image(const mar_engine_state *engine_state, const mar_image *image, mar_err *err)
{
    const sphere *g = of_const(engine_state);
    const mar_status status = mar_slots_check_guidance(image, image->cfg > 1 ? 2 : 1, g->branches, g->params.cfg, err);
    if (status != MAR_OK) return status;
    if (g->paths && image->cfg != g->params.cfg)
        return err_set(err, MAR_EARG, "guidance %g: with --spec path expected that of the session, %g",
                       (double)image->cfg, (double)g->params.cfg);
    if (g->paths && image->known) return err_set(err, MAR_EARG, "--spec path: expected a request without known tokens");
    if (g->paths && image->number >= SPHERE_CANDIDATE_IMAGES)
        return err_set(err, MAR_EARG, "image %llu: with --spec path expected a number below 2^40",
                       (unsigned long long)image->number);
    return mar_slots_check_prefix(&g->model->base.config, image, err);
}

static int is_idle(const sphere *g)
{
    for (int i = 0; i < g->max_images; i++)
        if (steps_left((const mar_engine_state *)g, i) > 0) return 0;
    return 1;
}

static void reset_stats(sphere *g)
{
    g->stats = (mar_stats){0};
    g->head_s = g->head_flop = 0;
    causal_runner_clear_stats(g->target);
    if (g->paths) sphere_paths_begin(g->paths);
    kern_watch_begin(g->k);
}

/* Computes the class tokens of n images, and then their known tokens. */
static void admit(mar_engine_state *engine_state, const int *slot, const mar_image *images, int n)
{
    sphere *g = of(engine_state);
    if (is_idle(g)) reset_stats(g);
    for (int i = 0; i < n; i++) {
        mar_slots_begin(&g->slots, slot[i], &images[i]);
        mar_slots_give(&g->slots, slot[i], &images[i]);
    }
    sphere_admit(g, g->target, slot, images, n);
    causal_vectors_begin(g->target, NULL);
    for (int branch = 0; branch < g->branches; branch++)
        for (int i = 0; i < n; i++)
            if (branch == 0 || images[i].cfg > 1)
                causal_vectors_want_first(g->target, slot[i], branch, branch * g->max_images + slot[i]);
    causal_vectors_run(g->target, g->z);
    if (g->paths) sphere_paths_admit(g->paths, slot, images, n);
    for (int i = 0; i < n; i++) {
        const int given = g->slots.slot[slot[i]].given;
        for (int first = 0, some; first < given && given < seq_len(g); first += some) {
            some = given - first < causal_runner_rows(g->target) ? given - first : causal_runner_rows(g->target);
            causal_vectors_begin(g->target, g->slots.tokens);
            sphere_add_tokens(g, g->target, slot[i], first, some, 1, g->max_images, &slot[i]);
            causal_vectors_run(g->target, g->z);
        }
    }
}

static void release(mar_engine_state *g, int slot)
{
    mar_slots_release(&of(g)->slots, slot);
}

static void snapshot(mar_engine_state *g, int slot, float *tokens, uint8_t *known)
{
    mar_slots_snapshot(&of_const(g)->slots, slot, tokens, known);
}

static mar_status examine(mar_engine_state *engine_state, int slot, mar_err *err)
{
    const sphere *g = of_const(engine_state);
    return mar_slots_examine(&g->slots, slot, diff_head_range_text(&g->model->head), err);
}

/* --- creation ----------------------------------------------------------------------------------------------------- */

/* Returns MAR_EARG, naming the option, for an accelerator that this family does not have. */
static mar_status check_accels(const mar_accel *const *accels, const mar_params *p, mar_err *err)
{
    if (p->spec && strcmp(p->spec, "path") != 0)
        return err_set(err, MAR_EARG, "--spec %s is for MAR models: expected path with a SphereAR model", p->spec);
    for (; *accels; accels++)
        if (!(*accels)->for_spherear)
            return err_set(err, MAR_EARG,
                           "--%s is for MAR models: expected --head_spec, --sampler, --cfg_interval or --draft with a "
                           "SphereAR model",
                           (*accels)->name);
    return MAR_OK;
}

/* Tells whether a draft model's paths are verified. Returns MAR_EARG for other uses of a draft. */
static mar_status find_paths(const sphere_model *model, const mar_params *p, int max_images, int *paths, mar_err *err)
{
    *paths = p->spec != NULL; /* check_accels refuses the other methods */
    if (p->draft && !*paths)
        return err_set(err, MAR_EARG, "--draft with --head_spec: expected --spec path with a SphereAR model");
    return *paths ? sphere_paths_check(model, p, max_images, err) : MAR_OK;
}

static mar_status resolve_params(const sphere_model *model, const mar_accel *const *accels, mar_params *p, mar_err *err)
{
    const int n = model->shape.transformer.shape.seq_len;
    const mar_status status = check_accels(accels, p, err); /* first: some change num_iter */
    if (status != MAR_OK) return status;
    if (p->num_iter != 0 && p->num_iter != n)
        return err_set(err, MAR_EARG, "--num_iter %d: expected 0 or %d: the model makes its tokens one after another",
                       p->num_iter, n);
    p->num_iter = n;
    if (p->gamma > n) p->gamma = n;
    if (p->spec && !p->gamma) p->gamma = sphere_paths_gamma(p) < n ? sphere_paths_gamma(p) : n;
    return MAR_OK;
}

static mar_status create_head(sphere *g, int paths, mar_err *err)
{
    const mar_params *p = &g->params;
    const int tokens = paths ? sphere_paths_rows(p, g->max_images) : g->max_images;
    const diff_spec spec = {p->sampler, p->num_sampling_steps, DIFF_TOP, DIFF_FLOW};
    mar_status status = diff_chain_create_for(g->k, &g->model->head, &spec, 1, p->temperature, tokens, g->branches == 2,
                                              &g->chain, err);
    if (status == MAR_OK && paths) return sphere_paths_create(g, &g->paths, err);
    if (status == MAR_OK && p->head_spec)
        status = diff_speculate_create(&g->chain, NULL, p->head_spec, 0, &g->speculation, err);
    return status;
}

/* Assigns parts of the host memory at base. Returns its size in bytes. base NULL only counts. */
static size_t lay_out_host(sphere *g, char *base)
{
    const size_t images = (size_t)g->max_images, n = (size_t)seq_len(g);
    size_t used = 0;
    g->source = arena_carve(base, &used, n, sizeof *g->source);
    g->start = arena_carve(base, &used, images, sizeof *g->start);
    g->row_slot = arena_carve(base, &used, images, sizeof *g->row_slot);
    g->row_seed = arena_carve(base, &used, images, sizeof *g->row_seed);
    g->row_image = arena_carve(base, &used, images, sizeof *g->row_image);
    g->row_position = arena_carve(base, &used, images, sizeof *g->row_position);
    g->row_cfg = arena_carve(base, &used, images, sizeof *g->row_cfg);
    g->row_place = arena_carve(base, &used, images, sizeof *g->row_place);
    g->row_z = arena_carve(base, &used, 2 * images, sizeof *g->row_z);
    return used;
}

static void destroy(mar_engine_state *engine_state)
{
    sphere *g = of(engine_state);
    if (!g) return;
    g->k->core->finish(g->k); /* timer marks: their times go to statistics of what is freed */
    net_recordings_free(g->k, &g->recordings);
    sphere_paths_free(g->paths);
    diff_speculate_free(&g->speculation);
    diff_chain_free(&g->chain);
    causal_runner_free(g->target);
    mar_slots_free(&g->slots);
    free(g->host);
    free(g);
}

static mar_status create(mar_model *base, const mar_vae *vae, kern_queue *k, const mar_params *params,
                         const mar_accel *const *accels, int max_images, mar_engine_state **out, mar_err *err)
{
    const sphere_model *model = sphere_model_of(base);
    mar_params p = *params;
    *out = NULL;
    mar_status status = mar_check_vae(&base->config, vae, err);
    int paths = 0;
    if (status == MAR_OK) status = resolve_params(model, accels, &p, err);
    if (status == MAR_OK) status = find_paths(model, &p, max_images, &paths, err);
    if (status != MAR_OK) return status;
    sphere *g = calloc(1, sizeof *g);
    if (!g) return err_set(err, MAR_ENOMEM, "out of memory");
    *g = (sphere){.model = model, .k = k, .params = p, .max_images = max_images, .branches = p.cfg > 1 ? 2 : 1};
    status = mar_slots_create(k, &base->config, max_images, &g->slots, err);
    if (status == MAR_OK) g->host = calloc(1, lay_out_host(g, NULL));
    if (g->host)
        lay_out_host(g, g->host);
    else if (status == MAR_OK)
        status = err_set(err, MAR_ENOMEM, "out of memory for a batch of %d images", max_images);
    if (status == MAR_OK)
        status = causal_runner_create(k, model->transformer, &(causal_sampling){.cfg = p.cfg}, max_images,
                                      paths ? sphere_paths_gamma(&p) - 1 : 0, 0, &g->target, err);
    if (status == MAR_OK) status = create_head(g, paths, err);
    if (status == MAR_OK)
        *out = (mar_engine_state *)g;
    else
        destroy((mar_engine_state *)g);
    return status;
}

static size_t lay_out(mar_engine_state *engine_state, char *base)
{
    sphere *g = of(engine_state);
    const size_t images = (size_t)g->max_images, token = (size_t)g->model->shape.head.channels * sizeof(float);
    const size_t z = (size_t)g->model->shape.transformer.shape.width * sizeof(float);
    if (base) net_recordings_free(g->k, &g->recordings); /* they hold addresses */
    size_t used = mar_slots_lay_out(&g->slots, g->max_images, base);
    g->sampled = arena_carve(base, &used, images, token);
    g->normal = arena_carve(base, &used, images, token);
    g->z = arena_carve(base, &used, 2 * images, z);
    g->z_drawn = arena_carve(base, &used, 2 * images, z);
    used += causal_runner_lay_out(g->target, base ? base + used : NULL);
    used += diff_chain_lay_out(&g->chain, base ? base + used : NULL);
    if (g->paths) used += sphere_paths_lay_out(g->paths, base ? base + used : NULL);
    if (g->speculation.w.window) used += diff_speculate_lay_out(&g->speculation, base ? base + used : NULL);
    return used;
}

static mar_status plan(mar_engine_state *engine_state, int images, mar_err *err)
{
    sphere *g = of(engine_state);
    net_recordings_free(g->k, &g->recordings);
    mar_status status = causal_runner_plan(g->target, images, err);
    for (int guided = 0; status == MAR_OK && guided < g->branches; guided++) {
        diff_chain_guide(&g->chain, guided);
        status = diff_chain_plan(&g->chain, images, err);
        if (status == MAR_OK && g->speculation.w.window)
            status = diff_speculate_plan(&g->speculation, images, images, err);
    }
    if (status == MAR_OK && g->paths) status = sphere_paths_plan(g->paths, images, err);
    return status == MAR_OK ? kern_check(g->k, err) : status;
}

/* --- descriptions ------------------------------------------------------------------------------------------------- */

static const mar_params *params_of(const mar_engine_state *g)
{
    return &of_const(g)->params;
}

/* Without paths the effect follows from the accelerators that are on. */
static const mar_effect *effect_of(const mar_engine_state *g)
{
    static const mar_effect paths = {
        1, "of whole paths, by criterion path with drafts of the draft model; " MAR_ACCEPTED_MEAN};
    return of_const(g)->paths ? &paths : NULL;
}

static const char *warning_of(const mar_engine_state *engine_state)
{
    const sphere *g = of_const(engine_state);
    return g->paths && diff_head_is_bf16(&g->model->head) ? diff_paths_bf16_warning : NULL;
}

static const float *latents(const mar_engine_state *g)
{
    return of_const(g)->slots.tokens;
}

static void stats_of(const mar_engine_state *engine_state, mar_stats *stats)
{
    const sphere *g = of_const(engine_state);
    *stats = g->stats;
    const causal_runner_stats *target = causal_runner_get_stats(g->target);
    stats->decoder_s = target->prefix_s + target->tokens_s;
    stats->decoder_flop = target->flop;
    stats->passes = (double)target->passes;
    stats->head_s = g->head_s;
    stats->head_flop = g->head_flop;
    stats->head_call_bytes = diff_head_sequential_bytes(&g->model->head);
    stats->head_call_products = 2 * g->model->head.shape.depth + 2;
    if (g->paths) sphere_paths_stats(g->paths, stats);
}

static void get_token_status(const mar_engine_state *g, int slot, uint8_t *map, int *ar_step)
{
    mar_slots_token_status(&of_const(g)->slots, slot, map, ar_step);
}

static void get_staleness(const mar_engine_state *g, int slot, int *staleness)
{
    mar_slots_staleness(&of_const(g)->slots, slot, staleness);
}

extern const mar_engine mar_sphere_engine;
const mar_engine mar_sphere_engine = {
    .name = "spherear",
    .tokens = "continuous",
    .kinds = 1 << MAR_KIND_SPHEREAR,
    .load = sphere_model_load,
    .unload = sphere_model_unload,
    .describe = sphere_model_describe,
    .create = create,
    .free = destroy,
    .params = params_of,
    .effect = effect_of,
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
    .token_status = get_token_status,
    .staleness = get_staleness,
};
