#include "nets/causal_lines.h"

#include <stdlib.h>

int causal_lines_drafts(const causal_shape *c, int drafts)
{
    return c->line_end ? 2 * drafts : drafts;
}

mar_status causal_lines_create(const causal_shape *c, int drafts, causal_lines *out, mar_err *err)
{
    const size_t tokens = (size_t)causal_positions(c), most = (size_t)causal_lines_drafts(c, drafts) + 1;
    *out = (causal_lines){.drawn_at = -1};
    if (!c->line_end) return MAR_OK;
    out->memory = calloc(tokens + 3 * most, sizeof *out->memory);
    if (!out->memory) return err_set(err, MAR_ENOMEM, "out of memory for %d tokens and %d drafts", c->seq_len, drafts);
    out->token = out->memory;
    out->draft = out->token + tokens;
    out->parent = out->draft + most;
    out->site = out->parent + most;
    return MAR_OK;
}

void causal_lines_free(causal_lines *l)
{
    free(l->memory);
    *l = (causal_lines){0};
}

static void lines_add_draft(causal_lines *l, int draft, int parent)
{
    l->draft[l->request.count] = draft;
    l->parent[l->request.count++] = parent;
}

void causal_lines_expand(causal_lines *l, const causal_shape *c, const causal_request *q)
{
    l->request = *q;
    l->drawn_at = q->drawn ? causal_place(c, q->length - 1) : -1;
    if (!l->memory) return;
    causal_request *r = &l->request;
    r->prefix = l->token, r->draft = l->draft, r->parent = l->parent;
    r->length = r->count = 0;
    for (int i = 0; i < q->length; i++) {
        l->token[r->length++] = q->prefix[i];
        if (causal_ends_line(c, i) && !(l->last_is_draft && i == q->length - 1)) l->token[r->length++] = c->vocabulary;
    }
    l->site[0] = -1;
    if (l->last_is_draft && q->length > 0 && causal_ends_line(c, q->length - 1)) {
        lines_add_draft(l, c->vocabulary, -1);
        l->site[0] = 0;
    }
    for (int n = 0; n < q->count; n++) {
        if (n == q->from - 1) r->from = r->count + 1;
        lines_add_draft(l, q->draft[n], l->site[q->parent[n] + 1]);
        if (causal_ends_line(c, q->length + causal_request_depth(q, n) - 1))
            lines_add_draft(l, c->vocabulary, r->count - 1);
        l->site[n + 1] = r->count - 1;
    }
    if (q->from == q->count + 1) r->from = r->count + 1;
}
