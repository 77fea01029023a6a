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

size_t mar_runner_lay_out(mar_runner *r, char *base)
{
    const mar_model_config *c = &r->model->base.config;
    const size_t images = (size_t)r->max_images, sequences = images * (size_t)r->conditions, d = (size_t)c->width;
    const size_t rows = sequences * (size_t)(c->buffer + c->seq_len), seq = (size_t)c->seq_len;
    const size_t act_size = r->model->base.m->kern->act_size;
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
    used += diff_chain_lay_out(&r->chain, base ? base + used : NULL);
    return used;
}

mar_status mar_runner_create(const mar_masked_model *model, int max_images, int conditions, int max_tokens,
                             const diff_spec *specs, int n, float temperature, mar_runner *out, mar_err *err)
{
    const mar_model_config *c = &model->base.config;
    *out = (mar_runner){.model = model,
                        .max_images = max_images,
                        .conditions = conditions,
                        .max_tokens = max_tokens,
                        .passes = &mar_plain_passes};
    mar_status status = diff_chain_create_for(&model->head, specs, n, temperature, max_images * max_tokens,
                                              conditions == 2, &out->chain, err);
    if (status != MAR_OK) { /* nothing is owned yet */
        out->model = NULL;
        return status;
    }
    const size_t sequences = (size_t)max_images * (size_t)conditions;
    int *rows[3];
    for (int i = 0; i < 3; i++)
        rows[i] = out->work.rows[i] = calloc(sequences * (size_t)(c->buffer + c->seq_len), sizeof *rows[i]);
    out->z_index = calloc(sequences * (size_t)max_tokens, sizeof *out->z_index);
    out->labels = calloc(sequences, sizeof *out->labels);
    if (rows[0] && rows[1] && rows[2] && out->z_index && out->labels) return MAR_OK;
    mar_runner_free(out);
    return err_set(err, MAR_ENOMEM, "out of memory for a batch of %d images", max_images);
}

void mar_runner_free(mar_runner *r)
{
    if (!r->model) return;
    diff_chain_free(&r->chain);
    for (int i = 0; i < 3; i++) free(r->work.rows[i]);
    free(r->z_index);
    free(r->labels);
    *r = (mar_runner){0};
}

void mar_recordings_free(kern *k, mar_recordings *t)
{
    kern_recording *recordings[] = {t->encode, t->decode, t->draw[0], t->draw[1], t->learn};
    for (int i = 0; i < 5; i++) k->core->recording_free(k, recordings[i]);
    *t = (mar_recordings){0};
}

mar_status mar_runner_plan(mar_runner *r, int images, const mar_step *step, mar_err *err)
{
    mar_status status = mar_runner_plan_learn(r, images * step->predicted, err);
    if (status != MAR_OK) return status;
    return r->passes->plan(r->passes_state, r->model, images, r->conditions, step, err);
}

mar_status mar_runner_plan_learn(mar_runner *r, int tokens, mar_err *err)
{
    return r->model->base.m->kern->core->linear_plan(r->model->base.m->kern, r->model->z_proj, tokens, err);
}

mar_status mar_runner_plan_head(mar_runner *r, int tokens, mar_err *err)
{
    return diff_chain_plan(&r->chain, tokens, err);
}

void mar_runner_begin(mar_runner *r, int images, const int *label)
{
    kern *k = r->model->base.m->kern;
    for (int i = 0; i < images; i++) {
        r->labels[i] = label[i];
        if (r->conditions == 2) r->labels[images + i] = r->model->base.config.classes;
    }
    r->encoder_s = r->decoder_s = r->head_s = r->encoder_flop = r->decoder_flop = r->head_flop = 0;
    k->core->lap(k, NULL);
    mar_embed_classes(r->model, &r->work, images * r->conditions, r->labels, r->class_rows);
    k->core->lap(k, &r->encoder_s);
}

