/* Requests of a sampler with the line ends that stand behind rows of image tokens (text/grammar.h). A sampler knows
 * image tokens alone. A line end is computed in the pass of the token before it, and the distribution behind that token
 * is the one behind its line end. */
#ifndef LLAMAGEN_LINES_H
#define LLAMAGEN_LINES_H

#include "llamagen/config.h"
#include "specdec/sampler.h"

typedef struct {
    spec_request request; /* with line ends, whose token is the vocabulary's size; row, drawn and last as asked */
    int drawn_at;         /* with `drawn`: position in the prefix of the token that is there */
    int *site;            /* [drafts + 1] draft of `request` with the distribution of a site; -1: the prefix's end */
    int *memory;          /* owns all lists; NULL: the model has no line ends */
    int *token, *draft, *parent;
    int last_is_draft; /* 1: a line end behind the prefix is the first draft. An EAGLE drafter's row of it reads the
                        * feature of the token before, which the target has not computed */
} gpt_lines;

/* Returns the drafts of a request with line ends, at most, if the sampler's has `drafts`, without one behind the
 * prefix. */
int gpt_lines_drafts(const gpt_config *c, int drafts);
/* Creates room for a request of a model's image with up to `drafts` drafts. Returns MAR_ENOMEM without memory. */
mar_status gpt_lines_create(const gpt_config *c, int drafts, gpt_lines *out, mar_err *err);
void gpt_lines_free(gpt_lines *l); /* leaves it empty */
/* Sets l->request to the request q with line ends. It refers to q's arrays if the model has none. */
void gpt_lines_expand(gpt_lines *l, const gpt_config *c, const spec_request *q);

/* Returns the draft of l->request with the distribution of this site of the request as asked; -1: the prefix's end. */
static inline int gpt_lines_site(const gpt_lines *l, int site)
{
    return l->memory ? l->site[site] : site - 1;
}

#endif
