#include "mar/speculate.h"

#include "base/arena.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct mar_speculation speculation;

/* --- parameters --- */

/* The released code makes step <= prefill * num_iter alone: the same number, or one more if the product is an integer.
 * Two more differences: its blocks end at multiples of gamma, so that the first is shorter, and it verifies a whole
 * block with the guidance of its last step instead of each token with that of its own. */
static int prefill_steps(const mar_params *p)
{
    return (int)ceil((double)p->prefill * p->num_iter - 1e-4); /* 0.15f * 20 is not more than 3 */
}

static int is_continuous(const spec_method *m)
{
    return (m->tokens & SPEC_CONTINUOUS) != 0;
}

static mar_status unknown_method(const char *name, mar_err *err)
{
    char list[256];
    size_t used = 0;
    for (const spec_method *const *m = spec_methods(); *m; m++)
        if (is_continuous(*m) && used < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", (*m)->name);
    return err_set(err, MAR_EARG, "spec %s: expected a method for continuous tokens: %s", name, list);
}

/* A method's parameters are its defaults but for the one that a session has an option for. */
static mar_status method_parameters(const spec_method *m, const mar_params *p, double *parameter, mar_err *err)
{
    for (int i = 0; m->parameters[i].name; i++) {
        const spec_parameter *d = &m->parameters[i];
        parameter[i] = d->value;
        if (strcmp(d->name, "inner_temperature") != 0) continue;
        parameter[i] = (double)p->inner_temperature;
        if (!(parameter[i] >= d->min && parameter[i] <= d->max))
            return err_set(err, MAR_EARG, "inner_temperature %g: expected %g..%g", parameter[i], d->min, d->max);
    }
    return MAR_OK;
}

static mar_status check_draft(const mar_model *model, const mar_model *draft, mar_err *err)
{
    const mar_model_config *t = &model->config, *d = &draft->config;
    if (draft->m != model->m) return err_set(err, MAR_EARG, "draft and model belong to different handles");
    if (d->seq_len != t->seq_len || d->token_dim != t->token_dim)
        return err_set(err, MAR_EMODEL, "the draft makes %d tokens of %d channels, expected the model's %d of %d",
                       d->seq_len, d->token_dim, t->seq_len, t->token_dim);
    if (d->classes != t->classes)
        return err_set(err, MAR_EMODEL, "the draft knows %d classes, expected the model's %d", d->classes, t->classes);
    return MAR_OK;
}

mar_status mar_speculation_check(const mar_model *model, const mar_params *p, mar_err *err)
{
    double parameter[SPEC_PARAMETERS_MAX];
    if (p->spec && !p->draft) return err_set(err, MAR_EARG, "spec %s: expected a draft model", p->spec);
    const mar_status status = p->draft ? check_draft(model, p->draft, err) : MAR_OK;
    if (status != MAR_OK || !p->spec) return status;
    const spec_method *method = spec_method_find(p->spec);
    if (!method || !is_continuous(method)) return unknown_method(p->spec, err);
    if (p->gamma < 1) return err_set(err, MAR_EARG, "gamma %d: expected 1 or more autoregressive steps", p->gamma);
    if (!(p->prefill >= 0 && p->prefill <= 1))
        return err_set(err, MAR_EARG, "prefill %g: expected 0..1", (double)p->prefill);
    if (p->context != MAR_CONTEXT_PREFIX && p->context != MAR_CONTEXT_FULL)
        return err_set(err, MAR_EARG, "context %d: expected prefix or full", (int)p->context);
    return method_parameters(method, p, parameter, err);
}

/* --- memory --- */

static int in_full(const mar_session *s)
{
    return s->params.context == MAR_CONTEXT_FULL;
}

static int block_length(const mar_session *s, int begin)
{
    const int left = s->params.num_iter - begin;
    return s->params.gamma < left ? s->params.gamma : left;
}

static int step_tokens(const mar_session *s)
{
    int most = 0;
    for (int i = 0; i < s->params.num_iter; i++)
        if (s->steps[i].predicted > most) most = s->steps[i].predicted;
    return most;
}

static size_t block_rows(const mar_session *s)
{
    return (size_t)s->max_images * (size_t)s->max_tokens;
}

static size_t class_row_floats(const mar_session *s)
{
    const mar_model_config *t = &s->model->config, *d = &s->params.draft->config;
    const size_t target = (size_t)t->buffer * (size_t)t->width, draft = (size_t)d->buffer * (size_t)d->width;
    return (size_t)s->conditions * (target > draft ? target : draft);
}

/* Words (an int or a float) of the verdicts on so many rows of so many images. */
static size_t verdict_words(const mar_session *s, size_t rows, size_t images)
{
    return rows * (size_t)s->model->config.token_dim + 2 * rows + images;
}

/* The verdicts of the block at hand in memory of the backend or its copy on the host. */
static mar_verdicts verdicts_in(const mar_session *s, float *memory)
{
    const size_t rows = (size_t)s->speculation->rows;
    int *replaced = (int *)(memory + rows * (size_t)s->model->config.token_dim);
    return (mar_verdicts){memory, replaced, replaced + rows, replaced + 2 * rows};
}

static mar_status allocate_host(mar_session *s, speculation *sp, mar_err *err)
{
    const size_t images = (size_t)s->max_images, rows = block_rows(s);
    sp->begin = calloc(3 * images, sizeof *sp->begin);
    sp->row_step = calloc(rows, sizeof *sp->row_step);
    sp->row_fate = calloc(rows, sizeof *sp->row_fate);
    sp->report = calloc(verdict_words(s, rows, images), sizeof *sp->report);
    sp->row = calloc(rows, sizeof *sp->row);
    sp->slot = calloc(rows, sizeof *sp->slot);
    sp->position = calloc(rows, sizeof *sp->position);
    sp->image = calloc(rows, sizeof *sp->image);
    sp->cfg = calloc(rows, sizeof *sp->cfg);
    if (!sp->begin || !sp->row_step || !sp->row_fate || !sp->report || !sp->row || !sp->slot || !sp->position ||
        !sp->image || !sp->cfg)
        return err_set(err, MAR_ENOMEM, "out of memory for blocks of %zu tokens", rows);
    sp->length = sp->begin + images;
    sp->first = sp->length + images;
    return MAR_OK;
}

size_t mar_speculation_lay_out(mar_session *s, char *base)
{
    speculation *sp = s->speculation;
    const size_t rows = block_rows(s), block = rows * (size_t)s->model->config.token_dim;
    mar_laws *laws[] = {&sp->p, &sp->q, &sp->at_hand};
    size_t used = 0;
    for (int i = 0; i < 3; i++) {
        laws[i]->mean = arena_carve(base, &used, block, sizeof(float));
        laws[i]->log_std = arena_carve(base, &used, block, sizeof(float));
        laws[i]->path = arena_carve(base, &used, rows, sizeof(double));
    }
    sp->state = arena_carve(base, &used, block, sizeof(float));
    sp->token = arena_carve(base, &used, block, sizeof(float));
    sp->verdicts = arena_carve(base, &used, verdict_words(s, rows, (size_t)s->max_images), sizeof(float));
    sp->class_rows = arena_carve(base, &used, class_row_floats(s), sizeof(float));
    return used;
}

/* What comes out, in one line (session.h). */
static void describe(mar_session *s, const speculation *sp)
{
    const int steps = s->params.num_iter, left = steps - sp->prefill;
    const int coarse = sp->prefill + (left + s->params.gamma - 1) / s->params.gamma;
    char *text = s->guarantee;
    const size_t size = sizeof s->guarantee;
    const char *name = sp->method->name;
    if (left == 0)
        snprintf(text, size, "exact: the target's law; with prefill %g it makes every step alone",
                 (double)s->params.prefill);
    else if (sp->method->exact && in_full(s))
        snprintf(text, size, "approximate: criterion %s, context full: %s", name,
                 "the target's law but that an accepted token is not quite the one later contexts saw");
    else if (sp->method->exact && coarse < steps)
        snprintf(text, size,
                 "approximate: criterion %s, context prefix: each block is exactly the target's in the context before "
                 "it, %d in place of %d contexts",
                 name, coarse, steps);
    else if (sp->method->exact)
        snprintf(text, size, "exact: criterion %s, context prefix with one step a block: the target's law", name);
    else if (in_full(s))
        snprintf(text, size, "approximate: criterion %s (%s), context full", name, sp->method->guarantee);
    else
        snprintf(text, size, "approximate: criterion %s (%s), context prefix, %d in place of %d", name,
                 sp->method->guarantee, coarse, steps);
}

mar_status mar_speculation_create(mar_session *s, mar_err *err)
{
    speculation *sp = s->speculation = calloc(1, sizeof *sp);
    if (!sp) return err_set(err, MAR_ENOMEM, "out of memory");
    sp->method = spec_method_find(s->params.spec);
    sp->index = sp->method->last_index ? 0 : 1;
    sp->prefill = prefill_steps(&s->params);
    sp->draft_seed = s->params.align ? s->params.seed : ~s->params.seed;
    describe(s, sp);
    mar_status status = method_parameters(sp->method, &s->params, sp->parameter, err);
    if (status == MAR_OK)
        status = mar_runner_create(s->params.draft, s->max_images, s->conditions, step_tokens(s), &s->params, &s->draft,
                                   err);
    return status == MAR_OK ? allocate_host(s, sp, err) : status;
}

void mar_speculation_free(mar_session *s)
{
    speculation *sp = s->speculation;
    if (!sp) return;
    void *host[] = {sp->begin, sp->row_step, sp->row_fate, sp->report, sp->row,
                    sp->slot,  sp->position, sp->image,    sp->cfg,    sp};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) free(host[i]);
    s->speculation = NULL;
}

