/* The diffusion head of the loop in raster order: one token of every image a step, each drawn by the head's chain from
 * the condition that the transformer's last pass gave. */
#include "mar/raster_tokens.h"

#include "mar_files.h"
#include "mar_measure.h"

#include "base/arena.h"
#include "mar/raster_path.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int diffusion_seq_len(const mar_raster *g)
{
    return g->model->facts.net.seq_len;
}

/* --- draws -------------------------------------------------------------------------------------------------------- */

/* Lists a token to draw: that of a slot, or with `apart` the one of its unconditional branch. */
static void diffusion_list_token(mar_raster *g, int slot, int apart)
{
    raster_diffusion *d = g->diffusion;
    const mar_slot *s = &g->slots.slot[slot];
    const int i = d->drawn++, n = diffusion_seq_len(g);
    d->row_slot[i] = slot;
    d->row_seed[i] = s->seed;
    d->row_image[i] = s->number;
    d->row_position[i] = apart ? n : s->known; /* noise that no other token of the image has */
    d->row_cfg[i] = raster_scale(g, s, s->known);
    d->row_place[i] = apart ? g->max_images * n + slot : slot * n + s->known;
    d->row_z[i] = (apart ? g->max_images : 0) + slot;
}

/* Argument of a recording's body. */
typedef struct {
    mar_raster *g;
    int guided;
} drawing;

static void diffusion_gather_z(const mar_raster *g, int guided)
{
    const raster_diffusion *d = g->diffusion;
    const int n = d->drawn;
    for (int i = 0; guided && i < n; i++) d->row_z[n + i] = g->max_images + d->row_slot[i];
    g->k->core->copy_rows(g->k, d->z_drawn, NULL, d->z, d->row_z, NULL, NULL, guided ? 2 * n : n,
                          g->model->facts.net.width);
}

/* Adds the noise behind the chain's last step to the tokens drawn. A row of the operation's output is 2 C numbers, of
 * which it reads the first C; d->normal is its scratch. */
static void diffusion_add_last_noise(const mar_raster *g)
{
    const raster_diffusion *d = g->diffusion;
    const int channels = g->model->facts.head.channels;
    const kern_ode_coef add = {.x0_prediction = -1, .coef_x = 1, .coef_x0 = d->chain.schedule.last_noise};
    g->k->head->normal(g->k, d->noise, d->drawn, 2 * channels, d->row_seed, KERN_NOISE_STEP, d->row_image,
                       d->row_position, 0);
    g->k->head->chain_ode_step(g->k, d->sampled, d->normal, d->noise, d->drawn, channels, NULL, &add);
}

/* Writes the tokens drawn to the images. */
static void diffusion_write(const mar_raster *g)
{
    const raster_diffusion *d = g->diffusion;
    if (d->chain.schedule.last_noise > 0) diffusion_add_last_noise(g);
    raster_write_tokens(g, d->sampled, NULL, d->drawn, d->row_place, d->normal);
}

static void diffusion_draw_plain(void *arg)
{
    const drawing *a = arg;
    raster_diffusion *d = a->g->diffusion;
    diffusion_gather_z(a->g, a->guided);
    diff_chain_sample(&d->chain, d->z_drawn, d->drawn, d->row_cfg, d->row_seed, d->row_image, d->row_position,
                      d->sampled);
    diffusion_write(a->g);
}

static void diffusion_draw_by_accel(mar_raster *g, int guided, int apart)
{
    raster_diffusion *d = g->diffusion;
    const double calls = d->stats.head_calls;
    g->k->watch.part = "";
    g->k->core->timer_mark(g->k, NULL);
    diffusion_gather_z(g, guided);
    const diff_tokens tokens = {.count = d->drawn,
                                .sources = d->drawn,
                                .z = d->z_drawn,
                                .cfg = d->row_cfg,
                                .seed = d->row_seed,
                                .image = d->row_image,
                                .position = d->row_position,
                                .slot = d->row_slot};
    d->drawer->draw(d->drawer_state, &tokens, d->sampled);
    diffusion_write(g);
    g->k->core->timer_mark(g->k, &d->head_s);
    if (apart) d->stats.head_calls = calls; /* sequential calls are those of tokens in the images */
}

