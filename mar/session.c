/* The generation loop: a batch of images, one autoregressive step a call. */
#include "mar/session.h"

#include "base/arena.h"
#include "mar/gtr.h"
#include "mar/params.h"
#include "mar/speculate.h"
#include "mar/vae.h"
#include "mar/way.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int grid_of(const mar_model *model)
{
    int grid = 0;
    while (grid * grid < model->config.seq_len) grid++;
    return grid;
}

/* Across tokens: a draft model and a method. */
static int speculates(const mar_session *s)
{
    return s->params.draft && s->params.spec;
}

/* Tokens an image in the largest call of the head: of one step, or of a block of gamma steps. */
static int max_tokens(const mar_session *s)
{
    const int block = speculates(s) ? s->params.gamma : 1;
    int most = 0;
    for (int i = 0; i < s->params.num_iter; i++) {
        int sum = 0;
        for (int j = i; j < i + block && j < s->params.num_iter; j++) sum += s->steps[j].predicted;
        if (sum > most) most = sum;
    }
    return most;
}

static mar_status allocate_host(mar_session *s, mar_err *err)
{
    const mar_model_config *c = &s->model->config;
    const size_t images = (size_t)s->max_images, seq = (size_t)c->seq_len, rows = images * (size_t)s->max_tokens;
    s->order = calloc(images, sizeof *s->order);
    s->order_data = calloc(images * seq, sizeof *s->order_data);
    s->label = calloc(images, sizeof *s->label);
    s->row_image = calloc(rows, sizeof *s->row_image);
    s->row_slot = calloc(rows, sizeof *s->row_slot);
    s->row_position = calloc(rows, sizeof *s->row_position);
    s->row_cfg = calloc(rows, sizeof *s->row_cfg);
    s->fate = calloc(images * seq, sizeof *s->fate);
    s->born = calloc(images * seq, sizeof *s->born);
    s->energy = calloc(seq, sizeof *s->energy);
    s->host_tokens = calloc(seq * (size_t)c->token_dim, sizeof *s->host_tokens);
    int failed = !s->order || !s->order_data || !s->label || !s->row_image || !s->row_slot || !s->row_position ||
                 !s->row_cfg || !s->fate || !s->born || !s->energy || !s->host_tokens;
    if (s->vae) {
        int width, height;
        mar_session_image_size(s, &width, &height);
        s->pixels = calloc((size_t)width * (size_t)height * 3, sizeof *s->pixels);
        failed |= !s->pixels;
    }
    if (failed) return err_set(err, MAR_ENOMEM, "out of memory for a batch of %d images", s->max_images);
    for (size_t i = 0; i < images; i++) s->order[i] = s->order_data + i * (size_t)c->seq_len;
    return MAR_OK;
}

/* Which shortcuts go together. Those that only change how a token or a pass is computed combine freely; GtR plans the
 * steps itself, and speculation verifies against the plain chain and passes. */
