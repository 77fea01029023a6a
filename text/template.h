/* The ids of a prompt by a template: a text as a tokenizer reads it, with fields in braces. A field that the caller
 * gives a text is replaced by it; any other is the token of this name, as {<s>}. The text between such tokens is
 * divided into tokens as a whole. */
#ifndef TEXT_TEMPLATE_H
#define TEXT_TEMPLATE_H

#include "text/tokenizer.h"

typedef struct {
    const char *name;  /* "prompt" of {prompt} */
    const char *value; /* the text in its place */
    int is_token;      /* 1: the value is the name of a token */
} text_field;

/* Writes the ids to ids: the first `max`, and their whole number to *count. fields [n]; `rows`: the embedding's, ids
 * are below it. Returns MAR_EARG for text that is not UTF-8, MAR_EMODEL for a token that the tokenizer or the embedding
 * does not have, or MAR_ENOMEM. */
mar_status text_template_ids(const char *text, const text_field *fields, int n, const text_tokenizer *t, int rows,
                             int *ids, int max, int *count, mar_err *err);

#endif
