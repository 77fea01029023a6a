/* Which slots of its cache an image's tokens and drafts are in. Both sequences of an image, with guidance, have the
 * same.
 *
 * The positions in front of the image tokens have the first slots, always. Any other slot is a token's, a draft's, or
 * spare. When drafts become tokens their slots become these tokens'; what was computed for them stays where it is. */
#ifndef LLAMAGEN_SLOTS_H
#define LLAMAGEN_SLOTS_H

#include "specdec/sampler.h"

typedef struct {
    int prefix;      /* positions in front of the image tokens */
    int count;       /* slots */
    int known;       /* tokens that have a slot */
    int drafts;      /* of the last request; all have a slot */
    int spares;      /* slots that nothing is in */
    int *token;      /* [seq_len] the known tokens; SPEC_UNREAD: the host has not read it */
    int *slot;       /* [seq_len] theirs */
    int *draft;      /* [most drafts] the last request's tree */
    int *parent;     /* [most drafts] */
    int *draft_slot; /* [most drafts] */
    int *spare;      /* [count - prefix] */
} gpt_slots;

/* Slots of an image of seq_len tokens and up to `drafts` drafts. MAR_ENOMEM. */
mar_status gpt_slots_create(int prefix, int seq_len, int drafts, gpt_slots *out, mar_err *err);
void gpt_slots_free(gpt_slots *s); /* and leaves it empty */
void gpt_slots_begin(gpt_slots *s);
/* Makes drafts of the last request that these tokens continue with tokens, and frees the slots of all others and of
 * tokens that are not of this prefix. Known then are as many of the prefix's tokens as have been computed. */
void gpt_slots_follow(gpt_slots *s, const int *prefix, int length);
/* Whether the request goes on with the last one, so that its first `from` laws are there already. */
int gpt_slots_continues(const gpt_slots *s, const spec_request *request);
/* Frees the slots of the drafts from number `count` on. */
void gpt_slots_drop_drafts(gpt_slots *s, int count);
/* Frees the slots of the tokens from number `count` on. There may be no drafts. */
void gpt_slots_drop_tokens(gpt_slots *s, int count);
/* Gives the request's tokens and drafts that have no slot yet one each. */
void gpt_slots_add(gpt_slots *s, const spec_request *request);

#endif
