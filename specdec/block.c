/* The driver: one block of drafts through any method. */
#include "specdec/laws.h"

#include <string.h>

/* One verification in progress. */
typedef struct {
    const spec_method *m;
    const double *parameter;
    const spec_block *block;
    const spec_output *out;
} walk;

static int parent_of(const spec_block *b, int n)
{
    return b->parent ? b->parent[n] : n - 1;
}

/* The first draft numbered `from` or more whose parent is `node` (-1: the prefix); count if there is none. */
static int next_child(const spec_block *b, int node, int from)
{
    while (from < b->count && parent_of(b, from) != node) from++;
    return from;
}

static spec_site site_of(const walk *w, int node, int position)
{
    spec_site s = w->block->site[node + 1];
    s.index = position + 1;
    s.length = w->block->length;
    return s;
}

/* Replaces the laws of a site by what the rejection of draft x leaves of them for its next sibling: p by the
 * resampler's law, q by q without x. `p` is the buffer, of two, that the site's p is not in. 0 if nothing is left. */
static int reject_sibling(const walk *w, spec_site *s, int x, float *p, float *q)
{
    double total = 0;
    for (int y = 0; y < s->size; y++) total += spec_residual_weight(w->m, w->parameter, s, y, x);
    const double rest = -expm1((double)s->log_q[x]);
    if (!(total > 0) || !(rest > 0)) return 0;
    for (int y = 0; y < s->size; y++) p[y] = (float)log(spec_residual_weight(w->m, w->parameter, s, y, x) / total);
    for (int y = 0; y < s->size; y++) q[y] = (float)(s->log_q[y] - log(rest));
    q[x] = -INFINITY;
    s->log_p = p, s->log_q = q;
    return 1;
}

/* Verifies the children of `node` in turn. Returns the accepted one, or -1 with the replacement in *id. */
static int verify_children(const walk *w, int node, int position, int *id)
{
    const spec_block *b = w->block;
    const spec_address *a = &b->address[position];
    spec_site s = site_of(w, node, position);
    float *buffer = w->out->workspace;
    int child = next_child(b, node, 0);
    for (int sibling = 0;; sibling++) {
        const int x = b->draft[child].id, next = next_child(b, node, child + 1);
        *id = x;
        if (spec_accepts(w->m, w->parameter, &s, b->draft[child], a, sibling)) break;
        if (next == b->count || !reject_sibling(w, &s, x, buffer + s.size * (sibling % 2), buffer + 2 * s.size)) {
            if (spec_replace(w->m, w->parameter, &s, x, a, id) == SPEC_ACCEPTED) break;
            w->out->verdict[child] = SPEC_REPLACED;
            return -1;
        }
        child = next;
    }
    w->out->verdict[child] = SPEC_ACCEPTED;
    return child;
}

/* Follows accepted drafts down from the prefix; then adds the replacement or the bonus token. */
static void walk_down(const walk *w, spec_outcome *o)
{
    const spec_block *b = w->block;
    for (int node = -1;;) {
        const spec_site *s = &b->site[node + 1];
        int *id = &w->out->id[o->final];
        w->out->law[o->final] = node + 1;
        if (next_child(b, node, 0) == b->count) {
            if (!s->log_p) return;
            const double uniform = kern_uniform_at(&b->address[o->final++], KERN_NOISE_RESIDUAL, 0);
            *id = spec_law_draw(s->log_p, s->size, NULL, 0, uniform);
            return;
        }
        node = verify_children(w, node, o->final, id);
        o->final++;
        if (node < 0) return;
        o->accepted++;
    }
}

/* Follows the first path after the final tokens: records its laws, and with CONTINUE verifies its drafts. */
static void walk_tail(const walk *w, spec_outcome *o)
{
    const spec_block *b = w->block;
    int node = -1;
    for (int position = 0;; position++) {
        const int child = next_child(b, node, 0);
        if (child == b->count) break;
        if (position >= o->final) {
            const spec_site s = site_of(w, node, position);
            long tries;
            w->out->law[position] = node + 1;
            if (w->m->policy == SPEC_CONTINUE) {
                w->out->id[position] = b->draft[child].id;
                w->out->verdict[child] = spec_verify_one(w->m, w->parameter, &s, b->draft[child], &b->address[position],
                                                         NULL, &w->out->id[position], &tries);
                o->length = position + 1;
            }
        }
        node = child;
    }
}

/* Verifies a continuous block, which is a chain. INDEPENDENT verifies every position; STOP ends at the first rejection.
 */
static void walk_continuous(const walk *w, spec_outcome *o)
{
    const spec_block *b = w->block;
    for (int n = 0; n < b->count; n++) {
        const spec_site s = site_of(w, n - 1, n);
        float *x = w->out->x + (size_t)n * (size_t)s.size;
        long tries;
        w->out->verdict[n] = spec_verify_one(w->m, w->parameter, &s, b->draft[n], &b->address[n], x, NULL, &tries);
        o->tries += tries;
        o->final++;
        if (w->out->verdict[n] == SPEC_ACCEPTED) {
            memmove(x, b->draft[n].x, (size_t)s.size * sizeof *x);
            o->accepted++;
        } else if (b->stop || w->m->policy == SPEC_STOP) {
            return;
        }
    }
}

spec_outcome spec_verify(const spec_method *m, const double *parameter, const spec_block *block, const spec_output *out)
{
    const walk w = {m, parameter, block, out};
    spec_outcome o = {0};
    for (int n = 0; n < block->count; n++) out->verdict[n] = SPEC_DROPPED;
    if (!block->site[0].log_p) {
        walk_continuous(&w, &o);
        o.length = o.final;
        return o;
    }
    walk_down(&w, &o);
    o.length = o.final;
    walk_tail(&w, &o);
    return o;
}
