/* The accelerator "path": speculation across tokens by whole paths (specdec/path.h), in the masked order. The contexts
 * of a round's steps are sequences of one pass (nets/masked_contexts.h). */
#include "specdec/path.h"

#include "mar/accel/draft.h"
#include "mar/path_costs.h"
#include "nets/masked_contexts.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    spec_path rounds; /* first: tests look at it */
    mar_masked *g;
    path_costs costs;
    mar_draft *draft;               /* NULL: the target drafts */
    masked_contexts contexts;       /* the target's passes */
    masked_contexts draft_contexts; /* the draft model's passes */
    masked_context *list;           /* host [max_images * gamma] contexts of a pass */
    /* [num_iter][gamma + 1] passes of one image, by first step and length of its round. Length 0: the draft model's
     * pass for a step, or else the target's first pass. */
    masked_recordings *recordings;
    int recorded; /* their number */
    /* [max_images][num_iter] row of contexts.z that token 0 of the image's order would have in a step's context; only
     * steps of the last pass are valid. */
    int *z_origin;
} masked_path;

/* Returns the steps of a round's drafts, and one more, whose tokens wait for candidates. */
static int masked_path_block_steps(const mar_params *p)
{
    return path_costs_gamma(p, p->num_iter) + 1;
}

static mar_status masked_path_check(const mar_model *model, mar_params *p, mar_err *err)
{
    if (p->head_spec < 0) return err_set(err, MAR_EARG, "--head_spec auto with --spec path: expected --head_spec N");
    return path_costs_check(model, p, p->num_iter, err);
}

static void masked_path_resolve(mar_params *p)
{
    if (p->draft && !p->spec && !p->head_spec) p->spec = "path";
    if (p->context == MAR_CONTEXT_AUTO) p->context = mar_verifies_paths(p) ? MAR_CONTEXT_FULL : MAR_CONTEXT_PREFIX;
}

/* --- the masked order --------------------------------------------------------------------------------------------- */

/* Returns the recordings of a pass. Only a batch of one image has shapes that recur with every image, and with a choice
 * plain passes differ; else returns NULL. */
static masked_recordings *masked_path_recordings(const masked_path *p, int step, int length)
{
    if (p->rounds.images != 1 || (length == 0 && p->rounds.o.choice.choose)) return NULL;
    return &p->recordings[step * (p->rounds.o.gamma + 1) + length];
}

/* Adds the context of a step to a pass, with the tokens of steps step .. last as queries, whose z begins at row z_row.
 * Returns the row behind them. */
static int masked_path_add(masked_path *p, int *contexts, int z_row, int image, int step, int last)
{
    const mar_masked *g = p->g;
    const int known = g->steps[step].known, n_queries = g->steps[last].known + g->steps[last].predicted - known;
    p->list[(*contexts)++] =
        (masked_context){.image = image, .order = g->order[image], .known = known, .n_queries = n_queries};
    p->z_origin[image * g->params.num_iter + step] = z_row - (g->model->base.config.seq_len - known - n_queries);
    return z_row + n_queries;
}

/* Adds an image's contexts to a pass. If the target drafts, a context also gives the z of the tokens that the next
 * round may draft. Returns the row behind them. */
static int masked_path_add_image(masked_path *p, int *n, int rows, int i)
{
    const spec_path *s = &p->rounds;
    const spec_path_image *image = &s->image[i];
    const int begin = image->from, end = begin + image->length, is_plain = spec_path_is_plain(s, i);
    const int more = p->draft ? 0 : is_plain ? image->next : s->o.gamma;
    if (s->o.one_context && begin < end) return masked_path_add(p, n, rows, i, begin, end - 1);
    for (int step = begin; step < (is_plain ? begin + 1 : end); step++) {
        const int last = step + more < s->o.steps ? step + more : s->o.steps - 1;
        rows = masked_path_add(p, n, rows, i, step, last);
    }
    return rows;
}

static spec_path_z masked_path_pass(spec_path *s)
{
    masked_path *p = s->o.host;
    mar_masked *g = p->g;
    int n = 0, rows = 0;
    for (int i = 0; i < s->images; i++) rows = masked_path_add_image(p, &n, rows, i);
    masked_contexts_place(p->list, n);
    masked_contexts_run(&p->contexts, p->list, n, &g->target.net.embedded,
                        masked_path_recordings(p, s->image[0].from, s->image[0].length));
    g->stats.passes++;
    g->stats.contexts += n;
    return (spec_path_z){p->contexts.z, rows};
}

