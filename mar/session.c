/* The generation loop: a batch of images, one autoregressive step a call. */
#include "mar/session.h"

#include "mar/vae.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Tokens an image in the largest call of the head: of one step, or of a block of gamma steps. */
static int max_tokens(const mar_session *s)
{
    const int block = mar_session_speculates(s) ? s->params.gamma : 1;
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
    s->host_tokens = calloc(seq * (size_t)c->token_dim, sizeof *s->host_tokens);
    int failed = !s->order || !s->order_data || !s->label || !s->row_image || !s->row_slot || !s->row_position ||
                 !s->row_cfg || !s->fate || !s->born || !s->host_tokens;
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

static mar_status check_params(const mar_model *model, const mar_vae *vae, const mar_params *p, int max_batch,
                               mar_err *err)
{
    const mar_model_config *c = &model->config;
    if (p->num_iter < 1 || p->num_iter > c->seq_len)
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
    return MAR_OK;
}

static mar_status allocate(mar_session *s, mar_err *err)
{
    kern *k = s->model->m->kern;
    const mar_model_config *c = &s->model->config;
    const size_t token = (size_t)c->token_dim * sizeof(float), images = (size_t)s->max_images;
    void *p = NULL;
    mar_status status = k->ops->alloc(k, images * (size_t)c->seq_len * token, &p, err);
    s->tokens = p, p = NULL;
    if (status == MAR_OK) status = k->ops->alloc(k, images * (size_t)s->max_tokens * token, &p, err);
    s->sampled = p;
    return status == MAR_OK ? allocate_host(s, err) : status;
}

static mar_status build(mar_session *s, mar_err *err)
{
    s->steps = calloc((size_t)s->params.num_iter, sizeof *s->steps);
    if (!s->steps) return err_set(err, MAR_ENOMEM, "out of memory");
    mar_steps_plan(s->params.num_iter, s->model->config.seq_len, s->params.cfg, s->params.cfg_schedule, s->steps);
    s->max_tokens = max_tokens(s);
    mar_status status =
        mar_runner_create(s->model, s->max_images, s->conditions, s->max_tokens, &s->params, &s->target, err);
    if (status == MAR_OK && s->vae) status = vae_run_create(s->vae->decoder, s->grid, s->grid, &s->decoder, err);
    if (status == MAR_OK) status = allocate(s, err);
    if (status == MAR_OK && mar_session_speculates(s)) status = mar_speculation_create(s, err);
    if (status != MAR_OK) return status;
    s->stats.arena_bytes = mar_runner_bytes(&s->target) + mar_runner_bytes(&s->draft) +
                           (mar_session_speculates(s) ? mar_speculation_bytes(s) : 0) +
                           (s->decoder ? vae_run_bytes(s->decoder) : 0) +
                           (size_t)s->max_images * (size_t)(s->model->config.seq_len + s->max_tokens) *
                               (size_t)s->model->config.token_dim * sizeof(float);
    return MAR_OK;
}

/* Makes every primitive a batch of n images will use. */
static mar_status plan(mar_session *s, int n, mar_err *err)
{
    if (s->planned == n) return MAR_OK;
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && i < s->params.num_iter; i++) {
        status = mar_runner_plan(&s->target, n, &s->steps[i], err);
        if (status == MAR_OK) status = mar_runner_plan_head(&s->target, n * s->steps[i].predicted, err);
    }
    if (status == MAR_OK && mar_session_speculates(s)) status = mar_speculation_plan(s, n, err);
    if (status == MAR_OK) s->planned = n;
    return status;
}

mar_status mar_session_create(mar_model *model, mar_vae *vae, const mar_params *params, int max_batch,
                              mar_session **out)
{
    mar_err *err = &model->m->err;
    *out = NULL;
    mar_status status = check_params(model, vae, params, max_batch, err);
    if (status != MAR_OK) return status;
    mar_session *s = calloc(1, sizeof *s);
    if (!s) return err_set(err, MAR_ENOMEM, "out of memory");
    s->model = model;
    s->vae = vae;
    s->params = *params;
    if (params->draft && !params->spec && !params->head_spec) s->params.spec = "conditional";
    s->max_images = max_batch;
    s->conditions = params->cfg == 1.0f ? 1 : 2;
    s->step = params->num_iter;
    while (s->grid * s->grid < model->config.seq_len) s->grid++;
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
    mar_speculation_free(s);
    mar_runner_free(&s->target);
    mar_runner_free(&s->draft);
    if (s->tokens) k->ops->free(k, s->tokens);
    if (s->sampled) k->ops->free(k, s->sampled);
    vae_run_free(s->decoder);
    free(s->order);
    free(s->order_data);
    free(s->label);
    free(s->row_image);
    free(s->row_slot);
    free(s->row_position);
    free(s->row_cfg);
    free(s->fate);
    free(s->born);
    free(s->host_tokens);
    free(s->pixels);
    free(s->steps);
    free(s);
}

