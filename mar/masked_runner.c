#include "mar/masked_runner.h"

#include "families/families.h"

#include <math.h>
#include <stdlib.h>

/* --- the model ---------------------------------------------------------------------------------------------------- */

static masked_shape masked_shape_of(const mar_model_config *c)
{
    return (masked_shape){.width = c->width,
                          .encoder_depth = c->encoder_depth,
                          .decoder_depth = c->decoder_depth,
                          .heads = c->heads,
                          .decoder_heads = c->decoder_heads,
                          .mlp_hidden = c->mlp_hidden,
                          .buffer = c->buffer,
                          .seq_len = c->seq_len,
                          .columns = c->grid_width,
                          .token_dim = c->token_dim,
                          .classes = c->classes};
}

static mar_status load_parts(mar_masked_model *model, kern_queue *k, const wt_file *f, const family_facts *facts,
                             mar_err *err)
{
    const mar_model_config *c = &model->base.config;
    masked_shape shape = masked_shape_of(c);
    shape.side = facts->side;
    const diff_head_shape head = {
        .width = c->head_width, .depth = c->head_depth, .channels = c->token_dim, .z_dim = c->width};
    const mar *m = model->base.m;
    mar_status status = masked_net_load(k, f, &shape, &model->net, err);
    if (status == MAR_OK && facts->shape.width)
        status = between_model_load(k, f, &facts->shape, shape.buffer, &model->between, err);
    return status == MAR_OK ? diff_head_load(k, f, &head, m->head_dtype, m->int8_below, &model->head, err) : status;
}

mar_status mar_masked_load(mar *m, kern_queue *k, const wt_file *f, const family_facts *facts, mar_model **out,
                           mar_err *err)
{
    mar_masked_model *model = calloc(1, sizeof *model);
    *out = NULL;
    if (!model) return err_set(err, MAR_ENOMEM, "out of memory");
    model->base.m = m;
    model->base.config = facts->config;
    model->process = facts->process;
    const mar_status status = load_parts(model, k, f, facts, err);
    if (status == MAR_OK) {
        if (model->head.dtype != m->head_dtype) model->base.config.warning = diff_head_f32_warning;
        *out = &model->base;
    } else {
        k->core->finish(k); /* waits for uploads that have begun */
        mar_masked_unload(&model->base);
    }
    return status;
}

void mar_masked_unload(mar_model *base)
{
    mar_masked_model *model = (mar_masked_model *)base;
    if (!model) return;
    masked_net_free(base->m->device, &model->net);
    between_model_free(base->m->device, &model->between);
    diff_head_free(&model->head);
    free(model);
}

/* --- the steps ---------------------------------------------------------------------------------------------------- */

static const double pi = 3.14159265358979323846;

int mar_cfg_branches(float cfg)
{
    return cfg == 1.0f ? 1 : 2;
}

float mar_step_scale(const mar_step *step, float cfg)
{
    return step->share == 1 ? cfg : 1.0f + (cfg - 1.0f) * step->share;
}

void mar_steps_plan_part(int n, int known, int until, int seq_len, float cfg, mar_cfg_schedule schedule,
                         mar_step *steps)
{
    const int last = seq_len - until, first = seq_len - known; /* masked tokens go from first down to last */
    int masked = first;
    for (int i = 0; i < n; i++) {
        /* Cosine schedule of MaskGIT. Predicts at least one token, and leaves at least one for the next step. */
        int after = last + (int)floor((first - last) * cos(pi / 2 * (i + 1) / n));
        if (after > masked - 1) after = masked - 1;
        if (after < last + 1) after = last + 1;
        const int predicted = i == n - 1 ? masked - last : masked - after;
        /* The last step too is guided as if one token were left, as in the official code. */
        const float share = (float)(seq_len - after) / (float)seq_len;
        steps[i] = (mar_step){
            .known = seq_len - masked, .predicted = predicted, .share = schedule == MAR_CFG_CONSTANT ? 1 : share};
        steps[i].cfg = mar_step_scale(&steps[i], cfg);
        steps[i].cfg_branches = mar_cfg_branches(steps[i].cfg);
        masked = after;
    }
}

void mar_steps_plan(int num_iter, int seq_len, float cfg, mar_cfg_schedule schedule, mar_step *steps)
{
    mar_steps_plan_part(num_iter, 0, seq_len, seq_len, cfg, schedule, steps);
}

/* --- the runner --------------------------------------------------------------------------------------------------- */

/* Returns a step's passes for this many images. */
static masked_pass pass_of(int images, const mar_step *step)
{
    return (masked_pass){.sequences = images * step->cfg_branches,
                         .images = images,
                         .known = step->known,
                         .predicted = step->predicted,
                         .step = step->number,
                         .reads_back = step->reads_back};
}

