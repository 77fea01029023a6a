/* Sessions: memory, time and images around a model family's engine (mar/engine.h). */
#include "mar/engine.h"
#include "mar/params.h"
#include "mar/vae.h"

#include <stdlib.h>
#include <time.h>

struct mar_session {
    mar_model *model;
    mar_vae *vae; /* NULL: tokens only */
    int max_images;
    int grid; /* latent pixels a side */
    kern_queue *k;
    mar_generation *generation;
    vae_run *decoder; /* NULL without vae */
    void *arena;      /* backend memory, all there is */
    size_t arena_bytes;
    float *pixels; /* host, one image */
    int images;    /* of the batch in progress; 0: none yet */
    int planned;   /* number of images whose shapes are planned */
    double total_s, vae_s, vae_flop;
};

static double now(void) /* seconds from some fixed point */
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- making one --------------------------------------------------------------------------------------------------- */

static mar_status check(const mar_model *model, const mar_vae *vae, int max_batch, mar_err *err)
{
    if (max_batch < 1 || max_batch > 65536)
        return err_set(err, MAR_EARG, "batch of %d images: expected 1..65536", max_batch);
    if (vae && vae->m != model->m) return err_set(err, MAR_EARG, "model and VAE belong to different handles");
    if (vae && mar_vae_get_config(vae)->z_channels != model->config.token_dim)
        return err_set(err, MAR_EMODEL, "the VAE decodes %d channels but the model's tokens have %d",
                       mar_vae_get_config(vae)->z_channels, model->config.token_dim);
    return MAR_OK;
}

static mar_status create_decoder(mar_session *s, mar_err *err)
{
    if (!s->vae) return MAR_OK;
    const mar_status status = vae_run_create(s->k, s->vae->decoder, s->grid, s->grid, &s->decoder, err);
    if (status != MAR_OK) return status;
    int width, height;
    mar_session_image_size(s, &width, &height);
    s->pixels = malloc((size_t)width * (size_t)height * 3 * sizeof *s->pixels);
    return s->pixels ? MAR_OK : err_set(err, MAR_ENOMEM, "out of memory for an image of %dx%d", width, height);
}

/* Cuts the arena; returns its size. */
static size_t lay_out(mar_session *s, char *base)
{
    size_t used = s->model->engine->lay_out(s->generation, base);
    if (s->decoder) used += vae_run_lay_out(s->decoder, base ? base + used : NULL);
    return used;
}

static mar_status allocate(mar_session *s, mar_err *err)
{
    const mar *m = s->model->m;
    mar_err reason = {0};
    s->arena_bytes = lay_out(s, NULL);
    const mar_status status = m->device->core->alloc(m->device, s->arena_bytes, &s->arena, &reason);
    if (status != MAR_OK)
        return err_set(err, status, "a batch of %d image%s needs %.3g GB of %smemory: %s; %s", s->max_images,
                       s->max_images == 1 ? "" : "s", (double)s->arena_bytes / 1e9,
                       m->backend == MAR_BACKEND_CUDA ? "GPU " : "", reason.text,
                       s->max_images > 1 ? "lower the batch" : "this is the least a batch can be");
    lay_out(s, s->arena);
    return MAR_OK;
}

/* Makes every primitive a batch of n images will use. */
static mar_status plan(mar_session *s, int n, mar_err *err)
{
    if (s->planned == n) return MAR_OK;
    s->planned = 0;
    const mar_status status = s->model->engine->plan(s->generation, n, err);
    if (status == MAR_OK) s->planned = n;
    return status;
}

mar_status mar_session_create(mar_model *model, mar_vae *vae, const mar_params *params, int max_batch,
                              mar_session **out)
{
    mar_err *err = &model->m->err;
    mar_params read;
    *out = NULL;
    mar_status status = mar_params_read(params, &read, err);
    if (status == MAR_OK) status = check(model, vae, max_batch, err);
    if (status != MAR_OK) return status;
    mar_session *s = calloc(1, sizeof *s);
    if (!s) return err_set(err, MAR_ENOMEM, "out of memory");
    s->model = model;
    s->vae = vae;
    s->max_images = max_batch;
    s->grid = mar_grid_side(&model->config);
    status = model->m->device->core->queue_create(model->m->device, &s->k, err);
    if (status == MAR_OK) status = model->engine->create(model, s->k, &read, max_batch, &s->generation, err);
    if (status == MAR_OK) status = create_decoder(s, err);
    if (status == MAR_OK) status = allocate(s, err);
    if (status == MAR_OK) status = plan(s, max_batch, err);
    if (status == MAR_OK)
        *out = s;
    else
        mar_session_free(s);
    return status;
}