mar_status mar_session_begin(mar_session *s, uint64_t first_image, const int *labels, int n)
{
    mar_err *err = &s->model->m->err;
    const mar_model_config *c = &s->model->config;
    if (n < 1 || n > s->max_images)
        return err_set(err, MAR_EARG, "%d images: expected 1..%d, the session's batch", n, s->max_images);
    for (int i = 0; i < n; i++)
        if (labels[i] < -1 || labels[i] >= c->classes)
            return err_set(err, MAR_EARG, "class %d: expected 0..%d, or -1 for unconditional", labels[i],
                           c->classes - 1);
    mar_status status = plan(s, n, err);
    if (status != MAR_OK) return status;
    s->images = n;
    s->first_image = first_image;
    s->step = 0;
    s->stats = (mar_stats){.arena_bytes = s->stats.arena_bytes};
    const double start = mar_now();
    for (int i = 0; i < n; i++) {
        kern_random_order(s->params.seed, first_image + (uint64_t)i, c->seq_len, s->order[i]);
        s->label[i] = labels[i] < 0 ? c->classes : labels[i];
    }
    mar_runner_begin(&s->target, n, s->label);
    if (s->draft.model) mar_runner_begin(&s->draft, n, s->label);
    s->stats.total_s = mar_now() - start;
    return kern_check(s->model->m->kern, err);
}

int mar_session_speculates(const mar_session *s)
{
    return s->params.draft && s->params.spec;
}

int mar_session_list(mar_session *s, const mar_step *step, int first)
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

void mar_session_keep(mar_session *s, const float *drawn, int first, int n, mar_token_fate fate)
{
    kern *k = s->model->m->kern;
    const mar_model_config *c = &s->model->config;
    int *place = s->target.work.rows[0];
    for (int r = 0; r < n; r++) {
        place[r] = s->row_slot[first + r] * c->seq_len + s->row_position[first + r];
        s->fate[place[r]] = (uint8_t)fate;
        s->born[place[r]] = s->step;
    }
    k->ops->copy_rows(k, s->tokens, place, drawn, NULL, NULL, NULL, n, c->token_dim);
}

/* One autoregressive step of the target alone. */
static void plain_step(mar_session *s)
{
    const mar_step *step = &s->steps[s->step];
    const mar_batch batch = {s->images, (const int *const *)s->order};
    const int n = mar_session_list(s, step, 0), last = s->target.chain.schedule.steps - 1;
    const mar_draw draw = {n, s->params.seed, s->row_image, s->row_position, s->row_cfg};
    mar_runner_predict(&s->target, &batch, step, 0, n);
    mar_runner_draw(&s->target, &draw, last, 0, s->sampled, NULL);
    s->stats.head_calls += (double)n * (last + 1);
    s->stats.head_rows += (double)n * (last + 1);
    s->stats.tokens += n;
    if (last + 1 > s->stats.head_calls_max) s->stats.head_calls_max = last + 1;
    mar_session_keep(s, s->sampled, 0, n, MAR_TOKEN_TARGET);
    mar_runner_learn(&s->target, s->sampled, n, s->row_slot, s->row_position);
    if (s->draft.model) mar_runner_learn(&s->draft, s->sampled, n, s->row_slot, s->row_position);
    s->step++;
}

mar_status mar_session_step(mar_session *s)
{
    mar_err *err = &s->model->m->err;
    if (mar_session_done(s)) return err_set(err, MAR_EARG, "no step left: begin a batch first");
    const double start = mar_now();
    mar_status status = MAR_OK;
    if (s->speculation && s->step >= mar_speculation_prefill(s))
        status = mar_speculation_round(s, err);
    else
        plain_step(s);
    s->stats.total_s += mar_now() - start;
    return status == MAR_OK ? kern_check(s->model->m->kern, err) : status;
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
    k->ops->download(k, tokens, s->tokens,
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
    for (int i = 0; i < s->images; i++) {
        k->ops->download(k, s->host_tokens, s->tokens + (size_t)i * count, count * sizeof(float));
        vae_decode(s->decoder, s->host_tokens, s->pixels);
        vae_to_bytes(s->pixels, bytes, rgb + (size_t)i * bytes);
        s->stats.vae_flop += vae_run_flop(s->decoder);
    }
    s->stats.vae_s += mar_now() - start;
    s->stats.total_s += mar_now() - start;
    return kern_check(k, err);
}

void mar_session_get_stats(const mar_session *s, mar_stats *stats)
{
    const mar_runner *t = &s->target, *d = &s->draft;
    *stats = s->stats;
    stats->encoder_s = t->encoder_s;
    stats->decoder_s = t->decoder_s;
    stats->head_s = t->head_s;
    stats->encoder_flop = t->encoder_flop;
    stats->decoder_flop = t->decoder_flop;
    stats->head_flop = t->head_flop;
    stats->draft_s = d->encoder_s + d->decoder_s + d->head_s;
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

const char *mar_session_guarantee(const mar_session *s)
{
    return s->guarantee;
}
