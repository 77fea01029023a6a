/* SentencePiece's table of character replacements, precompiled_charsmap: the size of a trie in bytes, u32
 * little-endian; the trie, a double array of Darts-clone; the replacements, each ended by a NUL. */
#ifndef TEXT_CHARSMAP_H
#define TEXT_CHARSMAP_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

/* Bytes of the longest replacement and of the longest replaced string. NFKC needs 33 and some ten. */
enum { CHARSMAP_LONGEST = 255 };

typedef struct {
    uint32_t *units; /* [count]; NULL: no table */
    size_t count;
    char *replacements; /* [size + 1], with a NUL at its end */
    size_t size;
} text_charsmap;

/* Reads and checks the table. Returns MAR_EFORMAT, with the label, or MAR_ENOMEM. */
mar_status text_charsmap_read(const uint8_t *data, size_t size, const char *label, text_charsmap *out, mar_err *err);
void text_charsmap_free(text_charsmap *c);

/* Finds the longest string of the table at the start of text[0..n). Returns its length and sets *replacement, a string
 * with NUL; 0 if there is none. */
size_t text_charsmap_find(const text_charsmap *c, const char *text, size_t n, const char **replacement);

#endif
