/* First bytes of a file of unknown format, for messages. Usually it is a web page or a Git LFS pointer. */
#ifndef WEIGHTS_START_H
#define WEIGHTS_START_H

#include <ctype.h>
#include <stddef.h>
#include <stdint.h>

/* Writes start[n] to text, char [n + 1], with dots for bytes that are not printable. Returns text. */
static inline const char *wt_start_text(const uint8_t *start, size_t n, char *text)
{
    for (size_t i = 0; i < n; i++) text[i] = (char)(start[i] < 0x80 && isprint(start[i]) ? start[i] : '.');
    text[n] = 0;
    return text;
}

#endif
