#include "specdec/sampler.h"
#include "base/arena.h"
#include "specdec/round.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- creation -------------------------------------------------------------------------------------------------- */

static double sampler_parameter(const spec_sampler_options *o, const char *name, double otherwise)
{
    for (int i = 0; o->method && o->method->parameters[i].name; i++)
        if (strcmp(o->method->parameters[i].name, name) == 0) return o->parameter[i];
    return otherwise;
}

/* Fits the Jacobi tree into a window. The window counts the drafts of the tree and of the chain after it. The tree has
 * the most levels, at most s->levels, that leave a chain of at least one draft. Returns the positions of tree and
 * chain. */
static int sampler_fit_tree(const spec_sampler *s, int window, int *levels)
{
    int64_t drafts = 0, level = 1;
    for (*levels = 0; *levels < s->levels; ++*levels) {
        level *= s->children;
        if (drafts + level >= window) break;
        drafts += level;
    }
    return window + *levels - (int)drafts;
}

static int sampler_is_by_levels(const int *parent, int count)
{
    for (int n = 0; n < count; n++)
        if (parent[n] >= n || parent[n] < -1 || (n > 0 && parent[n] < parent[n - 1])) return 0;
    return 1;
}

/* Returns what is wrong with the options for a vocabulary of `size`; NULL if they are valid. */
static const char *sampler_option_error(const spec_sampler_options *o, int size, int has_draft)
{
    const spec_method *m = o->method;
    if (!m) return has_draft ? "a draft model without a method" : NULL;
    if (!(m->tokens & SPEC_DISCRETE)) return "a method for continuous tokens";
    if (o->length < 1) return "length below 1";
    if (m->stale && has_draft) return "a draft model, and a method that drafts without one";
    if (!m->stale && !has_draft) return "no draft model";
    if (m->coupled && size > KERN_RACE_TOKENS) return "more than 262144 tokens";
    if (m->neighbours && (!o->neighbours || o->neighbour_count < 1)) return "no table of neighbours";
    if (o->parent && o->top > 0) return "a static and a dynamic tree";
    if ((o->parent || o->top > 0) && !(has_draft && m->topologies & SPEC_TREE)) return "a method without trees";
    if (o->parent && (o->count < 1 || !sampler_is_by_levels(o->parent, o->count)))
        return "a tree that is not listed by levels";
    if (o->top < 0 || (o->top > 0 && o->total < 1)) return "a dynamic tree without drafts";
    if (o->likeliest && (!has_draft || o->top > 0)) return "likeliest siblings without a chain or a static tree";
    if (m->stale && o->first != SPEC_FIRST_UNIFORM && o->side < 1) return "first drafts of neighbours without a side";
    return NULL;
}

static int sampler_most_siblings(const spec_sampler_options *o)
{
    int most = 1;
    for (int n = 0, run = 0; n < o->count && o->parent; n++) {
        run = n > 0 && o->parent[n] == o->parent[n - 1] ? run + 1 : 1;
        if (run > most) most = run;
    }
    return most;
}

static void sampler_derive_sizes(spec_sampler *s)
{
    const spec_sampler_options *o = &s->options;
    const int jacobi = o->method && o->method->stale;
    s->children = jacobi ? (int)sampler_parameter(o, "children", 1) : sampler_most_siblings(o);
    s->past_rejection = o->method && o->method->policy == SPEC_CONTINUE && sampler_parameter(o, "continue", 1) != 0;
    if (!o->method) s->options.length = 0;
    s->capacity = o->parent ? o->count : o->top ? o->total : o->length;
    s->positions = o->length;
    if (jacobi) {
        int levels;
        s->levels = s->children > 1 ? (int)sampler_parameter(o, "depth", 1) - 1 : 0;
        s->positions = sampler_fit_tree(s, s->capacity, &levels);
        if (o->choice) s->positions = s->capacity; /* fewer drafts may be a longer chain */
        if (levels == 0) s->children = 1;
    }
    s->draft_capacity = !s->draft.log_probs ? 0 : o->top ? o->top * (o->length - 1) : s->capacity;
    s->top = o->top ? o->top : o->likeliest ? s->children : 0;
    s->top_rows = o->top ? o->top + 1 : s->capacity + 1;
    s->candidates = o->top ? o->top + o->top * s->draft_capacity : 0;
}