/* Draws the listed tokens; apart: those of unconditional branches that draw for themselves. */
static void diffusion_draw_listed(mar_raster *g, int guided, int apart)
{
    raster_diffusion *d = g->diffusion;
    drawing body = {g, guided};
    const int steps = d->chain.schedule.steps;
    const net_recording_shape shape = {.kind = 2 * steps + guided, .rows = d->drawn};
    if (d->drawn == 0) return;
    diff_chain_guide(&d->chain, guided);
    if (d->drawer) {
        diffusion_draw_by_accel(g, guided, apart);
        return;
    }
    kern_run_recorded(g->k, "", net_recordings_find(g->k, &d->recordings, &shape), diffusion_draw_plain, &body,
                      &d->head_s);
    d->head_flop += diff_chain_flop(&d->chain, d->drawn);
    d->stats.head_batched += steps;
    if (!apart) d->stats.head_calls += (double)steps * d->drawn;
    d->stats.head_rows += (double)steps * d->drawn;
    if (steps > d->stats.head_calls_max) d->stats.head_calls_max = steps;
}

/* Tokens that are drawn together, if they take as many diffusion steps: guided ones, those without guidance, and those
 * of unconditional branches that draw for themselves. */
typedef enum { DIFFUSION_GUIDED, DIFFUSION_PLAIN, DIFFUSION_APART, DIFFUSION_GROUPS } diffusion_group;

static int diffusion_is_in(const mar_raster *g, int slot, diffusion_group group)
{
    const mar_slot *s = &g->slots.slot[slot];
    if (raster_left(g, slot) == 0) return 0;
    if (group == DIFFUSION_APART) return raster_draws_apart(g, s, s->known);
    return (raster_scale(g, s, s->known) != 1) == (group == DIFFUSION_GUIDED);
}

/* Lists the group's tokens that take the most diffusion steps below `below`. Returns these steps; 0 without tokens. */
static int diffusion_list_group(mar_raster *g, diffusion_group group, int below)
{
    int most = 0;
    g->diffusion->drawn = 0;
    for (int slot = 0; slot < g->max_images; slot++) {
        if (!diffusion_is_in(g, slot, group)) continue;
        const int steps = raster_steps(g, g->slots.slot[slot].known);
        if (steps >= below || steps < most) continue;
        if (steps > most) g->diffusion->drawn = 0;
        most = steps;
        diffusion_list_token(g, slot, group == DIFFUSION_APART);
    }
    return most;
}

/* Draws the next token of every unfinished image. */
static void diffusion_draw(mar_raster *g)
{
    for (diffusion_group group = DIFFUSION_GUIDED; group < DIFFUSION_GROUPS; group++)
        for (int below = INT_MAX, steps; (steps = diffusion_list_group(g, group, below)) > 0; below = steps) {
            diff_chain_use(&g->diffusion->chain, steps);
            diffusion_draw_listed(g, group == DIFFUSION_GUIDED, group == DIFFUSION_APART);
        }
}

/* --- a step ------------------------------------------------------------------------------------------------------- */

/* Notes that every unfinished image has its next token. */
static void diffusion_advance(mar_raster *g)
{
    for (int slot = 0; slot < g->max_images; slot++)
        if (raster_left(g, slot) > 0) mar_slots_add(&g->slots, slot, MAR_TOKEN_TARGET), g->diffusion->stats.tokens++;
}

/* Returns the position of the token that the image's last step made. */
static int diffusion_last(const mar_raster *g, int slot)
{
    int at = g->slots.slot[slot].known - 1;
    while (at > 0 && mar_slots_is_given(&g->slots, slot, at)) at--;
    return at;
}

/* Reads an image's tokens first .. end - 1 in passes of their own. z becomes that of the token behind them. */
static void diffusion_read(mar_raster *g, int slot, int first, int end)
{
    const int rows = causal_runner_rows(g->target);
    for (int some; first < end; first += some) {
        some = end - first < rows ? end - first : rows;
        causal_vectors_begin(g->target, g->slots.tokens);
        raster_add_tokens(g, g->target, slot, first, some, 1, g->max_images, &slot);
        causal_vectors_run(g->target, g->diffusion->z);
    }
}

