/* Tokenizers: text to token ids, as the reference libraries do it.
 *
 *   SentencePiece unigram   spiece.model (T5)
 *   byte-level BPE          tokenizer.json, or vocab.json and merges.txt (Chameleon, Lumina-mGPT, Qwen2.5)
 *   CLIP's BPE              tokenizer.json, or vocab.json and merges.txt, whose pieces end with "</w>"
 *   tiktoken's BPE          emu3.tiktoken and emu3_vision_tokens.txt (Emu3)
 *   WordPiece               vocab.txt of BERT, in lower case (ImageReward)
 *
 * A tokenizer does not change after its opening, so any number of threads may use it. */
#ifndef TEXT_TOKENIZER_H
#define TEXT_TOKENIZER_H

#include "base/error.h"

#include <limits.h>
#include <stddef.h>

typedef struct text_tokenizer text_tokenizer;

/* Opens the tokenizer in a folder as Hugging Face writes it: spiece.model, tokenizer.json, or vocab.json with
 * merges.txt and tokenizer_config.json, if there is one, the first of these that exists; or as Meta has it,
 * text_tokenizer.json there, in tokenizer/ or in
 * ../../tokenizer/. Every length and number is checked. Returns MAR_EIO, MAR_EFORMAT or
 * MAR_ENOMEM with the file's path; MAR_EIO names the three files if there is none. */
mar_status text_tokenizer_open(const char *folder, text_tokenizer **out, mar_err *err);
/* Returns 1 if that tokenizer is in another folder, as Meta has it, and writes its path. */
int text_tokenizer_elsewhere(const char *folder, char path[PATH_MAX]);
/* Opens WordPiece with a file vocab.txt (text/words.h). */
mar_status text_tokenizer_open_words(const char *path, text_tokenizer **out, mar_err *err);
void text_tokenizer_free(text_tokenizer *t); /* NULL is fine */

/* Writes the ids of text, char [length], valid UTF-8, without start and end tokens: the first `max` to ids, and their
 * whole number, which may exceed max, to *count. Returns MAR_EARG for invalid UTF-8, with the byte's offset, or
 * MAR_ENOMEM. */
mar_status text_tokenize(const text_tokenizer *t, const char *text, size_t length, int *ids, int max, int *count,
                         mar_err *err);

/* Returns the number of ids. */
int text_tokenizer_size(const text_tokenizer *t);
/* Returns the id of a piece or special token, such as "</s>"; -1 if there is none. */
int text_tokenizer_find(const text_tokenizer *t, const char *piece);

#endif
