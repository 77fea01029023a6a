#include "nets/causal_slots.h"

#include <stdlib.h>

mar_status causal_slots_create(int prefix, int seq_len, int drafts, causal_slots *out, mar_err *err)
{
    /* a request's tokens and drafts, and one spare, because the last token may be computed anew */
    const size_t tokens = (size_t)seq_len, most = (size_t)drafts + 1, spare = tokens + most;
    *out = (causal_slots){.prefix = prefix, .count = prefix + (int)spare};
    out->token = calloc(2 * tokens + 3 * most + spare, sizeof *out->token); /* owns all lists */
    if (!out->token) return err_set(err, MAR_ENOMEM, "out of memory for %d tokens and %d drafts", seq_len, drafts);
    out->slot = out->token + tokens;
    out->draft = out->slot + tokens;
    out->parent = out->draft + most;
    out->draft_slot = out->parent + most;
    out->spare = out->draft_slot + most;
    causal_slots_begin(out);
    return MAR_OK;
}

void causal_slots_free(causal_slots *s)
{
    free(s->token);
    *s = (causal_slots){0};
}

void causal_slots_begin(causal_slots *s)
{
    s->known = s->drafts = 0;
    s->spares = s->count - s->prefix;
    for (int i = 0; i < s->spares; i++) s->spare[i] = s->count - 1 - i; /* the lowest is taken first */
}

void causal_slots_drop_drafts(causal_slots *s, int count)
{
    while (s->drafts > count) s->spare[s->spares++] = s->draft_slot[--s->drafts];
}

void causal_slots_drop_tokens(causal_slots *s, int count)
{
    while (s->known > count) s->spare[s->spares++] = s->slot[--s->known];
}

static void slots_add_token(causal_slots *s, int token)
{
    s->token[s->known] = token;
    s->slot[s->known++] = s->spare[--s->spares];
}

static void slots_add_draft(causal_slots *s, int draft, int parent)
{
    s->draft[s->drafts] = draft;
    s->parent[s->drafts] = parent;
    s->draft_slot[s->drafts++] = s->spare[--s->spares];
}

void causal_slots_add(causal_slots *s, const causal_request *request)
{
    while (s->known < request->length) slots_add_token(s, request->prefix[s->known]);
    while (s->drafts < request->count) slots_add_draft(s, request->draft[s->drafts], request->parent[s->drafts]);
}

/* Tells whether a known token is this one. A token that was unread when it got its slot takes the value given. */
static int slots_is_token(causal_slots *s, int at, int token)
{
    if (s->token[at] == CAUSAL_UNREAD) s->token[at] = token;
    return s->token[at] == token;
}

void causal_slots_follow(causal_slots *s, const int *prefix, int length)
{
    int same = 0, at = -1;
    while (same < s->known && same < length && slots_is_token(s, same, prefix[same])) same++;
    for (int i = 0; same == s->known && i < s->drafts; i++) { /* children come after their parent */
        const int joins = same < length && s->parent[i] == at && s->draft[i] == prefix[same];
        if (!joins) continue;
        s->token[same] = s->draft[i];
        s->slot[same++] = s->draft_slot[i];
        s->known = same;
        s->draft_slot[i] = -1;
        at = i;
    }
    while (s->drafts > 0)
        if (s->draft_slot[--s->drafts] >= 0) s->spare[s->spares++] = s->draft_slot[s->drafts];
    causal_slots_drop_tokens(s, same);
}

int causal_slots_continues(const causal_slots *s, const causal_request *request)
{
    const int old = request->from - 1; /* drafts whose log probabilities exist */
    if (request->from < 1 || s->known != request->length || s->drafts < old || request->count < old) return 0;
    for (int i = 0; i < request->length; i++)
        if (s->token[i] != request->prefix[i]) return 0;
    for (int i = 0; i < old; i++)
        if (s->draft[i] != request->draft[i] || s->parent[i] != request->parent[i]) return 0;
    return 1;
}
