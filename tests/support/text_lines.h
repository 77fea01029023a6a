/* The lines of text that tests/text cuts into tokens, made by the same rules as tests/golden/text_lines.py. */
#ifndef TESTS_TEXT_LINES_H
#define TESTS_TEXT_LINES_H

#include "text/buffer.h"
#include "text/tokenizer.h"

#include <stdint.h>

/* Writes line i into *out, after emptying it. Some are empty, of white space only, or of some 70 000 bytes. */
void text_line(int i, text_buffer *out);

/* Returns 16 bits of FNV-1a over ids as numbers of 4 bytes. */
unsigned text_hash_ids(const int *ids, int count);

/* Compares the ids of lines 0, step, 2 step ... with the hashes in `folder`/hashes.bin, u16 little-endian [n]. The
 * tokenizer in `folder` makes them. Fails with the first line that differs. */
void text_compare_lines(const char *folder, int step);
/* The same with a tokenizer. */
void text_compare_lines_with(const text_tokenizer *t, const char *folder, int step);

#endif
