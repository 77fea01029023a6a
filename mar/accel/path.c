/* The accelerator "path": speculation across tokens by whole paths (mar/accel/path.h). */
#include "mar/accel/path.h"

#include "base/arena.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int gamma_of(const mar_params *p)
{
    return p->gamma ? p->gamma : PATH_GAMMA_MOST;
}

/* Returns the steps of a round's drafts, and one more, whose tokens wait for candidates. */
static int block_steps(const mar_params *p)
{
    return gamma_of(p) + 1;
}

static mar_status check(const mar_masked_model *model, mar_params *p, mar_err *err)
{
    (void)model, (void)err;
    if (p->gamma > p->num_iter) p->gamma = p->num_iter; /* the rest of the image */
    return MAR_OK;
}

static void resolve(mar_params *p)
{
    if (p->draft && !p->spec && !p->head_spec) p->spec = "path";
    if (p->context == MAR_CONTEXT_AUTO) p->context = mar_verifies_paths(p) ? MAR_CONTEXT_FULL : MAR_CONTEXT_PREFIX;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static size_t verdict_words(const mar_paths *s)
{
    return (size_t)s->max_drawn + (size_t)s->max_rows + (size_t)s->g->max_images +
           (size_t)s->max_rows * (size_t)s->g->model->base.config.token_dim;
}

static int allocate_rows(path_rows *r, size_t n)
{
    r->seed = calloc(n, sizeof *r->seed);
    r->image = calloc(n, sizeof *r->image);
    int **lists[] = {&r->position, &r->group, &r->order, &r->place, &r->source, &r->steps};
    int whole = r->seed && r->image;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        *lists[i] = calloc(n, sizeof(int));
        whole &= *lists[i] != NULL;
    }
    r->cfg = calloc(n, sizeof *r->cfg);
    return whole && r->cfg;
}

static void free_rows(path_rows *r)
{
    void *lists[] = {r->seed, r->image, r->position, r->group, r->order, r->place, r->source, r->steps, r->cfg};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) free(lists[i]);
}

static mar_status allocate_host(mar_paths *s, mar_err *err)
{
    const mar_masked *g = s->g;
    const size_t images = (size_t)g->max_images, steps = (size_t)g->params.num_iter, rows = (size_t)s->max_rows;
    const size_t drawn = (size_t)s->max_drawn, gamma = (size_t)s->gamma;
    struct {
        int **list;
        size_t n;
    } lists[] = {{&s->begin, images},
                 {&s->from, images},
                 {&s->context, images},
                 {&s->length, images},
                 {&s->tried, images},
                 {&s->whole, images},
                 {&s->z_first, images * steps},
                 {&s->z_queries, images * steps},
                 {&s->tries, rows},
                 {&s->index[0], (size_t)g->cfg_branches * drawn},
                 {&s->index[1], (size_t)g->cfg_branches * drawn},
                 {&s->relative, drawn}};
    int whole = allocate_rows(&s->drawn, drawn);
    whole &= allocate_rows(&s->pending, rows);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        *lists[i].list = calloc(lists[i].n, sizeof(int));
        whole &= *lists[i].list != NULL;
    }
    s->recordings = calloc(steps * (gamma + 1), sizeof *s->recordings);
    s->draft_passes = calloc(steps, sizeof *s->draft_passes);
    s->list = calloc(images * gamma, sizeof *s->list);
    s->report = calloc(verdict_words(s), sizeof *s->report);
    if (whole && s->recordings && s->draft_passes && s->list && s->report) return MAR_OK;
    return err_set(err, MAR_ENOMEM, "out of memory for rounds of %zu tokens", rows);
}

static size_t lay_out(void *state, char *base)
{
    mar_paths *s = state;
    const mar_masked *g = s->g;
    const size_t f = sizeof(float), channels = (size_t)g->model->base.config.token_dim, rows = (size_t)s->max_rows;
    const size_t drawn = (size_t)s->max_drawn, cfg_branches = (size_t)g->cfg_branches;
    const size_t target = (size_t)g->model->base.config.width;
    const size_t draft = s->draft ? (size_t)s->draft->runner.model->base.config.width : target;
    const size_t wider = draft > target ? draft : target;
    size_t used = 0;
    s->token = arena_carve(base, &used, drawn * channels, f);
    s->path = arena_carve(base, &used, drawn * (size_t)s->target.stride, f);
    s->draft_z = arena_carve(base, &used, cfg_branches * rows * draft, f);
    s->true_z = arena_carve(base, &used, cfg_branches * rows * target, f);
    for (int i = 0; i < 2; i++) {
        s->pending_p[i] = arena_carve(base, &used, cfg_branches * rows * target, f);
        s->pending_q[i] = arena_carve(base, &used, cfg_branches * rows * draft, f);
    }
    s->part_z = arena_carve(base, &used, cfg_branches * rows * wider, f);
    s->log_ratio = arena_carve(base, &used, drawn, sizeof *s->log_ratio);
    s->last = arena_carve(base, &used, drawn * channels, f);
    s->verdicts = arena_carve(base, &used, verdict_words(s), f);
    used += diff_paths_lay_out(&s->target, base ? base + used : NULL);
    used += mar_contexts_lay_out(&s->contexts, base ? base + used : NULL);
    if (s->draft) {
        used += diff_paths_lay_out(&s->other, base ? base + used : NULL);
        used += mar_contexts_lay_out(&s->draft_contexts, base ? base + used : NULL);
    }
    return used;
}

