#include "mar/raster_path.h"

#include "base/arena.h"

#include <stdlib.h>

enum { RASTER_PATH_ROWS = 1 << 20 }; /* drafts of a round, at most */

/* --- the raster order --------------------------------------------------------------------------------------------- */

static spec_path_step raster_path_step(const spec_path *s, int image, int step)
{
    const raster_path *p = s->o.host;
    const float cfg = raster_scale(p->g, &p->g->slots.slot[image], step);
    return (spec_path_step){1, p->position + step, raster_steps(p->g, step), cfg};
}

/* Computes what the draft model lacks of the tokens before a step, behind plain rounds, but for those that fit in one
 * pass. */
static void raster_path_catch_up(raster_path *p, int slot, int step, int rows, int row)
{
    const int most = causal_runner_rows(p->runner);
    int first = p->computed[slot] < step - 1 ? p->computed[slot] : step - 1;
    for (; step - first > most; first += most) {
        causal_vectors_begin(p->runner, p->g->slots.tokens);
        raster_add_tokens(p->g, p->runner, slot, first, most, 1, rows, &row);
        causal_vectors_run(p->runner, p->draft_z);
    }
    p->computed[slot] = first;
}

static spec_path_z raster_path_draft(spec_path *s, int first, int end)
{
    raster_path *p = s->o.host;
    const int n = end - first;
    for (int i = 0; i < n; i++) raster_path_catch_up(p, s->drawn[first + i].slot, s->drawn[first + i].step, n, i);
    causal_vectors_begin(p->runner, p->g->slots.tokens);
    for (int i = 0; i < n; i++) {
        const int slot = s->drawn[first + i].slot, step = s->drawn[first + i].step, from = p->computed[slot];
        raster_add_tokens(p->g, p->runner, slot, from, step - from, 1, n, &i);
        p->computed[slot] = step;
    }
    causal_vectors_run(p->runner, p->draft_z);
    return (spec_path_z){p->draft_z, n};
}

static spec_path_z raster_path_pass(spec_path *s)
{
    raster_path *p = s->o.host;
    mar_raster *g = p->g;
    const int rows = s->images * s->o.gamma;
    causal_vectors_begin(g->target, g->slots.tokens);
    for (int slot = 0; slot < s->images; slot++) {
        const int length = spec_path_is_plain(s, slot) ? 1 : s->image[slot].length;
        if (length == 0) continue;
        raster_add_tokens(g, g->target, slot, s->image[slot].from - 1, length, length, rows,
                          p->row + slot * s->o.gamma);
        g->diffusion->stats.contexts += length;
    }
    causal_vectors_run(g->target, p->z);
    return (spec_path_z){p->z, rows};
}

static int raster_path_z_row(const spec_path *s, const spec_path_row *row, int context)
{
    (void)context; /* a token has one */
    return row->slot * s->o.gamma + row->step - s->image[row->slot].from;
}

/* Normalises the n tokens in s->kept, rows of `token`, and writes them to the images. */
static void raster_path_write(spec_path *s, const float *token, int n)
{
    const raster_path *p = s->o.host;
    for (int i = 0; i < n; i++) p->place[i] = s->kept_slot[i] * s->o.seq_len + s->kept_position[i];
    raster_write_tokens(p->g, token, s->kept, n, p->place, p->normal);
}

static void raster_path_know(spec_path *s, int n)
{
    raster_path_write(s, s->token, n);
}

static void raster_path_keep(spec_path *s, const float *token, int n, int known)
{
    s->o.stats->tokens += n;
    if (!known) raster_path_write(s, token, n);
}

static const spec_path_order raster_path_order = {
    .step = raster_path_step,
    .draft = raster_path_draft,
    .pass = raster_path_pass,
    .z_row = raster_path_z_row,
    .know = raster_path_know,
    .keep = raster_path_keep,
};

/* --- a batch ------------------------------------------------------------------------------------------------------ */

mar_status raster_path_round(raster_path *s, mar_err *err)
{
    mar_raster *g = s->g;
    diff_chain_guide(&g->diffusion->chain, g->branches == 2); /* the first token may have changed it */
    const mar_status status = spec_path_round(&s->rounds, err);
    for (int i = 0; status == MAR_OK && i < s->rounds.images; i++) {
        const int begin = s->rounds.image[i].begin;
        if (g->slots.slot[i].busy) g->slots.slot[i].known = begin;
        if (s->computed[i] > begin - 1) s->computed[i] = begin - 1; /* from there on it has computed dropped drafts */
    }
    return status;
}

