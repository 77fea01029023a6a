/* A round of speculation across tokens by whole paths (mar/accel/path.h). */
#include "mar/accel/path.h"

#include <limits.h>

/* --- rows --------------------------------------------------------------------------------------------------------- */

static int in_full(const mar_paths *s)
{
    return !s->draft || s->g->params.context == MAR_CONTEXT_FULL;
}

/* Returns the tokens of steps first .. last. */
static int tokens_of(const mar_paths *s, int first, int last)
{
    const mar_step *steps = s->g->steps;
    return steps[last].known + steps[last].predicted - steps[first].known;
}

/* Returns the step after the current round. */
static int round_end(const mar_paths *s, int image)
{
    return s->from[image] + s->length[image];
}

/* Returns the steps of an image's next round. With gamma auto it maximises the expected steps for their cost. A step is
 * assumed to stay whole at the rate seen so far in this image. Each context costs `context` of a round's fixed cost: a
 * third, by the model of a GPU's time (bench/path_model.py). It is one number for all backends, so that an image has
 * the same rounds on each. */
static int round_length(const mar_paths *s, int image)
{
    /* Pseudo-count: steps that count as seen before the first one, and the share of them that stayed whole. */
    const double prior = 8, rate = 0.85;
    const double context = 1.0 / 3;
    const double whole = (s->whole[image] + prior * rate) / (s->tried[image] + prior);
    const int left = s->g->params.num_iter - s->begin[image];
    int best = s->gamma;
    double reached = 1, steps = 0, most = 0;
    for (int n = 1; s->g->params.gamma == 0 && n <= s->gamma; n++, reached *= whole) {
        steps += reached;
        if (steps / (1 + n * context) > most) most = steps / (1 + n * context), best = n;
    }
    return best < left ? best : left;
}

static void append(path_rows *r, const path_rows *row)
{
    const int n = r->n++;
    r->seed[n] = *row->seed;
    r->image[n] = *row->image;
    r->position[n] = *row->position;
    r->group[n] = *row->group;
    r->order[n] = *row->order;
    r->place[n] = *row->place;
    r->source[n] = *row->source;
    r->steps[n] = *row->steps;
    r->cfg[n] = *row->cfg;
}

/* Lists the tokens of a step as drafts. */
static void list_step(mar_paths *s, int image, int step)
{
    const mar_masked *g = s->g;
    const mar_step *t = &g->steps[step];
    const int *position = g->order[image] + g->model->base.config.seq_len - t->known - t->predicted;
    uint64_t seed = g->slots.slot[image].seed, number = g->slots.slot[image].number;
    int diffusion = t->sampling_steps;
    float cfg = t->cfg;
    for (int place = 0; place < t->predicted; place++) {
        int at = position[place], source = s->drawn.n;
        const path_rows row = {1, &seed, &number, &at, &image, &step, &place, &source, &diffusion, &cfg};
        append(&s->drawn, &row);
    }
}

/* Lists the drafts of the next round: the first step of every image, then the second, ... */
static void list_drafts(mar_paths *s)
{
    const mar_masked *g = s->g;
    int longest = 0;
    s->drawn.n = 0;
    for (int i = 0; i < g->images; i++) {
        s->from[i] = s->begin[i];
        s->length[i] = round_length(s, i);
        if (s->length[i] > longest) longest = s->length[i];
    }
    for (int j = 0; j < longest; j++)
        for (int i = 0; i < g->images; i++)
            if (j < s->length[i]) list_step(s, i, s->from[i] + j);
    s->drafts = s->drawn.n;
}

/* Lists `count` candidates for each token to replace, after the drafts. */
static void list_candidates(mar_paths *s, int count)
{
    const path_rows *p = &s->pending;
    s->drawn.n = s->drafts;
    for (int i = 0; i < p->n; i++)
        for (int k = 0; k < count; k++) {
            int number = s->tries[i] + k, source = s->drafts + i;
            uint64_t image = p->image[i] + (uint64_t)(number + 1) * PATH_CANDIDATE_IMAGES;
            const path_rows row = {1,       &p->seed[i],  &image,  &p->position[i], &i,
                                   &number, &p->place[i], &source, &p->steps[i],    &p->cfg[i]};
            append(&s->drawn, &row);
        }
}

/* Returns the candidates for each token in the next draw. */
static int candidates(const mar_paths *s, int round)
{
    const int wanted = round < 4 ? PATH_CANDIDATES << round : PATH_CANDIDATES_MOST;
    const int fit = PATH_CANDIDATES_MOST / s->pending.n;
    return wanted < fit ? wanted : fit > 1 ? fit : 1;
}