static void free_recordings(mar_paths *s)
{
    const int steps = s->g->params.num_iter;
    for (int i = 0; s->recordings && i < steps * (s->gamma + 1); i++) mar_recordings_free(s->g->k, &s->recordings[i]);
    for (int i = 0; s->draft_passes && i < steps; i++) mar_recordings_free(s->g->k, &s->draft_passes[i]);
}

static void destroy(void *state)
{
    mar_paths *s = state;
    free_recordings(s);
    free_rows(&s->drawn);
    free_rows(&s->pending);
    diff_paths_free(&s->target);
    diff_paths_free(&s->other);
    mar_contexts_free(&s->contexts);
    mar_contexts_free(&s->draft_contexts);
    void *host[] = {
        s->begin, s->from,     s->context,  s->length,   s->tried,      s->whole,        s->z_first, s->z_queries,
        s->tries, s->index[0], s->index[1], s->relative, s->recordings, s->draft_passes, s->list,    s->report,
        s};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) free(host[i]);
}

static mar_status create_parts(mar_paths *s, mar_err *err)
{
    mar_masked *g = s->g;
    const int window = g->params.head_spec ? g->params.head_spec : 1, images = g->max_images;
    /* without a draft model each context also gives z for the next round's drafts */
    const int n_queries = s->draft ? s->max_rows : images * s->gamma * g->max_tokens;
    mar_status status = diff_paths_create(&g->target.chain, window, s->max_drawn, &s->target, err);
    if (status == MAR_OK)
        status = mar_contexts_create(g->k, g->model, images * s->gamma, n_queries, g->cfg_branches, &s->contexts, err);
    if (status != MAR_OK || !s->draft) return status;
    mar_runner *r = &s->draft->runner;
    status = diff_paths_create(&r->chain, window, s->max_drawn, &s->other, err);
    if (status == MAR_OK)
        status = mar_contexts_create(g->k, r->model, images, s->max_rows, g->cfg_branches, &s->draft_contexts, err);
    s->draft_contexts.part = r->chain.part;
    return status;
}

static mar_status create(mar_masked *g, void **state, mar_err *err)
{
    mar_paths *s = *state = calloc(1, sizeof *s);
    if (!s) return err_set(err, MAR_ENOMEM, "out of memory");
    s->g = g;
    s->draft = mar_masked_state(g, &mar_accel_draft);
    s->drafter = s->draft ? &s->other : &s->target;
    s->gamma = gamma_of(&g->params) < g->params.num_iter ? gamma_of(&g->params) : g->params.num_iter;
    s->max_rows = g->max_images * g->max_tokens;
    s->max_drawn = s->max_rows + (s->max_rows > PATH_CANDIDATES_MOST ? s->max_rows : PATH_CANDIDATES_MOST);
    const int64_t n_queries = (int64_t)g->max_images * s->gamma * g->max_tokens, passes = g->params.num_iter;
    const int64_t rows = (int64_t)s->max_drawn * (g->params.head_spec ? g->params.head_spec : 1);
    if (n_queries > INT_MAX / 2 || rows > INT_MAX / 2 || passes * (s->gamma + 1) > INT_MAX)
        return err_set(err, MAR_EARG, "batch of %d images with --gamma %d: too large", g->max_images, s->gamma);
    const mar_status status = create_parts(s, err);
    return status == MAR_OK ? allocate_host(s, err) : status;
}

/* --- a batch ------------------------------------------------------------------------------------------------------ */

static mar_status plan_heads(mar_paths *s, int steps, mar_err *err)
{
    diff_chain_use(&s->g->target.chain, steps);
    mar_status status = diff_paths_plan(&s->target, s->max_drawn, err);
    if (status != MAR_OK || !s->draft) return status;
    diff_chain_use(&s->draft->runner.chain, steps);
    return diff_paths_plan(&s->other, s->max_drawn, err);
}

/* Tells whether no step before step i takes as many diffusion steps. */
static int is_first_count(const mar_masked *g, int i)
{
    for (int k = 0; k < i; k++)
        if (g->steps[k].sampling_steps == g->steps[i].sampling_steps) return 0;
    return 1;
}