int mar_speculation_prefill(const mar_session *s)
{
    return s->speculation->prefill;
}

/* The block that begins at a step, as one step of the target. */
static mar_step whole_block(const mar_session *s, int begin)
{
    const mar_step *last = &s->steps[begin + block_length(s, begin) - 1];
    const int known = s->steps[begin].known;
    return (mar_step){.known = known, .predicted = last->known + last->predicted - known};
}

static mar_status plan_prefix(mar_session *s, int n, mar_err *err)
{
    mar_status status = MAR_OK;
    for (int i = s->speculation->prefill; status == MAR_OK && i < s->params.num_iter; i++) {
        status = mar_runner_plan(&s->draft, n, &s->steps[i], err);
        if (status == MAR_OK) status = mar_runner_plan_head(&s->draft, n * s->steps[i].predicted, err);
    }
    for (int i = s->speculation->prefill; status == MAR_OK && i < s->params.num_iter; i += s->params.gamma) {
        const mar_step block = whole_block(s, i);
        status = mar_runner_plan(&s->target, n, &block, err);
        if (status == MAR_OK) status = mar_runner_plan_head(&s->target, n * block.predicted, err);
        if (status == MAR_OK) status = mar_runner_plan_learn(&s->draft, n * block.predicted, err);
    }
    return status;
}