/* --- z ------------------------------------------------------------------------------------------------------------ */

/* Returns the row of contexts.z of a step's token in the context of step `context`. */
static int z_row(const mar_paths *s, int image, int context, int step, int place)
{
    const mar_step *steps = s->g->steps;
    const size_t at = (size_t)image * (size_t)s->g->params.num_iter + (size_t)context;
    return s->z_first[at] + s->z_queries[at] + steps[context].known - steps[step].known - steps[step].predicted + place;
}

/* Writes to [branches][n][width] = rows row[0..n-1] of each branch of from [branches][rows][width]. `row` is index[0],
 * with room for all branches. */
static void gather(mar_paths *s, const float *from, int rows, int n, int width, float *to)
{
    kern_queue *k = s->g->k;
    int *row = s->index[0];
    for (int i = n; i < s->g->cfg_branches * n; i++) row[i] = row[i - n] + rows;
    k->core->copy_rows(k, to, NULL, from, row, NULL, NULL, s->g->cfg_branches * n, width);
}

static int target_width(const mar_paths *s)
{
    return s->g->model->base.config.width;
}

static int drafter_width(const mar_paths *s)
{
    return s->draft ? s->draft->runner.model->base.config.width : target_width(s);
}

/* --- the heads ---------------------------------------------------------------------------------------------------- */

/* The z of some rows: `sources` of them, from source number `base` on. */
typedef struct {
    const float *z; /* [branches][sources][width] */
    int sources, base, width;
} row_z;

/* Returns the rows from `first` on, below `end`, that take as many diffusion steps as the first, as tokens of one
 * call. */
static diff_tokens same_steps(mar_paths *s, const row_z *c, int first, int end)
{
    const path_rows *r = &s->drawn;
    int n = 1;
    while (first + n < end && r->steps[first + n] == r->steps[first]) n++;
    const int from = r->source[first] - c->base, sources = r->source[first + n - 1] - c->base - from + 1;
    for (int i = 0; i < n; i++) s->relative[i] = r->source[first + i] - c->base - from;
    const float *z = c->z;
    if (sources < c->sources) {
        for (int i = 0; i < sources; i++) s->index[0][i] = from + i;
        gather(s, c->z, c->sources, sources, c->width, s->part_z);
        z = s->part_z;
    }
    return (diff_tokens){.count = n,
                         .sources = sources,
                         .source = s->relative,
                         .z = z,
                         .cfg = r->cfg + first,
                         .seed = r->seed + first,
                         .image = r->image + first,
                         .position = r->position + first};
}

static float *path_at(const mar_paths *s, int row)
{
    return s->path + (size_t)row * (size_t)s->target.stride;
}

static size_t token_at(const mar_paths *s, int row)
{
    return (size_t)row * (size_t)s->g->model->base.config.token_dim;
}

/* Adds the statistics of a head, the target's or the draft model's. */
static void count_head(mar_paths *s, const diff_paths *by, const diff_speculation_stats *done)
{
    mar_stats *stats = &s->g->stats;
    mar_runner *r = by == &s->target ? &s->g->target : &s->draft->runner;
    r->head_flop += done->flop;
    if (by != &s->target) {
        stats->draft_calls += (double)done->batched;
        return;
    }
    stats->head_batched += (double)done->batched;
    stats->head_calls += (double)done->calls;
    stats->head_rows += (double)done->evaluations;
    stats->proposals += done->accepted + done->rejected;
    stats->proposals_accepted += done->accepted;
    stats->residual_tries += done->tries;
    if (done->calls_max > stats->head_calls_max) stats->head_calls_max = done->calls_max;
}

/* Runs a head on rows first .. end-1: draws their tokens and paths, or computes their log_ratio and last under its
 * distribution. */
static void run_rows(mar_paths *s, diff_paths *by, const row_z *c, int first, int end, int draws)
{
    kern_queue *k = s->g->k;
    mar_runner *r = by == &s->target ? &s->g->target : &s->draft->runner;
    k->core->timer_mark(k, NULL);
    for (int n; first < end; first += n) {
        diff_speculation_stats done = {0};
        const diff_tokens tokens = same_steps(s, c, first, end);
        n = tokens.count;
        diff_chain_use(&r->chain, s->drawn.steps[first]);
        if (draws)
            diff_paths_draw(by, &tokens, s->token + token_at(s, first), path_at(s, first), &done);
        else
            diff_paths_judge(by, &tokens, path_at(s, first), s->log_ratio + first, s->last + token_at(s, first), &done);
        count_head(s, by, &done);
    }
    k->core->timer_mark(k, draws ? &r->head_s : &s->g->stats.verify_s);
}