/* Takes a round of paths. The images' first tokens are drawn plainly. */
static mar_status diffusion_step_by_paths(mar_raster *g, mar_err *err)
{
    int first = 0;
    for (int slot = 0; slot < g->max_images; slot++) first |= raster_left(g, slot) == diffusion_seq_len(g);
    if (!first) return raster_path_round(g->diffusion->paths, err);
    diffusion_draw(g);
    diffusion_advance(g);
    return MAR_OK;
}

static void diffusion_step_plainly(mar_raster *g)
{
    diffusion_draw(g);
    diffusion_advance(g);
    causal_vectors_begin(g->target, g->slots.tokens);
    for (int slot = 0; slot < g->max_images; slot++) {
        if (raster_left(g, slot) == 0) continue;
        raster_add_tokens(g, g->target, slot, diffusion_last(g, slot), 1, 1, g->max_images, &slot);
        g->diffusion->stats.contexts++;
    }
    causal_vectors_run(g->target, g->diffusion->z);
    for (int slot = 0; slot < g->max_images; slot++)
        if (raster_left(g, slot) > 0) diffusion_read(g, slot, diffusion_last(g, slot) + 1, g->slots.slot[slot].known);
}

/* Rounds of paths go on without the image. */
static void diffusion_release(mar_raster *g, int slot)
{
    if (g->diffusion->paths) raster_path_release(g->diffusion->paths, slot);
}

static mar_status diffusion_step(mar_raster *g, mar_err *err)
{
    mar_status status = MAR_OK;
    if (g->diffusion->paths)
        status = diffusion_step_by_paths(g, err);
    else
        diffusion_step_plainly(g);
    if (status != MAR_OK || !g->k->watch.layer[0]) return status;
    return mar_slots_refuse_layer(&g->slots, diffusion_last(g, mar_slots_first(&g->slots)), err);
}

/* --- images that begin -------------------------------------------------------------------------------------------- */

/* A round of paths has the session's guidance. Otherwise each image goes at its own pace. */
static int diffusion_together(const mar_raster *g)
{
    return g->diffusion->paths != NULL;
}

static mar_status diffusion_check(const mar_raster *g, const mar_image *image, mar_err *err)
{
    const float cfg = g->plan.params.cfg;
    if (!g->diffusion->paths) return MAR_OK;
    if (image->cfg != cfg)
        return err_set(err, MAR_EARG, "guidance %g: with --spec path expected that of the session, %g",
                       (double)image->cfg, (double)cfg);
    if (image->known) return err_set(err, MAR_EARG, "--spec path: expected a request without known tokens");
    return spec_path_check_number(image->number, err);
}

static void diffusion_set_negative(mar_raster *g, const float *features, const uint8_t *mask)
{
    if (g->diffusion->paths) raster_path_set_negative(g->diffusion->paths, features, mask);
}

static void diffusion_begin(mar_raster *g)
{
    raster_diffusion *d = g->diffusion;
    d->stats = (mar_stats){0};
    d->head_s = d->head_flop = 0;
    if (d->paths) raster_path_begin(d->paths);
}

static void diffusion_place(mar_raster *g, int slot, const mar_image *image, causal_start *start)
{
    (void)start;
    mar_slots_give(&g->slots, slot, image);
    mar_slots_seek(&g->slots, slot);
    int steps = 0;
    for (int i = 0; i < diffusion_seq_len(g); i++)
        steps += mar_slots_is_given(&g->slots, slot, i) ? 0 : raster_steps(g, i);
    if (g->diffusion->drawer) g->diffusion->drawer->begin(g->diffusion->drawer_state, slot, steps);
}

/* Computes the conditions of the first tokens, and those behind known ones. */
static void diffusion_admit(mar_raster *g, const int *slot, const mar_image *images, int n)
{
    raster_diffusion *d = g->diffusion;
    causal_vectors_begin(g->target, NULL);
    for (int branch = 0; branch < g->branches; branch++)
        for (int i = 0; i < n; i++)
            if (branch == 0 || images[i].cfg > 1)
                causal_vectors_want_first(g->target, slot[i], branch, branch * g->max_images + slot[i]);
    causal_vectors_run(g->target, d->z);
    if (d->paths) raster_path_admit(d->paths, slot, images, n);
    for (int i = 0; i < n; i++)
        if (raster_left(g, slot[i]) > 0) diffusion_read(g, slot[i], 0, g->slots.slot[slot[i]].known);
}