/* In context full images go on at their own pace: passes are of one image, the head's rows are planned by the round. */
enum { PERSISTENT_ROWS = 64 }; /* products of more are made of those of so many and a rest */

static mar_status plan_full(mar_session *s, mar_err *err)
{
    mar_status status = MAR_OK;
    for (int i = s->speculation->prefill; status == MAR_OK && i < s->params.num_iter; i++) {
        status = mar_runner_plan(&s->draft, 1, &s->steps[i], err);
        if (status == MAR_OK) status = mar_runner_plan(&s->target, 1, &s->steps[i], err);
    }
    /* How many tokens are learnt at once depends on what is accepted. */
    for (int rows = 1; status == MAR_OK && rows <= PERSISTENT_ROWS && rows <= (int)block_rows(s); rows++) {
        status = mar_runner_plan_learn(&s->draft, rows, err);
        if (status == MAR_OK) status = mar_runner_plan_learn(&s->target, rows, err);
    }
    return status;
}

mar_status mar_speculation_plan(mar_session *s, int n, mar_err *err)
{
    mar_status status = MAR_OK;
    for (int i = 0; status == MAR_OK && i < s->speculation->prefill; i++)
        status = mar_runner_plan_learn(&s->draft, n * s->steps[i].predicted, err);
    if (status != MAR_OK) return status;
    return in_full(s) ? plan_full(s, err) : plan_prefix(s, n, err);
}