static void draw(mar_paths *s, diff_paths *by, const row_z *c, int first, int end)
{
    run_rows(s, by, c, first, end, 1);
}

static void judge(mar_paths *s, diff_paths *by, const row_z *c, int first, int end)
{
    run_rows(s, by, c, first, end, 0);
}

static path_verdicts verdicts_in(float *memory, int rows, int groups)
{
    int *marked = (int *)memory;
    return (path_verdicts){marked, marked + rows, memory + rows + groups};
}

/* Decides on rows first .. end-1 of `drawn`, by groups. */
static path_verdicts decide(mar_paths *s, int first, int end, int groups, int are_candidates)
{
    kern_queue *k = s->g->k;
    const path_verdicts v = verdicts_in(s->verdicts, end - first, groups);
    const kern_path_verdict job = {.rows = end - first,
                                   .candidates = are_candidates,
                                   .log_ratio = s->log_ratio + first,
                                   .step = DIFF_BASE_STEPS, /* no step of a chain */
                                   .seed = s->drawn.seed + first,
                                   .image = s->drawn.image + first,
                                   .position = s->drawn.position + first,
                                   .group = s->drawn.group + first,
                                   .order = s->drawn.order + first,
                                   .groups = groups,
                                   .marked = v.marked,
                                   .first = v.first};
    k->core->timer_mark(k, NULL);
    k->head->path_decide(k, &job);
    k->core->timer_mark(k, &s->g->stats.verify_s);
    return v;
}

/* --- drafts ------------------------------------------------------------------------------------------------------- */

/* Returns the recordings of a pass. Only a batch of one image has shapes that recur with every image; else returns
 * NULL. */
static mar_recordings *recordings_at(const mar_paths *s, mar_recordings *recordings, int i)
{
    return s->g->images == 1 ? &recordings[i] : NULL;
}

static void add_context(mar_paths *s, int *n, int image, int step, int last)
{
    const mar_masked *g = s->g;
    const size_t at = (size_t)image * (size_t)g->params.num_iter + (size_t)step;
    const int n_queries = tokens_of(s, step, last);
    s->list[(*n)++] = (mar_image_context){
        .image = image, .order = g->order[image], .known = g->steps[step].known, .n_queries = n_queries};
    s->z_first[at] = s->z_rows;
    s->z_queries[at] = n_queries;
    s->z_rows += n_queries;
}

static void pass(mar_paths *s, int contexts, mar_recordings *recordings)
{
    mar_masked *g = s->g;
    mar_contexts_place(s->list, contexts);
    mar_contexts_run(&s->contexts, s->list, contexts, &g->target.embedded, recordings);
    g->stats.passes++;
    g->stats.contexts += contexts;
}

/* Computes the first z of a target that drafts for itself: that of empty images. */
static void begin_images(mar_paths *s)
{
    int n = 0;
    s->z_rows = 0;
    for (int i = 0; i < s->g->images; i++)
        add_context(s, &n, i, 0, s->gamma < s->g->params.num_iter ? s->gamma : s->g->params.num_iter - 1);
    pass(s, n, recordings_at(s, s->recordings, 0));
}

/* Returns the step whose z the target's own drafts of the current round have: the last final one, or the first step if
 * none is final. */
static int drafted_in(const mar_paths *s, int image)
{
    return s->from[image] ? s->from[image] - 1 : 0;
}

/* Draws the target's own drafts, together with the first candidates for tokens to replace. Both have their z from the
 * last pass. */
static void draft_by_target(mar_paths *s)
{
    mar_masked *g = s->g;
    list_drafts(s);
    if (s->pending.n) list_candidates(s, candidates(s, 0));
    const int sources = s->drafts + s->pending.n, width = target_width(s);
    if (sources == 0) return;
    for (int r = 0; r < s->drafts; r++) {
        const int image = s->drawn.group[r], context = drafted_in(s, image);
        s->index[0][r] = z_row(s, image, context, s->drawn.order[r], s->drawn.place[r]);
    }
    for (int i = 0; i < s->pending.n; i++) s->index[0][s->drafts + i] = s->pending.source[i];
    gather(s, s->contexts.z, s->z_rows, sources, width, s->draft_z);
    s->draft_sources = sources;
    draw(s, &s->target, &(row_z){s->draft_z, sources, 0, width}, 0, s->drawn.n);
    mar_runner_add_known_tokens(&g->target, s->token, s->drafts, s->drawn.group, s->drawn.position, NULL);
}