static mar_status check_shortcuts(const mar_params *p, int grid, mar_err *err)
{
    const int solver = p->sampler != MAR_SAMPLER_DDPM, annealed = p->diff_annealing != MAR_ANNEAL_OFF;
    const char *shortcut = solver         ? "sampler"
                           : annealed     ? "diff_annealing"
                           : p->lazy      ? "lazy"
                           : p->lazy_head ? "lazy_head"
                                          : "gtr";
    if (p->sampler < MAR_SAMPLER_DDPM || p->sampler > MAR_SAMPLER_DPMPP)
        return err_set(err, MAR_EARG, "sampler %d: expected ddpm, ddim or dpmpp", (int)p->sampler);
    if (p->diff_annealing < MAR_ANNEAL_OFF || p->diff_annealing > MAR_ANNEAL_TWO_STAGE)
        return err_set(err, MAR_EARG, "diff_annealing %d: expected off, linear, cosine or two-stage",
                       (int)p->diff_annealing);
    if (annealed &&
        (p->diff_lower_steps < 2 || p->diff_lower_steps > p->diff_upper_steps || p->diff_upper_steps > DIFF_BASE_STEPS))
        return err_set(err, MAR_EARG, "diff_upper_steps %d and diff_lower_steps %d: expected %d >= upper >= lower >= 2",
                       p->diff_upper_steps, p->diff_lower_steps, DIFF_BASE_STEPS);
    if (p->head_spec < 0 || p->head_spec > 64)
        return err_set(err, MAR_EARG, "head_spec %d: expected 0..64", p->head_spec);
    if (p->head_spec && p->draft && p->spec)
        return err_set(err, MAR_EARG, "head_spec and spec %s: expected one of them with a draft", p->spec);
    if (p->head_spec && solver)
        return err_set(err, MAR_EARG, "head_spec: speculates on the steps of sampler ddpm, no other");
    if (p->head_spec && p->lazy_head)
        return err_set(err, MAR_EARG, "head_spec: evaluates the head in full, expected no lazy_head");
    if (p->lazy_head && (solver || annealed))
        return err_set(err, MAR_EARG, "lazy_head: reuses six steps of seven, which need to be many; expected no %s",
                       shortcut);
    if (p->draft && (solver || annealed || p->lazy || p->lazy_head || p->gtr))
        return err_set(err, MAR_EARG, "draft: verified by the plain passes and chain, expected no %s", shortcut);
    if (p->gtr && annealed)
        return err_set(err, MAR_EARG, "gtr: gives the diffusion steps itself, expected no diff_annealing");
    if (p->gtr && p->lazy)
        return err_set(err, MAR_EARG, "gtr: has too few autoregressive steps for caches, expected no lazy");
    if (p->lazy && p->num_iter < MAR_LAZY_MIN_STEPS)
        return err_set(err, MAR_EARG,
                       "lazy: the first %d autoregressive steps fill the caches, expected num_iter %d or more",
                       MAR_LAZY_MIN_STEPS - 1, MAR_LAZY_MIN_STEPS);
    return p->gtr ? mar_gtr_check(p, grid, err) : MAR_OK;
}

static mar_status check_params(const mar_model *model, const mar_vae *vae, const mar_params *p, int max_batch,
                               mar_err *err)
{
    const mar_model_config *c = &model->config;
    if (!p->gtr && (p->num_iter < 1 || p->num_iter > c->seq_len))
        return err_set(err, MAR_EARG, "num_iter %d: expected 1..%d (the model has %d tokens)", p->num_iter, c->seq_len,
                       c->seq_len);
    if (!(fabsf(p->cfg) <= 1000))
        return err_set(err, MAR_EARG, "cfg %g: expected a number from -1000 to 1000", (double)p->cfg);
    if (p->cfg_schedule != MAR_CFG_LINEAR && p->cfg_schedule != MAR_CFG_CONSTANT)
        return err_set(err, MAR_EARG, "cfg_schedule %d: expected linear or constant", (int)p->cfg_schedule);
    if (max_batch < 1 || max_batch > 65536)
        return err_set(err, MAR_EARG, "batch of %d images: expected 1..65536", max_batch);
    if ((int64_t)max_batch * (p->cfg == 1.0f ? 1 : 2) * (c->buffer + c->seq_len) > INT_MAX / 8)
        return err_set(err, MAR_EARG, "batch of %d images of %d tokens: too large", max_batch, c->seq_len);
    if (vae && vae->m != model->m) return err_set(err, MAR_EARG, "model and VAE belong to different handles");
    if (vae && mar_vae_get_config(vae)->z_channels != c->token_dim)
        return err_set(err, MAR_EMODEL, "the VAE decodes %d channels but the model's tokens have %d",
                       mar_vae_get_config(vae)->z_channels, c->token_dim);
    return check_shortcuts(p, grid_of(model), err);
}

/* Cuts the arena; returns its size. */
static size_t lay_out(mar_session *s, char *base)
{
    const mar_model_config *c = &s->model->config;
    const size_t images = (size_t)s->max_images, token = (size_t)c->token_dim * sizeof(float);
    size_t used = 0;
    s->tokens = arena_carve(base, &used, images * (size_t)c->seq_len, token);
    s->sampled = arena_carve(base, &used, images * (size_t)s->max_tokens, token);
    used += mar_runner_lay_out(&s->target, base ? base + used : NULL);
    if (s->draft.model) used += mar_runner_lay_out(&s->draft, base ? base + used : NULL);
    if (s->head.w.window) used += diff_speculate_lay_out(&s->head, base ? base + used : NULL);
    if (s->speculation) used += mar_speculation_lay_out(s, base ? base + used : NULL);
    if (s->decoder) used += vae_run_lay_out(s->decoder, base ? base + used : NULL);
    return used;
}

