/* Drafting: builds the blocks that a round verifies. */
#include "specdec/round.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- draws, for all sequences at once ----------------------------------------------------------------------------- */

static kern_address draft_address(const spec_sequence *q, int position)
{
    return (kern_address){q->seed, q->image, (uint32_t)(q->known + position), q->step};
}

/* Adds a row to the next draw. `earlier` has the `given` candidates drawn already. */
static void draft_add_draw(spec_sampler *s, int *rows, int row, int given, const int *earlier, int wanted,
                           kern_address a)
{
    const int r = (*rows)++;
    s->draw_row[r] = row, s->draw_given[r] = given, s->draw_wanted[r] = wanted, s->draw_address[r] = a;
    for (int i = 0; i < given; i++) s->draw_earlier[r * s->children + i] = earlier[i];
}

/* Draws, and reads the results: drawn_id [rows][children] and drawn [rows]. 0 drawn: the distribution has a NaN. */
static mar_status draft_run_draw(spec_sampler *s, int rows, const float *log_p, mar_err *err)
{
    if (rows == 0) return kern_check(s->k, err);
    int *drawn = s->draw_result + (size_t)rows * (size_t)s->children;
    const kern_draw_job job = {.rows = rows,
                               .size = s->target.size,
                               .log_probs = log_p,
                               .source = s->draw_row,
                               .max_draws = s->children,
                               .race = s->options.method->coupled,
                               .given = s->draw_given,
                               .wanted = s->draw_wanted,
                               .earlier = s->draw_earlier,
                               .address = s->draw_address,
                               .id = s->draw_result,
                               .drawn = drawn};
    s->k->discrete->draw(s->k, &job);
    s->k->core->download(s->k, s->drawn_id, s->draw_result, (size_t)(drawn + rows - s->draw_result) * sizeof(int));
    s->drawn = s->drawn_id + (drawn - s->draw_result);
    return kern_check(s->k, err);
}

static void draft_begin_block(spec_sequence *q)
{
    q->count = q->depth = 0;
    q->requested = -1;
}

/* Tells whether a sequence drafts position `level`: it lacks tokens there, and has drafts before it. */
static int draft_takes_part(const spec_sampler *s, const spec_sequence *q, int level)
{
    return spec_is_running(q) && level < spec_deepest(s, q) && q->depth == level;
}

/* Adds a request for the successors of `draft`. The rows of all levels but the last are there already. */
static void draft_add_request(spec_sampler *s, int *requests, int i, const int *draft, const int *parent, int count)
{
    spec_sequence *q = &s->sequence[i];
    s->request[(*requests)++] = (causal_request){.sequence = i,
                                                 .prefix = q->token,
                                                 .length = q->known,
                                                 .draft = draft,
                                                 .parent = parent,
                                                 .count = count,
                                                 .from = q->requested + 1,
                                                 .row = spec_draft_row(s, i)};
    q->requested = count;
}

static mar_status draft_run_model(spec_sampler *s, int requests, mar_err *err)
{
    const mar_status status = s->draft.log_probs(s->draft.state, s->request, requests, s->draft_log_probs, err);
    s->stats.draft_calls++;
    return status == MAR_OK ? kern_check(s->k, err) : status;
}

/* Asks for the top-k tokens of rows top_row[0..rows-1] of the draft model's log probabilities. */
static mar_status draft_run_top(spec_sampler *s, int rows, mar_err *err)
{
    const size_t entries = (size_t)rows * (size_t)s->top;
    s->k->discrete->top(s->k, s->draft_log_probs, s->top_row, rows, s->target.size, s->top, s->top_result_id,
                        s->top_result_log_p);
    s->k->core->download(s->k, s->top_id, s->top_result_id, entries * sizeof *s->top_id);
    s->k->core->download(s->k, s->top_log_p, s->top_result_log_p, entries * sizeof *s->top_log_p);
    return kern_check(s->k, err);
}

/* Answers the rows of the next draw with the likeliest tokens in place of draws. */
static mar_status draft_run_likeliest(spec_sampler *s, int rows, mar_err *err)
{
    if (rows == 0) return kern_check(s->k, err);
    memcpy(s->top_row, s->draw_row, (size_t)rows * sizeof *s->top_row);
    const mar_status status = draft_run_top(s, rows, err);
    if (status != MAR_OK) return status;
    memcpy(s->drawn_id, s->top_id, (size_t)rows * (size_t)s->children * sizeof *s->drawn_id);
    s->drawn = s->drawn_id + (size_t)rows * (size_t)s->children;
    for (int r = 0; r < rows; r++) {
        int n = 0;
        while (n < s->draw_wanted[r] && s->drawn_id[r * s->children + n] >= 0) n++;
        s->drawn[r] = n;
    }
    return MAR_OK;
}