/* Returns the index in an image's order of the first token of a step. */
static int masked_path_first(const mar_masked *g, int step)
{
    return g->model->base.config.seq_len - g->steps[step].known - g->steps[step].predicted;
}

static int masked_path_z_row(const spec_path *s, const spec_path_row *row, int context)
{
    const masked_path *p = s->o.host;
    return p->z_origin[row->slot * s->o.steps + context] + masked_path_first(p->g, row->step) + row->place;
}

static spec_path_step masked_path_step(const spec_path *s, int image, int step)
{
    const mar_masked *g = ((masked_path *)s->o.host)->g;
    const mar_step *t = &g->steps[step];
    return (spec_path_step){t->predicted, g->order[image] + masked_path_first(g, step), t->sampling_steps, t->cfg};
}

static spec_path_z masked_path_draft(spec_path *s, int first, int end)
{
    masked_path *p = s->o.host;
    int n = 0, rows = 0;
    for (int r = first; r < end; r++)
        if (s->drawn[r].place == 0)
            rows = masked_path_add(p, &n, rows, s->drawn[r].slot, s->drawn[r].step, s->drawn[r].step);
    masked_contexts_place(p->list, n);
    masked_contexts_run(&p->draft_contexts, p->list, n, &p->draft->runner.net.embedded,
                        masked_path_recordings(p, s->drawn[first].step, 0));
    return (spec_path_z){p->draft_contexts.z, rows};
}

static void masked_path_know(spec_path *s, int n)
{
    masked_path *p = s->o.host;
    const float *tokens = s->token + (size_t)s->kept[0] * (size_t)p->g->model->base.config.token_dim;
    if (p->draft)
        masked_runner_add_known_tokens(&p->draft->runner.net, tokens, n, s->kept_slot, s->kept_position, NULL);
    if (!s->o.one_context)
        masked_runner_add_known_tokens(&p->g->target.net, tokens, n, s->kept_slot, s->kept_position, NULL);
}

static void masked_path_keep(spec_path *s, const float *token, int n, int known)
{
    masked_path *p = s->o.host;
    mar_masked *g = p->g;
    for (int i = 0; i < n; i++) g->row_place[i] = s->kept_slot[i] * s->o.seq_len + s->kept_position[i];
    g->k->core->copy_rows(g->k, g->sampled, NULL, token, s->kept, NULL, NULL, n, g->model->base.config.token_dim);
    mar_masked_write_tokens(g, g->sampled, n);
    if (known) return;
    masked_runner_add_known_tokens(&g->target.net, g->sampled, n, s->kept_slot, s->kept_position, NULL);
    if (p->draft)
        masked_runner_add_known_tokens(&p->draft->runner.net, g->sampled, n, s->kept_slot, s->kept_position, NULL);
}

static const spec_path_order masked_path_order = {
    .step = masked_path_step,
    .draft = masked_path_draft,
    .pass = masked_path_pass,
    .z_row = masked_path_z_row,
    .know = masked_path_know,
    .keep = masked_path_keep,
};

/* --- creation ----------------------------------------------------------------------------------------------------- */

static mar_status masked_path_create_rounds(masked_path *p, int gamma, mar_err *err)
{
    mar_masked *g = p->g;
    const mar_params *params = &g->params;
    const spec_path_options options = {.order = &masked_path_order,
                                       .host = p,
                                       .target = &g->target.chain,
                                       .draft = p->draft ? &p->draft->runner.chain : NULL,
                                       .window = params->head_spec ? params->head_spec : 1,
                                       .images = g->max_images,
                                       .seq_len = g->model->base.config.seq_len,
                                       .steps = params->num_iter,
                                       .gamma = gamma,
                                       .choice = path_costs_choice(&p->costs),
                                       .one_context = p->draft && params->context == MAR_CONTEXT_PREFIX,
                                       .max_rows = g->max_images * g->max_tokens,
                                       .max_pending = g->max_images * g->max_tokens,
                                       .candidates = SPEC_PATH_CANDIDATES_MOST,
                                       .verdict_step = DIFF_BASE_STEPS,
                                       .stats = &g->stats,
                                       .token_status = g->slots.token_status,
                                       .ar_step = g->slots.ar_step,
                                       .staleness = g->slots.staleness};
    return spec_path_create(&options, &p->rounds, err);
}

