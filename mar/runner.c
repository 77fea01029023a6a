#include "mar/runner.h"

#include "base/arena.h"

#include <stdlib.h>
#include <time.h>

double mar_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Lays out the arena; returns its size. */
static size_t lay_out(mar_runner *r, char *base)
{
    const mar_model_config *c = &r->model->config;
    const size_t images = (size_t)r->max_images, sequences = images * (size_t)r->conditions, d = (size_t)c->width;
    const size_t rows = sequences * (size_t)(c->buffer + c->seq_len), seq = (size_t)c->seq_len;
    const size_t act_size = r->model->m->kern->act_size;
    size_t used = 0;
    r->work.x = arena_carve(base, &used, rows * d, sizeof(float));
    r->work.memory = arena_carve(base, &used, rows * d, sizeof(float));
    r->work.normed = arena_carve(base, &used, rows * d, act_size);
    r->work.qkv = arena_carve(base, &used, rows * 3 * d, act_size);
    r->work.mixed = arena_carve(base, &used, rows * d, act_size);
    r->work.hidden =
        arena_carve(base, &used, rows * (size_t)(c->mlp_hidden > c->width ? c->mlp_hidden : c->width), act_size);
    r->token_rows = arena_carve(base, &used, images * seq * d, sizeof(float));
    r->class_rows = arena_carve(base, &used, sequences * (size_t)c->buffer * d, sizeof(float));
    r->z = arena_carve(base, &used, sequences * (size_t)r->max_tokens * d, sizeof(float));
    return used;
}

static mar_status create_chain(mar_runner *r, const mar_params *params, mar_err *err)
{
    diff_spec *specs = malloc(((size_t)params->num_iter + 1) * sizeof *specs);
    if (!specs) return err_set(err, MAR_ENOMEM, "out of memory");
    const int n = mar_steps_specs(params, specs);
    mar_status status = diff_chain_create_for(&r->model->head, specs, n, params->temperature,
                                              r->max_images * r->max_tokens, r->conditions == 2, &r->chain, err);
    free(specs);
    return status;
}

mar_status mar_runner_create(const mar_model *model, int max_images, int conditions, int max_tokens,
                             const mar_params *params, mar_runner *out, mar_err *err)
{
    kern *k = model->m->kern;
    const mar_model_config *c = &model->config;
    *out = (mar_runner){.model = model, .max_images = max_images, .conditions = conditions, .max_tokens = max_tokens};
    mar_status status = create_chain(out, params, err);
    if (status != MAR_OK) return status; /* nothing is owned yet */
    if (params->lazy_head) status = diff_chain_reuse(&out->chain, err);
    if (status == MAR_OK && params->lazy) status = mar_lazy_create(model, max_images, conditions, &out->lazy, err);
    out->arena_bytes = lay_out(out, NULL);
    if (status == MAR_OK) status = k->ops->alloc(k, out->arena_bytes, &out->arena, err);
    const size_t rows = (size_t)max_images * (size_t)conditions * (size_t)(c->buffer + c->seq_len);
    for (int i = 0; status == MAR_OK && i < 3; i++) {
        out->work.rows[i] = calloc(rows, sizeof *out->work.rows[i]);
        if (!out->work.rows[i]) status = err_set(err, MAR_ENOMEM, "out of memory for a batch of %d images", max_images);
    }
    out->z_index = calloc((size_t)max_images * (size_t)conditions * (size_t)max_tokens, sizeof *out->z_index);
    if (status == MAR_OK && !out->z_index) status = err_set(err, MAR_ENOMEM, "out of memory");
    if (status != MAR_OK) {
        mar_runner_free(out);
        return status;
    }
    lay_out(out, out->arena);
    return MAR_OK;
}

void mar_runner_free(mar_runner *r)
{
    if (!r->model) return;
    kern *k = r->model->m->kern;
    if (r->arena) k->ops->free(k, r->arena);
    diff_chain_free(&r->chain);
    mar_lazy_free(r->lazy);
    for (int i = 0; i < 3; i++) free(r->work.rows[i]);
    free(r->z_index);
    *r = (mar_runner){0};
}

size_t mar_runner_bytes(const mar_runner *r)
{
    return r->model ? r->arena_bytes + diff_chain_bytes(&r->chain) + mar_lazy_bytes(r->lazy) : 0;
}

