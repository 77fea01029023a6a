/* Speculation across tokens (mar/accel/spec.h). */
#include "mar/accel/spec.h"

#include "mar/core/params.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Returns the steps that the target makes alone. The released code makes step <= prefill * num_iter alone: the same
 * number, or one more if the product is an integer. It differs in two more ways. Its blocks end at multiples of gamma,
 * so the first is shorter. And it verifies a whole block with the guidance of the block's last step, not each token
 * with its own. */
static int prefill_steps(const mar_params *p)
{
    return (int)ceil((double)p->prefill * p->num_iter - 1e-4); /* 0.15f * 20 is not more than 3 */
}

/* Returns the method's rule. Its parameters are the options', or the defaults. */
static kern_gaussian_rule rule_of(const spec_method *m, const mar_params *p)
{
    double parameter[SPEC_PARAMETERS_MAX];
    for (int i = 0; m->parameters[i].name; i++) {
        const mar_param *option = mar_param_of_method(m->name, m->parameters[i].name);
        parameter[i] = option ? (double)*(const float *)mar_param_field(option, p) : m->parameters[i].value;
    }
    return m->rule(parameter);
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static int in_full(const mar_speculation *sp)
{
    const mar_masked *g = sp->g;
    return g->params.context == MAR_CONTEXT_FULL;
}

static int block_length(const mar_speculation *sp, int begin)
{
    const mar_masked *g = sp->g;
    const int left = g->params.num_iter - begin;
    return g->params.gamma < left ? g->params.gamma : left;
}

static size_t block_rows(const mar_speculation *sp)
{
    const mar_masked *g = sp->g;
    return (size_t)g->max_images * (size_t)g->max_tokens;
}

static mar_status states_allocate_host(mar_speculation *sp, mar_err *err)
{
    const mar_masked *g = sp->g;
    const size_t images = (size_t)g->max_images, rows = block_rows(sp);
    sp->begin = calloc(3 * images, sizeof *sp->begin);
    sp->row_step = calloc(rows, sizeof *sp->row_step);
    sp->row_status = calloc(rows, sizeof *sp->row_status);
    sp->row = calloc(rows, sizeof *sp->row);
    sp->slot = calloc(rows, sizeof *sp->slot);
    sp->position = calloc(rows, sizeof *sp->position);
    sp->seed = calloc(rows, sizeof *sp->seed);
    sp->image = calloc(rows, sizeof *sp->image);
    sp->cfg = calloc(rows, sizeof *sp->cfg);
    if (!sp->begin || !sp->row_step || !sp->row_status || !sp->row || !sp->slot || !sp->position || !sp->seed ||
        !sp->image || !sp->cfg)
        return err_set(err, MAR_ENOMEM, "out of memory for blocks of %zu tokens", rows);
    sp->length = sp->begin + images;
    sp->first = sp->length + images;
    return MAR_OK;
}

static size_t states_lay_out(void *state, char *base)
{
    mar_speculation *sp = state;
    size_t used = spec_continuous_lay_out(&sp->block, base);
    spec_distributions_lay_out(&sp->step_q, block_rows(sp), (size_t)sp->block.channels, base, &used);
    return used;
}

static void write_effect(const void *state, mar_effect *out)
{
    const mar_speculation *sp = state;
    const mar_masked *g = sp->g;
    const int steps = g->params.num_iter, left = steps - sp->prefill;
    const int coarse = sp->prefill + (left + g->params.gamma - 1) / g->params.gamma;
    const char *name = sp->block.method->name;
    char *text = out->how;
    const size_t size = sizeof out->how;
    out->exact = left == 0 || (sp->block.method->exact && !in_full(sp) && coarse == steps);
    if (left == 0)
        snprintf(text, size, "by the model alone, which with prefill %g makes every step", (double)g->params.prefill);
    else if (sp->block.method->exact && in_full(sp))
        snprintf(text, size, "criterion %s, context full: an accepted token is not quite the one later contexts saw",
                 name);
    else if (sp->block.method->exact && coarse < steps)
        snprintf(text, size,
                 "criterion %s, context prefix: each block is drawn in the context before it, %d in place of %d "
                 "contexts",
                 name, coarse, steps);
    else if (sp->block.method->exact)
        snprintf(text, size, "by criterion %s, context prefix with one step a block", name);
    else if (in_full(sp))
        snprintf(text, size, "criterion %s (%s), context full", name, sp->block.method->guarantee);
    else
        snprintf(text, size, "criterion %s (%s), context prefix, %d in place of %d contexts", name,
                 sp->block.method->guarantee, coarse, steps);
}

static void states_destroy(void *state)
{
    mar_speculation *sp = state;
    void *host[] = {sp->begin,    sp->row_step, sp->row_status, sp->row, sp->slot,
                    sp->position, sp->seed,     sp->image,      sp->cfg, sp};
    spec_continuous_free(&sp->block);
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) free(host[i]);
}

