#include "mar/slots.h"

#include "base/arena.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the index of a slot's first token in the maps. */
static size_t slots_first_token(const mar_slots *s, int slot)
{
    return (size_t)slot * (size_t)s->config->seq_len;
}

static float *slots_tokens(const mar_slots *s, int slot)
{
    return s->tokens + slots_first_token(s, slot) * (size_t)s->config->token_dim;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

/* Assigns parts of the host memory at base. Returns its size in bytes. base NULL only counts. */
static size_t slots_lay_out_host(mar_slots *s, char *base)
{
    const size_t slots = (size_t)s->count, seq = (size_t)s->config->seq_len;
    size_t used = 0;
    s->slot = arena_carve(base, &used, slots, sizeof *s->slot);
    s->is_given = arena_carve(base, &used, slots * seq, sizeof *s->is_given);
    s->token_status = arena_carve(base, &used, slots * seq, sizeof *s->token_status);
    s->ar_step = arena_carve(base, &used, slots * seq, sizeof *s->ar_step);
    s->staleness = arena_carve(base, &used, slots * seq, sizeof *s->staleness);
    s->given = arena_carve(base, &used, seq, (size_t)s->config->token_dim * sizeof *s->given);
    return used;
}

mar_status mar_slots_create(kern_queue *k, const mar_model_config *config, int count, mar_slots *out, mar_err *err)
{
    *out = (mar_slots){.k = k, .config = config, .count = count};
    out->host = calloc(1, slots_lay_out_host(out, NULL));
    if (!out->host) return err_set(err, MAR_ENOMEM, "out of memory for a batch of %d images", count);
    slots_lay_out_host(out, out->host);
    return MAR_OK;
}

void mar_slots_free(mar_slots *s)
{
    free(s->host);
    *s = (mar_slots){0};
}

size_t mar_slots_lay_out(mar_slots *s, int spare, char *base)
{
    const size_t count = (size_t)s->count * (size_t)s->config->seq_len + (size_t)spare;
    size_t used = 0;
    s->tokens = arena_carve(base, &used, count, (size_t)s->config->token_dim * sizeof *s->tokens);
    return used;
}

/* --- images that begin and end ------------------------------------------------------------------------------------ */

int mar_slots_first(const mar_slots *s)
{
    int first = 0;
    while (first < s->count && !s->slot[first].busy) first++;
    return first;
}

int mar_slots_are_free(const mar_slots *s)
{
    return mar_slots_first(s) == s->count;
}

mar_status mar_slots_check_guidance(const mar_image *image, int branches, int most, float session, mar_err *err)
{
    if (branches <= most) return MAR_OK;
    return err_set(err, MAR_EARG, "guidance %g: the session was created with guidance %g and has no memory for more",
                   (double)image->cfg, (double)session);
}

mar_status mar_slots_check_prefix(const mar_model_config *c, const mar_image *image, mar_err *err)
{
    int unknown = 0;
    if (!image->known) return MAR_OK;
    while (unknown < c->seq_len && image->known[unknown]) unknown++;
    for (int i = unknown; i < c->seq_len; i++)
        if (image->known[i])
            return err_set(
                err, MAR_EARG,
                "a model of family %s makes tokens in raster order: expected known tokens to be a prefix, but "
                "token %d is known and token %d is not",
                c->family, i, unknown);
    return MAR_OK;
}

void mar_slots_begin(mar_slots *s, int slot, const mar_image *image)
{
    const int seq = s->config->seq_len;
    const size_t first = slots_first_token(s, slot);
    mar_slot *to = &s->slot[slot];
    *to = (mar_slot){.busy = 1, .seed = image->seed, .number = image->number, .cfg = image->cfg};
    memset(s->token_status + first, MAR_TOKEN_TARGET, (size_t)seq);
    memset(s->staleness + first, 0, (size_t)seq * sizeof *s->staleness);
    for (int i = 0; i < seq; i++) {
        s->ar_step[first + (size_t)i] = -1;
        s->is_given[first + (size_t)i] = image->known && image->known[i];
        to->given += s->is_given[first + (size_t)i];
    }
    to->known = to->given;
}

void mar_slots_give(mar_slots *s, int slot, const mar_image *image)
{
    const size_t seq = (size_t)s->config->seq_len, dim = (size_t)s->config->token_dim;
    if (!s->slot[slot].given) return;
    for (size_t i = 0; i < seq; i++)
        for (size_t c = 0; c < dim; c++) s->given[i * dim + c] = image->known[i] ? image->tokens[i * dim + c] : 0;
    s->k->core->upload(s->k, slots_tokens(s, slot), s->given, seq * dim * sizeof *s->given);
}

void mar_slots_release(mar_slots *s, int slot)
{
    s->slot[slot].busy = 0;
}

int mar_slots_is_given(const mar_slots *s, int slot, int position)
{
    return s->is_given[slots_first_token(s, slot) + (size_t)position];
}

int mar_slots_left(const mar_slots *s, int slot)
{
    int left = 0;
    for (int i = s->slot[slot].known; i < s->config->seq_len; i++) left += !mar_slots_is_given(s, slot, i);
    return left;
}

/* Skips given tokens from the next one on. */
static void slots_skip_given(mar_slots *s, int slot)
{
    int *next = &s->slot[slot].known;
    while (*next < s->config->seq_len && mar_slots_is_given(s, slot, *next)) ++*next;
}

void mar_slots_seek(mar_slots *s, int slot)
{
    s->slot[slot].known = 0;
    slots_skip_given(s, slot);
}

void mar_slots_add(mar_slots *s, int slot, mar_token_status status)
{
    const int at = s->slot[slot].known++;
    s->token_status[slots_first_token(s, slot) + (size_t)at] = (uint8_t)status;
    s->ar_step[slots_first_token(s, slot) + (size_t)at] = at;
    slots_skip_given(s, slot);
}

/* --- non-finite tokens -------------------------------------------------------------------------------------------- */

int mar_slots_find_nonfinite(const mar_slots *s, int slot)
{
    const int dim = s->config->token_dim, count = s->config->seq_len;
    const int *ar_step = s->ar_step + slots_first_token(s, slot);
    int bad = -1;
    for (int at = 0; at < count; at++) {
        const float *token = slots_tokens(s, slot) + (size_t)at * (size_t)dim;
        const int next = s->k->core->first_nonfinite(s->k, token, MAR_DTYPE_F32, count - at, dim, dim);
        if (next < 0) break;
        at += next;
        if (ar_step[at] >= 0 && (bad < 0 || ar_step[at] < ar_step[bad])) bad = at;
    }
    return bad;
}

mar_status mar_slots_examine(const mar_slots *s, int slot, const char *hint, mar_err *err)
{
    const mar_slot *of = &s->slot[slot];
    if (of->failure.text[0]) return err_set(err, MAR_EMODEL, "%s", of->failure.text);
    const int position = mar_slots_find_nonfinite(s, slot), dim = s->config->token_dim;
    if (position < 0) return MAR_OK;
    const float *token = slots_tokens(s, slot) + (size_t)position * (size_t)dim;
    char layer[MAR_LAYER_TEXT];
    float number = 0;
    int channel = -1;
    do s->k->core->download(s->k, &number, token + ++channel, sizeof number);
    while (fabsf(number) <= FLT_MAX && channel + 1 < dim);
    const mar_status status = kern_check(s->k, err);
    if (status != MAR_OK) return status; /* the numbers were not read */
    return err_set(err, MAR_EMODEL, "image %llu, step %d: a token is %s (position %d, channel %d)%s%s",
                   (unsigned long long)of->number, s->ar_step[slots_first_token(s, slot) + (size_t)position],
                   mar_not_finite(number), position, channel, mar_layer_text(s->k, layer), hint);
}

mar_status mar_slots_refuse_layer(const mar_slots *s, int step, mar_err *err)
{
    const int first = mar_slots_first(s);
    int last = first;
    char others[32] = "";
    for (int i = first; i < s->count; i++) {
        if (!s->slot[i].busy) continue;
        if (mar_slots_find_nonfinite(s, i) >= 0) return MAR_OK;
        last = i;
    }
    if (last > first) snprintf(others, sizeof others, " to %llu", (unsigned long long)s->slot[last].number);
    return err_set(err, MAR_EMODEL,
                   "image%s %llu%s, step %d: the output of %s is not finite, although all tokens so far are",
                   others[0] ? "s" : "", (unsigned long long)s->slot[first].number, others, step, s->k->watch.layer);
}

/* --- an image so far ---------------------------------------------------------------------------------------------- */

void mar_slots_snapshot(const mar_slots *s, int slot, float *tokens, uint8_t *known)
{
    const size_t seq = (size_t)s->config->seq_len, dim = (size_t)s->config->token_dim;
    const size_t first = slots_first_token(s, slot);
    s->k->core->download(s->k, tokens, slots_tokens(s, slot), seq * dim * sizeof *tokens);
    for (size_t i = 0; i < seq; i++) {
        known[i] = s->is_given[first + i] || s->ar_step[first + i] >= 0;
        for (size_t c = 0; !known[i] && c < dim; c++) tokens[i * dim + c] = 0;
    }
}

void mar_slots_token_status(const mar_slots *s, int slot, uint8_t *map, int *ar_step)
{
    const size_t seq = (size_t)s->config->seq_len, first = slots_first_token(s, slot);
    if (map) memcpy(map, s->token_status + first, seq * sizeof *map);
    if (ar_step) memcpy(ar_step, s->ar_step + first, seq * sizeof *ar_step);
}

void mar_slots_staleness(const mar_slots *s, int slot, int *staleness)
{
    const size_t seq = (size_t)s->config->seq_len;
    memcpy(staleness, s->staleness + slots_first_token(s, slot), seq * sizeof *staleness);
}