/* --- with a draft model: chains and static trees ------------------------------------------------------------------ */

static int tree_parent(const spec_sampler *s, int n)
{
    return s->options.parent ? s->options.parent[n] : n - 1;
}

static int tree_size(const spec_sampler *s)
{
    return s->options.parent ? s->options.count : s->options.length;
}

/* Returns the end of the level that begins with draft `first`. */
static int tree_level_end(const spec_sampler *s, int first)
{
    int n = first;
    while (n < tree_size(s) && tree_parent(s, n) < first) n++;
    return n;
}

/* Returns the end of the siblings that begin with draft `first`. */
static int tree_siblings_end(const spec_sampler *s, int first)
{
    int n = first;
    while (n < tree_size(s) && tree_parent(s, n) == tree_parent(s, first)) n++;
    return n;
}

/* Returns the index in the block of the parent of draft n of the tree: -1 is the prefix, -2 means that it was not
 * drawn. */
static int tree_parent_place(const spec_sampler *s, const spec_sequence *q, int n)
{
    const int parent = tree_parent(s, n);
    return parent < 0 ? -1 : q->place[parent];
}

/* Appends the results of the tree's drafts first .. last-1 to a sequence's block. *row is its next row of the draw. */
static void tree_append_level(const spec_sampler *s, spec_sequence *q, int first, int last, int *row)
{
    const int before = q->count;
    for (int n = first; n < last;) {
        const int end = tree_siblings_end(s, n), parent = tree_parent_place(s, q, n), r = *row;
        const int drawn = parent > -2 ? s->drawn[(*row)++] : 0;
        if (parent > -2 && drawn == 0) spec_no_token(q, "draft: ", q->known + q->depth);
        for (int k = 0; n < end; n++, k++) {
            q->place[n] = k < drawn ? q->count : -2;
            if (k >= drawn) continue;
            q->parent[q->count] = parent;
            q->draft[q->count++] = s->drawn_id[r * s->children + k];
        }
    }
    q->depth += q->count > before;
}

/* Drafts one level of all sequences. Drafts with different parents share their uniforms, because at most one of them is
 * on the path taken. If q has fewer tokens than the tree has siblings, the other siblings and their successors are left
 * out. */
static mar_status tree_draft_level(spec_sampler *s, int level, int first, int last, int *requests, mar_err *err)
{
    int rows = 0, row = 0;
    *requests = 0;
    for (int i = 0; i < s->sequences; i++)
        if (draft_takes_part(s, &s->sequence[i], level))
            draft_add_request(s, requests, i, s->sequence[i].draft, s->sequence[i].parent, s->sequence[i].count);
    if (*requests == 0) return MAR_OK;
    mar_status status = draft_run_model(s, *requests, err);
    if (status != MAR_OK) return status;
    for (int j = 0; j < *requests; j++) {
        const causal_request *a = &s->request[j];
        const spec_sequence *q = &s->sequence[a->sequence];
        for (int n = first; n < last; n = tree_siblings_end(s, n))
            if (tree_parent_place(s, q, n) > -2)
                draft_add_draw(s, &rows, a->row + tree_parent_place(s, q, n) + 1, 0, NULL, tree_siblings_end(s, n) - n,
                               draft_address(q, level));
    }
    status =
        s->options.likeliest ? draft_run_likeliest(s, rows, err) : draft_run_draw(s, rows, s->draft_log_probs, err);
    for (int j = 0; j < *requests && status == MAR_OK; j++)
        tree_append_level(s, &s->sequence[s->request[j].sequence], first, last, &row);
    return status;
}

mar_status spec_draft_levels(spec_sampler *s, mar_err *err)
{
    int requests = 1;
    for (int i = 0; i < s->sequences; i++) draft_begin_block(&s->sequence[i]);
    for (int level = 0, first = 0; first < tree_size(s) && requests > 0; level++) {
        const int last = tree_level_end(s, first);
        const mar_status status = tree_draft_level(s, level, first, last, &requests, err);
        if (status != MAR_OK) return status;
        first = last;
    }
    for (int i = 0; i < s->sequences; i++)
        for (int n = 0; n <= s->sequence[i].count; n++)
            s->sequence[i].row_q[n] = s->options.likeliest ? -1 : spec_draft_row(s, i) + n;
    return MAR_OK;
}

/* --- with a draft model: dynamic trees (EAGLE-2) ------------------------------------------------------------------ */

/* Adds the top-k tokens after expanded draft `parent` (-1: the prefix) as candidates. `row` is their row of the
 * results. */
