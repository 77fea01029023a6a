#include "spherear/paths.h"

#include "mar_measure.h"

#include "base/arena.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    CANDIDATES = 8,       /* for a token in its first draw; each next draw has twice as many */
    CANDIDATES_MOST = 64, /* of all tokens in one draw, unless a round has more drafts */
    MOST_ROWS = 1 << 20,  /* drafts of a round */
    GAMMA = 8,            /* of gamma auto */
    TRIES_MOST = 1 << 20, /* candidates for a token: distributions that need more differ only by rounding */
};

static int branches_of(const sphere_paths *s)
{
    return s->g->branches;
}

static int channels_of(const sphere_paths *s)
{
    return s->g->model->shape.head.channels;
}

/* --- rows --------------------------------------------------------------------------------------------------------- */

/* Lists a row: a token of an image, with the noise of this image number. */
static void list_row(sphere_paths *s, int slot, int position, int order, int group, uint64_t image)
{
    const sphere *g = s->g;
    const int i = s->rows++;
    s->order[i] = order;
    s->group[i] = group;
    s->position[i] = position;
    s->seed[i] = g->slots.slot[slot].seed;
    s->image[i] = image;
    s->cfg[i] = sphere_scale(g, &g->slots.slot[slot], position);
    s->place[i] = slot * g->model->shape.transformer.shape.seq_len + position;
}

/* Returns rows first .. first+n-1 as tokens of a head. z is backend [branches][sources][width]. */
static diff_tokens tokens_at(const sphere_paths *s, int first, int n, int sources, const int *source, const float *z)
{
    return (diff_tokens){.count = n,
                         .sources = sources,
                         .source = source,
                         .z = z,
                         .cfg = s->cfg + first,
                         .seed = s->seed + first,
                         .image = s->image + first,
                         .position = s->position + first};
}

/* part[branch][i] = z[branch][row[i]]: the conditions of n rows, without gaps. */
static void gather(const sphere_paths *s, const float *z, const int *row, int n, int width, float *part)
{
    for (int branch = 0; branch < branches_of(s); branch++)
        s->g->k->core->copy_rows(s->g->k, part + (size_t)branch * (size_t)n * (size_t)width, NULL,
                                 z + (size_t)branch * (size_t)s->most * (size_t)width, row, NULL, NULL, n, width);
}

/* Normalises n tokens, rows `row`, and writes them to their places. */
static void write_tokens(const sphere_paths *s, const int *row, const int *place, int n)
{
    const int c = channels_of(s);
    kern_queue *k = s->g->k;
    k->core->rms_norm(k, s->x, row, n, c, s->g->model->ones, SPHERE_EPS, s->normal, 1);
    k->core->copy_rows(k, s->g->slots.tokens, place, s->normal, NULL, NULL, NULL, n, c);
}

/* --- drafts ------------------------------------------------------------------------------------------------------- */

/* Draws the round's token number `order` of every image that has one. */
static void draft_tokens(sphere_paths *s, int order)
{
    sphere *g = s->g;
    const int first = s->rows;
    causal_vectors_begin(s->runner, g->slots.tokens);
    for (int slot = 0; slot < g->max_images; slot++) {
        const int token = g->slots.slot[slot].known + order;
        if (order >= s->length[slot]) continue;
        s->row_of[slot * s->gamma + order] = s->rows;
        sphere_add_tokens(g, s->runner, slot, token - 1, 1, 1, s->most, &s->rows);
        list_row(s, slot, token, order, slot, g->slots.slot[slot].number);
    }
    const int n = s->rows - first;
    causal_vectors_run(s->runner, s->draft_z);
    g->k->core->timer_mark(g->k, NULL);
    for (int i = 0; i < n; i++) s->index[i] = first + i;
    gather(s, s->draft_z, s->index, n, s->draft_width, s->draft_part);
    const diff_tokens tokens = tokens_at(s, first, n, n, NULL, s->draft_part);
    diff_paths_draw(&s->draft, &tokens, s->x + (size_t)first * (size_t)channels_of(s),
                    s->path + (size_t)first * (size_t)s->draft.stride, &s->drafted_work);
    write_tokens(s, s->index, s->place + first, n);
    g->k->core->timer_mark(g->k, &s->draft_s);
}