void mar_session_free(mar_session *s)
{
    if (!s) return;
    kern_queue *k = s->k;
    if (k) k->core->finish(k); /* times still to come have their place in s */
    if (s->generation) s->model->engine->free(s->generation);
    vae_run_free(s->decoder);
    if (k) {
        k->device->core->free(k->device, s->arena);
        k->core->queue_free(k);
    }
    free(s->pixels);
    free(s);
}

/* --- a batch ------------------------------------------------------------------------------------------------------ */

mar_status mar_session_begin(mar_session *s, uint64_t first_image, const int *labels, int n)
{
    mar_err *err = &s->model->m->err;
    kern_queue *k = s->k;
    const int classes = s->model->config.classes;
    if (n < 1 || n > s->max_images)
        return err_set(err, MAR_EARG, "%d images: expected 1..%d, the session's batch", n, s->max_images);
    for (int i = 0; i < n; i++)
        if (labels[i] < -1 || labels[i] >= classes)
            return err_set(err, MAR_EARG, "class %d: expected 0..%d, or -1 for unconditional", labels[i], classes - 1);
    k->core->finish(k); /* the times of a dropped batch end here */
    const mar_status status = plan(s, n, err);
    if (status != MAR_OK) return status;
    const double start = now();
    s->images = n;
    s->vae_s = s->vae_flop = 0;
    s->model->engine->begin(s->generation, first_image, labels, n);
    s->total_s = now() - start;
    return kern_check(k, err);
}

mar_status mar_session_step(mar_session *s)
{
    mar_err *err = &s->model->m->err;
    kern_queue *k = s->k;
    if (mar_session_done(s)) return err_set(err, MAR_EARG, "no step left: begin a batch first");
    const double start = now();
    const mar_status status = s->model->engine->step(s->generation, err);
    if (mar_session_done(s)) k->core->finish(k);
    s->total_s += now() - start;
    return status == MAR_OK ? kern_check(k, err) : status;
}

int mar_session_done(const mar_session *s)
{
    return mar_session_steps_left(s) <= 0;
}

int mar_session_steps_left(const mar_session *s)
{
    return s->model->engine->steps_left(s->generation);
}

/* --- what came of it ---------------------------------------------------------------------------------------------- */

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
    const mar_status status = check_finished(s);
    if (status != MAR_OK) return status;
    kern_queue *k = s->k;
    const mar_model_config *c = &s->model->config;
    k->core->download(k, tokens, s->model->engine->latents(s->generation),
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
    const mar_status status = check_finished(s);
    if (status != MAR_OK) return status;
    if (!s->vae) return err_set(err, MAR_EARG, "the session has no VAE: only tokens can be had");
    kern_queue *k = s->k;
    const size_t count = (size_t)s->model->config.seq_len * (size_t)s->model->config.token_dim;
    const float *latents = s->model->engine->latents(s->generation);
    int width, height;
    mar_session_image_size(s, &width, &height);
    const size_t bytes = (size_t)width * (size_t)height * 3;
    const double start = now();
    k->core->lap(k, NULL);
    const float *pixels = vae_decode(s->decoder, latents);
    for (int i = 0; i < s->images; i++) { /* the next one is being decoded while one is converted */
        k->core->download(k, s->pixels, pixels, bytes * sizeof *pixels);
        if (i + 1 < s->images) pixels = vae_decode(s->decoder, latents + (size_t)(i + 1) * count);
        vae_to_bytes(s->pixels, bytes, rgb + (size_t)i * bytes);
    }
    k->core->lap(k, &s->vae_s);
    k->core->finish(k);
    s->vae_flop += s->images * vae_run_flop(s->decoder);
    s->total_s += now() - start;
    return kern_check(k, err);
}

void mar_session_get_stats(const mar_session *s, mar_stats *stats)
{
    kern_queue *k = s->k;
    k->core->finish(k); /* the times are complete then */
    s->model->engine->stats(s->generation, stats);
    stats->arena_bytes = s->arena_bytes;
    stats->recorded_bytes = k->recorded_bytes;
    stats->vae_s = s->vae_s;
    stats->vae_flop = s->vae_flop;
    stats->total_s = s->total_s;
}

mar_status mar_session_fates(mar_session *s, uint8_t *map, int *step)
{
    const mar_status status = check_finished(s);
    if (status == MAR_OK) s->model->engine->fates(s->generation, map, step);
    return status;
}

const mar_params *mar_session_get_params(const mar_session *s)
{
    return s->model->engine->params(s->generation);
}

const char *mar_session_guarantee(const mar_session *s)
{
    return s->model->engine->guarantee(s->generation);
}

mar_generation *mar_session_generation(mar_session *s)
{
    return s->generation;
}