static void dynamic_add_candidates(const spec_sampler *s, spec_sequence *q, int parent, int row)
{
    const double before = parent < 0 ? 0 : q->candidate_log_p[q->expansion[parent]];
    for (int k = 0; k < s->options.top && s->top_id[row * s->options.top + k] >= 0; k++) {
        const int c = q->candidates++;
        q->candidate[c] = s->top_id[row * s->options.top + k];
        q->candidate_parent[c] = parent;
        q->candidate_log_p[c] = before + fmin(0, (double)s->top_log_p[row * s->options.top + k]);
        q->candidate_chosen[c] = -1;
    }
}

/* Returns the likeliest candidate from `first` on that is not chosen; -1 if all are. The first of equal ones wins, so
 * that a parent precedes its children. */
static int dynamic_likeliest(const spec_sequence *q, int first)
{
    int best = -1;
    for (int c = first; c < q->candidates; c++)
        if (q->candidate_chosen[c] < 0 && (best < 0 || q->candidate_log_p[c] > q->candidate_log_p[best])) best = c;
    return best;
}

/* Expands the likeliest candidates from `first` on: the next request asks for their successors. */
static void dynamic_expand(const spec_sampler *s, spec_sequence *q, int first)
{
    q->level = q->expanded;
    for (int i = 0; i < s->options.top; i++) {
        const int c = dynamic_likeliest(q, first);
        if (c < 0) break;
        q->candidate_chosen[c] = 0;
        q->expanded_draft[q->expanded] = q->candidate[c];
        q->expanded_parent[q->expanded] = q->candidate_parent[c];
        q->expansion[q->expanded++] = c;
    }
}

/* Asks for the successors of the last level's expanded drafts, adds the candidates, and expands the likeliest. */
static mar_status dynamic_expand_level(spec_sampler *s, int level, int *requests, mar_err *err)
{
    int rows = 0, row = 0;
    *requests = 0;
    for (int i = 0; i < s->sequences; i++) {
        const spec_sequence *q = &s->sequence[i];
        if (!draft_takes_part(s, q, level)) continue;
        draft_add_request(s, requests, i, q->expanded_draft, q->expanded_parent, q->expanded);
        for (int e = level == 0 ? -1 : q->level; e < q->expanded; e++)
            s->top_row[rows++] = spec_draft_row(s, i) + e + 1;
    }
    if (*requests == 0) return MAR_OK;
    mar_status status = draft_run_model(s, *requests, err);
    if (status == MAR_OK) status = draft_run_top(s, rows, err);
    for (int j = 0; j < *requests && status == MAR_OK; j++) {
        spec_sequence *q = &s->sequence[s->request[j].sequence];
        const int first = q->candidates;
        for (int e = level == 0 ? -1 : q->level; e < q->expanded; e++, row++) {
            if (s->top_id[row * s->options.top] < 0) spec_no_token(q, "draft: ", q->known + q->depth);
            dynamic_add_candidates(s, q, e, row);
        }
        q->depth++;
        if (level + 1 < spec_deepest(s, q)) dynamic_expand(s, q, first);
    }
    return status;
}

/* Makes the likeliest candidates the block. The order of their numbers is by levels. */
static void dynamic_choose_block(const spec_sampler *s, spec_sequence *q)
{
    for (int c = 0; c < q->candidates; c++) q->candidate_chosen[c] = -1;
    for (int i = 0; i < s->options.total; i++) {
        const int c = dynamic_likeliest(q, 0);
        if (c < 0) break;
        q->candidate_chosen[c] = 0;
    }
    q->depth = 0;
    for (int c = 0; c < q->candidates; c++) {
        if (q->candidate_chosen[c] < 0) continue;
        const int expanded = q->candidate_parent[c], n = q->count++;
        q->candidate_chosen[c] = n;
        q->draft[n] = q->candidate[c];
        q->parent[n] = expanded < 0 ? -1 : q->candidate_chosen[q->expansion[expanded]];
        q->place[n] = q->parent[n] < 0 ? 1 : q->place[q->parent[n]] + 1; /* depth of the draft */
        if (q->place[n] > q->depth) q->depth = q->place[n];
    }
    for (int n = 0; n <= q->count; n++) q->row_q[n] = -1;
}

mar_status spec_draft_dynamic(spec_sampler *s, mar_err *err)
{
    int requests = 1;
    for (int i = 0; i < s->sequences; i++) {
        draft_begin_block(&s->sequence[i]);
        s->sequence[i].candidates = s->sequence[i].expanded = s->sequence[i].level = 0;
    }
    for (int level = 0; level < s->options.length && requests > 0; level++) {
        const mar_status status = dynamic_expand_level(s, level, &requests, err);
        if (status != MAR_OK) return status;
    }
    for (int i = 0; i < s->sequences; i++) dynamic_choose_block(s, &s->sequence[i]);
    return MAR_OK;
}