static void draft_round(sphere_paths *s)
{
    const sphere *g = s->g;
    int most = 0;
    for (int slot = 0; slot < g->max_images; slot++) {
        const int left =
            g->slots.slot[slot].busy ? g->model->shape.transformer.shape.seq_len - g->slots.slot[slot].known : 0;
        s->length[slot] = left < s->gamma ? left : s->gamma;
        if (s->length[slot] > most) most = s->length[slot];
    }
    s->rows = 0;
    for (int order = 0; order < most; order++) draft_tokens(s, order);
}

/* --- verdicts ----------------------------------------------------------------------------------------------------- */

/* Computes the true conditions of the round's tokens. */
static void predict(sphere_paths *s)
{
    sphere *g = s->g;
    causal_vectors_begin(g->target, g->slots.tokens);
    for (int slot = 0; slot < g->max_images; slot++) {
        if (s->length[slot] == 0) continue;
        sphere_add_tokens(g, g->target, slot, g->slots.slot[slot].known - 1, s->length[slot], s->length[slot], s->most,
                          s->row_of + slot * s->gamma);
        g->stats.contexts += s->length[slot];
    }
    causal_vectors_run(g->target, s->z);
}

/* Decides on the rows by their log ratios. Reads the first marked row of each group. */
static void decide(sphere_paths *s, int are_candidates, int groups)
{
    kern_queue *k = s->g->k;
    const kern_path_verdict job = {.rows = s->rows,
                                   .candidates = are_candidates,
                                   .log_ratio = s->log_ratio,
                                   .step = SPHERE_VERDICT_STEP,
                                   .seed = s->seed,
                                   .image = s->image,
                                   .position = s->position,
                                   .group = s->group,
                                   .order = s->order,
                                   .groups = groups,
                                   .marked = s->verdict,
                                   .first = s->verdict + s->most};
    k->core->timer_mark(k, NULL);
    k->head->path_decide(k, &job);
    k->core->timer_mark(k, &s->verify_s);
    for (int i = 0; i < groups; i++) s->first[i] = 0; /* stays so if the queue has failed */
    k->core->download(k, s->first, job.first, (size_t)groups * sizeof *s->first);
}

/* Adds the accepted tokens' squared differences to the model's last means. */
static void add_shift(sphere_paths *s)
{
    const size_t c = (size_t)channels_of(s), n = (size_t)s->rows * c;
    kern_queue *k = s->g->k;
    k->core->subtract(k, s->x, s->last, n, s->last);
    k->core->download(k, s->shift, s->last, n * sizeof *s->shift);
    for (int i = 0; i < s->rows; i++)
        for (size_t j = 0; s->order[i] < s->kept[s->group[i]] && j < c; j++)
            s->shift_sum += (double)s->shift[(size_t)i * c + j] * (double)s->shift[(size_t)i * c + j];
}

/* Judges the round's paths, and counts the accepted ones in front of an image's first rejected one. */
static void judge_round(sphere_paths *s)
{
    sphere *g = s->g;
    const int n = s->rows;
    g->k->core->timer_mark(g->k, NULL);
    for (int i = 0; i < n; i++) s->index[i] = i;
    gather(s, s->z, s->index, n, g->model->shape.transformer.shape.width, s->z_part);
    const diff_tokens tokens = tokens_at(s, 0, n, n, NULL, s->z_part);
    diff_paths_judge(&s->target, &tokens, s->path, s->log_ratio, s->last, &s->work);
    g->k->core->timer_mark(g->k, &g->head_s);
    decide(s, 0, g->max_images);
    for (int slot = 0; slot < g->max_images; slot++)
        s->kept[slot] = s->first[slot] < s->length[slot] ? s->first[slot] : s->length[slot];
    add_shift(s);
}

/* --- replacements ------------------------------------------------------------------------------------------------- */