static mar_status allocate(mar_session *s, mar_err *err)
{
    const mar *m = s->model->m;
    mar_err reason = {0};
    const size_t bytes = s->stats.arena_bytes = lay_out(s, NULL);
    const mar_status status = m->kern->core->alloc(m->kern, bytes, &s->arena, &reason);
    if (status != MAR_OK)
        return err_set(err, status, "a batch of %d image%s needs %.3g GB of %smemory: %s; %s", s->max_images,
                       s->max_images == 1 ? "" : "s", (double)bytes / 1e9, m->backend == MAR_BACKEND_CUDA ? "GPU " : "",
                       reason.text, s->max_images > 1 ? "lower the batch" : "this is the least a batch can be");
    lay_out(s, s->arena);
    return MAR_OK;
}

static mar_status plan_steps(mar_session *s, mar_err *err)
{
    const mar_params *p = &s->params;
    s->steps = calloc((size_t)p->num_iter, sizeof *s->steps);
    s->recordings = calloc((size_t)p->num_iter, sizeof *s->recordings);
    s->draft_recordings = calloc((size_t)p->num_iter, sizeof *s->draft_recordings);
    if (!s->steps || !s->recordings || !s->draft_recordings) return err_set(err, MAR_ENOMEM, "out of memory");
    if (p->gtr) {
        mar_gtr_plan(p, s->grid, s->steps);
    } else {
        mar_steps_plan(p->num_iter, s->model->config.seq_len, p->cfg, p->cfg_schedule, s->steps);
        mar_steps_anneal(p, s->steps);
    }
    if (p->lazy) mar_lazy_plan_steps(&s->model->config, s->steps, p->num_iter);
    return MAR_OK;
}

/* What comes out without speculation across tokens, in one line. */
static void describe(mar_session *s)
{
    static const char *const samplers[] = {"", ", sampler ddim", ", sampler dpmpp"};
    const mar_params *p = &s->params;
    char changes[64];
    snprintf(changes, sizeof changes, "%s%s%s%s%s", samplers[p->sampler], p->diff_annealing ? ", diff_annealing" : "",
             p->lazy ? ", lazy" : "", p->lazy_head ? ", lazy_head" : "", p->gtr ? ", gtr" : "");
    if (changes[0])
        snprintf(s->guarantee, sizeof s->guarantee, "approximate: changed by %s", changes + 2);
    else
        snprintf(s->guarantee, sizeof s->guarantee, "exact: the target's law%s",
                 p->head_spec ? ", by speculation inside the head" : "");
}

/* Speculation inside the head; a draft's head proposes if there is one. */
static mar_status create_head(mar_session *s, mar_err *err)
{
    mar_status status = MAR_OK;
    if (s->params.draft)
        status =
            mar_runner_create(s->params.draft, s->max_images, s->conditions, s->max_tokens, &s->params, &s->draft, err);
    if (status != MAR_OK) return status;
    return diff_speculate_create(&s->target.chain, s->params.draft ? &s->draft.chain : NULL, s->params.head_spec,
                                 &s->head, err);
}

/* Prepares draws of n tokens in so many diffusion steps. */
static mar_status plan_draw(mar_session *s, int n, int steps, mar_err *err)
{
    if (n == 0) return MAR_OK;
    diff_chain_use(&s->target.chain, steps);
    if (s->head.draft.chain) diff_chain_use(&s->draft.chain, steps);
    return s->head.w.window ? diff_speculate_plan(&s->head, n, err) : mar_runner_plan_head(&s->target, n, err);
}