/* --- creation ----------------------------------------------------------------------------------------------------- */

static mar_status diffusion_resolve(mar_raster *g, const mar_params *params, mar_err *err)
{
    g->plan.params = *params;
    mar_params *p = &g->plan.params;
    mar_status status = raster_resolve_steps(g->model, p, err);
    if (status == MAR_OK) status = raster_check_chain(g->model, p, err);
    if (status != MAR_OK) return status;
    if (p->draft && !p->spec)
        return err_set(err, MAR_EARG, "--draft with --head_spec: expected --spec path with a %s model",
                       g->model->base.config.title);
    return p->spec ? raster_path_check(g->model, p, g->max_images, err) : MAR_OK;
}

/* Assigns parts of the host memory at base. Returns its size in bytes. base NULL only counts. */
static size_t diffusion_lay_out_host(const mar_raster *g, char *base)
{
    raster_diffusion *d = g->diffusion;
    const size_t images = (size_t)g->max_images;
    size_t used = 0;
    d->source = arena_carve(base, &used, (size_t)diffusion_seq_len(g), sizeof *d->source);
    d->spec = arena_carve(base, &used, (size_t)diffusion_seq_len(g), sizeof *d->spec);
    d->row_slot = arena_carve(base, &used, images, sizeof *d->row_slot);
    d->row_seed = arena_carve(base, &used, images, sizeof *d->row_seed);
    d->row_image = arena_carve(base, &used, images, sizeof *d->row_image);
    d->row_position = arena_carve(base, &used, images, sizeof *d->row_position);
    d->row_cfg = arena_carve(base, &used, images, sizeof *d->row_cfg);
    d->row_place = arena_carve(base, &used, images, sizeof *d->row_place);
    d->row_z = arena_carve(base, &used, 2 * images, sizeof *d->row_z);
    return used;
}

static void diffusion_free(mar_raster *g)
{
    raster_diffusion *d = g->diffusion;
    if (!d) return;
    net_recordings_free(g->k, &d->recordings);
    raster_path_free(d->paths);
    if (d->drawer_state) d->drawer->destroy(d->drawer_state);
    diff_chain_free(&d->chain);
    free(d->host);
    free(d);
}

static mar_status diffusion_create(mar_raster *g, const mar_vae *vae, const mar_accel *const *accels, mar_err *err)
{
    (void)vae;
    const mar_params *p = &g->plan.params;
    const int paths = p->spec != NULL, tokens = paths ? raster_path_rows(p, g->max_images) : g->max_images;
    const causal_sampling sampling = {.cfg = p->cfg};
    raster_diffusion *d = g->diffusion = calloc(1, sizeof *d);
    if (!d) return err_set(err, MAR_ENOMEM, "out of memory");
    d->host = calloc(1, diffusion_lay_out_host(g, NULL));
    if (!d->host) return err_set(err, MAR_ENOMEM, "out of memory for a batch of %d images", g->max_images);
    diffusion_lay_out_host(g, d->host);
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && accels[i]; i++) {
        d->changes |= !accels[i]->exact;
        if (!accels[i]->sampling_steps) continue;
        d->sampling_steps = accels[i]->sampling_steps;
        if (accels[i]->check) status = accels[i]->check(&g->model->base, &g->plan.params, err);
    }
    if (status != MAR_OK) return status;
    raster_list_specs(g);
    status = raster_create_target(g, &sampling, paths ? path_costs_gamma(p, p->num_iter) - 1 : 0, 0, err);
    if (status == MAR_OK)
        status = diff_chain_create_for(g->k, &g->model->head, d->spec, d->specs, p->temperature, tokens,
                                       g->branches == 2, &d->chain, err);
    if (status == MAR_OK && paths) return raster_path_create(g, &d->paths, err);
    const mar_chain_stage stage = {.params = &g->plan.params,
                                   .max_images = g->max_images,
                                   .chain = &d->chain,
                                   .stats = &d->stats,
                                   .head_flop = &d->head_flop};
    for (; status == MAR_OK && *accels; accels++) {
        if (!(*accels)->chain) continue;
        d->drawer = (*accels)->chain;
        status = d->drawer->create(&stage, &d->drawer_state, err);
    }
    return status;
}

