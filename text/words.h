/* WordPiece with BERT's steps before it, in lower case (Devlin et al., 2019). Ids are those of transformers'
 * BertTokenizer with do_lower_case: a text is cleaned of control characters, decomposed (NFD), rid of nonspacing marks,
 * put in lower case, and cut at white space, punctuation and CJK ideographs. A word is its longest pieces from the left
 * on; those that continue it begin with "##".
 *
 * transformers before 5 had another one in Python, which ImageReward was made with. Its ids differ in one thing: it
 * writes a capital sigma at the end of a word as a final one.
 *
 * The special tokens [PAD], [UNK], [CLS], [SEP] and [MASK] in a text count as themselves. So do [DEC] and [ENC], which
 * BLIP adds behind the vocabulary. */
#ifndef TEXT_WORDS_H
#define TEXT_WORDS_H

#include "text/buffer.h"

typedef struct text_words text_words;

enum { WORDS_FILE_MAX = 1 << 24 }; /* bytes */

/* Reads vocab.txt, text[length], and copies it: a piece a line, whose id is the line's number from 0. Of equal pieces
 * the last counts. Returns MAR_EFORMAT or MAR_ENOMEM with the label. */
mar_status text_words_read(const char *text, size_t length, const char *label, text_words **out, mar_err *err);
void text_words_free(text_words *w); /* NULL is fine */

int text_words_size(const text_words *w);                    /* pieces, with [DEC] and [ENC] */
int text_words_find(const text_words *w, const char *piece); /* -1: there is none */

/* Writes the ids of text[n], valid UTF-8. Returns MAR_ENOMEM, or MAR_EARG for too many combining marks in a row
 * (text_normalize). */
mar_status text_words_encode(const text_words *w, const char *text, size_t n, text_ids *out, mar_err *err);

#endif
