/* Regular expressions (PCRE2) over UTF-8. */
#ifndef TEXT_PATTERN_H
#define TEXT_PATTERN_H

#include "text/budget.h"
#include "text/buffer.h"

/* A compiled pattern. It does not change, so any number of threads may use it. */
typedef struct text_pattern text_pattern;
/* Memory for the matches of one thread, a limit of memory for one search, and the budget of all. */
typedef struct text_matcher text_matcher;

enum { TEXT_GROUPS = 2 }; /* groups that a match reports: the whole one and the first */

typedef struct {
    size_t begin[TEXT_GROUPS], end[TEXT_GROUPS]; /* offsets; SIZE_MAX for a group without a match */
} text_match;

/* Compiles a pattern of PCRE2. \d, \s, \w and \b are Unicode's. Returns MAR_EFORMAT with the label, PCRE2's
 * reason and its offset, or MAR_ENOMEM. */
mar_status text_pattern_compile(const char *pattern, size_t length, const char *label, text_pattern **out,
                                mar_err *err);
/* The same for a pattern of the `tokenizers` library, in Oniguruma's syntax: ^ and $ match at every line. Refuses by
 * name what PCRE2 would read in another way, or what real tokenizers do not use. A matcher charges its work. */
mar_status text_pattern_translate(const char *pattern, size_t length, const char *label, text_pattern **out,
                                  mar_err *err);
/* Makes a pattern that matches text[length] as it is. Returns NULL without memory. */
text_pattern *text_pattern_literal(const char *text, size_t length);
size_t text_pattern_bytes(const text_pattern *p); /* of memory */
void text_pattern_free(text_pattern *p);

/* Makes a matcher whose searches charge this budget. A pattern of text_pattern_compile charges what its searches pass,
 * and not what they try. Returns NULL without memory. */
text_matcher *text_matcher_new(text_budget *budget);
text_budget *text_matcher_budget(const text_matcher *m);
/* Returns MAR_OK if no search with the matcher has failed; else, with the label, MAR_ENOMEM, or MAR_EARG if it exceeded
 * its limits. */
mar_status text_matcher_check(const text_matcher *m, const char *label, mar_err *err);
void text_matcher_free(text_matcher *m);

/* Finds the first match in text[0..n), valid UTF-8, at or after `from`. Returns 1, 0 if there is none, or -1 if the
 * search fails: text_matcher_check says why. */
int text_pattern_find(const text_pattern *p, text_matcher *m, const char *text, size_t n, size_t from, text_match *out);

/* Writes text with every match replaced by `with`. "\1" in it stands for the first group. An empty match is left as
 * it is. Returns MAR_EARG, with the label, if a search exceeds its limits, or MAR_ENOMEM. */
mar_status text_pattern_replace(const text_pattern *p, text_matcher *m, const char *text, size_t n, const char *with,
                                const char *label, text_buffer *out, mar_err *err);

#endif