/* --- a block's rows --- */

/* The first row of step j of an image's block: the steps behind it come first. */
static int first_row(const mar_session *s, int image, int j)
{
    const speculation *sp = s->speculation;
    const mar_step *step = &s->steps[sp->begin[image] + j], *last = &s->steps[sp->begin[image] + sp->length[image] - 1];
    return sp->first[image] + last->known + last->predicted - step->known - step->predicted;
}

static void list_image(mar_session *s, int image)
{
    speculation *sp = s->speculation;
    for (int j = 0; j < sp->length[image]; j++) {
        const mar_step *step = &s->steps[sp->begin[image] + j];
        const int *position = s->order[image] + s->model->config.seq_len - step->known - step->predicted;
        const int first = first_row(s, image, j);
        for (int r = 0; r < step->predicted; r++) {
            s->row_slot[first + r] = image;
            s->row_image[first + r] = s->first_image + (uint64_t)image;
            s->row_position[first + r] = position[r];
            s->row_cfg[first + r] = step->cfg;
            sp->row_step[first + r] = sp->begin[image] + j;
            sp->row_fate[first + r] = MAR_TOKEN_TARGET;
        }
    }
}

static void list_block(mar_session *s)
{
    speculation *sp = s->speculation;
    const int starts = s->step == sp->prefill; /* nobody has made a block yet */
    sp->rows = 0;
    for (int i = 0; i < s->images; i++) {
        if (starts) sp->begin[i] = s->step;
        sp->length[i] = block_length(s, sp->begin[i]);
        sp->first[i] = sp->rows;
        if (!sp->length[i]) continue;
        list_image(s, i);
        sp->rows += whole_block(s, sp->begin[i]).predicted;
    }
}

/* Lists the rows of step j of all blocks that have one; returns their number. */
static int list_step(mar_session *s, int j)
{
    speculation *sp = s->speculation;
    int n = 0;
    for (int i = 0; i < s->images; i++) {
        if (j >= sp->length[i]) continue;
        const int first = first_row(s, i, j), count = s->steps[sp->begin[i] + j].predicted;
        for (int r = first; r < first + count; r++, n++) {
            sp->row[n] = r;
            sp->slot[n] = s->row_slot[r];
            sp->image[n] = s->row_image[r];
            sp->position[n] = s->row_position[r];
            sp->cfg[n] = s->row_cfg[r];
        }
    }
    return n;
}

/* --- drafting --- */

/* Where work on step `at` is recorded. In context full no two rounds are alike. */
static mar_recordings *recordings_at(const mar_session *s, mar_recordings *recordings, int at)
{
    return in_full(s) ? NULL : &recordings[at];
}

/* The pass of one image of the batch alone. */
static void predict_image(mar_session *s, mar_runner *r, int image, const mar_step *step, int first, int total)
{
    const mar_model_config *c = &r->model->config;
    const mar_batch batch = {1, (const int *const *)s->order + image};
    const int labels[2] = {s->label[image], c->classes};
    float *token_rows = r->token_rows, *class_rows = r->class_rows;
    r->token_rows += (size_t)image * (size_t)c->seq_len * (size_t)c->width;
    r->class_rows = s->speculation->class_rows;
    mar_embed_classes(r->model, &r->work, r->conditions, labels, r->class_rows);
    mar_runner_predict(r, &batch, step, first, total, NULL);
    r->token_rows = token_rows;
    r->class_rows = class_rows;
}

