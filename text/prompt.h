/* The ids in front of an image, by a family's template (text/grammar.h). */
#ifndef TEXT_PROMPT_H
#define TEXT_PROMPT_H

#include "text/grammar.h"
#include "text/tokenizer.h"

/* What a template is filled with. */
typedef struct {
    const text_grammar *grammar;
    const text_tokenizer *tokenizer;
    int columns, rows; /* of the image, by text_grammar_size */
} text_prompt;

/* Writes the ids of the prompt's template, or with `negative` of the second context's, to ids: the first `max`, and
 * their whole number to *count. `text`, UTF-8, takes the place of {prompt}; NULL: the family's negative prompt. Returns
 * MAR_EARG for text that is not UTF-8, MAR_EMODEL for a token that the tokenizer or the embedding does not have, or
 * MAR_ENOMEM. */
mar_status text_prompt_ids(const text_prompt *p, int negative, const char *text, int *ids, int max, int *count,
                           mar_err *err);

#endif