/* Draws the drafts of step j of all rounds, rows first .. end-1, by the draft model in the context of the drafts
 * before. */
static void draft_step(mar_paths *s, int j, int first, int end)
{
    mar_masked *g = s->g;
    mar_runner *r = &s->draft->runner;
    const int n = end - first, width = drafter_width(s);
    int contexts = 0;
    for (int i = 0; i < g->images; i++) {
        if (j >= s->length[i]) continue;
        const mar_step *step = &g->steps[s->from[i] + j];
        s->list[contexts++] =
            (mar_image_context){.image = i, .order = g->order[i], .known = step->known, .n_queries = step->predicted};
    }
    mar_contexts_place(s->list, contexts);
    mar_contexts_run(&s->draft_contexts, s->list, contexts, &r->embedded,
                     recordings_at(s, s->draft_passes, s->from[0] + j));
    for (int c = 0; c < g->cfg_branches; c++)
        for (int i = 0; i < n; i++) s->index[1][c * n + i] = c * s->drafts + first + i;
    g->k->core->copy_rows(g->k, s->draft_z, s->index[1], s->draft_contexts.z, NULL, NULL, NULL, g->cfg_branches * n,
                          width);
    draw(s, &s->other, &(row_z){s->draft_contexts.z, n, first, width}, first, end);
    const float *tokens = s->token + token_at(s, first);
    mar_runner_add_known_tokens(r, tokens, n, s->drawn.group + first, s->drawn.position + first, NULL);
    if (in_full(s))
        mar_runner_add_known_tokens(&g->target, tokens, n, s->drawn.group + first, s->drawn.position + first, NULL);
}

static void draft_by_model(mar_paths *s)
{
    list_drafts(s);
    s->draft_sources = s->drafts;
    for (int j = 0, first = 0, end; first < s->drafts; j++, first = end) {
        end = first;
        while (end < s->drafts && s->drawn.order[end] - s->from[s->drawn.group[end]] == j) end++;
        draft_step(s, j, first, end);
    }
}

/* --- verification ------------------------------------------------------------------------------------------------- */

/* Runs the target's pass over the contexts of all rounds. A step that was drafted with its true z needs none. */
static void pass_round(mar_paths *s)
{
    const mar_masked *g = s->g;
    const int last_step = g->params.num_iter - 1, begins = !s->draft && g->step == 0;
    int contexts = 0, known = 0;
    for (int r = 0; begins && r < s->drafts; r++) known += s->drawn.order[r] == 0;
    s->known = known;
    if (known == s->drafts) return; /* their z stays in contexts.z */
    s->z_rows = 0;
    for (int i = 0; i < g->images; i++) {
        const int begin = s->from[i], end = round_end(s, i);
        if (in_full(s)) {
            for (int step = begin + begins; step < end; step++) {
                const int ahead = step + s->gamma < last_step ? step + s->gamma : last_step;
                add_context(s, &contexts, i, step, s->draft ? step : ahead);
            }
        } else if (begin < end) {
            add_context(s, &contexts, i, begin, end - 1);
        }
    }
    pass(s, contexts, recordings_at(s, s->recordings, s->from[0] * (s->gamma + 1) + s->length[0]));
}

/* Returns the step in whose context a draft is verified. */
static int verified_in(const mar_paths *s, int image, int step)
{
    return in_full(s) ? step : s->from[image];
}

/* Verifies all drafts but those drafted with their true z: log P/Q, the verdicts, and the shifts of their tokens from
 * the target's last means. */
static mar_status verify(mar_paths *s, mar_err *err)
{
    mar_masked *g = s->g;
    kern_queue *k = g->k;
    const int first = s->known, n = s->drafts - first, width = target_width(s);
    if (n == 0) return MAR_OK;
    for (int r = 0; r < n; r++) {
        const int row = first + r, image = s->drawn.group[row], step = s->drawn.order[row];
        s->index[0][r] = z_row(s, image, verified_in(s, image, step), step, s->drawn.place[row]);
    }
    gather(s, s->contexts.z, s->z_rows, n, width, s->true_z);
    judge(s, &s->target, &(row_z){s->true_z, n, first, width}, first, s->drafts);
    const path_verdicts v = decide(s, first, s->drafts, g->images, 0);
    k->core->subtract(k, s->token + token_at(s, first), s->last + token_at(s, first), token_at(s, n), v.shift);
    k->core->download(k, s->report, s->verdicts, ((size_t)n + (size_t)g->images + token_at(s, n)) * sizeof *s->report);
    return kern_check(k, err);
}