static mar_status masked_path_create_passes(masked_path *p, int gamma, mar_err *err)
{
    mar_masked *g = p->g;
    const int images = g->max_images, rows = images * g->max_tokens, branches = g->cfg_branches;
    const size_t steps = (size_t)g->params.num_iter;
    /* without a draft model each context also gives z for the next round's drafts */
    mar_status status = masked_contexts_create(g->k, &g->model->net, images * gamma, p->draft ? rows : rows * gamma,
                                               branches, &p->contexts, err);
    p->contexts.work.between = g->target.net.work.between;
    if (status == MAR_OK && p->draft) {
        const mar_runner *r = &p->draft->runner;
        status = masked_contexts_create(g->k, &r->model->net, images, rows, branches, &p->draft_contexts, err);
        p->draft_contexts.part = r->chain.part;
        p->draft_contexts.work.between = r->net.work.between;
    }
    if (status != MAR_OK) return status;
    p->recorded = g->params.num_iter * (gamma + 1);
    p->recordings = calloc((size_t)p->recorded, sizeof *p->recordings);
    p->list = calloc((size_t)images * (size_t)gamma, sizeof *p->list);
    p->z_origin = calloc((size_t)images * steps, sizeof *p->z_origin);
    if (p->recordings && p->list && p->z_origin) return MAR_OK;
    return err_set(err, MAR_ENOMEM, "out of memory for rounds of %d steps", gamma);
}

static mar_status masked_path_create(mar_masked *g, void **state, mar_err *err)
{
    masked_path *p = *state = calloc(1, sizeof *p);
    if (!p) return err_set(err, MAR_ENOMEM, "out of memory");
    p->g = g;
    mar_status status = path_costs_create(&g->params, g->params.num_iter, &p->costs, err);
    if (status != MAR_OK) return status;
    p->draft = mar_masked_state(g, &mar_accel_draft);
    const int gamma = path_costs_gamma(&g->params, g->params.num_iter);
    const int64_t rows = (int64_t)g->max_images * g->max_tokens, passes = (int64_t)g->params.num_iter * (gamma + 1);
    const int64_t drawn = rows + (rows > SPEC_PATH_CANDIDATES_MOST ? rows : SPEC_PATH_CANDIDATES_MOST);
    const int64_t evaluated = drawn * (g->params.head_spec ? g->params.head_spec : 1);
    if (rows * gamma > INT_MAX / 2 || evaluated > INT_MAX / 2 || passes > INT_MAX)
        return err_set(err, MAR_EARG, "batch of %d images with --gamma %d: too large", g->max_images, gamma);
    status = masked_path_create_rounds(p, gamma, err);
    return status == MAR_OK ? masked_path_create_passes(p, gamma, err) : status;
}

static void masked_path_free_recordings(masked_path *p)
{
    for (int i = 0; i < p->recorded && p->recordings; i++) masked_recordings_free(p->g->k, &p->recordings[i]);
}

static void masked_path_destroy(void *state)
{
    masked_path *p = state;
    masked_path_free_recordings(p);
    spec_path_free(&p->rounds);
    masked_contexts_free(&p->contexts);
    masked_contexts_free(&p->draft_contexts);
    void *host[] = {p->recordings, p->list, p->z_origin, p};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) free(host[i]);
}

static size_t masked_path_lay_out(void *state, char *base)
{
    masked_path *p = state;
    size_t used = spec_path_lay_out(&p->rounds, base);
    used += masked_contexts_lay_out(&p->contexts, base ? base + used : NULL);
    if (p->draft) used += masked_contexts_lay_out(&p->draft_contexts, base ? base + used : NULL);
    return used;
}

/* --- a batch ------------------------------------------------------------------------------------------------------ */

/* Measures the costs of rounds in the middle of an image. */
static mar_status masked_path_measure(masked_path *p, int images, mar_err *err)
{
    mar_masked *g = p->g;
    const mar_measured_parts parts = {g->k, g->model->base.engine, (mar_engine_state *)g, NULL, images};
    const mar_status status =
        path_costs_measure(&p->costs, &parts, &p->rounds, 0, g->params.num_iter / 2, &g->params, err);
    masked_path_free_recordings(p); /* those of longer rounds */
    return status;
}

static mar_status masked_path_plan(void *state, int images, mar_err *err)
{
    masked_path *p = state;
    mar_masked *g = p->g;
    const int rows = p->rounds.o.max_rows;
    masked_path_free_recordings(p);
    mar_status status = masked_contexts_plan(&p->contexts, err);
    if (status == MAR_OK) status = masked_runner_plan_known_tokens(&g->target.net, rows, err);
    if (status == MAR_OK && p->draft) status = masked_contexts_plan(&p->draft_contexts, err);
    if (status == MAR_OK && p->draft) status = masked_runner_plan_known_tokens(&p->draft->runner.net, rows, err);
    for (int i = 0; status == MAR_OK && i < g->params.num_iter; i++) {
        int first = 0; /* step with as many diffusion steps */
        while (g->steps[first].sampling_steps != g->steps[i].sampling_steps) first++;
        if (first == i) status = spec_path_plan(&p->rounds, g->steps[i].sampling_steps, err);
    }
    return status == MAR_OK && p->costs.measures ? masked_path_measure(p, images, err) : status;
}