static mar_status build(mar_session *s, mar_err *err)
{
    mar_status planned = plan_steps(s, err);
    if (planned != MAR_OK) return planned;
    mar_status status = mar_speculation_check(s->model, &s->params, err);
    if (status != MAR_OK) return status;
    s->max_tokens = max_tokens(s);
    status = mar_runner_create(s->model, s->max_images, s->conditions, s->max_tokens, &s->params, &s->target, err);
    if (status == MAR_OK && s->vae) status = vae_run_create(s->vae->decoder, s->grid, s->grid, &s->decoder, err);
    if (status == MAR_OK) status = allocate_host(s, err);
    describe(s);
    if (status == MAR_OK && s->params.head_spec) status = create_head(s, err);
    if (status == MAR_OK && speculates(s)) status = mar_speculation_create(s, err);
    return status == MAR_OK ? allocate(s, err) : status;
}

static void free_recordings(mar_session *s)
{
    kern *k = s->model->m->kern;
    for (int i = 0; i < s->params.num_iter; i++) {
        if (s->recordings) mar_recordings_free(k, &s->recordings[i]);
        if (s->draft_recordings) mar_recordings_free(k, &s->draft_recordings[i]);
    }
}

/* Makes every primitive a batch of n images will use. */
static mar_status plan(mar_session *s, int n, mar_err *err)
{
    if (s->planned == n) return MAR_OK;
    mar_status status = MAR_OK;
    free_recordings(s);
    for (int i = 0; status == MAR_OK && i < s->params.num_iter; i++) {
        const mar_step *step = &s->steps[i];
        status = mar_runner_plan(&s->target, n, step, err);
        if (status == MAR_OK && s->head.draft.chain) status = mar_runner_plan(&s->draft, n, step, err);
        if (status == MAR_OK) status = plan_draw(s, n * (step->predicted - step->detailed), step->sampling_steps, err);
        if (status == MAR_OK) status = plan_draw(s, n * step->detailed, step->detailed_steps, err);
    }
    if (status == MAR_OK && speculates(s)) status = mar_speculation_plan(s, n, err);
    if (status == MAR_OK) s->planned = n;
    return status;
}

mar_status mar_session_create(mar_model *model, mar_vae *vae, const mar_params *asked, int max_batch, mar_session **out)
{
    mar_err *err = &model->m->err;
    mar_params all, *params = &all;
    *out = NULL;
    mar_status status = mar_params_read(asked, params, err);
    if (status != MAR_OK) return status;
    mar_ways_resolve(params);
    if (params->num_iter == 0) params->num_iter = model->config.seq_len < 64 ? model->config.seq_len : 64;
    if (params->gtr_sampling_steps == 0)
        params->gtr_sampling_steps = params->num_sampling_steps < 50 ? params->num_sampling_steps : 50;
    status = check_params(model, vae, params, max_batch, err);
    if (status != MAR_OK) return status;
    mar_session *s = calloc(1, sizeof *s);
    if (!s) return err_set(err, MAR_ENOMEM, "out of memory");
    s->model = model;
    s->vae = vae;
    s->params = *params;
    if (s->params.gamma > params->num_iter) s->params.gamma = params->num_iter; /* the rest of the image */
    s->max_images = max_batch;
    s->conditions = params->cfg == 1.0f ? 1 : 2;
    s->grid = grid_of(model);
    if (params->gtr) s->params.num_iter = params->gtr_generation_steps + params->gtr_reconstruction_steps;
    s->step = s->params.num_iter;
    status = build(s, err);
    if (status == MAR_OK) status = plan(s, max_batch, err);
    if (status != MAR_OK) {
        mar_session_free(s);
        return status;
    }
    *out = s;
    return MAR_OK;
}

void mar_session_free(mar_session *s)
{
    if (!s) return;
    kern *k = s->model->m->kern;
    k->core->finish(k); /* times still to come have their place in s */
    free_recordings(s);
    mar_speculation_free(s);
    diff_speculate_free(&s->head);
    mar_runner_free(&s->target);
    mar_runner_free(&s->draft);
    vae_run_free(s->decoder);
    if (s->arena) k->core->free(k, s->arena);
    free(s->order);
    free(s->order_data);
    free(s->label);
    free(s->row_image);
    free(s->row_slot);
    free(s->row_position);
    free(s->row_cfg);
    free(s->fate);
    free(s->born);
    free(s->energy);
    free(s->host_tokens);
    free(s->pixels);
    free(s->steps);
    free(s->recordings);
    free(s->draft_recordings);
    free(s);
}