/* The draft's z of step j of all blocks, n tokens. */
static void predict_step(mar_session *s, int j, int n)
{
    speculation *sp = s->speculation;
    if (!in_full(s)) {
        const mar_batch batch = {s->images, (const int *const *)s->order};
        mar_runner_predict(&s->draft, &batch, &s->steps[s->step + j], 0, n, &s->draft_recordings[s->step + j]);
        return;
    }
    for (int i = 0, at = 0; i < s->images; i++) {
        if (j >= sp->length[i]) continue;
        const mar_step *step = &s->steps[sp->begin[i] + j];
        predict_image(s, &s->draft, i, step, at, n);
        at += step->predicted;
    }
}

/* The n rows at hand into their places among the block's. */
static void scatter(mar_session *s, const float *from, int n, float *to)
{
    kern *k = s->model->m->kern;
    k->core->copy_rows(k, to, s->speculation->row, from, NULL, NULL, NULL, n, s->model->config.token_dim);
}

static int asks_for_path(const speculation *sp)
{
    const kern_gaussian_rule rule = sp->method->rule(sp->parameter);
    return rule.path_accept != 0 || rule.path_scale != 0;
}

static diff_trace trace_into(const speculation *sp, const mar_laws *l)
{
    return (diff_trace){sp->index, l->mean, l->log_std, asks_for_path(sp) ? l->path : NULL};
}

static void scatter_laws(mar_session *s, int n)
{
    speculation *sp = s->speculation;
    kern *k = s->model->m->kern;
    scatter(s, sp->at_hand.mean, n, sp->q.mean);
    scatter(s, sp->at_hand.log_std, n, sp->q.log_std);
    if (asks_for_path(sp)) /* a double goes as two floats */
        k->core->copy_rows(k, (float *)sp->q.path, sp->row, (const float *)sp->at_hand.path, NULL, NULL, NULL, n, 2);
}

static void draft_step(mar_session *s, int j)
{
    speculation *sp = s->speculation;
    const int n = list_step(s, j), top = s->draft.chain.schedule.steps - 1;
    const mar_draw draw = {
        .count = n, .seed = sp->draft_seed, .image = sp->image, .position = sp->position, .cfg = sp->cfg};
    diff_trace trace = trace_into(sp, &sp->at_hand);
    mar_recordings *t = recordings_at(s, s->draft_recordings, s->step + j);
    predict_step(s, j, n);
    mar_runner_draw(&s->draft, 0, &draw, top, sp->index, s->sampled, &trace, t ? &t->draw[0] : NULL);
    scatter_laws(s, n);
    scatter(s, s->sampled, n, sp->state);
    if (sp->index > 0) mar_runner_draw(&s->draft, 0, &draw, sp->index - 1, 0, s->sampled, NULL, t ? &t->draw[1] : NULL);
    scatter(s, s->sampled, n, sp->token);
    s->stats.draft_calls += top + 1;
    mar_runner_learn(&s->draft, s->sampled, n, sp->slot, sp->position, t ? &t->learn : NULL);
    if (in_full(s)) mar_runner_learn(&s->target, s->sampled, n, sp->slot, sp->position, NULL);
}

/* --- verification --- */

/* The target's z of all rows. */
static void predict_block(mar_session *s)
{
    speculation *sp = s->speculation;
    if (!in_full(s)) {
        const mar_batch batch = {s->images, (const int *const *)s->order};
        const mar_step block = whole_block(s, s->step);
        mar_runner_predict(&s->target, &batch, &block, 0, sp->rows, &s->recordings[s->step]);
        return;
    }
    for (int i = 0; i < s->images; i++)
        for (int j = 0; j < sp->length[i]; j++)
            predict_image(s, &s->target, i, &s->steps[sp->begin[i] + j], first_row(s, i, j), sp->rows);
}

