/* A round of speculation across tokens by whole paths (specdec/path.h). */
#include "specdec/path.h"

#include "base/arena.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

static int path_channels(const spec_path *s)
{
    return s->o.target->head->shape.channels;
}

static int path_width(const diff_paths *head)
{
    return head->draws.target.chain->head->shape.z_dim;
}

/* Returns the first number of a row in an array [rows][C]. */
static size_t path_at(const spec_path *s, int row)
{
    return (size_t)row * (size_t)path_channels(s);
}

/* --- the length of a round ---------------------------------------------------------------------------------------- */

int spec_path_is_plain(const spec_path *s, int image)
{
    const spec_path_image *im = &s->image[image];
    return im->length == 0 && im->from < s->o.steps;
}

/* Returns the drafted steps of a round behind this past; 0: a plain round. */
static int path_wanted(const spec_path *s, const spec_past *past)
{
    const spec_choice *c = &s->o.choice;
    const int drafts = c->choose ? c->choose(c, past) : 0;
    if (!c->choose) return s->o.gamma;
    return drafts ? drafts + 1 : 0;
}

/* Returns the drafted steps of the round behind a plain one, which is chosen before it: a plain round has no verdicts.
 * Where all rounds are alike, the first plain one counts as a step of the next. */
static int path_wanted_behind(const spec_path *s, const spec_path_image *image)
{
    spec_past past = image->past;
    if (!s->o.choice.choose) return s->o.gamma > 1 ? s->o.gamma - 1 : 1;
    spec_past_add(&past, &s->o.choice, 0, 0, 0, 1);
    return path_wanted(s, &past);
}

/* Begins an image's next round. */
static void path_begin_round(const spec_path *s, spec_path_image *image)
{
    const int left = s->o.steps - image->begin, is_known = !s->o.draft && image->length == 0;
    image->from = image->begin;
    image->wanted = left == 0 ? 0 : is_known ? image->next : path_wanted(s, &image->past);
    image->length = image->wanted < s->o.gamma ? image->wanted : s->o.gamma;
    if (image->length > left) image->length = left;
    if (!s->o.draft && image->length == 0 && left > 1) image->next = path_wanted_behind(s, image);
}

/* Adds a round that advanced an image by `steps` steps, of which `whole` were drafted and not replaced. */
static void path_account(spec_path *s, spec_path_image *image, int whole, int steps)
{
    const spec_choice *c = &s->o.choice;
    const int drafts = image->wanted ? image->wanted - 1 : 0, tested = image->length ? image->length - 1 : 0;
    s->o.stats->rounds++;
    s->o.stats->round_steps += steps;
    if (!c->choose) return;
    s->spent += spec_past_add(&image->past, c, drafts, tested, whole < tested ? whole : tested, steps);
    s->plain += steps;
    s->o.stats->undrafted += image->length == 0;
}

/* --- rows --------------------------------------------------------------------------------------------------------- */

/* Lists the tokens of a step. */
static void path_list_step(spec_path *s, int slot, int step)
{
    const spec_path_step t = s->o.order->step(s, slot, step);
    for (int place = 0; place < t.n; place++, s->n_drawn++)
        s->drawn[s->n_drawn] = (spec_path_row){.seed = s->image[slot].seed,
                                               .image = s->image[slot].number,
                                               .position = t.positions[place],
                                               .slot = slot,
                                               .step = step,
                                               .place = place,
                                               .diffusion_steps = t.diffusion_steps,
                                               .cfg = t.cfg,
                                               .group = slot,
                                               .order = step,
                                               .source = s->n_drawn};
}

/* Lists the drafts of the next round: the first step of every image, then the second, ... */
static void path_list_drafts(spec_path *s)
{
    int longest = 0;
    s->n_drawn = 0;
    for (int i = 0; i < s->images; i++) {
        spec_path_image *image = &s->image[i];
        path_begin_round(s, image);
        if (image->length > longest) longest = image->length;
    }
    for (int j = 0; j < longest; j++)
        for (int i = 0; i < s->images; i++)
            if (j < s->image[i].length) path_list_step(s, i, s->image[i].from + j);
    s->drafts = s->n_drawn;
}

