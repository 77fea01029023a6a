/* The generation loop: a batch of images, one autoregressive step a call. */
#include "diffusion/chain.h"
#include "mar/steps.h"
#include "mar/transformer.h"
#include "mar/vae.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct mar_session {
    mar_model *model;
    mar_vae *vae;
    mar_params params;
    int max_images, conditions; /* conditions: 2 with guidance, else 1 */
    int grid;                   /* tokens a side */
    mar_step *steps;            /* [num_iter] */

    /* backend memory: one arena and what the chain and the decoder own */
    void *arena;
    size_t arena_bytes;
    mar_workspace work;
    float *tokens;     /* [images][seq_len][token_dim] */
    float *token_rows; /* [images][seq_len][D] */
    float *class_rows; /* [sequences][buffer][D] */
    float *z;          /* [sequences][max predicted][D] */
    float *sampled;    /* [images * max predicted][token_dim] */
    diff_chain chain;
    vae_run *decoder;

    /* host memory */
    int **order; /* [images] -> [seq_len] */
    int *order_data;
    int *label;          /* [sequences] */
    uint64_t *row_image; /* [images * max predicted] noise address */
    int *row_slot, *row_position;
    float *host_tokens, *pixels; /* one image */

    int images, step; /* of the batch in progress; step == num_iter: done */
    uint64_t first_image;
    int planned; /* number of images whose shapes are planned */
    mar_stats stats;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int max_predicted(const mar_session *s)
{
    int most = 0;
    for (int i = 0; i < s->params.num_iter; i++)
        if (s->steps[i].predicted > most) most = s->steps[i].predicted;
    return most;
}

/* Hands out `count` elements; with base NULL it only counts. */
static void *carve(char *base, size_t *used, size_t count, size_t size)
{
    void *p = base ? base + *used : NULL;
    *used += (count * size + 63) / 64 * 64;
    return p;
}

/* Lays out the arena; returns its size. */
static size_t lay_out(mar_session *s, char *base)
{
    const mar_model_config *c = &s->model->config;
    const size_t images = (size_t)s->max_images, sequences = images * (size_t)s->conditions, d = (size_t)c->width;
    const size_t rows = sequences * (size_t)(c->buffer + c->seq_len), predicted = (size_t)max_predicted(s);
    const size_t act_size = s->model->m->kern->act_size, seq = (size_t)c->seq_len, channels = (size_t)c->token_dim;
    size_t used = 0;
    s->work.x = carve(base, &used, rows * d, sizeof(float));
    s->work.memory = carve(base, &used, rows * d, sizeof(float));
    s->work.normed = carve(base, &used, rows * d, act_size);
    s->work.qkv = carve(base, &used, rows * 3 * d, act_size);
    s->work.mixed = carve(base, &used, rows * d, act_size);
    s->work.hidden = carve(base, &used, rows * (size_t)(c->mlp_hidden > c->width ? c->mlp_hidden : c->width), act_size);
    s->tokens = carve(base, &used, images * seq * channels, sizeof(float));
    s->token_rows = carve(base, &used, images * seq * d, sizeof(float));
    s->class_rows = carve(base, &used, sequences * (size_t)c->buffer * d, sizeof(float));
    s->z = carve(base, &used, sequences * predicted * d, sizeof(float));
    s->sampled = carve(base, &used, images * predicted * channels, sizeof(float));
    return used;
}