mar_status mar_session_begin(mar_session *s, uint64_t first_image, const int *labels, int n)
{
    mar_err *err = &s->model->m->err;
    const mar_model_config *c = &s->model->config;
    kern *k = s->model->m->kern;
    if (n < 1 || n > s->max_images)
        return err_set(err, MAR_EARG, "%d images: expected 1..%d, the session's batch", n, s->max_images);
    for (int i = 0; i < n; i++)
        if (labels[i] < -1 || labels[i] >= c->classes)
            return err_set(err, MAR_EARG, "class %d: expected 0..%d, or -1 for unconditional", labels[i],
                           c->classes - 1);
    k->core->finish(k); /* the times of a dropped batch end here */
    mar_status status = plan(s, n, err);
    if (status != MAR_OK) return status;
    s->images = n;
    s->first_image = first_image;
    s->step = 0;
    s->stats = (mar_stats){.arena_bytes = s->stats.arena_bytes};
    const double start = mar_now();
    for (int i = 0; i < n; i++) {
        kern_random_order(s->params.seed, first_image + (uint64_t)i, c->seq_len, s->order[i]);
        if (s->params.gtr) mar_gtr_order(s->grid, s->order[i], s->target.work.rows[0]);
        s->label[i] = labels[i] < 0 ? c->classes : labels[i];
    }
    mar_runner_begin(&s->target, n, s->label);
    if (s->draft.model) mar_runner_begin(&s->draft, n, s->label);
    s->stats.total_s = mar_now() - start;
    return kern_check(k, err);
}

/* Lists the tokens of one autoregressive step as rows first.. ; returns their number. */
static int list_step(mar_session *s, const mar_step *step, int first)
{
    const int begin = s->model->config.seq_len - step->known - step->predicted;
    int r = first;
    for (int i = 0; i < s->images; i++)
        for (int j = 0; j < step->predicted; j++, r++) {
            s->row_slot[r] = i;
            s->row_position[r] = s->order[i][begin + j];
            s->row_image[r] = s->first_image + (uint64_t)i;
            s->row_cfg[r] = step->cfg;
        }
    return r - first;
}

/* Puts the n listed tokens, which the target made, in their places. */
static void keep(mar_session *s, int n)
{
    kern *k = s->model->m->kern;
    const mar_model_config *c = &s->model->config;
    int *place = s->target.work.rows[0];
    for (int r = 0; r < n; r++) {
        place[r] = s->row_slot[r] * c->seq_len + s->row_position[r];
        s->fate[place[r]] = MAR_TOKEN_TARGET;
        s->born[place[r]] = s->step;
    }
    k->core->copy_rows(k, s->tokens, place, s->sampled, NULL, NULL, NULL, n, c->token_dim);
}

/* The same tokens by speculation inside the head. */
static void draw_speculating(mar_session *s, const mar_draw *d, int first, int steps, float *x)
{
    kern *k = s->model->m->kern;
    const size_t row = (size_t)(first * s->conditions);
    const float *z = s->target.z + row * (size_t)s->model->config.width, *draft_z = NULL;
    diff_speculation_stats stats = {0};
    if (s->head.draft.chain) {
        draft_z = s->draft.z + row * (size_t)s->draft.model->config.width;
        diff_chain_use(&s->draft.chain, steps);
    }
    k->core->lap(k, NULL);
    diff_speculate_sample(&s->head, z, draft_z, d->count, d->cfg, d->seed, d->image, d->position, x, &stats);
    k->core->lap(k, &s->target.head_s);
    s->target.head_flop += diff_speculate_flop(&s->head, &stats);
    s->stats.head_batched += (double)stats.batched;
    s->stats.draft_calls += (double)stats.draft_batched;
    s->stats.head_calls += (double)stats.calls;
    s->stats.head_rows += (double)stats.evaluations;
    if (stats.calls_max > s->stats.head_calls_max) s->stats.head_calls_max = stats.calls_max;
    s->stats.proposals += stats.accepted + stats.rejected;
    s->stats.proposals_accepted += stats.accepted;
    s->stats.residual_tries += stats.tries;
}