/* Lists `count` candidates for each token to replace, after the drafts. */
static void path_list_candidates(spec_path *s, int count)
{
    s->n_drawn = s->drafts;
    for (int i = 0; i < s->n_pending; i++)
        for (int number = s->pending[i].tries; number < s->pending[i].tries + count; number++) {
            spec_path_row *row = &s->drawn[s->n_drawn++];
            *row = s->pending[i];
            row->image += (uint64_t)(number + 1) * SPEC_PATH_IMAGES;
            row->group = i, row->order = number;
            row->source = s->drafts + i;
        }
}

/* Returns the candidates for each token in the next draw. */
static int path_candidates(const spec_path *s, int round)
{
    const int fit = s->o.candidates / s->n_pending;
    int wanted = SPEC_PATH_CANDIDATES;
    while (round-- > 0 && wanted < fit) wanted *= 2;
    return wanted < fit ? wanted : fit > 1 ? fit : 1;
}

/* Lists rows first .. end-1 of `drawn` for the backend's operations. */
static void path_pack(spec_path *s, int first, int end)
{
    for (int i = 0; i < end - first; i++) {
        const spec_path_row *row = &s->drawn[first + i];
        s->seed[i] = row->seed, s->number[i] = row->image, s->position[i] = row->position;
        s->cfg[i] = row->cfg;
        s->group[i] = row->group, s->order[i] = row->order;
        s->source[i] = row->source - s->drawn[first].source;
    }
}

/* Lists row r of `drawn` as number `at` of the tokens for `know` or `keep`. */
static void path_list_kept(spec_path *s, int at, int r)
{
    s->kept[at] = r;
    s->kept_slot[at] = s->drawn[r].slot;
    s->kept_position[at] = s->drawn[r].position;
}

/* --- the heads ---------------------------------------------------------------------------------------------------- */

/* Writes to [branches][n][width] = rows index[0..n-1] of each branch of `from`. */
static void path_gather(spec_path *s, spec_path_z from, int n, int width, float *to)
{
    if (n == 0) return;
    for (int i = n; i < s->branches * n; i++) s->index[i] = s->index[i - n] + from.rows;
    s->k->core->copy_rows(s->k, to, NULL, from.z, s->index, NULL, NULL, s->branches * n, width);
}

/* Returns the rows from `first` on, below `end`, that take as many diffusion steps as the first, as tokens of one call.
 * z has that of sources `base`, base + 1, .. */
static diff_tokens path_same_steps(spec_path *s, spec_path_z z, int base, int width, int first, int end)
{
    const spec_path_row *row = &s->drawn[first];
    int n = 1;
    while (first + n < end && row[n].diffusion_steps == row[0].diffusion_steps) n++;
    const int sources = row[n - 1].source - row[0].source + 1;
    if (sources < z.rows) {
        for (int i = 0; i < sources; i++) s->index[i] = row[0].source - base + i;
        path_gather(s, z, sources, width, s->part_z);
        z.z = s->part_z;
    }
    path_pack(s, first, first + n);
    return (diff_tokens){.count = n,
                         .sources = sources,
                         .source = s->source,
                         .z = z.z,
                         .cfg = s->cfg,
                         .seed = s->seed,
                         .image = s->number,
                         .position = s->position};
}

/* Runs a head on rows first .. end-1: draws their tokens and paths, or computes their log_ratio and last under its
 * distribution. z has that of sources `base`, base + 1, .. */
static void path_run_head(spec_path *s, diff_paths *by, spec_path_z z, int base, int first, int end, int draws)
{
    diff_speculation_stats *work = by == &s->target ? &s->target_work : &s->draft_work;
    double *seconds = by == &s->target ? &s->target_s : &s->draft_s;
    s->k->core->timer_mark(s->k, NULL);
    for (int n; first < end; first += n) {
        const diff_tokens tokens = path_same_steps(s, z, base, path_width(by), first, end);
        float *path = s->path + (size_t)first * (size_t)s->target.stride;
        n = tokens.count;
        diff_chain_use(by->draws.target.chain, s->drawn[first].diffusion_steps);
        if (draws)
            diff_paths_draw(by, &tokens, s->token + path_at(s, first), path, work);
        else
            diff_paths_judge(by, &tokens, path, s->log_ratio + first, s->last + path_at(s, first), work);
    }
    s->k->core->timer_mark(s->k, draws ? seconds : &s->o.stats->verify_s);
}