/* Lists the first rejected draft of each image. Returns their number. */
static int list_rejected(sphere_paths *s)
{
    int n = 0;
    for (int slot = 0; slot < s->g->max_images; slot++) {
        if (s->kept[slot] == s->length[slot]) continue;
        s->rejected[n] = s->row_of[slot * s->gamma + s->kept[slot]];
        s->slot[n] = slot;
        s->token[n++] = s->g->slots.slot[slot].known + s->kept[slot];
    }
    return n;
}

/* Draws candidates from .. from+each-1 of each of the n tokens to replace, and decides on them. */
static void try_candidates(sphere_paths *s, int n, int from, int each)
{
    sphere *g = s->g;
    kern_queue *k = g->k;
    k->core->timer_mark(k, NULL);
    gather(s, s->z, s->rejected, n, g->model->shape.transformer.shape.width, s->z_part);
    gather(s, s->draft_z, s->rejected, n, s->draft_width, s->draft_part);
    s->rows = 0;
    for (int i = 0; i < n; i++)
        for (int j = from; j < from + each; j++) {
            s->index[s->rows] = i;
            list_row(s, s->slot[i], s->token[i], j, i,
                     g->slots.slot[s->slot[i]].number + (uint64_t)(j + 1) * SPHERE_CANDIDATE_IMAGES);
        }
    const diff_tokens p = tokens_at(s, 0, s->rows, n, s->index, s->z_part);
    const diff_tokens q = tokens_at(s, 0, s->rows, n, s->index, s->draft_part);
    diff_paths_draw(&s->target, &p, s->x, s->path, &s->work);
    k->core->timer_mark(k, &g->head_s);
    diff_paths_judge(&s->draft, &q, s->path, s->log_ratio, s->last, &s->drafted_work);
    k->core->timer_mark(k, &s->draft_s);
    decide(s, 1, n);
    s->tries += s->rows;
}

/* Writes the kept candidates to the images. Returns the number of tokens that wait for more, listed first. */
static int take_candidates(sphere_paths *s, int n, int from, int each)
{
    int waiting = 0, taken = 0;
    for (int i = 0; i < n; i++) {
        const int last = from + each >= TRIES_MOST ? from + each - 1 : INT_MAX;
        const int kept = s->first[i] < last ? s->first[i] : last;
        if (kept == INT_MAX) {
            s->rejected[waiting] = s->rejected[i];
            s->slot[waiting] = s->slot[i];
            s->token[waiting++] = s->token[i];
            continue;
        }
        s->index[taken] = i * each + kept - from;
        s->place[taken++] = s->place[i * each];
    }
    write_tokens(s, s->index, s->place, taken);
    return waiting;
}

static mar_status replace_rejected(sphere_paths *s, mar_err *err)
{
    int n = list_rejected(s);
    mar_status status = kern_check(s->g->k, err);
    for (int from = 0, each = CANDIDATES; status == MAR_OK && n > 0; from += each, each *= 2) {
        if (each > s->most / n) each = s->most / n;
        try_candidates(s, n, from, each);
        status = kern_check(s->g->k, err);
        if (status == MAR_OK) n = take_candidates(s, n, from, each);
    }
    return status;
}

/* --- a round ------------------------------------------------------------------------------------------------------ */

/* Moves the images on by the round's tokens. */
static void commit(sphere_paths *s)
{
    sphere *g = s->g;
    for (int slot = 0; slot < g->max_images; slot++) {
        const int n = s->length[slot], kept = s->kept[slot], made = kept < n ? kept + 1 : n;
        if (n == 0) continue;
        mar_slots_add(&g->slots, slot, kept, MAR_TOKEN_ACCEPTED);
        mar_slots_add(&g->slots, slot, made - kept, MAR_TOKEN_REPLACED);
        g->stats.tokens += made;
        s->drafted += kept < n ? kept + 1 : n;
        s->accepted += kept;
        s->rounds++;
        s->round_steps += made;
    }
}

mar_status sphere_paths_round(sphere_paths *s, mar_err *err)
{
    draft_round(s);
    predict(s);
    judge_round(s);
    const mar_status status = replace_rejected(s, err);
    if (status == MAR_OK) commit(s);
    return status;
}

void sphere_paths_admit(sphere_paths *s, const int *slot, const mar_image *images, int n)
{
    sphere_admit(s->g, s->runner, slot, images, n);
}

