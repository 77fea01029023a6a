/* HTML's character references. */
#ifndef TEXT_ENTITIES_H
#define TEXT_ENTITIES_H

#include "text/buffer.h"

extern const char text_entities[]; /* entities_data.c */

/* Finds a named character, such as "eacute". Returns the number of its code points, 1 or 2; 0 if there is none. Sets
 * *needs_semicolon if the name needs a ";" behind it. */
int text_entity_find(const char *name, size_t length, unsigned out[2], int *needs_semicolon);

/* Returns what HTML takes a number from 0x80 to 0x9f for, a byte of Windows-1252; other numbers as they are. */
unsigned text_entity_number(unsigned number);

/* Writes text[n] with all character references replaced, as Python's html.unescape. */
void text_unescape(const char *text, size_t n, text_buffer *out);

#endif