void raster_path_set_negative(raster_path *s, const float *features, const uint8_t *mask)
{
    causal_runner_set_negative(s->runner, features, mask);
}

void raster_path_begin(raster_path *s)
{
    spec_path_begin(&s->rounds);
    causal_runner_clear_stats(s->runner);
}

void raster_path_admit(raster_path *s, const int *slot, const mar_image *images, int n)
{
    for (int i = 0; i < n; i++) {
        spec_path_admit(&s->rounds, slot[i], images[i].seed, images[i].number, 1);
        s->computed[slot[i]] = 0;
    }
    if (!s->costs.never) causal_runner_admit(s->runner, s->g->start, n);
}

void raster_path_release(raster_path *s, int slot)
{
    s->rounds.image[slot].begin = s->rounds.o.steps;
}

void raster_path_stats(const raster_path *s, mar_stats *stats)
{
    const causal_runner_stats *draft = causal_runner_get_stats(s->runner);
    spec_path_add_stats(&s->rounds, stats);
    stats->draft_s += draft->prefix_s + draft->tokens_s;
    stats->draft_flop += draft->flop;
    if (s->rounds.spent == 0) return;
    const causal_runner_stats *target = causal_runner_get_stats(s->g->target);
    const double all = stats->head_s + stats->draft_s + stats->verify_s;
    stats->plain_s = target->prefix_s + (all - draft->prefix_s + target->tokens_s) * s->rounds.plain / s->rounds.spent;
}

/* --- creation ----------------------------------------------------------------------------------------------------- */

mar_status raster_path_check(const mar_raster_model *model, mar_params *p, int max_images, mar_err *err)
{
    const mar_model *draft = p->draft;
    if (!draft) return err_set(err, MAR_EARG, "--spec path: needs --draft with a %s model", model->base.config.title);
    if (p->head_spec < 0) return err_set(err, MAR_EARG, "--head_spec auto with --spec path: expected --head_spec N");
    if (model->facts.last_is_noisy)
        return err_set(err, MAR_EARG, "--spec path: paths do not compare the noise of the last step of %s's tokens",
                       model->base.config.title);
    mar_status status = mar_check_draft(&model->base, draft, err);
    if (status != MAR_OK) return status;
    const int rows = model->facts.net.rows, has = mar_raster_model_of(draft)->facts.net.rows;
    if (model->facts.net.prompt && has < rows)
        return err_set(err, MAR_EMODEL,
                       "the draft's embedding has %d rows, expected the model's %d: prompts are its ids", has, rows);
    if (p->context == MAR_CONTEXT_PREFIX)
        return err_set(err, MAR_EARG, "--context prefix: expected full with a %s model", model->base.config.title);
    status = path_costs_check(&model->base, p, p->num_iter, err);
    if (status != MAR_OK) return status;
    const int gamma = path_costs_gamma(p, p->num_iter);
    if ((int64_t)max_images * gamma > RASTER_PATH_ROWS)
        return err_set(err, MAR_EARG, "batch of %d images with --gamma %d: too large", max_images, gamma);
    return MAR_OK;
}

int raster_path_rows(const mar_params *p, int max_images)
{
    const int rows = max_images * path_costs_gamma(p, p->num_iter);
    return rows > SPEC_PATH_CANDIDATES_MOST ? rows : SPEC_PATH_CANDIDATES_MOST;
}

static mar_status raster_path_create_rounds(raster_path *s, int gamma, int most, mar_err *err)
{
    mar_raster *g = s->g;
    const mar_params *p = &g->plan.params;
    const int seq_len = g->model->facts.net.seq_len;
    const spec_path_options options = {.order = &raster_path_order,
                                       .host = s,
                                       .target = &g->diffusion->chain,
                                       .draft = &s->chain,
                                       .window = p->head_spec ? p->head_spec : 1,
                                       .images = g->max_images,
                                       .seq_len = seq_len,
                                       .steps = seq_len,
                                       .gamma = gamma,
                                       .choice = path_costs_choice(&s->costs),
                                       .max_rows = g->max_images * gamma,
                                       .max_pending = g->max_images,
                                       .candidates = most,
                                       .verdict_step = RASTER_VERDICT_STEP,
                                       .stats = &g->diffusion->stats,
                                       .token_status = g->slots.token_status,
                                       .ar_step = g->slots.ar_step,
                                       .staleness = g->slots.staleness};
    return spec_path_create(&options, &s->rounds, err);
}