static mar_status states_create(mar_masked *g, void **state, mar_err *err)
{
    mar_speculation *sp = *state = calloc(1, sizeof *sp);
    if (!sp) return err_set(err, MAR_ENOMEM, "out of memory");
    sp->g = g;
    sp->draft = mar_masked_state(g, &mar_accel_draft);
    sp->prefill = prefill_steps(&g->params);
    const spec_method *method = spec_method_find(g->params.spec);
    const kern_gaussian_rule rule = rule_of(method, &g->params);
    const mar_status status = spec_continuous_create(g->k, method, &rule, g->model->base.config.token_dim,
                                                     g->max_images * g->max_tokens, g->max_images, &sp->block, err);
    return status == MAR_OK ? states_allocate_host(sp, err) : status;
}

/* Returns the block that begins at a step, as one step of the target. */
static mar_step whole_block(const mar_speculation *sp, int begin)
{
    const mar_masked *g = sp->g;
    const mar_step *last = &g->steps[begin + block_length(sp, begin) - 1];
    const int known = g->steps[begin].known;
    return (mar_step){
        .known = known, .predicted = last->known + last->predicted - known, .cfg_branches = last->cfg_branches};
}

static mar_status plan_prefix(mar_speculation *sp, int n, mar_err *err)
{
    mar_masked *g = sp->g;
    mar_status status = MAR_OK;
    for (int i = sp->prefill; status == MAR_OK && i < g->params.num_iter; i++) {
        status = mar_runner_plan(&sp->draft->runner, n, &g->steps[i], err);
        if (status == MAR_OK) status = diff_chain_plan(&sp->draft->runner.chain, n * g->steps[i].predicted, err);
    }
    for (int i = sp->prefill; status == MAR_OK && i < g->params.num_iter; i += g->params.gamma) {
        const mar_step block = whole_block(sp, i);
        status = mar_runner_plan(&g->target, n, &block, err);
        if (status == MAR_OK) status = diff_chain_plan(&g->target.chain, n * block.predicted, err);
        if (status == MAR_OK)
            status = masked_runner_plan_known_tokens(&sp->draft->runner.net, n * block.predicted, err);
    }
    return status;
}

/* In context full images advance at their own pace. So passes are of one image. The number of tokens drawn, or made
 * known, at once depends on what is accepted. So the largest are planned. */
static mar_status plan_full(mar_speculation *sp, int images, mar_err *err)
{
    mar_masked *g = sp->g;
    const int rows = (int)block_rows(sp);
    mar_status status = diff_chain_plan(&g->target.chain, rows, err);
    if (status == MAR_OK) status = masked_runner_plan_known_tokens(&g->target.net, rows, err);
    if (status == MAR_OK) status = masked_runner_plan_known_tokens(&sp->draft->runner.net, rows, err);
    for (int i = sp->prefill; status == MAR_OK && i < g->params.num_iter; i++) {
        status = mar_runner_plan(&sp->draft->runner, 1, &g->steps[i], err);
        if (status == MAR_OK) status = mar_runner_plan(&g->target, 1, &g->steps[i], err);
        if (status == MAR_OK) status = diff_chain_plan(&sp->draft->runner.chain, images * g->steps[i].predicted, err);
    }
    return status;
}