/* --- without a draft model: Jacobi -------------------------------------------------------------------------------- */

/* Returns the position whose token is a position's initial draft; -1 if the draft is drawn. */
static int jacobi_copied_from(const spec_sampler *s, int position)
{
    const int side = s->options.side, left = side > 0 && position % side > 0 ? position - 1 : -1;
    const int above = side > 0 && position >= side ? position - side : -1;
    switch (s->options.first) {
    case SPEC_FIRST_LEFT:
        return left >= 0 ? left : above;
    case SPEC_FIRST_ABOVE:
        return above >= 0 ? above : left;
    default:
        return -1;
    }
}

/* Tells whether position i of the block has a distribution from the round before. */
static int jacobi_is_tail(const spec_sequence *q, int i)
{
    return i < q->tail;
}

static int jacobi_wanted(const spec_sampler *s, const spec_sequence *q, int i)
{
    return jacobi_is_tail(q, i) && i < q->tree_depth ? s->children : 1;
}

/* Adds the draws of a sequence's drafts. The q of a token of the tail is the p it was drawn from. With SPEC_STOP the
 * tail is drawn anew. With SPEC_CONTINUE it is the result of verification, and gets siblings for the tree. */
static void jacobi_add_drafts(spec_sampler *s, spec_sequence *q, int *rows)
{
    for (int i = 0; i < q->depth; i++) {
        const int given = jacobi_is_tail(q, i) && i < q->tail_known;
        if (jacobi_is_tail(q, i))
            draft_add_draw(s, rows, q->tail_row[i], given, &q->tail_token[i], jacobi_wanted(s, q, i),
                           draft_address(q, i));
        else if (jacobi_copied_from(s, q->known + i) < 0)
            draft_add_draw(s, rows, spec_uniform_row(s), 0, NULL, 1, draft_address(q, i));
    }
}

/* Stores the candidates of position i, and the row they were drawn from. */
static void jacobi_take_candidates(const spec_sampler *s, spec_sequence *q, int i, int *row)
{
    int *drawn = q->drawn + i * s->children;
    const int from = jacobi_is_tail(q, i) ? -1 : jacobi_copied_from(s, q->known + i);
    if (from >= 0) { /* known, or a draft of this block */
        drawn[0] = from < q->known ? q->token[from] : q->drawn[(from - q->known) * s->children];
        q->drawn_count[i] = 1;
        q->tail_row[i] = -1;
        return;
    }
    q->drawn_count[i] = s->drawn[*row];
    if (s->drawn[*row] == 0) spec_no_token(q, "", q->known + i);
    memcpy(drawn, s->drawn_id + (size_t)*row * (size_t)s->children, (size_t)s->drawn[*row] * sizeof *drawn);
    q->tail_row[i] = s->draw_row[*row];
    ++*row;
}

/* Lists the drafts as a block. In the tree, each position's candidates follow every draft of the position before. After
 * it, a chain follows the first path. */
static void jacobi_list_block(const spec_sampler *s, spec_sequence *q)
{
    int begin = -1, end = 0; /* the level before */
    q->count = 0;
    for (int n = 0; n <= s->capacity; n++) q->row_q[n] = -1;
    for (int i = 0; i < q->depth; i++) {
        const int level = q->count, parents = jacobi_wanted(s, q, i) > 1 ? end : begin + 1;
        for (int parent = begin; parent < parents; parent++) {
            q->row_q[parent + 1] = q->tail_row[i];
            for (int k = 0; k < q->drawn_count[i]; k++) {
                q->parent[q->count] = parent;
                q->draft[q->count++] = q->drawn[i * s->children + k];
            }
        }
        begin = level, end = q->count;
    }
}

mar_status spec_draft_jacobi(spec_sampler *s, mar_err *err)
{
    int rows = 0, row = 0;
    for (int i = 0; i < s->sequences; i++) {
        spec_sequence *q = &s->sequence[i];
        q->depth = spec_is_running(q) ? spec_deepest(s, q) : 0;
        jacobi_add_drafts(s, q, &rows);
    }
    const mar_status status = draft_run_draw(s, rows, s->log_probs[!s->now], err);
    for (int i = 0; i < s->sequences && status == MAR_OK; i++) {
        for (int j = 0; j < s->sequence[i].depth; j++) jacobi_take_candidates(s, &s->sequence[i], j, &row);
        jacobi_list_block(s, &s->sequence[i]);
    }
    return status;
}