static size_t diffusion_lay_out(mar_raster *g, char *base)
{
    raster_diffusion *d = g->diffusion;
    const size_t images = (size_t)g->max_images, token = (size_t)g->model->facts.head.channels * sizeof(float);
    const size_t z = (size_t)g->model->facts.net.width * sizeof(float);
    size_t used = mar_slots_lay_out(&g->slots, g->max_images, base);
    if (base) net_recordings_free(g->k, &d->recordings); /* they hold addresses */
    d->sampled = arena_carve(base, &used, images, token);
    d->normal = arena_carve(base, &used, images, token);
    if (g->model->facts.last_is_noisy) d->noise = arena_carve(base, &used, images, 2 * token);
    d->z = arena_carve(base, &used, 2 * images, z);
    d->z_drawn = arena_carve(base, &used, 2 * images, z);
    used += diff_chain_lay_out(&d->chain, base ? base + used : NULL);
    if (d->paths) used += raster_path_lay_out(d->paths, base ? base + used : NULL);
    if (d->drawer) used += d->drawer->lay_out(d->drawer_state, base ? base + used : NULL);
    return used;
}

static mar_status diffusion_plan(mar_raster *g, int images, mar_err *err)
{
    raster_diffusion *d = g->diffusion;
    mar_status status = MAR_OK;
    net_recordings_free(g->k, &d->recordings);
    for (int i = 0; status == MAR_OK && i < d->specs * g->branches; i++) {
        diff_chain_use(&d->chain, d->spec[i / g->branches].steps);
        diff_chain_guide(&d->chain, i % g->branches);
        status = diff_chain_plan(&d->chain, images, err);
        if (status == MAR_OK && d->drawer) status = d->drawer->plan(d->drawer_state, images, err);
    }
    return status == MAR_OK && d->paths ? raster_path_plan(d->paths, images, err) : status;
}

/* --- statistics and effect ---------------------------------------------------------------------------------------- */

/* Tells whether rounds may have drafts. */
static int diffusion_drafts(const mar_raster *g)
{
    return g->diffusion->paths && !g->diffusion->paths->costs.never;
}

/* The effect of other accelerators than paths follows from those that are on. */
static const mar_effect *diffusion_effect(const mar_raster *g)
{
    static const mar_effect paths = {
        1, "of whole paths, by criterion path with drafts of the draft model; " MAR_ACCEPTED_MEAN};
    return diffusion_drafts(g) && !g->diffusion->changes ? &paths : NULL;
}

static const char *diffusion_warning(const mar_raster *g)
{
    return diffusion_drafts(g) && diff_head_is_bf16(&g->model->head) ? diff_paths_bf16_warning : NULL;
}

static void diffusion_stats(const mar_raster *g, mar_stats *stats)
{
    const raster_diffusion *d = g->diffusion;
    *stats = d->stats;
    stats->head_s = d->head_s;
    stats->head_flop = d->head_flop;
    if (d->drawer) d->drawer->stats(d->drawer_state, stats);
    stats->head_call_bytes = diff_head_sequential_bytes(&g->model->head);
    stats->head_call_products = 2 * g->model->head.shape.depth + 2;
    if (d->paths) raster_path_stats(d->paths, stats);
}

extern const raster_head raster_diffusion_head;
const raster_head raster_diffusion_head = {
    .resolve = diffusion_resolve,
    .create = diffusion_create,
    .free = diffusion_free,
    .lay_out = diffusion_lay_out,
    .plan = diffusion_plan,
    .together = diffusion_together,
    .check = diffusion_check,
    .set_negative = diffusion_set_negative,
    .begin = diffusion_begin,
    .place = diffusion_place,
    .admit = diffusion_admit,
    .step = diffusion_step,
    .release = diffusion_release,
    .effect = diffusion_effect,
    .warning = diffusion_warning,
    .stats = diffusion_stats,
};