static mar_status states_plan(void *state, int images, mar_err *err)
{
    mar_speculation *sp = state;
    return in_full(sp) ? plan_full(sp, images, err) : plan_prefix(sp, images, err);
}

/* --- the rows of a block ------------------------------------------------------------------------------------------ */

/* Returns the first row of step j of an image's block. Later steps come first. */
static int first_row(const mar_speculation *sp, int image, int j)
{
    const mar_masked *g = sp->g;
    const mar_step *step = &g->steps[sp->begin[image] + j], *last = &g->steps[sp->begin[image] + sp->length[image] - 1];
    return sp->first[image] + last->known + last->predicted - step->known - step->predicted;
}

static void list_image(mar_speculation *sp, int image)
{
    mar_masked *g = sp->g;
    for (int j = 0; j < sp->length[image]; j++) {
        const mar_step *step = &g->steps[sp->begin[image] + j];
        const int *position = g->order[image] + g->model->base.config.seq_len - step->known - step->predicted;
        const int first = first_row(sp, image, j);
        for (int r = 0; r < step->predicted; r++) {
            g->row_slot[first + r] = image;
            g->row_seed[first + r] = g->slots.slot[image].seed;
            g->row_image[first + r] = g->slots.slot[image].number;
            g->row_position[first + r] = position[r];
            g->row_cfg[first + r] = step->cfg;
            sp->row_step[first + r] = sp->begin[image] + j;
            sp->row_status[first + r] = MAR_TOKEN_TARGET;
        }
    }
}

static void list_block(mar_speculation *sp)
{
    mar_masked *g = sp->g;
    const int starts = g->step == sp->prefill; /* no block has been made yet */
    sp->rows = 0;
    for (int i = 0; i < g->images; i++) {
        if (starts) sp->begin[i] = g->step;
        sp->length[i] = block_length(sp, sp->begin[i]);
        sp->first[i] = sp->rows;
        if (!sp->length[i]) continue;
        list_image(sp, i);
        sp->rows += whole_block(sp, sp->begin[i]).predicted;
    }
}

/* Lists the rows of step j of all blocks that have one. Returns their number. */
static int list_step(mar_speculation *sp, int j)
{
    const mar_masked *g = sp->g;
    int n = 0;
    for (int i = 0; i < g->images; i++) {
        if (j >= sp->length[i]) continue;
        const int first = first_row(sp, i, j), count = g->steps[sp->begin[i] + j].predicted;
        for (int r = first; r < first + count; r++, n++) {
            sp->row[n] = r;
            sp->slot[n] = g->row_slot[r];
            sp->seed[n] = g->params.align ? g->row_seed[r] : ~g->row_seed[r]; /* aligned: the target's noise */
            sp->image[n] = g->row_image[r];
            sp->position[n] = g->row_position[r];
            sp->cfg[n] = g->row_cfg[r];
        }
    }
    return n;
}

/* --- drafting ----------------------------------------------------------------------------------------------------- */

/* Returns the recordings of step `at`; NULL in context full, where no two rounds are alike, and for other numbers of
 * images than planned. */
static mar_recordings *recordings_at(const mar_speculation *sp, mar_recordings *recordings, int at)
{
    return in_full(sp) ? NULL : mar_masked_recordings(sp->g, recordings, at);
}

/* Runs the pass of one image of the batch alone. */
static void predict_image(mar_speculation *sp, mar_runner *r, int image, const mar_step *step, int first, int total)
{
    const mar_masked *g = sp->g;
    const mar_batch batch = {.images = 1, .order = (const int *const *)g->order + image, .first = image};
    mar_runner_predict(r, &batch, step, first, total, NULL);
}

