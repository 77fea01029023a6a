/* The cache slots of an image's tokens and drafts. With guidance, both sequences of an image use the same ones.
 *
 * Positions before the image tokens always have the first slots. Any other slot holds a token or a draft, or is spare.
 * When a draft becomes a token its slot becomes the token's, and its keys and values stay in place. */
#ifndef NETS_CAUSAL_SLOTS_H
#define NETS_CAUSAL_SLOTS_H

#include "nets/causal_request.h"

typedef struct {
    int prefix;      /* positions before the image tokens */
    int count;       /* slots */
    int known;       /* tokens that have a slot */
    int drafts;      /* drafts of the last request; all have a slot */
    int spares;      /* free slots */
    int *token;      /* [seq_len] the known tokens; CAUSAL_UNREAD: the host has not read it */
    int *slot;       /* [seq_len] slots of the known tokens */
    int *draft;      /* [maximum drafts] the last request's tree */
    int *parent;     /* [maximum drafts] */
    int *draft_slot; /* [maximum drafts] */
    int *spare;      /* [count - prefix] */
} causal_slots;

/* Creates the slots of an image of seq_len tokens and up to `drafts` drafts. Returns MAR_ENOMEM without memory. */
mar_status causal_slots_create(int prefix, int seq_len, int drafts, causal_slots *out, mar_err *err);
void causal_slots_free(causal_slots *s); /* leaves it empty */
void causal_slots_begin(causal_slots *s);
/* Turns drafts of the last request into tokens where this prefix continues with them. Frees the slots of all other
 * drafts, and of tokens that differ from the prefix. Afterwards `known` counts the prefix's tokens that have been
 * computed. */
void causal_slots_follow(causal_slots *s, const int *prefix, int length);
/* Tells whether the request continues the last one, so that the log probabilities of its first `from` sites exist. */
int causal_slots_continues(const causal_slots *s, const causal_request *request);
/* Frees the slots of the drafts from number `count` on. */
void causal_slots_drop_drafts(causal_slots *s, int count);
/* Frees the slots of the tokens from number `count` on. There must be no drafts. */
void causal_slots_drop_tokens(causal_slots *s, int count);
/* Gives a slot to each token and draft of the request that lacks one. */
void causal_slots_add(causal_slots *s, const causal_request *request);

#endif