/* Draws n tokens, rows `first`.. of the lists, in so many diffusion steps. */
static void draw(mar_session *s, int first, int n, int steps, kern_recording **recording)
{
    const mar_draw d = {n, s->params.seed, s->row_image + first, s->row_position + first, s->row_cfg + first};
    float *x = s->sampled + (size_t)first * (size_t)s->model->config.token_dim;
    if (n == 0) return;
    diff_chain_use(&s->target.chain, steps);
    if (s->head.w.window) {
        draw_speculating(s, &d, first, steps, x);
        return;
    }
    const int calls = s->target.chain.schedule.steps;
    mar_runner_draw(&s->target, first * s->conditions, &d, calls - 1, 0, x, NULL, recording);
    s->stats.head_batched += calls;
    s->stats.head_calls += (double)n * calls;
    s->stats.head_rows += (double)n * calls;
    if (calls > s->stats.head_calls_max) s->stats.head_calls_max = calls;
}

/* GtR: sorts the tokens of the step in `order` into the others and, behind them, the detailed ones. */
static void select_detailed(mar_session *s, const mar_step *step)
{
    kern *k = s->model->m->kern;
    const mar_model_config *c = &s->model->config;
    const size_t count = (size_t)c->seq_len * (size_t)c->token_dim;
    for (int i = 0; i < s->images; i++) {
        k->core->download(k, s->host_tokens, s->tokens + (size_t)i * count, count * sizeof *s->host_tokens);
        mar_gtr_select(s->host_tokens, s->grid, c->token_dim, s->order[i] + c->seq_len - step->known - step->predicted,
                       step->predicted, step->detailed, s->energy);
    }
}

/* The first step that draws and learns as many tokens as step i, in as many diffusion steps: with the recordings of
 * that. */
static int first_alike(const mar_session *s, int i)
{
    const mar_step *a = &s->steps[i], *b = s->steps;
    while (a->predicted != b->predicted || a->sampling_steps != b->sampling_steps || a->detailed != b->detailed ||
           a->detailed_steps != b->detailed_steps)
        b++;
    return (int)(b - s->steps);
}

/* One autoregressive step of the target alone. */
static void plain_step(mar_session *s)
{
    const mar_step *step = &s->steps[s->step];
    const mar_batch batch = {s->images, (const int *const *)s->order};
    const mar_step others = {
        .known = step->known + step->detailed, .predicted = step->predicted - step->detailed, .cfg = step->cfg};
    const mar_step detailed = {.known = step->known, .predicted = step->detailed, .cfg = step->cfg};
    if (step->detailed) select_detailed(s, step);
    const int first = list_step(s, &detailed, 0), n = first + list_step(s, &others, first);
    mar_recordings *draws = &s->recordings[first_alike(s, s->step)],
                   *draft_draws = &s->draft_recordings[first_alike(s, s->step)];
    mar_runner_predict(&s->target, &batch, step, 0, n, &s->recordings[s->step]);
    if (s->head.draft.chain) mar_runner_predict(&s->draft, &batch, step, 0, n, &s->draft_recordings[s->step]);
    draw(s, 0, first, step->detailed_steps, &draws->draw[1]);
    draw(s, first, n - first, step->sampling_steps, &draws->draw[0]);
    s->stats.tokens += n;
    keep(s, n);
    mar_runner_learn(&s->target, s->sampled, n, s->row_slot, s->row_position, &draws->learn);
    if (s->draft.model) mar_runner_learn(&s->draft, s->sampled, n, s->row_slot, s->row_position, &draft_draws->learn);
    s->step++;
}

mar_status mar_session_step(mar_session *s)
{
    mar_err *err = &s->model->m->err;
    kern *k = s->model->m->kern;
    if (mar_session_done(s)) return err_set(err, MAR_EARG, "no step left: begin a batch first");
    const double start = mar_now();
    mar_status status = MAR_OK;
    if (s->speculation && s->step >= mar_speculation_prefill(s))
        status = mar_speculation_round(s, err);
    else
        plain_step(s);
    if (mar_session_done(s)) k->core->finish(k);
    s->stats.total_s += mar_now() - start;
    return status == MAR_OK ? kern_check(k, err) : status;
}