mar_status raster_path_create(mar_raster *g, raster_path **out, mar_err *err)
{
    mar_params *p = &g->plan.params;
    const mar_raster_model *draft = mar_raster_model_of(p->draft);
    const int branches = g->branches, most = raster_path_rows(p, g->max_images);
    const int seq_len = g->model->facts.net.seq_len, gamma = path_costs_gamma(p, seq_len);
    const int rows = g->max_images * gamma;
    const raster_diffusion *d = g->diffusion;
    raster_path *s = *out = calloc(1, sizeof *s);
    if (!s) return err_set(err, MAR_ENOMEM, "out of memory");
    s->g = g;
    s->position = calloc((size_t)(seq_len + rows + 2 * g->max_images), sizeof *s->position); /* owns all lists */
    if (!s->position) return err_set(err, MAR_ENOMEM, "out of memory for rounds of %d tokens", rows);
    s->row = s->position + seq_len;
    s->place = s->row + rows;
    s->computed = s->place + g->max_images;
    for (int i = 0; i < seq_len; i++) s->position[i] = i;
    for (int i = 0; i < rows; i++) s->row[i] = i;
    mar_status status = path_costs_create(p, seq_len, &s->costs, err);
    if (status == MAR_OK) /* with a choice it computes the tokens of plain rounds, some at a time */
        status = causal_runner_create(g->k, draft->net, &(causal_sampling){.cfg = p->cfg}, g->max_images,
                                      s->costs.choice.choose ? gamma - 1 : 0, 0, &s->runner, err);
    if (status == MAR_OK) causal_runner_name(s->runner, "draft: ");
    if (status == MAR_OK) causal_runner_set_cache(s->runner, raster_cache_type(p));
    if (status == MAR_OK)
        status = diff_chain_create_for(g->k, &draft->head, d->spec, d->specs, p->temperature, most, branches == 2,
                                       &s->chain, err);
    s->chain.part = "draft: ";
    return status == MAR_OK ? raster_path_create_rounds(s, gamma, most, err) : status;
}

void raster_path_free(raster_path *s)
{
    if (!s) return;
    spec_path_free(&s->rounds);
    diff_chain_free(&s->chain);
    causal_runner_free(s->runner);
    free(s->position);
    free(s);
}

size_t raster_path_lay_out(raster_path *s, char *base)
{
    const size_t f = sizeof(float), images = (size_t)s->g->max_images, rows = (size_t)s->rounds.o.max_rows;
    size_t used = spec_path_lay_out(&s->rounds, base);
    s->z = arena_carve(base, &used, 2 * rows * (size_t)s->g->model->head.shape.z_dim, f);
    s->draft_z = arena_carve(base, &used, 2 * images * (size_t)s->chain.head->shape.z_dim, f);
    s->normal = arena_carve(base, &used, images * (size_t)s->g->model->facts.head.channels, f);
    used += causal_runner_lay_out(s->runner, base ? base + used : NULL);
    used += diff_chain_lay_out(&s->chain, base ? base + used : NULL);
    return used;
}

mar_status raster_path_plan(raster_path *s, int images, mar_err *err)
{
    mar_raster *g = s->g;
    raster_diffusion *d = g->diffusion;
    const mar_measured_parts parts = {g->k, g->model->base.engine, (mar_engine_state *)g, NULL, images};
    diff_chain_guide(&d->chain, g->branches == 2);
    mar_status status = causal_runner_plan(s->runner, images, err);
    for (int i = 0; status == MAR_OK && i < d->specs; i++) status = spec_path_plan(&s->rounds, d->spec[i].steps, err);
    if (status != MAR_OK || !s->costs.measures) return status;
    return path_costs_measure(&s->costs, &parts, &s->rounds, 1, 1, &g->plan.params, err);
}
