#include "specdec/sampler.h"
#include "specdec/laws.h"

#include <stdlib.h>
#include <string.h>

double spec_walltime_improvement(double alpha, int gamma, double c)
{
    const double tokens = alpha < 1 ? (1 - pow(alpha, gamma + 1)) / (1 - alpha) : gamma + 1;
    return tokens / (gamma * c + 1);
}

int spec_draw_candidates(const float *log_q, int size, const spec_address *address, int first, int count,
                         int *candidate)
{
    for (int k = first; k < count; k++) {
        const double uniform = kern_uniform_at(address, KERN_NOISE_STEP, (uint32_t)k);
        candidate[k] = spec_law_draw(log_q, size, candidate, k, uniform);
        if (candidate[k] < 0) return k;
    }
    return count;
}

/* --- creation --- */

static double parameter_named(const spec_sampler_options *o, const char *name, double otherwise)
{
    for (int i = 0; o->method->parameters[i].name; i++)
        if (strcmp(o->method->parameters[i].name, name) == 0) return o->parameter[i];
    return otherwise;
}

/* Drafts of a tree with `children` at each of the first `tree` positions and a chain over the rest. */
static int tree_count(int length, int children, int tree)
{
    int count = 0, level = 1;
    for (int i = 0; i < tree && i < length; i++) count += level *= children;
    return count + (length > tree ? length - tree : 0);
}

static int by_levels(const int *parent, int count)
{
    for (int n = 0; n < count; n++)
        if (parent[n] >= n || parent[n] < -1 || (n > 0 && parent[n] < parent[n - 1])) return 0;
    return 1;
}

static int options_fit(const spec_sampler_options *o, int has_draft)
{
    const spec_method *m = o->method;
    if (!(m->tokens & SPEC_DISCRETE) || o->length < 1 || m->stale == has_draft) return 0;
    if (m->neighbours && !o->neighbours) return 0;
    return !o->parent || (has_draft && m->topologies & SPEC_TREE && by_levels(o->parent, o->count));
}

static int allocate(spec_sampler *s)
{
    const size_t nodes = (size_t)s->capacity + 1, size = (size_t)s->target.size;
    const size_t positions = (size_t)s->options.length + 1;
    s->node = calloc(nodes, sizeof *s->node);
    s->place = calloc(nodes, sizeof *s->place);
    s->parent = calloc(nodes, sizeof *s->parent);
    s->node_token = calloc(nodes, sizeof *s->node_token);
    s->site = calloc(nodes, sizeof *s->site);
    s->log_p = calloc(nodes * size, sizeof *s->log_p);
    s->log_q = calloc(nodes * size, sizeof *s->log_q);
    s->out.verdict = calloc(nodes, sizeof *s->out.verdict);
    s->address = calloc(positions, sizeof *s->address);
    s->out.id = calloc(positions, sizeof *s->out.id);
    s->out.law = calloc(positions, sizeof *s->out.law);
    s->out.workspace = calloc(spec_workspace_size(s->target.size), sizeof(float));
    s->candidate = calloc(positions * (size_t)s->children, sizeof *s->candidate);
    s->candidates = calloc(positions, sizeof *s->candidates);
    s->draft_q = calloc(positions * size, sizeof *s->draft_q);
    return s->node && s->place && s->parent && s->node_token && s->site && s->log_p && s->log_q && s->address &&
           s->out.verdict && s->out.id && s->out.law && s->out.workspace && s->candidate && s->candidates && s->draft_q;
}

spec_sampler *spec_sampler_create(const spec_model *target, const spec_model *draft,
                                  const spec_sampler_options *options)
{
    if (!options_fit(options, draft != NULL)) return NULL;
    spec_sampler *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->target = *target;
    if (draft) s->draft = *draft;
    s->options = *options;
    s->children = (int)parameter_named(options, "children", 1);
    s->tree_depth = s->children > 1 ? (int)parameter_named(options, "depth", 0) : 0;
    s->capacity = options->parent ? options->count : tree_count(options->length, s->children, s->tree_depth);
    if (allocate(s)) return s;
    spec_sampler_free(s);
    return NULL;
}

void spec_sampler_free(spec_sampler *s)
{
    if (!s) return;
    free(s->node), free(s->place), free(s->parent), free(s->node_token), free(s->site), free(s->log_p), free(s->log_q);
    free(s->address), free(s->out.verdict), free(s->out.id), free(s->out.law), free(s->out.workspace);
    free(s->candidate), free(s->candidates), free(s->draft_q);
    free(s);
}

/* --- for both loops --- */

static spec_address address_at(const spec_sampler *s, int position)
{
    return (spec_address){s->options.seed, s->image, (uint32_t)position, s->step};
}

static float *law(const spec_sampler *s, float *laws, int i)
{
    return laws + (size_t)i * (size_t)s->target.size;
}

/* Runs the target over the block and verifies it; the final tokens become known. The sites' q is set before. */
static int verify(spec_sampler *s, int count, int length, spec_outcome *o)
{
    const spec_sampler_options *opt = &s->options;
    const int status = s->target.laws(s->target.state, s->token, s->known, s->node, s->parent, count, s->log_p);
    if (status) return status;
    for (int i = 0; i <= count; i++) {
        s->site[i].size = s->target.size;
        s->site[i].log_p = law(s, s->log_p, i);
        s->site[i].neighbours = opt->neighbours, s->site[i].neighbour_count = opt->neighbour_count;
        if (i < count) s->node_token[i].id = s->node[i];
    }
    for (int i = 0; i <= length; i++) s->address[i] = address_at(s, s->known + i);
    const spec_block block = {count, length, s->node_token, s->parent, s->site, s->address, 0};
    *o = spec_verify(opt->method, opt->parameter, &block, &s->out);
    for (int i = 0; i < o->length; i++)
        if (s->out.id[i] < 0) return SPEC_EMPTY_LAW;
    for (int i = 0; i < o->final && s->known < s->n; i++) s->token[s->known++] = s->out.id[i];
    s->step++;
    s->stats.rounds++, s->stats.verified += length, s->stats.accepted += o->accepted;
    return 0;
}