int mar_session_done(const mar_session *s)
{
    return s->step >= s->params.num_iter;
}

int mar_session_steps_left(const mar_session *s)
{
    return s->params.num_iter - s->step;
}

static mar_status check_finished(mar_session *s)
{
    mar_err *err = &s->model->m->err;
    if (s->images == 0) return err_set(err, MAR_EARG, "no images: begin a batch first");
    if (!mar_session_done(s))
        return err_set(err, MAR_EARG, "the images are not finished: %d steps left", mar_session_steps_left(s));
    return MAR_OK;
}

mar_status mar_session_tokens(mar_session *s, float *tokens)
{
    mar_status status = check_finished(s);
    if (status != MAR_OK) return status;
    kern *k = s->model->m->kern;
    const mar_model_config *c = &s->model->config;
    k->core->download(k, tokens, s->tokens,
                      (size_t)s->images * (size_t)c->seq_len * (size_t)c->token_dim * sizeof *tokens);
    return kern_check(k, &s->model->m->err);
}

void mar_session_image_size(const mar_session *s, int *width, int *height)
{
    *width = *height = s->vae ? s->grid * mar_vae_get_config(s->vae)->stride : 0;
}

mar_status mar_session_images(mar_session *s, uint8_t *rgb)
{
    mar_err *err = &s->model->m->err;
    mar_status status = check_finished(s);
    if (status != MAR_OK) return status;
    if (!s->vae) return err_set(err, MAR_EARG, "the session has no VAE: only tokens can be had");
    kern *k = s->model->m->kern;
    const size_t count = (size_t)s->model->config.seq_len * (size_t)s->model->config.token_dim;
    int width, height;
    mar_session_image_size(s, &width, &height);
    const size_t bytes = (size_t)width * (size_t)height * 3;
    const double start = mar_now();
    k->core->lap(k, NULL);
    const float *pixels = vae_decode(s->decoder, s->tokens);
    for (int i = 0; i < s->images; i++) { /* the next one is being decoded while one is converted */
        k->core->download(k, s->pixels, pixels, bytes * sizeof *pixels);
        if (i + 1 < s->images) pixels = vae_decode(s->decoder, s->tokens + (size_t)(i + 1) * count);
        vae_to_bytes(s->pixels, bytes, rgb + (size_t)i * bytes);
    }
    k->core->lap(k, &s->stats.vae_s);
    k->core->finish(k);
    s->stats.vae_flop += s->images * vae_run_flop(s->decoder);
    s->stats.total_s += mar_now() - start;
    return kern_check(k, err);
}

void mar_session_get_stats(const mar_session *s, mar_stats *stats)
{
    const mar_runner *t = &s->target, *d = &s->draft;
    kern *k = s->model->m->kern;
    k->core->finish(k); /* the times are complete then */
    *stats = s->stats;
    stats->encoder_s = t->encoder_s;
    stats->decoder_s = t->decoder_s;
    stats->head_s = t->head_s;
    stats->encoder_flop = t->encoder_flop;
    stats->decoder_flop = t->decoder_flop;
    stats->head_flop = t->head_flop;
    stats->recorded_bytes = s->model->m->kern->recorded_bytes;
    stats->head_call_bytes = diff_head_sequential_bytes(&s->model->head);
    stats->head_call_products = 2 * s->model->head.depth + 2;
    stats->draft_s = d->encoder_s + d->decoder_s + d->head_s;
    stats->accepted_shift = s->speculation ? mar_speculation_shift(s) : 0;
    stats->draft_flop = d->encoder_flop + d->decoder_flop + d->head_flop;
}

mar_status mar_session_fates(mar_session *s, uint8_t *map, int *step)
{
    mar_status status = check_finished(s);
    if (status != MAR_OK) return status;
    const size_t count = (size_t)s->images * (size_t)s->model->config.seq_len;
    if (map) memcpy(map, s->fate, count * sizeof *map);
    if (step) memcpy(step, s->born, count * sizeof *step);
    return MAR_OK;
}

const mar_params *mar_session_get_params(const mar_session *s)
{
    return &s->params;
}

const char *mar_session_guarantee(const mar_session *s)
{
    return s->guarantee;
}
