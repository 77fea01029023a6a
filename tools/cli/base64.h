/* Base64 (RFC 4648), for data URIs and JSON. */
#ifndef TOOLS_BASE64_H
#define TOOLS_BASE64_H

#include <stddef.h>

/* Returns the length of the text of `size` bytes, without a NUL. */
size_t base64_size(size_t size);
/* Writes that text and a NUL to `to`. */
void base64_write(const void *data, size_t size, char *to);
/* Reads such a text to `to`, room for `most` bytes and a NUL, which it writes. Returns the bytes, or -1 if it is none or
 * too long. */
int base64_read(const char *text, char *to, int most);

#endif