/* Lays out the host arrays at base, as arena_carve does. Returns the bytes. */
static size_t sampler_lay_out_host(spec_sampler *s, char *base)
{
    const size_t sequences = (size_t)s->sequences, tokens = (size_t)s->tokens, drafts = (size_t)s->capacity;
    const size_t all = sequences * (drafts + 1), positions = (size_t)s->positions + 1;
    const size_t children = (size_t)s->children, asked = (size_t)s->draft_capacity + 1;
    const size_t candidates = (size_t)s->candidates, top = sequences * (size_t)s->top_rows * (size_t)s->top;
    size_t used = 0;
    s->sequence = arena_carve(base, &used, sequences, sizeof *s->sequence);
    for (size_t i = 0; i < sequences; i++) {
        spec_sequence part = {0}, *q = base ? &s->sequence[i] : &part;
        q->token = arena_carve(base, &used, tokens, sizeof *q->token);
        q->token_status = arena_carve(base, &used, tokens, sizeof *q->token_status);
        q->round = arena_carve(base, &used, tokens, sizeof *q->round);
        q->draft = arena_carve(base, &used, drafts, sizeof *q->draft);
        q->parent = arena_carve(base, &used, drafts, sizeof *q->parent);
        q->row_q = arena_carve(base, &used, drafts + 1, sizeof *q->row_q);
        q->place = arena_carve(base, &used, drafts, sizeof *q->place);
        q->candidate = arena_carve(base, &used, candidates, sizeof *q->candidate);
        q->candidate_parent = arena_carve(base, &used, candidates, sizeof *q->candidate_parent);
        q->candidate_log_p = arena_carve(base, &used, candidates, sizeof *q->candidate_log_p);
        q->candidate_chosen = arena_carve(base, &used, candidates, sizeof *q->candidate_chosen);
        q->expansion = arena_carve(base, &used, asked, sizeof *q->expansion);
        q->expanded_draft = arena_carve(base, &used, asked, sizeof *q->expanded_draft);
        q->expanded_parent = arena_carve(base, &used, asked, sizeof *q->expanded_parent);
        q->tail_token = arena_carve(base, &used, positions, sizeof *q->tail_token);
        q->tail_row = arena_carve(base, &used, positions, sizeof *q->tail_row);
        q->drawn = arena_carve(base, &used, positions * children, sizeof *q->drawn);
        q->drawn_count = arena_carve(base, &used, positions, sizeof *q->drawn_count);
    }
    s->request = arena_carve(base, &used, sequences, sizeof *s->request);
    s->draw_row = arena_carve(base, &used, all, sizeof *s->draw_row);
    s->draw_given = arena_carve(base, &used, all, sizeof *s->draw_given);
    s->draw_wanted = arena_carve(base, &used, all, sizeof *s->draw_wanted);
    s->draw_earlier = arena_carve(base, &used, all * children, sizeof *s->draw_earlier);
    s->draw_address = arena_carve(base, &used, all, sizeof *s->draw_address);
    s->drawn_id = arena_carve(base, &used, all * (children + 1), sizeof *s->drawn_id);
    s->top_row = arena_carve(base, &used, sequences * (size_t)s->top_rows, sizeof *s->top_row);
    s->top_id = arena_carve(base, &used, top, sizeof *s->top_id);
    s->top_log_p = arena_carve(base, &used, top, sizeof *s->top_log_p);
    s->node = arena_carve(base, &used, sequences + 1, sizeof *s->node);
    s->block_sequence = arena_carve(base, &used, sequences, sizeof *s->block_sequence);
    s->block_draft = arena_carve(base, &used, all, sizeof *s->block_draft);
    s->block_parent = arena_carve(base, &used, all, sizeof *s->block_parent);
    s->row_p = arena_carve(base, &used, all, sizeof *s->row_p);
    s->row_q = arena_carve(base, &used, all, sizeof *s->row_q);
    s->rule = arena_carve(base, &used, sequences * positions, sizeof *s->rule);
    s->address = arena_carve(base, &used, sequences, sizeof *s->address);
    s->result = arena_carve(base, &used, sequences * (2 * positions + KERN_BLOCK_COUNTS), sizeof *s->result);
    s->place = arena_carve(base, &used, sequences, sizeof *s->place);
    s->read = arena_carve(base, &used, (size_t)SPEC_READ * sequences, sizeof *s->read);
    s->uniform = arena_carve(base, &used, (size_t)s->target.size, sizeof *s->uniform);
    return used;
}

