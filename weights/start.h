/* How a file begins, for messages about files of no known format: the usual reason is a web page or a Git LFS pointer
 * in their place. */
#ifndef WEIGHTS_START_H
#define WEIGHTS_START_H

#include <ctype.h>
#include <stddef.h>
#include <stdint.h>

/* text, char [n + 1]: the bytes start[n], with dots for those that are not printable. */
static inline const char *wt_start_text(const uint8_t *start, size_t n, char *text)
{
    for (size_t i = 0; i < n; i++) text[i] = (char)(start[i] < 0x80 && isprint(start[i]) ? start[i] : '.');
    text[n] = 0;
    return text;
}

#endif
