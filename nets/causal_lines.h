/* Requests of a sampler with the line ends that stand behind rows of image tokens. A sampler knows
 * image tokens alone. A line end is computed in the pass of the token before it, and the distribution behind that token
 * is the one behind its line end. */
#ifndef NETS_CAUSAL_LINES_H
#define NETS_CAUSAL_LINES_H

#include "nets/causal_request.h"

typedef struct {
    causal_request request; /* with line ends, whose token is the vocabulary's size; row, drawn and last as asked */
    int drawn_at;           /* with `drawn`: position in the prefix of the token that is there */
    int *site;              /* [drafts + 1] draft of `request` with the distribution of a site; -1: the prefix's end */
    int *memory;            /* owns all lists; NULL: the model has no line ends */
    int *token, *draft, *parent;
    int last_is_draft; /* 1: a line end behind the prefix is the first draft. An EAGLE drafter's row of it reads the
                        * feature of the token before, which the target has not computed */
} causal_lines;

/* Returns the drafts of a request with line ends, at most, if the sampler's has `drafts`, without one behind the
 * prefix. */
int causal_lines_drafts(const causal_shape *c, int drafts);
/* Creates room for a request of a model's image with up to `drafts` drafts. Returns MAR_ENOMEM without memory. */
mar_status causal_lines_create(const causal_shape *c, int drafts, causal_lines *out, mar_err *err);
void causal_lines_free(causal_lines *l); /* leaves it empty */
/* Sets l->request to the request q with line ends. It refers to q's arrays if the model has none. */
void causal_lines_expand(causal_lines *l, const causal_shape *c, const causal_request *q);

/* Returns the draft of l->request with the distribution of this site of the request as asked; -1: the prefix's end. */
static inline int causal_lines_site(const causal_lines *l, int site)
{
    return l->memory ? l->site[site] : site - 1;
}

#endif