static mar_status allocate_host(mar_session *s, mar_err *err)
{
    const mar_model_config *c = &s->model->config;
    const size_t images = (size_t)s->max_images, sequences = images * (size_t)s->conditions;
    const size_t rows = sequences * (size_t)(c->buffer + c->seq_len), sampled = images * (size_t)max_predicted(s);
    s->order = calloc(images, sizeof *s->order);
    s->order_data = calloc(images * (size_t)c->seq_len, sizeof *s->order_data);
    s->label = calloc(sequences, sizeof *s->label);
    s->row_image = calloc(sampled, sizeof *s->row_image);
    s->row_slot = calloc(sampled, sizeof *s->row_slot);
    s->row_position = calloc(sampled, sizeof *s->row_position);
    s->host_tokens = calloc((size_t)c->seq_len * (size_t)c->token_dim, sizeof *s->host_tokens);
    int failed = !s->order || !s->order_data || !s->label || !s->row_image || !s->row_slot || !s->row_position ||
                 !s->host_tokens;
    for (int i = 0; i < 3; i++) {
        s->work.rows[i] = calloc(rows, sizeof *s->work.rows[i]);
        failed |= !s->work.rows[i];
    }
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

static mar_status build(mar_session *s, mar_err *err)
{
    mar_model *model = s->model;
    kern *k = model->m->kern;
    s->steps = calloc((size_t)s->params.num_iter, sizeof *s->steps);
    if (!s->steps) return err_set(err, MAR_ENOMEM, "out of memory");
    mar_steps_plan(s->params.num_iter, model->config.seq_len, s->params.cfg, s->params.cfg_schedule, s->steps);
    mar_status status = diff_chain_create(&model->head, s->params.num_sampling_steps, s->params.temperature,
                                          s->max_images * max_predicted(s), s->conditions == 2, &s->chain, err);
    if (status == MAR_OK && s->vae) status = vae_run_create(s->vae->decoder, s->grid, s->grid, &s->decoder, err);
    if (status == MAR_OK) {
        s->arena_bytes = lay_out(s, NULL);
        status = k->ops->alloc(k, s->arena_bytes, &s->arena, err);
    }
    if (status != MAR_OK) return status;
    lay_out(s, s->arena);
    s->arena_bytes += diff_chain_bytes(&s->chain) + (s->decoder ? vae_run_bytes(s->decoder) : 0);
    s->stats.arena_bytes = s->arena_bytes;
    return allocate_host(s, err);
}

/* Makes every primitive a batch of n images will use. */
static mar_status plan(mar_session *s, int n, mar_err *err)
{
    if (s->planned == n) return MAR_OK;
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && i < s->params.num_iter; i++) {
        status = mar_passes_plan(s->model, n * s->conditions, s->steps[i].known, s->steps[i].predicted, err);
        if (status == MAR_OK) status = diff_chain_plan(&s->chain, n * s->steps[i].predicted, err);
    }
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
    if (s->arena) k->ops->free(k, s->arena);
    diff_chain_free(&s->chain);
    vae_run_free(s->decoder);
    for (int i = 0; i < 3; i++) free(s->work.rows[i]);
    free(s->order);
    free(s->order_data);
    free(s->label);
    free(s->row_image);
    free(s->row_slot);
    free(s->row_position);
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
    s->stats = (mar_stats){.arena_bytes = s->arena_bytes};
    const double start = now();
    for (int i = 0; i < n; i++) {
        kern_random_order(s->params.seed, first_image + (uint64_t)i, c->seq_len, s->order[i]);
        s->label[i] = labels[i] < 0 ? c->classes : labels[i];
        if (s->conditions == 2) s->label[n + i] = c->classes;
    }
    mar_embed_classes(s->model, &s->work, n * s->conditions, s->label, s->class_rows);
    s->stats.encoder_s = s->stats.total_s = now() - start;
    return kern_check(s->model->m->kern, err);
}

/* Rows of the tokens predicted in this step: image after image, in the order of `order`. */
static int list_predicted(mar_session *s, const mar_step *step)
{
    const int first = s->model->config.seq_len - step->known - step->predicted;
    int n = 0;
    for (int i = 0; i < s->images; i++)
        for (int j = 0; j < step->predicted; j++, n++) {
            s->row_slot[n] = i;
            s->row_position[n] = s->order[i][first + j];
            s->row_image[n] = s->first_image + (uint64_t)i;
        }
    return n;
}

/* Puts the sampled tokens in their places and embeds them for the next steps. */
static void keep_tokens(mar_session *s, int n)
{
    kern *k = s->model->m->kern;
    const mar_model_config *c = &s->model->config;
    for (int r = 0; r < n; r++) s->work.rows[0][r] = s->row_slot[r] * c->seq_len + s->row_position[r];
    k->ops->copy_rows(k, s->tokens, s->work.rows[0], s->sampled, NULL, NULL, NULL, n, c->token_dim);
    mar_embed_tokens(s->model, &s->work, s->sampled, n, s->row_slot, s->row_position, s->token_rows);
}

mar_status mar_session_step(mar_session *s)
{
    mar_err *err = &s->model->m->err;
    if (mar_session_done(s)) return err_set(err, MAR_EARG, "no step left: begin a batch first");
    const mar_step *step = &s->steps[s->step];
    const int sequences = s->images * s->conditions;
    const mar_pass pass = {.sequences = sequences,
                           .images = s->images,
                           .known = step->known,
                           .predicted = step->predicted,
                           .order = (const int *const *)s->order,
                           .token_rows = s->token_rows,
                           .class_rows = s->class_rows};
    const double t0 = now();
    mar_encode(s->model, &s->work, &pass);
    const double t1 = now();
    mar_decode(s->model, &s->work, &pass, s->z);
    const double t2 = now();
    const int n = list_predicted(s, step);
    diff_chain_sample(&s->chain, s->z, n, step->cfg, s->params.seed, s->row_image, s->row_position, s->sampled);
    keep_tokens(s, n);
    const double t3 = now();
    s->stats.encoder_s += t1 - t0;
    s->stats.decoder_s += t2 - t1;
    s->stats.head_s += t3 - t2;
    s->stats.total_s += t3 - t0;
    s->stats.encoder_flop += mar_encode_flop(s->model, sequences, step->known);
    s->stats.decoder_flop += mar_decode_flop(s->model, sequences, step->predicted);
    s->stats.head_flop += diff_chain_flop(&s->chain, n);
    s->step++;
    return kern_check(s->model->m->kern, err);
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
    const double start = now();
    for (int i = 0; i < s->images; i++) {
        k->ops->download(k, s->host_tokens, s->tokens + (size_t)i * count, count * sizeof(float));
        vae_decode(s->decoder, s->host_tokens, s->pixels);
        vae_to_bytes(s->pixels, bytes, rgb + (size_t)i * bytes);
        s->stats.vae_flop += vae_run_flop(s->decoder);
    }
    s->stats.vae_s += now() - start;
    s->stats.total_s += now() - start;
    return kern_check(k, err);
}

void mar_session_get_stats(const mar_session *s, mar_stats *stats)
{
    *stats = s->stats;
}
