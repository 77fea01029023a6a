/* Byte-pair encoding with the steps around it, from the files of Hugging Face's `tokenizers`. Ids are those of that
 * library (0.23).
 *
 * Of a tokenizer.json all parts that decide about ids are read, or refused by name. The others are the caller's:
 * post_processor (start and end tokens), truncation, padding, decoder. */
#ifndef TEXT_BPE_H
#define TEXT_BPE_H

#include "text/buffer.h"

typedef struct text_bpe text_bpe;

enum { BPE_FILE_MAX = 1 << 26 }; /* bytes */

/* Reads tokenizer.json, text[length], and copies it. Returns MAR_EFORMAT or MAR_ENOMEM with the label. */
mar_status text_bpe_read(const char *text, size_t length, const char *label, text_bpe **out, mar_err *err);
/* Reads vocab.json, merges.txt and tokenizer_config.json, whose text is NULL if there is none. Its tokenizer_class, of
 * CLIP, GPT-2 or Qwen2, decides about the steps and, for Qwen2, about the added tokens. Without it they are CLIP's if
 * there are pieces that end with "</w>", else GPT-2's. */
mar_status text_bpe_read_files(const text_file *vocab, const text_file *merges, const text_file *config, text_bpe **out,
                               mar_err *err);
void text_bpe_free(text_bpe *b); /* NULL is fine */

int text_bpe_size(const text_bpe *b);
int text_bpe_find(const text_bpe *b, const char *piece); /* -1: there is none */

#endif
