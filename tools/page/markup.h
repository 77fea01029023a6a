/* What the page and the plot of `mar fidelity` have in common: text in HTML and SVG, and the colour of a run. */
#ifndef TOOLS_MARKUP_H
#define TOOLS_MARKUP_H

#include <stdio.h>

/* The colours that are not of a run alone. */
#define MARKUP_INK   "#1d2530" /* text, and the reference */
#define MARKUP_AXIS  "#9aa3af" /* axes, and what is undecided */
#define MARKUP_SAME  "#009e73"
#define MARKUP_CLOSE "#e69f00"
#define MARKUP_OFF   "#d55e00"

/* CSS of what is in a plot. */
#define MARKUP_PLOT_STYLE                                                                                              \
    "text{font:12px system-ui,sans-serif;fill:" MARKUP_INK "}.axis{stroke:" MARKUP_AXIS "}.grid{stroke:#e6e9ee}"

/* Writes text as the content of an element or of a quoted attribute. What XML has no place for, control characters and
 * bytes that are not UTF-8, is escaped as in base/printable.h. */
void markup_escape(FILE *out, const char *text);

/* The same of text[0..n). */
void markup_escape_part(FILE *out, const char *text, size_t n);

/* "#0072b2". Run 0, the reference, is nearly black. */
const char *markup_colour(int run);

#endif