size_t spec_sampler_lay_out(spec_sampler *s, char *base)
{
    const size_t sequences = (size_t)s->sequences, size = (size_t)s->target.size;
    const size_t drafts = (size_t)s->capacity, all = sequences * (drafts + 1), positions = (size_t)s->positions + 1;
    const size_t top = sequences * (size_t)s->top_rows * (size_t)s->top;
    const int jacobi = s->options.method && !s->draft.log_probs;
    size_t used = 0;
    s->log_probs[0] = arena_carve(base, &used, (all + 1) * size, sizeof(float));
    s->log_probs[1] = jacobi ? arena_carve(base, &used, (all + 1) * size, sizeof(float)) : s->log_probs[0];
    s->draft_log_probs = NULL;
    if (s->draft.log_probs)
        s->draft_log_probs =
            arena_carve(base, &used, sequences * ((size_t)s->draft_capacity + 1) * size, sizeof *s->draft_log_probs);
    s->draw_result = arena_carve(base, &used, all * ((size_t)s->children + 1), sizeof *s->draw_result);
    s->top_result_id = arena_carve(base, &used, top, sizeof *s->top_result_id);
    s->top_result_log_p = arena_carve(base, &used, top, sizeof *s->top_result_log_p);
    s->verdict = arena_carve(base, &used, sequences * drafts + 1, sizeof *s->verdict);
    s->block_result =
        arena_carve(base, &used, sequences * (2 * positions + KERN_BLOCK_COUNTS), sizeof *s->block_result);
    s->plain = arena_carve(base, &used, (size_t)SPEC_READ * sequences, sizeof *s->plain);
    s->workspace = arena_carve(base, &used, sequences * 2 * size, sizeof *s->workspace);
    return used;
}

mar_status spec_sampler_create(kern_queue *k, const spec_model *target, const spec_model *draft,
                               const spec_sampler_options *options, int sequences, int tokens, spec_sampler **out,
                               mar_err *err)
{
    const char *wrong = sampler_option_error(options, target->size, draft != NULL);
    *out = NULL;
    if (wrong)
        return err_set(err, MAR_EARG, "%s: %s", options->method ? options->method->name : "plain sampling", wrong);
    if (draft && draft->size != target->size)
        return err_set(err, MAR_EARG, "the draft has %d tokens, the target %d", draft->size, target->size);
    spec_sampler *s = calloc(1, sizeof *s);
    if (!s) return err_set(err, MAR_ENOMEM, "out of memory");
    *s = (spec_sampler){.k = k, .target = *target, .options = *options, .sequences = sequences, .tokens = tokens};
    if (draft) s->draft = *draft;
    sampler_derive_sizes(s);
    s->host = calloc(1, sampler_lay_out_host(s, NULL));
    if (!s->host) {
        free(s);
        return err_set(err, MAR_ENOMEM, "out of memory");
    }
    sampler_lay_out_host(s, s->host);
    for (int x = 0; x < target->size; x++) s->uniform[x] = (float)-log(target->size);
    *out = s;
    return MAR_OK;
}

void spec_sampler_free(spec_sampler *s)
{
    if (!s) return;
    free(s->host);
    free(s);
}

int spec_sampler_target_drafts(const spec_sampler *s)
{
    return s->capacity;
}

int spec_sampler_draft_drafts(const spec_sampler *s)
{
    return s->draft_capacity;
}

/* --- sequences ---------------------------------------------------------------------------------------------------- */