/* Computes the draft's z of step j of all blocks, n tokens. */
static void predict_step(mar_speculation *sp, int j, int n)
{
    const mar_masked *g = sp->g;
    if (!in_full(sp)) {
        const mar_batch batch = mar_masked_batch(g);
        mar_runner_predict(&sp->draft->runner, &batch, &g->steps[g->step + j], 0, n,
                           recordings_at(sp, sp->draft->recordings, g->step + j));
        return;
    }
    for (int i = 0, at = 0; i < g->images; i++) {
        if (j >= sp->length[i]) continue;
        const mar_step *step = &g->steps[sp->begin[i] + j];
        predict_image(sp, &sp->draft->runner, i, step, at, n);
        at += step->predicted;
    }
}

/* Copies the n rows listed in `row` to their places in the block. */
static void scatter(mar_speculation *sp, const float *from, int n, float *to)
{
    const mar_masked *g = sp->g;
    kern_queue *k = g->k;
    k->core->copy_rows(k, to, sp->row, from, NULL, NULL, NULL, n, g->model->base.config.token_dim);
}

static void scatter_distributions(mar_speculation *sp, int n)
{
    const mar_masked *g = sp->g;
    kern_queue *k = g->k;
    scatter(sp, sp->step_q.mean, n, sp->block.q.mean);
    scatter(sp, sp->step_q.log_std, n, sp->block.q.log_std);
    if (spec_continuous_needs_path(&sp->block)) /* a double is copied as two floats */
        k->core->copy_rows(k, (float *)sp->block.q.path, sp->row, (const float *)sp->step_q.path, NULL, NULL, NULL, n,
                           2);
}

static void draft_step(mar_speculation *sp, int j)
{
    mar_masked *g = sp->g;
    const int n = list_step(sp, j), top = sp->draft->runner.chain.schedule.steps - 1;
    const mar_draw draw = {.count = n, .seed = sp->seed, .image = sp->image, .position = sp->position, .cfg = sp->cfg};
    diff_trace trace = spec_continuous_trace(&sp->block, &sp->step_q);
    mar_recordings *t = recordings_at(sp, sp->draft->recordings, g->step + j);
    predict_step(sp, j, n);
    mar_runner_draw(&sp->draft->runner, 0, &draw, top, sp->block.index, g->sampled, &trace, t ? &t->draw[0] : NULL);
    scatter_distributions(sp, n);
    scatter(sp, g->sampled, n, sp->block.state);
    if (sp->block.index > 0)
        mar_runner_draw(&sp->draft->runner, 0, &draw, sp->block.index - 1, 0, g->sampled, NULL, t ? &t->draw[1] : NULL);
    scatter(sp, g->sampled, n, sp->block.token);
    g->stats.draft_calls += top + 1;
    masked_runner_add_known_tokens(&sp->draft->runner.net, g->sampled, n, sp->slot, sp->position,
                                   t ? &t->net.known_tokens : NULL);
    if (in_full(sp)) masked_runner_add_known_tokens(&g->target.net, g->sampled, n, sp->slot, sp->position, NULL);
}

/* --- verification ------------------------------------------------------------------------------------------------- */

/* Computes the target's z of all rows. */
static void predict_block(mar_speculation *sp)
{
    mar_masked *g = sp->g;
    if (!in_full(sp)) {
        const mar_batch batch = mar_masked_batch(g);
        const mar_step block = whole_block(sp, g->step);
        mar_runner_predict(&g->target, &batch, &block, 0, sp->rows, recordings_at(sp, g->recordings, g->step));
        g->stats.passes++;
        g->stats.contexts += g->images;
        return;
    }
    for (int i = 0; i < g->images; i++) {
        for (int j = 0; j < sp->length[i]; j++)
            predict_image(sp, &g->target, i, &g->steps[sp->begin[i] + j], first_row(sp, i, j), sp->rows);
        g->stats.passes += sp->length[i];
        g->stats.contexts += sp->length[i];
    }
}