/* The verdicts on some rows, in one piece, so that one transfer brings them to the host. */
typedef struct {
    int *marked;  /* [rows] kern_path_verdict */
    int *first;   /* [groups] kern_path_verdict */
    float *shift; /* [rows][C] the draft less the target's last mean */
} path_verdicts;

static path_verdicts path_verdicts_in(float *memory, int rows, int groups)
{
    int *marked = (int *)memory;
    return (path_verdicts){marked, marked + rows, memory + rows + groups};
}

/* Decides on rows first .. end-1 of `drawn`, by groups. */
static path_verdicts path_decide_rows(spec_path *s, int first, int end, int groups, int are_candidates)
{
    const path_verdicts v = path_verdicts_in(s->verdicts, end - first, groups);
    const kern_path_verdict job = {.rows = end - first,
                                   .candidates = are_candidates,
                                   .log_ratio = s->log_ratio + first,
                                   .step = s->o.verdict_step,
                                   .seed = s->seed,
                                   .image = s->number,
                                   .position = s->position,
                                   .group = s->group,
                                   .order = s->order,
                                   .groups = groups,
                                   .marked = v.marked,
                                   .first = v.first};
    path_pack(s, first, end);
    s->k->core->timer_mark(s->k, NULL);
    s->k->head->path_decide(s->k, &job);
    s->k->core->timer_mark(s->k, &s->o.stats->verify_s);
    return v;
}

/* --- drafts ------------------------------------------------------------------------------------------------------- */

/* Makes drafts first .. end-1 known. */
static void path_know(spec_path *s, int first, int end)
{
    for (int r = first; r < end; r++) path_list_kept(s, r - first, r);
    if (first < end) s->o.order->know(s, end - first);
}

/* Draws the target's own drafts, together with the first candidates for tokens to replace. Both have their z from the
 * last pass. */
static void path_draft_by_target(spec_path *s)
{
    path_list_drafts(s);
    if (s->n_pending) path_list_candidates(s, path_candidates(s, 0));
    s->draft_sources = s->drafts + s->n_pending;
    if (s->draft_sources == 0) return;
    for (int r = 0; r < s->drafts; r++)
        s->index[r] = s->o.order->z_row(s, &s->drawn[r], s->image[s->drawn[r].slot].from - 1);
    for (int i = 0; i < s->n_pending; i++) s->index[s->drafts + i] = s->pending[i].z_row;
    path_gather(s, s->z, s->draft_sources, path_width(&s->target), s->draft_z);
    path_run_head(s, &s->target, (spec_path_z){s->draft_z, s->draft_sources}, 0, 0, s->n_drawn, 1);
    path_know(s, 0, s->drafts);
}

/* Draws the drafts by the draft model, one step of all images after another. */
static void path_draft_by_model(spec_path *s)
{
    const int branches = s->branches, width = path_width(&s->draft);
    path_list_drafts(s);
    s->draft_sources = s->drafts;
    for (int j = 0, first = 0, end; first < s->drafts; j++, first = end) {
        end = first;
        while (end < s->drafts && s->drawn[end].step - s->image[s->drawn[end].slot].from == j) end++;
        const spec_path_z z = s->o.order->draft(s, first, end);
        const int n = end - first;
        for (int i = 0; i < branches * n; i++) s->index[i] = i / n * s->drafts + first + i % n;
        s->k->core->copy_rows(s->k, s->draft_z, s->index, z.z, NULL, NULL, NULL, branches * n, width);
        path_run_head(s, &s->draft, z, first, first, end, 1);
        path_know(s, first, end);
    }
}