void spec_sampler_begin(spec_sampler *s)
{
    s->unread = s->next = 0;
    s->stats = (spec_sampler_stats){0};
    for (int i = 0; i < s->sequences; i++) spec_sampler_release(s, i);
    for (int i = 0; i < 2 && s->options.method && !s->draft.log_probs; i++)
        s->k->core->upload(s->k, s->log_probs[i] + (size_t)spec_uniform_row(s) * (size_t)s->target.size, s->uniform,
                           (size_t)s->target.size * sizeof *s->uniform);
}

/* Tells whether the host lacks a sequence's last tokens. */
static int sampler_has_unread(const spec_sequence *q)
{
    return q->known > 0 && q->token[q->known - 1] == CAUSAL_UNREAD && !q->failed;
}

/* Reads the tokens of plain sampling that the host lacks. Sequences that lack some took part in the same rounds,
 * because none is admitted, and none ends, between them and this call. */
static mar_status sampler_read_tokens(spec_sampler *s, mar_err *err)
{
    const int sequences = s->sequences, first = s->next - s->unread;
    s->k->core->download(s->k, s->read, s->plain + (size_t)first * (size_t)sequences,
                         (size_t)s->unread * (size_t)sequences * sizeof *s->read);
    s->k->core->timer_mark(s->k, &s->stats.verify_s);
    const mar_status status = kern_check(s->k, err);
    for (int i = 0; i < sequences && status == MAR_OK; i++) {
        spec_sequence *q = &s->sequence[i];
        for (int t = 0, at = q->known - s->unread; sampler_has_unread(q) && t < s->unread; t++) {
            q->token[at + t] = s->read[t * sequences + i];
            if (q->token[at + t] < 0) spec_no_token(q, "", at + t);
        }
    }
    s->unread = 0;
    s->next %= SPEC_READ;
    return status;
}

void spec_sampler_read(spec_sampler *s)
{
    if (!s->unread) return;
    s->k->core->timer_mark(s->k, NULL); /* the time since the last round is the host's */
    sampler_read_tokens(s, NULL);       /* a failure is the queue's, and shows in the next round */
}

void spec_sampler_admit(spec_sampler *s, int sequence, const spec_start *start)
{
    spec_sequence *q = &s->sequence[sequence];
    spec_sampler_read(s);
    spec_sampler_release(s, sequence);
    q->seed = start->seed, q->image = start->image;
    q->n = start->n;
    q->given = q->known = start->given;
    q->step = (uint32_t)start->given;
    for (int i = 0; i < start->given; i++) {
        q->token[i] = start->token[i];
        q->token_status[i] = SPEC_DROPPED;
        q->round[i] = -1;
    }
    spec_past_begin(&q->past, q->n, q->given, s->options.method && s->options.method->stale);
}

void spec_sampler_release(spec_sampler *s, int sequence)
{
    spec_sequence *q = &s->sequence[sequence];
    q->n = q->given = q->known = q->count = q->depth = q->tail = q->tail_known = q->on_device = 0;
    q->failed = NULL;
}

/* --- a round ------------------------------------------------------------------------------------------------------ */

/* Chooses the drafts of a sequence's round. */
static void sampler_choose_drafts(const spec_sampler *s, spec_sequence *q)
{
    const spec_sampler_options *o = &s->options;
    q->chosen = s->capacity;
    if (o->choice) q->chosen = spec_lesser(o->choice->choose(o->choice, &q->past), s->capacity);
    if (o->method->stale)
        q->reach = sampler_fit_tree(s, q->chosen, &q->tree_depth);
    else if (o->parent || o->top)
        q->reach = q->chosen > 0 ? o->length : 0;
    else
        q->reach = q->chosen;
}

static mar_status sampler_draft_blocks(spec_sampler *s, mar_err *err)
{
    for (int i = 0; i < s->sequences; i++) s->sequence[i].count = s->sequence[i].depth = 0;
    if (!s->options.method) return MAR_OK;
    int drafts = 0;
    for (int i = 0; i < s->sequences; i++) {
        if (!spec_is_running(&s->sequence[i])) continue;
        sampler_choose_drafts(s, &s->sequence[i]);
        drafts |= s->sequence[i].chosen > 0;
    }
    if (drafts) spec_sampler_read(s);
    if (!s->draft.log_probs) return spec_draft_jacobi(s, err);
    return s->options.top ? spec_draft_dynamic(s, err) : spec_draft_levels(s, err);
}