void sphere_paths_begin(sphere_paths *s)
{
    s->drafted = s->accepted = s->rounds = s->round_steps = s->tries = 0;
    s->shift_sum = s->verify_s = s->draft_s = 0;
    s->work = s->drafted_work = (diff_speculation_stats){0};
    causal_runner_clear_stats(s->runner);
}

void sphere_paths_stats(const sphere_paths *s, mar_stats *stats)
{
    const double numbers = (double)s->accepted * channels_of(s);
    const causal_runner_stats *draft = causal_runner_get_stats(s->runner);
    stats->verify_s = s->verify_s;
    stats->draft_s = s->draft_s + draft->prefix_s + draft->tokens_s;
    stats->draft_flop = draft->flop + s->drafted_work.flop;
    stats->head_flop += s->work.flop;
    stats->head_calls += (double)s->work.calls;
    stats->head_batched += (double)s->work.batched;
    stats->head_rows += (double)s->work.evaluations;
    if (s->work.calls_max > stats->head_calls_max) stats->head_calls_max = s->work.calls_max;
    stats->proposals += s->work.accepted + s->work.rejected;
    stats->proposals_accepted += s->work.accepted;
    stats->draft_calls = (double)s->drafted_work.batched;
    stats->drafted = s->drafted;
    stats->accepted = s->accepted;
    stats->rounds = s->rounds;
    stats->round_steps = s->round_steps;
    stats->residual_tries += s->tries + s->work.tries;
    stats->accepted_shift = numbers > 0 ? sqrt(s->shift_sum / numbers) : 0;
}

/* --- creation ----------------------------------------------------------------------------------------------------- */

/* Assigns parts of the host memory at base. Returns its size in bytes. base NULL only counts. */
static size_t lay_out_host(sphere_paths *s, char *base)
{
    const size_t most = (size_t)s->most, images = (size_t)s->g->max_images, gamma = (size_t)s->gamma;
    int **const of_rows[] = {&s->order, &s->group, &s->position, &s->place, &s->index};
    int **const of_images[] = {&s->length, &s->kept, &s->first, &s->rejected, &s->slot, &s->token};
    size_t used = 0;
    for (size_t i = 0; i < sizeof of_rows / sizeof *of_rows; i++)
        *of_rows[i] = arena_carve(base, &used, most, sizeof(int));
    for (size_t i = 0; i < sizeof of_images / sizeof *of_images; i++)
        *of_images[i] = arena_carve(base, &used, images, sizeof(int));
    s->row_of = arena_carve(base, &used, images * gamma, sizeof *s->row_of);
    s->seed = arena_carve(base, &used, most, sizeof *s->seed);
    s->image = arena_carve(base, &used, most, sizeof *s->image);
    s->cfg = arena_carve(base, &used, most, sizeof *s->cfg);
    s->shift = arena_carve(base, &used, most * (size_t)channels_of(s), sizeof *s->shift);
    return used;
}

static mar_status create_heads(sphere_paths *s, mar_err *err)
{
    sphere *g = s->g;
    const mar_params *p = &g->params;
    const int guided = branches_of(s) == 2, window = p->head_spec ? p->head_spec : 1;
    const sphere_model *draft = sphere_model_of(p->draft);
    const diff_spec spec = {p->sampler, p->num_sampling_steps, DIFF_TOP, DIFF_FLOW};
    mar_status status =
        diff_chain_create_for(g->k, &draft->head, &spec, 1, p->temperature, s->most, guided, &s->chain, err);
    s->chain.part = "draft: ";
    if (status == MAR_OK) status = diff_paths_create(&s->chain, window, s->most, &s->draft, err);
    if (status == MAR_OK) status = diff_paths_create(&g->chain, window, s->most, &s->target, err);
    return status;
}