/* --- verification ------------------------------------------------------------------------------------------------- */

/* Returns the row of s->z with the true z of a draft. */
static int path_true_row(const spec_path *s, int r)
{
    const spec_path_row *row = &s->drawn[r];
    return s->o.order->z_row(s, row, s->o.one_context ? s->image[row->slot].from : row->step);
}

/* Makes the target's pass, and verifies all drafts: log P/Q, the verdicts, and the shifts of their tokens from the
 * target's last means. */
static mar_status path_verify(spec_path *s, mar_err *err)
{
    const int n = s->drafts;
    s->z = s->o.order->pass(s);
    if (n == 0) return kern_check(s->k, err);
    for (int r = 0; r < n; r++) s->index[r] = path_true_row(s, r);
    path_gather(s, s->z, n, path_width(&s->target), s->true_z);
    path_run_head(s, &s->target, (spec_path_z){s->true_z, n}, 0, 0, n, 0);
    const path_verdicts v = path_decide_rows(s, 0, n, s->images, 0);
    const size_t words = (size_t)n + (size_t)s->images + path_at(s, n);
    s->k->core->subtract(s->k, s->token, s->last, path_at(s, n), v.shift);
    s->k->core->download(s->k, s->report, s->verdicts, words * sizeof *s->report);
    return kern_check(s->k, err);
}

/* --- the end of a round ------------------------------------------------------------------------------------------- */

/* Lists row r of `drawn` as number `at` of the tokens to keep, and records its status. */
static void path_note(spec_path *s, int at, int r, mar_token_status fate)
{
    const spec_path_row *row = &s->drawn[r];
    const int place = row->slot * s->o.seq_len + row->position, is_stale = fate != MAR_TOKEN_TARGET && !s->o.draft;
    path_list_kept(s, at, r);
    s->o.token_status[place] = (uint8_t)fate;
    s->o.ar_step[place] = row->step;
    s->o.staleness[place] = is_stale ? row->step - s->image[row->slot].context : 0;
}

/* Advances every image past its last step that counts. first [images] is the first step with a replacement; NULL: no
 * image has one. */
static void path_advance(spec_path *s, const int *first)
{
    for (int i = 0; i < s->images; i++) {
        spec_path_image *image = &s->image[i];
        const int begin = image->from, end = begin + image->length, is_plain = spec_path_is_plain(s, i);
        const int whole = first && first[i] < end ? first[i] : end;
        const int reached = is_plain ? begin + 1 : s->o.one_context || whole == end ? end : whole + 1;
        if (begin == s->o.steps) continue;
        path_account(s, image, whole - begin, reached - begin);
        image->context = begin - 1;
        image->begin = reached;
    }
}

/* Commits the verdicts on drafts: keeps the accepted ones, and lists the rejected ones as pending. All models know the
 * drafts. But with one_context no context has seen one, and the accepted ones become the target's own last means. */
static void path_commit_drafts(spec_path *s)
{
    const path_verdicts v = path_verdicts_in(s->report, s->drafts, s->images);
    int kept = 0;
    path_advance(s, s->drafts ? v.first : NULL);
    s->n_pending = 0;
    for (int r = 0; r < s->drafts; r++) {
        const spec_path_row *row = &s->drawn[r];
        const int rejected = v.marked[r];
        if (row->step >= s->image[row->slot].begin) continue;
        s->o.stats->drafted++;
        s->o.stats->accepted += !rejected;
        for (size_t c = 0; !rejected && c < path_at(s, 1); c++) {
            const double shift = v.shift[path_at(s, r) + c];
            s->shift_sum += shift * shift;
        }
        if (rejected) {
            spec_path_row *pending = &s->pending[s->n_pending];
            *pending = *row;
            pending->z_row = path_true_row(s, r), pending->q_row = s->n_pending;
            s->index[s->n_pending++] = r;
        } else {
            path_note(s, kept++, r, MAR_TOKEN_ACCEPTED);
        }
    }
    s->rejected = s->n_pending;
    path_gather(s, (spec_path_z){s->draft_z, s->draft_sources}, s->rejected, path_width(s->drafter), s->pending_q[0]);
    if (kept) s->o.order->keep(s, s->o.one_context ? s->last : s->token, kept, !s->o.one_context);
}

