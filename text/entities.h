/* HTML's character references. */
#ifndef TEXT_ENTITIES_H
#define TEXT_ENTITIES_H

#include "text/buffer.h"

extern const char text_entities[]; /* entities_data.c */

/* Writes text[n] with all character references replaced, as Python's html.unescape. */
void text_unescape(const char *text, size_t n, text_buffer *out);

#endif