/* --- with a draft model --- */

static int parent_in(const spec_sampler *s, int n)
{
    return s->options.parent ? s->options.parent[n] : n - 1;
}

/* Draws the block from the draft model with one forward pass a level, no deeper than there are tokens left. Drafts of
 * one level with different parents share their uniforms, because at most one of them is on the path taken. If q has
 * fewer tokens than the tree has siblings, the other siblings and their descendants are left out. */
static int draft_block(spec_sampler *s, int *count, int *depth)
{
    const int most = s->options.parent ? s->options.count : s->options.length;
    int n = 0;
    const int deepest = s->options.length < s->n - s->known ? s->options.length : s->n - s->known;
    for (*count = *depth = 0; n < most && *depth < deepest; ++*depth) {
        const int level = n, before = *count;
        const spec_address a = address_at(s, s->known + *depth);
        const int status = s->draft.laws(s->draft.state, s->token, s->known, s->node, s->parent, before, s->log_q);
        if (status) return status;
        s->stats.draft_calls++;
        while (n < most && parent_in(s, n) < level) {
            const int elder = parent_in(s, n), parent = elder < 0 ? -1 : s->place[elder];
            int siblings = 0, drawn = 0;
            while (n + siblings < most && parent_in(s, n + siblings) == elder) siblings++;
            if (elder < 0 || parent >= 0)
                drawn = spec_draw_candidates(law(s, s->log_q, parent + 1), s->draft.size, &a, 0, siblings,
                                             s->node + *count);
            for (int k = 0; k < siblings; k++) {
                s->place[n + k] = k < drawn ? *count : -1;
                if (k < drawn) s->parent[(*count)++] = parent;
            }
            n += siblings;
        }
        if (*count == before) break;
    }
    for (int i = 0; i <= *count; i++) s->site[i].log_q = law(s, s->log_q, i);
    return 0;
}

static int draft_round(spec_sampler *s)
{
    int count, depth;
    const int status = draft_block(s, &count, &depth);
    spec_outcome o;
    return status ? status : verify(s, count, depth, &o);
}

/* --- Jacobi --- */

/* Position i gets a first draft. Nothing is known about it, so its q is uniform. */
static void first_draft(spec_sampler *s, int i)
{
    const spec_address a = address_at(s, s->known + i);
    float *q = law(s, s->draft_q, i);
    for (int x = 0; x < s->target.size; x++) q[x] = (float)-log(s->target.size);
    s->candidates[i] = spec_draw_candidates(q, s->target.size, &a, 0, 1, s->candidate + i * s->children);
}

/* Lists the drafts as a block. In the tree each position's candidates follow every draft of the position before; then a
 * chain follows the first path. Returns the number of drafts. */
static int jacobi_block(spec_sampler *s)
{
    int count = 0, begin = -1, end = 0; /* the level before */
    for (int i = 0; i < s->drafted; i++) {
        const int level = count, parents = i < s->tree ? end : begin + 1;
        for (int parent = begin; parent < parents; parent++)
            for (int k = 0; k < s->candidates[i]; k++) {
                s->parent[count] = parent;
                s->node[count] = s->candidate[i * s->children + k];
                s->site[parent + 1].log_q = law(s, s->draft_q, i);
                count++;
            }
        begin = level, end = count;
    }
    return count;
}

/* Prepares the drafts of the next round: the tail of this round, then new positions. The q of a token of the tail is
 * the p it was drawn from. With STOP the tail is drawn anew; with CONTINUE it is the result of verification, and gets
 * siblings for the tree. */
static int next_drafts(spec_sampler *s, const spec_outcome *o)
{
    const int tail = s->drafted - o->final;
    const int most = s->n - s->known < s->options.length ? s->n - s->known : s->options.length;
    s->tree = 0;
    for (int i = 0; i < most; i++) {
        int *candidate = s->candidate + i * s->children;
        const spec_address a = address_at(s, s->known + i);
        float *q = law(s, s->draft_q, i);
        int first = 0, wanted = 1;
        if (i >= tail) {
            first_draft(s, i);
            continue;
        }
        memcpy(q, law(s, s->log_p, s->out.law[o->final + i]), (size_t)s->target.size * sizeof *q);
        if (o->length > o->final) candidate[first++] = s->out.id[o->final + i];
        if (i < s->tree_depth) s->tree = i + 1, wanted = s->children;
        s->candidates[i] = spec_draw_candidates(q, s->target.size, &a, first, wanted, candidate);
        if (s->candidates[i] == 0) return SPEC_EMPTY_LAW;
    }
    s->drafted = most;
    return 0;
}

static int jacobi_round(spec_sampler *s)
{
    spec_outcome o;
    const int status = verify(s, jacobi_block(s), s->drafted, &o);
    return status ? status : next_drafts(s, &o);
}

/* --- */

void spec_sampler_begin(spec_sampler *s, uint64_t image, int *tokens, int n)
{
    s->image = image, s->token = tokens, s->n = n;
    s->known = s->drafted = s->tree = 0;
    s->step = 0;
    s->stats = (spec_sampler_stats){0};
    if (!s->draft.laws) next_drafts(s, &(spec_outcome){0});
}

int spec_sampler_round(spec_sampler *s)
{
    return s->draft.laws ? draft_round(s) : jacobi_round(s);
}
