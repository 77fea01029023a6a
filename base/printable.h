/* UTF-8, and text from outside, such as a file's name, which may be any bytes: for terminals and pages, and as valid
 * UTF-8. */
#ifndef BASE_PRINTABLE_H
#define BASE_PRINTABLE_H

#include <stddef.h>
#include <stdio.h>

/* Decodes the UTF-8 character at text[0..n), n > 0, to *c. Returns its bytes, 1 to 4; 0 if there is none. */
size_t utf8_decode(const char *text, size_t n, unsigned *c);

enum { PRINTABLE_MAX = 8 };

/* How the character at text[0..n) may be shown anywhere, or its byte if that is not UTF-8: *length bytes of `shown`.
 * Control characters, separators of lines, what turns the direction of text around and bytes that are not UTF-8 become
 * \n, \x1b or \u202e. Returns how many bytes of text it is, 1 to 4. */
size_t printable_character(const char *text, size_t n, char shown[PRINTABLE_MAX], size_t *length);

/* The text so shown, as one line in line, char [size], which it returns. Neither a character nor an escape is cut; what
 * is too long loses its middle. */
const char *printable(const char *text, char *line, size_t size);

/* The size of text[0..n) without a character at its end that is cut. */
size_t printable_whole(const char *text, size_t n);

/* A copy, to be freed, in which U+FFFD stands for each byte that is not UTF-8. NULL if memory runs out. */
char *printable_utf8(const char *text);

/* How many bytes of the text come before the first character that would not fit into char [size] of such a copy. */
size_t printable_fits(const char *text, size_t size);

/* Writes JSON text with the same replacement. What a terminal must not get is escaped as JSON has it. */
void printable_json(FILE *out, const char *text);

#endif