/* Takes the accepted candidates of a draw with `count` for each token, and keeps the tokens without one in the list.
 * first [n_pending] is the number of the first accepted one; INT_MAX: none. */
static void path_commit_candidates(spec_path *s, const int *first, int count)
{
    const int n = s->n_pending;
    int kept = 0;
    s->n_pending = 0;
    for (int i = 0; i < n; i++) {
        if (first[i] == INT_MAX) {
            s->pending[s->n_pending] = s->pending[i];
            s->pending[s->n_pending++].tries += count;
            continue;
        }
        s->o.stats->residual_tries += first[i] + 1;
        path_note(s, kept++, s->drafts + i * count + first[i] - s->pending[i].tries, MAR_TOKEN_REPLACED);
    }
    if (kept) s->o.order->keep(s, s->token, kept, 0);
}

/* Draws from the residual for all tokens to replace. drawn: their first candidates are drawn already. */
static mar_status path_replace(spec_path *s, int drawn, mar_err *err)
{
    for (int round = 0; s->n_pending; round++) {
        const int n = s->n_pending, count = path_candidates(s, round), first = s->drafts;
        if (round > 0 || !drawn) {
            path_list_candidates(s, count);
            for (int i = 0; i < n; i++) s->index[i] = s->pending[i].z_row;
            path_gather(s, s->z, n, path_width(&s->target), s->true_z);
            path_run_head(s, &s->target, (spec_path_z){s->true_z, n}, first, first, s->n_drawn, 1);
        }
        for (int i = 0; i < n; i++) s->index[i] = s->pending[i].q_row;
        path_gather(s, (spec_path_z){s->pending_q[0], s->rejected}, n, path_width(s->drafter), s->pending_q[1]);
        path_run_head(s, s->drafter, (spec_path_z){s->pending_q[1], n}, first, first, s->n_drawn, 0);
        const path_verdicts v = path_decide_rows(s, first, s->n_drawn, n, 1);
        s->k->core->download(s->k, s->report, v.first, (size_t)n * sizeof *v.first);
        const mar_status status = kern_check(s->k, err);
        if (status != MAR_OK) return status; /* there is nothing to read */
        path_commit_candidates(s, (const int *)s->report, count);
        const spec_path_row *left = s->pending;
        if (s->n_pending && left->tries >= SPEC_PATH_TRIES_MOST)
            return err_set(err, MAR_EMODEL, "image %llu, step %d: none of %d candidates for a token is kept",
                           (unsigned long long)left->image, left->step, left->tries);
    }
    return MAR_OK;
}

/* Draws rows first .. first+n-1 of `drawn`, alike in diffusion steps and guidance, from their true z, as plain decoding
 * does. */
static void path_draw_alike(spec_path *s, int first, int n)
{
    diff_chain *c = s->o.target;
    float *x = s->token + path_at(s, first);
    diff_speculation_stats *work = &s->target_work;
    for (int i = 0; i < n; i++) s->index[i] = path_true_row(s, first + i);
    path_gather(s, s->z, n, path_width(&s->target), s->true_z);
    path_pack(s, first, first + n);
    diff_chain_use(c, s->drawn[first].diffusion_steps);
    const diff_tokens tokens = {.count = n,
                                .sources = n,
                                .z = s->true_z,
                                .cfg = s->cfg,
                                .seed = s->seed,
                                .image = s->number,
                                .position = s->position};
    if (!s->o.choice.choose || s->o.window > 1) {
        diff_paths_draw(&s->target, &tokens, x, NULL, work);
        return;
    }
    const int steps = c->schedule.steps;
    diff_chain_guide(c, s->branches == 2 && s->drawn[first].cfg != 1);
    diff_chain_sample(c, s->true_z, n, s->cfg, s->seed, s->number, s->position, x);
    work->flop += diff_chain_flop(c, n);
    diff_chain_guide(c, s->branches == 2);
    work->calls += (long)steps * n, work->evaluations += (long)steps * n, work->batched += steps;
    if (steps > work->calls_max) work->calls_max = steps;
}