/* Verifies every row's state, where it stands. */
static void verify_block(mar_session *s)
{
    speculation *sp = s->speculation;
    kern *k = s->model->m->kern;
    const mar_verdicts v = verdicts_in(s, sp->verdicts);
    const int path = asks_for_path(sp);
    const kern_verify_job job = {
        .rows = sp->rows,
        .channels = s->model->config.token_dim,
        .draft = sp->state,
        .mean_p = sp->p.mean,
        .log_std_p = sp->p.log_std,
        .mean_q = sp->q.mean,
        .log_std_q = sp->q.log_std,
        .path_p = path ? sp->p.path : NULL,
        .path_q = path ? sp->q.path : NULL,
        .rule = sp->method->rule(sp->parameter),
        .seed = s->params.seed,
        /* Verifications inside the head have a step of the chain for an address; this is none. */
        .step = DIFF_BASE_STEPS,
        .image = s->row_image,
        .position = s->row_position,
        .group = s->row_slot,
        .order = sp->row_step,
        .groups = s->images,
        .x = sp->state,
        .replaced = v.replaced,
        .tries = v.tries,
        .first_replaced = v.first_replaced};
    k->core->lap(k, NULL);
    k->head->verify(k, &job);
    k->core->lap(k, &s->stats.verify_s);
}

static mar_draw block_draw(const mar_session *s)
{
    return (mar_draw){.count = s->speculation->rows,
                      .seed = s->params.seed,
                      .image = s->row_image,
                      .position = s->row_position,
                      .cfg = s->row_cfg};
}

/* Draws every row with the target's head down to the index, for the laws there. */
static void trace_block(mar_session *s)
{
    speculation *sp = s->speculation;
    const mar_draw draw = block_draw(s);
    diff_trace trace = trace_into(sp, &sp->p);
    mar_recordings *t = recordings_at(s, s->recordings, s->step);
    mar_runner_draw(&s->target, 0, &draw, s->target.chain.schedule.steps - 1, sp->index, s->sampled, &trace,
                    t ? &t->draw[0] : NULL);
}

/* From the verified states to tokens, in s->sampled. */
static void finish_tokens(mar_session *s)
{
    speculation *sp = s->speculation;
    kern *k = s->model->m->kern;
    const mar_draw draw = block_draw(s);
    const int channels = s->model->config.token_dim;
    mar_recordings *t = recordings_at(s, s->recordings, s->step);
    k->core->copy_rows(k, s->sampled, NULL, sp->state, NULL, NULL, NULL, sp->rows, channels);
    if (sp->index > 0)
        mar_runner_draw(&s->target, 0, &draw, sp->index - 1, 0, s->sampled, NULL, t ? &t->draw[1] : NULL);
    k->core->subtract(k, s->sampled, sp->token, (size_t)sp->rows * (size_t)channels, sp->verdicts);
}

/* Moves every image on behind the last of its steps that counts: in context full the first with a replaced token. */
static void move_on(mar_session *s, const mar_verdicts *v)
{
    speculation *sp = s->speculation;
    for (int i = 0; i < s->images; i++) {
        const int left = v->first_replaced[i] - sp->begin[i];
        const int reached = in_full(s) && left < sp->length[i] ? left + 1 : sp->length[i];
        s->stats.rounds += sp->length[i] > 0;
        s->stats.round_steps += reached;
        sp->begin[i] += reached;
    }
}

/* Learns what came of the block, the one time in a round that the host waits. Rows that do not count keep the fate
 * TARGET. */