/* Returns the number of drafts whose successors are still part of the sequence. They come first, because drafts are
 * listed by levels. */
static int sampler_followed_drafts(const spec_sequence *q)
{
    int n = 0;
    for (; n < q->count; n++) {
        int depth = 1;
        for (int parent = q->parent[n]; parent >= 0; parent = q->parent[parent]) depth++;
        if (q->known + depth >= q->n) break;
    }
    return n;
}

/* Adds a sequence's block to the job, and its request to the target's call. */
static void sampler_add_block(spec_sampler *s, int i, kern_block_job *job)
{
    spec_sequence *q = &s->sequence[i];
    const int b = job->blocks++, node = s->node[b], sites = node + b, row = spec_row(s, i);
    const int followed = sampler_followed_drafts(q);
    s->block_sequence[b] = i;
    s->node[b + 1] = node + q->count;
    memcpy(s->block_draft + node, q->draft, (size_t)q->count * sizeof *q->draft);
    memcpy(s->block_parent + node, q->parent, (size_t)q->count * sizeof *q->parent);
    memcpy(s->row_q + sites, q->row_q, (size_t)(q->count + 1) * sizeof *q->row_q);
    for (int n = 0; n <= q->count; n++) s->row_p[sites + n] = n <= followed ? row + n : -1;
    for (int d = 0; d < job->positions && d < q->depth; d++)
        s->rule[b * job->positions + d] = s->options.method->discrete_rule(s->options.parameter, d + 1, q->depth);
    s->address[b] = (kern_address){q->seed, q->image, (uint32_t)q->known, q->step};
    s->request[b] = (causal_request){.sequence = i,
                                     .prefix = q->token,
                                     .length = q->known,
                                     .draft = q->draft,
                                     .parent = q->parent,
                                     .count = followed,
                                     .row = row};
    s->stats.rows += followed + 1;
}

/* Tells whether a sequence's block has drafts after a site. */
static int sampler_is_followed(const spec_sequence *q, int site)
{
    for (int n = 0; n < q->count; n++)
        if (q->parent[n] == site - 1) return 1;
    return 0;
}

/* Counts a round of this cost by the choice. */
static void sampler_count_block(spec_sampler *s, const spec_sequence *q, int accepted, int final, double cost)
{
    s->stats.rounds++;
    s->stats.tokens += final;
    s->stats.drafted += q->count, s->stats.positions += q->depth;
    s->stats.accepted += accepted;
    s->stats.lengths[spec_lesser(accepted, SPEC_LENGTHS - 1)]++;
    if (!s->options.choice) return;
    s->stats.undrafted += q->depth == 0;
    s->stats.spent += cost;
}

/* Commits a block's verdicts: makes its tokens final and keeps the tail for the next round. A token that is missing
 * fails the sequence. */
static void sampler_commit_block(spec_sampler *s, spec_sequence *q, const int *id, const int *site, const int *count,
                                 int row)
{
    const int accepted = count[KERN_BLOCK_ACCEPTED], final = count[KERN_BLOCK_FINAL], length = count[KERN_BLOCK_LENGTH];
    for (int i = 0; i < length; i++)
        if (id[i] < 0) spec_no_token(q, "", q->known + i);
    if (q->failed) return;
    for (int i = 0; i < final; i++) {
        const int at = q->known + i;
        q->token[at] = id[i];
        q->token_status[at] = i < accepted                      ? SPEC_ACCEPTED
                              : sampler_is_followed(q, site[i]) ? SPEC_REPLACED
                                                                : SPEC_DROPPED;
        q->round[at] = (int)q->step - q->given;
    }
    q->tail = q->depth > final ? q->depth - final : 0;
    q->tail_known = length - final;
    for (int i = 0; i < q->tail; i++) {
        q->tail_row[i] = row + site[final + i];
        q->tail_token[i] = id[final + i];
    }
    const spec_choice *choice = s->options.choice;
    const int drafts = q->depth > 0 ? q->chosen : 0;
    const double cost = choice ? spec_past_add(&q->past, choice, drafts, q->depth, accepted, final) : 0;
    q->known += final;
    q->step++;
    q->on_device = 0;
    sampler_count_block(s, q, accepted, final, cost);
}