/* --- the end of a round ------------------------------------------------------------------------------------------- */

/* Records a token's status, as number `at` of the tokens that are written together. */
static void note(mar_paths *s, int at, int image, int position, int step, mar_token_status fate)
{
    mar_masked *g = s->g;
    const int place = image * g->model->base.config.seq_len + position, drafted = fate != MAR_TOKEN_TARGET;
    g->row_place[at] = place;
    g->row_slot[at] = image;
    g->row_position[at] = position;
    g->slots.token_status[place] = (uint8_t)fate;
    g->slots.ar_step[place] = step;
    g->slots.staleness[place] = drafted && !s->draft ? step - s->context[image] : 0;
}

/* Writes the tokens at rows index[1][0..n-1] of `from` to the places recorded. make_known: makes them known to the
 * models. */
static void write_tokens(mar_paths *s, const float *from, int n, int make_known)
{
    mar_masked *g = s->g;
    kern_queue *k = g->k;
    mar_runner *runners[2] = {&g->target, s->draft ? &s->draft->runner : NULL};
    if (n == 0) return;
    k->core->copy_rows(k, g->sampled, NULL, from, s->index[1], NULL, NULL, n, g->model->base.config.token_dim);
    mar_masked_write_tokens(g, g->sampled, n);
    for (int i = 0; make_known && i < 2 && runners[i]; i++)
        mar_runner_add_known_tokens(runners[i], g->sampled, n, g->row_slot, g->row_position, NULL);
}

/* Advances every image past its last step that counts. first [images] is the first step with a replacement; NULL: no
 * image has one. */
static void advance_images(mar_paths *s, const int *first)
{
    mar_masked *g = s->g;
    for (int i = 0; i < g->images; i++) {
        const int begin = s->from[i], end = round_end(s, i), whole = first && first[i] < end ? first[i] : end;
        const int reached = !in_full(s) || whole == end ? end : whole + 1, judged = begin + (s->known > 0);
        if (begin == end) continue;
        g->stats.rounds++;
        g->stats.round_steps += reached - begin;
        if (reached > judged) s->tried[i] += reached - judged, s->whole[i] += whole - judged;
        s->begin[i] = reached;
    }
}

/* Keeps the drafts that the verdicts accept, and lists the rejected ones as pending: pending.source is the row of P's
 * z, index[0] the draft. Returns the number kept; index[1] lists them. */
static int commit_drafts(mar_paths *s, const path_verdicts *v)
{
    mar_masked *g = s->g;
    const path_rows *d = &s->drawn;
    const int channels = g->model->base.config.token_dim;
    int kept = 0;
    s->pending.n = 0;
    for (int r = 0; r < s->drafts; r++) {
        const int step = d->order[r], image = d->group[r], judged = r - s->known;
        if (step >= s->begin[image]) continue;
        g->stats.drafted += judged >= 0;
        if (judged >= 0 && v->marked[judged]) {
            int z = z_row(s, image, verified_in(s, image, step), step, d->place[r]);
            const path_rows row = {
                1,  &d->seed[r],  &d->image[r], &d->position[r], &d->group[r], &d->order[r], &d->place[r],
                &z, &d->steps[r], &d->cfg[r]};
            s->tries[s->pending.n] = 0;
            s->index[0][s->pending.n] = r;
            append(&s->pending, &row);
            continue;
        }
        for (int c = 0; c < channels && judged >= 0; c++) {
            const double shift = v->shift[token_at(s, judged) + (size_t)c];
            s->shift_sum += shift * shift;
        }
        g->stats.accepted += judged >= 0;
        s->index[1][kept] = r;
        note(s, kept++, image, d->position[r], step, judged < 0 ? MAR_TOKEN_TARGET : MAR_TOKEN_ACCEPTED);
    }
    return kept;
}

/* Commits the verdicts on drafts. In context full all models know the drafts. In context prefix no context has seen
 * one, and the accepted ones become the target's own last means. */