/* body(arg), on a recording if there is one, with its time added to *seconds. */
static void perform(const mar_runner *r, kern_recording **recording, void (*body)(void *arg), void *arg,
                    double *seconds)
{
    kern *k = r->model->base.m->kern;
    k->core->lap(k, NULL);
    if (recording)
        k->core->replay(k, recording, body, arg);
    else
        body(arg);
    k->core->lap(k, seconds);
}

/* Where the z of a step's token goes: `i` of all `sequences`, `images` of them conditional. */
static int z_row(const mar_step *step, int sequences, int images, int i, int first, int total)
{
    const int s = i / step->predicted, place = i % step->predicted, others = step->predicted - step->detailed;
    if (step->detailed == 0) return s / images * total + first + i % (images * step->predicted);
    return place >= others ? s * step->detailed + place - others : sequences * step->detailed + s * others + place;
}

/* The arguments of the bodies of mar_runner_predict. */
typedef struct {
    mar_runner *r;
    mar_pass pass;
    const mar_step *step;
} prediction;

static void encode(void *arg)
{
    const prediction *p = arg;
    p->r->passes->encode(p->r->passes_state, p->r->model, &p->r->work, &p->pass, p->step);
}

static void decode(void *arg)
{
    const prediction *p = arg;
    p->r->passes->decode(p->r->passes_state, p->r->model, &p->r->work, &p->pass, p->step, p->r->z, p->r->z_index);
}

void mar_runner_predict(mar_runner *r, const mar_batch *batch, const mar_step *step, int first, int total,
                        mar_recordings *recordings)
{
    const int sequences = batch->images * r->conditions;
    const int reads = r->passes->reads(r->passes_state, step);
    prediction p = {.r = r,
                    .step = step,
                    .pass = {.sequences = sequences,
                             .images = batch->images,
                             .known = step->known,
                             .predicted = step->predicted,
                             .order = batch->order,
                             .token_rows = batch->token_rows ? batch->token_rows : r->token_rows,
                             .class_rows = batch->class_rows ? batch->class_rows : r->class_rows}};
    for (int i = 0; i < sequences * step->predicted; i++)
        r->z_index[i] = z_row(step, sequences, batch->images, i, first, total);
    perform(r, recordings ? &recordings->encode : NULL, encode, &p, &r->encoder_s);
    perform(r, recordings && !reads ? &recordings->decode : NULL, decode, &p, &r->decoder_s);
    r->encoder_flop += r->passes->encode_flop(r->passes_state, r->model, batch->images, r->conditions, step);
    r->decoder_flop += r->passes->decode_flop(r->passes_state, r->model, batch->images, r->conditions, step);
}

typedef struct {
    mar_runner *r;
    const float *tokens;
    int n;
    const int *image, *position;
} learning;

static void learn(void *arg)
{
    const learning *l = arg;
    mar_embed_tokens(l->r->model, &l->r->work, l->tokens, l->n, l->image, l->position, l->r->token_rows);
}

void mar_runner_learn(mar_runner *r, const float *tokens, int n, const int *image, const int *position,
                      kern_recording **recording)
{
    learning l = {r, tokens, n, image, position};
    perform(r, recording, learn, &l, &r->encoder_s);
}

typedef struct {
    mar_runner *r;
    const float *z;
    const mar_draw *d;
    int first, last;
    float *x;
    diff_trace *trace;
} drawing;

static void draw(void *arg)
{
    const drawing *w = arg;
    const mar_draw *d = w->d;
    diff_chain *c = &w->r->chain;
    if (w->first == c->schedule.steps - 1) diff_chain_start(c, d->count, d->seed, d->image, d->position, w->x);
    diff_chain_run(c, w->z, d->count, d->cfg, d->seed, d->image, d->position, w->first, w->last, w->x, w->trace);
}

void mar_runner_draw(mar_runner *r, int row, const mar_draw *d, int first, int last, float *x, diff_trace *trace,
                     kern_recording **recording)
{
    drawing w = {r, r->z + (size_t)row * (size_t)r->model->base.config.width, d, first, last, x, trace};
    perform(r, recording, draw, &w, &r->head_s);
    r->head_flop += diff_chain_flop(&r->chain, d->count) * (first - last + 1) / r->chain.schedule.steps;
}