/* The continuation of the target's pass: the verification. */
typedef struct {
    kern_queue *k;
    const kern_block_job *job;
} verification;

static void sampler_run_verification(void *arg)
{
    const verification *v = arg;
    v->k->discrete->verify(v->k, v->job);
}

/* Tells whether the target's pass and the verification are enqueued together. Otherwise each is timed on its own. */
static int sampler_is_fused(const spec_sampler *s)
{
    return s->k->device->asynchronous && s->target.log_probs_then != NULL;
}

/* Tells whether a round leaves its tokens on the device: one of plain sampling, or without drafts by choice. The search
 * for a non-finite layer looks at single rounds. */
static int sampler_keeps_tokens_on_device(const spec_sampler *s, const kern_block_job *job)
{
    return sampler_is_fused(s) && job->node[job->blocks] == 0 && (!s->options.method || s->options.choice) &&
           !s->k->watch.on;
}

/* Asks the target about all blocks, and verifies them. */
static mar_status sampler_run_target(spec_sampler *s, const kern_block_job *job, float *log_probs, mar_err *err)
{
    verification v = {s->k, job};
    const causal_continuation continuation = {
        sampler_run_verification, &v, {job->blocks, job->positions, job->node[job->blocks], job->place != NULL}};
    mar_status status;
    if (sampler_is_fused(s))
        status = s->target.log_probs_then(s->target.state, s->request, job->blocks, log_probs, &continuation, err);
    else
        status = s->target.log_probs(s->target.state, s->request, job->blocks, log_probs, err);
    s->k->core->timer_mark(s->k, &s->stats.target_s);
    if (status == MAR_OK) status = kern_check(s->k, err);
    if (status != MAR_OK) return status;
    s->stats.calls++;
    if (!sampler_is_fused(s)) sampler_run_verification(&v);
    return MAR_OK;
}

/* Reads and commits the verdicts of the blocks. */
static mar_status sampler_read_blocks(spec_sampler *s, const kern_block_job *job, mar_err *err)
{
    const size_t tokens = (size_t)job->blocks * (size_t)job->positions;
    const size_t results = 2 * tokens + (size_t)job->blocks * KERN_BLOCK_COUNTS;
    s->k->core->download(s->k, s->result, s->block_result, results * sizeof *s->result);
    s->k->core->timer_mark(s->k, &s->stats.verify_s);
    const mar_status status = kern_check(s->k, err);
    for (int b = 0; b < job->blocks && status == MAR_OK; b++) {
        const int *id = s->result + b * job->positions, *count = s->result + 2 * tokens + b * KERN_BLOCK_COUNTS;
        sampler_commit_block(s, &s->sequence[s->block_sequence[b]], id, id + tokens, count,
                             spec_row(s, s->block_sequence[b]));
    }
    return status;
}

/* Directs the round's tokens to `plain`, and the requests to the tokens that the round before left there. The requests
 * name tokens of the host if a sequence was not in that round, because a call has requests of one kind. */
static void sampler_write_tokens_on_device(spec_sampler *s, kern_block_job *job)
{
    const int last = (s->next + SPEC_READ - 1) % SPEC_READ * s->sequences;
    int on_device = 1;
    for (int b = 0; b < job->blocks; b++) on_device &= s->sequence[s->block_sequence[b]].on_device;
    for (int b = 0; b < job->blocks; b++) {
        s->place[b] = s->next * s->sequences + s->block_sequence[b];
        if (!on_device) continue;
        s->request[b].drawn = s->plain;
        s->request[b].last = last + s->block_sequence[b];
    }
    job->id = s->plain;
    job->place = s->place;
}

