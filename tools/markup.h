/* What the page and the plot of `mar fidelity` have in common: text in HTML and SVG, and the colour of a run. */
#ifndef TOOLS_MARKUP_H
#define TOOLS_MARKUP_H

#include <stdio.h>

/* Writes text as the content of an element or of a quoted attribute. What XML has no place for, control characters and
 * bytes that are not UTF-8, becomes '?'. */
void markup_escape(FILE *out, const char *text);

/* The same of text[0..n). */
void markup_escape_part(FILE *out, const char *text, size_t n);

/* "#0072b2". Run 0, the reference, is nearly black. */
const char *markup_colour(int run);

#endif