/* Draws and keeps the tokens of plain rounds. */
static void path_draw_plain(spec_path *s)
{
    const spec_path_row *row = s->drawn;
    s->n_drawn = 0;
    for (int i = 0; i < s->images; i++)
        if (spec_path_is_plain(s, i)) path_list_step(s, i, s->image[i].from);
    if (s->n_drawn == 0) return;
    s->k->core->timer_mark(s->k, NULL);
    for (int first = 0, end; first < s->n_drawn; first = end) {
        end = first + 1;
        while (end < s->n_drawn && row[end].diffusion_steps == row[first].diffusion_steps &&
               (row[end].cfg == 1) == (row[first].cfg == 1))
            end++;
        path_draw_alike(s, first, end - first);
    }
    s->k->core->timer_mark(s->k, &s->target_s);
    for (int r = 0; r < s->n_drawn; r++) path_note(s, r, r, MAR_TOKEN_TARGET);
    s->o.order->keep(s, s->token, s->n_drawn, 0);
}

mar_status spec_path_round(spec_path *s, mar_err *err)
{
    const int by_target = !s->o.draft;
    if (!by_target) path_draft_by_model(s);
    const mar_status status = path_verify(s, err);
    if (status != MAR_OK) return status;
    path_commit_drafts(s);
    s->drafts = 0; /* their rows are free */
    path_draw_plain(s);
    if (by_target) path_draft_by_target(s);
    return path_replace(s, by_target, err);
}

/* --- a batch ------------------------------------------------------------------------------------------------------ */

mar_status spec_path_check_number(uint64_t number, mar_err *err)
{
    if (number < SPEC_PATH_IMAGES) return MAR_OK;
    return err_set(err, MAR_EARG, "image %llu: with --spec path expected a number below 2^40",
                   (unsigned long long)number);
}

void spec_path_begin(spec_path *s)
{
    s->images = s->drafts = s->n_pending = 0;
    s->shift_sum = s->target_s = s->draft_s = s->spent = s->plain = 0;
    s->target_work = s->draft_work = (diff_speculation_stats){0};
}

void spec_path_admit(spec_path *s, int image, uint64_t seed, uint64_t number, int begin)
{
    spec_path_image *im = &s->image[image];
    *im = (spec_path_image){.seed = seed, .number = number, .begin = begin, .from = begin};
    if (s->images <= image) s->images = image + 1;
    spec_past_begin(&im->past, s->o.steps, begin, 0);
    im->next = path_wanted_behind(s, im);
}

void spec_path_add_stats(const spec_path *s, mar_stats *stats)
{
    const double numbers = (double)stats->accepted * path_channels(s);
    diff_speculate_add_stats(&s->target_work, stats);
    stats->head_s += s->target_s;
    stats->head_flop += s->target_work.flop;
    stats->draft_s += s->draft_s;
    stats->draft_flop += s->draft_work.flop;
    stats->draft_calls += (double)s->draft_work.batched;
    stats->accepted_shift = numbers > 0 ? sqrt(s->shift_sum / numbers) : 0;
}