mar_status mar_runner_plan(mar_runner *r, int images, const mar_step *step, mar_err *err)
{
    mar_status status = mar_runner_plan_learn(r, images * step->predicted, err);
    if (status != MAR_OK) return status;
    if (r->lazy) return mar_lazy_plan(r->lazy, images, step, err);
    return mar_passes_plan(r->model, images * r->conditions, step->known, step->predicted, err);
}

mar_status mar_runner_plan_learn(mar_runner *r, int tokens, mar_err *err)
{
    return r->model->m->kern->ops->linear_plan(r->model->m->kern, r->model->z_proj, tokens, err);
}

mar_status mar_runner_plan_head(mar_runner *r, int tokens, mar_err *err)
{
    return diff_chain_plan(&r->chain, tokens, err);
}

void mar_runner_begin(mar_runner *r, int images, const int *label)
{
    const double start = mar_now();
    int *labels = r->work.rows[2]; /* the passes' own list comes later */
    for (int i = 0; i < images; i++) {
        labels[i] = label[i];
        if (r->conditions == 2) labels[images + i] = r->model->config.classes;
    }
    mar_embed_classes(r->model, &r->work, images * r->conditions, labels, r->class_rows);
    r->encoder_s = mar_now() - start;
    r->decoder_s = r->head_s = r->encoder_flop = r->decoder_flop = r->head_flop = 0;
}

/* Where the z of a step's token goes: `i` of all `sequences`, `images` of them conditional. */
static int z_row(const mar_step *step, int sequences, int images, int i, int first, int total)
{
    const int s = i / step->predicted, place = i % step->predicted, others = step->predicted - step->detailed;
    if (step->detailed == 0) return s / images * total + first + i % (images * step->predicted);
    return place >= others ? s * step->detailed + place - others : sequences * step->detailed + s * others + place;
}

void mar_runner_predict(mar_runner *r, const mar_batch *batch, const mar_step *step, int first, int total)
{
    const int sequences = batch->images * r->conditions;
    const mar_pass pass = {.sequences = sequences,
                           .images = batch->images,
                           .known = step->known,
                           .predicted = step->predicted,
                           .order = batch->order,
                           .token_rows = r->token_rows,
                           .class_rows = r->class_rows};
    for (int i = 0; i < sequences * step->predicted; i++)
        r->z_index[i] = z_row(step, sequences, batch->images, i, first, total);
    const double t0 = mar_now();
    if (r->lazy)
        mar_lazy_encode(r->lazy, &r->work, &pass, step);
    else
        mar_encode(r->model, &r->work, &pass);
    const double t1 = mar_now();
    if (r->lazy)
        mar_lazy_decode(r->lazy, &r->work, &pass, step, r->z, r->z_index);
    else
        mar_decode(r->model, &r->work, &pass, r->z, r->z_index);
    const double t2 = mar_now();
    r->encoder_s += t1 - t0;
    r->decoder_s += t2 - t1;
    r->encoder_flop += r->lazy ? mar_lazy_encode_flop(r->lazy, batch->images, step)
                               : mar_encode_flop(r->model, sequences, step->known);
    r->decoder_flop += r->lazy ? mar_lazy_decode_flop(r->lazy, batch->images, step)
                               : mar_decode_flop(r->model, sequences, step->predicted);
}

void mar_runner_learn(mar_runner *r, const float *tokens, int n, const int *image, const int *position)
{
    const double start = mar_now();
    mar_embed_tokens(r->model, &r->work, tokens, n, image, position, r->token_rows);
    r->encoder_s += mar_now() - start;
}

void mar_runner_draw_part(mar_runner *r, int row, const mar_draw *d, int first, int last, float *x, diff_trace *trace)
{
    const double start = mar_now();
    const int steps = r->chain.schedule.steps;
    const float *z = r->z + (size_t)row * (size_t)r->model->config.width;
    if (first == steps - 1) diff_chain_start(&r->chain, d->count, d->seed, d->image, d->position, x);
    diff_chain_run(&r->chain, z, d->count, d->cfg, d->seed, d->image, d->position, first, last, x, trace);
    r->head_s += mar_now() - start;
    r->head_flop += diff_chain_flop(&r->chain, d->count) * (first - last + 1) / steps;
}

void mar_runner_draw(mar_runner *r, const mar_draw *d, int first, int last, float *x, diff_trace *trace)
{
    mar_runner_draw_part(r, 0, d, first, last, x, trace);
}