mar_status sphere_paths_check(const sphere_model *model, const mar_params *p, int max_images, mar_err *err)
{
    const mar_model *draft = p->draft;
    if (!draft) return err_set(err, MAR_EARG, "--spec path: needs --draft with a SphereAR model");
    const mar_status status = mar_check_draft(&model->base, draft, err);
    if (status != MAR_OK) return status;
    if ((int64_t)max_images * sphere_paths_gamma(p) > MOST_ROWS)
        return err_set(err, MAR_EARG, "batch of %d images with --gamma %d: too large", max_images,
                       sphere_paths_gamma(p));
    if (p->context == MAR_CONTEXT_PREFIX)
        return err_set(err, MAR_EARG, "--context prefix: expected full with a SphereAR model");
    return MAR_OK;
}

int sphere_paths_gamma(const mar_params *p)
{
    return p->gamma ? p->gamma : GAMMA;
}

int sphere_paths_rows(const mar_params *p, int max_images)
{
    const int rows = max_images * sphere_paths_gamma(p);
    return rows > CANDIDATES_MOST ? rows : CANDIDATES_MOST;
}

mar_status sphere_paths_create(sphere *g, sphere_paths **out, mar_err *err)
{
    sphere_paths *s = calloc(1, sizeof *s);
    *out = s;
    if (!s) return err_set(err, MAR_ENOMEM, "out of memory");
    s->g = g;
    s->gamma = sphere_paths_gamma(&g->params);
    s->most = sphere_paths_rows(&g->params, g->max_images);
    s->host = calloc(1, lay_out_host(s, NULL));
    if (!s->host) return err_set(err, MAR_ENOMEM, "out of memory for rounds of %d tokens", s->most);
    lay_out_host(s, s->host);
    const causal_model *draft = sphere_model_of(g->params.draft)->transformer;
    s->draft_width = draft->shape.width;
    const mar_status status = causal_runner_create(g->k, draft, &(causal_sampling){.cfg = g->params.cfg}, g->max_images,
                                                   0, 0, &s->runner, err);
    if (status == MAR_OK) causal_runner_name(s->runner, "draft: ");
    return status == MAR_OK ? create_heads(s, err) : status;
}

void sphere_paths_free(sphere_paths *s)
{
    if (!s) return;
    diff_paths_free(&s->target);
    diff_paths_free(&s->draft);
    diff_chain_free(&s->chain);
    causal_runner_free(s->runner);
    free(s->host);
    free(s);
}

size_t sphere_paths_lay_out(sphere_paths *s, char *base)
{
    const size_t most = (size_t)s->most, c = (size_t)channels_of(s) * sizeof(float), f = sizeof(float);
    const size_t width = (size_t)s->g->model->shape.transformer.shape.width;
    const size_t draft = (size_t)s->draft_width;
    size_t used = 0;
    s->path = arena_carve(base, &used, most * (size_t)s->target.stride, f);
    s->x = arena_carve(base, &used, most, c);
    s->normal = arena_carve(base, &used, most, c);
    s->last = arena_carve(base, &used, most, c);
    s->z = arena_carve(base, &used, 2 * most * width, f);
    s->draft_z = arena_carve(base, &used, 2 * most * draft, f);
    s->z_part = arena_carve(base, &used, 2 * most * width, f);
    s->draft_part = arena_carve(base, &used, 2 * most * draft, f);
    s->log_ratio = arena_carve(base, &used, most, sizeof *s->log_ratio);
    s->verdict = arena_carve(base, &used, most + (size_t)s->g->max_images, sizeof *s->verdict);
    used += causal_runner_lay_out(s->runner, base ? base + used : NULL);
    used += diff_chain_lay_out(&s->chain, base ? base + used : NULL);
    used += diff_paths_lay_out(&s->target, base ? base + used : NULL);
    used += diff_paths_lay_out(&s->draft, base ? base + used : NULL);
    return used;
}

/* The shapes of rounds depend on what is accepted, so the largest are planned. */
mar_status sphere_paths_plan(sphere_paths *s, int images, mar_err *err)
{
    const int guided = branches_of(s) == 2;
    diff_chain_guide(&s->g->chain, guided);
    diff_chain_guide(&s->chain, guided);
    mar_status status = causal_runner_plan(s->runner, images, err);
    if (status == MAR_OK) status = diff_paths_plan(&s->target, s->most, err);
    return status == MAR_OK ? diff_paths_plan(&s->draft, s->most, err) : status;
}