mar_status spec_path_plan(spec_path *s, int diffusion_steps, mar_err *err)
{
    diff_chain_use(s->o.target, diffusion_steps);
    const mar_status status = diff_paths_plan(&s->target, s->max_drawn, err);
    if (status != MAR_OK || !s->o.draft) return status;
    diff_chain_use(s->o.draft, diffusion_steps);
    return diff_paths_plan(&s->draft, s->max_drawn, err);
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

/* Returns the 32-bit words of the verdicts. */
static size_t path_verdict_words(const spec_path *s)
{
    const int heads = s->max_drawn + s->o.max_rows + s->o.images;
    return (size_t)heads + path_at(s, s->o.max_rows);
}

/* Assigns parts of the host memory at base. Returns its size in bytes. base NULL only counts. */
static size_t path_lay_out_host(spec_path *s, char *base)
{
    const size_t drawn = (size_t)s->max_drawn, rows = (size_t)s->o.max_rows;
    int **const of_drawn[] = {&s->position, &s->source, &s->group, &s->order};
    int **const of_rows[] = {&s->kept, &s->kept_slot, &s->kept_position};
    size_t used = 0;
    s->image = arena_carve(base, &used, (size_t)s->o.images, sizeof *s->image);
    s->drawn = arena_carve(base, &used, drawn, sizeof *s->drawn);
    s->pending = arena_carve(base, &used, (size_t)s->o.max_pending, sizeof *s->pending);
    s->seed = arena_carve(base, &used, drawn, sizeof *s->seed);
    s->number = arena_carve(base, &used, drawn, sizeof *s->number);
    s->cfg = arena_carve(base, &used, drawn, sizeof *s->cfg);
    for (int i = 0; i < 4; i++) *of_drawn[i] = arena_carve(base, &used, drawn, sizeof(int));
    for (int i = 0; i < 3; i++) *of_rows[i] = arena_carve(base, &used, rows, sizeof(int));
    s->index = arena_carve(base, &used, (size_t)s->branches * drawn, sizeof *s->index);
    s->report = arena_carve(base, &used, path_verdict_words(s), sizeof *s->report);
    return used;
}

mar_status spec_path_create(const spec_path_options *o, spec_path *out, mar_err *err)
{
    *out = (spec_path){.o = *o, .k = o->target->k, .branches = o->target->cfg_branches};
    out->drafter = o->draft ? &out->draft : &out->target;
    /* Without a draft model candidates are drawn together with the next round's drafts, else after them. */
    out->max_drawn = o->max_rows > o->candidates ? o->max_rows : o->candidates;
    if (!o->draft) out->max_drawn += o->max_rows;
    mar_status status = diff_paths_create(o->target, o->window, out->max_drawn, &out->target, err);
    if (status == MAR_OK && o->draft) status = diff_paths_create(o->draft, o->window, out->max_drawn, &out->draft, err);
    if (status != MAR_OK) return status;
    out->memory = calloc(1, path_lay_out_host(out, NULL));
    if (!out->memory) return err_set(err, MAR_ENOMEM, "out of memory for rounds of %d tokens", o->max_rows);
    path_lay_out_host(out, out->memory);
    return MAR_OK;
}

void spec_path_free(spec_path *s)
{
    diff_paths_free(&s->target);
    diff_paths_free(&s->draft);
    free(s->memory);
}

size_t spec_path_lay_out(spec_path *s, char *base)
{
    const size_t f = sizeof(float), rows = (size_t)s->o.max_rows, drawn = (size_t)s->max_drawn;
    const size_t target = (size_t)s->branches * (size_t)path_width(&s->target);
    const size_t draft = (size_t)s->branches * (size_t)path_width(s->drafter);
    const size_t parts = s->o.target->respacings > 1 ? rows : 0;
    size_t used = 0;
    s->token = arena_carve(base, &used, path_at(s, s->max_drawn), f);
    s->path = arena_carve(base, &used, drawn * (size_t)s->target.stride, f);
    s->draft_z = arena_carve(base, &used, rows * draft, f);
    s->true_z = arena_carve(base, &used, rows * target, f);
    for (int i = 0; i < 2; i++) s->pending_q[i] = arena_carve(base, &used, (size_t)s->o.max_pending * draft, f);
    s->part_z = arena_carve(base, &used, parts * (draft > target ? draft : target), f);
    s->log_ratio = arena_carve(base, &used, drawn, sizeof *s->log_ratio);
    s->last = arena_carve(base, &used, path_at(s, s->max_drawn), f);
    s->verdicts = arena_carve(base, &used, path_verdict_words(s), f);
    used += diff_paths_lay_out(&s->target, base ? base + used : NULL);
    if (s->o.draft) used += diff_paths_lay_out(&s->draft, base ? base + used : NULL);
    return used;
}