/* The shapes of rounds depend on what is accepted, so the largest are planned. */
static mar_status plan(void *state, int images, mar_err *err)
{
    mar_paths *s = state;
    mar_masked *g = s->g;
    (void)images;
    free_recordings(s);
    mar_status status = mar_contexts_plan(&s->contexts, err);
    if (status == MAR_OK) status = mar_runner_plan_known_tokens(&g->target, s->max_rows, err);
    if (status == MAR_OK && s->draft) status = mar_contexts_plan(&s->draft_contexts, err);
    if (status == MAR_OK && s->draft) status = mar_runner_plan_known_tokens(&s->draft->runner, s->max_rows, err);
    for (int i = 0; status == MAR_OK && i < g->params.num_iter; i++)
        if (is_first_count(g, i)) status = plan_heads(s, g->steps[i].sampling_steps, err);
    return status;
}

static void begin(void *state)
{
    mar_paths *s = state;
    for (int i = 0; i < s->g->images; i++) s->begin[i] = s->tried[i] = s->whole[i] = 0;
    s->pending.n = 0;
    s->shift_sum = 0;
    mar_contexts_begin(&s->contexts);
    if (s->draft) mar_contexts_begin(&s->draft_contexts);
}

static mar_status refuse_number(uint64_t number, mar_err *err)
{
    return err_set(err, MAR_EARG, "image %llu: with --spec path expected a number below 2^40",
                   (unsigned long long)number);
}

static mar_status check_image(const mar_image *image, mar_err *err)
{
    return image->number < PATH_CANDIDATE_IMAGES ? MAR_OK : refuse_number(image->number, err);
}

static mar_status step(void *state, mar_err *err)
{
    mar_paths *s = state;
    const mar_masked *g = s->g;
    for (int i = 0; i < g->images; i++)
        if (g->slots.slot[i].number >= PATH_CANDIDATE_IMAGES) return refuse_number(g->slots.slot[i].number, err);
    return mar_paths_round(s, err);
}

static void stats(const void *state, mar_stats *sum)
{
    const mar_paths *s = state;
    const double count = (double)sum->accepted * s->g->model->base.config.token_dim;
    sum->accepted_shift = count > 0 ? sqrt(s->shift_sum / count) : 0;
    sum->encoder_s += s->contexts.encoder_s;
    sum->decoder_s += s->contexts.decoder_s;
    sum->encoder_flop += s->contexts.encoder_flop;
    sum->decoder_flop += s->contexts.decoder_flop;
    if (!s->draft) return;
    sum->draft_s += s->draft_contexts.encoder_s + s->draft_contexts.decoder_s;
    sum->draft_flop += s->draft_contexts.encoder_flop + s->draft_contexts.decoder_flop;
}

static void write_effect(const void *state, mar_effect *out)
{
    const mar_paths *s = state;
    const mar_params *p = &s->g->params;
    const int coarse = (p->num_iter + s->gamma - 1) / s->gamma;
    out->exact = !(s->draft && p->context == MAR_CONTEXT_PREFIX && coarse < p->num_iter);
    const char *by = s->draft ? "drafts of the draft model" : "drafts of the model itself";
    if (!out->exact)
        snprintf(out->how, sizeof out->how,
                 "criterion path, context prefix: each block is drawn in the context before it, %s%d in place of %d "
                 "contexts",
                 p->gamma ? "" : "at least ", coarse, p->num_iter);
    else if (s->draft && p->context == MAR_CONTEXT_PREFIX)
        snprintf(out->how, sizeof out->how, "by criterion path, context prefix with one step a block");
    else
        snprintf(out->how, sizeof out->how, "of whole paths, by criterion path with %s; " MAR_ACCEPTED_MEAN, by);
}

static const char *warn(const void *state)
{
    const mar_paths *s = state;
    return diff_head_is_bf16(&s->g->model->head) ? diff_paths_bf16_warning : NULL;
}

const mar_accel mar_accel_path = {
    .name = "spec",
    .is_on = mar_verifies_paths,
    .together = 1,
    .changes = MAR_STAGE_CHAIN,
    .needs = MAR_STAGE_AR_STEPS | MAR_STAGE_PASSES | MAR_STAGE_SOLVER | MAR_STAGE_HEAD,
    .default_with = "draft",
    .default_without = "head_spec",
    .exact = 1,
    .for_spherear = 1,
    .tokens = "continuous",
    .exceptions = (const mar_accel_exception[]){{"prefill", NULL}, {"context", "draft"}, {"align", NULL}, {0}},
    .resolve = resolve,
    .check = check,
    .check_image = check_image,
    .block_steps = block_steps,
    .create = create,
    .destroy = destroy,
    .lay_out = lay_out,
    .plan = plan,
    .begin = begin,
    .step = step,
    .stats = stats,
    .effect = write_effect,
    .warn = warn,
};