/* Returns the rows of the current block, as its verifier has them. */
static spec_block_rows states_rows_of(const mar_speculation *sp)
{
    const mar_masked *g = sp->g;
    return (spec_block_rows){.rows = sp->rows,
                             .groups = g->images,
                             .seed = g->row_seed,
                             .image = g->row_image,
                             .position = g->row_position,
                             .group = g->row_slot,
                             .order = sp->row_step};
}

static mar_draw block_draw(const mar_speculation *sp)
{
    mar_masked *g = sp->g;
    return (mar_draw){
        .count = sp->rows, .seed = g->row_seed, .image = g->row_image, .position = g->row_position, .cfg = g->row_cfg};
}

/* Runs every row through the target's head down to the index, and records the distributions there. */
static void trace_block(mar_speculation *sp)
{
    mar_masked *g = sp->g;
    const mar_draw draw = block_draw(sp);
    diff_trace trace = spec_continuous_trace(&sp->block, &sp->block.p);
    mar_recordings *t = recordings_at(sp, g->recordings, g->step);
    mar_runner_draw(&g->target, 0, &draw, g->target.chain.schedule.steps - 1, sp->block.index, g->sampled, &trace,
                    t ? &t->draw[0] : NULL);
}

/* Completes the verified states to tokens, in g->sampled. */
static void finish_tokens(mar_speculation *sp)
{
    mar_masked *g = sp->g;
    kern_queue *k = g->k;
    const mar_draw draw = block_draw(sp);
    const int channels = g->model->base.config.token_dim;
    mar_recordings *t = recordings_at(sp, g->recordings, g->step);
    k->core->copy_rows(k, g->sampled, NULL, sp->block.state, NULL, NULL, NULL, sp->rows, channels);
    if (sp->block.index > 0)
        mar_runner_draw(&g->target, 0, &draw, sp->block.index - 1, 0, g->sampled, NULL, t ? &t->draw[1] : NULL);
    const spec_block_rows rows = states_rows_of(sp);
    spec_continuous_compare(&sp->block, g->sampled, &rows);
}

/* Advances every image past its last step that counts: in context full the first with a replaced token. */
static void advance_images(mar_speculation *sp, const spec_verdicts *v)
{
    mar_masked *g = sp->g;
    for (int i = 0; i < g->images; i++) {
        const int left = v->first_replaced[i] - sp->begin[i];
        const int reached = in_full(sp) && left < sp->length[i] ? left + 1 : sp->length[i];
        g->stats.rounds += sp->length[i] > 0;
        g->stats.round_steps += reached;
        sp->begin[i] += reached;
    }
}

/* Reads the block's verdicts. Rows that do not count keep the status TARGET. */
static mar_status read_verdicts(mar_speculation *sp, mar_err *err)
{
    mar_masked *g = sp->g;
    const spec_block_rows rows = states_rows_of(sp);
    spec_verdicts v;
    const mar_status status = spec_continuous_read(&sp->block, &rows, &v, err);
    if (status != MAR_OK) return status;
    if (g->step == sp->prefill) sp->block.shift_sum = 0;
    advance_images(sp, &v);
    for (int r = 0; r < sp->rows; r++) {
        if (sp->row_step[r] >= sp->begin[g->row_slot[r]]) continue;
        const int replaced = spec_continuous_count(&sp->block, &v, r, &g->stats);
        sp->row_status[r] = replaced ? MAR_TOKEN_REPLACED : MAR_TOKEN_ACCEPTED;
    }
    return MAR_OK;
}

/* Later contexts saw the drafts' tokens. In context full accepted_shift is the error of criteria exact to p. */
static void states_stats(const void *state, mar_stats *sum)
{
    spec_continuous_stats(&((const mar_speculation *)state)->block, sum);
}