static void masked_path_begin(void *state)
{
    masked_path *p = state;
    const mar_slot *slot = p->g->slots.slot;
    spec_path_begin(&p->rounds);
    for (int i = 0; i < p->g->images; i++) spec_path_admit(&p->rounds, i, slot[i].seed, slot[i].number, 0);
    masked_contexts_begin(&p->contexts);
    if (p->draft) masked_contexts_begin(&p->draft_contexts);
}

static mar_status masked_path_check_image(const mar_image *image, mar_err *err)
{
    return spec_path_check_number(image->number, err);
}

static mar_status masked_path_take_round(void *state, mar_err *err)
{
    masked_path *p = state;
    mar_masked *g = p->g;
    const mar_status status = spec_path_round(&p->rounds, err);
    if (status != MAR_OK) return status;
    g->step = g->params.num_iter;
    for (int i = 0; i < g->images; i++)
        if (p->rounds.image[i].begin < g->step) g->step = p->rounds.image[i].begin;
    return MAR_OK;
}

static void masked_path_stats(const void *state, mar_stats *sum)
{
    const masked_path *p = state;
    spec_path_add_stats(&p->rounds, sum);
    sum->encoder_s += p->contexts.encoder_s;
    sum->decoder_s += p->contexts.decoder_s;
    sum->encoder_flop += p->contexts.encoder_flop;
    sum->decoder_flop += p->contexts.decoder_flop;
    sum->draft_s += p->draft_contexts.encoder_s + p->draft_contexts.decoder_s;
    sum->draft_flop += p->draft_contexts.encoder_flop + p->draft_contexts.decoder_flop;
    const double all = sum->encoder_s + sum->decoder_s + sum->head_s + sum->draft_s + sum->verify_s;
    if (p->rounds.spent > 0) sum->plain_s = all * p->rounds.plain / p->rounds.spent;
}

static void masked_path_effect(const void *state, mar_effect *out)
{
    const masked_path *p = state;
    const mar_params *params = &p->g->params;
    const int gamma = p->rounds.o.gamma, coarse = (params->num_iter + gamma - 1) / gamma;
    out->exact = !(p->rounds.o.one_context && coarse < params->num_iter);
    if (p->costs.never) return;
    const char *by = p->draft ? "drafts of the draft model" : "drafts of the model itself";
    if (!out->exact)
        snprintf(out->how, sizeof out->how,
                 "criterion path, context prefix: each block is drawn in the context before it, %d in place of %d "
                 "contexts",
                 coarse, params->num_iter);
    else if (p->rounds.o.one_context)
        snprintf(out->how, sizeof out->how, "by criterion path, context prefix with one step a block");
    else
        snprintf(out->how, sizeof out->how, "of whole paths, by criterion path with %s; " MAR_ACCEPTED_MEAN, by);
}

static const char *masked_path_warn(const void *state)
{
    const masked_path *p = state;
    return !p->costs.never && diff_head_is_bf16(&p->g->model->head) ? diff_paths_bf16_warning : NULL;
}

static const mar_masked_hooks path_hooks = {
    .create = masked_path_create,
    .destroy = masked_path_destroy,
    .lay_out = masked_path_lay_out,
    .plan = masked_path_plan,
    .begin = masked_path_begin,
    .step = masked_path_take_round,
    .stats = masked_path_stats,
    .effect = masked_path_effect,
    .warn = masked_path_warn,
};

extern const mar_accel mar_accel_path; /* its state begins with a spec_path */
const mar_accel mar_accel_path = {
    .name = "spec",
    .is_on = mar_verifies_paths,
    .together = 1,
    .changes = MAR_STAGE_CHAIN,
    .needs = MAR_STAGE_AR_STEPS | MAR_STAGE_PASSES | MAR_STAGE_SOLVER | MAR_STAGE_HEAD,
    .default_with = "draft",
    .default_without = "head_spec",
    .exact = 1,
    .tokens = "continuous",
    .exceptions = (const mar_accel_exception[]){{"prefill", NULL}, {"context", "draft"}, {"align", NULL}, {0}},
    .resolve = masked_path_resolve,
    .check = masked_path_check,
    .check_image = masked_path_check_image,
    .block_steps = masked_path_block_steps,
    .masked = &path_hooks,
};