/* Advances each sequence by a token that the host has not read. */
static mar_status sampler_commit_unread(spec_sampler *s, int blocks, mar_err *err)
{
    int ends = 0;
    for (int b = 0; b < blocks; b++) {
        spec_sequence *q = &s->sequence[s->block_sequence[b]];
        q->token[q->known] = CAUSAL_UNREAD;
        q->token_status[q->known] = SPEC_DROPPED;
        q->round[q->known++] = (int)q->step++ - q->given;
        q->on_device = 1;
        q->tail = q->tail_known = 0;
        ends |= q->known == q->n;
        sampler_count_block(s, q, 0, 1, s->options.choice ? spec_past_add(&q->past, s->options.choice, 0, 0, 0, 1) : 0);
    }
    s->unread++, s->next++;
    return s->next == SPEC_READ || ends ? sampler_read_tokens(s, err) : MAR_OK;
}

mar_status spec_sampler_round(spec_sampler *s, mar_err *err)
{
    const spec_sampler_options *o = &s->options;
    float *log_probs = s->log_probs[s->now];
    kern_block_job job = {.size = s->target.size,
                          .node = s->node,
                          .draft = s->block_draft,
                          .parent = s->block_parent,
                          .log_p = log_probs,
                          .p = s->row_p,
                          .log_q = s->draft.log_probs ? s->draft_log_probs : s->log_probs[!s->now],
                          .q = s->row_q,
                          .rule = s->rule,
                          .neighbours = o->neighbours,
                          .neighbour_count = o->neighbour_count,
                          .past_rejection = s->past_rejection,
                          .address = s->address,
                          .verdict = s->verdict,
                          .workspace = s->workspace};
    s->k->core->timer_mark(s->k, NULL);
    mar_status status = sampler_draft_blocks(s, err);
    s->k->core->timer_mark(s->k, &s->stats.draft_s);
    if (status != MAR_OK) return status;
    for (int i = 0; i < s->sequences; i++)
        if (s->sequence[i].depth + 1 > job.positions) job.positions = s->sequence[i].depth + 1;
    for (int i = 0; i < s->sequences; i++)
        if (spec_is_running(&s->sequence[i])) sampler_add_block(s, i, &job);
    if (job.blocks == 0) return kern_check(s->k, err);
    job.id = s->block_result;
    job.site = job.id + (size_t)job.blocks * (size_t)job.positions;
    job.count = job.site + (size_t)job.blocks * (size_t)job.positions;
    if (sampler_keeps_tokens_on_device(s, &job)) sampler_write_tokens_on_device(s, &job);
    status = sampler_run_target(s, &job, log_probs, err);
    if (status != MAR_OK) return status;
    status = job.place ? sampler_commit_unread(s, job.blocks, err) : sampler_read_blocks(s, &job, err);
    s->now = !s->now;
    return status;
}

/* --- results ------------------------------------------------------------------------------------------------------ */

int spec_sampler_running(const spec_sampler *s)
{
    int running = 0;
    for (int i = 0; i < s->sequences; i++) running += spec_is_running(&s->sequence[i]);
    return running;
}

int spec_sampler_left(const spec_sampler *s, int sequence)
{
    return s->sequence[sequence].n - s->sequence[sequence].known;
}

mar_status spec_sampler_failed(const spec_sampler *s, int sequence, mar_err *why)
{
    const spec_sequence *q = &s->sequence[sequence];
    if (!q->failed) return MAR_OK;
    return err_set(why, MAR_EMODEL, "%simage %llu, token %d: the logits are not finite", q->failed,
                   (unsigned long long)q->image, q->failed_at);
}

int spec_sampler_known(const spec_sampler *s, int sequence)
{
    return s->sequence[sequence].known;
}

const int *spec_sampler_tokens(const spec_sampler *s, int sequence)
{
    return s->sequence[sequence].token;
}

void spec_sampler_token_status(const spec_sampler *s, int sequence, uint8_t *token_status, int *round)
{
    const size_t known = (size_t)s->sequence[sequence].known;
    if (token_status) memcpy(token_status, s->sequence[sequence].token_status, known * sizeof *token_status);
    if (round) memcpy(round, s->sequence[sequence].round, known * sizeof *round);
}

const spec_sampler_stats *spec_sampler_get_stats(const spec_sampler *s)
{
    return &s->stats;
}
