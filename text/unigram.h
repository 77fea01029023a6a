/* SentencePiece's unigram model: Kudo, "Subword Regularization" (2018); google/sentencepiece, src/unigram_model.cc and
 * src/normalizer.cc. Ids are those of that library's release 0.2.3, to the last tie of scores; older ones added scores
 * in double, and few lines with ties differ.
 *
 * Hugging Face's T5 tokenizer is a second implementation and differs in places: it takes "</s>", "<extra_id_0>" and the
 * like in a text for special tokens, replaces characters of a grapheme as a whole, and adds scores in double. */
#ifndef TEXT_UNIGRAM_H
#define TEXT_UNIGRAM_H

#include "text/buffer.h"

typedef struct text_unigram text_unigram;

/* Bytes of the largest file, and of the longest piece. */
enum { UNIGRAM_FILE_MAX = 1 << 25, UNIGRAM_PIECE_MAX = 4096 };

/* Reads spiece.model, data[size], and copies it. Returns MAR_EFORMAT or MAR_ENOMEM with the label. */
mar_status text_unigram_read(const void *data, size_t size, const char *label, text_unigram **out, mar_err *err);
void text_unigram_free(text_unigram *u); /* NULL is fine */

int text_unigram_size(const text_unigram *u);
int text_unigram_find(const text_unigram *u, const char *piece); /* -1: there is none */

#endif
