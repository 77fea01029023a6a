/* The ids of a text by a unigram model. */
#ifndef TEXT_UNIGRAM_ENCODE_H
#define TEXT_UNIGRAM_ENCODE_H

#include "text/buffer.h"

typedef struct text_unigram text_unigram;

/* Adds the ids of text[length] to out. Time and memory are proportional to the length. Returns MAR_ENOMEM, or MAR_EARG
 * for more than 2^31 bytes. */
mar_status text_unigram_encode(const text_unigram *u, const char *text, size_t length, text_ids *out, mar_err *err);

#endif
