/* UTF-8, and safe output of text from outside, such as a file's name, that may be any bytes. */
#ifndef BASE_PRINTABLE_H
#define BASE_PRINTABLE_H

#include <stddef.h>
#include <stdio.h>

/* Decodes the UTF-8 character at the start of text[0..n), n > 0, into *c. Returns its size, 1 to 4 bytes, or 0 if it is
 * invalid. */
size_t utf8_decode(const char *text, size_t n, unsigned *c);

enum { PRINTABLE_MAX = 8 };

/* Writes the printable form of the character at the start of text[0..n) to shown[*length]. Control characters, line
 * separators, direction marks and invalid bytes become \n, \x1b or \u202e. Returns the bytes consumed, 1 to 4. */
size_t printable_character(const char *text, size_t n, char shown[PRINTABLE_MAX], size_t *length);

/* Writes the printable form of text to line, char [size], as one line, and returns it. Never cuts a character or an
 * escape. A line that is too long loses its middle. */
const char *printable(const char *text, char *line, size_t size);

/* Returns the size of text[0..n) without an incomplete character at its end. */
size_t printable_whole(const char *text, size_t n);

/* Returns a copy with U+FFFD for each invalid byte. The caller frees it. Returns NULL without memory. */
char *printable_utf8(const char *text);

/* Returns the bytes of text before the first character whose copy does not fit char [size]. */
size_t printable_fits(const char *text, size_t size);

/* Writes JSON text with the same replacement. Escapes characters that are unsafe on a terminal, in JSON's way. */
void printable_json(FILE *out, const char *text);

#endif
