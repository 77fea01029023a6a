/* The text of HTML, as BeautifulSoup(text, "html.parser").text has it: Beautiful Soup 4.15 over the html.parser of
 * Python 3.11. */
#ifndef TEXT_HTML_H
#define TEXT_HTML_H

#include "text/pattern.h"

/* Python's white space, in and as a class of a pattern. */
#define TEXT_SPACES "\\p{Z}\\t-\\r\\x1c-\\x1f\\x{85}"
#define TEXT_SPACE  "[" TEXT_SPACES "]"

enum { HTML_PATTERNS = 13 };

/* The compiled patterns. */
typedef struct {
    text_pattern *patterns[HTML_PATTERNS];
} text_html;

mar_status text_html_open(text_html *out, mar_err *err);
void text_html_close(text_html *h);

/* Writes the text of markup[n]. The markup must be in lower case. Where Beautiful Soup raises an exception, at an
 * unknown marked section such as "<![x", the markup stays. Returns MAR_EARG if a pattern exceeds its limits, or
 * MAR_ENOMEM. */
mar_status text_html_text(const text_html *h, text_matcher *m, const char *markup, size_t n, text_buffer *out,
                          mar_err *err);

#endif