/* Returns the row of z of predicted row i, of all `sequences`, of which `images` are conditional. */
static int z_row(const mar_step *step, int sequences, int images, int i, int first, int total)
{
    const int s = i / step->predicted, place = i % step->predicted, others = step->predicted - step->detailed;
    if (step->detailed == 0) return s / images * total + first + i % (images * step->predicted);
    return place >= others ? s * step->detailed + place - others : sequences * step->detailed + s * others + place;
}

void mar_runner_predict(mar_runner *r, const mar_batch *batch, const mar_step *step, int first, int total,
                        mar_recordings *recordings)
{
    masked_pass pass = pass_of(batch->images, step);
    pass.order = batch->order;
    pass.first = batch->first;
    pass.embedded = &r->net.embedded;
    for (int i = 0; i < pass.sequences * step->predicted; i++)
        r->net.z_index[i] = z_row(step, pass.sequences, batch->images, i, first, total);
    masked_runner_run(&r->net, &pass, recordings ? &recordings->net : NULL);
}

/* Argument of draw_chain. */
typedef struct {
    mar_runner *r;
    const float *z;
    const mar_draw *d;
    int first, last;
    float *x;
    diff_trace *trace;
} mar_drawing;

static void draw_chain(void *arg)
{
    const mar_drawing *w = arg;
    const mar_draw *d = w->d;
    diff_chain *c = &w->r->chain;
    if (w->first == c->schedule.steps - 1) diff_chain_start(c, d->count, d->seed, d->image, d->position, w->x);
    diff_chain_run(c, w->z, d->count, d->cfg, d->seed, d->image, d->position, w->first, w->last, w->x, w->trace);
}

void mar_runner_draw(mar_runner *r, int row, const mar_draw *d, int first, int last, float *x, diff_trace *trace,
                     kern_recording **recording)
{
    mar_drawing w = {r, r->net.z + (size_t)row * (size_t)r->model->net.shape.width, d, first, last, x, trace};
    kern_run_recorded(r->net.work.k, r->chain.part, recording, draw_chain, &w, &r->head_s);
    r->head_flop += diff_chain_flop(&r->chain, d->count) * (first - last + 1) / r->chain.schedule.steps;
}

void mar_runner_reset(mar_runner *r)
{
    masked_runner_reset(&r->net);
    if (r->between) between_reset(r->between);
    r->head_s = r->head_flop = 0;
}

void mar_runner_set_prompts(mar_runner *r, const int *slot, const mar_image *images, int n)
{
    kern_queue *k = r->net.work.k;
    if (!r->between) return;
    k->watch.part = r->net.part;
    k->core->timer_mark(k, NULL);
    for (int i = 0; i < n; i++) {
        if (images[i].features) between_set_prompt(r->between, slot[i], images[i].features, images[i].mask);
        between_set_negative(r->between, slot[i], images[i].negative, images[i].negative_mask);
    }
    k->core->timer_mark(k, &r->net.decoder_s);
}

void mar_runner_begin(mar_runner *r, int images, const int *label)
{
    mar_runner_reset(r);
    masked_runner_admit(&r->net, images, NULL, label);
}

size_t mar_runner_lay_out(mar_runner *r, char *base)
{
    size_t used = masked_runner_lay_out(&r->net, base);
    if (r->between) used += between_lay_out(r->between, base ? base + used : NULL);
    return used + diff_chain_lay_out(&r->chain, base ? base + used : NULL);
}

mar_status mar_runner_create(kern_queue *k, const mar_masked_model *model, int max_images, int cfg_branches,
                             int max_tokens, const diff_spec *specs, int n, float temperature, mar_runner *out,
                             mar_err *err)
{
    *out = (mar_runner){0};
    mar_status status = diff_chain_create_for(k, &model->head, specs, n, temperature, max_images * max_tokens,
                                              cfg_branches == 2, &out->chain, err);
    if (status != MAR_OK) return status; /* nothing is owned yet */
    out->model = model;
    status = masked_runner_create(k, &model->net, max_images, cfg_branches, max_tokens, &out->net, err);
    if (status == MAR_OK && model->between.language) {
        status = between_create(k, &model->between, max_images, &out->between, err);
        out->net.work.between = status == MAR_OK ? between_of(out->between) : NULL;
    }
    if (status != MAR_OK) mar_runner_free(out);
    return status;
}

void mar_runner_free(mar_runner *r)
{
    if (!r->model) return;
    diff_chain_free(&r->chain);
    between_free(r->between);
    masked_runner_free(&r->net);
    *r = (mar_runner){0};
}

void mar_recordings_free(kern_queue *k, mar_recordings *t)
{
    masked_recordings_free(k, &t->net);
    for (int i = 0; i < 2; i++) k->core->recording_free(k, t->draw[i]);
    *t = (mar_recordings){0};
}

mar_status mar_runner_plan(mar_runner *r, int images, const mar_step *step, mar_err *err)
{
    const masked_pass pass = pass_of(images, step);
    const mar_status status = masked_runner_plan_known_tokens(&r->net, images * step->predicted, err);
    return status == MAR_OK ? masked_runner_plan(&r->net, &pass, err) : status;
}