static mar_status read_verdicts(mar_session *s, mar_err *err)
{
    speculation *sp = s->speculation;
    kern *k = s->model->m->kern;
    const int channels = s->model->config.token_dim;
    const mar_verdicts v = verdicts_in(s, sp->report);
    k->core->download(k, sp->report, sp->verdicts,
                      verdict_words(s, (size_t)sp->rows, (size_t)s->images) * sizeof *sp->report);
    const mar_status status = kern_check(k, err);
    if (status != MAR_OK) return status; /* there is nothing to read */
    if (s->step == sp->prefill) sp->shift_sum = 0;
    move_on(s, &v);
    for (int r = 0; r < sp->rows; r++) {
        if (sp->row_step[r] >= sp->begin[s->row_slot[r]]) continue;
        sp->row_fate[r] = v.replaced[r] ? MAR_TOKEN_REPLACED : MAR_TOKEN_ACCEPTED;
        s->stats.drafted++;
        s->stats.accepted += !v.replaced[r];
        s->stats.residual_tries += v.tries[r];
        for (int c = 0; c < channels && !v.replaced[r]; c++) {
            const double shift = v.shift[r * channels + c];
            sp->shift_sum += shift * shift;
        }
    }
    return MAR_OK;
}

double mar_speculation_shift(const mar_session *s)
{
    const double count = (double)s->stats.accepted * s->model->config.token_dim;
    return count > 0 ? sqrt(s->speculation->shift_sum / count) : 0;
}

/* Puts the tokens that were reached in their places, and lets both models know them. */
static void keep(mar_session *s)
{
    speculation *sp = s->speculation;
    kern *k = s->model->m->kern;
    const mar_model_config *c = &s->model->config;
    int *place = s->target.work.rows[0], n = 0;
    for (int r = 0; r < sp->rows; r++) {
        if (sp->row_fate[r] == MAR_TOKEN_TARGET) continue;
        sp->row[n] = r;
        sp->slot[n] = s->row_slot[r];
        sp->position[n] = s->row_position[r];
        place[n] = sp->slot[n] * c->seq_len + sp->position[n];
        s->fate[place[n]] = sp->row_fate[r];
        s->born[place[n++]] = sp->row_step[r];
    }
    float *kept = sp->at_hand.mean; /* its law has been read */
    k->core->copy_rows(k, kept, NULL, s->sampled, sp->row, NULL, NULL, n, c->token_dim);
    k->core->copy_rows(k, s->tokens, place, kept, NULL, NULL, NULL, n, c->token_dim);
    mar_runner_learn(&s->target, kept, n, sp->slot, sp->position, NULL);
    mar_runner_learn(&s->draft, kept, n, sp->slot, sp->position, NULL);
    s->stats.tokens += n;
    s->stats.head_calls += (double)n * s->target.chain.schedule.steps;
}

/* --- the round --- */

static mar_status plan_round(mar_session *s, int longest, mar_err *err)
{
    mar_status status = mar_runner_plan_head(&s->target, s->speculation->rows, err);
    for (int j = 0; status == MAR_OK && j < longest; j++)
        status = mar_runner_plan_head(&s->draft, list_step(s, j), err);
    return status;
}

mar_status mar_speculation_round(mar_session *s, mar_err *err)
{
    speculation *sp = s->speculation;
    const int steps = s->target.chain.schedule.steps;
    int longest = 0;
    list_block(s);
    for (int i = 0; i < s->images; i++)
        if (sp->length[i] > longest) longest = sp->length[i];
    mar_status status = in_full(s) ? plan_round(s, longest, err) : MAR_OK;
    if (status != MAR_OK) return status;
    for (int j = 0; j < longest; j++) draft_step(s, j);
    predict_block(s);
    trace_block(s);
    verify_block(s);
    finish_tokens(s);
    status = read_verdicts(s, err);
    if (status != MAR_OK) return status;
    keep(s);
    s->stats.head_batched += steps;
    s->stats.head_rows += (double)sp->rows * steps;
    if (steps > s->stats.head_calls_max) s->stats.head_calls_max = steps;
    s->step = sp->begin[0];
    for (int i = 1; i < s->images; i++)
        if (sp->begin[i] < s->step) s->step = sp->begin[i];
    return MAR_OK;
}