static void commit_verdicts(mar_paths *s)
{
    mar_masked *g = s->g;
    const int judged = s->drafts - s->known;
    const path_verdicts v = verdicts_in(s->report, judged, g->images);
    for (int i = 0; i < g->images; i++) s->context[i] = drafted_in(s, i);
    advance_images(s, judged ? v.first : NULL);
    const int kept = commit_drafts(s, &v);
    gather(s, s->draft_z, s->draft_sources, s->pending.n, drafter_width(s), s->pending_q[0]);
    for (int i = 0; i < s->pending.n; i++) s->index[0][i] = s->pending.source[i];
    gather(s, s->contexts.z, s->z_rows, s->pending.n, target_width(s), s->pending_p[0]);
    write_tokens(s, in_full(s) ? s->token : s->last, kept, !in_full(s));
}

/* Takes the accepted candidates of a draw with `count` for each token, and keeps the tokens without one in the list.
 * first [pending.n] is the number of the first accepted one; INT_MAX: none. */
static void commit_candidates(mar_paths *s, const int *first, int count, int buffer)
{
    path_rows *p = &s->pending;
    const int n = p->n;
    int replaced = 0;
    p->n = 0;
    for (int i = 0; i < n; i++) {
        if (first[i] == INT_MAX) {
            const path_rows row = {1,
                                   &p->seed[i],
                                   &p->image[i],
                                   &p->position[i],
                                   &p->group[i],
                                   &p->order[i],
                                   &p->place[i],
                                   &p->source[i],
                                   &p->steps[i],
                                   &p->cfg[i]};
            s->tries[p->n] = s->tries[i] + count;
            s->index[0][p->n] = i;
            append(p, &row);
            continue;
        }
        s->g->stats.residual_tries += first[i] + 1;
        s->index[1][replaced] = s->drafts + i * count + first[i] - s->tries[i];
        note(s, replaced++, p->group[i], p->position[i], p->order[i], MAR_TOKEN_REPLACED);
    }
    gather(s, s->pending_p[buffer], n, p->n, target_width(s), s->pending_p[1 - buffer]);
    gather(s, s->pending_q[buffer], n, p->n, drafter_width(s), s->pending_q[1 - buffer]);
    write_tokens(s, s->token, replaced, 1);
}

/* Draws from the residual for all tokens to replace. drawn: their first candidates are drawn already. */
static mar_status replace(mar_paths *s, int drawn, mar_err *err)
{
    kern_queue *k = s->g->k;
    mar_status status = MAR_OK;
    for (int round = 0, buffer = 0; status == MAR_OK && s->pending.n; round++, buffer = 1 - buffer) {
        const int n = s->pending.n, count = candidates(s, round);
        const row_z p = {s->pending_p[buffer], n, s->drafts, target_width(s)};
        const row_z q = {s->pending_q[buffer], n, s->drafts, drafter_width(s)};
        if (round > 0 || !drawn) {
            list_candidates(s, count);
            draw(s, &s->target, &p, s->drafts, s->drawn.n);
        }
        judge(s, s->drafter, &q, s->drafts, s->drawn.n);
        const path_verdicts v = decide(s, s->drafts, s->drawn.n, n, 1);
        k->core->download(k, s->report, v.first, (size_t)n * sizeof *v.first);
        status = kern_check(k, err);
        if (status != MAR_OK) return status; /* there is nothing to read */
        commit_candidates(s, (const int *)s->report, count, buffer);
        if (s->pending.n && s->tries[0] >= PATH_TRIES_MOST)
            status = err_set(err, MAR_EMODEL, "image %llu, step %d: none of %d candidates for a token is kept",
                             (unsigned long long)s->pending.image[0], s->pending.order[0], s->tries[0]);
    }
    return status;
}

/* --- the round ---------------------------------------------------------------------------------------------------- */

mar_status mar_paths_round(mar_paths *s, mar_err *err)
{
    mar_masked *g = s->g;
    if (s->draft) {
        draft_by_model(s);
    } else if (g->step == 0) {
        begin_images(s);
        draft_by_target(s);
    }
    pass_round(s);
    mar_status status = verify(s, err);
    if (status != MAR_OK) return status;
    commit_verdicts(s);
    if (!s->draft) draft_by_target(s);
    status = replace(s, !s->draft, err);
    if (status != MAR_OK) return status;
    g->step = s->begin[0];
    for (int i = 1; i < g->images; i++)
        if (s->begin[i] < g->step) g->step = s->begin[i];
    return MAR_OK;
}