/* Writes the reached tokens to their places, and makes them known to both models. */
static void keep(mar_speculation *sp)
{
    mar_masked *g = sp->g;
    kern_queue *k = g->k;
    const mar_model_config *c = &g->model->base.config;
    int n = 0;
    for (int r = 0; r < sp->rows; r++) {
        if (sp->row_status[r] == MAR_TOKEN_TARGET) continue;
        sp->row[n] = r;
        sp->slot[n] = g->row_slot[r];
        sp->position[n] = g->row_position[r];
        const int place = g->row_place[n] = sp->slot[n] * c->seq_len + sp->position[n];
        g->slots.token_status[place] = sp->row_status[r];
        g->slots.ar_step[place] = sp->row_step[r];
        n++;
    }
    float *tokens = sp->step_q.mean; /* its contents have been read */
    k->core->copy_rows(k, tokens, NULL, g->sampled, sp->row, NULL, NULL, n, c->token_dim);
    mar_masked_write_tokens(g, tokens, n);
    masked_runner_add_known_tokens(&g->target.net, tokens, n, sp->slot, sp->position, NULL);
    masked_runner_add_known_tokens(&sp->draft->runner.net, tokens, n, sp->slot, sp->position, NULL);
    g->stats.head_calls += (double)n * g->target.chain.schedule.steps;
}

/* --- the round ---------------------------------------------------------------------------------------------------- */

static mar_status run_round(mar_speculation *sp, mar_err *err)
{
    mar_masked *g = sp->g;
    const int steps = g->target.chain.schedule.steps;
    int longest = 0;
    list_block(sp);
    for (int i = 0; i < g->images; i++)
        if (sp->length[i] > longest) longest = sp->length[i];
    for (int j = 0; j < longest; j++) draft_step(sp, j);
    predict_block(sp);
    trace_block(sp);
    const spec_block_rows rows = states_rows_of(sp);
    spec_continuous_verify(&sp->block, &rows, &g->stats.verify_s);
    finish_tokens(sp);
    const mar_status status = read_verdicts(sp, err);
    if (status != MAR_OK) return status;
    keep(sp);
    g->stats.head_batched += steps;
    g->stats.head_rows += (double)sp->rows * steps;
    if (steps > g->stats.head_calls_max) g->stats.head_calls_max = steps;
    g->step = sp->begin[0];
    for (int i = 1; i < g->images; i++)
        if (sp->begin[i] < g->step) g->step = sp->begin[i];
    return MAR_OK;
}

static int block_steps(const mar_params *p)
{
    return p->gamma;
}

static mar_status states_step(void *state, mar_err *err)
{
    mar_speculation *sp = state;
    if (sp->g->step >= sp->prefill) return run_round(sp, err);
    mar_masked_step(sp->g);
    return MAR_OK;
}

static mar_status states_check(const mar_model *model, mar_params *p, mar_err *err)
{
    (void)model, (void)err;
    if (p->gamma > p->num_iter) p->gamma = p->num_iter; /* the rest of the image */
    return MAR_OK;
}

static int states_is_on(const mar_params *p)
{
    const spec_method *m = p->spec ? spec_method_find(p->spec) : NULL;
    return m && m->rule;
}

static void states_resolve(mar_params *p)
{
    if (p->gamma == 0 && p->spec && states_is_on(p)) p->gamma = MAR_GAMMA_AUTO;
}

static const mar_masked_hooks spec_hooks = {
    .create = states_create,
    .destroy = states_destroy,
    .lay_out = states_lay_out,
    .plan = states_plan,
    .step = states_step,
    .stats = states_stats,
    .effect = write_effect,
};

const mar_accel mar_accel_spec = {
    .name = "spec",
    .together = 1,
    .changes = MAR_STAGE_STATES,
    .needs = MAR_STAGE_CHAIN | MAR_STAGE_COUNTS,
    .asks_for = "draft",
    .tokens = "continuous",
    .is_on = states_is_on,
    .resolve = states_resolve,
    .check = states_check,
    .block_steps = block_steps,
    .masked = &spec_hooks,
};
